"""The compiled loop of a search equals the loop in Python, token for token and bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from regard.core.sequence import Tokens
from regard.data.special_tokens import END, MASK, PAD, START, SpecialTokens
from regard.generation.choose.interfaces import LogitsProcessor
from regard.generation.choose.logits_processors import NoRepeatNgram, SuppressTokens
from regard.generation.config import DecodeConfig
from regard.generation.engines.choice_kernels import log_softmax
from regard.generation.engines.cpu import compile
from regard.generation.engines.cpu.convolution import NativeConvDecoder
from regard.generation.engines.cpu.decoder import NativeDecoder
from regard.generation.engines.cpu.engine import CpuEngine
from regard.generation.engines.cpu.recurrent import NativeRnnDecoder
from regard.generation.engines.loop import GreedyTensors, Interrupt, LoopBounds, SearchLoop
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search, stream
from regard.model import capture
from regard.model.seq2seq import Seq2Seq
from support.models import DECODERS, VOCABULARY, decoder, memory
from support.search import LONGEST, decode, model, sources, token_ids

pytestmark = pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")
ENGINE = CpuEngine()
with torch.random.fork_rng():  # other modules build models at import, of whatever is drawn before
    MEMBERS = [name for name in DECODERS if ENGINE.compile_decoder(decoder(name)) is not None]
LOOPS = (NativeDecoder, NativeRnnDecoder, NativeConvDecoder)
SEARCHES = {
    "greedy": {},
    "beam": {"beam_size": 3, "num_hypotheses": 3},
    "greedy, constrained": {"min_length": 4, "no_repeat_ngram_size": 2},
    "beam, constrained": {
        "beam_size": 4,
        "num_hypotheses": 2,
        "min_length": 4,
        "no_repeat_ngram_size": 2,
    },
}
BEAMS = {
    "full": {"early_stopping": True},
    "full, reward": {"early_stopping": True, "length_penalty": -0.5},
    "never": {"early_stopping": "never", "length_penalty": 0.7},
    "never, reward": {"early_stopping": "never", "length_penalty": -0.5},
    "no penalty": {"length_penalty": 0.0},
    "fractions": {"length_penalty": 0.6},
    "fractions of long outputs": {"length_penalty": 0.9, "max_length": 40, "min_length": 20},
    "unigrams": {"no_repeat_ngram_size": 1, "min_length": 3},
    "short": {"max_length": 1},
    "wide": {"beam_size": 20, "num_hypotheses": 20},
}


class Counted:
    """Counts the calls of compiled loops and the steps they take."""

    def __init__(self) -> None:
        self.calls = self.steps = 0


@contextmanager
def loops(*, enabled: bool) -> Iterator[Counted]:
    """Compiled loops, counted, or none."""
    counted = Counted()
    with pytest.MonkeyPatch.context() as patch:
        for kind in LOOPS:
            plain = kind.search

            def loop(self, *given, plain=plain, **options):
                found = plain(self, *given, **options) if enabled else None
                counted.calls = counted.calls + 1
                counted.steps = counted.steps + (0 if found is None else found[0])
                return found

            patch.setattr(kind, "search", loop)
        yield counted


def both(made: Seq2Seq, rows: list[list[int]], **options):
    """The hypotheses by the compiled loop, and by Python."""
    with loops(enabled=True) as counted:
        compiled = decode(made, rows, **options)
    assert counted.steps >= counted.calls > 0
    with loops(enabled=False):
        return compiled, decode(made, rows, **options)


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_searches_as_in_python(name, options):
    """Slots are filled again and evicted from full caches meanwhile: `batch_tokens` leaves room for few."""
    compiled, plain = both(model(name), sources(), **options, batch_tokens=13)
    assert compiled == plain


@pytest.mark.parametrize("options", BEAMS.values(), ids=BEAMS)
def test_every_option_of_beam_search(options):
    compiled, plain = both(
        model("transformer"), sources(), **{"beam_size": 3, "num_hypotheses": 3, **options}
    )
    assert compiled == plain


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("ends", [True, False])
def test_prefixes_and_outputs_without_an_end(beams, ends):
    prefixes = [[5, 6, 7][: n % 4] for n in range(len(sources()))]
    options = {"beam_size": beams, "min_length": 3, "no_repeat_ngram_size": 2, "ends": ends}
    compiled, plain = both(
        model("transformer"), sources(), prefixes=prefixes, **options, batch_tokens=13
    )
    assert compiled == plain
    assert all(
        list(one[0].tokens[: len(prefix)]) == prefix
        for one, prefix in zip(plain, prefixes, strict=True)
    )


@pytest.mark.parametrize("beams", [1, 3])
def test_special_tokens(beams):
    """Several end tokens, a forced prefix, and a prompt that contains an end token."""
    special = SpecialTokens(target_prefix=(7, 8), other_ends=(5, 9), suppressed=(0, 1, 4, 10))
    requests = [
        GenerationRequest(row, len(row), prefix=[5, END, 6][:n], given=n)
        for n, row in enumerate(sources()[:4])
    ]
    task = SearchTask(
        model("transformer"),
        Tokens.of,
        DecodeConfig(beam_size=beams, max_length=12),
        scored=True,
        special_tokens=special,
    )
    with loops(enabled=True) as counted:
        compiled = dict(search(task, requests))
    assert counted.steps > 0
    with loops(enabled=False):
        assert compiled == dict(search(task, requests))


def test_unscored_greedy_search_compares_logits():
    made = model("transformer")
    rows = sources()
    task = SearchTask(made, Tokens.of, DecodeConfig(max_length=LONGEST))
    requests = [GenerationRequest(row, len(row)) for row in rows]
    with loops(enabled=True) as counted:
        compiled = dict(search(task, requests))
    assert counted.steps > counted.calls
    with loops(enabled=False):
        assert compiled == dict(search(task, requests))


class Nothing(LogitsProcessor):
    """Changes no score, in Python."""

    masks_only = True

    def __call__(self, scores, generated) -> None:
        pass


@pytest.mark.parametrize("beams", [1, 3])
def test_what_python_must_do_is_done_in_python_with_the_same_bits(beams):
    made = model("transformer")
    rows = sources()
    options = {"beam_size": beams, "batch_tokens": 13}
    with loops(enabled=True) as counted:
        compiled = decode(made, rows, **options)
    assert counted.steps > 0
    with loops(enabled=True) as counted:
        assert decode(made, rows, processors=[Nothing()], **options) == compiled
        with capture.capture_attention():
            assert decode(made, rows, **options) == compiled
    assert counted.steps == 0


class SuppressLater(SuppressTokens):
    """Its own call: what its parent's class says of a compiled loop is not true of it."""

    def __call__(self, scores, generated) -> None:
        if int(generated.length.max()) > 0:
            super().__call__(scores, generated)


@pytest.mark.parametrize("beams", [1, 3])
def test_processors_of_ones_own_are_added_to_those_of_the_loop(beams):
    """Two lists of suppressed tokens, and two sizes of n-grams."""
    made = model("transformer")
    rows = sources()
    options = {"beam_size": beams, "no_repeat_ngram_size": 1}
    with torch.no_grad():
        made.decoder.project.bias[PAD] = 6.0  # which is never generated, likely as it is here
    usual = decode(made, rows, **options)
    own = [SuppressTokens((usual[0][0].tokens[0],)), NoRepeatNgram(3)]
    with loops(enabled=True) as counted:
        compiled = decode(made, rows, processors=own, **options)
    assert counted.steps > 0
    with loops(enabled=False):
        assert compiled == decode(made, rows, processors=own, **options) != usual


@pytest.mark.parametrize("beams", [1, 3])
def test_a_processor_with_another_call_than_its_parents_stays_in_python(beams):
    made = model("transformer")
    rows = sources()
    options = {"beam_size": beams}
    usual = decode(made, rows, **options)
    first = usual[0][0].tokens[0]
    with loops(enabled=True) as counted:
        found = decode(made, rows[:1], processors=[SuppressLater((first,))], **options)
        assert counted.steps == 0
        other = decode(made, rows[:1], processors=[SuppressTokens((first,))], **options)
    assert found[0][0].tokens[:1] == (first,) != other[0][0].tokens[:1]


def test_a_stream_takes_one_step_at_a_time():
    made = model("transformer")
    row = sources()[0]
    task = SearchTask(made, Tokens.of, DecodeConfig(max_length=LONGEST))
    with loops(enabled=True) as counted:
        streamed = stream(task, GenerationRequest(row, len(row)))
        first = next(streamed)
        assert counted.steps == 1
        tokens = [first, *streamed]
    assert tuple(tokens) == dict(search(task, [GenerationRequest(row, len(row))]))[0][0].tokens


def test_log_softmax_is_that_of_pytorch():
    for width in (3, 16, 64, 1000):
        logits = 20 * torch.randn(7, 2, width, generator=torch.Generator().manual_seed(width))
        torch.testing.assert_close(
            log_softmax(logits), logits.double().log_softmax(-1).float(), atol=2e-6, rtol=1e-6
        )


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_the_best_of_equal_and_of_undefined_logits_is_that_of_pytorch(value):
    made = model("transformer")
    rows = sources()[:3]
    with torch.no_grad():
        made.decoder.project.weight.fill_(value)
        made.decoder.project.bias.fill_(0.0)
    compiled, plain = both(made, rows)
    assert token_ids(compiled) == token_ids(plain)


@pytest.mark.parametrize("beams", [2, 3, 5])
def test_of_equal_candidates_the_first_comes_first(beams):
    """Where all tokens are equally likely, the order of the vocabulary decides.

    Only the engine promises this: in PyTorch, the order of equal candidates may be any.
    """
    made = model("transformer")
    rows = sources()[:3]
    with torch.no_grad():
        made.decoder.project.weight.zero_()
        made.decoder.project.bias.zero_()
    options = {"beam_size": beams, "num_hypotheses": beams, "max_length": 1, "min_length": 1}
    with loops(enabled=True) as counted:
        found = token_ids(decode(made, rows, **options))
    assert counted.steps > 0
    first = [token for token in range(VOCABULARY) if token not in (PAD, START, MASK, END)][:beams]
    assert found == [[(token,) for token in first]] * len(rows)


def greedy_loop(batch: int) -> SearchLoop:
    """Of a greedy search over so many slots, before its first token."""
    numbers = {
        name: torch.zeros(batch, dtype=torch.int64) for name in ("length", "min_length", "prompt")
    }
    return SearchLoop(
        tokens=torch.zeros(batch, 1, LONGEST + 1, dtype=torch.int64),
        log_p=torch.zeros(batch, 1, LONGEST + 1),
        limit=torch.full((batch,), LONGEST),
        prefix=torch.full((batch, 1), -1),
        first=torch.ones(batch, dtype=torch.int64),
        done=torch.zeros(batch, dtype=torch.bool),
        suppressed=(0,),
        ends=(END,),
        forced=0,
        no_repeat_ngram_size=2,
        allow_end=False,
        normalized=True,
        greedy=GreedyTensors(torch.zeros(batch, 1, dtype=torch.bool)),
        **numbers,
    )


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("prefix", VOCABULARY, "token of a prefix"),
        ("prefix", -2, "token of a prefix"),
        ("length", LONGEST + 1, "length of an output"),
        ("length", -1, "length of an output"),
        ("prompt", -1, "length of an output"),
        (
            "limit",
            LONGEST + 3,
            "limit of an output",
        ),  # beyond the room for tokens, as are the steps
        ("limit", 0, "limit of an output"),
        ("suppressed", (VOCABULARY,), "suppressed token"),
        ("suppressed", (-1,), "suppressed token"),
        ("ends", (VOCABULARY,), "end token"),
        ("last", VOCABULARY, "token id"),
        ("last", -1, "token id"),
    ],
)
@pytest.mark.parametrize("name", ["transformer", "lstm bahdanau", "conv"])
@torch.inference_mode()
def test_arguments_out_of_range_are_refused(name, field, value, match):
    """Instead of reading or writing other memory."""
    compiled = ENGINE.compile_decoder(decoder(name))
    loop = greedy_loop(3)
    last = torch.ones(3, 1, dtype=torch.int64)
    if isinstance(value, tuple):
        loop = replace(loop, **{field: value})
    else:
        (last if field == "last" else getattr(loop, field)).fill_(value)
    state = compiled.start(memory(), batch=3, capacity=LONGEST + 3)
    with pytest.raises(IndexError, match=match):
        compiled.search(last, state, loop, LoopBounds(steps=LONGEST + 3, stop=3))


@torch.inference_mode()
@pytest.mark.parametrize("name", ["transformer", "rnn", "conv"])
def test_a_loop_ends_after_a_time_and_where_it_is_interrupted(name):
    """Each after the step in which it happens, so that at least one is taken; without either, after all steps."""
    compiled = ENGINE.compile_decoder(decoder(name))
    interrupt = Interrupt()
    # So many that a step takes far more than a microsecond.
    slots = 3000
    read = memory().reorder(torch.arange(slots) % 3)

    def steps(**bounds) -> int:
        loop = replace(greedy_loop(slots), ends=())
        last = torch.ones(slots, 1, dtype=torch.int64)
        state = compiled.start(read, batch=slots, capacity=8)
        return compiled.search(last, state, loop, LoopBounds(steps=4, stop=slots, **bounds))[0]

    assert steps() == steps(microseconds=60_000_000) == steps(interrupt=interrupt) == 4
    assert steps(microseconds=1) == 1
    interrupt.set()
    assert steps(interrupt=interrupt) == 1
    interrupt.clear()
    assert steps(interrupt=interrupt) == 4
    with pytest.raises(IndexError, match="time of a loop"):
        steps(microseconds=-1)


@torch.inference_mode()
def test_a_generated_token_out_of_range_is_refused():
    compiled = ENGINE.compile_decoder(decoder("transformer"))
    loop = greedy_loop(3)
    loop.tokens.fill_(VOCABULARY)
    loop.length.fill_(2)
    last = torch.ones(3, 1, dtype=torch.int64)
    state = compiled.start(memory(), batch=3, capacity=8)
    with pytest.raises(IndexError, match="generated token"):
        compiled.search(last, state, loop, LoopBounds(steps=1, stop=1))
