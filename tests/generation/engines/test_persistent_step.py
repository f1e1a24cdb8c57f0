"""A decoding step in one kernel against the same step in parts; in Triton's interpreter, which runs one program."""

import os
from dataclasses import replace

import pytest
import torch

from regard.core.sequence import Tokens
from regard.generation.engines.cuda.kernels import step
from regard.generation.engines.cuda.static_decoder import StaticDecoder
from regard.generation.engines.loop import GreedyTensors, SearchLoop
from regard.model.build import build
from regard.model.capture import capture_attention

if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs Triton's interpreter; on a GPU contracts/test_cuda.py compares both",
        allow_module_level=True,
    )

import triton.language as tl

from regard.generation.engines.cuda.kernels import (
    messages_triton as messages,
    persistent_step_triton as persistent,
)
from regard.generation.engines.cuda.kernels.messages_triton import send
from regard.kernels.jit_triton import jit

SIZES = {"kind": "transformer", "dim": 24, "layers": 2, "heads": 3, "ffn_dim": 40}
KINDS = {  # options of the blocks, and whether there is a source
    "relu": ({}, True),
    "gelu": ({"activation": "gelu", "norm": "rms"}, True),
    "silu": ({"activation": "silu"}, False),
    "gelu_tanh": ({"activation": "gelu_tanh", "positions": "learned", "max_positions": 8}, False),
}


@jit
def _send_all(words, numbers):
    at = tl.arange(0, 4)
    send(words + 32 + at, tl.load(numbers + at), at < 4)


def made(options, source):
    side = SIZES | options
    model = build({"decoder": side, "vocab_size": 50} | ({"encoder": side} if source else {}))
    for weight in model.parameters():  # norms and biases that are neither ones nor zeros
        torch.nn.init.normal_(weight, std=0.5)
    memory = model.encode(Tokens.of([[5, 6, 7, 8, 9]])) if source else None
    if memory is not None:
        memory = replace(memory, mask=torch.tensor([[True, False, True, True, True]]))
    return StaticDecoder(model.decoder, torch.float32), memory


@pytest.mark.parametrize("tiles", [(16, 8, 64), (128, 32, 8192)], ids=["several tiles", "one tile"])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_one_kernel_equals_the_parts(kind, tiles, monkeypatch):
    """Over several blocks of keys, and for a sequence that was admitted later."""
    monkeypatch.setattr(persistent, "KEYS", 2)
    for name, size in zip(("WIDE", "NARROW", "MAX_SLICE"), tiles, strict=True):
        monkeypatch.setattr(persistent, name, size)
    persistent._sizes.cache_clear()
    decoder, memory = made(*KINDS[kind])
    states = [decoder.start(memory, batch=1, capacity=8) for _ in range(2)]
    for number in range(6):
        token = torch.randint(50, (1,))
        for state in states:
            state.reserve()
            if number == 1:
                state.admitted.copy_(state.time)
        expected = decoder._step_by_parts(token, states[0])
        torch.testing.assert_close(
            decoder._step(persistent, token, states[1]), expected, atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(states[1].cache, states[0].cache, atol=1e-4, rtol=1e-4)
        assert states[1].time == states[0].time == number + 1


@torch.inference_mode()
def test_steps_alternate_between_the_halves_of_their_workspace():
    """Each step finds its half empty, as words that were sent before would be taken for its own."""
    decoder, memory = made(*KINDS["relu"])
    state, halves = decoder.start(memory, batch=1, capacity=8), []
    for _ in range(4):
        state.reserve()
        decoder._step(persistent, torch.tensor([3]), state)
        memory = state.workspace.memory[1]
        header, *words = memory.split([32, *[(memory.numel() - 32) // 2] * 2])
        halves.append((header[0].item(), *((half == -1).all().item() for half in words)))
    assert halves == [(1, False, True), (0, True, False)] * 2
    assert (
        state.reorder(torch.tensor([0])).workspace is not state.workspace
    )  # both may step at the same time


def test_no_sent_number_is_taken_for_an_empty_word():
    words, numbers = (
        messages.workspace(4, torch.device("cpu")),
        torch.tensor([1.5, -torch.inf, torch.nan, 0.0]),
    )
    numbers.view(torch.int32)[3] = -1  # a NaN, and what a word holds that is not written
    _send_all[(1,)](words, numbers)
    assert words[32:36].tolist() == [*numbers[:3].view(torch.int32).tolist(), 0x7FFFFFFF]


@torch.inference_mode()
def test_one_kernel_publishes_the_attention_of_the_parts():
    decoder, memory = made(*KINDS["relu"])
    found = []
    for run in (decoder._step_by_parts, lambda *given: decoder._step(persistent, *given)):
        state = decoder.start(memory, batch=1, capacity=8)
        with capture_attention() as calls:
            for token in (3, 7):
                state.reserve()
                run(torch.tensor([token]), state)
        found.append([call.weights() for call in calls])
    assert len(found[0]) == 8  # two steps of two layers, self- and cross-attention
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


def test_which_steps_are_one_kernel(monkeypatch):
    decoder, _ = made(*KINDS["relu"])
    layers = decoder.weights.layers
    assert not persistent.supports(layers, 1)  # float32
    monkeypatch.setattr(persistent, "HALF", (torch.float32,))
    assert persistent.supports(layers, 1)
    assert not persistent.supports(layers, 2)
    narrow = layers._replace(ffn_up=layers.ffn_up._replace(weight=layers.ffn_up.weight[:, :38]))
    assert not persistent.supports(narrow, 1)  # hidden units are received by fours
    assert step.persistent(layers, 1) is None  # on a CPU


def choosing(limit=6, ends=(2, 7), suppressed=(0, 1, 4), **numbers):
    """The tensors of a greedy search of one sequence."""
    whole = {"length": 0, "min_length": 0, "prompt": 0, "limit": limit, "prefix": -1, "first": 1}
    rows = {
        name: torch.full((1, 3) if name == "prefix" else (1,), number)
        for name, number in whole.items()
    }
    for name, number in numbers.items():
        rows[name].copy_(torch.tensor(number))
    ended, done = torch.zeros(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
    masks = {
        "suppressed": suppressed,
        "ends": ends,
        "forced": 0,
        "no_repeat_ngram_size": 0,
        "allow_end": False,
    }
    return SearchLoop(
        tokens=torch.full((1, 1, limit + 1), 9), log_p=None, done=done, normalized=False,
        greedy=GreedyTensors(ended, pad=9), **rows, **masks,
    )  # fmt: skip


CHOICES = {  # a seed, what is asked for, and the tokens
    "to the maximum length": (7, {"limit": 4}, [12, 31, 25, 23]),
    "after the minimum length": (5, {"min_length": 3}, [41, 41, 41, 2, 9, 9]),
    "an end in a prompt": (5, {"prefix": [3, 7, 3], "prompt": 2}, [3, 7, 3, 2, 9, 9]),
    "an end in a prefix": (0, {"prefix": [3, 7, -1], "suppressed": (0, 7)}, [3, 7, 9, 9, 9, 9]),
    "none of these": (0, {"suppressed": (0, 1, 23)}, None),
    "the first of equals": (1, {}, [25] * 6),
}


@pytest.mark.parametrize("case", CHOICES)
@torch.inference_mode()
def test_steps_that_choose_equal_steps_and_a_choice(case, monkeypatch):
    """Until the end and beyond, in launches of one to three steps."""
    monkeypatch.setattr(step, "persistent", lambda layers, rows: persistent)
    persistent._sizes.cache_clear()
    seed, asked, tokens = CHOICES[case]
    torch.manual_seed(seed)
    decoder, memory = made(*KINDS["relu"])
    project = decoder.weights.project
    for x in project:
        x[40] = x[25]  # in another tile
    project.bias[50:] = 100.0  # the padding of the vocabulary
    found, wanted = choosing(**asked), choosing(**asked)
    states = [decoder.start(memory, batch=1, capacity=8) for _ in range(2)]
    last = [torch.tensor([[1]]) for _ in range(2)]
    for count in (1, 3, 2):
        for _ in range(count):
            states[1].reserve()
            last[1] = plain_choice(
                decoder._step_by_parts(last[1].flatten(), states[1])[:, :50], wanted
            )
        states[0].reserve(count)
        assert decoder.greedy_steps(last[0], states[0], found, count) is states[0]
        assert last[0].tolist() == last[1].tolist()
        for name in ("tokens", "length", "done"):
            assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
        assert found.greedy.ended.tolist() == wanted.greedy.ended.tolist()
        torch.testing.assert_close(states[0].cache, states[1].cache, atol=1e-4, rtol=1e-4)
        assert states[0].time == states[1].time == states[1].steps
    regions = states[0].workspace.memory[3][32:].view(2, 3, -1)  # halves, and the steps of a launch
    assert [[(words == -1).all().item() for words in half] for half in regions] == [
        [False] * 3,
        [True] * 3,
    ]
    given = found.tokens.flatten().tolist()
    assert given[:4] == tokens[:4] if tokens else 23 not in given
    assert states[0].workspace.memory.keys() == {1, 3, 2}


@pytest.mark.parametrize(
    "changes",
    [{"normalized": True}, {"no_repeat_ngram_size": 2}, {"allow_end": True}, {"greedy": None}],
    ids=lambda changes: next(iter(changes)),
)
@torch.inference_mode()
def test_which_choices_are_left_to_the_strategy(changes, monkeypatch):
    monkeypatch.setattr(step, "persistent", lambda layers, rows: persistent)
    monkeypatch.setattr(persistent, "step", pytest.fail)
    decoder, memory = made(*KINDS["relu"])
    state, tokens = decoder.start(memory, batch=1, capacity=8), torch.tensor([[1]])
    assert decoder.greedy_steps(tokens, state, replace(choosing(), **changes), 2) is None
    with capture_attention():
        assert decoder.greedy_steps(tokens, state, choosing(), 2) is None


def plain_choice(logits, loop):
    """A step of greedy search in Python."""
    length, early = loop.length.item(), (loop.length < loop.min_length).item()
    excluded = {*loop.suppressed, *(loop.ends if early else ())}
    token = max(
        (each for each in range(logits.shape[1]) if each not in excluded),
        key=lambda each: logits[0, each],
    )
    if length < loop.prefix.shape[1] and loop.prefix[0, length] >= 0:
        token = loop.prefix[0, length].item()
    token = loop.greedy.pad if loop.greedy.ended.item() else token
    loop.tokens[0, 0, length] = token
    loop.greedy.ended.logical_or_(torch.tensor(token in loop.ends and length >= loop.prompt.item()))
    loop.length.add_(~loop.done)
    loop.done.logical_or_(loop.greedy.ended[0] | (loop.length >= loop.limit))
    return torch.tensor([[token]])
