"""What a run has written of itself, line by line."""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from regard.files import whole_file


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
    with whole_file(path) as file:
        file.write(b"".join(kept))


def as_line(event: Mapping[str, Any]) -> str:
    """An event as JSON, which knows no number that is not finite."""
    known = {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in event.items()}
    return json.dumps(known, ensure_ascii=False, allow_nan=False) + "\n"
