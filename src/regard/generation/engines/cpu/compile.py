"""The compiled C++ engine: that of the wheel, or one compiled here once, into a private folder of the user's cache.

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
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from regard.core.atomic_io import atomic_file, cache_folder, private_folder
from regard.core.errors import InvalidArgument
from regard.generation.engines.cpu.build_flags import FLAGS, VARIANTS, source_key, sources
from regard.generation.engines.cpu.hashed_file import content_hash, intact
from regard.generation.engines.cpu.prebuilt import prebuilt_library

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled code; None where REGARD_NATIVE=0, or it is not in the package and cannot be compiled.

    REGARD_NATIVE=compile compiles it for this very processor even where the package contains it; the name of a variant
    (avx2, ...) compiles that one.
    """
    wanted = os.environ.get("REGARD_NATIVE")
    if wanted == "0":
        return None
    variants = {variant.name: variant for variant in VARIANTS.get(platform.machine(), ())}
    if wanted in variants:
        loaded = _compiled_library(variants[wanted].flags)
    else:
        loaded = (prebuilt_library() if wanted != "compile" else None) or _compiled_library()
    if loaded is None:
        return None
    loaded.regard_panel_columns.restype = loaded.regard_int8_max_inputs.restype = ctypes.c_int64
    loaded.regard_fingerprint.restype = ctypes.c_uint64
    steps = "step encode search recurrent_step recurrent_search convolution_step convolution_search linear"
    for name in steps.split():
        function = getattr(loaded, f"regard_{name}")
        function.restype = ctypes.c_char_p
    return loaded


def _compiled_library(flags: Sequence[str] | None = None) -> ctypes.CDLL | None:
    """With these flags of a variant; by default for this processor."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return _unavailable("there is no C++ compiler (g++ or clang++)")
    tune = flags or [
        "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    ]
    key = hashlib.sha256(
        b"\0".join([" ".join((source_key(), compiler, *tune)).encode(), _processor()])
    )
    folder = cache_folder() / "native"
    prefix = f"step-{key.hexdigest()[:16]}"
    try:
        private_folder(folder)
        path = intact(folder, prefix, remove=True) or _compile(
            [compiler, *FLAGS, *tune, *map(str, sources())], folder, prefix
        )
        return ctypes.CDLL(str(path))
    except (OSError, InvalidArgument, subprocess.SubprocessError) as error:
        return _unavailable(str(error))


def _compile(command: list[str], folder: Path, prefix: str) -> Path:
    log.info("compiling the C++ engine for this processor, once; this takes some seconds")
    with tempfile.TemporaryDirectory() as temporary:
        built = Path(temporary) / prefix
        done = subprocess.run(
            [*command, "-o", str(built)], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise OSError(
                done.stderr.strip().partition("\n")[0]
                or f"{command[0]} ended with {done.returncode}"
            )
        content = built.read_bytes()
    path = folder / f"{prefix}-{content_hash(content)}.so"
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
    return "".join(
        sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    ).encode()
