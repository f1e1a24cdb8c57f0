"""The JSON of requests and answers, as typed structures: what is not listed here is refused."""

from dataclasses import fields
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct, field

from regard.decoding.config import DecodeConfig
from regard.inference.pipelines import Output
from regard.inference.score import SequenceScore

# Settings of [decode] that belong to the server: they change how an answer is computed, not which it is.
SERVER_ONLY = ("precision", "quantization", "batch_tokens", "logits_processors")
OPTIONS = tuple(name for name in DecodeConfig.__dataclass_fields__ if name not in SERVER_ONLY)


def _json_type(annotation: Any) -> Any:
    """A setting's type in JSON: without bounds, which the engine checks; None stands for the recipe's own value."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _json_type(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return Union[tuple(_json_type(each) for each in get_args(annotation))]  # noqa: UP007  made at run time
    return annotation


if TYPE_CHECKING:
    DecodeOptions = Struct
else:
    DecodeOptions = msgspec.defstruct(
        "DecodeOptions",
        [(each.name, _json_type(each.type) | None, None) for each in fields(DecodeConfig) if each.name in OPTIONS],
    )


class PredictRequest(DecodeOptions, kw_only=True, forbid_unknown_fields=True):
    """Texts or labels for one input or several."""

    input: str | list[str]
    model: str | None = None  # the only one by default
    prefix: str = ""
    banned: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    scores: bool = False
    tokens: bool = False
    attention: bool = False
    truncate: bool = False
    stream: bool = False
    timeout_ms: int | None = None


class ScoreRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The log-probability of targets, or of a language model's texts."""

    input: str | list[str]
    target: str | list[str] | None = None
    model: str | None = None
    timeout_ms: int | None = None


class OutputAnswer(Struct, omit_defaults=True):
    """One output."""

    text: str
    score: float | None = None
    log_probability: float | None = None
    finish_reason: Literal["end", "length", "repetition"] | None = None
    tokens: list[str] | None = None
    log_probabilities: list[float] | None = None
    probabilities: dict[str, float] | None = None
    attention: list[list[list[list[float]]]] | None = None  # layers, heads, tokens of the output, of the source
    truncated: bool = False

    @staticmethod
    def of(output: Output, *, tokens: bool) -> "OutputAnswer":
        return OutputAnswer(
            output.text,
            output.score,
            output.log_probability,
            output.finish_reason,
            list(output.tokens) if tokens else None,
            list(output.log_probabilities) if tokens and output.log_probabilities is not None else None,
            output.probabilities,
            None if output.attention is None else output.attention.tolist(),
            output.truncated,
        )


class Result(Struct):
    """The outputs for one input, best first."""

    outputs: list[OutputAnswer]


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
        return ScoreResult(sum(score.log_probabilities), list(score.tokens), list(score.log_probabilities))


class ScoreAnswer(Struct):
    id: str
    model: str
    version: str
    results: list[ScoreResult]


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
