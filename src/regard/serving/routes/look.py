"""Exact attention weights of a model for one input: `/look`."""

from http import HTTPStatus
from typing import TypeVar

from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.serving.http.errors import RequestRefused
from regard.serving.http.forms import read_request
from regard.serving.http.routing import FORM, JSON, Call, Route
from regard.serving.http.schemas import options_of, refuse_top_logprobs
from regard.serving.http.service import Service, json_answer
from regard.serving.routes.look_schemas import LookAnswer, LookRequest, as_safetensors
from regard.serving.scheduler.async_client import AsyncClient
from regard.serving.scheduler.attention_ranges import MAX_WEIGHTS, InspectedAttention
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Generation, Inspection
from regard.tasks.inputs import InputValue

SAFETENSORS = "application/x-safetensors"
MAX_JSON_WEIGHTS = 1 << 18  # of one answer: about 5 MB of text
Item = TypeVar("Item", int, str)
READING = ("max_source_length",)  # options that concern the input, also where no output is searched


class LookRoutes:
    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        summary = "Exact attention of one input, with edits"
        return [
            Route(
                "POST",
                "/look",
                self.look,
                summary,
                LookRequest,
                LookAnswer,
                other_answers=(SAFETENSORS,),
                accepts=(JSON, FORM),
                takes_files=True,
            ),
        ]

    async def look(self, call: Call) -> Response:
        asked = await read_request(self.service, call, LookRequest, one=True)
        model = self.service.model(asked.model)
        client = self.service.engine_client(call, model, asked.timeout_ms)
        value = await self.service.reader.read_one(model, asked.input)
        binary = SAFETENSORS in call.headers.get("accept", "")
        seen = await _inspected(
            client, model, value, asked, MAX_WEIGHTS if binary else MAX_JSON_WEIGHTS
        )
        answer = LookAnswer.of((call.id, model.name, client.version), seen, weights=not binary)
        if binary:
            return Response(as_safetensors(answer, seen), media_type=SAFETENSORS)
        return json_answer(answer)


async def _inspected(
    client: AsyncClient, model: ModelInfo, value: InputValue, asked: LookRequest, max_weights: int
) -> InspectedAttention:
    """The output is generated in a batch with others first, unless it is given or the model is edited."""
    options, output, prefix = options_of(asked), asked.output, asked.prefix
    refuse_top_logprobs(options)
    generated = 0
    if output is None and model.generates and not asked.edits:
        search = Generation(value, options, prefix, truncate=asked.truncate)
        ((best, *_),) = await client.results([search])
        if not best.token_ids:
            remedy = "Give an output, or search with other options."
            raise InvalidArgument("output", wanted="at least one token", got="none", remedy=remedy)
        output, prefix = list(best.token_ids), ""
        generated = len(output)
        options = {name: value for name, value in options.items() if name in READING}
    work = Inspection(
        value,
        tuple(output) if isinstance(output, list) else output,
        _tuple(asked.layers), _tuple(asked.maps), _tuple(asked.heads), asked.rows, asked.columns,
        asked.words, asked.truncate, tuple(asked.edits), asked.summaries, options, prefix, max_weights,
        generated, asked.channel,
    )  # fmt: skip
    (seen,) = await client.results([work])
    if len({usage.version for usage in client.record.usages}) > 1:
        message = "model: wanted one version for output and attention; got one that was replaced meanwhile. Try again."
        raise RequestRefused(
            HTTPStatus.SERVICE_UNAVAILABLE, message, {"retry-after": "1"}, reason="replaced"
        )
    assert isinstance(seen, InspectedAttention)
    return seen


def _tuple(given: list[Item] | None) -> tuple[Item, ...] | None:
    return None if given is None else tuple(given)
