"""An example: its source or sources and its target, as read from a file or generated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from regard.data.image_store import Member
from regard.data.synthetic.scenes import Scene

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


SourceValue = str | Path | Member | Scene  # a text, a label, an image file, or a scene to draw


@dataclass(frozen=True)
class Example:
    """A source (several as a tuple, none for a language model) and its target."""

    source: SourceValue | tuple[SourceValue, ...] | None
    target: Any  # a text, or the file of an array

    @property
    def sources(self) -> tuple[SourceValue, ...]:
        """All sources."""
        if isinstance(self.source, tuple):
            return self.source
        return () if self.source is None else (self.source,)


def source_text(source: object) -> str:
    """A source, or several, for a report."""
    return " | ".join(map(str, source)) if isinstance(source, tuple) else str(source)
