"""Systems on the same inputs, side by side: figures, quality by source length, and where their outputs differ most."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from heapq import nlargest
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from regard.api.evaluate import EvaluationInputs, collect_systems, is_file
from regard.api.look import look
from regard.core.errors import InvalidArgument
from regard.data.tokenizer import Tokenizer
from regard.evaluation.bootstrap import RESAMPLES
from regard.evaluation.report import Report, Row, SystemStatistics, report
from regard.evaluation.statistics import ConfusionMatrix, edit_distance
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe

LARGEST = 4096  # weights of a map that is shown
PIECES = ("bpe", "unigram")  # tokens that make up words
OF_MANY = ("bleu", "bleu_lower")  # where a sentence of three words has no four in a row, and so nothing right


@dataclass(frozen=True)
class SystemAttention:
    """The last look at the source, its heads together: what the rows and the keys are, and a weight for each."""

    rows: Sequence[str]
    keys: Sequence[str]
    weights: Sequence[Sequence[float]]


@dataclass(frozen=True)
class SystemAnswer:
    """What one system says, its scores by each metric that tells of one example, and where it looked, if it did."""

    output: str
    scores: dict[str, float]
    attention: SystemAttention | None


@dataclass(frozen=True)
class ComparedExample:
    """An input, and the answer of each system."""

    number: int  # from 1
    source: str
    references: Sequence[str]
    difference: float  # of the outputs from the first system's: edits for each character, the mean over the others
    answers: Sequence[SystemAnswer]


@dataclass(frozen=True)
class Comparison:
    """Systems beside each other; and the inputs for which they say the most different things, these first."""

    report: Report
    sentences: Sequence[ComparedExample]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self.report) | {"sentences": [asdict(sentence) for sentence in self.sentences]}


def side_by_side(
    systems: Sequence[str | Path],
    *,
    split: str | None = None,
    sources: str | Path | None = None,
    references: Sequence[str | Path] = (),
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    by_length: str = "4",
    sentences: int = 5,
    cache: Path | None = None,
    device: str = "cpu",
    decode: Mapping[str, Any] | None = None,
) -> Comparison:
    """Two systems or more, each a trained model or a file of outputs, judged as `regard.compare` does.

    Outputs wait in temporary files; in memory are a few numbers of each example, and the sentences that are shown.
    """
    if len(systems) < 2:
        wanted, remedy = "two systems or more", "`regard evaluate` tells how one does."
        raise InvalidArgument("systems", wanted=wanted, got=str(len(systems)), remedy=remedy)
    on = EvaluationInputs(split, sources, tuple(references))
    found = [
        system if is_file(system) else load(system, device=device).with_decode(**decode or {}) for system in systems
    ]
    recipes = [system.recipe for system in found if isinstance(system, Predictor)]
    speaks = not any(recipe.data.source is None for recipe in recipes)  # language models have no outputs to compare
    with ExitStack() as stack:
        said = [stack.enter_context(TemporaryFile("w+", encoding="ascii")) for _ in found]
        judged = collect_systems(
            [(str(system), one) for system, one in zip(systems, found, strict=True)],
            on,
            metrics=metrics,
            by_length=by_length if speaks else None,
            keep=(lambda system, output: said[system].write(json.dumps(output) + "\n")) if speaks else None,
            cache=cache,
            device=device,
        )
        figures = report(judged, resamples=resamples, by_length=by_length if speaks else None)
        if not speaks:
            return Comparison(figures, [])
        rows = _most_different(on, recipes[0] if recipes else None, said, sentences)
    return Comparison(figures, [_sentence(row, judged, found) for row in rows])


_Said = tuple[float, int, Row, list[str]]  # how different, the number of the example, the example, outputs


def _most_different(on: EvaluationInputs, recipe: Recipe | None, said: Sequence[IO[str]], count: int) -> list[_Said]:
    for file in said:
        file.seek(0)

    def each() -> Iterator[_Said]:
        for number, (row, *lines) in enumerate(zip(on.rows(recipe), *said, strict=True)):
            outputs = [json.loads(line) for line in lines]
            yield _difference(outputs), number, row, outputs

    there = (one for one in each() if one[0] > 0)
    return nlargest(count, there, key=lambda one: (one[0], -one[1]))


def _difference(outputs: Sequence[str]) -> float:
    """The mean share of characters by which the others differ from the first."""
    first, *others = outputs
    shares = [edit_distance(first, other) / max(len(first), len(other), 1) for other in others]
    return sum(shares) / len(shares)


def _sentence(
    said: _Said, judged: Sequence[SystemStatistics], systems: Sequence[str | Path | Predictor]
) -> ComparedExample:
    difference, number, (source, references), outputs = said
    answers = []
    for one, system, output in zip(judged, systems, outputs, strict=True):
        scores = {
            name: float(tally.values(np.ones((1, 1)), np.array([number]))[0])
            for name, tally in one.statistics.items()
            if name not in OF_MANY and not isinstance(tally, ConfusionMatrix)
        }
        attention = _attention(system, source) if isinstance(system, Predictor) and output else None
        answers.append(SystemAnswer(output, scores, attention))
    return ComparedExample(number + 1, str(source), list(references), difference, answers)


def _attention(model: Predictor, source: Any) -> SystemAttention | None:
    """None where a model has no attention to its source, reads no text, or the map is too large to be shown."""
    if not isinstance(model.source, Tokenizer) or not source or not getattr(model.model, "decoder", None):
        return None
    field = model.recipe.data.source
    assert field is not None
    found = look(model, source, words=field.tokenizer in PIECES)
    maps = [each for each in found.maps if each.kind == "cross"]
    if not maps or maps[-1].size[0] * maps[-1].size[1] > LARGEST:
        return None
    rows, keys = found.names(maps[-1])
    return SystemAttention(rows, keys, [[round(w, 4) for w in row] for row in maps[-1].weights().mean(0).tolist()])
