"""How likely a model finds outputs that are given."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.data.text import lines, parallel
from regard.data.tokenizer import END, START, Labels, Tokenizer
from regard.model.seq2seq import Classifier, Seq2Seq

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor

CHUNK = 1024  # lines at once: enough to put those of like length together


@dataclass(frozen=True)
class SequenceScore:
    """How likely a model finds one target."""

    tokens: tuple[str, ...]  # the end among them, where the model says one; or the label
    log_probabilities: tuple[float, ...]  # one a token

    @property
    def log_probability(self) -> float:
        """Of the whole target."""
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        return exp(-self.log_probability / max(1, len(self.log_probabilities)))


def score_lines(
    predictor: "Predictor", given: Iterable[tuple[str, ...]], batch_tokens: int | None = None
) -> Iterator[SequenceScore]:
    """Of sources with their targets, or of texts alone for a language model, as they come."""
    given = iter(given)
    while chunk := list(islice(given, CHUNK)):
        columns = list(zip(*chunk, strict=True))
        targets = columns[1] if len(columns) > 1 else None
        yield from predictor.score(columns[0], targets, batch_tokens=batch_tokens)


def pairs(predictor: "Predictor", files: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """The lines of files side by side; of stdin, the two sides of a tab. A language model has texts alone."""
    wanted = 1 if predictor.recipe.data.source is None else 2
    if files and len(files) != wanted:
        names = "texts" if wanted == 1 else "sources and one of targets"
        raise InvalidArgument("files", wanted=f"a file of {names}", got=str(len(files)), remedy="Or none, for stdin.")
    if files or wanted == 1:
        yield from parallel(files or [Path("/dev/stdin")])
        return
    for number, line in enumerate(lines("/dev/stdin"), start=1):
        sides = tuple(line.split("\t"))
        if len(sides) != wanted:
            raise InvalidArgument(
                f"line {number}",
                wanted="a source and a target, parted by a tab",
                got=f"{len(sides)} columns",
                remedy="Or give two files.",
            )
        yield sides


@torch.inference_mode()
def score(
    predictor: "Predictor",
    sources: Sequence[Any] | None,
    targets: Sequence[str],
    collate: Callable[[list[Any]], Any],
    budget: int,
) -> list[SequenceScore]:
    """Sources are what `collate` makes a batch of; None for a language model."""
    model, vocabulary = predictor.model, predictor.target
    found: list[SequenceScore | None] = [None] * len(targets)
    if isinstance(model, Classifier):
        assert isinstance(vocabulary, Labels)
        assert sources is not None
        labels = [vocabulary.encode(target) for target in targets]
        for rows in together([_size(source) for source in sources], budget):
            log_p = model(collate([sources[row] for row in rows])).float().log_softmax(-1)
            for at, row in enumerate(rows):
                found[row] = SequenceScore((targets[row],), (float(log_p[at, labels[row]]),))
        return [each for each in found if each is not None]
    if not isinstance(model, Seq2Seq) or not isinstance(vocabulary, Tokenizer):
        raise InvalidArgument(
            "model", wanted="one that gives sequences or labels", got=type(model).__name__, remedy="Fine-tune it first."
        )
    running = predictor.recipe.data.context_length is not None  # a text without ends
    ids = [[END, *row] if running else [START, *row, END] for row in vocabulary.encode_batch(targets)]
    device = next(model.parameters()).device
    sizes = [max(len(row), 0 if sources is None else _size(sources[n])) for n, row in enumerate(ids)]
    for rows in together(sizes, budget):
        source = None if sources is None else collate([sources[row] for row in rows])
        log_p = model.log_probabilities(source, Tokens.of([ids[row] for row in rows], device=device).ids).tolist()
        for row, values in zip(rows, log_p, strict=True):
            count = len(ids[row]) - 1
            found[row] = SequenceScore(tuple(vocabulary.pieces(ids[row][1:])), tuple(values[:count]))
    return [each for each in found if each is not None]


def _size(source: Any) -> int:
    return len(source) if isinstance(source, list) else 1


def together(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Which are computed together: of like length, within a budget of tokens with their padding."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and (lengths[row] + 1) * (len(rows) + 1) > budget:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
