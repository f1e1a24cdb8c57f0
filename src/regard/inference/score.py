"""Log-probabilities of given targets, by teacher forcing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.text import is_table, line_of, lines, parallel, rows as table_rows
from regard.data.vocabulary import Labels

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


def pairs(
    predictor: "Predictor", files: Sequence[Path], chosen: Sequence[str] = ()
) -> Iterator[tuple[str, ...]]:
    """Sources (several with tabs between them) and targets: of parallel files, of a table, or of the columns of stdin.

    The columns of stdin are separated by tabs. A language model has texts alone. `chosen` are columns of tables.
    """
    config, vocabularies = predictor.recipe.data, (*predictor.sources, predictor.target)
    names, columns = list(config.fields), config.table_columns(chosen)
    if len(files) == 1 and is_table(files[0]):
        rows = table_rows(files[0], columns)
    elif files and len(files) != len(names):
        wanted = (
            f"{len(names)} files, of {' and '.join(names)}, or a table"
            if len(names) > 1
            else "a file of texts"
        )
        raise InvalidArgument(
            "files", wanted=wanted, got=str(len(files)), remedy="Or none, for stdin."
        )
    elif files:
        rows = parallel(files, columns=[[column] for column in columns])
    else:
        rows = (
            tuple(line.split("\t") if len(names) > 1 else [line]) for line in lines("/dev/stdin")
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            wanted, remedy = (
                f"{' and '.join(names)}, separated by tabs",
                f"Or give {len(names)} files.",
            )
            raise InvalidArgument(
                f"line {number}", wanted=wanted, got=f"{len(row)} columns", remedy=remedy
            )
        for i, (name, vocabulary) in enumerate(zip(row, vocabularies, strict=True)):
            if isinstance(vocabulary, Labels) and name not in vocabulary.names:
                file = files[i if len(files) > 1 else 0] if files else "stdin"
                line = line_of(file, number) if files else number
                wanted, remedy = "a label of the training data", nearest(name, vocabulary.names)
                raise InvalidData(file, line, wanted=wanted, got=repr(name), remedy=remedy)
        yield ("\t".join(row[:-1]), row[-1]) if len(row) > 1 else row
