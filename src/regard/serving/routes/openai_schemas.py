"""The JSON of OpenAI's API, as typed structures, and its errors."""

from http import HTTPStatus
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.responses import Response

from regard.core.errors import InvalidArgument, InvalidRecipe, RegardError
from regard.serving.http.errors import status_of
from regard.serving.http.routing import JSON
from regard.serving.http.schemas import DecodeOptions


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class CompletionRequest(DecodeOptions, kw_only=True, forbid_unknown_fields=True):
    """Completions of prompts by a language model; by a model with an encoder, outputs for sources."""

    prompt: str | list[str]
    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    user: str | None = None


class Logprobs(Struct):
    """Of the tokens of a choice; `text_offset` is where each begins in its text.

    `top_logprobs` has the most likely tokens at each position, and the token of the choice.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    text_offset: list[int]
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(Struct):
    text: str
    index: int
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: Logprobs | None = None


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @staticmethod
    def of(prompt: int, completion: int) -> "Usage":
        return Usage(prompt, completion, prompt + completion)


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str = ""
    choices: list[Choice]
    usage: Usage | None = None


class EmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Vectors of texts, as lists of numbers or as float32 (little-endian) in base64."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class EmbeddedText(Struct):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct):
    data: list[EmbeddedText]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class ModelCard(Struct):
    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "regard"


class ModelCards(Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class ErrorDetail(Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(Struct):
    error: ErrorDetail


CODES = {
    HTTPStatus.UNAUTHORIZED: ("invalid_request_error", "invalid_api_key"),
    HTTPStatus.NOT_FOUND: ("invalid_request_error", "model_not_found"),
    HTTPStatus.TOO_MANY_REQUESTS: ("requests", "rate_limit_exceeded"),
    HTTPStatus.SERVICE_UNAVAILABLE: ("server_error", "service_unavailable"),
    HTTPStatus.GATEWAY_TIMEOUT: ("server_error", "timeout"),
}


def error_answer(error: RegardError, request_id: str) -> Response:
    """An error as OpenAI's clients read it."""
    status, headers = status_of(error)
    return Response(msgspec.json.encode(error_detail(error)), status, headers, JSON)


def error_detail(error: RegardError) -> ErrorAnswer:
    status, _ = status_of(error)
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    kind, code = CODES.get(status, (kind, None))
    param = error.argument if isinstance(error, InvalidArgument) else None
    if isinstance(error, InvalidRecipe):
        param = error.problems[0].key.removeprefix("decode.")
    return ErrorAnswer(ErrorDetail(str(error), kind, param, code))
