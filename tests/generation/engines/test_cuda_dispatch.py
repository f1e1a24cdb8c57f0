"""What Python decides before a GPU computes: which models it has kernels for, when work is recorded, what is kept."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from regard.core.errors import TrainingFailed
from regard.core.sequence import Tokens
from regard.data.batching import Batch
from regard.generation.engines import half_precision
from regard.generation.engines.buffers import DecodeBuffers
from regard.generation.engines.cuda import (
    buffers,
    encode as encoding,
    engine as cuda_engine,
)
from regard.generation.engines.cuda.engine import CudaEngine, recordable
from regard.generation.engines.cuda.static_decoder import StaticDecoder
from regard.kernels import cuda_graphs, triton_launch
from regard.kernels.cuda_graphs import GraphRecorder
from regard.model.capture import capture_attention
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerEncoder
from regard.training.graphed_update import GraphedUpdate
from support.models import SMALL, decoder, encoder, memory, words


@pytest.fixture
def gpu(monkeypatch):
    """Tensors claim to be on a GPU, and Triton to have kernels for it."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setattr(triton_launch, "available", lambda device: True)
    return monkeypatch


def engine_model(name: str = "transformer", encoder_name: str = "transformer") -> Seq2Seq:
    return Seq2Seq(encoder(encoder_name), decoder(name)).eval()


def given_decoder(monkeypatch, model: Seq2Seq, **options):
    """The type of numbers of the static decoder that the CUDA engine has for a model; None where it has none."""

    def static_decoder(decoder, dtype):
        assert decoder is model.decoder
        made = object.__new__(StaticDecoder)
        made.dtype = dtype
        return made

    monkeypatch.setattr(cuda_engine, "static_decoder", static_decoder)
    found = CudaEngine().decoder_for(model, **{"max_length": 9, **options})
    return None if found is None else found.dtype


def test_the_cuda_engine_has_a_decoder_for_plain_transformers(gpu):
    made = engine_model()
    assert given_decoder(gpu, made) is torch.float32
    assert given_decoder(gpu, made, half=True) is torch.bfloat16
    assert given_decoder(gpu, made.half()) is torch.float16
    assert given_decoder(gpu, engine_model(), window=9) is torch.float32


@pytest.mark.parametrize(
    "name", ["lstm bahdanau", "conv", "transformer rotary", "transformer alibi"]
)
def test_the_cuda_engine_has_none_for_other_decoders(gpu, name):
    assert given_decoder(gpu, engine_model(name)) is None


def test_the_cuda_engine_has_none_where_a_recording_would_be_wrong(gpu):
    made = engine_model()
    assert given_decoder(gpu, made.double()) is None
    made = engine_model()
    assert given_decoder(gpu, made, window=8) is None  # the window slides
    assert given_decoder(gpu, made.train()) is None
    made.eval()
    with gpu.context() as patch:
        patch.setattr(cuda_engine, "intercepting_here", lambda: True)
        assert given_decoder(patch, made) is None
    with gpu.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
        assert given_decoder(patch, made) is None
    with gpu.context() as patch:
        patch.setattr(triton_launch, "available", lambda device: False)
        assert given_decoder(patch, made) is None
    with gpu.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: False), raising=False)
        assert given_decoder(patch, made) is None


@pytest.mark.parametrize(("positions", "limit"), [("learned", 12), ("sinusoidal", 4096)])
def test_the_cuda_engine_has_a_decoder_up_to_the_last_position(gpu, positions, limit):
    """Sinusoidal positions have no limit: there is a table of the first 4096."""
    made = engine_model(f"transformer {positions}")
    if positions == "learned":
        gpu.setattr(cuda_engine, "max_positions", lambda decoder: limit)
    assert given_decoder(gpu, made, max_length=limit) is torch.float32
    assert given_decoder(gpu, made, max_length=limit + 1) is None


@torch.inference_mode()
def test_the_cuda_engine_encodes_texts_of_transformers(gpu):
    asked = []
    found = memory()
    gpu.setattr(
        cuda_engine,
        "encode",
        lambda encoder, source, *, half: asked.append((encoder, half)) or found,
    )
    made, source = engine_model(), Tokens.of([[5, 6, 7]])
    assert CudaEngine().encode(made, source, half=False) is found
    assert CudaEngine().encode(made, source, half=True) is found
    assert asked == [(made.encoder, False), (made.encoder, True)]
    assert CudaEngine().encode(engine_model(encoder_name="lstm"), source, half=False) is None
    assert (
        CudaEngine().encode(engine_model(encoder_name="vit"), torch.zeros(1, 3, 8, 8), half=False)
        is None
    )
    assert CudaEngine().encode(made.train(), source, half=False) is None
    assert len(asked) == 2


@torch.inference_mode()
def test_attention_of_a_recorded_encoder_is_captured_in_a_second_pass(monkeypatch):
    """Once: the recording itself is computed where no capture sees it."""
    made, source, found, calls, inside = engine_model(), Tokens.of([[5, 6, 7]]), memory(), [], []
    monkeypatch.setattr(cuda_engine, "recordable", lambda module: True)
    monkeypatch.setattr(cuda_engine, "autocast", lambda half: nullcontext())
    monkeypatch.setattr(
        cuda_engine,
        "encode",
        lambda encoder, given, *, half: inside.append(cuda_engine.capturing_here()) or found,
    )
    with capture_attention(lambda *call: calls.append(call)):
        assert CudaEngine().encode(made, source, half=False) is found
    assert len(calls) == len(made.encoder.stack.layers)
    assert inside == [False]


def test_recordable_modules(gpu):
    module = nn.Linear(2, 2).eval()
    assert recordable(module)
    for name, value in {
        "intercepting_here": lambda: True,
        "triton_launch.available": lambda device: False,
    }.items():
        with gpu.context() as patch:
            patch.setattr(f"regard.generation.engines.cuda.engine.{name}", value)
            assert not recordable(module)
    with gpu.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
        assert not recordable(module)
    assert not recordable(module.train())
    gpu.setattr(torch.Tensor, "is_cuda", property(lambda tensor: False), raising=False)
    assert not recordable(module.eval())


def test_work_is_recorded_after_two_runs(monkeypatch):
    events, captured = [], []
    monkeypatch.setattr(
        cuda_graphs,
        "capture",
        lambda work, *, release_cache: (
            captured.append(release_cache) or (lambda: events.append("replay"))
        ),
    )
    for release in (False, True):
        recorder = GraphRecorder(release_cache=release)
        for _ in range(5):
            recorder.run("key", lambda: events.append("launch"))
        recorder.run("other", lambda: events.append("launch"))
    assert events == [*["launch"] * 2, *["replay"] * 3, "launch"] * 2
    assert captured == [False, True]


def test_as_many_recordings_as_were_asked_for(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "capture", lambda work, **_: work)
    recorder = GraphRecorder(limit=2)
    for _ in range(4):
        for key in "abc":
            recorder.run(key, lambda: None)
    assert [*recorder.replays] == ["a", "b"]


def test_work_that_cannot_be_recorded_is_launched_and_logged_once(monkeypatch, caplog):
    def fail(work, **_):
        raise RuntimeError("operation not permitted.\nMore of it")

    monkeypatch.setattr(cuda_graphs, "capture", fail)
    cuda_graphs._warn.cache_clear()
    done = []
    for key in "ab":
        recorder = GraphRecorder()
        for _ in range(4):
            recorder.run(key, lambda: done.append(1))
    cuda_graphs._warn.cache_clear()
    assert len(done) == 8
    message = (
        "decoding steps cannot be recorded as CUDA graphs, which is slower: operation not permitted"
    )
    assert caplog.messages == [message]


class FakeCuda:
    """The functions of torch.cuda that a recording calls, which write down their order."""

    def __init__(self, monkeypatch) -> None:
        self.events: list[str] = []
        cuda = self

        class Stream:
            def __init__(self, name) -> None:
                self.name = name

            def wait_stream(self, other) -> None:
                cuda.events.append(f"{self.name} waits for {other.name}")

        class Graph:
            def capture_begin(self, *, capture_error_mode) -> None:
                cuda.events.append(f"begin {capture_error_mode}")

            def capture_end(self) -> None:
                cuda.events.append("end")

            def replay(self) -> None:
                cuda.events.append("replay")

        @contextmanager
        def stream(one):
            cuda.events.append(f"in {one.name}")
            yield

        for name, value in {
            "current_stream": lambda: Stream("current"), "current_device": lambda: 7,
            "CUDAGraph": Graph, "stream": stream, "synchronize": lambda: self.events.append("synchronize"),
            "empty_cache": lambda: self.events.append("empty cache"),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(cuda_graphs, "_capture_stream", {7: Stream("own")}.__getitem__)


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


RECORDING = [
    "own waits for current",
    "in own",
    "begin thread_local",
    "work",
    "end",
    "current waits for own",
]


@pytest.mark.parametrize(
    ("release", "before"), [(False, []), (True, ["synchronize", "empty cache"])]
)
def test_a_recording_is_made_in_a_stream_of_its_own(cuda, release, before):
    replay = cuda_graphs.capture(lambda: cuda.events.append("work"), release_cache=release)
    assert cuda.events == [*before, *RECORDING]
    replay()
    assert cuda.events[-1] == "replay"


def test_the_first_error_of_a_recording_is_raised(cuda, monkeypatch):
    def fail() -> None:
        raise RuntimeError("the cause")

    def end(self) -> None:
        raise RuntimeError("the recording is invalid")

    with pytest.raises(RuntimeError, match="the cause"):
        cuda_graphs.capture(fail)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", end)
    with pytest.raises(RuntimeError, match="the cause"):
        cuda_graphs.capture(fail)
    with pytest.raises(RuntimeError, match="the recording is invalid"):
        cuda_graphs.capture(lambda: None)


@torch.inference_mode()
def test_few_sizes_of_an_encoder_are_kept(monkeypatch):
    monkeypatch.setattr(encoding, "KEPT", 2)
    made, sizes = encoder("transformer"), []
    right = encoding.GraphedEncoder
    monkeypatch.setattr(
        encoding, "GraphedEncoder", lambda *size: sizes.append(size[:2]) or right(*size)
    )

    def encoded(rows: int, length: int) -> None:
        source = Tokens.of([[5] * length] * rows)
        memory = encoding.encode(made, source, half=False)
        torch.testing.assert_close(memory.states[:, :length], made(source).states)

    for rows, length in ((1, 16), (5, 17), (6, 32), (1, 3), (2, 5), (6, 20)):
        encoded(rows, length)
    assert sizes == [
        (1, 16),
        (6, 32),
        (2, 16),
        (6, 32),
    ]  # the least recently used was dropped for the third
    assert len(encoding._encoders[made]) == 2


@pytest.mark.parametrize(
    ("limit", "cls_token", "lengths"),
    [
        (None, False, {1: 16, 16: 16, 17: 32, 33: 48}),
        (20, False, {1: 16, 17: 20, 20: 20}),
        (20, True, {1: 16, 17: 19, 19: 19}),
    ],
)
def test_lengths_are_padded_within_the_positions(limit, cls_token, lengths):
    kinds = (
        {"positions": "sinusoidal"}
        if limit is None
        else {"positions": "learned", "max_positions": limit}
    )
    made = TransformerEncoder(replace(SMALL, cls_token=cls_token, **kinds), words())
    assert {length: encoding._padded_length(made, length) for length in lengths} == lengths


class Kept(buffers.StaticBuffers):
    """What a pool keeps: so many bytes."""

    def __init__(self, size: int) -> None:
        self.state, self.tokens, self.decoder = None, torch.zeros(1), object()
        self.size = size

    def tensors(self):
        return [torch.zeros(self.size, dtype=torch.uint8)]


def test_kept_buffers_use_an_eighth_of_the_memory(monkeypatch):
    monkeypatch.setattr(buffers, "_memory", lambda device: 800)
    pool = buffers.BufferPool()
    for key, size in {"a": 40, "b": 40, "c": 20}.items():
        pool.put(key, Kept(size))
    assert [*pool.kept] == ["a", "b", "c"]
    assert pool.kept["a"].decoder is None
    pool.put("b", Kept(41))
    assert [*pool.kept] == ["c", "b"]
    assert pool.take("a") is None
    assert pool.take("c").size == 20
    assert [*pool.kept] == ["b"]


def batch(length: int, shorter: int = 0) -> Batch:
    """Two sequences, one of which may be shorter and padded."""
    rows = [list(range(5, 6 + length)), list(range(5, 6 + length - shorter))]
    return Batch(None, Tokens.of(rows), 2 * length - shorter, torch.arange(2))


def test_batches_of_few_shapes_without_padding_are_recorded(monkeypatch):
    replayed, warned, module = [], [], nn.Linear(1, 1)

    def capture(work, *, release_cache):
        assert release_cache  # what updates have left there before may be as large as the recording
        return lambda: (replayed.append(1), work())

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    update = GraphedUpdate(module, warned.append)
    assert warned == [
        "train.cuda_graphs: wanted a GPU; got none. Every kernel is launched by itself, to the same result."
    ]
    update.enabled = True

    def losses(given: Batch) -> torch.Tensor:
        module.weight.grad = given.targets.ids.float().sum() * torch.ones(1, 1)
        return given.targets.ids.float().sum(1)

    for length in (3, 4, 5, 6, 7):  # one more than are recorded
        for count in range(4):
            module.weight.grad = None
            assert torch.equal(update(batch(length), losses), losses(batch(length)))
            assert float(module.weight.grad) == float(batch(length).targets.ids.sum())
            assert len(replayed) == min(
                2 * min(length - 3, 4) + max(0, count - 1) * (length < 7), 8
            )
        update(batch(length, shorter=1), losses)
    assert len(replayed) == 8
    assert [shape[0].numel() for shape in update.recorded] == [8, 10, 12, 14]


@pytest.mark.parametrize(
    ("error", "wanted", "message"),
    [
        (torch.OutOfMemoryError("no memory"), torch.OutOfMemoryError, "^no memory$"),
        (
            RuntimeError("operation not permitted.\nMore"),
            TrainingFailed,
            r"train.cuda_graphs: wanted work that can be recorded; got operation not permitted\. The checkpoints",
        ),
    ],
)
def test_training_ends_where_an_update_cannot_be_recorded(monkeypatch, error, wanted, message):
    def fail(work, **_):
        raise error

    monkeypatch.setattr(cuda_graphs, "capture", fail)
    update = GraphedUpdate(nn.Linear(1, 1), lambda message: None)
    update.enabled = True
    for _ in range(2):
        update(batch(3), lambda given: torch.zeros(2))
    with pytest.raises(wanted, match=message):
        update(batch(3), lambda given: torch.zeros(2))


class Stepping(SimpleNamespace):
    """A strategy whose prompts are never asked for."""

    def prompts(self, count):
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "admits", "slots"),
    [
        (buffers.StaticBuffers, True, True),
        (buffers.StaticBuffers, False, True),
        (DecodeBuffers, False, False),
    ],
)
def test_prompts_are_read_step_by_step_where_steps_are_recorded(kind, admits, slots):
    """And in one slot, where a decoder cannot admit what was read elsewhere."""
    kept = object.__new__(kind)
    kept.strategy = Stepping()
    kept.state = object()
    kept.decoder = SimpleNamespace(admits=admits)
    assert not kept.prefill_slot(0, 3)
    if slots:
        assert not kept.prefill(3)


@pytest.mark.filterwarnings(
    "ignore:CUDA is not available", "ignore:User provided device_type of 'cuda'"
)
def test_recorded_steps_keep_no_copies_of_weights():
    """A recording would go on with a copy in bfloat16 that autocast has cached, whatever the weights are later."""
    found = half_precision.autocast(True)
    assert (found.device, found.fast_dtype, found._cache_enabled) == ("cuda", torch.bfloat16, False)
    assert half_precision.autocast(True) is not found  # one that is entered twice would not be left
    assert not isinstance(half_precision.autocast(False), torch.autocast)
