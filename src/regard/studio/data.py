"""What the studio asks the scheduler about a data set: output, score, entropy and error of each example, and heads."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.json import encode

from regard.api.align import agreements_by_line, check as check_alignable
from regard.api.heads import best_agreements, head_meter
from regard.api.look import look, pairs_of
from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.evaluation.alignment_error import Agreement
from regard.evaluation.metrics import score
from regard.inference.predictor import Predictor
from regard.interpret.alignment import AlignmentHeads
from regard.interpret.editing import editing
from regard.interpret.edits import SwitchHeadOff
from regard.interpret.head_properties import COLUMNS, HeadMeter
from regard.interpret.look import GeneratedText, Look
from regard.interpret.sites import attention_sites
from regard.interpret.summaries import HeadName
from regard.serving.scheduler.jobs import BatchedWork
from regard.studio.model_cache import ModelCache
from regard.studio.sources import DataSet

MOST_EXAMPLES = 10_000  # of a data set that are read
MEASURED = 128  # examples over whose attention heads are measured
ABLATED = 32  # examples on which the loss without each head is computed


class Example(Struct, frozen=True):
    """One example of a data set, and what the model makes of it. What does not apply is null.

    score     log-probability of the output, or of a language model's text
    tokens    that the score is the sum over
    length    of the input, in tokens
    entropy   the mean over all heads, in nats
    error     edits per character of the reference; of a label, 0 or 1; of numbers, the mean absolute error; of a
              language model, nats per token
    """

    index: int
    input: list[str]
    reference: str | None
    output: str | None
    score: float | None
    tokens: int
    length: int
    entropy: float | None
    error: float | None


SORTS = ("index", "score", "length", "entropy", "error")


def sorted_examples(examples: Sequence[Example], sort: str, *, descending: bool) -> list[Example]:
    """By one of `SORTS`; those without a value come last, equal ones in the order of the data."""
    if sort not in SORTS:
        wanted = f"one of {', '.join(SORTS)}"
        remedy = nearest(sort, SORTS, listed=True)
        raise InvalidArgument("sort", wanted=wanted, got=repr(sort), remedy=remedy)

    def key(example: Example) -> tuple[bool, float]:
        value = getattr(example, sort)
        if value is None:
            return True, 0.0
        return False, float(-value if descending else value)

    return sorted(examples, key=key)


@dataclass
class _Measured:
    """What the scheduler keeps of a data set for one model: the texts, and sums over their attention."""

    pairs: list[tuple[Any, str | None]]
    more: bool  # whether the data have more examples
    meter: HeadMeter
    ablation: dict[HeadName, float] = field(default_factory=dict)
    loss: float | None = None  # with all heads
    agreements: Iterator[dict[AlignmentHeads, Agreement]] | None = (
        None  # with reference links, line by line
    )
    alignment: dict[HeadName, float] = field(default_factory=dict)


# By data set. Works on one lock it: no two are computed at once.
_known = ModelCache(dict[DataSet, _Measured])


def _measured(predictor: Predictor, data: DataSet) -> _Measured:
    of_model = _known.of(predictor)
    if data not in of_model:
        read = pairs_of(
            predictor.recipe,
            data.names,
            data.columns,
            references=True,
            trust_data_paths=data.trust_data_paths,
        )
        pairs = list(islice(read, MOST_EXAMPLES + 1))
        of_model[data] = _Measured(
            pairs[:MOST_EXAMPLES], len(pairs) > MOST_EXAMPLES, head_meter(predictor)
        )
    return of_model[data]


@dataclass(frozen=True)
class DataWork(BatchedWork):
    """Work on the data set of the command line: of a request it has no input."""

    crosses_processes: ClassVar[bool] = False  # the data set is of this process
    data: DataSet

    @property
    def group(self) -> Hashable:
        return self.data

    @property
    def locks(self) -> Hashable:
        return self.data

    def check(self, reads: Sequence[str]) -> None:
        """Nothing is read but the data."""


@dataclass(frozen=True)
class DataSize(DataWork):
    """The number of examples of a data set, and whether there are more than are read."""

    def compute(
        self, predictor: Predictor, works: Sequence["DataSize"]
    ) -> Sequence[tuple[int, bool]]:
        found = [_measured(predictor, work.data) for work in works]
        return [(len(each.pairs), each.more) for each in found]


@dataclass(frozen=True)
class ExampleMeasurement(DataWork):
    """One example of a data set, measured. Heads are measured over the attention of the first examples."""

    most: ClassVar[int] = 1
    index: int

    def compute(
        self, predictor: Predictor, works: Sequence["ExampleMeasurement"]
    ) -> Sequence[Example]:
        return [work._example(predictor) for work in works]

    def _example(self, predictor: Predictor) -> Example:
        measured = _measured(predictor, self.data)
        text, reference = measured.pairs[self.index]
        alone = (
            not predictor.recipe.data.source_fields
        )  # a language model: the text is what is scored
        seen = look(predictor, text, output=reference if alone else None, truncate=True)
        if self.index == measured.meter.inputs < MEASURED:
            measured.meter.add(seen)
        return _example(predictor, self.index, text, None if alone else reference, seen)


def _example(
    predictor: Predictor, index: int, text: Any, reference: str | None, seen: Look
) -> Example:
    output = seen.output
    scores: tuple[float, ...] = ()
    generated = None
    if output is not None:
        scores = output.scores or ()
        generated = output.text
    total = sum(scores) if scores else None
    error = None
    if reference is not None and generated is not None:
        error = predictor.task.output_error(predictor.recipe.data, generated, reference)
        if isinstance(output, GeneratedText):
            error = score("character_error_rate", [generated], [[reference]])
    elif total is not None:
        error = -total / len(scores)
    entropies = [head.entropy for _, head in seen.heads()]
    length = sum(len(source.tokens) for source in seen.sources) or len(scores)
    return Example(
        index=index,
        input=[_named(part) for part in text] if isinstance(text, tuple) else [_named(text)],
        reference=reference,
        output=None if reference is None and not seen.sources else generated,
        score=total,
        tokens=len(scores),
        length=length,
        entropy=sum(entropies) / len(entropies) if entropies else None,
        error=error,
    )


def _named(part: object) -> str:
    """A text or a label; of an image, its name."""
    if isinstance(part, str):
        return part
    return PurePath(str(getattr(part, "name", "image"))).name


class HeadsAnswer(Struct):
    """`heads` and `distances` as `regard.heads` gives them; `complete`: nothing more is measured."""

    inputs: int
    columns: list[str]
    heads: list[dict[str, str | int | float | None]]
    distances: list[list[float | None]]
    complete: bool

    @staticmethod
    def of(
        meter: HeadMeter,
        *,
        complete: bool,
        ablation: dict[HeadName, float] | None = None,
        alignment: dict[HeadName, float] | None = None,
    ) -> "HeadsAnswer":
        given = meter.report(alignment=alignment, ablation=ablation).as_dict()
        return HeadsAnswer(
            given["inputs"], list(COLUMNS), given["heads"], given["distances"], complete
        )


@dataclass(frozen=True)
class HeadsOfData(DataWork):
    """Properties of all heads over the examples that were measured so far: a `HeadsAnswer` as JSON."""

    complete: bool

    def compute(self, predictor: Predictor, works: Sequence["HeadsOfData"]) -> Sequence[bytes]:
        found = [(_measured(predictor, work.data), work.complete) for work in works]
        return [
            encode(
                HeadsAnswer.of(x.meter, complete=done, ablation=x.ablation, alignment=x.alignment)
            )
            for x, done in found
        ]


@dataclass(frozen=True)
class HeadsOfInput(BatchedWork):
    """Properties of all heads over one input: a `HeadsAnswer` as JSON."""

    most: ClassVar[int] = 1

    def compute(self, predictor: Predictor, works: Sequence["HeadsOfInput"]) -> Sequence[bytes]:
        output = None if predictor.recipe.data.source_fields else ""
        meters = [head_meter(predictor) for _ in works]
        for meter, work in zip(meters, works, strict=True):
            meter.add(look(predictor, work.input, output=output))
        return [encode(HeadsAnswer.of(meter, complete=True)) for meter in meters]


@dataclass(frozen=True)
class AblationStep(DataWork):
    """The change of the loss of some examples without one head, the next that was not measured; how many are left."""

    most: ClassVar[int] = 1

    def compute(self, predictor: Predictor, works: Sequence["AblationStep"]) -> Sequence[int]:
        return [work._step(predictor) for work in works]

    def _step(self, predictor: Predictor) -> int:
        measured = _measured(predictor, self.data)
        names = [
            (site.name, head)
            for module, site in attention_sites(predictor.model).items()
            for head in range(module.heads)
        ]
        left = [name for name in names if name not in measured.ablation]
        if measured.loss is None:
            measured.loss = _loss(predictor, measured.pairs[:ABLATED])
        elif left:
            with editing(predictor.model, [SwitchHeadOff(map=left[0][0], head=left[0][1])]):
                without = _loss(predictor, measured.pairs[:ABLATED])
            measured.ablation[left.pop(0)] = without - measured.loss
        return len(left)


@dataclass(frozen=True)
class AlignmentStep(DataWork):
    """Compare the links of all heads with the reference links of the next sentence; whether there was one.

    A model that aligns no words has no agreement with links.
    """

    most: ClassVar[int] = 1

    def compute(self, predictor: Predictor, works: Sequence["AlignmentStep"]) -> Sequence[bool]:
        return [work._step(predictor) for work in works]

    def _step(self, predictor: Predictor) -> bool:
        measured = _measured(predictor, self.data)
        if measured.agreements is None:
            try:
                check_alignable(predictor)
            except InvalidArgument:
                return False
            measured.agreements = agreements_by_line(predictor, self.data.alignment)
        found = next(measured.agreements, None)
        if found is not None:
            measured.alignment = best_agreements(found)
        return found is not None


@dataclass(frozen=True)
class ExampleInputs(DataWork):
    """The inputs of some examples as the page takes them, a string for each source: an image as a data: URL, as JSON.

    An image has the size that the model reads: looking at it is looking at the example.
    """

    indices: tuple[int, ...]

    def compute(self, predictor: Predictor, works: Sequence["ExampleInputs"]) -> Sequence[bytes]:
        fields = predictor.recipe.data.source_fields

        def inputs(work: "ExampleInputs") -> list[list[str]]:
            pairs = _measured(predictor, work.data).pairs
            texts = [pairs[index][0] for index in work.indices if 0 <= index < len(pairs)]
            parts = [text if isinstance(text, tuple) else (text,) for text in texts]
            return [
                [field.request_text(part) for part, field in zip(one, fields, strict=True)]
                for one in parts
            ]

        return [encode(inputs(work)) for work in works]


def _loss(predictor: Predictor, pairs: Sequence[tuple[Any, str | None]]) -> float:
    """Nats per token, or label, of the references; of a language model, of the texts. Of numbers, their mean error."""
    if predictor.recipe.data.source_fields:
        pairs = [(text, target) for text, target in pairs if target]
    texts, targets = [text for text, _ in pairs], [target or "" for _, target in pairs]
    if not predictor.task.has_scores:
        outputs = predictor.predict(texts)
        data = predictor.recipe.data
        pairs_of_outputs = zip(outputs, targets, strict=True)
        errors = [predictor.task.output_error(data, *pair) for pair in pairs_of_outputs]
        return sum(errors) / max(1, len(errors))
    scores = predictor.score(texts, targets if predictor.recipe.data.source_fields else None)
    return -sum(each.log_probability for each in scores) / max(
        1, sum(len(each.tokens) for each in scores)
    )
