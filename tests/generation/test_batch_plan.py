"""How many tokens a batch of a search has, and the sizes of its buffers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.generation import batch_plan
from regard.generation.batch_plan import (
    BatchLimits,
    BatchPlan,
    forward_batch_tokens,
    search_batch_tokens,
)
from regard.generation.choose.interfaces import LogitsProcessor
from regard.generation.choose.trace import BeamTrace
from regard.generation.config import DecodeConfig
from regard.generation.engines.cuda.static_decoder import rounded
from regard.generation.engines.torch import PyTorchDecoder
from regard.generation.request import SearchTask
from regard.model.capture import capture_attention
from regard.model.memory import Memory
from support.search import model


class OnGpu(nn.Module):
    """A module of so many parameters that says it is on a GPU."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def parameters(self, recurse: bool = True):
        class Parameter:
            is_cuda, device = True, torch.device("cuda:0")

            def numel(_) -> int:
                return self.size

        return iter([Parameter()])


@pytest.mark.parametrize(
    ("size", "gibibytes", "wanted"),
    [
        (10_000_000, 139, 65_536),
        (10_000_000, 8, 16_384),
        (10_000_000, 7.9, 8_192),  # a power of two: buffers of the same sizes are used again
        (400_000_000, 139, 16_384),
        (7_000_000_000, 100, 4_096),
        (10_000_000, 0.1, 4_096),
    ],
)
def test_a_gpu_has_batches_of_its_size(monkeypatch, size, gibibytes, wanted):
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: (int(gibibytes * 2**30) - 2**20, 2**40)
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * 2**20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 2**20)
    assert search_batch_tokens(DecodeConfig(), OnGpu(size)) == wanted
    assert search_batch_tokens(DecodeConfig(batch_tokens=77), OnGpu(size)) == 77


def test_a_cpu_has_small_batches():
    model = nn.Linear(2, 2)
    assert search_batch_tokens(DecodeConfig(), model) == batch_plan.CPU_BATCH_TOKENS == 4096
    assert forward_batch_tokens(DecodeConfig(), model) == 2048
    assert forward_batch_tokens(DecodeConfig(batch_tokens=5), model) == 5
    assert forward_batch_tokens(DecodeConfig(), model.to("meta")) == 4096


def sizes(plan, memory):
    return plan.source_room(memory), plan.steps, plan.tokens, plan.prefix


@pytest.mark.parametrize(
    ("positions", "source", "max_length", "prefix", "wanted"),
    [
        (1, 0, 1, 0, (32, 1, 2, 1)),
        (32, 0, 8, 2, (32, 8, 9, 2)),
        (33, 0, 9, 3, (64, 16, 17, 4)),
        (5, 70, 100, 5, (96, 128, 129, 8)),  # later sources are longer
        (None, 0, 9, 3, (0, 16, 17, 4)),
    ],
)
def test_static_buffers_have_few_sizes(positions, source, max_length, prefix, wanted):
    plan = object.__new__(BatchPlan)
    plan.capacity, plan.static = max_length, True
    plan.limits = BatchLimits(max_length, max_prefix=prefix, source=source)
    memory = None
    if positions is not None:
        memory = Memory(
            torch.zeros(2, positions, 4),
            torch.ones(2, positions, dtype=torch.bool),
            torch.zeros(2, 4),
        )
    assert sizes(plan, memory) == wanted
    plan.static = False
    plan.device = torch.device("cuda")
    assert sizes(plan, memory) == (0, max_length, max_length + 1, max(1, prefix))
    plan.device = torch.device("cpu")  # where buffers grow
    assert sizes(plan, memory) == (0, max_length, min(max_length, 64) + 1, max(1, prefix))


def decoder_that_is(static):
    found = PyTorchDecoder(model("transformer").decoder)
    found.static = static
    if static:
        found.batch_size = rounded
    return found


class Recordable(LogitsProcessor):
    recordable = True

    def __call__(self, scores, generated):
        return scores


class Unrecordable(Recordable):
    recordable = False


@pytest.mark.parametrize(
    ("static", "limits", "changes", "wanted"),
    [
        (True, {}, {}, (True, 6, 9)),
        (False, {}, {}, (False, 5, 9)),
        (
            True,
            {"queued": True},
            {},
            (True, 4, 18),
        ),  # slots are emptied and filled again: not more than were asked for
        (False, {"queued": True}, {}, (False, 5, 18)),
        (True, {"constrained": True}, {}, (False, 6, 9)),
        (True, {"ragged": True, "max_prefix": 16}, {}, (True, 6, 9)),
        (False, {"ragged": True, "max_prefix": 16}, {}, (False, 5, 18)),
        (False, {"ragged": True, "max_prefix": 15}, {}, (False, 5, 9)),
        (False, {"ragged": False, "max_prefix": 16}, {}, (False, 5, 9)),
        (True, {}, {"trace": BeamTrace()}, (False, 6, 9)),
        (True, {}, {"logits_processors": (Recordable(),)}, (True, 6, 9)),
        (True, {}, {"logits_processors": (Recordable(), Unrecordable())}, (False, 6, 9)),
    ],
)
def test_what_is_decided_before_the_first_step(monkeypatch, static, limits, changes, wanted):
    """Whether steps are recorded, how many slots there are, and the steps that the decoder's state has room for."""
    monkeypatch.setattr(
        batch_plan.selection, "decoder_for", lambda model, **options: decoder_that_is(static)
    )
    task = replace(SearchTask(model("transformer"), Tokens.of, DecodeConfig()), **changes)
    plan = BatchPlan(task, BatchLimits(9, **limits), 5)
    assert (plan.recorded, plan.slots, plan.capacity) == wanted


def test_steps_whose_attention_is_captured_are_not_recorded(monkeypatch):
    monkeypatch.setattr(
        batch_plan.selection, "decoder_for", lambda model, **options: decoder_that_is(True)
    )
    task = SearchTask(model("transformer"), Tokens.of, DecodeConfig())
    with capture_attention(lambda *_: None):
        assert not BatchPlan(task, BatchLimits(9), 5).recorded


def test_buffers_are_for_other_searches_of_the_same_kind_only(monkeypatch):
    """Under the same key where only the seed of samples differs; under none where they hold phrases or processors."""
    monkeypatch.setattr(
        batch_plan.selection, "decoder_for", lambda model, **options: decoder_that_is(True)
    )
    made = model("transformer")

    def key(options=None, limits=None, source=32, **changes):
        task = replace(SearchTask(made, Tokens.of, DecodeConfig(**(options or {}))), **changes)
        return BatchPlan(task, BatchLimits(9, **(limits or {})), 5).pool_key(source)

    assert key() == key() is not None
    assert key({"sample": True, "seed": 1}) == key({"sample": True, "seed": 2})
    different = [
        key(), key({"beam_size": 2}), key(source=64), key(limits={"min_length": True}), key(ends=False),
        key(limits={"max_prefix": 1}), key(scored=True), key(rerank=lambda *_: None), key({"sample": True}),
    ]  # fmt: skip
    assert len({*different}) == len(different)
    assert key(limits={"max_prefix": 3}) == key(limits={"max_prefix": 4})
    assert key(limits={"banned": (1, 1)}) is None
    assert key(logits_processors=(Recordable(),)) is None
    assert key(limits={"constrained": True}) is None
