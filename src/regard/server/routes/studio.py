"""The studio: a page that shows a model's attention live, and what it asks the server."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

from msgspec import Struct, structs
from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.evaluation.output_difference import token_differences
from regard.inference.inputs import InputValue
from regard.server.bridge import EngineClient
from regard.server.events import Events, EventStream
from regard.server.interfaces import ModelInfo
from regard.server.jobs import Generation
from regard.server.model_inputs import sources_of
from regard.server.routing import JSON, Call, Route
from regard.server.service import Service, decoded, json_answer
from regard.server.static import page_file
from regard.server.studio_jobs import BeamTree, LiveLook, LookPage
from regard.server.wire import streamable

PAGE = ("regard.server", "studio_page")
SHARED = ("regard.views", "page")  # the modules of the static page of a look
WATCH_SECONDS = 0.1  # from one look at an unfinished output to the next: a fast model is not slowed down by looks


class StudioModel(ModelInfo, frozen=True):
    """A model, and its path for commands; None where clients do not learn it."""

    path: str | None = None


class StudioModels(Struct):
    models: list[StudioModel]


class LiveLookRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A look at one input, with edits.

    input     a string for each source; of an image, its content as data:image/png;base64,…
    edits     as `regard look --edit` reads them
    output    a text or a label to look at, or token ids, instead of the model's own output
    beam_size of the search for an output; by default the recipe's
    words     merge tokens into words
    """

    input: list[str]
    model: str | None = None
    edits: list[dict[str, Any]] = []
    output: str | list[int] | None = None
    beam_size: int | None = None
    words: bool = False


class BeamTreeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A beam search for one input, as of `/studio/look`."""

    input: list[str]
    model: str | None = None
    edits: list[dict[str, Any]] = []
    beam_size: int = 4


class BeamNode(Struct):
    """A token of a hypothesis: `id` its number, `parent` the index of the node before it, −1 for none.

    log_probability   of the token
    total             of the hypothesis up to it
    kept              whether it is extended
    score             of a hypothesis that ends here, after the length penalty
    alive             whether one of the outputs goes through it
    """

    parent: int
    token: str
    id: int
    log_probability: float
    total: float
    kept: bool
    score: float | None
    alive: bool


class BeamOutput(Struct):
    """An output, and the index of the node at which it ends."""

    text: str
    score: float | None
    log_probability: float | None
    node: int


class BeamTreeAnswer(Struct):
    nodes: list[BeamNode]
    outputs: list[BeamOutput]


class DifferenceRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The tokens of two outputs, and their log-probabilities."""

    first: list[str]
    second: list[str]
    first_scores: list[float | None] | None = None
    second_scores: list[float | None] | None = None


class AlignedToken(Struct):
    """A token of the first output, of the second, or of both at the same place."""

    change: Literal["equal", "replace", "delete", "insert"]
    first: str | None = None
    second: str | None = None
    first_score: float | None = None
    second_score: float | None = None


class DifferenceAnswer(Struct):
    tokens: list[AlignedToken]


class StudioRoutes:
    """paths   of the models, for commands that the page shows; empty: clients do not learn them"""

    def __init__(self, service: Service, paths: Mapping[str, str]) -> None:
        self.service, self.paths = service, paths

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/", self.page, "The studio: attention, live, in the browser", needs_key=False),
            Route("GET", "/studio/{file}", self.file, "Scripts and styles of the studio", needs_key=False),
            Route(
                "GET",
                "/studio/page/{file}",
                self.shared,
                "Those that it shares with the page of a look",
                needs_key=False,
            ),
            Route("GET", "/studio/models", self.models, "The models, with inputs to begin with", answer=StudioModels),
            Route(
                "POST",
                "/studio/look",
                self.look,
                "A look as `regard.look` makes it, as JSON",
                LiveLookRequest,
                takes_images=True,
            ),
            Route(
                "POST",
                "/studio/watch",
                self.watch,
                "Looks at an output while it is generated",
                LiveLookRequest,
                takes_images=True,
            ),
            Route(
                "POST",
                "/studio/export",
                self.export,
                "The look as a page in one file",
                LiveLookRequest,
                takes_images=True,
            ),
            Route(
                "POST",
                "/studio/beam",
                self.beam,
                "A beam search as a tree",
                BeamTreeRequest,
                BeamTreeAnswer,
                takes_images=True,
            ),
            Route(
                "POST",
                "/studio/difference",
                self.difference,
                "Two outputs, aligned",
                DifferenceRequest,
                DifferenceAnswer,
            ),
        ]

    async def page(self, call: Call) -> Response:
        return page_file(*PAGE, "index.html")

    async def file(self, call: Call) -> Response:
        return page_file(*PAGE, call.parameters["file"])

    async def shared(self, call: Call) -> Response:
        return page_file(*SHARED, call.parameters["file"])

    async def models(self, call: Call) -> Response:
        models = self.service.engine.model_info.values()
        named = [StudioModel(**structs.asdict(each), path=self.paths.get(each.name)) for each in models]
        return json_answer(StudioModels(named))

    async def look(self, call: Call) -> Response:
        model, work = await self._look(decoded(call.body, LiveLookRequest))
        (look,) = await self.service.engine_client(call, model).results([work])
        return Response(look, media_type=JSON)

    async def export(self, call: Call) -> Response:
        model, work = await self._look(decoded(call.body, LiveLookRequest))
        (page,) = await self.service.engine_client(call, model).results([LookPage(**vars(work))])
        return Response(page, media_type="text/html")

    async def watch(self, call: Call) -> Response:
        model, work = await self._look(decoded(call.body, LiveLookRequest))
        if not model.generates or work.edits or work.output is not None:
            wanted, remedy = "a model that generates, without edits or a given output", "Use /studio/look."
            raise InvalidArgument("model", wanted=wanted, got=model.name, remedy=remedy)
        search = Generation(work.input, streamable(dict(work.options)))
        client = self.service.engine_client(call, model)
        return await EventStream.begin(_watched(client, search, replace(work, options={})))

    async def beam(self, call: Call) -> Response:
        asked = decoded(call.body, BeamTreeRequest)
        model, value = await self._read(asked.model, asked.input)
        work = BeamTree(value, tuple(asked.edits), asked.beam_size)
        (tree,) = await self.service.engine_client(call, model).results([work])
        return Response(tree, media_type=JSON)

    async def difference(self, call: Call) -> Response:
        asked = decoded(call.body, DifferenceRequest)
        found = token_differences(asked.first, asked.second, asked.first_scores, asked.second_scores)
        return json_answer(DifferenceAnswer([AlignedToken(**vars(each)) for each in found]))

    async def _look(self, asked: LiveLookRequest) -> tuple[ModelInfo, LiveLook]:
        model, value = await self._read(asked.model, asked.input)
        options = {} if asked.beam_size is None else {"beam_size": asked.beam_size}
        output = tuple(asked.output) if isinstance(asked.output, list) else asked.output
        return model, LiveLook(value, tuple(asked.edits), output, options, asked.words)

    async def _read(self, name: str | None, parts: list[str]) -> tuple[ModelInfo, InputValue]:
        model = self.service.model(name)
        return model, await self.service.reader.read_one(model, sources_of(parts, model.reads))


async def _watched(client: EngineClient, search: Generation, look: LiveLook) -> Events:
    """A look at the tokens so far, each when the one before it is complete; at last one at the whole output."""
    tokens: list[int] = []
    pending: asyncio.Task[list[bytes]] | None = None
    began = time.monotonic()
    async with aclosing(client.tokens(search)) as items:
        try:
            async for item in items:
                if pending is not None and pending.done():
                    yield _look_event(pending.result()[0], last=False)
                    pending = None
                if not isinstance(item, int):
                    (whole,) = await client.results([replace(look, output=item[0].token_ids)])
                    yield _look_event(whole, last=True)
                    continue
                tokens.append(item)
                if pending is None and time.monotonic() >= began + WATCH_SECONDS:
                    began = time.monotonic()
                    part = replace(look, output=tuple(tokens))
                    pending = asyncio.ensure_future(client.results([part]))
        finally:
            if pending is not None:
                pending.cancel()


def _look_event(look: bytes, *, last: bool) -> bytes:
    """The JSON of a look is one line."""
    return b'data: {"last": %s, "look": %s}\n\n' % (b"true" if last else b"false", look)
