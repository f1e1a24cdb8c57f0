"""The JSON of requests and answers, as typed structures: what is not listed here is refused."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import chain, islice
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct, field

from regard.core.errors import InvalidArgument
from regard.generation.config import DecodeConfig
from regard.inference.predictor import UNSTREAMABLE
from regard.serving.scheduler.attention_ranges import check_range
from regard.serving.scheduler.jobs import AttentionPart, check_attention_size
from regard.tasks.pipeline import Output, SequenceScore

# Settings of [decode] that belong to the server: they change how an answer is computed, not which it is.
SERVER_ONLY = ("precision", "quantization", "batch_tokens", "logits_processors", "language_model")
MAX_REQUEST_ATTENTION = 1 << 21  # weights of all inputs of a request: about 40 MB of JSON
OPTIONS = tuple(name for name in DecodeConfig.__dataclass_fields__ if name not in SERVER_ONLY)


def _json_type(annotation: Any) -> Any:
    """A setting's type in JSON: without bounds, which the scheduler checks; None stands for the recipe's own value."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _json_type(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return Union[tuple(_json_type(each) for each in get_args(annotation))]  # noqa: UP007  made at run time
    if origin is dict:
        key, value = get_args(annotation)
        return GenericAlias(dict, (key, _json_type(value)))
    return annotation


if TYPE_CHECKING:
    DecodeOptions = Struct
else:
    DecodeOptions = msgspec.defstruct(
        "DecodeOptions",
        [
            (each.name, _json_type(each.type) | None, None)
            for each in fields(DecodeConfig)
            if each.name in OPTIONS
        ],
    )


def options_of(asked: Struct) -> dict[str, Any]:
    """The decode options that a request gives."""
    return {name: value for name in OPTIONS if (value := getattr(asked, name)) is not None}


def refuse_top_logprobs(options: dict[str, Any]) -> None:
    """For answers that have no place for the alternatives of tokens."""
    given = options.get("top_logprobs")
    if given:
        wanted = "nothing: this answer has no place for them"
        remedy = "Use /predict."
        raise InvalidArgument("top_logprobs", wanted=wanted, got=str(given), remedy=remedy)


def streamable(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a stream, by greedy search or sampling; refused where its text would change after it was sent."""
    for name, only in UNSTREAMABLE.items():
        if options.get(name, only) != only:
            remedy = "Leave it out, or do not stream."
            raise InvalidArgument(
                name, wanted=f"{only} in a stream", got=repr(options[name]), remedy=remedy
            )
    return {**options, **UNSTREAMABLE}


def score_of(output: Output) -> float:
    """By which outputs are ranked; 0 for an empty one of which no token was left to generate."""
    return 0.0 if output.score is None else output.score


class SourceFile(Struct, forbid_unknown_fields=True):
    """The content of a file, in base64: an image; or a .npy file of vectors. Never a path or a URL."""

    image: bytes | None = None
    file: bytes | None = None

    @property
    def contents(self) -> dict[str, bytes]:
        """What is given, by its key."""
        both = {"image": self.image, "file": self.file}
        return {key: content for key, content in both.items() if content is not None}


FILE_KEYS = SourceFile.__struct_fields__
# A text, the content of a file, or a list: of the numbers of a vector (null: it is missing), of vectors, of sources.
Part = str | float | SourceFile | None
Numbers = list[Part]
Vectors = list[Part | Numbers]
SourceValue = str | SourceFile | Vectors
# One input or several. An input of several sources is a list in the list; or, of texts and labels, a text with tabs.
Inputs = str | SourceFile | list[Part | list[Part | Vectors]]


class AttentionRequest(Struct, forbid_unknown_fields=True):
    """Which cross-attention weights of an output are wanted: layers from 1, heads from 0, a range of its tokens."""

    layers: list[int] | None = None
    heads: list[int] | None = None
    rows: tuple[int, int] | None = None

    def part(self) -> AttentionPart:
        check_range("attention.rows", self.rows)
        layers, heads = (
            None if each is None else tuple(each) for each in (self.layers, self.heads)
        )
        return AttentionPart(layers, heads, self.rows)


class OutputRequest(DecodeOptions, kw_only=True, forbid_unknown_fields=True):
    """What is wanted of outputs."""

    model: str | None = None  # the only one by default
    prefix: str = ""
    banned: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    scores: bool = False
    tokens: bool = False
    attention: bool | AttentionRequest = False
    stream: bool = False
    timeout_ms: int | None = None


class PredictRequest(OutputRequest, kw_only=True, forbid_unknown_fields=True):
    """Texts or labels for one input or several."""

    input: Inputs
    truncate: bool = False


class CaptionRequest(OutputRequest, kw_only=True, forbid_unknown_fields=True):
    """Texts for one image or several: contents of files, in base64."""

    image: bytes | list[bytes]

    def as_predict(self) -> PredictRequest:
        """The same request of `/predict`."""
        values = {name: getattr(self, name) for name in OutputRequest.__struct_fields__}
        images = [self.image] if isinstance(self.image, bytes) else self.image
        return PredictRequest(input=[SourceFile(image=each) for each in images], **values)


class ScoreRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The log-probability of targets, or of a language model's texts."""

    input: Inputs
    target: str | list[str] | None = None
    model: str | None = None
    timeout_ms: int | None = None


class ClassifyRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The labels of inputs; all of them, or the `n_best` most likely."""

    input: Inputs
    model: str | None = None
    n_best: int | None = None
    truncate: bool = False
    timeout_ms: int | None = None


class EmbedRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A vector for each input."""

    input: Inputs
    model: str | None = None
    truncate: bool = False
    timeout_ms: int | None = None


class SpanAnswer(Struct):
    """A span of words that their tags mark: from word `start`, counted from 0, to before word `end`."""

    label: str
    start: int
    end: int
    text: str


class TopLogprob(Struct):
    """One of the most likely tokens at a position of an output."""

    token: str
    log_probability: float


class OutputAnswer(Struct, omit_defaults=True):
    """One output."""

    text: str
    score: float | None = None
    log_probability: float | None = None
    finish_reason: Literal["end", "length", "repetition"] | None = None
    tokens: list[str] | None = None
    log_probabilities: list[float] | None = None
    probabilities: dict[str, float] | None = None
    labels: list[str] | None = None
    numbers: list[float] | None = None
    vectors: list[list[float | None]] | None = None
    words: list[str] | None = None
    tags: list[str] | None = None
    tag_probabilities: list[float] | None = None
    spans: list[SpanAnswer] | None = None
    top_logprobs: list[list[TopLogprob]] | None = None
    attention: list[list[list[list[float]]]] | None = (
        None  # layers, heads, tokens of the output, of the source
    )
    truncated: bool = False

    @staticmethod
    def all(outputs: Sequence[Output], *, tokens: bool) -> "list[OutputAnswer]":
        """Refused where they have more weights than an answer may have."""
        check_attention_size(attention_size(outputs))
        return [OutputAnswer.of(each, tokens=tokens) for each in outputs]

    @staticmethod
    def of(output: Output, *, tokens: bool) -> "OutputAnswer":
        values = output.as_json()
        if output.spans is not None:
            values["spans"] = [SpanAnswer(**span) for span in values["spans"]]
        if not tokens:
            values |= {"tokens": None, "log_probabilities": None, "top_logprobs": None}
        elif output.top_logprobs is not None:
            values["top_logprobs"] = [
                [TopLogprob(each.token, each.log_probability) for each in row]
                for row in output.top_logprobs
            ]
        attention = None if output.attention is None else output.attention.tolist()
        return OutputAnswer(**values, attention=attention, truncated=output.truncated)


def attention_size(outputs: Iterable[Output]) -> int:
    """How many weights they have."""
    return sum(each.attention.numel() for each in outputs if each.attention is not None)


class Result(Struct):
    """The outputs for one input, best first."""

    outputs: list[OutputAnswer]

    @staticmethod
    def all(outputs: Sequence[list[Output]], *, tokens: bool) -> "list[Result]":
        """Of all inputs of a request. Refused where they have more weights than an answer may have."""
        count = attention_size(chain.from_iterable(outputs))
        if count > MAX_REQUEST_ATTENTION:
            wanted = f"at most {MAX_REQUEST_ATTENTION:,} weights for all inputs of a request"
            remedy = "Send fewer inputs together; or choose layers, heads, rows."
            raise InvalidArgument("attention", wanted=wanted, got=f"{count:,}", remedy=remedy)
        return [Result(OutputAnswer.all(one, tokens=tokens)) for one in outputs]


class PredictAnswer(Struct):
    id: str
    model: str
    version: str
    results: list[Result]


class ScoreResult(Struct):
    log_probability: float
    tokens: list[str]
    log_probabilities: list[float]

    @staticmethod
    def of(score: SequenceScore) -> "ScoreResult":
        return ScoreResult(
            sum(score.log_probabilities), list(score.tokens), list(score.log_probabilities)
        )


class ScoreAnswer(Struct):
    id: str
    model: str
    version: str
    results: list[ScoreResult]


class LabelProbability(Struct):
    label: str
    probability: float


class ClassifyResult(Struct, omit_defaults=True):
    """The labels of one input, most likely first."""

    labels: list[LabelProbability]
    truncated: bool = False

    @staticmethod
    def of(output: Output, n_best: int | None) -> "ClassifyResult":
        probabilities = output.probabilities or {}
        labels = [LabelProbability(*each) for each in islice(probabilities.items(), n_best)]
        return ClassifyResult(labels, output.truncated)


class ClassifyAnswer(Struct):
    id: str
    model: str
    version: str
    results: list[ClassifyResult]


class EmbedResult(Struct):
    embedding: list[float]


class EmbedAnswer(Struct):
    id: str
    model: str
    version: str
    results: list[EmbedResult]


class Problem(Struct, omit_defaults=True):
    """An error (RFC 9457)."""

    title: str
    status: int
    detail: str
    id: str
    type: str = "about:blank"
    argument: str | None = None
    wanted: str | None = None
    got: str | None = None
    remedy: str | None = None
