"""An example: a source and its target, as read from a file or generated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from regard.data.image_store import Member
from regard.data.synthetic.scenes import Scene

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Example:
    """A source (a text, a label, an image file, a scene to draw, or None) and its target."""

    source: str | Path | Member | Scene | None
    target: str
