"""What a search takes: buffers that grow with its outputs, an estimate before it begins, and a limit."""

import json

import pytest

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.generation import search_memory
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search, stream
from regard.generation.search_memory import limit_searches
from support.resident import MEBIBYTE, needs_proc, output_of
from support.search import decode, model, sources, token_ids

LONG = {"min_length": 130, "max_length": 400}  # beyond the first growth of every buffer
ONE_BY_ONE = {"batch_tokens": 1}
MEASURED = """
import ctypes, json, sys
import torch
from regard.core.sequence import Tokens
from regard.generation.batch_plan import BatchLimits, BatchPlan
from regard.generation.request import plan_requests
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.data.special_tokens import START
from regard.generation.search_memory import search_memory
from regard.interpret.output_attention import coverage_reranker, output_attention
from support.resident import forget_peak, peak, resident
from support.search import model

name, count, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
beside = json.loads(sys.argv[4])
torch.set_num_threads(1)
made = model(name)
attention = beside.get("attention", False)

def phrases(first, count=0, length=0):
    # Different runs of three tokens: a number in the base 3 each, its lowest digit first.
    return [[first + number // 3**place % 3 for place in range(length)] for number in range(count)]

def run(count, options, size, required, banned):
    config = DecodeConfig(**options)
    rerank = coverage_reranker(made, config, START)
    task = SearchTask(
        made, Tokens.of, config, scored=True, rerank=rerank, attention=attention
    )
    row = [5, 6, 7, 8] * (size // 4)
    requests = [GenerationRequest(row, size, required=required, banned=banned) for _ in range(count)]
    kept = []
    for _, hypotheses in search(task, requests):
        kept.append(hypotheses)
        if attention:
            kept.append(output_attention(made, Tokens.of([row]), hypotheses, START))
    taken = peak()
    planned = plan_requests(task, requests)
    limits = BatchLimits.of(planned, count)
    decoder = BatchPlan(task, limits, count).decoder
    return search_memory(task, decoder, limits, size).of(count), taken

few = {key: 2 for key in ("beam_size", "num_hypotheses") if key in options}
run(1, options | few | {"min_length": 5, "max_length": 5}, 4, [], [])
trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
if trim is not None:
    trim(0)
forget_peak()
before = resident()
required = phrases(5, *beside.get("required", ()))
banned = phrases(8, *beside.get("banned", ()))
estimate, taken = run(count, options, beside.get("source", 4), required, banned)
print(json.dumps([estimate, taken - before]))
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
    monkeypatch.setattr(selection, "ENGINES", (selection.PyTorchEngine(),))
    assert token_ids(decode(made, rows, **options)) == token_ids(compiled)


def slow(*values: object) -> object:
    """A shape whose search takes long."""
    return pytest.param(*values, marks=pytest.mark.slow)


@needs_proc
@pytest.mark.parametrize(
    ("name", "count", "options"),
    [
        ("transformer", 8, {"beam_size": 64, "max_length": 200}),
        ("transformer", 1, {"sample": True, "num_hypotheses": 1000, "max_length": 200}),
        slow("transformer", 4, {"max_length": 400, "top_logprobs": 11}),
        slow("transformer", 2, {"beam_size": 8, "max_length": 400, "top_logprobs": 11}),
        slow("transformer additive", 2, {"beam_size": 20, "max_length": 150}),
        slow("lstm bahdanau", 8, {"beam_size": 64, "max_length": 800}),
    ],
)
def test_the_estimate_is_at_least_what_a_search_takes_and_at_most_twice_as_much(
    name, count, options
):
    options = {**options, "min_length": options["max_length"]}  # the longest outputs
    estimate, taken = measured(name, count, options)
    assert taken <= estimate <= 2 * taken, (estimate / MEBIBYTE, taken / MEBIBYTE)


def measured(name: str, count: int, options: dict, beside: dict | None = None) -> list[int]:
    """The estimate for so many requests, and the bytes that their search took in a process of its own."""
    given = json.dumps(options), json.dumps(beside or {})
    return json.loads(output_of(MEASURED, name, str(count), *given))


EIGHT = {"beam_size": 8, "num_hypotheses": 8, "min_length": 400, "max_length": 400}


@needs_proc
@pytest.mark.parametrize(
    ("name", "count", "options", "beside"),
    [
        ("transformer", 1, EIGHT, {"attention": True, "source": 400}),
        slow("transformer", 4, EIGHT, {"attention": True, "source": 400}),
        slow("transformer additive", 1, EIGHT, {"attention": True, "source": 200}),
        slow("lstm bahdanau", 4, EIGHT, {"attention": True, "source": 400}),
        slow("transformer", 1, EIGHT | {"coverage_penalty": 0.2}, {"source": 400}),
    ],
)
def test_the_estimate_counts_the_attention_of_outputs(name, count, options, beside):
    estimate, taken = measured(name, count, options, beside)
    assert taken <= estimate <= 2 * taken, (estimate / MEBIBYTE, taken / MEBIBYTE)


@needs_proc
@pytest.mark.parametrize(
    ("count", "options", "beside"),
    [
        (1, {"max_length": 200}, {"banned": (1000, 100)}),
        slow(1, {"beam_size": 64, "max_length": 50}, {"banned": (1000, 40)}),
        slow(4, {"max_length": 200}, {"banned": (1000, 100), "required": (1, 2)}),
        slow(1, {"beam_size": 32, "min_length": 800, "max_length": 800}, {"required": (60, 10)}),
        slow(4, {"beam_size": 8, "max_length": 1000}, {"required": (20, 50)}),
    ],
)
def test_the_estimate_counts_phrases_and_their_automaton(count, options, beside):
    estimate, taken = measured("transformer", count, options, beside)
    assert taken <= estimate <= 2.5 * taken, (estimate / MEBIBYTE, taken / MEBIBYTE)


def test_attention_and_phrases_that_cannot_fit_are_refused():
    """A search that would fit without them."""
    made = model("transformer")
    limit_searches(made, 8 * MEBIBYTE)
    config = DecodeConfig(max_length=300)
    source = [5, 6, 7, 8] * 200
    fitting = [GenerationRequest(source, len(source))]
    assert len(list(search(SearchTask(made, Tokens.of, config), fitting))) == 1
    with pytest.raises(InvalidArgument, match="max_length: wanted a search within 8 MiB"):
        list(search(SearchTask(made, Tokens.of, config, attention=True), fitting))
    long = [[8 + number // 3**place % 3 for place in range(100)] for number in range(1000)]
    phrases = [GenerationRequest(source, len(source), banned=long, required=[[5, 6]])]
    with pytest.raises(InvalidArgument, match="wanted a search within 8 MiB"):
        list(search(SearchTask(made, Tokens.of, config), phrases))


@needs_proc
@pytest.mark.parametrize("name", ["transformer", "transformer additive"])
def test_a_search_takes_what_its_outputs_need_and_not_what_they_might(name):
    options = {"beam_size": 4, "max_length": 100_000, "early_stopping": True}
    _, taken = measured(name, 8, options)
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
        stream(task, GenerationRequest([5, 6], 2))


def test_inputs_that_do_not_fit_together_are_searched_one_after_another():
    made = model("transformer")
    rows = sources()
    wanted = decode(made, rows, beam_size=20, max_length=100)
    limit_searches(made, 4 * MEBIBYTE)
    found = decode(made, rows, beam_size=20, max_length=100)
    assert found == wanted


def test_the_longest_request_decides_whether_a_search_is_small(monkeypatch):
    """What a small one takes is not counted, even where almost no memory is free."""
    made = model("transformer")
    monkeypatch.setattr(search_memory, "free_bytes", lambda device: MEBIBYTE)
    options = {"max_length": 100_000, "max_length_ratio": 1000.0}
    short = [5] * 12
    long = [5] * 20
    assert len(decode(made, [short, short], **options)) == 2
    with pytest.raises(InvalidArgument, match="max_length: wanted a search within"):
        decode(made, [short, long], **options)
