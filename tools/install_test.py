"""Tests a built wheel as a user has it: in an environment of its own, outside the repository, and without a compiler.

    python tools/install_test.py dist/regard-0.1.0-py3-none-any.whl --python python3.12 --python python3.13
    python tools/install_test.py --installed          # in the environment of this Python

--dependencies FOLDER takes the dependencies from a folder of installed packages instead of the index.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

DATES = {
    "3 May 1998": "1998-05-03",
    "Monday, the 5th of January 2004": "2004-01-05",
    "December 25, 1999": "1999-12-25",
}


class InstallError(Exception):
    pass


def run(command: list[str | Path], given: str = "", **options) -> str:
    done = subprocess.run(
        [*map(str, command)], input=given, capture_output=True, text=True, timeout=1200, **options
    )
    if done.returncode:
        raise InstallError(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def expect(what: str, wanted: object, got: object) -> None:
    if wanted != got:
        raise InstallError(f"{what}: wanted {wanted!r}; got {got!r}")


def check(python: Path, engine: bool | None) -> str:
    """Ask an installation for its help, its version and predictions. Returns what it says about its engine.

    engine   whether the wheel has a C++ engine; None: not compared
    """
    with tempfile.TemporaryDirectory() as temporary:
        environment = {"PATH": f"{temporary}/no-programs", "HOME": temporary, "LANG": "C.UTF-8"}
        if "PYTHONPATH" in os.environ:
            raise InstallError(
                "PYTHONPATH is set: this would test other files than those installed"
            )
        options = {"cwd": temporary, "env": environment}
        package = Path(
            run([python, "-P", "-c", "import regard; print(regard.__file__)"], **options).strip()
        ).parent
        if "site-packages" not in package.parts:
            raise InstallError(f"regard is not installed but in {package}")
        command = python.parent / "regard"
        for verb in ("demo", "predict", "serve"):
            expect(f"{verb} --help", True, "Usage: " in run([command, verb, "--help"], **options))
        verbose = run([command, "--version", "--verbose"], **options)
        expect(
            "the version", run([command, "--version"], **options).strip(), verbose.splitlines()[0]
        )
        said = next(line for line in verbose.splitlines() if line.startswith("C++ engine: "))
        if engine is not None:
            expect(said, engine, said.endswith("from the wheel"))
            expect(said, not engine, said.endswith("not available"))
        model = package / "studio/example_model/dates"
        for native in ("1", "0"):  # by the engine, if there is one, and by PyTorch
            predicted = run(
                [command, "predict", model, "--device", "cpu"], "\n".join(DATES), cwd=temporary,
                env=environment | {"REGARD_NATIVE": native},
            )  # fmt: skip
            expect("predictions", [*DATES.values()], predicted.splitlines())
    return said


def install(wheel: Path, python: str, folder: Path, dependencies: Path | None) -> Path:
    """Make a virtual environment with a wheel. Returns its Python."""
    run([python, "-m", "venv", folder])
    made = folder / "bin/python"
    pip = [made, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if dependencies is None:
        run([*pip, wheel])
    else:
        run([*pip, "--no-deps", "--no-index", wheel])
        site = run([made, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
        Path(site, "dependencies.pth").write_text(f"{dependencies}\n")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument(
        "--python", action="append", help="may be given several times; default: this one"
    )
    parser.add_argument("--dependencies", type=Path, help="a folder of installed packages")
    parser.add_argument(
        "--installed", action="store_true", help="test what is installed here; no wheel"
    )
    arguments = parser.parse_args()
    if arguments.installed is (arguments.wheel is not None):
        parser.error("wanted a wheel or --installed")
    try:
        if arguments.installed:
            print(f"{sys.version.split()[0]}: {check(Path(sys.executable), None)}")
        for python in (arguments.python or [sys.executable]) if arguments.wheel else ():
            with tempfile.TemporaryDirectory() as folder:
                made = install(
                    arguments.wheel.resolve(), python, Path(folder, "env"), arguments.dependencies
                )
                print(f"{python}: {check(made, not arguments.wheel.name.endswith('-any.whl'))}")
    except InstallError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
