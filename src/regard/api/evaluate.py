"""`regard.evaluate`: metrics of trained models, or of files of outputs,
with confidence intervals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any

from regard.api.heads import head_means
from regard.api.train_checks import check_examples
from regard.core.atomic_io import atomic_file, cache_folder
from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData
from regard.core.sanitize import one_line
from regard.data import conll, text
from regard.data.config import DataConfig
from regard.data.corpus import Prepared, VocabularyType, prepare
from regard.data.example import SPLITS, Example, Split, source_text
from regard.data.fields.base import Field, make_field
from regard.data.sources import at_example, examples
from regard.evaluation.bootstrap import RESAMPLES
from regard.evaluation.metrics import METRICS, check_metrics, score
from regard.evaluation.report import Report, Row, SystemStatistics, collect, report
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.model.seq2seq import Model
from regard.recipe.load import locate_data
from regard.recipe.recipe import Recipe
from regard.recipe.trusted_paths import check_paths
from regard.tasks.pipeline import Output
from regard.training.monitor import Validation
from regard.training.validation import mean_loss, perplexity
from regard.views.progress import Status, status_line, tracked

CHUNK = 1024  # sources per call of a model
LETTERS = 1000  # of a language model's text whose attention is summarised at a validation
OUTPUT_METRICS = ["bleu", "chrf"]  # the default for files of outputs without a model
Keep = Callable[[str], object]
# A run or checkpoint, a loaded model, or a file of outputs, one per line.
SystemInput = str | Path | Predictor


def evaluate(
    systems: SystemInput | Sequence[SystemInput],
    *,
    split: str | None = None,
    sources: str | Path | None = None,
    references: Sequence[str | Path] = (),
    data: str | Path | Sequence[str | Path] = (),
    columns: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    by_length: str | None = None,
    outputs: str | Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
    decode: Mapping[str, Any] | None = None,
    trust_data_paths: bool = False,
    progress: bool = True,
) -> Report:
    """Evaluate a system, or several on the same examples:
    `regard.evaluate("runs/dates")["accuracy"].value`.

    systems                runs, checkpoints or loaded models; or files of outputs, one per line
    split                  a split of the models' own data, "test" by default; or
    data                   new data of the same kind: a table, or parallel files of sources and
                           targets; or
    sources, references    parallel files, line by line
    columns                of files that are tables, of the sources, then of the target; default:
                           the recipe's
    metrics                default: those of the task
    resamples              of the bootstrap that gives confidence intervals and p-values
    by_length              also by source length: a number of buckets ("4") or their ends
                           ("10,15,20")
    outputs                a file to write the outputs of the one model to, one per line
    cache                  the folder of prepared data; default: $REGARD_CACHE, or ~/.cache/regard
    device                 "cpu", "cuda", or "auto": a GPU where there is one
    decode                 overrides keys of the models' [decode]
    trust_data_paths       read the data that a checkpoint names also if you have not trained with
                           them on this machine
    progress               show how many examples are done, on a terminal or in a notebook
    """
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
    systems = [systems] if isinstance(systems, SystemInput) else systems
    models = sum(not is_file(system) for system in systems)
    if outputs is not None and models != 1:
        wanted = "one model whose outputs to keep"
        remedy = "Evaluate one at a time."
        raise InvalidArgument("outputs", wanted=wanted, got=str(models), remedy=remedy)
    with nullcontext() if outputs is None else atomic_file(Path(outputs)) as file:

        def write(output: str) -> None:
            assert file is not None
            file.write(f"{one_line(output)}\n".encode())

        keep = [None if file is None or is_file(system) else write for system in systems]
        return report(evaluation.collect(systems, keep), resamples=resamples, by_length=by_length)


@dataclass(frozen=True)
class Evaluation:
    """The examples that systems are evaluated on, and the metrics: arguments of `evaluate`."""

    split: str | None = None
    sources: str | Path | None = None
    references: Sequence[str | Path] = ()
    data: Sequence[str] = ()
    columns: Sequence[str] = ()
    metrics: Sequence[str] | None = None
    by_length: str | None = None
    cache: Path | None = None
    device: str = "auto"
    decode: Mapping[str, Any] = field(default_factory=dict)
    trust_data_paths: bool = False
    progress: bool = False

    def collect(
        self, systems: Sequence[SystemInput], keep: Sequence[Keep | None] = ()
    ) -> list[SystemStatistics]:
        """The statistics of each system; `keep`, one for each, is called with every output of it,
        in order.
        """
        keep = keep or [None] * len(systems)
        models = [i for i, system in enumerate(systems) if not is_file(system)]
        self._check(len(models))
        collected: dict[int, SystemStatistics] = {}
        recipe = None
        metrics = self.metrics
        options: Mapping[str, Any] = {}
        for i in models:  # before the files, which may be outputs on the data of one of them
            model = self.load(systems[i])
            recipe = recipe or model.recipe
            metrics = metrics or self.default_metrics(model.recipe, model.target)
            options = _metric_options(model)
            collected[i] = self._collect_model(system_name(systems[i]), model, metrics, keep[i])
        for i in [i for i in range(len(systems)) if i not in models]:
            name = system_name(systems[i])
            group = None if recipe is None else _task(recipe)
            if recipe is None and any(map(conll.has_token_lines, (name, *self.references))):
                group = "tags"
            if not metrics:
                metrics = ["accuracy"] if group == "tags" else OUTPUT_METRICS
            check_metrics(metrics, group)
            outputs = self._texts(recipe, name, is_source=False)
            pairs = _zip_lines(name, outputs, self.rows(recipe))
            length = _source_length(recipe)
            collected[i] = collect(
                name,
                pairs,
                _of_outputs(metrics),
                group=group,
                options=options,
                source_length=length,
                keep=keep[i],
            )
        return [collected[i] for i in range(len(systems))]

    def predictions(self, model: Predictor) -> Iterator[tuple[Output, list[str]]]:
        """The best output for each example, with its references, which the model can give."""
        self._check(1)
        rows = self._with_known_references(self.rows(model.recipe), model)
        for (_, references), output in _predict(model, rows):
            yield output, list(references)

    def rows(self, recipe: Recipe | None) -> Iterator[Row]:
        """The examples: a split of the model's own data, new data,
        or parallel files of sources and references.
        """
        if not self.references:
            assert recipe is not None
            config, split = self._data(recipe)
            yield from rows_of(replace(recipe, data=config), split)
            return
        references = [self._texts(recipe, file, is_source=False) for file in self.references]
        if self.sources is None:
            yield from (("", row) for row in text.together(self.references, references))
        else:
            sources = self._texts(recipe, self.sources, is_source=True)
            files = (self.sources, *self.references)
            for row in text.together(files, [sources, *references]):
                yield row[0], row[1:]

    def _texts(self, recipe: Recipe | None, file: str | Path, *, is_source: bool) -> Iterator[str]:
        """The sources of a file, or its targets or outputs."""
        if recipe is None and conll.has_token_lines(file):
            chosen = self.columns or [conll.WORDS, conll.TAGS]
        elif recipe is not None and recipe.data.is_token_file(file):
            chosen = recipe.data.token_columns(file, self.columns)
        else:
            columns = self._columns(recipe)
            read = columns[:-1] if is_source else columns[-1:]
            return text.texts(file, read)
        column = chosen[0] if is_source else chosen[-1]
        return (cell for (cell,) in conll.cells(file, [column]))

    def _data(self, recipe: Recipe) -> tuple[DataConfig, Split]:
        """The data that a model is evaluated on, without `references`, and their split."""
        if self.data:
            return recipe.data.with_files(self.data, self.columns), "train"
        split = _split(recipe, self.split or "test")
        return locate_data(recipe, [split]), split

    def _columns(self, recipe: Recipe | None) -> Sequence[str]:
        """The columns to read of tables: of the sources, then of the target.

        Without a model, those given.
        """
        if recipe is not None:
            return recipe.data.table_columns(self.columns)
        wanted = 1 if self.sources is None else 2
        if self.columns and len(self.columns) != wanted:
            remedy = "Give that of the sources, where there are any, then that of the references."
            raise InvalidArgument(
                "--column", wanted=str(wanted), got=str(len(self.columns)), remedy=remedy
            )
        return self.columns

    def _with_known_references(self, rows: Iterator[Row], model: Predictor) -> Iterator[Row]:
        """The rows, unchanged; a reference that the model cannot give, such as another label,
        is refused.
        """
        field = model.recipe.data.target
        for number, row in enumerate(rows, start=1):
            for i, reference in enumerate(row[1]):
                try:
                    field.check_cell(model.target, reference)
                except InvalidArgument as error:
                    if not self.references:
                        raise at_example(*self._data(model.recipe), number, error) from None
                    file = self.references[i]
                    about = {"wanted": error.wanted, "got": error.got, "remedy": error.remedy}
                    line = self._line_of(model.recipe, file, number)
                    raise InvalidData(file, line, **about) from None
            yield row

    def _line_of(self, recipe: Recipe, file: str | Path, number: int) -> int | None:
        """The line of a reference, by its number from 1."""
        if not recipe.data.is_token_file(file):
            return text.line_of(file, number)
        columns = recipe.data.token_columns(file, self.columns)
        return conll.line_of(file, number, columns, "strict")

    def load(self, system: SystemInput) -> Predictor:
        """The model of a system that is not a file."""
        model = load(system, device=self.device).with_decode(**self.decode)
        if not self.references:
            own = self._data(model.recipe)
            where = model.folder
            check_paths(*own, trusted=self.trust_data_paths, named=self.data, checkpoint=where)
        return model

    def default_metrics(self, recipe: Recipe, target: VocabularyType | None = None) -> list[str]:
        of_outputs = recipe.task.default_metrics(recipe.data, recipe.train.monitor, target)
        if self.references:
            return of_outputs
        return model_metrics(recipe) + of_outputs

    def _check(self, models: int) -> None:
        if self.data and not (
            models and self.split is self.sources is None and not self.references
        ):
            wanted = "a model to evaluate on it"
            if models:
                wanted = "none beside split, sources and references"
            raise InvalidArgument(
                "data", wanted=wanted, got=self.data[0], remedy="Leave one out, or name a run."
            )
        if not self.references and (not models or self.sources is not None):
            wanted = "a file beside outputs without a model"
            if models:
                wanted = "a file beside sources"
            raise InvalidArgument(
                "references", wanted=wanted, got="none", remedy="Add --references FILE."
            )
        if self.references and self.split is not None:
            wanted = "none beside references"
            raise InvalidArgument(
                "split", wanted=wanted, got=repr(self.split), remedy="Leave one out."
            )
        if self.references and self.sources is None and (models or self.by_length):
            wanted = "a file whose lengths count"
            if models:
                wanted = "a file for a model to read"
            raise InvalidArgument(
                "sources", wanted=wanted, got="none", remedy="Add --sources FILE."
            )

    def _collect_model(
        self, name: str, model: Predictor, metrics: Sequence[str], keep: Keep | None
    ) -> SystemStatistics:
        recipe = model.recipe
        model_metrics = {}
        check_metrics(metrics, _task(recipe))
        outputs = _of_outputs(metrics)
        if self.references and (len(outputs) < len(metrics) or _task(recipe) == "language"):
            wanted = "none for loss and perplexity, which need prepared data"
            remedy = "Leave it out, or name other metrics."
            raise InvalidArgument(
                "references", wanted=wanted, got=str(self.references[0]), remedy=remedy
            )
        if len(outputs) < len(metrics):
            config, split = self._data(recipe)
            vocabularies = (model.sources, model.target)
            data = prepare(
                config, self.cache or cache_folder(), vocabularies=vocabularies, splits=[split]
            )
            check_examples(recipe, config, data)
            with status_line(lambda: Status(f"{name}: loss"), shown=self.progress):
                loss = corpus_loss(model.model, data, split, recipe)
            values = {"loss": loss, "perplexity": perplexity(loss)}
            if any(metric not in values for metric in metrics if metric not in outputs):
                own = getattr(data, split)
                values |= recipe.task.baseline_values(recipe.data, own, model.target)
            model_metrics = {metric: values[metric] for metric in metrics if metric not in outputs}
        rows: Iterator[Row] = iter(())
        if outputs or keep:
            rows = self.rows(recipe)
        rows = self._with_known_references(rows, model)
        pairs = tracked(_predict(model, rows), f"{name}: examples", shown=self.progress)
        length = _source_length(recipe)
        return collect(
            name,
            pairs,
            outputs,
            group=_task(recipe),
            options=_metric_options(model),
            model_metrics=model_metrics,
            source_length=length,
            keep=keep,
        )


def as_paths(data: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    if isinstance(data, str | Path):
        return (str(data),)
    return tuple(map(str, data))


def is_file(system: SystemInput) -> bool:
    """Whether a system is a file of outputs rather than a model."""
    return isinstance(system, str | Path) and Path(system).is_file()


def system_name(system: SystemInput) -> str:
    if isinstance(system, Predictor):
        return str(system.folder or "model")
    return str(system)


def _of_outputs(metrics: Sequence[str]) -> list[str]:
    return [metric for metric in metrics if METRICS[metric].statistics is not None]


def corpus_loss(model: Model, data: Prepared, split: Split, recipe: Recipe) -> float:
    """The mean loss on a split, batched and carried as the recipe says for training."""
    train = recipe.train
    generator = model.generator
    if train.carry_state and generator is not None and not generator.decoder.has_hidden:
        wanted = "one model for the loss of a text whose state is carried"
        remedy = "Evaluate the members one by one."
        raise InvalidArgument("system", wanted=wanted, got="an ensemble", remedy=remedy)
    return mean_loss(
        model,
        getattr(data, split),
        budget=train.batch_tokens,
        masked=train.mask_probability,
        carry=train.carry_state,
        overlap=train.evaluation_overlap,
        special_tokens=data.special_tokens,
        output_loss=train.loss,
    )


def _split(recipe: Recipe, split: str) -> Split:
    for known in recipe.data.splits:
        if known == split:
            return known
    wanted = f"one of {', '.join(recipe.data.splits)}"
    other = "valid" if "valid" in recipe.data.splits else "train"
    remedy = f"Name one, as in --split {other}, or add data.{split}."
    if split not in SPLITS:
        remedy = nearest(split, recipe.data.splits, listed=True)
    if not recipe.data.splits:  # an imported model
        wanted = "new data: this model has none of its own"
        remedy = "Name files with --data."
    raise InvalidArgument("split", wanted=wanted, got=repr(split), remedy=remedy)


def _metric_options(model: Predictor) -> dict[str, Any]:
    return model.task.metric_options(model.recipe.data, model.target)


def _predict(model: Predictor, rows: Iterator[Row]) -> Iterator[tuple[Row, Output]]:
    numbered = enumerate(rows, start=1)
    while chunk := dict(islice(numbered, CHUNK)):
        outputs = dict(
            model.iter_outputs([source for source, _ in chunk.values()], lines=list(chunk))
        )
        yield from ((row, outputs[i][0]) for i, row in enumerate(chunk.values()))


def _zip_lines(path: str, lines: Iterator[str], rows: Iterator[Row]) -> Iterator[tuple[Row, str]]:
    """Each example with its output, the line of the same number."""
    for count, (row, line) in enumerate(zip_longest(rows, lines)):
        if row is None or line is None:
            outputs = count + (line is not None) + sum(1 for _ in lines)
            wanted = count + (row is not None) + sum(1 for _ in rows)
            raise InvalidArgument(
                path,
                wanted=f"an output for each of {wanted:,} examples",
                got=f"{outputs:,} lines",
                remedy="Each line must be the output for the example of its number.",
            )
        yield row, line


def rows_of(recipe: Recipe, split: str) -> Iterator[tuple[Any, list[str]]]:
    """Every source of a split (a text or an image) with its references.

    All captions of an image, and all pronunciations of a word, are references of one example.
    """
    split_examples = examples(recipe.data, _split(recipe, split))
    if recipe.data.reads_images and recipe.task.searches:
        captions: dict[Any, list[str]] = {}
        for example in split_examples:
            captions.setdefault(example.source, []).append(_reference(example, recipe))
        yield from captions.items()
    elif recipe.data.synthetic == "spelling":
        for source, same in groupby(split_examples, key=lambda example: example.source):
            yield source or "", [_reference(example, recipe) for example in same]
    else:
        for example in split_examples:
            yield example.source or "", [_reference(example, recipe)]


def _reference(example: Example, recipe: Recipe) -> str:
    """The reference, lower-cased if the model's target is."""
    return recipe.data.target.reference(example.target)


def _task(recipe: Recipe) -> str:
    """The group of metrics that apply to the model of a recipe."""
    return recipe.task.metrics_of(recipe.data)


def model_metrics(recipe: Recipe) -> list[str]:
    """The metrics that need the model's probabilities:
    those of the group that have no statistics of outputs.
    """
    group = _task(recipe)
    return [
        name
        for name, metric in METRICS.items()
        if metric.statistics is None and group in metric.tasks
    ]


def _source_length(recipe: Recipe | None) -> Callable[[Any], int]:
    """The length of a source: in characters if those are its tokens, else in words;
    1 for images and labels.
    """
    fields: tuple[Field, ...] = (make_field(),) if recipe is None else recipe.data.source_fields

    if len(fields) == 1:
        return fields[0].size_of

    def total(sources: Any) -> int:
        pairs = zip(sources, fields, strict=True)
        return sum(field.size_of(source) for source, field in pairs)

    return total


def _texts(recipe: Recipe, count: int) -> list[tuple[str, str | None]]:
    """The beginnings of some validation texts of a language model, to be read to their end."""
    own_output = None if recipe.task.reads_target else ""
    found = islice((each.target for each in examples(recipe.data, "valid") if each.target), count)
    return [(text[:LETTERS], own_output) for text in found]


def validation(recipe: Recipe, data: Prepared) -> Callable[[Model], Validation]:
    """The validation of a training run: the loss,
    and outputs if the monitored metric or samples need them.
    """
    rows = []
    if recipe.data.source_fields:
        rows = list(rows_of(recipe, "valid"))
    metric = recipe.train.monitor
    # A shortlist is learned after training.
    recipe = replace(recipe, decode=replace(recipe.decode, shortlist=False))

    def validate(model: Model) -> Validation:
        assert data.valid is not None
        loss = corpus_loss(model, data, "valid", recipe)
        values = {"loss": loss}
        if "perplexity" in recipe.task.monitors:
            values["perplexity"] = perplexity(loss)
        values |= recipe.task.validation_values(
            model, data.valid, data.target, budget=recipe.train.batch_tokens
        )
        predictor = Predictor(model, recipe, data.sources, data.target)
        needs_outputs = metric not in values
        decoded = rows if needs_outputs else rows[: recipe.train.log_samples]
        outputs = []
        if decoded:
            outputs = predictor.predict([source for source, _ in decoded])
        if needs_outputs:
            references_of = [references for _, references in rows]
            options = recipe.task.metric_options(recipe.data, data.target)
            values[metric] = score(metric, outputs, references_of, _task(recipe), options)
        samples = [
            {"source": source_text(source), "output": output, "reference": references[0]}
            for (source, references), output in zip(decoded, outputs, strict=True)
        ]
        shown = recipe.train.log_samples
        pairs = [(source, references[0]) for source, references in rows[:shown]] or _texts(
            recipe, shown
        )
        heads = []
        if not recipe.train.fsdp:
            heads = head_means(predictor, pairs)
        return Validation(values, samples[:shown], heads)

    return validate
