"""Prompts that are read at once: equal to one step for each of their tokens, and to a forward pass."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from regard.generation.batch_plan import BatchLimits
from regard.generation.choose.stop_strings import StopCondition
from regard.generation.engines import selection
from regard.generation.engines.cpu.decoder import NativeDecoder
from regard.generation.engines.cpu.recurrent import NativeRnnDecoder
from regard.generation.engines.torch import PyTorchDecoder, PyTorchEngine
from regard.generation.request import GenerationRequest, plan_requests
from regard.generation.search import Search, search, stream
from regard.generation.search_batch import SearchBatch
from regard.model.capture import capture_attention
from support.models import DECODERS, VOCABULARY, decoder, memory
from support.search import Letters
from support.short_contexts import CONTEXT, EXTRAPOLATING, language_model, recomputed, task

STEPWISE = {name for name in DECODERS if name.startswith("conv")}
PROMPTS = [
    [6, 7, 8, 9, 10, 5, 6, 7, 9],
    [8, 9, 6, 5, 7, 10, 10],
]  # both are longer than the context
OPTIONS = [{}, {"sample": True, "temperature": 0.8, "seed": 3}, {"no_repeat_ngram_size": 2}]


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """A number for each step of a search by PyTorch: the rows that it read."""
    taken, step = [], PyTorchDecoder.step

    def counted(self, tokens, state):
        taken.append(len(tokens))
        return step(self, tokens, state)

    monkeypatch.setattr(selection, "ENGINES", (PyTorchEngine(),))
    monkeypatch.setattr(PyTorchDecoder, "step", counted)
    return taken


def requests() -> list[GenerationRequest]:
    return [GenerationRequest(None, 0, prompt, given=len(prompt)) for prompt in PROMPTS]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("sourced", [False, True], ids=["language model", "with a memory"])
@pytest.mark.parametrize("name", DECODERS)
@torch.inference_mode()
def test_equals_steps(name, sourced, beams):
    made = decoder(name) if sourced else decoder(name, None)
    read = memory() if sourced else None
    tokens = torch.randint(5, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    stepped, filled = (made.start(read, batch=3, capacity=12, beams=beams) for _ in range(2))
    for column in tokens[:, :7].unbind(1):
        _, stepped = made.step(column.repeat_interleave(beams), stepped)
    filled = made.prefill(tokens[:, :7], filled)
    assert (filled is None) == (name in STEPWISE)
    for column in tokens[:, 7:].unbind(1) if filled is not None else ():
        both = (
            column.repeat_interleave(beams) - torch.arange(beams).repeat(3) % 2
        )  # hypotheses that differ
        wanted, stepped = made.step(both, stepped)
        logits, filled = made.step(both, filled)
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-5)
        parents = torch.tensor([[1, 0, 1]] * 3)[:, :beams] % beams
        stepped, filled = stepped.follow(parents), filled.follow(parents)


def engine_decoder(name, compiled):
    model = language_model(name)
    return selection.decoder_for(model, max_length=20) if compiled else PyTorchDecoder(
        model.decoder
    ), model


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("compiled", [False, True], ids=["PyTorch", "compiled"])
@pytest.mark.parametrize("name", DECODERS)
@torch.inference_mode()
def test_a_prompt_is_admitted_beside_others(name, compiled, beams):
    """A state that has stepped fewer and more times than the prompt is long; the others go on as before."""
    made, _model = engine_decoder(name, compiled)
    if compiled and not made.compiled:
        pytest.skip("PyTorch executes this decoder, or there is no C++ compiler here")
    texts = torch.randint(5, VOCABULARY, (4, 60), generator=torch.Generator().manual_seed(1))

    def start(batch):
        return made.start(None, batch=batch, capacity=2 * 40, beams=beams)

    def step(state, columns):
        logits, state = made.step(torch.tensor(columns).repeat_interleave(beams), state)
        return logits.clone().view(len(columns), beams, -1), state

    state, rows = start(4), []
    for column in texts[:, :40].T.tolist():
        logits, state = step(state, column)
        rows.append(logits)
    wanted = torch.stack(rows, 1)  # of each text, read from its start
    state, read = start(2), [0, 0]  # tokens of the sequences in both slots
    slots = [0, 1]
    for moment in range(45):
        if moment in (3, 35):  # the prompts are longer and shorter than the steps so far
            fresh = made.start(None, batch=1, capacity=17)
            filled = made.prefill(texts[slots[1] + 1 :][:1, :17], fresh)
            assert (filled is None) == (name in STEPWISE)
            if filled is None:
                return
            state = state.admit(torch.tensor([1]), filled)
            slots[1], read[1] = slots[1] + 1, 17
        columns = [
            texts[slot, min(count, 39)].item() for slot, count in zip(slots, read, strict=True)
        ]
        logits, state = step(state, columns)
        for own, slot, count in zip(logits, slots, read, strict=True):
            if count < 40:  # a finished sequence steps on, and is not looked at
                torch.testing.assert_close(own, wanted[slot][count], atol=1e-5, rtol=1e-5)
        read = [count + 1 for count in read]
    assert slots == [0, 3]
    assert read[0] > 40


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "name", ["transformer rotary", "transformer learned", "transformer alibi", "gru luong"]
)
@torch.inference_mode()
def test_searches_take_steps_for_the_output_only(name, options, steps, monkeypatch):
    given = task(language_model(name), **options)
    found = dict(search(given, requests()))
    shortest, longest = sorted(map(len, PROMPTS))
    ahead = len(steps)
    assert ahead == given.config.max_length + longest - shortest
    monkeypatch.setattr(PyTorchDecoder, "prefill", lambda self, tokens, state: None)
    stepped = dict(search(given, requests()))
    assert (
        len(steps) - ahead >= ahead + shortest
    )  # more where a window slides, whose second half is read again
    for index, prompt in enumerate(PROMPTS):
        (one,), (other,) = found[index], stepped[index]
        assert one.tokens == other.tokens
        assert list(one.tokens[: len(prompt)]) == prompt
        own, others = (each.log_probabilities[len(prompt) :] for each in (one, other))
        assert own == pytest.approx(others, abs=1e-5)
        assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize(
    "name", ["transformer rotary", "transformer learned", "transformer alibi", "gru luong"]
)
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


@pytest.mark.parametrize(
    "options", [{}, {"num_hypotheses": 2}, {"beam_groups": 2, "diversity_penalty": 0.5}], ids=str
)
@pytest.mark.parametrize(
    "name", ["transformer rotary", "transformer learned", "transformer alibi", "gru luong"]
)
@torch.inference_mode()
def test_a_beam_takes_steps_for_the_output_only(name, options, steps, monkeypatch):
    given = task(language_model(name), beam_size=4, **options)
    found, ahead = dict(search(given, requests()[:1])), len(steps)
    monkeypatch.setattr(PyTorchDecoder, "prefill", lambda self, tokens, state: None)
    stepped = dict(search(given, requests()[:1]))
    assert len(steps) - ahead >= ahead + len(PROMPTS[0])
    assert [each.tokens for each in found[0]] == [each.tokens for each in stepped[0]]
    assert [each.score for each in found[0]] == pytest.approx(
        [each.score for each in stepped[0]], abs=1e-5
    )


def prompts(lengths) -> list[GenerationRequest]:
    """Prompts of different lengths, several of them longer than an output."""
    texts = torch.randint(
        5, VOCABULARY, (len(lengths), 60), generator=torch.Generator().manual_seed(4)
    ).tolist()
    cut = [text[:length] for text, length in zip(texts, lengths, strict=True)]
    return [GenerationRequest(None, 0, prompt, given=len(prompt)) for prompt in cut]


def long_task(name, **options):
    """Of a language model whose window is longer than all prompts."""
    return replace(task(language_model(name), **options), context_length=None)


@pytest.mark.parametrize("slots", [2, 6], ids=["admitted later", "all at once"])
@pytest.mark.parametrize("compiled", [False, True], ids=["PyTorch", "compiled"])
@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sample": True, "seed": 3}], ids=str)
@pytest.mark.parametrize(
    "name", ["transformer", "transformer rotary", "transformer like Mistral", "gru luong"]
)
@torch.inference_mode()
def test_prompts_of_different_lengths(name, options, compiled, slots, monkeypatch):
    given = long_task(name, **options)
    planned = plan_requests(given, prompts([3, 40, 17, 1, 25, 39]))

    def hypotheses():
        if not compiled:
            monkeypatch.setattr(selection, "ENGINES", (PyTorchEngine(),))
        batch = Search.of(given, planned, slots)
        found = dict(batch.run())
        return [
            [(each.tokens, each.score) for each in found[index]] for index in range(len(planned))
        ], batch

    found, batch = hypotheses()
    assert {index: count for index, count in batch.batch.read.items() if count > 3} == {
        1: 40,
        2: 17,
        4: 25,
        5: 39,
    }
    for engine in (PyTorchDecoder, NativeDecoder, NativeRnnDecoder):
        monkeypatch.setattr(engine, "prefill", lambda self, tokens, state: None)
    stepped, batch = hypotheses()
    assert batch.batch.read == {}
    for own, others in zip(found, stepped, strict=True):
        assert [tokens for tokens, _ in own] == [tokens for tokens, _ in others]
        assert [score for _, score in own] == pytest.approx(
            [score for _, score in others], abs=1e-5
        )


@pytest.mark.parametrize("compiled", [False, True], ids=["PyTorch", "compiled"])
@pytest.mark.parametrize("options", [{}, {"beam_size": 3}], ids=str)
@pytest.mark.parametrize(
    "name", ["transformer", "transformer rotary", "transformer like Mistral", "gru luong"]
)
@torch.inference_mode()
def test_a_running_search_reads_a_prompt_at_once(name, options, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(selection, "ENGINES", (PyTorchEngine(),))
    given, chance = long_task(name, **options), random.Random(2)
    asked = prompts([3, 40, 17, 1, 25, 39, 30])
    planned = plan_requests(given, asked, [0] * len(asked))
    running, waiting, index_of, answers, read = (
        Search(given, BatchLimits(64, 64), 3),
        list(range(7)),
        {},
        {},
        {},
    )
    while waiting or len(running):
        if waiting and running.free and chance.random() < 0.5:
            index = waiting.pop(0)
            (number,) = running.admit([planned[index]])
            index_of[number] = index
            read[index] = running.batch.read.get(number, 0)
        if len(running):
            answers |= {index_of[number]: hypotheses for number, hypotheses in running.advance()[1]}
    assert read == {0: 0, 1: 40, 2: 17, 3: 0, 4: 25, 5: 39, 6: 30}
    assert running.batch.read == {}
    for engine in (PyTorchDecoder, NativeDecoder, NativeRnnDecoder):
        monkeypatch.setattr(engine, "prefill", lambda self, tokens, state: None)
    for index, request in enumerate(asked):
        ((_, wanted),) = search(replace(given, numbers=[0]), [request])
        assert [each.tokens for each in answers[index]] == [each.tokens for each in wanted]
        scores = [each.score for each in wanted]
        assert [each.score for each in answers[index]] == pytest.approx(scores, abs=1e-5)


CONSTRAINTS = {
    "banned": {"banned": ((6,), (7, 8))},
    "required": {"required": ((6, 9), (10,))},
    "both": {"banned": ((8,),), "required": ((9, 7),)},
    "stop strings": {"stops": StopCondition(Letters(), ("jj", "kkk"))},
}


@pytest.mark.parametrize("compiled", [False, True], ids=["PyTorch", "compiled"])
@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sample": True}], ids=str)
@pytest.mark.parametrize("name", CONSTRAINTS)
@torch.inference_mode()
def test_a_prompt_is_read_at_once_beside_constraints(name, options, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(selection, "ENGINES", (PyTorchEngine(),))
    given = long_task("transformer rotary", **options)
    requests = [each._replace(**CONSTRAINTS[name]) for each in prompts([40, 3, 25])]
    planned = plan_requests(given, requests)

    def hypotheses():
        batch = Search.of(given, planned, 3)
        found = dict(batch.run())
        return [found[index] for index in range(3)], batch.batch.read

    found, read = hypotheses()
    assert {index: count for index, count in read.items() if count > 3} == {0: 40, 2: 25}
    for engine in (PyTorchDecoder, NativeDecoder):
        monkeypatch.setattr(engine, "prefill", lambda self, tokens, state: None)
    stepped, read = hypotheses()
    assert read == {}
    for own, others in zip(found, stepped, strict=True):
        assert [each.tokens for each in own] == [each.tokens for each in others]
        scores = [each.score for each in others]
        assert [each.score for each in own] == pytest.approx(scores, abs=1e-5)
    if name == "stop strings":
        outputs = [
            each.tokens[request.given :]
            for request, (each, *_) in zip(requests, found, strict=True)
        ]
        assert any(len(each) < given.config.max_length for each in outputs)


@torch.inference_mode()
def test_a_prompt_whose_probabilities_are_wanted_is_read_step_by_step(steps):
    given, (request,) = long_task("transformer rotary"), prompts([30])
    ((_, (found,)),) = search(given, [request._replace(score_prompt=True)])
    assert len(steps) == 30 + given.config.max_length
    rows = recomputed(given.model, found.tokens, slides=False)
    wanted = [float(row[token]) for row, token in zip(rows, found.tokens, strict=True)]
    assert found.log_probabilities == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("given", "empty", "alone", "calls"),
    [
        ([20, 35], True, False, ["all 20"]),  # the rest of the longer one by steps
        ([20, 36], True, False, ["1: 36", "0: 20"]),  # too different: one by one, the longest first
        ([36, 20, 15], True, False, ["0: 36", "1: 20"]),
        ([2, 3], True, False, ["all 2"]),
        ([1, 3], True, False, []),
        ([2], True, False, ["all 2"]),
        ([16], True, True, ["all 16"]),
        ([15], True, True, []),  # a step of the batch reads a token of every short prompt
        ([20, 20], True, True, ["1: 20", "0: 20"]),
        ([16, 15, 17], False, False, ["2: 17", "0: 16"]),
        ([16], False, False, ["0: 16"]),
        ([0, 0], True, False, []),
    ],
)
@pytest.mark.parametrize("why", ["compiled", "each_alone"])
def test_which_prompts_are_read_at_once(given, empty, alone, calls, why):
    """All of them as far as the shortest; or those that are long enough, where outputs must not depend on others."""
    batch, done = object.__new__(SearchBatch), []
    batch.read = {}
    batch.plan = SimpleNamespace(
        half=False, decoder=SimpleNamespace(compiled=alone and why == "compiled")
    )
    batch.queue = SimpleNamespace(each_alone=alone and why == "each_alone")
    batch.requests = [GenerationRequest(None, 0, [5] * count, given=count) for count in given]
    batch.buffers = SimpleNamespace(
        prefill=lambda count: done.append(f"all {count}") or True,
        prefill_slot=lambda slot, count: done.append(f"{slot}: {count}") or True,
    )
    batch._read_prompts([*range(len(given))], [*range(len(given))], empty=empty)
    assert done == calls
    each = [call.split(": ") for call in calls if ": " in call]
    wanted = {int(slot): int(count) for slot, count in each}
    if calls and not each:
        wanted = dict.fromkeys(range(len(given)), int(calls[0].removeprefix("all ")))
    assert batch.read == wanted
