"""What the scheduler is asked to do: the kinds of work, and a job, which is one piece of it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.fields.base import FIELDS
from regard.data.images import image_token_cost
from regard.inference.predictor import Predictor
from regard.serving.scheduler.attention_ranges import MAX_WEIGHTS, InspectedAttention, inspect
from regard.serving.scheduler.input_limits import check_inputs, check_output
from regard.tasks.inputs import InputValue
from regard.tasks.pipeline import Output, SequenceScore, check_direct_keys

MOST_PHRASES = {"banned": 1000, "required": 64}  # of one request
LONG = 1024  # tokens of a request, about, of which more are planned beside the scheduler's thread
MAX_ATTENTION = 1 << 18  # weights of all outputs of an input: about 5 MB of JSON
FEW_REQUIRED = (
    8  # phrases, of which more are planned there too: the time grows with their third power
)
Result = object  # what the kind of work gives, or an exception
Alike = TypeVar("Alike", bound="BatchedWork")  # the shape checks of the tests do not support Self


@dataclass(frozen=True)
class Work(ABC):
    """A kind of work for a model, on one input. Its fields are plain values; images and series are arrays."""

    crosses_processes: ClassVar[bool] = (
        True  # whether a front-end process may send it to the scheduler's
    )
    input: InputValue

    @property
    def sources(self) -> Sequence[object]:
        return self.input if isinstance(self.input, tuple | list) else (self.input,)

    @property
    def texts(self) -> Sequence[object]:
        """What the model reads, its sources and what is given of its output."""
        return self.sources

    @property
    def size(self) -> int:
        """About the number of tokens that are read, from the length of the texts: known before they are tokenized."""
        size = 1
        for each in self.texts:
            if isinstance(each, str):
                size += len(each) // 4
            elif isinstance(each, np.ndarray):
                # Pixels have three axes; vectors two, and each of them is a token.
                size += image_token_cost(len(each)) if each.ndim > 2 else len(each)
        return size

    def check(self, reads: Sequence[str]) -> None:
        """Refuse a text for what is read of files, whose path it could be: none is ever taken from a request.

        reads   the kinds of the model's sources
        """
        parts = (
            self.input.split("\t")
            if isinstance(self.input, str) and len(reads) > 1
            else self.sources
        )
        for kind, part in zip(reads, parts, strict=False):
            field = FIELDS[kind]
            if field.content_key is not None and not isinstance(part, np.ndarray):
                wanted = f"{field.noun} as its content"
                remedy = "No path and no URL is taken."
                raise InvalidArgument("input", wanted=wanted, got="a text", remedy=remedy)

    @property
    def decode_options(self) -> Mapping[str, Any]:
        """The options of [decode] that the request gives."""
        return {}

    @abstractmethod
    def as_batched(self, predictor: Predictor) -> "BatchedWork | None":
        """As work that this model computes in one batch with others; None: by a search, token by token."""


@dataclass(frozen=True)
class BatchedWork(Work):
    """Work that is computed in one batch with other work of the same kind and group."""

    most: ClassVar[int] = 1 << 30  # works of a batch, where the scheduler allows as many
    counts_tokens: ClassVar[bool] = True  # whether the tokens of its input are counted

    def as_batched(self, predictor: Predictor) -> "BatchedWork":
        return self

    @property
    def group(self) -> Hashable:
        """What all works of a batch have in common."""
        return None

    @abstractmethod
    def compute(self: Alike, predictor: Predictor, works: Sequence[Alike]) -> Sequence[Any]:
        """The results of these works, in order; this is one of them. Where one is refused, all are: the scheduler then
        computes each alone.
        """

    @property
    def few_threads(self) -> bool:
        """Whether a small model computes it in one of PyTorch's threads."""
        return False

    @property
    def locks(self) -> Hashable:
        """What it changes: no other work that locks the same is computed meanwhile. None: nothing."""
        return None

    def more_tokens(self, result: Any) -> int:
        """Tokens that were read beside those of the input."""
        return 0


def input_tokens(predictor: Predictor, works: Sequence[Work]) -> list[int]:
    """The number of tokens of each input, as far as it is read."""
    config = predictor.recipe.decode
    encoded, _ = predictor.encode_inputs(
        "input", [work.input for work in works], config, truncate=True
    )
    return predictor.inputs.sizes(encoded)


@dataclass(frozen=True)
class AttentionPart:
    """Which cross-attention weights an output has; None: all.

    layers   from 1
    heads    from 0
    rows     tokens of the output: the first, and the one after the last. An output has those of them that it has
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    rows: tuple[int, int] | None = None

    def count(self, layers: int, heads: int, rows: int) -> int:
        """How many of the layers, heads and rows of an output these are, multiplied."""
        some_layers = layers if self.layers is None else len(self.layers)
        some_heads = heads if self.heads is None else len(self.heads)
        some_rows = rows if self.rows is None else len(range(rows)[slice(*self.rows)])
        return some_layers * some_heads * some_rows

    def of(self, weights: Float[Tensor, "layers H T S"]) -> Float[Tensor, "L K R S"]:
        """These of all weights of an output."""
        layers = None if self.layers is None else [layer - 1 for layer in self.layers]
        for axis, (name, chosen) in enumerate((("layers", layers), ("heads", self.heads))):
            if chosen is not None:
                first, count = int(name == "layers"), weights.shape[axis]
                if not chosen or not all(0 <= each < count for each in chosen):
                    wanted = f"some of {first} to {count - 1 + first}"
                    got = str([each + first for each in chosen])
                    raise InvalidArgument(
                        f"attention.{name}", wanted=wanted, got=got, remedy="Or leave it out."
                    )
                weights = weights[chosen] if axis == 0 else weights[:, list(chosen)]
        return weights if self.rows is None else weights[:, :, slice(*self.rows)]


def check_attention_size(count: int) -> None:
    """Refuse more weights than the answer for an input may have."""
    if count > MAX_ATTENTION:
        wanted = f"at most {MAX_ATTENTION:,} weights for an input"
        remedy = "Choose layers, heads, rows; or use /look."
        raise InvalidArgument("attention", wanted=wanted, got=f"{count:,}", remedy=remedy)


@dataclass(frozen=True)
class Generation(Work):
    """Outputs for one input: texts of a model that generates, labels of a classifier. As `Predictor.outputs`."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of [decode]
    prefix: str = ""
    banned: Sequence[str] = ()
    required: Sequence[str] = ()
    scores: bool = False
    attention: bool | AttentionPart = False
    truncate: bool = False
    number: int = 0  # on which random draws depend: the input's index in its list
    token_texts: bool = False  # give the text that each token adds
    echo: bool = False  # give a language model's input as the beginning of the output
    widen_beam: bool = False  # to the number of outputs, where it is smaller
    tokens: bool = True  # give the tokens of outputs, and their ids

    @property
    def texts(self) -> Sequence[object]:
        return (*super().texts, self.prefix, *self.banned, *self.required)

    @property
    def is_long(self) -> bool:
        """Whether to tokenize and plan it takes so long that no other job should wait for it."""
        return self.size > LONG or len(self.required) > FEW_REQUIRED

    def check(self, reads: Sequence[str]) -> None:
        super().check(reads)
        lists = {"banned": self.banned, "required": self.required}
        for name, phrases in lists.items():
            if len(phrases) > MOST_PHRASES[name]:
                raise InvalidArgument(
                    name,
                    wanted=f"at most {MOST_PHRASES[name]:,} phrases",
                    got=f"{len(phrases):,}",
                    remedy="Leave out the least important ones.",
                )

    @property
    def decode_options(self) -> Mapping[str, Any]:
        return self.options

    def as_batched(self, predictor: Predictor) -> "DirectPrediction | None":
        task = predictor.task
        if task.searches:
            return None
        check_direct_keys(self.options, task.gives, has_beam=task.has_beam)
        return DirectPrediction(self.input, self)


@dataclass(frozen=True)
class DirectPrediction(BatchedWork):
    """The outputs of one input that follow from one forward pass, such as labels.

    Options that mean something only where a text is generated are refused.
    """

    crosses_processes: ClassVar[bool] = False  # made of a generation in the scheduler
    asked: Generation

    @property
    def group(self) -> Hashable:
        asked = self.asked
        constraints = asked.prefix, tuple(asked.banned), tuple(asked.required), asked.attention
        options = repr(sorted(asked.options.items())), asked.echo
        return (*options, asked.scores, asked.truncate, *constraints)

    def compute(
        self, predictor: Predictor, works: Sequence["DirectPrediction"]
    ) -> Sequence[list[Output]]:
        asked, count = self.asked, len(works)
        if asked.echo:
            wanted = f"nothing for a model that gives {predictor.task.gives}"
            raise InvalidArgument("echo", wanted=wanted, got="True", remedy="Leave it out.")
        return predictor.outputs(
            [work.input for work in works],
            prefixes=[asked.prefix] * count if asked.prefix else None,
            banned=asked.banned,
            required=[asked.required] * count if asked.required else None,
            scores=asked.scores,
            attention=bool(asked.attention),
            truncate=asked.truncate,
            **asked.options,
        )


@dataclass(frozen=True)
class Scoring(BatchedWork):
    """The score of a target, or of a language model's text. As `Predictor.score`."""

    target: str | None = None

    @property
    def texts(self) -> Sequence[object]:
        return (*super().texts, self.target)

    @property
    def group(self) -> Hashable:
        return self.target is None

    def compute(self, predictor: Predictor, works: Sequence["Scoring"]) -> Sequence[SequenceScore]:
        targets = [work.target for work in works if work.target is not None]
        check_inputs(predictor, [work.input for work in works])
        for target in targets:
            check_output(predictor, "target", target)
        return predictor.score([work.input for work in works], targets or None)

    def more_tokens(self, result: SequenceScore) -> int:
        return 0 if self.target is None else len(result.tokens)


@dataclass(frozen=True)
class Embedding(BatchedWork):
    """The vector of an input. As `Predictor.embed`."""

    truncate: bool = False

    @property
    def group(self) -> Hashable:
        return self.truncate

    def compute(self, predictor: Predictor, works: Sequence["Embedding"]) -> Sequence[list[float]]:
        vectors: list[list[float]] = predictor.embed(
            [work.input for work in works], truncate=self.truncate
        ).tolist()
        return vectors


@dataclass(frozen=True)
class Inspection(BatchedWork):
    """Exact attention weights, as `regard.look`: of the maps, heads, rows and columns asked for; None: of all.

    output       a text or a label, or the ids of generated tokens; None: a classifier's own label, or what the model
                 generates, by a search of its own
    layers       from 1
    rows         the first, and the one after the last; `columns` likewise. Each map has those of them that it has
    edits        of attention and tokens, as `regard.interpret.edits.read_edits` reads them
    summaries    give measures of each head
    options      of [decode], where an output is searched; `prefix` is how it begins
    max_weights  of all maps together; more are refused
    generated    tokens of an output that the model has generated before
    channel      whose attention is shown, of a model that reads each channel apart; None: the first
    most         one at a time: a forward pass under capture is of one input
    """

    most = 1
    output: str | tuple[int, ...] | None = None
    layers: tuple[int, ...] | None = None
    maps: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None
    words: bool = False
    truncate: bool = False
    edits: tuple[Mapping[str, Any], ...] = ()
    summaries: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    max_weights: int = MAX_WEIGHTS
    generated: int = 0
    channel: str | int | None = None

    @property
    def texts(self) -> Sequence[object]:
        return (*super().texts, self.output, self.prefix)

    @property
    def decode_options(self) -> Mapping[str, Any]:
        return self.options

    def compute(
        self, predictor: Predictor, works: Sequence["Inspection"]
    ) -> Sequence[InspectedAttention]:
        for work in works:
            check_output(predictor, "output", work.output, work.generated)
        given = [
            {name: value for name, value in vars(work).items() if name != "generated"}
            for work in works
        ]
        return [inspect(predictor, **each) for each in given]


@dataclass
class Usage:
    """What a job took, filled in by the scheduler. Tokens are those of a job that ended with a result.

    version              of the model, from when the job is submitted
    queue_seconds        from there until it was admitted; None: it never was
    first_seconds        from there until its first token; None: it had none
    generation_seconds   from its admission until its end; None: it was cancelled, or never admitted
    read                 tokens of its input, and of a target that is scored
    generated            tokens of all its outputs, without end tokens and without the input
    """

    version: str = ""
    queue_seconds: float | None = None
    first_seconds: float | None = None
    generation_seconds: float | None = None
    read: int = 0
    generated: int = 0


@dataclass(eq=False)
class Job:
    """One piece of work for the scheduler, which calls `on_end` once, and `on_text` before it. Neither may block.

    client     whose it is; the scheduler is fair between clients
    deadline   of `time.monotonic`; after it, the job ends with `DeadlineExceeded`
    on_text    is called with each new piece of the output's text, by greedy search or sampling
    on_token   is called with the id of each new token, where `on_text` is given too
    """

    model: str
    work: Work
    on_end: Callable[[Result], None]
    on_text: Callable[[str], None] | None = None
    on_token: Callable[[int], None] | None = None
    client: str = ""
    deadline: float | None = None
    submitted: float = field(default_factory=time.monotonic)
    usage: Usage = field(default_factory=Usage)
    served: Any = field(default=None, repr=False)  # the model, until the job has ended
    plan: Any = field(default=None, repr=False)  # kept by the scheduler while the job waits
    # The client no longer waits for the result. Any thread may set this.
    abandoned: bool = False
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.work.size

    def admitted(self) -> None:
        if self.usage.first_seconds is not None:  # its search has ended, and its attention follows
            return
        self.usage.queue_seconds = time.monotonic() - self.submitted

    def began(self, at: float) -> None:
        """It had its first token at this time."""
        self.usage.first_seconds = at - self.submitted

    def ended(self) -> None:
        if self.usage.queue_seconds is not None:
            self.usage.generation_seconds = (
                time.monotonic() - self.submitted - self.usage.queue_seconds
            )
