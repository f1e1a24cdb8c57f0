"""Compiles step.cpp for the machine at hand, once, into a private folder of the user's cache.

The name of a compiled library holds the hash of its content, which is checked before it is loaded: a truncated or
changed one is compiled anew. Write access to the folder is enough to run code, so only its owner may write there.

No model needs it: where there is no compiler this is logged once, and PyTorch does the same, slower.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from regard.core.atomic_io import atomic_file, cache_folder, private_folder
from regard.core.errors import InvalidArgument

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("step.cpp")  # the one translation unit
HEADERS = tuple(
    Path(__file__).with_name(f"{name}.h")
    for name in ("convolution", "layers", "linear", "recurrent", "threads", "transformer")
)  # that it includes
# No flag that changes the floating-point mode of the process (as -ffast-math does), and none that lets the compiler
# choose the order of a sum (-fassociative-math): it chose another one for a single row than for several.
FLAGS = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-freciprocal-math",
)  # fmt: skip


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled code; None where REGARD_NATIVE=0 or it cannot be compiled."""
    if os.environ.get("REGARD_NATIVE") == "0":
        return None
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return _unavailable("there is no C++ compiler (g++ or clang++)")
    tune = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    sources = [path.read_bytes() for path in (SOURCE, *HEADERS)]
    key = hashlib.sha256(b"\0".join([*sources, " ".join((compiler, tune, *FLAGS)).encode(), _processor()]))
    folder, prefix = cache_folder() / "native", f"step-{key.hexdigest()[:16]}"
    try:
        private_folder(folder)
        path = _intact(folder, prefix) or _compile([compiler, *FLAGS, tune, str(SOURCE)], folder, prefix)
        loaded = ctypes.CDLL(str(path))
    except (OSError, InvalidArgument, subprocess.SubprocessError) as error:
        return _unavailable(str(error))
    loaded.regard_panel_columns.restype = loaded.regard_int8_max_inputs.restype = ctypes.c_int64
    loaded.regard_fingerprint.restype = ctypes.c_uint64
    for name in ("step", "encode", "recurrent_step", "convolution_step", "linear"):
        function = getattr(loaded, f"regard_{name}")
        function.restype = ctypes.c_char_p
    return loaded


def _intact(folder: Path, prefix: str) -> Path | None:
    """The compiled library, its content checked; damaged ones are removed."""
    for path in folder.glob(f"{prefix}-*.so"):
        if path.is_file() and not path.is_symlink() and path.stem == f"{prefix}-{_hash(path.read_bytes())}":
            return path
        log.warning("%s is damaged: it is removed and compiled anew", path)
        path.unlink()
    return None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compile(command: list[str], folder: Path, prefix: str) -> Path:
    log.info("compiling the C++ engine for this processor, once; this takes some seconds")
    with tempfile.TemporaryDirectory() as temporary:
        built = Path(temporary) / prefix
        done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip().partition("\n")[0] or f"{command[0]} ended with {done.returncode}")
        content = built.read_bytes()
    path = folder / f"{prefix}-{_hash(content)}.so"
    with atomic_file(path) as file:
        file.write(content)
    return path


def _unavailable(reason: str) -> ctypes.CDLL | None:
    log.warning("the compiled CPU engine is unavailable, decoding is slower: %s", reason)
    return None


def _processor() -> bytes:
    """What the code is tuned to: machines with different processors may share a cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor().encode()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})).encode()
