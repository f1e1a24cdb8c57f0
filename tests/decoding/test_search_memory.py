"""What a search takes: buffers that grow with its outputs, an estimate before it begins, and a limit."""

import json

import pytest

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.decoding.config import DecodeConfig
from regard.decoding.request import Request, SearchTask
from regard.decoding.search import stream
from regard.decoding.search_memory import limit_searches
from regard.runtime import engines
from support.resident import MEBIBYTE, needs_proc, output_of
from support.search import decode, model, sources, token_ids

LONG = {"min_length": 130, "max_length": 400}  # beyond the first growth of every buffer
ONE_BY_ONE = {"batch_tokens": 1}
MEASURED = """
import ctypes, json, sys
import torch
from regard.core.sequence import Tokens
from regard.decoding.batch_plan import BatchLimits, BatchPlan, plan_requests
from regard.decoding.config import DecodeConfig
from regard.decoding.request import Request, SearchTask
from regard.decoding.search import search
from regard.decoding.search_memory import search_memory
from support.resident import forget_peak, peak, resident
from support.search import model

name, count, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
torch.set_num_threads(1)
made = model(name)

def run(count, options):
    task = SearchTask(made, Tokens.of, DecodeConfig(**options), scored=True)
    requests = [Request([5, 6, 7, 8], 4) for _ in range(count)]
    planned = plan_requests(task, requests)
    limits = BatchLimits.of(planned, count)
    decoder = BatchPlan(task, limits, count).decoder
    list(search(task, requests))
    return search_memory(task, decoder, limits, 4).of(count)

few = {key: 2 for key in ("beam_size", "num_hypotheses") if key in options}
run(1, options | few | {"min_length": 5, "max_length": 5})
trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
if trim is not None:
    trim(0)
forget_peak()
before = resident()
estimate = run(count, options)
print(json.dumps([estimate, peak() - before]))
"""


@pytest.mark.parametrize("name", ["transformer", "transformer rotary", "lstm bahdanau"])
@pytest.mark.parametrize("options", [{}, {"beam_size": 3, "num_hypotheses": 3}])
def test_long_outputs_do_not_depend_on_what_shares_their_buffers(name, options):
    """Those that enter later find caches that have grown, and from which older steps were dropped."""
    made = model(name)
    rows = sources()[:6]
    alone = decode(made, rows, **options, **LONG, **ONE_BY_ONE)
    together = decode(made, rows, **options, **LONG, batch_tokens=13)
    assert together == alone
    assert max(len(each.tokens) for one in alone for each in one) > 2 * 64


@pytest.mark.parametrize(("beams", "longest"), [(1, 66), (3, 25)])
def test_caches_of_pytorch_grow_too(monkeypatch, beams, longest):
    """Each position of its cache is of one hypothesis."""
    options = {"beam_size": beams, "min_length": longest, "max_length": longest}
    made = model("transformer")
    rows = sources()[:2]
    compiled = decode(made, rows, **options)
    monkeypatch.setattr(engines, "ENGINES", (engines.PyTorchEngine(),))
    assert token_ids(decode(made, rows, **options)) == token_ids(compiled)


@needs_proc
@pytest.mark.parametrize(
    ("name", "count", "options"),
    [
        ("transformer", 8, {"beam_size": 64, "max_length": 200}),
        ("transformer", 1, {"sample": True, "num_hypotheses": 1000, "max_length": 200}),
        ("transformer additive", 2, {"beam_size": 20, "max_length": 150}),
        ("lstm bahdanau", 8, {"beam_size": 64, "max_length": 800}),
    ],
)
def test_the_estimate_is_at_least_what_a_search_takes_and_at_most_twice_as_much(
    name, count, options
):
    options = {**options, "min_length": options["max_length"]}  # the longest outputs
    estimate, taken = json.loads(output_of(MEASURED, name, str(count), json.dumps(options)))
    assert taken <= estimate <= 2 * taken, (estimate / MEBIBYTE, taken / MEBIBYTE)


@needs_proc
@pytest.mark.parametrize("name", ["transformer", "transformer additive"])
def test_a_search_takes_what_its_outputs_need_and_not_what_they_might(name):
    options = {"beam_size": 4, "max_length": 100_000, "early_stopping": True}
    _, taken = json.loads(output_of(MEASURED, name, "8", json.dumps(options)))
    assert taken < 40 * MEBIBYTE


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            {"beam_size": 1000, "max_length": 1_000_000},
            r"max_length: wanted a search within 16 MiB: with beam_size = 1,000, at most max_length = \d+; "
            r"got max_length = 1,000,000 with beam_size = 1,000, which may need [\d,]+ MiB for one input",
        ),
        (
            {"sample": True, "num_hypotheses": 1000, "max_length": 1000},
            r"max_length: .*Lower max_length or num_hypotheses",
        ),
        ({"sample": True, "num_hypotheses": 10_000, "max_length": 1}, "Lower num_hypotheses"),
        ({"max_length": 1_000_000}, "max_length: wanted a search within 16 MiB"),
    ],
)
def test_a_search_that_cannot_fit_is_refused_before_it_begins(options, wanted):
    made = model("transformer")
    limit_searches(made, 16 * MEBIBYTE)
    with pytest.raises(InvalidArgument, match=wanted):
        decode(made, sources(), **options)


def test_what_a_refusal_says_is_allowed_is_allowed():
    made = model("transformer")
    limit_searches(made, 16 * MEBIBYTE)
    with pytest.raises(InvalidArgument) as refused:
        decode(made, sources()[:1], beam_size=60, max_length=100_000)
    allowed = int(
        str(refused.value).split("at most max_length = ")[1].split(";")[0].replace(",", "")
    )
    assert len(decode(made, sources()[:1], beam_size=60, max_length=allowed)) == 1
    with pytest.raises(InvalidArgument):
        decode(made, sources()[:1], beam_size=60, max_length=4 * allowed)


def test_many_banned_phrases_of_which_one_is_long_are_refused():
    """Each takes as much room as the longest."""
    made = model("transformer")
    limit_searches(made, 16 * MEBIBYTE)
    banned = [[5] * 3000, *[[6, 7]] * 3000]
    with pytest.raises(InvalidArgument, match=r"banned: .*fewer or shorter banned phrases"):
        decode(made, sources()[:1], banned=banned)


def test_a_stream_that_cannot_fit_is_refused():
    made = model("transformer")
    limit_searches(made, 16 * MEBIBYTE)
    task = SearchTask(made, Tokens.of, DecodeConfig(max_length=1_000_000))
    with pytest.raises(InvalidArgument, match="max_length"):
        stream(task, Request([5, 6], 2))


def test_inputs_that_do_not_fit_together_are_searched_one_after_another():
    made = model("transformer")
    rows = sources()
    wanted = decode(made, rows, beam_size=20, max_length=100)
    limit_searches(made, 4 * MEBIBYTE)
    found = decode(made, rows, beam_size=20, max_length=100)
    assert found == wanted
