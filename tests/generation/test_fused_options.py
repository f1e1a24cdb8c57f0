"""Which options of a search its engine carries out by itself, and that all others are left to Python."""

from dataclasses import fields

import pytest

from regard.core.sequence import Tokens
from regard.generation.batch_plan import BatchLimits, BatchPlan
from regard.generation.choose.options import (
    CONSTRAINTS,
    OF_GROUPS,
    OF_SAMPLING,
    options_in_use,
)
from regard.generation.choose.trace import BeamTrace
from regard.generation.config import DecodeConfig
from regard.generation.engines import fused_options
from regard.generation.engines.base import EngineDecoder
from regard.generation.request import SearchTask
from support.search import model

KEYS = {each.name for each in fields(DecodeConfig)}


class Loop(EngineDecoder):
    """An engine with a loop for greedy search and for beams of up to four."""

    fused = fused_options.CPU_LOOP
    max_beams = 4
    compiled = True

    def start(self, memory, *, batch, capacity, beams=1):
        raise NotImplementedError

    def step(self, tokens, state):
        raise NotImplementedError


def plan_of(limits=None, **options) -> BatchPlan:
    task_options = {name: options.pop(name) for name in ("trace",) if name in options}
    task = SearchTask(model("transformer"), Tokens.of, DecodeConfig(**options), **task_options)
    plan = BatchPlan(task, BatchLimits(9, **(limits or {})), 2)
    plan.decoder = Loop()
    return plan


def test_the_tables_name_options_that_exist():
    for table in (fused_options.CPU_LOOP, fused_options.CUDA_STEPS, OF_SAMPLING, OF_GROUPS):
        assert table <= KEYS
    assert not CONSTRAINTS & KEYS


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"beam_size": 4, "num_hypotheses": 2, "early_stopping": "never"}, True),
        ({"beam_size": 5}, False),  # more than the loop takes
        ({"no_repeat_ngram_size": 2, "min_length": 3, "length_penalty": 0.5}, True),
        ({"repetition_penalty": 1.2}, False),
        ({"beam_size": 4, "beam_groups": 2}, False),
        ({"sample": True}, False),
        ({"temperature": 0.5}, True),  # without any effect, as nothing is sampled
        ({"diversity_penalty": 0.1}, True),
        ({"limits": {"banned": (1, 2)}}, False),
        ({"limits": {"constrained": True}}, False),
        ({"beam_size": 2, "trace": BeamTrace()}, False),
        ({"max_length": 3, "seed": 4, "batch_tokens": 77, "coverage_penalty": 0.1}, True),
    ],
)
def test_an_engine_takes_a_search_all_options_of_which_it_has(options, fused):
    plan = plan_of(**options)
    assert plan.fused is fused


def test_an_option_that_no_table_names_is_left_to_python():
    """So that an option that is added is right with every engine from the beginning."""
    assert Loop().fuses(frozenset({"beam_size"}), 4)
    assert not Loop().fuses(frozenset({"beam_size", "an_option_of_tomorrow"}), 4)
    every = fused_options.CPU_LOOP | {"sample", "beam_groups"}
    python_only = KEYS - every - OF_SAMPLING - OF_GROUPS
    assert python_only == {
        "exponential_decay_length_penalty",
        "logits_processors",
        "repetition_penalty",
        "stop",
        "top_logprobs",
    }


def test_options_without_an_effect_are_not_in_use():
    assert options_in_use(DecodeConfig()) == frozenset()
    assert options_in_use(DecodeConfig(temperature=0.5, beam_size=2)) == {"beam_size"}
    assert options_in_use(DecodeConfig(sample=True, top_k=3)) == {"sample", "top_k"}
    groups = DecodeConfig(beam_size=4, beam_groups=2, diversity_penalty=0.7)
    assert options_in_use(groups) == {"beam_size", "beam_groups", "diversity_penalty"}
