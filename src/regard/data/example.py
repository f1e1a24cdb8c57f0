"""An example: its source or sources and its target, as read from a file or generated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from regard.data.image_store import Member
from regard.data.series_window import Window
from regard.data.synthetic.scenes import Scene

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


# A text, a label, the file of an image or of an array, a scene to draw, or a window of a series.
SourceValue = str | Path | Member | Scene | Window


@dataclass(frozen=True)
class Example:
    """A source (several as a tuple, none for a language model) and its target."""

    source: SourceValue | tuple[SourceValue, ...] | None
    target: Any  # a text, the file of an array, or a window of a series

    @property
    def sources(self) -> tuple[SourceValue, ...]:
        """All sources."""
        if isinstance(self.source, tuple):
            return self.source
        return () if self.source is None else (self.source,)


def source_text(source: object) -> str:
    """A source, or several, for a report."""
    return " | ".join(map(str, source)) if isinstance(source, tuple) else str(source)
