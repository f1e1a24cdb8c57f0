"""Shapes are executed here and nowhere else: jaxtyping and beartype check every annotated call of the package."""

import os
import random
import socket
import sys

import pytest

from support.shape_checks import check_calls

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # one of several: a thread each, also in the processes that tests start
    os.environ["OMP_NUM_THREADS"] = "1"
check_calls("regard")

import numpy as np  # noqa: E402  after the hook
import torch  # noqa: E402  after the hook

if (
    not torch.cuda.is_available()
):  # Triton's interpreter runs its kernels on the CPU; asked when Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Tests run in random order, with the same random numbers in every order (see `_seed`)."""
    if config.pluginmanager.hasplugin("randomly"):
        config.option.randomly_reset_seed = False


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    # Before fixtures of a module or a session, whose values would depend on the tests before them.
    _seed()


@pytest.fixture(autouse=True)
def _seeded():
    # After those fixtures: a test that sets them up draws the same numbers as one that finds them.
    _seed()


def _refuse_other_machines(event: str, arguments: tuple) -> None:
    """No test reaches another machine: an address that is not of this one is an error, whoever asks for it."""
    if event == "socket.connect" and isinstance(address := arguments[1], tuple):
        host = address[0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    name = host.decode() if isinstance(host, bytes) else host
    if name and name not in HERE and not str(name).startswith("127."):
        raise AssertionError(f"a test wanted to reach {name}")


HERE = {"localhost", "::1", "0.0.0.0", socket.gethostname()}
sys.addaudithook(_refuse_other_machines)
