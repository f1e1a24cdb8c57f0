"""The static decoder and decode buffers, as recorded on a GPU; here every step is launched, on a CPU."""

import ctypes
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from test_cpu_decoder import COMPILED, one_weight, stepped
from torch.nn import functional as F

from regard.core.sequence import Tokens
from regard.data.special_tokens import END, START
from regard.generation import batch_plan, search as searching, search_batch
from regard.generation.choose.beam import BeamSearch
from regard.generation.choose.greedy import GreedySearch
from regard.generation.choose.interfaces import GeneratedTokens
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.base import Engine
from regard.generation.engines.cuda import buffers, static_decoder as static_decoders
from regard.generation.engines.cuda.encode import CastEncoder, GraphedEncoder
from regard.generation.engines.cuda.static_decoder import StaticDecoder, _decoders, static_decoder
from regard.generation.engines.plain_transformer import is_plain
from regard.generation.engines.torch import PyTorchEngine
from regard.generation.request import GenerationRequest, SearchTask, plan_requests
from regard.generation.search import Search
from regard.kernels import cuda_graphs
from regard.model.build import build
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder
from support.models import SMALL, VOCABULARY, WIDTH, decoder, encoder, memory, words
from support.search import LONGEST, STRATEGIES, decode, model, sources, token_ids

KINDS = ("transformer", "lstm bahdanau", "conv")


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("beams", [1, 2, 3])
@torch.inference_mode()
def test_static_steps_equal_plain_ones(name, beams):
    """Through follow, reorder, admit and eviction."""
    module, given = decoder(name), memory()
    fixed = static_decoder(module, torch.float32)
    states = [each.start(given, batch=3, capacity=8, beams=beams) for each in (module, fixed)]
    generator = torch.Generator().manual_seed(1)

    def step(rows: int) -> None:
        tokens = torch.randint(VOCABULARY, (rows * beams,), generator=generator)
        logits, states[0] = module.step(tokens, states[0])
        states[1].reserve()
        mine, states[1] = fixed.step(tokens, states[1])
        torch.testing.assert_close(mine, logits, atol=2e-5, rtol=1e-4)
        parents = torch.randint(beams, (rows, beams), generator=generator)
        states[:] = [each.follow(parents) for each in states]

    for _ in range(4):
        step(3)
    some = given.reorder(torch.tensor([2, 0]))
    fresh = [each.start(some, batch=2, capacity=0, beams=beams) for each in (module, fixed)]
    states[:] = [
        mine.admit(torch.tensor([0, 2]), new) for mine, new in zip(states, fresh, strict=True)
    ]
    for _ in range(3):
        step(3)
    states[:] = [each.reorder(torch.tensor([2, 0])) for each in states]  # the ones admitted later
    for _ in range(4):  # past the capacity: the older half is evicted
        step(2)


@pytest.mark.parametrize("beams", [1, 2, 3])
@torch.inference_mode()
def test_a_restarted_state_is_a_new_one(beams):
    """Nothing of the search before: neither its steps, nor which hypothesis followed which, nor when slots began."""
    module, given = decoder("transformer"), memory()
    fixed = static_decoder(module, torch.float32)
    used, new = (fixed.start(given, batch=3, capacity=8, beams=beams) for _ in range(2))
    for _ in range(5):
        assert used.reserve()
        fixed.step(torch.arange(3 * beams), used)
        used.follow(torch.arange(beams).roll(1).expand(3, beams))
    used.admit(
        torch.tensor([1]),
        fixed.start(given.reorder(torch.tensor([1])), batch=1, capacity=0, beams=beams),
    )
    used.steps = 0
    used.clear()
    assert (used.steps, used.time.tolist(), used.admitted.tolist()) == (0, [0], [0, 0, 0])
    assert torch.equal(used.parents, new.parents)
    for tokens in torch.arange(2 * 3 * beams).view(2, -1):
        assert used.reserve()
        assert new.reserve()
        torch.testing.assert_close(fixed.step(tokens, used)[0], fixed.step(tokens, new)[0])


@torch.inference_mode()
def test_steps_are_reserved_where_there_is_room_for_all_of_them():
    state = static_decoder(decoder("transformer"), torch.float32).start(
        memory(), batch=3, capacity=8
    )
    assert [state.reserve(count) for count in (3, 5, 1)] == [True, True, True]
    assert (state.steps, int(state.time)) == (5, -4)  # the older half was dropped for the last one
    assert not state.reserve(4)
    assert state.steps == 5
    assert state.reserve(3)
    assert state.steps == 8


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    class StaticEngine(Engine):
        """Static buffers for every decoder."""

        def decoder_for(self, model, **options):
            if isinstance(model.decoder, TransformerDecoder) and is_plain(model.decoder):
                return static_decoder(model.decoder, torch.float32)
            decoder = PyTorchEngine().decoder_for(model, **options)
            decoder.static = True
            return decoder

        def encode(self, model, source, *, half, int8=False):
            return model.encode(source)

    monkeypatch.setattr(selection, "ENGINES", (StaticEngine(),))
    monkeypatch.setattr(search_batch, "MIN_HYPOTHESES", 0)
    monkeypatch.setattr(cuda_graphs, "capture", lambda work, **_: work)
    monkeypatch.setattr(buffers, "_memory", lambda _: 1 << 30)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "options",
    [*STRATEGIES, {"beam_size": 4, "beam_groups": 2, "no_repeat_ngram_size": 2, "min_length": 3}],
    ids=str,
)
def test_search_results_equal_plain_ones(name, options, request):
    made, rows, prefixes = model(name), sources()[:8], [(), (5, 9), (7,), *[()] * 5]
    runs = [
        partial(decode, made, rows, **options, batch_tokens=13),  # with continuous batching
        partial(decode, made, rows, **options, prefixes=prefixes, banned=[[6], [7, 8]]),
    ]
    plain = [run() for run in runs]
    request.getfixturevalue("_as_on_a_gpu")
    again = runs[0]()  # repeated below, in kept buffers
    for outputs, wanted in zip([again, *(run() for run in runs)], [plain[0], *plain], strict=True):
        assert token_ids(outputs) == token_ids(wanted)
        for one, other in zip(outputs, wanted, strict=True):
            assert [each.score for each in one] == pytest.approx(
                [each.score for each in other], abs=1e-4
            )


@pytest.mark.parametrize("beams", [1, 3])
def test_slots_take_steps_past_the_end_of_learned_positions(beams, request):
    """Those whose sequence has ended, while others go on."""
    short = replace(SMALL, positions="learned", max_positions=LONGEST)
    made = model("transformer")
    made.decoder = TransformerDecoder(short, words(), made.decoder.project, WIDTH).eval()
    run = partial(decode, made, sources(), beam_size=beams, batch_tokens=13)
    plain = run()
    request.getfixturevalue("_as_on_a_gpu")
    assert token_ids(run()) == token_ids(plain)


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.usefixtures("_as_on_a_gpu")
def test_static_steps_move_no_tensor(name, options, monkeypatch):
    static_steps, steps = buffers.StaticBuffers._static_steps, []

    def watched(self, count):
        for _ in range(count):
            before = [x.data_ptr() for x in self.tensors()]
            static_steps(self, 1)
            assert [x.data_ptr() for x in self.tensors()] == before
            steps.append(1)

    monkeypatch.setattr(buffers.StaticBuffers, "_static_steps", watched)
    decode(model(name), sources()[:6], **options, batch_tokens=13)
    assert steps


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_buffers_are_kept_for_the_next_search(monkeypatch):
    made, rows, fresh = model("transformer"), sources(), []
    new_buffers = search_batch.SearchBatch._new_buffers
    monkeypatch.setattr(
        search_batch.SearchBatch, "_new_buffers", lambda self: fresh.append(1) or new_buffers(self)
    )
    first = token_ids(decode(made, rows))
    count = len(fresh)
    assert token_ids(decode(made, rows)) == first
    assert len(fresh) == count
    decode(made, rows, max_length=20)  # of another size
    assert len(fresh) > count
    one = token_ids(decode(made, rows, sample=True, seed=1))
    count = len(fresh)
    other = token_ids(decode(made, rows, sample=True, seed=2))  # another seed, in the same buffers
    assert len(fresh) == count
    assert other != one
    assert other == token_ids(decode(deepcopy(made), rows, sample=True, seed=2))
    count = len(fresh)
    turned = token_ids(decode(made, rows[::-1], sample=True, seed=2))  # and of other inputs
    assert len(fresh) == count
    assert turned == token_ids(decode(deepcopy(made), rows[::-1], sample=True, seed=2))
    task = SearchTask(made, Tokens.of, DecodeConfig(max_length=12))
    begun = [
        replace(task, first=first, model=some)
        for first in (START, END)
        for some in (made, deepcopy(made))
    ]
    inputs = [GenerationRequest(row, len(row)) for row in rows[:4]]
    one, same, other, again = (sorted(searching.search(each, inputs)) for each in begun)
    assert one == same
    assert other == again
    assert one != other  # the token before the first
    kept = buffers.buffer_pool(static_decoder(made.decoder, torch.float32))
    assert len(kept.kept) > 1
    monkeypatch.setattr(buffers, "_memory", lambda _: 1)
    decode(made, rows)
    assert not kept.kept


@pytest.mark.parametrize(
    "change",
    [partial(stepped, fused=False), partial(stepped, fused=True), one_weight],
    ids=["plain", "fused", "one"],
)
def test_changed_weights_are_copied_into_the_same_memory(change):
    module, given = decoder("transformer"), memory()
    fixed = static_decoder(module, torch.float32)
    where = fixed.weights.project.weight.data_ptr()
    change(module)
    assert static_decoder(module, torch.float32) is fixed
    fixed.refresh(Seq2Seq(encoder("transformer"), module))
    assert fixed.weights.project.weight.data_ptr() == where
    tokens = torch.tensor([5, 6, 7])
    with torch.inference_mode():
        wanted, _ = module.step(tokens, module.start(given, batch=3, capacity=2))
        logits, _ = fixed.step(tokens, fixed.start(given, batch=3, capacity=2))
    torch.testing.assert_close(logits, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_the_output_with_the_largest_limit_ends_first():
    """The other slots are past their limits while requests are queued, for more steps than the cache holds."""
    made = model("transformer")
    made.decoder.project.bias.data[END] = -1e9  # no output ends before its limit
    rows = [[5] * 12, *[[5 + n % 6] * 10 for n in range(120)]]
    inputs = [
        GenerationRequest(row, len(row), (5,) * 5 + (END,) if n == 0 else ())
        for n, row in enumerate(rows)
    ]
    task = SearchTask(
        made, Tokens.of, DecodeConfig(max_length=40, max_length_ratio=1.0, batch_tokens=12 * 17)
    )
    hits = dict(searching.search(task, inputs))
    assert [len(hits[n][0].tokens) for n in range(len(rows))] == [5, *[10] * 120]


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("length", [1, 3, 4, 6, 8, 11])
def test_steps_continue_while_weights_are_compared(length, monkeypatch):
    """Up to eight are launched before the comparison; if weights have changed, they are repeated."""
    made, rows = model("transformer"), sources()[:1]
    made.decoder.project.bias.data[END] = -1e9  # no output ends before its limit
    taken, compared, right, refresh = [], [], buffers.StaticBuffers.steps, StaticDecoder.refresh
    monkeypatch.setattr(
        buffers.StaticBuffers,
        "steps",
        lambda self, count: taken.append(count) or right(self, count),
    )
    monkeypatch.setattr(
        StaticDecoder, "refresh", lambda *given: compared.append(sum(taken)) or refresh(*given)
    )
    before = token_ids(decode(made, rows, max_length=length))
    assert (compared, sum(taken)) == ([min(length, 8)], length)
    made.decoder.project.weight.data.mul_(-2)
    taken.clear()
    found = token_ids(decode(made, rows, max_length=length))
    assert sum(taken) == min(length, 8) + length
    assert before != found == token_ids(decode(deepcopy(made), rows, max_length=length))


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_search_uses_changed_weights():
    made, rows = model("transformer"), sources()[:4]
    before = token_ids(decode(made, rows))
    made.decoder.project.weight.data.mul_(-2)  # not counted by PyTorch's version counter
    changed = token_ids(decode(made, rows))
    assert changed != before
    assert changed == token_ids(decode(deepcopy(made), rows))
    made.decoder.project.weight.data.mul_(-0.5)
    task = SearchTask(made, Tokens.of, DecodeConfig(max_length=12))
    streamed = [tuple(searching.stream(task, GenerationRequest(row, len(row)))) for row in rows]
    assert streamed == [
        tokens for (tokens,) in token_ids(decode(deepcopy(made), rows, max_length=12))
    ]


@torch.inference_mode()
def test_a_graphed_encoder_encodes_smaller_batches(monkeypatch):
    """Fewer and shorter sources after more and longer ones; earlier memories are copies that replays do not change."""
    module, rows, one = (
        encoder("transformer"),
        sources(),
        GraphedEncoder(12, 16, torch.device("cpu")),
    )

    def record(work, **_):
        work()
        kept = one.memory

        def play():
            work()
            for name in ("states", "mask", "summary"):
                getattr(kept, name).copy_(getattr(one.memory, name))
            one.memory = kept

        return play

    monkeypatch.setattr(cuda_graphs, "capture", record)
    monkeypatch.setattr(cuda_graphs, "WARMUP", 0)
    given = [Tokens.of(some) for some in (rows, [row[:4] for row in rows[2:6]])]
    for source, encoded in [(source, one(module, source)) for source in given]:
        wanted, length = module(source), source.ids.shape[1]
        assert len(encoded.states) == len(source.ids)
        torch.testing.assert_close(encoded.states[:, :length], wanted.states)
        assert torch.equal(encoded.mask[:, :length], wanted.mask)
        assert not encoded.mask[:, length:].any()


def test_a_static_decoder_is_released_with_the_model():
    module = decoder("transformer")
    assert isinstance(static_decoder(module, torch.float32), StaticDecoder)
    before = len(_decoders)
    del module
    assert len(_decoders) == before - 1


def test_recorded_sizes_are_few():
    assert [static_decoders.rounded(count, up=True) for count in (1, 2, 3, 5, 7, 64, 65, 100)] == [
        1,
        2,
        3,
        6,
        8,
        64,
        96,
        128,
    ]
    assert [static_decoders.rounded(count, up=False) for count in (1, 5, 7, 64, 65, 100)] == [
        1,
        4,
        6,
        64,
        64,
        96,
    ]


def test_half_precision_without_a_gpu_is_logged_once(caplog):
    made, rows = model("transformer"), sources()[:3]
    batch_plan._warn_float32.cache_clear()
    half = [token_ids(decode(made, rows, precision="bfloat16")) for _ in range(2)]
    assert half[0] == half[1] == token_ids(decode(made, rows))
    assert caplog.text.count("precision = 'bfloat16' is for GPUs") == 1


@pytest.mark.parametrize("strategy", [BeamSearch, GreedySearch])
def test_a_finished_slot_does_not_change(strategy):
    generator, rows, beams = (
        torch.Generator().manual_seed(1),
        12,
        3 if strategy is BeamSearch else 1,
    )
    generated = GeneratedTokens(
        *(
            torch.full(size, 0)
            for size in ((rows, beams, 17), (rows,), (rows,), (rows,), (rows, 1), (rows,))
        )
    )
    config = DecodeConfig(
        beam_size=beams, num_hypotheses=beams, length_penalty=3.0
    )  # a later end would score higher
    scored = {"scored": True} if strategy is GreedySearch else {}
    searched = strategy(config, generated, torch.arange(4, 16), [], ends=True, **scored)
    searched.admit(torch.arange(rows), torch.arange(rows))
    first = {}
    for _ in range(16):
        searched.advance(2 * torch.randn(rows, beams, 7, generator=generator))
        for row in searched.done.nonzero()[:, 0].tolist():
            first.setdefault(row, searched.hypotheses(torch.tensor([row]))[0])
    assert searched.hypotheses(torch.arange(rows)) == [first[row] for row in range(rows)]


def test_a_gpu_reads_every_word_of_every_weight_for_the_fingerprints(monkeypatch):
    """Their addresses and sizes, as its kernel is given them; a change of any last number is noticed."""
    module, given = decoder("transformer"), []

    class Kernels:
        @staticmethod
        def fingerprints(addresses, sizes):
            given.append((addresses.tolist(), sizes.tolist()))
            pairs = zip(*given[-1], strict=True)
            read = [(ctypes.c_uint32 * size).from_address(address) for address, size in pairs]
            return torch.tensor([sum(each) for each in read])

    monkeypatch.setattr(static_decoders, "kernels", lambda weight: Kernels)
    monkeypatch.setattr(static_decoders, "_fingerprint_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    tensors = static_decoders.weights(module)
    wanted = [each.data_ptr() for each in tensors], [each.numel() for each in tensors]
    with monkeypatch.context() as unread:  # sizes before anything is read by them
        unread.setattr(
            Kernels, "fingerprints", lambda addresses, sizes: given.append(sizes.tolist()) or sizes
        )
        static_decoders.WeightFingerprint(module)
    assert given.pop() == wanted[1]
    fingerprint = static_decoders.WeightFingerprint(module)
    assert given == [wanted]
    for weight in tensors:
        weight.data.view(-1)[-1] += 1
        assert fingerprint.changed(module)
        assert not fingerprint.changed(module)


@pytest.mark.parametrize("bias", ["all", "none"])
@torch.inference_mode()
def test_an_encoder_with_cast_weights_computes_the_same_bit_for_bit(bias, monkeypatch):
    """As autocast casts them, also after they have changed; without joining the projections of a layer anew."""
    side = {
        "kind": "transformer",
        "dim": 16,
        "layers": 2,
        "heads": 2,
        "ffn_dim": 24,
        "attention_bias": bias,
    }
    module = build({"encoder": side, "vocab_size": 20, "decoder": side}).encoder.eval()
    source = Tokens.of([[5, 6, 7], [8]])
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        cast = CastEncoder(module, ())
        for weight in (None, *static_decoders.weights(module)):
            if weight is not None:
                weight.data.add_(
                    0.3 * torch.randn_like(weight)
                )  # not counted by PyTorch's version counter
            assert torch.equal(cast(source).states, module(source).states)
        joined, right = [], torch.cat
        monkeypatch.setattr(
            torch, "cat", lambda parts, *more: joined.append(len(parts)) or right(parts, *more)
        )
        cast(source)
        assert 3 not in joined
        module(source)
        assert 3 in joined
    assert not {x.data_ptr() for x in cast.casts} & {
        x.data_ptr() for x in static_decoders.weights(module)
    }


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_recorded_beginning_reads_the_memory_of_each_search(monkeypatch):
    """One sentence at a time, in buffers that are kept, padded to few lengths; two are read at one address each."""
    made, rows = model("transformer"), [row for row in sources() if len(row) > 1]

    def encode(self, made, source, **_):
        return made.encode(Tokens(F.pad(source.ids, (0, source.ids.shape[1] % 2)), source.lengths))

    monkeypatch.setattr(type(selection.ENGINES[0]), "encode", encode)
    monkeypatch.setattr(buffers, "BEGINNINGS", 2)
    starts, right = [], StaticDecoder.start

    def start(self, memory, **sizes):
        if sizes["capacity"] == 0:
            starts.append(memory.states)
        return right(self, memory, **sizes)

    monkeypatch.setattr(StaticDecoder, "start", start)
    wanted = [token_ids(decode(deepcopy(made), [row])) for row in rows]
    assert len({str(each) for each in wanted}) > 3
    starts.clear()
    for _ in range(3):
        assert [token_ids(decode(made, [row])) for row in rows] == wanted
    read = {
        shape: {x.data_ptr() for x in starts if x.shape == shape}
        for shape in {x.shape for x in starts}
    }
    assert len(read) == 3
    assert sum(len(addresses) == 1 for addresses in read.values()) >= 2


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_requests_that_a_server_admits_one_by_one_before_the_first_step_keep_their_slots():
    made, rows, answers = model("transformer"), sources()[:3], {}
    task = SearchTask(made, Tokens.of, DecodeConfig(max_length=LONGEST))
    running = Search(task, batch_plan.BatchLimits(LONGEST), 4)
    requests = [GenerationRequest(row, len(row)) for row in rows]
    numbers = [running.admit([each])[0] for each in plan_requests(task, requests)]
    while len(running):
        answers |= dict(running.advance()[1])
    alone = [dict(searching.search(task, [each]))[0] for each in requests]
    assert [answers[number] for number in numbers] == alone
    assert len({str(each) for each in alone}) > 1


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_an_output_that_was_streamed_at_first_is_as_long_as_without():
    """Steps that are watched one by one and recorded ones count alike towards its length."""
    made = model("transformer")
    config = DecodeConfig(max_length=LONGEST, min_length=LONGEST - 1)
    task = SearchTask(made, Tokens.of, config)
    requests = [GenerationRequest(row, len(row)) for row in sources()[:3]]
    alone = [dict(searching.search(task, [each]))[0] for each in requests]
    planned = plan_requests(task, requests)
    running = Search(task, batch_plan.BatchLimits.of(planned, 4), 4)
    numbers = running.admit(planned)
    answers = {}
    for _ in range(LONGEST // 2):
        answers |= dict(running.advance()[1])
    for _ in range(LONGEST):
        answers |= dict(running.advance(())[1]) if len(running) else {}
    assert [answers[number] for number in numbers] == alone
