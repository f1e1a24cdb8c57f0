"""What a run has written of itself, line by line."""

import json
from pathlib import Path

from regard.core.atomic_io import atomic_file


def cut(path: Path, step: int) -> None:
    """Forget what was logged after a checkpoint: it is about to happen again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + b"\n")
        except (ValueError, KeyError):  # a line that a kill cut short, maybe within a letter
            continue
    with atomic_file(path) as file:
        file.write(b"".join(kept))
