"""The memory that this process may still take, and giving back what it has freed."""

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
UNKNOWN = 1 << 33  # bytes that are taken to be free where the system does not say


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, of its container, and of its own limit (`ulimit -v`)."""
    found = [_field("/proc/meminfo", "MemAvailable:"), _free_in_container(), _free_addresses()]
    known = [each for each in found if each is not None]
    return min(known, default=UNKNOWN)


def resident_memory() -> int | None:
    """Bytes of this process that are in memory; None where the system does not say."""
    return _field("/proc/self/status", "VmRSS:")


def release_free_memory() -> None:
    """Give memory that was freed back to the system: glibc keeps it otherwise, in an arena for each thread."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none


def _field(path: str, name: str) -> int | None:
    """A number of kilobytes in a file of /proc, in bytes."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return None


def _free_in_container() -> int | None:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = (CGROUP / "memory.current").read_text().strip()
    except OSError:
        return None
    if limit.isdecimal():
        return max(0, int(limit) - int(used))
    return None


def _free_addresses() -> int | None:
    """Bytes of address space that are left of the process's own limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _field("/proc/self/status", "VmSize:")
    if limit == resource.RLIM_INFINITY or used is None:
        return None
    return max(0, limit - used)
