"""Log-probabilities of given targets, by teacher forcing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from regard.core.errors import InvalidArgument
from regard.data.text import lines, parallel

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor

CHUNK = 1024  # lines at once: enough to batch those of similar length


@dataclass(frozen=True)
class SequenceScore:
    """The log-probability of one target."""

    tokens: tuple[str, ...]  # with the end token, where the model has one; or the label
    log_probabilities: tuple[float, ...]  # one for each token

    @property
    def log_probability(self) -> float:
        """Of the whole target."""
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        return exp(-self.log_probability / max(1, len(self.log_probabilities)))


def score_lines(
    predictor: "Predictor", examples: Iterable[tuple[str, ...]], batch_tokens: int | None = None
) -> Iterator[SequenceScore]:
    """Scores of (source, target) pairs, or of (text,) for a language model, in order and in chunks of lines."""
    examples = iter(examples)
    while chunk := list(islice(examples, CHUNK)):
        columns = list(zip(*chunk, strict=True))
        targets = columns[1] if len(columns) > 1 else None
        yield from predictor.score(columns[0], targets, batch_tokens=batch_tokens)


def pairs(predictor: "Predictor", files: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """Sources (several with tabs between them) and targets, of parallel files or of the columns of stdin.

    The columns of stdin are separated by tabs. A language model has texts alone.
    """
    columns = len(predictor.recipe.data.fields)
    names = " and ".join(predictor.recipe.data.fields)
    if files and len(files) != columns:
        wanted = f"{columns} files, of {names}" if columns > 1 else "a file of texts"
        raise InvalidArgument("files", wanted=wanted, got=str(len(files)), remedy="Or none, for stdin.")
    if columns == 1:
        yield from parallel(files or [Path("/dev/stdin")])
        return
    rows = parallel(files) if files else (tuple(line.split("\t")) for line in lines("/dev/stdin"))
    for number, row in enumerate(rows, start=1):
        if len(row) != columns:
            wanted, remedy = f"{names}, separated by tabs", f"Or give {columns} files."
            raise InvalidArgument(f"line {number}", wanted=wanted, got=f"{len(row)} columns", remedy=remedy)
        yield "\t".join(row[:-1]), row[-1]
