"""The API of OpenAI's servers, asked by OpenAI's own package over real sockets."""

import base64
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
openai = pytest.importorskip("openai", reason="needs the package openai")

from regard.serving.scheduler.scheduler import SchedulerLimits  # noqa: E402
from support.predictors import classifier, language_model, replace_step, translator  # noqa: E402
from support.servers import PATIENCE, Running, served  # noqa: E402

MODELS = {"lines": language_model(), "rnn": translator(decoder="rnn"), "labels": classifier()}
SAMPLED = {"temperature": 2.0, "seed": 3, "max_tokens": 12, "extra_body": {"min_length": 12}}
SAME = {"sample": True, "temperature": 2.0, "seed": 3, "max_length": 12, "min_length": 12}


def client(running: Running, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{running.port}/v1", api_key=key, max_retries=0, timeout=PATIENCE
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


@pytest.fixture(scope="module")
def asked(server) -> Iterator[openai.OpenAI]:
    with client(server) as made:
        yield made


def count(model: str, text: str) -> int:
    return len(MODELS[model].encode(text)[0])


def test_models_are_listed(asked):
    assert [each.id for each in asked.models.list()] == list(MODELS)
    card = asked.models.retrieve("rnn")
    assert (card.id, card.object, card.owned_by) == ("rnn", "model", "regard")
    with pytest.raises(openai.NotFoundError) as caught:
        asked.models.retrieve("gpt")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_chat_is_refused_with_what_to_do_instead(asked, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        asked.chat.completions.create(
            model="lines", messages=[{"role": "user", "content": "hello"}], stream=stream
        )
    assert caught.value.param == "messages"
    assert "no chat template" in caught.value.message
    assert "send it to /v1/completions" in caught.value.message


@pytest.mark.parametrize("model", ["lines", "rnn"])
def test_a_completion_is_what_predict_gives(asked, model):
    prompts = ["the cat sat", "a dog"]
    answer = asked.completions.create(model=model, prompt=prompts, max_tokens=7)
    wanted = MODELS[model].outputs(prompts, max_length=7)
    assert (answer.object, answer.model, answer.system_fingerprint) == (
        "text_completion",
        model,
        "7",
    )
    for choice, (output,) in zip(answer.choices, wanted, strict=True):
        assert choice.text == output.text
        assert choice.finish_reason == ("stop" if output.finish_reason == "end" else "length")
        assert choice.logprobs is None
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.prompt_tokens == sum(count(model, prompt) for prompt in prompts)
    assert answer.usage.completion_tokens == sum(len(output.tokens) for (output,) in wanted)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_samples_depend_on_their_seed(asked):
    answer = asked.completions.create(
        model="rnn", prompt=["a dog", "the"], n=3, top_p=0.9, **SAMPLED
    )
    wanted = MODELS["rnn"].outputs(["a dog", "the"], num_hypotheses=3, top_p=0.9, **SAME)
    assert [each.text for each in answer.choices] == [
        one.text for outputs in wanted for one in outputs
    ]
    assert len({each.text for each in answer.choices}) > 1
    free = {**SAMPLED, "seed": openai.omit}
    answers = {
        asked.completions.create(model="rnn", prompt="a dog", **free).choices[0].text
        for _ in range(4)
    }
    assert len(answers) > 1


def test_temperature_0_is_a_search_and_n_a_beam(asked):
    answer = asked.completions.create(
        model="rnn", prompt="a dog", temperature=0, top_p=1, n=2, best_of=4, max_tokens=5
    )
    wanted = MODELS["rnn"].outputs(
        ["a dog"], beam_size=4, num_hypotheses=4, scores=True, max_length=5
    )[0]
    mean = {each.text: each.log_probability / len(each.log_probabilities) for each in wanted}
    assert [each.text for each in answer.choices] == sorted(mean, key=mean.get, reverse=True)[:2]
    assert answer.usage.completion_tokens == sum(len(each.tokens) for each in wanted)


def test_log_probabilities_and_an_echo(asked):
    prompt = "the cat sat"
    answer = asked.completions.create(
        model="lines", prompt=prompt, max_tokens=3, logprobs=0, echo=True
    )
    (choice,), model = answer.choices, MODELS["lines"]
    assert (
        choice.text
        == prompt + model.predict([prompt], max_length=3)[0]
        == "".join(choice.logprobs.tokens)
    )
    given, tokens = count("lines", prompt), choice.logprobs.tokens
    assert choice.logprobs.text_offset == [
        len("".join(tokens[:number])) for number in range(len(tokens))
    ]
    score = model.score([prompt])[0].log_probabilities
    assert choice.logprobs.token_logprobs[:given] == pytest.approx(score[:given], abs=1e-4)
    (output,) = model.outputs([prompt], max_length=3, scores=True)[0]
    generated = output.log_probabilities[: len(output.tokens)]
    assert choice.logprobs.token_logprobs[given:] == pytest.approx(generated, abs=1e-4)
    assert answer.usage.completion_tokens == len(tokens) - given
    answer = asked.completions.create(
        model="lines", prompt=prompt, max_tokens=0, logprobs=0, echo=True
    )
    assert (answer.choices[0].text, answer.usage.completion_tokens) == (prompt, 0)
    assert answer.choices[0].logprobs.token_logprobs == pytest.approx(score[:given], abs=1e-4)


def test_stop_strings_end_a_completion(asked):
    whole = MODELS["rnn"].predict(["a dog"], **SAME)[0]
    stop = whole[len(whole) // 2 :][:2]
    for options in ({}, {"logprobs": 0}):
        (choice,) = asked.completions.create(
            model="rnn", prompt="a dog", stop=["\0", stop], **options, **SAMPLED
        ).choices
        assert (choice.text, choice.finish_reason) == (whole[: whole.find(stop)], "stop")


@pytest.mark.parametrize("echo", [False, True])
def test_alternatives_are_those_of_the_model(asked, echo):
    """The k most likely tokens, and the one that was chosen, by their texts."""
    options = {"max_tokens": 6, "temperature": 2.0, "seed": 3}
    answer = asked.completions.create(
        model="lines", prompt="the cat", logprobs=3, n=2, echo=echo, **options
    )
    model = MODELS["lines"]
    own = {"sample": True, "temperature": 2.0, "seed": 3, "max_length": 6}
    outputs = model.outputs(["the cat"], num_hypotheses=2, top_logprobs=3, **own)[0]
    given = count("lines", "the cat") if echo else 0
    for choice, output in zip(answer.choices, outputs, strict=True):
        found = choice.logprobs
        assert len(found.top_logprobs) == len(found.tokens) == given + len(output.tokens)
        rows = zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True)
        for token, value, row in rows:
            assert row[token] == value
            assert sorted(row.values(), reverse=True)[0] == max(row.values())
            assert len(row) in (3, 4)
        for row, likely in zip(found.top_logprobs[given:], output.top_logprobs, strict=False):
            values = sorted(row.values(), reverse=True)[:3]
            assert values == pytest.approx([each.log_probability for each in likely], abs=1e-4)
    without = asked.completions.create(model="lines", prompt="the cat", logprobs=0, **options)
    assert without.choices[0].logprobs.top_logprobs is None


@pytest.mark.parametrize("options", [{}, {"logprobs": 0}], ids=["pieces", "whole"])
def test_a_stream_is_the_completion(asked, options):
    given = {"model": "rnn", "prompt": ["a dog", "the"], "n": 2, **options, **SAMPLED}
    whole = asked.completions.create(**given)
    chunks = list(
        asked.completions.create(**given, stream=True, stream_options={"include_usage": True})
    )
    *chunks, last = chunks
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in chunks)
    assert {(chunk.object, chunk.id) for chunk in chunks} == {("text_completion", last.id)}
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [
            choice.finish_reason
        ]
        if options:
            assert parts[-1].logprobs.tokens == choice.logprobs.tokens
            assert parts[-1].logprobs.text_offset == choice.logprobs.text_offset
            assert parts[-1].logprobs.token_logprobs == pytest.approx(
                choice.logprobs.token_logprobs, abs=1e-5
            )
        assert len(parts) > 1 or options


def test_a_stream_stops_and_echoes(asked):
    given = {"model": "lines", "prompt": "the cat", "echo": True, "stop": "a", **SAMPLED}
    whole = asked.completions.create(**given)
    assert whole.choices[0].text.startswith("the cat")
    assert whole.choices[0].text.count("a") == 1
    assert "".join(
        chunk.choices[0].text for chunk in asked.completions.create(**given, stream=True)
    ) == (whole.choices[0].text)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"extra_body": {"top_logprobs": 3}}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"n": 2, "stream": True}, "n"),
        ({"best_of": 2, "temperature": 1, "stream": True}, "best_of"),
        ({"stream": True, "extra_body": {"beam_size": 3}}, "beam_size"),
        ({"echo": True}, "echo"),
        ({"model": "labels"}, "model"),
        ({"temperature": -1}, "temperature"),
        ({"extra_body": {"max_length": 3}}, "max_length"),
        ({"extra_body": {"beam_size": 0}}, "beam_size"),
        ({"extra_body": {"tools": []}}, None),
        ({"prompt": [1, 2]}, None),
    ],
    ids=lambda value: (
        None if value is None else "+".join(value) if isinstance(value, dict) else value
    ),
)
def test_bad_requests_are_errors_of_openai(asked, given, param):
    with pytest.raises(openai.BadRequestError) as caught:
        asked.completions.create(**{"model": "rnn", "prompt": "a dog", **given})
    error = caught.value
    assert (error.type, error.param, error.body["code"]) == ("invalid_request_error", param, None)
    assert "wanted" in error.body["message"]


def test_zeros_and_labels_of_users_are_accepted(asked):
    asked.completions.create(
        model="rnn",
        prompt="a",
        user="me",
        presence_penalty=0,
        frequency_penalty=0,
        logit_bias={},
        max_tokens=1,
    )


def test_keys_and_overload_are_errors_of_openai(monkeypatch):
    gate, step = threading.Event(), type(MODELS["rnn"].model.decoder).step
    waits = threading.Event()

    def slow(*given):
        waits.set()
        assert gate.wait(PATIENCE)
        return step(*given)

    replace_step(monkeypatch, MODELS["rnn"].model.decoder, slow)
    limits = SchedulerLimits(slots=1, queued_jobs=1)
    with (
        served({"rnn": MODELS["rnn"]}, limits, keys=["secret"]) as running,
        client(running, "other") as other,
        client(running, "secret") as mine,
    ):
        with pytest.raises(openai.AuthenticationError) as caught:
            other.completions.create(model="rnn", prompt="a")
        assert caught.value.code == "invalid_api_key"
        given = {"model": "rnn", "prompt": "a", "max_tokens": 2}
        threads = [threading.Thread(target=mine.completions.create, kwargs=given) for _ in range(2)]
        threads[0].start()
        assert waits.wait(PATIENCE)
        threads[1].start()
        try:
            end = time.monotonic() + PATIENCE
            while running.engine.stats().queued_jobs < 1:  # the queue is full then
                assert time.monotonic() < end
                time.sleep(0.005)
            with pytest.raises(openai.RateLimitError) as caught:
                mine.completions.create(**given)
        finally:
            gate.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert caught.value.code == "rate_limit_exceeded"
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_an_error_in_a_stream_reaches_the_client(asked, monkeypatch):
    decoder = MODELS["rnn"].model.decoder
    step, calls = type(decoder).step, []

    def failing(*given):
        calls.append(1)
        if len(calls) > 6:
            raise RuntimeError("a fault")
        return step(*given)

    replace_step(monkeypatch, decoder, failing)
    given = {"model": "rnn", "prompt": "a dog", "stream": True, **SAMPLED}
    message = "wanted an answer of the model; got RuntimeError"
    with pytest.raises(openai.APIError, match=message), asked.completions.create(**given) as stream:
        list(stream)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "encoding", ["float", "base64", openai.omit], ids=["float", "base64", "default"]
)
def test_embeddings_are_those_of_embed(asked, model, encoding):
    """The client asks for base64 by default, and decodes it."""
    texts = ["the cat sat", "a dog", "the red mat"]
    answer = asked.embeddings.create(model=model, input=texts, encoding_format=encoding)
    assert (answer.object, answer.model) == ("list", model)
    for index, (each, wanted) in enumerate(
        zip(answer.data, MODELS[model].embed(texts), strict=True)
    ):
        vector = each.embedding
        if encoding == "base64":  # asked for explicitly, it is given as it is
            assert isinstance(vector, str)
            vector = np.frombuffer(base64.b64decode(vector), "<f4").tolist()
        assert (each.object, each.index) == ("embedding", index)
        assert vector == pytest.approx(wanted.tolist(), abs=1e-5)
    assert (
        answer.usage.prompt_tokens
        == answer.usage.total_tokens
        == sum(count(model, text) for text in texts)
    )
    (one,) = asked.embeddings.create(
        model=model, input="a dog", dimensions=len(vector), user="me"
    ).data
    assert one.embedding == pytest.approx(MODELS[model].embed(["a dog"])[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"input": [1, 2, 3]}, "input"),
        ({"input": [[1, 2], [3]]}, "input"),
        ({"input": "a dog", "dimensions": 3}, "dimensions"),
        ({"input": []}, None),
        ({"input": "x " * 5000}, "text 1"),
    ],
)
def test_wrong_embedding_requests_are_refused(asked, given, param):
    with pytest.raises(openai.BadRequestError) as caught:
        asked.embeddings.create(model="rnn", **given)
    assert caught.value.param == param
