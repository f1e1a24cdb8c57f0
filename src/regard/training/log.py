"""What a run has written of itself, line by line."""

import json
from pathlib import Path

from regard.files import whole_file


def cut(path: Path, step: int) -> None:
    """Forget what was logged after a checkpoint: it is about to happen again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):  # a line that a kill cut short
            continue
    with whole_file(path) as file:
        file.write("".join(kept).encode())
