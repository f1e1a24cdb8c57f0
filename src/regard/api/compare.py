"""`regard.compare`: systems on the same examples: metrics, quality by source length,
and the most different outputs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from heapq import nlargest
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from regard.api.evaluate import Evaluation, SystemInput, as_paths, is_file, system_name
from regard.api.look import look
from regard.core.errors import InvalidArgument
from regard.data.example import source_text
from regard.evaluation.bootstrap import RESAMPLES
from regard.evaluation.comparison import (
    AnswerAttention,
    ComparedExample,
    Comparison,
    SystemAnswer,
    output_difference,
)
from regard.evaluation.output_difference import token_differences
from regard.evaluation.report import Row, SystemStatistics, report
from regard.evaluation.statistics import ConfusionMatrix
from regard.inference.predictor import Predictor

LARGEST = 4096  # weights of a map that is shown
SUBWORDS = ("bpe", "unigram")
CORPUS_LEVEL = ("bleu", "bleu_lower")  # not meaningful for one sentence: three words have no 4-gram


def compare(
    systems: Sequence[SystemInput],
    *,
    split: str | None = None,
    sources: str | Path | None = None,
    references: Sequence[str | Path] = (),
    data: str | Path | Sequence[str | Path] = (),
    columns: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    by_length: str | None = "4",
    sentences: int = 5,
    cache: Path | None = None,
    device: str = "auto",
    decode: Mapping[str, Any] | None = None,
    trust_data_paths: bool = False,
    progress: bool = True,
) -> Comparison:
    """Compare two systems or more: the report of `regard.evaluate`,
    and the examples whose outputs differ most.

    systems     runs, checkpoints or loaded models; or files of outputs, one per line
    sentences   number of examples that are shown
    split, data, sources, references, columns   what the systems are evaluated on, as of
                                                `regard.evaluate`
    metrics, resamples, by_length, decode, trust_data_paths, cache, device, progress   as of
                                                `regard.evaluate`

    Outputs are kept in temporary files; in memory are the statistics of each example and the
    sentences.
    """
    if len(systems) < 2:
        wanted = "two systems or more"
        remedy = "`regard evaluate` evaluates one."
        raise InvalidArgument("systems", wanted=wanted, got=str(len(systems)), remedy=remedy)
    evaluation = Evaluation(
        split,
        sources,
        references,
        as_paths(data),
        columns,
        metrics,
        by_length,
        cache,
        device,
        decode or {},
        trust_data_paths,
        progress,
    )
    loaded = [system if is_file(system) else evaluation.load(system) for system in systems]
    recipes = [system.recipe for system in loaded if isinstance(system, Predictor)]
    # Language models have no outputs to compare.
    with_outputs = all(recipe.data.source_fields for recipe in recipes)
    if not with_outputs:
        by_length = None
    evaluation = replace(evaluation, by_length=by_length)
    with ExitStack() as stack:
        files = [
            stack.enter_context(TemporaryFile("w+", encoding="ascii"))
            for _ in systems
            if with_outputs
        ]
        collected = evaluation.collect(loaded, [partial(_write_json, file) for file in files])
        collected = [
            replace(one, name=system_name(given))
            for one, given in zip(collected, systems, strict=True)
        ]
        result = report(collected, resamples=resamples, by_length=by_length)
        for file in files:
            file.seek(0)
        rows: Iterable[tuple[Any, ...]] = ()
        if files:
            recipe = recipes[0] if recipes else None
            rows = zip(evaluation.rows(recipe), *files, strict=True)
        outputs = ((row, [json.loads(line) for line in lines]) for row, *lines in rows)
        scored = (
            (output_difference(texts), -index, row, texts)
            for index, (row, texts) in enumerate(outputs)
        )
        most = nlargest(
            sentences, (each for each in scored if each[0] > 0), key=lambda each: each[:2]
        )
    return Comparison(
        result,
        [_compared(d, -index, row, texts, collected, loaded) for d, index, row, texts in most],
    )


def _write_json(file: IO[str], output: str) -> None:
    file.write(json.dumps(output) + "\n")


def _compared(
    difference: float,
    index: int,
    row: Row,
    outputs: Sequence[str],
    collected: Sequence[SystemStatistics],
    systems: Sequence[SystemInput],
) -> ComparedExample:
    source, references = row
    answers = list[SystemAnswer]()
    for one, system, output in zip(collected, systems, outputs, strict=True):
        scores = {
            name: float(statistics.values(np.ones((1, 1)), np.array([index]))[0])
            for name, statistics in one.statistics.items()
            if name not in CORPUS_LEVEL and not isinstance(statistics, ConfusionMatrix)
        }
        attention = None
        if isinstance(system, Predictor) and output:
            attention = _attention(system, source)
        changes = []
        if answers:
            changes = token_differences(outputs[0].split(), output.split())
        answers.append(SystemAnswer(output, scores, attention, changes))
    return ComparedExample(index + 1, source_text(source), list(references), difference, answers)


def _attention(model: Predictor, source: Any) -> AnswerAttention | None:
    """None for a model without cross-attention or of images,
    and for a map that is too large to be shown.
    """
    field = model.recipe.data.source
    config = model.recipe.model
    if field is None or field.unit is None or config.decoder is None or not source:
        return None
    result = look(model, source, words=field.unit in SUBWORDS)
    maps = [each for each in result.maps if each.kind == "cross"]
    if not maps or maps[-1].size[0] * maps[-1].size[1] > LARGEST:
        return None
    rows, keys = result.names(maps[-1])
    return AnswerAttention(
        rows, keys, [[round(w, 4) for w in row] for row in maps[-1].weights().mean(0).tolist()]
    )
