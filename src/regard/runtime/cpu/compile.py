"""Code in C++, compiled once on the machine that runs it, and kept in the user's cache.

Nothing needs it: where there is no compiler this says so once, and PyTorch does the same work more slowly.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from regard.core.atomic_io import atomic_file, cache_folder
from regard.core.errors import InvalidArgument

SOURCE = Path(__file__).with_name("step.cpp")
# Sums in any order, and nothing that changes how the rest of the process computes.
FLAGS = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-fassociative-math", "-freciprocal-math",
)  # fmt: skip


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled code, or nothing where REGARD_NATIVE=0 or it cannot be compiled."""
    if os.environ.get("REGARD_NATIVE") == "0":
        return None
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return _without("there is no C++ compiler (g++ or clang++)")
    tune = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    key = hashlib.sha256(b"\0".join([SOURCE.read_bytes(), " ".join((compiler, tune, *FLAGS)).encode(), _processor()]))
    path = cache_folder() / "native" / f"step-{key.hexdigest()[:16]}.so"
    if not path.exists():
        try:
            _compile([compiler, *FLAGS, tune, str(SOURCE)], path)
        except (OSError, InvalidArgument, subprocess.SubprocessError) as error:
            return _without(str(error))
    try:
        found = ctypes.CDLL(str(path))
    except OSError as error:
        return _without(str(error))
    found.regard_columns.restype = found.regard_bytes.restype = ctypes.c_int64
    found.regard_print.restype = ctypes.c_uint64
    return found


def _compile(command: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip().partition("\n")[0] or f"{command[0]} ended with {done.returncode}")
        with atomic_file(path) as file:
            file.write(made.read_bytes())


def _without(why: str) -> ctypes.CDLL | None:
    print(f"regard: decoding without compiled code, which is slower: {why}", file=sys.stderr)
    return None


def _processor() -> bytes:
    """What the code is tuned to: a cache may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor().encode()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})).encode()
