"""How trained models, or outputs that lie in files, do on data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any

from regard.core.atomic_io import cache_folder
from regard.core.errors import InvalidArgument
from regard.data import text
from regard.data.corpus import Corpus, Prepared, prepare
from regard.data.example import Example, Split
from regard.data.sources import examples
from regard.data.tokenizer import lowered
from regard.evaluation.bootstrap import RESAMPLES
from regard.evaluation.metrics import METRICS, TaskName, check, score
from regard.evaluation.report import MetricResult, Report, Row, SystemOutputs, judge, report
from regard.evaluation.validation import mean_loss, perplexity
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.model.seq2seq import Model
from regard.recipe.recipe import Recipe
from regard.training.schedules import Validation

CHUNK = 1024  # sources that a model is given at once
OF_CAPTIONS = ["bleu1", "bleu2", "bleu3", "bleu4", "meteor", "rouge_l", "cider"]
OUTPUTS_ALONE = ["bleu", "chrf"]  # the usual metrics where there is no model whose task would tell


@dataclass(frozen=True)
class EvaluationInputs:
    """What systems are judged on: a split of a model's own data, or files whose lines belong together."""

    split: str | None = None  # "test" unless told
    sources: str | Path | None = None
    references: tuple[str | Path, ...] = ()

    def rows(self, recipe: Recipe | None) -> Iterator[Row]:
        if not self.references:
            assert recipe is not None
            return rows_of(recipe, self.split or "test")
        return self._rows_of_files()

    def _rows_of_files(self) -> Iterator[Row]:
        files = self.references if self.sources is None else (self.sources, *self.references)
        for row in text.parallel(files):
            yield ("", row) if self.sources is None else (row[0], row[1:])


def evaluate(
    model: str | Path | Predictor,
    *,
    split: str = "test",
    metrics: Sequence[str] | None = None,
    cache: Path | None = None,
) -> dict[str, MetricResult]:
    """How a trained model does on a split of its own data."""
    return dict(compare([model], split=split, metrics=metrics, cache=cache).systems[0].metrics)


def compare(
    systems: Sequence[str | Path | Predictor],
    *,
    split: str | None = None,
    sources: str | Path | None = None,
    references: Sequence[str | Path] = (),
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    by_length: str | None = None,
    keep: Callable[[str], object] | None = None,
    cache: Path | None = None,
    device: str = "cpu",
    decode: Mapping[str, Any] | None = None,
) -> Report:
    """Systems beside each other, each a trained model or a file of outputs, one a line.

    They are judged on a split of the models' own data ("test" unless told), or on files of sources and references that
    belong line to line. Metrics are the usual ones of the task where none are named. `keep` is called with every output
    of the model, in order. `decode` changes keys of the models' [decode].
    """
    on = EvaluationInputs(split, sources, tuple(references))
    models = sum(not is_file(system) for system in systems)
    if keep is not None and models != 1:
        wanted, remedy = "one model, whose outputs to keep", "Evaluate one at a time."
        raise InvalidArgument("outputs", wanted=wanted, got=str(models), remedy=remedy)
    each = None if keep is None else lambda system, output: None if is_file(systems[system]) else keep(output)
    named = [
        (str(system.folder or "model") if isinstance(system, Predictor) else str(system), system) for system in systems
    ]
    judged = judge_systems(
        named, on, metrics=metrics, by_length=by_length, keep=each, cache=cache, device=device, decode=decode
    )
    return report(judged, resamples=resamples, by_length=by_length)


def is_file(system: str | Path | Predictor) -> bool:
    """Whether a system is a file of outputs, and no model."""
    return isinstance(system, str | Path) and Path(system).is_file()


def judge_systems(
    named: Sequence[tuple[str, str | Path | Predictor]],
    on: EvaluationInputs,
    *,
    metrics: Sequence[str] | None,
    by_length: str | None,
    keep: Callable[[int, str], object] | None,
    cache: Path | None,
    device: str,
    decode: Mapping[str, Any] | None = None,
) -> list[SystemOutputs]:
    """What is kept of each system's outputs; `keep` is called with its number and every output, in order."""
    models = [i for i, (_, system) in enumerate(named) if not is_file(system)]
    _check_questions(on, len(models), by_length)
    judged: dict[int, SystemOutputs] = {}
    recipe = None

    def kept(i: int, pairs: Iterator[tuple[Row, str]]) -> Iterator[tuple[Row, str]]:
        for row, output in pairs:
            if keep is not None:
                keep(i, output)
            yield row, output

    for i in models:  # before files, which may be outputs for the data of one
        name, system = named[i]
        model = system if isinstance(system, Predictor) else load(system, device=device)
        model = model.searching(**decode) if decode else model
        metrics = metrics or _usual_metrics(model.recipe, on)
        judged[i] = _judge_model(name, model, on, metrics, None if keep is None else partial(kept, i), cache)
        recipe = recipe or model.recipe
    for i, (name, path) in enumerate(named):
        if i in models:
            continue
        assert not isinstance(path, Predictor)
        metrics = metrics or OUTPUTS_ALONE
        check(metrics, None if recipe is None else _task(recipe))
        told = [metric for metric in metrics if METRICS[metric].tally is not None]
        pairs = kept(i, _lines_beside(Path(path), on.rows(recipe)))
        judged[i] = judge(name, pairs, told, measure=_length(recipe))
    return [judged[i] for i in range(len(named))]


def _check_questions(on: EvaluationInputs, models: int, by_length: str | None) -> None:
    def refuse(argument: str, wanted: str, got: str, remedy: str) -> None:
        raise InvalidArgument(argument, wanted=wanted, got=got, remedy=remedy)

    if not models and not on.references:
        refuse("references", "a file beside outputs without a model", "none", "Add --references FILE.")
    if on.references and on.split is not None:
        refuse("split", "none beside references", repr(on.split), "Leave one out.")
    if on.sources is not None and not on.references:
        refuse("references", "a file beside sources", "none", "Add --references FILE.")
    if on.references and on.sources is None and (models or by_length):
        why = "for a model to read" if models else "whose lengths count"
        refuse("sources", f"a file {why}", "none", "Add --sources FILE.")


def _judge_model(
    name: str,
    model: Predictor,
    on: EvaluationInputs,
    metrics: Sequence[str],
    kept: Callable[[Iterator[tuple[Row, str]]], Iterator[tuple[Row, str]]] | None,
    cache: Path | None,
) -> SystemOutputs:
    task = _task(model.recipe)
    check(metrics, task)
    if on.references and (task == "language" or any(METRICS[metric].tally is None for metric in metrics)):
        raise InvalidArgument(
            "references",
            wanted="none for loss and perplexity, which are of prepared data",
            got=str(on.references[0]),
            remedy="Leave it out, or name other metrics.",
        )
    outputs = [metric for metric in metrics if METRICS[metric].tally is not None]
    known = {}
    if len(outputs) < len(metrics):
        loss = _loss(model, on.split or "test", cache)
        known = {metric: loss if metric == "loss" else perplexity(loss) for metric in metrics if metric not in outputs}
    pairs = _predicted(model, on.rows(model.recipe)) if outputs or kept else iter(())
    return judge(name, kept(pairs) if kept else pairs, outputs, known=known, measure=_length(model.recipe))


def _loss(model: Predictor, split: str, cache: Path | None) -> float:
    recipe = model.recipe
    data = prepare(recipe.data, cache or cache_folder(), vocabularies=(model.source, model.target))
    corpus = getattr(data, _there(recipe, split))
    return corpus_loss(model.model, corpus, recipe)


def corpus_loss(model: Model, corpus: Corpus, recipe: Recipe) -> float:
    """The mean loss of a prediction, read as the recipe reads in training."""
    train = recipe.train
    return mean_loss(model, corpus, budget=train.batch_tokens, masked=train.mask_probability, carry=train.carry_state)


def _there(recipe: Recipe, split: str) -> Split:
    for found in recipe.data.splits:
        if found == split:
            return found
    raise InvalidArgument(
        "split", wanted=f"one of {', '.join(recipe.data.splits)}", got=repr(split), remedy="Or add it to data."
    )


def _predicted(model: Predictor, rows: Iterator[Row]) -> Iterator[tuple[Row, str]]:
    numbered = enumerate(rows, start=1)
    while chunk := dict(islice(numbered, CHUNK)):
        found = dict(model.as_found([source for source, _ in chunk.values()], lines=list(chunk)))
        yield from ((row, found[i][0].text) for i, row in enumerate(chunk.values()))


def _lines_beside(path: Path, rows: Iterator[Row]) -> Iterator[tuple[Row, str]]:
    """Each example with the line that is its output."""
    lines = text.lines(path)
    for count, (row, line) in enumerate(zip_longest(rows, lines)):
        if row is None or line is None:
            outputs = count + (line is not None) + sum(1 for _ in lines)
            wanted = count + (row is not None) + sum(1 for _ in rows)
            raise InvalidArgument(
                str(path),
                wanted=f"an output for each of {wanted:,} examples",
                got=f"{outputs:,} lines",
                remedy="Each line must be the output for the example of its number.",
            )
        yield row, line


def rows_of(recipe: Recipe, split: str) -> Iterator[tuple[Any, list[str]]]:
    """Every source of a split (a text or a picture) with its references.

    Pronunciations of one word come together, as do captions of one picture, wherever in the files they stand.
    """
    found = examples(recipe.data, _there(recipe, split))
    if recipe.data.reads_images and recipe.data.target.kind == "text":
        captions: dict[Any, list[str]] = {}
        for example in found:
            captions.setdefault(example.source, []).append(_as_written(example, recipe))
        yield from captions.items()
    elif recipe.data.synthetic == "spelling":
        for source, same in groupby(found, key=lambda example: example.source):
            yield source or "", [_as_written(example, recipe) for example in same]
    else:
        for example in found:
            yield example.source or "", [_as_written(example, recipe)]


def _as_written(example: Example, recipe: Recipe) -> str:
    """The reference as the model would write it: in small letters where it knows no others."""
    return lowered(example.target) if recipe.data.target.lowercase else example.target


def _task(recipe: Recipe) -> TaskName:
    if recipe.data.source is None:
        return "language"
    return "label" if recipe.data.target.kind == "label" else "text"


def _usual_metrics(recipe: Recipe, on: EvaluationInputs) -> list[str]:
    known = {"language": ["loss", "perplexity"], "label": ["loss"], "text": ["loss", "perplexity"]}[_task(recipe)]
    return ([] if on.references else known) + _usual_of_outputs(recipe)


def _usual_of_outputs(recipe: Recipe) -> list[str]:
    """Where one answer is right, whether it was given and how far off it was; else what the field reports."""
    if _task(recipe) == "language":
        return []
    if _task(recipe) == "label":
        return ["accuracy", "f1"]
    if recipe.data.synthetic or recipe.train.monitor in ("accuracy", "error_rate"):
        return ["accuracy", "error_rate" if recipe.data.target.tokenizer == "words" else "character_error_rate"]
    assert recipe.data.source is not None
    return OF_CAPTIONS if recipe.data.source.kind == "image" else ["bleu", "chrf"]


def _length(recipe: Recipe | None) -> Callable[[Any], int]:
    """Of a source: in characters where the model reads those, else in words; pictures have none."""
    source = recipe.data.source if recipe is not None else None
    if source is not None and source.kind == "image":
        return lambda picture: 1
    if source is not None and source.tokenizer in ("characters", "bytes"):
        return len
    return lambda text: len(text.split())


def validation(recipe: Recipe, data: Prepared) -> Callable[[Model], Validation]:
    """Loss always; outputs where the metric needs them or samples are to be shown."""
    rows = [] if recipe.data.source is None else list(rows_of(recipe, "valid"))
    metric = recipe.train.monitor

    def validate(model: Model) -> Validation:
        assert data.valid is not None
        loss = corpus_loss(model, data.valid, recipe)
        values = {"loss": loss, "perplexity": perplexity(loss)}
        predictor = Predictor(model, recipe, data.source, data.target)
        decoded = metric not in values
        shown = rows if decoded else rows[: recipe.train.log_samples]
        outputs = predictor.predict([source for source, _ in shown]) if shown else []
        if decoded:
            values[metric] = score(metric, outputs, [gold for _, gold in rows])
        samples = [
            {"source": str(source), "output": output, "reference": gold[0]}
            for (source, gold), output in zip(shown, outputs, strict=True)
        ]
        return Validation(values, samples[: recipe.train.log_samples])

    return validate
