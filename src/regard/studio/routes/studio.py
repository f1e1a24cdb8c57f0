"""The studio: a page that shows a model's attention live, and what it asks the server."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from importlib.resources import files
from string import Template
from typing import Annotated, Any

from msgspec import Meta, Struct, structs
from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.serving.http.events import Events, EventStream
from regard.serving.http.routing import JSON, Call, Route
from regard.serving.http.schemas import streamable
from regard.serving.http.service import Service, decoded, json_answer
from regard.serving.http.static_files import page_file, page_files, page_response
from regard.serving.scheduler.async_client import AsyncClient
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Generation
from regard.studio.jobs import Alternatives, BeamTree, LiveLook, LookPage
from regard.studio.model_inputs import sources_of
from regard.tasks.inputs import InputValue
from regard.views.html import PAGE_END, STUDIO_TAG, document_start, studio_frame

PAGE = ("regard.studio", "app")
SHARED = ("regard.studio", "app/page")  # the modules of the static page of a look
SEARCH = (
    "beam_size",
    "sample",
    "temperature",
    "top_k",
    "top_p",
    "seed",
)  # keys of [decode] of a look's request
WATCH_SECONDS = 0.1  # from one look at an unfinished output to the next, at least


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
    words     merge tokens into words
    channel   of a model that reads each channel apart, the one whose attention is shown: its name, or number from 1

    The others are keys of [decode], for the search for an output; by default the recipe's.
    """

    input: list[str]
    model: str | None = None
    edits: list[dict[str, Any]] = []
    output: str | list[int] | None = None
    words: bool = False
    channel: str | int | None = None
    beam_size: int | None = None
    sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None


class PartialLookRequest(LiveLookRequest, kw_only=True):
    """A look of which some maps may be left out.

    maps   the names of those that are wanted; by default all. A second request for the others is answered from the same
           computation
    """

    maps: list[str] | None = None


class PreparedLook(Struct):
    """Whether a look was computed.

    refusal   why not: of an edit that the model does not take, or that is not complete yet
    """

    refusal: str | None = None


class AlternativesRequest(LiveLookRequest, kw_only=True):
    """Of the output of this look, the tokens that are most likely at a position, after the tokens before it."""

    position: int
    count: Annotated[int, Meta(ge=1, le=100)] = 8


class AlternativeToken(Struct):
    token: str
    id: int
    log_probability: float


class AlternativesAnswer(Struct):
    alternatives: list[AlternativeToken]


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


class StudioRoutes:
    """paths   of the models, for commands that the page shows; empty: clients do not learn them"""

    def __init__(self, service: Service, paths: Mapping[str, str]) -> None:
        self.service, self.paths = service, paths

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/",
                self.page,
                "The studio: attention, live, in the browser",
                needs_key=False,
            ),
            Route(
                "GET",
                "/studio/{file}",
                self.file,
                "Scripts and styles of the studio",
                needs_key=False,
            ),
            Route(
                "GET",
                "/studio/page/{file}",
                self.shared,
                "Those that it shares with the page of a look",
                needs_key=False,
            ),
            Route(
                "GET",
                "/studio/models",
                self.models,
                "The models, with inputs to begin with",
                answer=StudioModels,
            ),
            Route(
                "POST",
                "/studio/look",
                self.look,
                "A look as `regard.look` makes it, as JSON",
                PartialLookRequest,
                takes_files=True,
            ),
            Route(
                "POST",
                "/studio/prepare",
                self.prepare,
                "Compute a look that will probably be asked for",
                LiveLookRequest,
                PreparedLook,
                takes_files=True,
            ),
            Route(
                "POST",
                "/studio/watch",
                self.watch,
                "Looks at an output while it is generated",
                LiveLookRequest,
                takes_files=True,
            ),
            Route(
                "POST",
                "/studio/export",
                self.export,
                "The look as a page in one file",
                LiveLookRequest,
                takes_files=True,
            ),
            Route(
                "POST",
                "/studio/beam",
                self.beam,
                "A beam search as a tree",
                BeamTreeRequest,
                BeamTreeAnswer,
                takes_files=True,
            ),
            Route(
                "POST",
                "/studio/alternatives",
                self.alternatives,
                "The most likely tokens at a position of the output",
                AlternativesRequest,
                AlternativesAnswer,
                takes_files=True,
            ),
        ]

    async def page(self, call: Call) -> Response:
        return page_response(_index())

    async def file(self, call: Call) -> Response:
        return page_file(*PAGE, call.parameters["file"])

    async def shared(self, call: Call) -> Response:
        return page_file(*SHARED, call.parameters["file"])

    async def models(self, call: Call) -> Response:
        models = self.service.engine.model_info.values()
        named = [
            StudioModel(**structs.asdict(each), path=self.paths.get(each.name)) for each in models
        ]
        return json_answer(StudioModels(named))

    async def look(self, call: Call) -> Response:
        asked = decoded(call.body, PartialLookRequest)
        model, work = await self._look(asked)
        part = replace(work, maps=None if asked.maps is None else tuple(asked.maps))
        (look,) = await self.service.engine_client(call, model).results([part])
        return Response(look, media_type=JSON)

    async def prepare(self, call: Call) -> Response:
        model, work = await self._look(decoded(call.body, LiveLookRequest))
        try:
            await self.service.engine_client(call, model).results([replace(work, maps=())])
        except InvalidArgument as error:
            return json_answer(PreparedLook(str(error)))
        return json_answer(PreparedLook())

    async def export(self, call: Call) -> Response:
        model, work = await self._look(decoded(call.body, LiveLookRequest))
        (page,) = await self.service.engine_client(call, model).results([LookPage(**vars(work))])
        return Response(page, media_type="text/html")

    async def watch(self, call: Call) -> Response:
        model, work = await self._look(decoded(call.body, LiveLookRequest))
        if not model.generates or work.edits or work.output is not None:
            wanted, remedy = (
                "a model that generates, without edits or a given output",
                "Use /studio/look.",
            )
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

    async def alternatives(self, call: Call) -> Response:
        asked = decoded(call.body, AlternativesRequest)
        model, work = await self._look(asked)
        found = Alternatives(**vars(work), position=asked.position, count=asked.count)
        (answer,) = await self.service.engine_client(call, model).results([found])
        return Response(answer, media_type=JSON)

    async def _look(self, asked: LiveLookRequest) -> tuple[ModelInfo, LiveLook]:
        model, value = await self._read(asked.model, asked.input)
        options = {name: given for name in SEARCH if (given := getattr(asked, name)) is not None}
        output = tuple(asked.output) if isinstance(asked.output, list) else asked.output
        return model, LiveLook(
            value, tuple(asked.edits), output, options, asked.words, channel=asked.channel
        )

    async def _read(self, name: str | None, parts: list[str]) -> tuple[ModelInfo, InputValue]:
        model = self.service.model(name)
        return model, await self.service.reader.read_one(model, sources_of(parts, model.reads))


@cache
def _index() -> bytes:
    """The page. All its modules are loaded at once, and not one after the other as they import each other."""
    scripts = [f"studio/{name}" for name in page_files(*PAGE)] + [
        f"studio/page/{name}" for name in page_files(*SHARED)
    ]
    unused = "studio/page/main.js"  # of the static page of a look
    preload = [
        f'<link rel="modulepreload" href="{each}">'
        for each in scripts
        if each.endswith(".js") and each != unused
    ]
    head = files(PAGE[0]).joinpath(PAGE[1], "head.html").read_text(encoding="utf-8")
    head = Template(head).substitute(preload="\n".join(preload))
    return (
        document_start("Regard studio", head, body=STUDIO_TAG)
        + studio_frame("Regard", "studio")
        + PAGE_END
    ).encode()


async def _watched(client: AsyncClient, search: Generation, look: LiveLook) -> Events:
    """A look at the tokens so far, each when the one before it is complete; at last one at the whole output.

    After each there is a pause of twice its time: on a loaded machine, looks do not hold up the search.
    """
    tokens: list[int] = []
    pending: asyncio.Task[tuple[bytes, float]] | None = None
    next_look = time.monotonic() + WATCH_SECONDS

    async def timed(part: LiveLook) -> tuple[bytes, float]:
        began = time.monotonic()
        (seen,) = await client.results([part])
        return seen, time.monotonic() - began

    async with aclosing(client.tokens(search)) as items:
        try:
            async for item in items:
                if pending is not None and pending.done():
                    seen, seconds = pending.result()
                    yield _look_event(seen, last=False)
                    pending, next_look = (
                        None,
                        time.monotonic() + max(WATCH_SECONDS - seconds, 2 * seconds),
                    )
                if not isinstance(item, int):
                    (whole,) = await client.results([replace(look, output=item[0].token_ids)])
                    yield _look_event(whole, last=True)
                    continue
                tokens.append(item)
                if pending is None and time.monotonic() >= next_look:
                    pending = asyncio.ensure_future(timed(replace(look, output=tuple(tokens))))
        finally:
            if pending is not None:
                pending.cancel()


def _look_event(look: bytes, *, last: bool) -> bytes:
    """The JSON of a look is one line."""
    return b'data: {"last": %s, "look": %s}\n\n' % (b"true" if last else b"false", look)
