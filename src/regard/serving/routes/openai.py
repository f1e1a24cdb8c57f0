"""The API of OpenAI's servers: `/v1/models`, `/v1/completions`, `/v1/embeddings`, for clients that speak it."""

import base64
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate
from math import isnan
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace as replace_fields
from starlette.responses import Response

from regard.core.errors import InvalidArgument, RegardError
from regard.serving.http.events import Events, EventStream, event
from regard.serving.http.routing import Call, Route
from regard.serving.http.schemas import options_of, streamable
from regard.serving.http.service import TEXT, Service, decoded, json_answer
from regard.serving.routes.openai_schemas import (
    Choice,
    Completion,
    CompletionRequest,
    EmbeddedText,
    EmbeddingRequest,
    Embeddings,
    EmbeddingUsage,
    ErrorAnswer,
    Logprobs,
    ModelCard,
    ModelCards,
    Usage,
    error_answer,
    error_detail,
)
from regard.serving.scheduler.async_client import AsyncClient
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Embedding, Generation
from regard.tasks.pipeline import Output

MOST_CHOICES, MOST_STOPS, MOST_LOGPROBS = 128, 4, 20
DONE = b"data: [DONE]\n\n"
# Decode options that have another name in this API, and fields of it that no model here supports.
OTHER_NAMES = {
    "max_length": "max_tokens",
    "num_hypotheses": "n",
    "sample": "temperature",
    "top_logprobs": "logprobs",
}
UNSUPPORTED = ("suffix", "logit_bias", "frequency_penalty", "presence_penalty")


class OpenAIRoutes:
    def __init__(self, service: Service) -> None:
        self.service, self.began = service, int(time.time())

    def routes(self) -> list[Route]:
        complete = "Completions by a language model, or outputs for sources"
        routes = [
            Route(
                "GET",
                "/v1/models",
                self.list_models,
                "The models, as OpenAI lists them",
                answer=ModelCards,
            ),
            Route(
                "GET",
                "/v1/models/{model}",
                self.show_model,
                "One model, as OpenAI lists it",
                answer=ModelCard,
            ),
            Route(
                "POST",
                "/v1/completions",
                self.complete,
                complete,
                CompletionRequest,
                Completion,
                example=self.example,
            ),
            Route(
                "POST",
                "/v1/chat/completions",
                self.refuse_chat,
                "Refused: models here have no chat template",
            ),
            Route(
                "POST",
                "/v1/embeddings",
                self.embed,
                "Vectors of texts",
                EmbeddingRequest,
                Embeddings,
            ),
        ]
        return [replace(route, problem=error_answer, error=ErrorAnswer) for route in routes]

    def example(self) -> object:
        models = [
            model.name for model in self.service.engine.model_info.values() if model.generates
        ]
        return {"model": next(iter(models), "model"), "prompt": TEXT, "max_tokens": 20}

    async def list_models(self, call: Call) -> Response:
        return json_answer(
            ModelCards([ModelCard(name, self.began) for name in self.service.engine.model_info])
        )

    async def show_model(self, call: Call) -> Response:
        return json_answer(ModelCard(self.service.model(call.parameters["model"]).name, self.began))

    async def complete(self, call: Call) -> Response:
        asked = decoded(call.body, CompletionRequest)
        model, prompts = self.service.text_model(asked.model), self.service.inputs(asked.prompt)
        _check(asked, model)
        head = Completion(
            id=f"cmpl-{call.id}", created=int(time.time()), model=model.name, choices=[]
        )
        batch = _Batch(asked, prompts, head)
        client = self.service.engine_client(call, model)
        if asked.stream:
            return await EventStream.begin(batch.events(client))
        return json_answer(batch.answer(await client.results(batch.works()), client.version))

    async def refuse_chat(self, call: Call) -> Response:
        """Messages become a prompt by a chat template, which checkpoints do not have: any other would be made up."""
        wanted, got = "a prompt: models here have no chat template", "a request with messages"
        remedy = "Write the messages as one text, as the model was trained on it, and send it to /v1/completions."
        raise InvalidArgument("messages", wanted=wanted, got=got, remedy=remedy)

    async def embed(self, call: Call) -> Response:
        asked = decoded(call.body, EmbeddingRequest)
        model = self.service.text_model(asked.model)
        given = [asked.input] if isinstance(asked.input, str) else asked.input
        texts = [each for each in given if isinstance(each, str)]
        if len(texts) < len(given):
            wanted, remedy = (
                "a text, or a list of texts",
                "Send texts: a model has its own tokenizer.",
            )
            raise InvalidArgument("input", wanted=wanted, got="token ids", remedy=remedy)
        works = [Embedding(text) for text in self.service.inputs(texts)]
        vectors = await self.service.engine_client(call, model).results(works)
        if asked.dimensions not in (None, len(vectors[0])):
            wanted, remedy = f"{len(vectors[0])}, those of the model", "Leave it out."
            raise InvalidArgument(
                "dimensions", wanted=wanted, got=str(asked.dimensions), remedy=remedy
            )
        encode = _in_base64 if asked.encoding_format == "base64" else list
        data = [EmbeddedText(index, encode(each)) for index, each in enumerate(vectors)]
        count = call.record.input_tokens
        return json_answer(Embeddings(data, model.name, EmbeddingUsage(count, count)))


def _in_base64(vector: Sequence[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()


def _check(asked: CompletionRequest, model: ModelInfo) -> None:
    """Refuse what this API has and no model here does, and what contradicts itself."""

    def refuse(argument: str, wanted: str, remedy: str = "Leave it out.") -> None:
        raise InvalidArgument(
            argument, wanted=wanted, got=repr(getattr(asked, argument)), remedy=remedy
        )

    if not model.generates:
        wanted = "a model that generates text"
        got = f"one that gives {model.gives}"
        raise InvalidArgument("model", wanted=wanted, got=got, remedy="Use /predict.")
    for name in UNSUPPORTED:
        if getattr(asked, name):
            refuse(name, "nothing: it is not supported")
    for name, other in OTHER_NAMES.items():
        if getattr(asked, name) is not None:
            refuse(name, f"nothing: it is called {other} here", f"Give {other}.")
    if asked.echo and model.reads:
        refuse("echo", "false for a model whose prompt is its source")
    if asked.logprobs is not None and not 0 <= asked.logprobs <= MOST_LOGPROBS:
        refuse("logprobs", f"0 to {MOST_LOGPROBS}", "Change it.")
    if asked.max_tokens is not None and asked.max_tokens < (0 if asked.echo else 1):
        refuse("max_tokens", "at least 1, or 0 with echo", "Raise it.")
    if not 1 <= _n(asked) <= MOST_CHOICES:
        refuse("n", f"1 to {MOST_CHOICES}", "Change it.")
    if not _n(asked) <= _candidates(asked) <= MOST_CHOICES:
        refuse("best_of", f"n = {_n(asked)} to {MOST_CHOICES}", "Change it.")
    if len(_stops(asked)) > MOST_STOPS:
        refuse("stop", f"at most {MOST_STOPS} strings", "Choose some of them.")
    if asked.stream_options is not None and not asked.stream:
        refuse("stream_options", "nothing without stream")
    if asked.stream and _candidates(asked) > _n(asked):
        refuse("best_of", "n in a stream")
    if asked.stream and _n(asked) > 1 and not _sampling(asked).get("sample"):
        refuse("n", "1 in a stream without sampling", "Set temperature, or do not stream.")


def _n(asked: CompletionRequest) -> int:
    return 1 if asked.n is None else asked.n


def _candidates(asked: CompletionRequest) -> int:
    """How many outputs are computed for each prompt."""
    return _n(asked) if asked.best_of is None else asked.best_of


def _stops(asked: CompletionRequest) -> list[str]:
    return [asked.stop] if isinstance(asked.stop, str) else asked.stop or []


def _sampling(asked: CompletionRequest) -> dict[str, Any]:
    """Decode options: where neither temperature nor top_p are given, those of the recipe; temperature 0 is a search."""
    options = options_of(asked)
    stops = tuple(each for each in _stops(asked) if each)
    options |= {"stop": stops or None, "top_logprobs": asked.logprobs or 0}
    temperature, top_p = options.pop("temperature", None), options.pop("top_p", None)
    if temperature == 0:
        return {**options, "sample": False}
    if temperature is not None:
        options |= {"sample": True, "temperature": temperature}
    if top_p is not None and top_p != 1:
        options |= {"sample": True, "top_p": top_p}
    return options


class _Batch:
    """The choices of one request: works for the scheduler, and their outputs as an answer or as a stream."""

    def __init__(self, asked: CompletionRequest, prompts: Sequence[str], head: Completion) -> None:
        self.asked, self.prompts, self.head = asked, prompts, head
        self.n, self.candidates = _n(asked), _candidates(asked)
        self.prompt_tokens = self.completion_tokens = 0

    def works(self, *, each: int | None = None) -> list[Generation]:
        """A work for each prompt; or, of `each` choices of a prompt, one."""
        asked = self.asked
        options = _sampling(asked)
        options = (
            {**options, "num_hypotheses": self.candidates} if each is None else streamable(options)
        )
        if asked.max_tokens is not None:
            options["max_length"] = max(1, asked.max_tokens)
        # The draws of a choice depend on the seed and its number: without a seed, the number is random.
        first = 0 if "seed" in options else secrets.randbits(32)
        return [
            Generation(
                prompt,
                options,
                scores=asked.logprobs is not None or self.candidates > self.n,
                number=first + number,
                token_texts=True,
                echo=bool(asked.echo),
                widen_beam=each is None,
            )
            for number, prompt in enumerate(
                prompt for prompt in self.prompts for _ in range(each or 1)
            )
        ]

    def answer(self, results: Sequence[list[Output]], version: str) -> Completion:
        choices = []
        for index, outputs in enumerate(results):
            self.count(outputs)
            if self.candidates > self.n:
                outputs = sorted(outputs, key=self.mean_log_probability, reverse=True)
            choices += [
                self.choice(index * self.n + rank, one)
                for rank, one in enumerate(outputs[: self.n])
            ]
        return replace_fields(
            self.head, system_fingerprint=version, choices=choices, usage=self.usage
        )

    async def events(self, client: AsyncClient) -> Events:
        """The choices in pieces; whole where log-probabilities are asked for, which are known at the end."""
        begun = False
        try:
            async with aclosing(self.choices(client)) as choices:
                async for choice in choices:
                    yield event(
                        replace_fields(
                            self.head, system_fingerprint=client.version, choices=[choice]
                        )
                    )
                    begun = True
            if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
                yield event(
                    replace_fields(self.head, system_fingerprint=client.version, usage=self.usage)
                )
            yield DONE
        except RegardError as error:
            if not begun:
                raise
            yield event(error_detail(error))

    async def choices(self, client: AsyncClient) -> AsyncGenerator[Choice, None]:
        if self.asked.logprobs is not None or self.asked.max_tokens == 0:
            for index, outputs in enumerate(await client.results(self.works(each=self.n))):
                self.count(outputs, first=index % self.n == 0)
                yield self.choice(index, outputs[0])
            return
        async with aclosing(client.streams(self.works(each=self.n))) as items:
            async for index, item in items:
                if isinstance(item, str):
                    yield Choice(item, index)
                else:
                    self.count(item, first=index % self.n == 0)
                    yield replace_fields(self.choice(index, item[0]), text="")

    def count(self, outputs: Sequence[Output], *, first: bool = True) -> None:
        """Count tokens; those of the prompt once for all its outputs."""
        given = outputs[0].input_tokens or 0
        self.prompt_tokens += given if first else 0
        if self.asked.max_tokens != 0:
            self.completion_tokens += sum(
                len(each.tokens) - (given if self.asked.echo else 0) for each in outputs
            )

    @property
    def usage(self) -> Usage:
        return Usage.of(self.prompt_tokens, self.completion_tokens)

    def choice(self, index: int, output: Output) -> Choice:
        count = output.input_tokens if self.asked.max_tokens == 0 else len(output.tokens)
        tokens = list(output.token_texts or ())[:count]
        logprobs = None
        if self.asked.logprobs is not None:
            offsets = [0, *accumulate(map(len, tokens))][: len(tokens)]
            values = (output.log_probabilities or ())[: len(tokens)]
            logprobs = Logprobs(
                tokens, [None if isnan(value) else value for value in values], offsets
            )
            if self.asked.logprobs > 0:
                logprobs.top_logprobs = _top_logprobs(output, tokens)
        reason: Literal["stop", "length"] = "stop" if output.finish_reason == "end" else "length"
        reason = "length" if self.asked.max_tokens == 0 else reason
        return Choice("".join(tokens), index, reason, logprobs)

    def mean_log_probability(self, output: Output) -> float:
        """Of the generated tokens, by which the best candidates are chosen."""
        own = (output.log_probabilities or ())[output.input_tokens if self.asked.echo else 0 :]
        return sum(own) / max(1, len(own))


def _top_logprobs(output: Output, tokens: Sequence[str]) -> list[dict[str, float] | None]:
    """Of each token of a choice, the most likely ones and itself; None where nothing precedes it."""
    found: list[dict[str, float] | None] = []
    values = output.log_probabilities or ()
    for token, number, value, row in zip(
        tokens, output.token_ids, values, output.top_logprobs or (), strict=False
    ):
        if isnan(value):
            found.append(None)
            continue
        # Several tokens may have one text: the most likely of them comes first.
        texts: dict[str, float] = {}
        for each in row:
            text = token if each.token_id == number else each.text
            texts.setdefault(text, each.log_probability)
        texts[token] = value
        found.append(texts)
    return found
