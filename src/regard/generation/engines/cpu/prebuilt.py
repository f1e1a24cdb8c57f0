"""The C++ engine from the wheel: the variant for this processor, verified before it is loaded.

As in the cache, a library's name holds the hash of its content. It is loaded from the package's own folder where nobody
else may write there, otherwise from a copy in the private folder of the cache. It uses the OpenMP runtime of PyTorch,
which is loaded before: a machine without a compiler may have no other.
"""

import ctypes
import logging
import os
import platform
from pathlib import Path

from regard.core.atomic_io import atomic_file, cache_folder, check_private, private_folder
from regard.core.errors import InvalidArgument
from regard.generation.engines.cpu.build_flags import VARIANTS, Variant, file_prefix
from regard.generation.engines.cpu.hashed_file import content_hash, intact

log = logging.getLogger(__name__)

FOLDER = Path(__file__).with_name("libraries")  # in wheels for a platform


def prebuilt_library() -> ctypes.CDLL | None:
    """The library of this package for this processor; None where there is none, or it cannot be used."""
    variant = best_variant(platform.machine(), processor_features())
    if variant is None or not FOLDER.is_dir():
        return None
    path = intact(FOLDER, file_prefix(variant))
    if path is None:
        return None
    import torch  # noqa: F401  # its OpenMP runtime

    share_openmp()
    try:
        return ctypes.CDLL(str(_private(path)))
    except (OSError, InvalidArgument) as error:
        log.warning("the C++ engine of this package cannot be used: %s", error)
        return None


def best_variant(machine: str, features: frozenset[str]) -> Variant | None:
    """The fastest variant for a processor with these features; None for a machine that wheels have none for."""
    return next(
        (variant for variant in VARIANTS.get(machine, ()) if variant.needs <= features), None
    )


def processor_features() -> frozenset[str]:
    """What this processor and the kernel support (CPUID); empty where Linux does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    named = (
        line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))
    )  # x86, ARM
    return frozenset(next(named, ()))


def share_openmp() -> None:
    """Let libraries that are loaded from now on find the OpenMP runtime that PyTorch has loaded.

    PyTorch's builds for x86-64 load it for everybody, those for aarch64 for themselves.
    """
    try:
        mapped = {
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
        }
    except OSError:
        return
    for path in sorted(path for path in mapped if Path(path).name.startswith("libgomp")):
        ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)


def _private(path: Path) -> Path:
    """The library where only this user or root can write: the file itself, or a copy of its verified content."""
    try:
        check_private(path)
        return path
    except InvalidArgument:
        folder = cache_folder() / "native"
        private_folder(folder)
    content = path.read_bytes()
    if path.stem.rpartition("-")[2] != content_hash(content):
        raise InvalidArgument(
            str(path), wanted="the content of the wheel", got="another", remedy="Install it again."
        )
    copy = folder / path.name
    if intact(folder, path.stem.rpartition("-")[0], remove=True) is None:
        with atomic_file(copy) as file:
            file.write(content)
    return copy
