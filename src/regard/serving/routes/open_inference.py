"""The Open Inference Protocol, version 2, which KServe and Triton speak: texts as tensors of BYTES."""

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Literal

from msgspec import Struct
from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.core.version import __version__
from regard.serving.http.errors import ErrorMessage, RequestRefused, error_message
from regard.serving.http.routing import Call, Route
from regard.serving.http.schemas import DecodeOptions, options_of, refuse_top_logprobs, score_of
from regard.serving.http.service import TEXT, Service, decoded, json_answer
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Generation
from regard.tasks.pipeline import Output

DATATYPES = {"text": "BYTES", "score": "FP32"}


class ServerMetadata(Struct):
    name: str
    version: str
    extensions: list[str] = []


class Live(Struct):
    live: bool


class Ready(Struct):
    ready: bool


class ModelReady(Struct):
    name: str
    ready: bool


class TensorMetadata(Struct):
    name: str
    datatype: str
    shape: list[int]  # -1: any


class ModelMetadata(Struct):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferParameters(DecodeOptions, kw_only=True, forbid_unknown_fields=True):
    """The keys of decode, and how a request is treated."""

    prefix: str = ""
    truncate: bool = False
    timeout_ms: int | None = None


class InputParameters(Struct, forbid_unknown_fields=True):
    content_type: Literal["str"] = "str"


class OutputParameters(Struct, forbid_unknown_fields=True):
    binary_data: bool = False


class InputTensor(Struct, forbid_unknown_fields=True):
    """Texts: of the shape [N] or [N, 1], flat or nested."""

    name: str
    shape: list[int]
    datatype: str
    data: list[str | list[str]]
    parameters: InputParameters | None = None


class WantedOutput(Struct, forbid_unknown_fields=True):
    name: str
    parameters: OutputParameters | None = None


class InferRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    inputs: list[InputTensor]
    id: str | None = None
    parameters: InferParameters | None = None
    outputs: list[WantedOutput] = []


class OutputTensor(Struct):
    """Of the shape [N, K]: K outputs for each of N inputs, best first. The data are flat."""

    name: str
    shape: list[int]
    datatype: str
    data: list[str | float]


class InferAnswer(Struct):
    model_name: str
    model_version: str
    id: str
    outputs: list[OutputTensor]


class OpenInferenceRoutes:
    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        of = "in the Open Inference Protocol"
        routes = [
            Route(
                "GET",
                "/v2",
                self.server,
                f"The server, {of}",
                answer=ServerMetadata,
                needs_key=False,
            ),
            Route(
                "GET",
                "/v2/health/live",
                self.live,
                f"The process runs, {of}",
                answer=Live,
                needs_key=False,
            ),
            Route(
                "GET",
                "/v2/health/ready",
                self.ready,
                f"It takes requests, {of}",
                answer=Ready,
                needs_key=False,
            ),
        ]
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes += [
                Route("GET", path, self.model, f"A model, {of}", answer=ModelMetadata),
                Route(
                    "GET",
                    f"{path}/ready",
                    self.model_ready,
                    f"A model takes requests, {of}",
                    answer=ModelReady,
                ),
                Route(
                    "POST",
                    f"{path}/infer",
                    self.infer,
                    f"Outputs, {of}",
                    InferRequest,
                    InferAnswer,
                    example=_example,
                ),
            ]
        return [replace(route, problem=error_message, error=ErrorMessage) for route in routes]

    async def server(self, call: Call) -> Response:
        return json_answer(ServerMetadata("regard", __version__))

    async def live(self, call: Call) -> Response:
        return json_answer(Live(True))

    async def ready(self, call: Call) -> Response:
        if not self.service.ready:
            message = "wanted a server that takes requests; got one that stops or starts."
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, message)
        return json_answer(Ready(True))

    async def model(self, call: Call) -> Response:
        model = self._model(call)
        inputs = [TensorMetadata("text", "BYTES", [-1])]
        outputs = [TensorMetadata(name, datatype, [-1, -1]) for name, datatype in DATATYPES.items()]
        return json_answer(
            ModelMetadata(model.name, [model.version], "regard_pytorch", inputs, outputs)
        )

    async def model_ready(self, call: Call) -> Response:
        return json_answer(ModelReady(self._model(call).name, self.service.ready))

    async def infer(self, call: Call) -> Response:
        asked, model = decoded(call.body, InferRequest), self._model(call)
        given = asked.parameters or InferParameters()
        names = _wanted(asked.outputs)
        inputs = self.service.inputs(_texts(asked.inputs))
        options, scored = options_of(given), "score" in names
        refuse_top_logprobs(options)
        works = [
            Generation(
                text,
                options,
                given.prefix,
                scores=scored,
                truncate=given.truncate,
                number=number,
                tokens=False,
            )
            for number, text in enumerate(inputs)
        ]
        client = self.service.engine_client(call, model, given.timeout_ms)
        results = await client.results(works)
        outputs = [_tensor(name, results) for name in names]
        return json_answer(InferAnswer(model.name, client.version, asked.id or call.id, outputs))

    def _model(self, call: Call) -> ModelInfo:
        model, version = (
            self.service.text_model(call.parameters["name"]),
            call.parameters.get("version"),
        )
        if version is not None and version != model.version:
            message = f"version: wanted {model.version}; got {version!r}. Leave it out."
            raise RequestRefused(HTTPStatus.NOT_FOUND, message)
        return model


def _example() -> object:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}


def _wanted(outputs: Sequence[WantedOutput]) -> list[str]:
    """The names of the tensors to give: all where none are named."""
    for each in outputs:
        if each.name not in DATATYPES:
            raise InvalidArgument(
                "outputs", wanted=" or ".join(DATATYPES), got=repr(each.name), remedy="Choose one."
            )
        if each.parameters is not None and each.parameters.binary_data:
            raise InvalidArgument("binary_data", wanted="false", got="true", remedy="Ask for JSON.")
    return [each.name for each in outputs] or list(DATATYPES)


def _texts(tensors: Sequence[InputTensor]) -> list[str]:
    """The texts of the only input tensor; refused unless its name, type and shape are right."""
    if len(tensors) != 1:
        wanted, remedy = "one tensor, named text", "Put all texts into it."
        raise InvalidArgument("inputs", wanted=wanted, got=str(len(tensors)), remedy=remedy)
    (tensor,) = tensors
    for name, wanted, got in (
        ("name", "text", tensor.name),
        ("datatype", "BYTES", tensor.datatype),
    ):
        if got != wanted:
            raise InvalidArgument(
                f"inputs[0].{name}", wanted=wanted, got=repr(got), remedy="Change it."
            )
    count = len(tensor.data)
    texts = [each for row in tensor.data for each in ([row] if isinstance(row, str) else row)]
    nested = [len(row) for row in tensor.data if not isinstance(row, str)]
    shapes = [[count], [count, 1]] if not nested else [[count, 1]]
    if tensor.shape not in shapes or nested not in ([], [1] * count):
        wanted = " or ".join(map(str, shapes))
        raise InvalidArgument(
            "inputs[0].shape", wanted=wanted, got=str(tensor.shape), remedy="See its data."
        )
    return texts


def _tensor(name: str, results: Sequence[list[Output]]) -> OutputTensor:
    count = min(map(len, results))
    data: list[str | float] = [
        output.text if name == "text" else score_of(output)
        for outputs in results
        for output in outputs[:count]
    ]
    return OutputTensor(name, [len(results), count], DATATYPES[name], data)
