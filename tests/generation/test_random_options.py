"""Random models, options and batches: every engine, batch and order of arrival gives what `choose` gives alone.

The reference is PyTorch's decoder with one request at a time, whose tokens are all chosen in `generation/choose`.
Every key of [decode] that the choice of tokens depends on is drawn: an option that is added must be added here.
"""

import random
from dataclasses import fields, replace

import pytest
import torch

from regard.core.sequence import Tokens
from regard.generation import search_batch
from regard.generation.batch_plan import BatchLimits
from regard.generation.choose.stop_strings import StopCondition
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.base import Engine
from regard.generation.engines.cuda import buffers
from regard.generation.engines.cuda.static_decoder import static_decoder
from regard.generation.engines.fused_options import OUTSIDE_STEPS
from regard.generation.engines.plain_transformer import is_plain
from regard.generation.engines.torch import PyTorchEngine
from regard.generation.request import GenerationRequest, SearchTask, plan_requests
from regard.generation.search import Search, search
from regard.kernels import cuda_graphs
from support.models import VOCABULARY
from support.search import Letters, model, sources

NAMES = ("transformer", "transformer", "transformer rotary", "lstm bahdanau", "gru luong", "conv")
# Of every key, values that go with those of all others; each search has some of the keys.
ANY_SEARCH = {
    "min_length": (2, 5),
    "min_length_ratio": (0.5, 1.0),
    "no_repeat_ngram_size": (1, 2),
    "repetition_penalty": (1.3,),
    "exponential_decay_length_penalty": ((2.0, 1.4), (0.0, 0.7)),
    "length_penalty": (-0.5, 0.0, 0.35, 1.7),
    "stop": (("f",), ("ef", "dd"), ("hi", "j")),
    "top_logprobs": (1, 4, 20),
}
BEAMS = {
    "beam_size": (2, 4),
    "beam_groups": (1, 2),
    "diversity_penalty": (0.9,),
    "early_stopping": (False, True, "never"),
}
SAMPLES = {
    "temperature": (0.6, 1.5),
    "top_k": (3,),
    "top_p": (0.8,),
    "min_p": (0.1,),
    "typical_p": (0.7,),
}
ELSEWHERE = {
    "sample",
    "logits_processors",
}  # `sample` by the kind of search; processors are classes


def drawn_options(chance: random.Random) -> dict:
    tables = [ANY_SEARCH]
    options = {"max_length": chance.choice([3, 9]), "seed": chance.randrange(100)}
    kind = chance.choice(["greedy", "beam", "beam", "sample"])
    if kind == "beam":
        tables.append(BEAMS)
        options["beam_size"] = 4
        options["num_hypotheses"] = chance.choice([1, 2])
    elif kind == "sample":
        tables.append(SAMPLES)
        options |= {"sample": True, "num_hypotheses": chance.choice([1, 3])}
    for table in tables:
        for name, values in table.items():
            if chance.random() < 0.35:
                options[name] = chance.choice(values)
    if options.get("min_length", 0) > options["max_length"]:
        del options["min_length"]
    if options.get("beam_size") == 2:
        options["num_hypotheses"] = min(2, options["num_hypotheses"])
    return options


def drawn_requests(chance: random.Random) -> list[GenerationRequest]:
    """Some with prefixes, and in some searches with banned tokens."""
    rows = chance.sample(sources(), 6)
    prefixes = [chance.choice([(), (), (5, 9), (7,)]) for _ in rows]
    # Not in every search: no engine has banned phrases, and takes no steps by itself where there are some.
    runs = [(), ((6,),), ((8, 5), (9,))] if chance.random() < 0.25 else [()]
    banned = [chance.choice(runs) for _ in rows]
    return [
        GenerationRequest(row, len(row), prefix, none)
        for row, prefix, none in zip(rows, prefixes, banned, strict=True)
    ]


class StaticEngine(Engine):
    """Static buffers for plain Transformers, as the CUDA engine has, whose steps are recorded."""

    def decoder_for(self, model, **options):
        if not is_plain(model.decoder):
            return PyTorchEngine().decoder_for(model, **options)
        return static_decoder(model.decoder, torch.float32)

    def encode(self, model, source, *, half, int8=False):
        return model.encode(source)


def in_bulk(task: SearchTask, requests: list[GenerationRequest]) -> list:
    found = dict(search(task, requests))
    return [found[number] for number in range(len(requests))]


def one_by_one(task: SearchTask, requests: list[GenerationRequest], chance: random.Random) -> list:
    """In the order and at the times at which chance has them come, in few slots."""
    planned = plan_requests(task, requests)
    limits = BatchLimits.of(planned, len(planned))
    running = Search(task, limits, slots=chance.choice([1, 3, 6]))
    order = chance.sample(range(len(requests)), len(requests))
    index_of = {}
    found = {}
    while order or len(running):
        count = min(running.free, len(order), chance.choice([0, 1, 2]))
        if count:
            chosen = order[:count]
            order = order[count:]
            index_of |= zip(running.admit([planned[i] for i in chosen]), chosen, strict=True)
        if len(running):
            _, finished = running.advance(chance.choice([(), None]))
            found |= {index_of[number]: hypotheses for number, hypotheses in finished}
    return [found[number] for number in range(len(requests))]


def tokens_of(outputs: list) -> list:
    return [[(each.tokens, each.end) for each in one] for one in outputs]


def numbers_of(outputs: list) -> list[float]:
    """All scores and log-probabilities."""
    numbers = []
    for one in outputs:
        for each in one:
            numbers += [each.score, *each.log_probabilities]
            for row in each.alternatives or ():
                numbers += [value for _, value in row]
    return numbers


def check_alternatives(outputs: list, options: dict) -> None:
    """They are the most likely tokens, and agree with the log-probability of the token that was chosen."""
    count = options.get("top_logprobs", 0)
    for each in (each for one in outputs for each in one):
        if not count:
            assert each.alternatives is None
            continue
        assert len(each.alternatives) == len(each.log_probabilities)
        chosen = [*each.tokens, *([] if each.end is None else [each.end])]
        for token, own, row in zip(chosen, each.log_probabilities, each.alternatives, strict=True):
            values = [value for _, value in row]
            assert len(row) == min(count, VOCABULARY)
            assert values == sorted(values, reverse=True)
            assert dict(row).get(token, own) == own
            assert token in dict(row) or own <= values[-1]


def test_every_option_of_the_steps_is_drawn():
    drawn = {*ANY_SEARCH, *BEAMS, *SAMPLES, *ELSEWHERE}
    assert drawn == {each.name for each in fields(DecodeConfig)} - OUTSIDE_STEPS


@pytest.mark.parametrize("number", range(20))
@torch.inference_mode()
def test_every_engine_and_batch_gives_what_choose_gives_alone(number, monkeypatch):
    chance = random.Random(number)
    made = model(chance.choice(NAMES))
    options = drawn_options(chance)
    requests = drawn_requests(chance)
    small = DecodeConfig(**options, batch_tokens=chance.choice([7, 13, 4096]))
    stops = StopCondition(Letters(), small.stop) if small.stop else None
    task = SearchTask(made, Tokens.of, small, scored=True, stops=stops)

    with monkeypatch.context() as patch:
        patch.setattr(selection, "ENGINES", (PyTorchEngine(),))
        alone = [
            found
            for index, each in enumerate(requests)
            for _, found in search(replace(task, numbers=[index]), [each])
        ]
        others = {"PyTorch in bulk": in_bulk(task, requests)}
        others["PyTorch one by one"] = one_by_one(task, requests, chance)
    compiled = in_bulk(task, requests)
    others["compiled in bulk"] = compiled
    others["compiled one by one"] = one_by_one(task, requests, chance)
    decoder = selection.decoder_for(made, max_length=9)
    if decoder.compiled and options.get("sample") is None:
        # Bit for bit, whatever else is in the batch, where the loop is compiled or not.
        assert others["compiled one by one"] == compiled, options
    with monkeypatch.context() as patch:
        patch.setattr(selection, "ENGINES", (StaticEngine(),))
        patch.setattr(search_batch, "MIN_HYPOTHESES", 0)
        patch.setattr(cuda_graphs, "capture", lambda work, **_: work)
        patch.setattr(buffers, "_memory", lambda _: 1 << 30)
        others["static in bulk"] = in_bulk(task, requests)
        others["static one by one"] = one_by_one(task, requests, chance)

    check_alternatives(alone, options)
    for name, found in others.items():
        assert tokens_of(found) == tokens_of(alone), (name, options)
        assert numbers_of(found) == pytest.approx(numbers_of(alone), abs=2e-5), (name, options)
