"""Prompts that are read at once: equal to one step for each of their tokens, and to a forward pass."""

import pytest
import torch

from regard.decoding.request import Request
from regard.decoding.search import search, stream
from regard.model.capture import capture_attention
from regard.runtime import engines
from regard.runtime.engines import PyTorchDecoder, PyTorchEngine
from support.models import DECODERS, VOCABULARY, decoder, memory
from support.short_contexts import CONTEXT, EXTRAPOLATING, language_model, recomputed, task

STEPWISE = {name for name in DECODERS if name.startswith("conv")}
PROMPTS = [[6, 7, 8, 9, 10, 5, 6, 7, 9], [8, 9, 6, 5, 7, 10, 10]]  # both are longer than the context
OPTIONS = [{}, {"sample": True, "temperature": 0.8, "seed": 3}, {"no_repeat_ngram_size": 2}]


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """A number for each step of a search by PyTorch: the rows that it read."""
    taken, step = [], PyTorchDecoder.step

    def counted(self, tokens, state):
        taken.append(len(tokens))
        return step(self, tokens, state)

    monkeypatch.setattr(engines, "ENGINES", (PyTorchEngine(),))
    monkeypatch.setattr(PyTorchDecoder, "step", counted)
    return taken


def requests() -> list[Request]:
    return [Request(None, 0, prompt, given=len(prompt)) for prompt in PROMPTS]


@pytest.mark.parametrize("sourced", [False, True], ids=["language model", "with a memory"])
@pytest.mark.parametrize("name", DECODERS)
@torch.inference_mode()
def test_equals_steps(name, sourced):
    made = decoder(name) if sourced else decoder(name, None)
    read = memory() if sourced else None
    tokens = torch.randint(5, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    stepped, filled = (made.start(read, batch=3, capacity=12) for _ in range(2))
    for column in tokens[:, :7].unbind(1):
        _, stepped = made.step(column, stepped)
    filled = made.prefill(tokens[:, :7], filled)
    assert (filled is None) == (name in STEPWISE)
    for column in tokens[:, 7:].unbind(1) if filled is not None else ():
        wanted, stepped = made.step(column, stepped)
        logits, filled = made.step(column, filled)
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["transformer rotary", "transformer learned", "transformer alibi", "gru luong"])
@torch.inference_mode()
def test_searches_take_steps_for_the_output_only(name, options, steps, monkeypatch):
    given = task(language_model(name), **options)
    found = dict(search(given, requests()))
    shortest, longest = sorted(map(len, PROMPTS))
    ahead = len(steps)
    assert ahead == given.config.max_length + longest - shortest
    monkeypatch.setattr(PyTorchDecoder, "prefill", lambda self, tokens, state: None)
    stepped = dict(search(given, requests()))
    assert len(steps) - ahead >= ahead + shortest  # more where a window slides, whose second half is read again
    for index, prompt in enumerate(PROMPTS):
        (one,), (other,) = found[index], stepped[index]
        assert one.tokens == other.tokens
        assert list(one.tokens[: len(prompt)]) == prompt
        own, others = (each.log_probabilities[len(prompt) :] for each in (one, other))
        assert own == pytest.approx(others, abs=1e-5)
        assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize("name", ["transformer rotary", "transformer learned", "transformer alibi", "gru luong"])
@torch.inference_mode()
def test_equals_recomputing_over_the_window(name, steps):
    made = language_model(name)
    for index, (hypothesis,) in search(task(made), requests()):
        rows = recomputed(made, hypothesis.tokens, slides=name not in EXTRAPOLATING)
        wanted = [float(row[token]) for row, token in zip(rows, hypothesis.tokens, strict=True)]
        start = len(PROMPTS[index])
        assert start > CONTEXT
        assert hypothesis.log_probabilities[start:] == pytest.approx(wanted[start:], abs=1e-5)


@torch.inference_mode()
def test_a_stream_has_the_tokens_of_its_prompt_too(steps):
    given = task(language_model("transformer rotary"))
    (request, _), (((_, (wanted,)), *_)) = requests(), sorted(search(given, requests()))
    assert tuple(stream(given, request)) == wanted.tokens


@torch.inference_mode()
def test_captured_calls_have_one_query_each(steps):
    given = task(language_model("transformer alibi"))
    with capture_attention() as calls:
        list(search(given, requests()[:1]))
    assert {call.spec.query.shape[-2] for call in calls} == {1}


def test_a_beam_is_searched_step_by_step(steps):
    given = task(language_model("transformer rotary"), beam_size=2)
    list(search(given, requests()[:1]))
    assert len(steps) >= given.config.max_length + len(PROMPTS[0])
