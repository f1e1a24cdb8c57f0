"""The versions, processor and threads that a run is computed with,
whose change changes the last bits of its sums.
"""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.core.errors import CheckpointRefused
from regard.core.version import __version__

Environment = Mapping[str, str | int]


def environment(device: torch.device, processes: int) -> dict[str, str | int]:
    """All that is not in the recipe and has an influence on the order or the precision of sums."""
    on_gpu = device.type == "cuda"
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "processor": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def changed_environment(before: Any, now: Environment, where: Path) -> str | None:
    """A sentence that names what differs; None where nothing does,
    or where `before` is unknown (None).
    """
    if before is None:
        return None
    if not isinstance(before, Mapping) or not all(
        isinstance(value, str | int) for value in before.values()
    ):
        raise CheckpointRefused(
            f"{where}: wanted the environment of a run; got {before!r:.80}. It was changed."
        )
    differences = [
        f"{key} {now[key]} for {before[key]}"
        for key in now
        if key in before and now[key] != before[key]
    ]
    if not differences:
        return None
    return (
        f"resumed with {', '.join(differences)}: "
        "its weights may differ in the last bits from those of one whole run"
    )


def _processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return f"{platform.machine()} {name}".strip()
