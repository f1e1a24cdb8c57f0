"""Compiles the C++ engine for wheels: one library for each variant of a machine, named by the hash of its content.

python tools/build_engine.py --machine aarch64 --compiler aarch64-linux-gnu-g++ --out build/engine
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
# Without the OpenMP library: its symbols are found in PyTorch's, which every process has loaded before.
LINK = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,relro,-z,now,-z,noexecstack")


class BuildError(Exception):
    pass


def build_flags() -> ModuleType:
    """The package's list of sources, flags and variants, without importing the package."""
    path = ROOT / "src/regard/generation/engines/cpu/build_flags.py"
    spec = importlib.util.spec_from_file_location("engine_build_flags", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build(machine: str, out: Path, compiler: str | None = None) -> list[Path]:
    """Compile every variant of a machine into a folder."""
    flags = build_flags()
    compiler = compiler or os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("there is no C++ compiler (g++ or clang++): set CXX")
    if machine not in flags.VARIANTS or sys.platform != "linux":
        wanted = ", ".join(flags.VARIANTS)
        raise BuildError(
            f"wanted Linux, and a machine of {wanted}; got {sys.platform}, {machine}: build the pure wheel"
        )
    out.mkdir(parents=True, exist_ok=True)
    return [build_variant(flags, variant, out, compiler) for variant in flags.VARIANTS[machine]]


def build_variant(flags: ModuleType, variant, out: Path, compiler: str) -> Path:
    """Compile one variant; `flags` is the module of sources and flags."""
    compile_flags = [flag for flag in flags.FLAGS if flag != "-shared"]
    with tempfile.TemporaryDirectory() as temporary:
        objects = []
        for source in flags.sources():
            objects.append(Path(temporary, source.stem + ".o"))
            # The source is named without its folder: two builds anywhere give the same bytes.
            command = [
                compiler,
                *compile_flags,
                *variant.flags,
                "-c",
                source.name,
                "-o",
                str(objects[-1]),
            ]
            _run(command, cwd=source.parent)
        library = Path(temporary, "library")
        _run([compiler, *LINK, *map(str, objects), "-o", str(library)], cwd=Path(temporary))
        content = library.read_bytes()
    path = out / f"{flags.file_prefix(variant)}-{hashlib.sha256(content).hexdigest()}.so"
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def _run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(
            f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machine", default=platform.machine())
    parser.add_argument("--compiler", help="default: $CXX, g++ or clang++")
    parser.add_argument("--out", type=Path, default=ROOT / "build/engine")
    arguments = parser.parse_args()
    try:
        for path in build(arguments.machine, arguments.out, arguments.compiler):
            print(f"{path.stat().st_size:8,}  {path}")
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
