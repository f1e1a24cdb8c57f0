"""Shapes are executed here and nowhere else: jaxtyping and beartype check every annotated call of the package."""

import os

import pytest
from jaxtyping import install_import_hook

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several: a thread each, also in the processes that tests start
    os.environ["OMP_NUM_THREADS"] = "1"
install_import_hook("regard", "beartype.beartype")

import torch  # noqa: E402  after the hook

if not torch.cuda.is_available():  # Triton's interpreter runs its kernels on the CPU; asked when Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
