"""`regard.compare`: systems on the same examples: metrics, quality by source length, and the most different outputs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from heapq import nlargest
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from regard.api.evaluate import EvaluationInputs, collect_systems, is_file
from regard.api.look import look
from regard.core.errors import InvalidArgument
from regard.data.example import source_text
from regard.data.tokenizer import Tokenizer
from regard.evaluation.bootstrap import RESAMPLES
from regard.evaluation.comparison import (
    AnswerAttention,
    ComparedExample,
    Comparison,
    SystemAnswer,
    output_difference,
)
from regard.evaluation.report import Row, SystemStatistics, report
from regard.evaluation.statistics import ConfusionMatrix
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe

LARGEST = 4096  # weights of a map that is shown
SUBWORDS = ("bpe", "unigram")
CORPUS_LEVEL = ("bleu", "bleu_lower")  # say little about one sentence: three words have no 4-gram


def compare(
    systems: Sequence[str | Path | Predictor],
    *,
    split: str | None = None,
    sources: str | Path | None = None,
    references: Sequence[str | Path] = (),
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    by_length: str | None = "4",
    sentences: int = 5,
    cache: Path | None = None,
    device: str = "cpu",
    decode: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare two systems or more, each a trained model or a file of outputs, one per line.

    split                  a split of the models' own data, "test" by default; or
    sources, references    parallel files, line by line
    metrics                default: those of the task
    by_length              also by source length: a number of buckets ("4") or their ends ("10,15,20")
    sentences              how many of the examples with the most different outputs to keep
    decode                 overrides keys of the models' [decode]

    Outputs are kept in temporary files; in memory are the statistics of each example and the sentences.
    """
    if len(systems) < 2:
        wanted, remedy = "two systems or more", "`regard evaluate` evaluates one."
        raise InvalidArgument("systems", wanted=wanted, got=str(len(systems)), remedy=remedy)
    on = EvaluationInputs(split, sources, tuple(references))
    named = [(_name(system), _loaded(system, device, decode or {})) for system in systems]
    recipes = [system.recipe for _, system in named if isinstance(system, Predictor)]
    if any(not recipe.data.source_fields for recipe in recipes):  # language models have no outputs to compare
        collected = collect_systems(named, on, metrics=metrics, by_length=None, keep=None, cache=cache, device=device)
        return Comparison(report(collected, resamples=resamples), [])
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile("w+", encoding="ascii")) for _ in named]
        collected = collect_systems(
            named,
            on,
            metrics=metrics,
            by_length=by_length,
            keep=lambda system, output: files[system].write(json.dumps(output) + "\n"),
            cache=cache,
            device=device,
        )
        figures = report(collected, resamples=resamples, by_length=by_length)
        examples = _most_different(on, recipes[0] if recipes else None, files, sentences)
    return Comparison(figures, [_compared(each, collected, [system for _, system in named]) for each in examples])


def _name(system: str | Path | Predictor) -> str:
    return str(system.folder or "model") if isinstance(system, Predictor) else str(system)


def _loaded(system: str | Path | Predictor, device: str, decode: Mapping[str, Any]) -> str | Path | Predictor:
    if not isinstance(system, Predictor) and is_file(system):
        return system
    model = system if isinstance(system, Predictor) else load(system, device=device)
    return model.with_decode(**decode)


_Outputs = tuple[float, int, Row, list[str]]  # their difference, the index of the example, the example, the outputs


def _most_different(
    on: EvaluationInputs, recipe: Recipe | None, files: Sequence[IO[str]], count: int
) -> list[_Outputs]:
    for file in files:
        file.seek(0)

    def examples() -> Iterator[_Outputs]:
        for index, (row, *lines) in enumerate(zip(on.rows(recipe), *files, strict=True)):
            outputs = [json.loads(line) for line in lines]
            yield output_difference(outputs), index, row, outputs

    different = (each for each in examples() if each[0] > 0)
    return nlargest(count, different, key=lambda each: (each[0], -each[1]))


def _compared(
    example: _Outputs, collected: Sequence[SystemStatistics], systems: Sequence[str | Path | Predictor]
) -> ComparedExample:
    difference, index, (source, references), outputs = example
    answers = []
    for one, system, output in zip(collected, systems, outputs, strict=True):
        scores = {
            name: float(statistics.values(np.ones((1, 1)), np.array([index]))[0])
            for name, statistics in one.statistics.items()
            if name not in CORPUS_LEVEL and not isinstance(statistics, ConfusionMatrix)
        }
        attention = _attention(system, source) if isinstance(system, Predictor) and output else None
        answers.append(SystemAnswer(output, scores, attention))
    return ComparedExample(index + 1, source_text(source), list(references), difference, answers)


def _attention(model: Predictor, source: Any) -> AnswerAttention | None:
    """None for a model without cross-attention or of images, and for a map that is too large to be shown."""
    if not isinstance(model.source, Tokenizer) or not source or not getattr(model.model, "decoder", None):
        return None
    field = model.recipe.data.source
    assert field is not None
    result = look(model, source, words=field.tokenizer in SUBWORDS)
    maps = [each for each in result.maps if each.kind == "cross"]
    if not maps or maps[-1].size[0] * maps[-1].size[1] > LARGEST:
        return None
    rows, keys = result.names(maps[-1])
    return AnswerAttention(rows, keys, [[round(w, 4) for w in row] for row in maps[-1].weights().mean(0).tolist()])
