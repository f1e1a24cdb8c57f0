"""`regard --version`, and with `--verbose` what a report of a bug needs."""

import platform
from pathlib import Path

import torch

import regard
from support.command_line import command


def test_the_version():
    assert command("--version").stdout == f"regard {regard.__version__}\n"


def test_the_verbose_version_names_engines_and_packages_and_no_values_of_settings(monkeypatch):
    monkeypatch.setenv("REGARD_API_KEYS", "secret")
    for arguments in (("--version", "--verbose"), ("--verbose", "--version")):
        done = command(*arguments)
        lines = done.stdout.splitlines()
        found = dict(line.split(": ", 1) for line in lines[1:])
        assert lines[0] == f"regard {regard.__version__}"
        assert found["python"].startswith(platform.python_version())
        assert found["torch"].startswith(torch.__version__)
        in_package = any(Path(regard.__file__).parent.rglob("*.so"))
        origin = "from the wheel" if in_package else "compiled on this machine"
        assert found["C++ engine"].endswith((origin, "not available"))
        assert "safetensors " in found["packages"]
        assert "REGARD_API_KEYS" in found["settings in the environment"]
        assert "secret" not in done.stdout
