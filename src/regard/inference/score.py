"""Log-probabilities of given targets, by teacher forcing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.data.text import lines, parallel
from regard.data.tokenizer import END, START, Labels, Tokenizer
from regard.inference.inputs import EncodedInput, InputEncoder
from regard.model.seq2seq import Classifier, Seq2Seq

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
    """The examples in parallel files, or on stdin as two columns separated by a tab; one text for a language model."""
    columns = 1 + bool(predictor.recipe.data.source_fields)
    if files and len(files) != columns:
        names = "texts" if columns == 1 else "sources and one of targets"
        raise InvalidArgument("files", wanted=f"a file of {names}", got=str(len(files)), remedy="Or none, for stdin.")
    if files or columns == 1:
        yield from parallel(files or [Path("/dev/stdin")])
        return
    for number, line in enumerate(lines("/dev/stdin"), start=1):
        sides = tuple(line.split("\t"))
        if len(sides) != columns:
            raise InvalidArgument(
                f"line {number}",
                wanted="a source and a target, separated by a tab",
                got=f"{len(sides)} columns",
                remedy="Or give two files.",
            )
        yield sides


@torch.inference_mode()
def score_labels(
    model: Classifier,
    labels: Labels,
    inputs: InputEncoder,
    encoded: Sequence[EncodedInput],
    targets: Sequence[str],
    batch_tokens: int,
) -> list[SequenceScore]:
    """The score of one label for each input."""
    ids = [labels.encode(target) for target in targets]
    scores: dict[int, SequenceScore] = {}
    for rows in length_batches(inputs.sizes(encoded), batch_tokens):
        log_p = model(inputs.collate([encoded[row] for row in rows])).float().log_softmax(-1).tolist()
        for row, values in zip(rows, log_p, strict=True):
            scores[row] = SequenceScore((targets[row],), (values[ids[row]],))
    return [scores[row] for row in range(len(targets))]


@torch.inference_mode()
def score_sequences(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    inputs: InputEncoder,
    encoded: Sequence[EncodedInput] | None,
    targets: Sequence[str],
    batch_tokens: int,
    *,
    documents: bool,
) -> list[SequenceScore]:
    """The score of one target for each input; `encoded` is None for a language model.

    With `documents`, the targets are running text, which begins after an end token and has none of its own.
    """
    ids = [[END, *row] if documents else [START, *row, END] for row in tokenizer.encode_batch(targets)]
    device = next(model.parameters()).device
    sizes = [len(row) for row in ids]
    if encoded is not None:
        sizes = [max(pair) for pair in zip(sizes, inputs.sizes(encoded), strict=True)]
    scores: dict[int, SequenceScore] = {}
    for rows in length_batches(sizes, batch_tokens):
        source = None if encoded is None else inputs.collate([encoded[row] for row in rows])
        log_p = model.log_probabilities(source, Tokens.of([ids[row] for row in rows], device=device).ids).tolist()
        for row, values in zip(rows, log_p, strict=True):
            count = len(ids[row]) - 1
            scores[row] = SequenceScore(tuple(tokenizer.pieces(ids[row][1:])), tuple(values[:count]))
    return [scores[row] for row in range(len(targets))]


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sequences of similar length, batched within a budget of tokens with padding."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and (lengths[row] + 1) * (len(rows) + 1) > batch_tokens:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
