"""`regard --version --verbose`: what a report of a bug needs.
Imports PyTorch when it is asked to.
"""

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from regard.core.version import __version__


def version_lines() -> Iterator[str]:
    """The versions of Regard, Python and PyTorch, the system, the engines,
    and all packages that Regard can use.
    """
    import torch

    yield f"regard {__version__}"
    yield f"python: {platform.python_version()} ({platform.python_implementation()})"
    yield f"system: {platform.platform()}"
    yield f"processor: {_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    yield f"torch: {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    for index in range(torch.cuda.device_count()):
        yield f"GPU {index}: {torch.cuda.get_device_name(index)}"
    yield f"C++ engine: {_engine()}"
    yield f"packages: {', '.join(_packages())}"
    names = sorted(name for name in os.environ if name.startswith("REGARD_"))
    # Without values: keys may be among them.
    yield f"settings in the environment: {', '.join(names) or 'none'}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _engine() -> str:
    from regard.generation.engines.cpu import build_flags, compile

    library = compile.library()
    if library is None:
        return "not available"
    path = Path(library._name)
    origin = "compiled on this machine"
    if path.name.startswith(build_flags.PREFIX):
        origin = "from the wheel"
    return f"{path.stem.rpartition('-')[0]}, {origin}"


def _packages() -> list[str]:
    """All that Regard requires, with and without extras, and that is installed."""
    listed = {
        re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in _requirements()
    } - {"regard"}
    found = []
    for name in sorted(listed):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def _requirements() -> list[str]:
    try:
        return requires("regard") or []
    except PackageNotFoundError:  # run from a folder of sources
        return []
