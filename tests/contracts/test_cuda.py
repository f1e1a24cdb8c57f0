"""The contracts on a GPU. Skipped where there is none."""

import os
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import pytest
import torch

import regard
from regard.api.train import train
from regard.checkpoint import store
from regard.core.sequence import Packing, Tokens, pin_memory
from regard.data.augmentation import DRAWS, augment
from regard.data.batching import Batch, PackedCapacity, pack_batch
from regard.data.special_tokens import DEFAULT_TOKENS, END
from regard.generation import search
from regard.generation.choose.beam import BeamSearch
from regard.generation.config import DecodeConfig
from regard.generation.engines import choice_kernels, selection
from regard.generation.engines.cuda import buffers, encode
from regard.generation.engines.cuda.kernels import step
from regard.generation.engines.cuda.static_decoder import StaticDecoder, static_decoder
from regard.generation.request import GenerationRequest, SearchTask
from regard.kernels import cuda_graphs
from regard.kernels.attention import reference, small_kv
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.model.embedding import Embedding, Projection
from regard.model.memory import Memory
from regard.model.transformer import TransformerDecoder
from regard.tasks.objective import Objective
from support import attention_contracts as contracts, models
from support.family import DTYPES, MASKS, SCORES, SHAPES, Case
from support.search import STRATEGIES, model, sources, token_ids

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_gpu(query, key, value, *, score=None, mask=None, bias=None, **keywords):
    """`regard.attend` on the GPU for tensors on the CPU, as the contracts have them."""
    if isinstance(bias, regard.DistanceBias):
        bias = regard.DistanceBias(bias.values.cuda())
    out = regard.attend(
        query.cuda(),
        key.cuda(),
        value.cuda(),
        score=OnGpu(score) if score is not None else None,
        mask=None if mask is None else mask.cuda(),
        bias=bias.cuda() if isinstance(bias, torch.Tensor) else bias,
        **keywords,
    )
    return out.cpu()


class OnGpu(regard.Score):
    """A score on the GPU whose gradients reach the parameters on the CPU."""

    def __init__(self, score: regard.Score) -> None:
        super().__init__()
        self.score = score

    def queries(self, query):
        return torch.func.functional_call(_Call(self.score, "queries"), self._named(), (query,))

    def keys(self, key):
        return torch.func.functional_call(_Call(self.score, "keys"), self._named(), (key,))

    def score_function(self, dim):
        return torch.func.functional_call(
            _Call(self.score, "score_function"), self._named(), (dim,)
        )

    def _named(self):
        return {
            f"score.{name}": parameter.cuda() for name, parameter in self.score.named_parameters()
        }


class _Call(torch.nn.Module):
    def __init__(self, score, method):
        super().__init__()
        self.score, self.method = score, method

    def forward(self, argument):
        return getattr(self.score, self.method)(argument)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("score", "mask"), list(product(SCORES, MASKS)))
def test_equals_definition(score, mask, dtype):
    for shape in SHAPES if score == "scaled_dot" else ["more keys"]:
        contracts.equals_definition(on_gpu, Case(score, mask, DTYPES[dtype], shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_other_contracts(score, dtype):
    contracts.masked_rows_give_zeros(on_gpu, Case(score, "fully masked", DTYPES[dtype]))
    contracts.future_changes_nothing(on_gpu, Case(score, "causal", DTYPES[dtype], "square"))
    contracts.future_changes_nothing(on_gpu, Case(score, "causal padding", DTYPES[dtype]))
    contracts.padding_changes_nothing(on_gpu, Case(score, dtype=DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("score", "mask"), list(product(SCORES, MASKS)))
def test_weights_are_exact(score, mask, dtype):
    def captured(query, key, **keywords):
        calls = []
        with regard.capture_attention(calls.append):
            on_gpu(query, key, torch.zeros(*key.shape[:-1], 4, dtype=key.dtype), **keywords)
        return calls[0].weights().cpu()

    # A GPU sums in another order, and the projections alone differ by an ulp or two.
    contracts.weights_are_exact(captured, Case(score, mask, DTYPES[dtype]), slack=3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_wide_heads_over_few_keys(causal, dtype):
    """Materialized weights in half precision equal the reference in float64."""
    inputs = [
        torch.randn(3, 1, n, 320, device="cuda", dtype=dtype, requires_grad=True) for n in (9, 9, 9)
    ]
    allowed = torch.ones(3, 1, 1, 9, dtype=torch.bool, device="cuda")
    allowed[0, ..., 5:], allowed[1] = False, False  # a row that may attend to nothing
    seen = AttentionMask(allowed, None, 0 if causal else None)
    spec = AttentionSpec(DotScoreFunction(0.1), *inputs[:2], seen)
    assert small_kv.supports(spec, inputs[2], 0.0)
    exactly = [x.detach().double().requires_grad_() for x in inputs]
    wanted, expected_lse = reference.attend(
        AttentionSpec(DotScoreFunction(0.1), *exactly[:2], seen), exactly[2]
    )
    with torch.autocast("cuda", torch.bfloat16):
        out, lse = small_kv.attend(spec, inputs[2])
    into = torch.randn_like(wanted)
    found, expected = (
        torch.autograd.grad(out, inputs, into.to(dtype)),
        torch.autograd.grad(wanted, exactly, into),
    )
    for got, right in ((out, wanted), (lse, expected_lse), *zip(found, expected, strict=True)):
        assert (got.double() - right).norm() <= 2e-2 * right.norm()


def test_augmentation_equals_the_cpu():
    changes, pictures = ("crop", "flip", "color"), 2 * torch.rand(8, 3, 16, 16) - 1
    dice = torch.rand(8, DRAWS)
    found = augment(pictures.cuda(), changes, dice)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), augment(pictures, changes, dice), atol=1e-4, rtol=0)


SIDE = {
    "kind": "transformer",
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "ffn_dim": 64,
    "positions": "rotary",
}
SIDE |= {"dropout": 0.2, "attention_dropout": 0.1, "ffn_dropout": 0.1}


def language_model(tmp_path, name, **changes):
    """The weights after a short training on running text."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log\n" * 200)
    data = {
        "train": str(text),
        "valid": str(text),
        "target": {"tokenizer": "bytes"},
        "context_length": 32,
    }
    return weights_of(tmp_path, name, data, {"decoder": SIDE}, changes)


def translator(tmp_path, name, side=SIDE, attention=None, **changes):
    """The weights after a short training on packed pairs of many lengths."""
    lines = [
        "the cat sat on the mat and the dog on the log "[: 5 + line % 40] for line in range(300)
    ]
    (tmp_path / "pairs.txt").write_text("\n".join(lines))
    data = {split: [str(tmp_path / "pairs.txt")] * 2 for split in ("train", "valid")}
    data |= {side: {"tokenizer": "bytes"} for side in ("source", "target")}
    sides = {"encoder": side, "decoder": side | (attention or {})}
    return weights_of(tmp_path, name, data, sides, changes | {"packed": True})


def convolutions(tmp_path, name, **changes):
    """A translator of convolutions whose one head is too wide for a program to hold."""
    side = {"kind": "conv", "dim": 272, "dilations": [1, 4], "dropout": 0.2}
    return translator(tmp_path, name, side, **changes)


def luong_rnn(tmp_path, name, **changes):
    """A recurrent translator whose attention is computed for all steps at once."""
    side = {"kind": "rnn", "cell": "lstm", "dim": 272, "layers": 2, "dropout": 0.2}
    return translator(tmp_path, name, side, {"attention": "luong", "score": "bilinear"}, **changes)


def bahdanau_rnn(tmp_path, name, **changes):
    return translator(tmp_path, name, {"kind": "rnn", "dim": 32, "dropout": 0.2}, **changes)


def weights_of(tmp_path, name, data, model, changes):
    settings = {
        "max_steps": 40,
        "warmup_steps": 4,
        "validate_every": 20,
        "batch_tokens": 512,
        "precision": "bfloat16",
    }
    recipe = {"data": data, "model": model, "train": settings | changes}
    run = tmp_path / name
    train(recipe, run, cache=tmp_path / "cache", resume=run.exists())
    folder = store.step_folder(run, store.steps(run)[-1])
    return store.tensors(store.read(folder), "model.safetensors", folder)


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
@pytest.mark.parametrize(
    "made", [language_model, translator, convolutions, luong_rnn, bahdanau_rnn]
)
def test_replayed_equals_launched(made, r_drop, tmp_path, monkeypatch):
    """Bit for bit; also after a resumed run, which launches steps that an uninterrupted one replays."""
    records, right = [], cuda_graphs.capture
    monkeypatch.setattr(
        cuda_graphs,
        "capture",
        lambda *work, **options: records.append(1) or right(*work, **options),
    )
    launched = made(tmp_path, "launched", r_drop=r_drop)
    assert not records
    replayed = made(tmp_path, "replayed", cuda_graphs=True, r_drop=r_drop)
    assert records
    made(tmp_path, "parts", max_steps=20, cuda_graphs=True, r_drop=r_drop)
    parts = made(tmp_path, "parts", cuda_graphs=True, r_drop=r_drop)
    for name, tensor in launched.items():
        assert torch.equal(tensor, replayed[name]), name
        assert torch.equal(tensor, parts[name]), name


@pytest.mark.parametrize("made", [language_model, translator])
def test_teachers_are_evaluated_inside_the_recorded_update(made, tmp_path, monkeypatch):
    """Distillation, replayed and launched: bit for bit, and not as without teachers."""
    records, right = [], cuda_graphs.capture
    monkeypatch.setattr(
        cuda_graphs,
        "capture",
        lambda *work, **options: records.append(1) or right(*work, **options),
    )
    alone = made(tmp_path, "teacher", r_drop=1.0)
    taught = {
        "r_drop": 1.0,
        "distillation": {"teachers": [str(tmp_path / "teacher")], "temperature": 2.0},
    }
    launched = made(tmp_path, "launched", **taught)
    assert not records
    replayed = made(tmp_path, "replayed", cuda_graphs=True, **taught)
    assert records
    for name, tensor in launched.items():
        assert torch.equal(tensor, replayed[name]), name
    assert any(not torch.equal(tensor, alone[name]) for name, tensor in launched.items())


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path, monkeypatch):
    """The update is skipped on the device, without a synchronization."""
    right, before = Objective.__call__, {}

    def wrong(self, model, batch, *, step=0, **keywords):
        loss, *rest = right(self, model, batch, step=step, **keywords)
        if step == 7:
            before.update(
                {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            )
        elif step == 8:
            assert all(
                torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
            )
        return (loss * torch.nan if step == 7 else loss, *rest)

    monkeypatch.setattr(Objective, "__call__", wrong)
    found = language_model(tmp_path, "skipped", on_nan="skip")
    assert before
    assert all(tensor.isfinite().all() for tensor in found.values())


def test_a_failed_recording_is_reported_and_the_run_resumes_without_graphs(tmp_path):
    """In its own process: PyTorch's random state is unusable after a failed recording."""
    command = [sys.executable, "-c", FAILING_TRAINING, str(tmp_path), str(Path(__file__).parent)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "train.cuda_graphs: wanted work that can be recorded" in found.stdout, found.stderr
    resumed, launched = language_model(tmp_path, "failing"), language_model(tmp_path, "launched")
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in launched.items())


FAILING_TRAINING = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2] + part for part in ("", "/..")]
from test_cuda import language_model
from regard.core.errors import TrainingFailed
from regard.tasks.objective import Objective

right = Objective.__call__

def waiting(self, model, batch, *, step=0, carried=None):
    if step > 25:
        assert batch.targets.ids.max().item() > 0  # waits for the device, which a recording cannot
    return right(self, model, batch, step=step, carried=carried)

language_model(Path(sys.argv[1]), "failing", max_steps=20)
Objective.__call__ = waiting
import regard.kernels.cuda_graphs
regard.kernels.cuda_graphs.WARMUP = 8
try:
    language_model(Path(sys.argv[1]), "failing", cuda_graphs=True)
except TrainingFailed as error:
    print(error)
"""


def outputs(made, rows, **options):
    config = DecodeConfig(**{"max_length": 12, **options})
    task = SearchTask(made, lambda some: Tokens.of(some, device="cuda"), config)
    hits = dict(search.search(task, [GenerationRequest(row, len(row)) for row in rows]))
    return [hits[number] for number in range(len(rows))]


def test_packing_with_a_given_number_of_tokens_is_the_same():
    mask = torch.rand(50, 33, generator=torch.Generator().manual_seed(1)) < 0.7
    wanted, found = Packing.of(mask), Packing.of(mask.cuda(), int(mask.sum()))
    assert torch.equal(found.indices.cpu(), wanted.indices)


RECORDED = ["transformer", "transformer post-norm", "transformer learned", "transformer none"]


@pytest.mark.parametrize(
    "options", [*STRATEGIES, {"beam_size": 3, "no_repeat_ngram_size": 2, "min_length": 4}], ids=str
)
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_equal_launched_ones(name, options, monkeypatch):
    """In one batch and with continuous batching; both equal the PyTorch engine."""
    made, rows = model(name).cuda(), sources()
    replays, right = [], cuda_graphs.capture
    monkeypatch.setattr(
        cuda_graphs, "capture", lambda work, **_: replays.append(right(work)) or replays[-1]
    )
    monkeypatch.setattr(cuda_graphs, "_warn", pytest.fail)
    for more in ({}, {"batch_tokens": 13}):
        recorded = [outputs(made, rows, **options, **more) for _ in range(3)]
        assert recorded[0] == recorded[1] == recorded[2]
        with monkeypatch.context() as patch:
            patch.setattr(cuda_graphs, "WARMUP", 1 << 60)
            patch.setattr(selection, "kept_buffers", lambda decoder: buffers.BufferPool())
            assert outputs(made, rows, **options, **more) == recorded[0]
            with regard.capture_attention() as calls:
                assert outputs(made, rows, **options, **more) == recorded[0]
            assert calls
            patch.setattr(selection, "ENGINES", (selection.PyTorchEngine(),))
            assert token_ids(outputs(made, rows, **options, **more)) == token_ids(recorded[0])
    assert replays


BEAMS = (
    {"beam_size": 5, "num_hypotheses": 5},
    {"beam_size": 3, "early_stopping": True, "min_length": 3, "length_penalty": 0.0},
    {"beam_size": 4, "early_stopping": "never", "length_penalty": 0.6, "no_repeat_ngram_size": 2},
)


@pytest.mark.parametrize("more", [{}, {"batch_tokens": 13}], ids=str)
@pytest.mark.parametrize("options", BEAMS, ids=str)
def test_beam_steps_in_one_kernel_equal_those_in_parts(options, more, monkeypatch):
    """In one batch and with continuous batching, launched and recorded."""
    made, rows = model("transformer").cuda(), sources()
    with torch.no_grad():
        made.decoder.project.bias[END] += 1.0
    asked, right = [], BeamSearch._fusible
    monkeypatch.setattr(
        BeamSearch, "_fusible", lambda *given: asked.append(right(*given)) or asked[-1]
    )
    found = [outputs(made, rows, **options, **more) for _ in range(3)]
    assert asked
    assert all(asked)
    monkeypatch.setattr(BeamSearch, "_fusible", lambda *given: False)
    monkeypatch.setattr(selection, "kept_buffers", lambda decoder: buffers.BufferPool())
    wanted = outputs(made, rows, **options, **more)
    for one in found:
        assert token_ids(one) == token_ids(wanted)
        for mine, other in zip(chain(*one), chain(*wanted), strict=True):
            assert mine.end == other.end
            assert mine.score == pytest.approx(other.score, abs=1e-5)
            assert mine.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)


ENDINGS = (
    {"min_length": 2},
    {"beam_size": 4, "num_hypotheses": 4, "early_stopping": True},
    {"beam_size": 4, "num_hypotheses": 4, "early_stopping": "never", "length_penalty": 0.5},
)


@pytest.mark.parametrize("options", ENDINGS, ids=str)
@pytest.mark.parametrize("name", models.DECODERS)
def test_searches_that_end_by_several_tokens_equal_those_on_the_cpu(name, options):
    """For every decoder, with each value of early_stopping, from prefixes; the CPU's engine is the reference."""
    made, rows = model(name), sources()
    with torch.no_grad():
        made.decoder.project.bias[[END, 6, 7]] = 1.5
    special = replace(DEFAULT_TOKENS, other_ends=(7, 6))
    requests = [
        GenerationRequest(row, len(row), (8,) * (number % 3)) for number, row in enumerate(rows)
    ]

    def hypotheses(device: str) -> list[list[tuple[tuple[int, ...], int | None]]]:
        config = DecodeConfig(max_length=12, **options)
        task = SearchTask(
            made.to(device),
            lambda some: Tokens.of(some, device=device),
            config,
            special_tokens=special,
        )
        hits = dict(search.search(task, requests))
        return [[(each.tokens, each.end) for each in hits[number]] for number in range(len(rows))]

    wanted = hypotheses("cpu")
    if "beam_size" in options:
        assert {end for one in wanted for _, end in one} & {6, 7}
    assert [hypotheses("cuda") for _ in range(3)] == [
        wanted
    ] * 3  # launched, then recorded as CUDA graphs


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
def test_recordings_serve_other_inputs(options, monkeypatch):
    """Inputs of the same size: other sources, another seed, another prefix."""
    made, rows = model("transformer").cuda(), sources()

    def results(reverse: bool) -> list:
        config = DecodeConfig(**{"max_length": 12, "seed": 3 if reverse else 4, **options})
        task = SearchTask(made, lambda some: Tokens.of(some, device="cuda"), config)
        given = rows[::-1] if reverse else rows
        hits = dict(
            search.search(
                task, [GenerationRequest(row, len(row), (7 if reverse else 8,)) for row in given]
            )
        )
        return [hits[number] for number in range(len(rows))]

    for _ in range(4):
        results(reverse=False)
    recorded = results(reverse=True)
    monkeypatch.setattr(cuda_graphs, "WARMUP", 1 << 60)
    monkeypatch.setattr(selection, "kept_buffers", lambda decoder: buffers.BufferPool())
    assert recorded == results(reverse=True)


def test_every_tensor_of_a_batch_is_pinned():
    targets = Tokens.of([[1, 5, 6, 2], [1, 7, 2]])
    text = Batch(Tokens.of([[5, 6], [7]]), targets, 5, torch.arange(2))
    packed = pack_batch(text, PackedCapacity((8, 8), (2, 3), 5, filled=True))
    pictures = Batch(torch.rand(2, 3, 4, 4), targets, 5, torch.arange(2))
    for batch in (text, packed, pictures):
        held = pin_memory(batch)
        pairs = list(zip(buffers.tensors_of(batch), buffers.tensors_of(held), strict=True))
        assert len(pairs) > 2
        assert all(mine.is_pinned() and torch.equal(mine, other) for other, mine in pairs)


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
def test_recorded_steps_in_half_precision(options, monkeypatch):
    made, rows = model("transformer").cuda(), sources()
    recorded = [outputs(made, rows, **options, precision="bfloat16") for _ in range(4)]
    monkeypatch.setattr(cuda_graphs, "WARMUP", 1 << 60)
    monkeypatch.setattr(encode, "_encoders", {})
    monkeypatch.setattr(selection, "kept_buffers", lambda decoder: buffers.BufferPool())
    assert all(each == outputs(made, rows, **options, precision="bfloat16") for each in recorded)


@pytest.mark.parametrize("options", [{}, {"min_length": 4}, {"no_repeat_ngram_size": 2}], ids=str)
@pytest.mark.parametrize("prefix", [(), (8, 9)], ids=str)
def test_greedy_steps_in_one_kernel_equal_steps_and_choices(prefix, options, monkeypatch):
    """Of one sentence at a time, to the end or the maximum length; launched, recorded, and streamed."""
    side = {"kind": "transformer", "dim": 48, "layers": 2, "heads": 3, "ffn_dim": 80}
    made = regard.build(
        {"encoder": side, "decoder": side, "vocab_size": 300, "tie_embeddings": "none"}
    )
    with torch.no_grad():
        for weight in (each for each in made.decoder.parameters() if each.dim() == 2):
            weight.normal_(std=0.3)
        made.decoder.project.bias[END] += 4.0
    made, rows, taken, right = made.cuda().eval(), sources(), [], StaticDecoder.greedy_steps

    def greedy_steps(*given):
        state = right(*given)
        taken.append(state is not None)
        return state

    def found():
        config = DecodeConfig(max_length=30, precision="bfloat16", **options)
        task = SearchTask(made, lambda some: Tokens.of(some, device="cuda"), config)
        requests = [GenerationRequest(row, len(row), prefix) for row in rows]
        tokens = [dict(search.search(task, [each]))[0][0].tokens for each in requests]
        assert [tuple(search.stream(task, each)) for each in requests] == tokens
        return tokens

    monkeypatch.setattr(StaticDecoder, "greedy_steps", greedy_steps)
    together = [found() for _ in range(3)]
    # It is asked only for what its table of options has.
    assert set(taken) == (set() if "no_repeat_ngram_size" in options else {True})
    monkeypatch.setattr(StaticDecoder, "greedy_steps", lambda *given: None)
    monkeypatch.setattr(selection, "kept_buffers", lambda decoder: buffers.BufferPool())
    apart = found()
    assert len({len(tokens) for tokens in apart}) > 2
    assert len(set(chain(*apart))) > 10
    assert together == [apart] * 3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_recorded_steps_use_changed_weights(precision):
    """Also when the GPU has work queued before the change."""
    made, rows = model("transformer").cuda(), sources()
    before = [outputs(made, rows, precision=precision) for _ in range(4)][-1]
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        busy = busy @ busy
    made.decoder.project.weight.data.mul_(-2)  # not counted by PyTorch's version counter
    changed = outputs(made, rows, precision=precision)
    assert changed != before
    assert changed == outputs(deepcopy(made), rows, precision=precision)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (5, 3), (90, 1), (90, 3)])
@torch.inference_mode()
def test_kernels_equal_plain_steps(batch, beams, norm_first, dtype, monkeypatch):
    """With one row, with few and with many, for a dim that is not a power of two."""
    config = replace(models.SMALL, dim=48, heads=3, ffn_dim=80, norm_first=norm_first)
    made = (
        models.without_zeros(
            TransformerDecoder(config, Embedding(300, 48), Projection(48, 300), 48)
        )
        .cuda()
        .eval()
    )
    states, mask = (
        torch.randn(batch, 37, 48, device="cuda"),
        torch.rand(batch, 37, device="cuda") < 0.7,
    )
    mask[0] = False  # a row that may attend to nothing
    given, fixed = Memory(states, mask, states[:, 0]), static_decoder(made, dtype)
    in_one_kernel = (batch, dtype) == (1, torch.bfloat16)
    assert (step.persistent(fixed.weights.layers, batch * beams) is not None) == in_one_kernel
    found = []
    for kernels in (choice_kernels._kernels(), None):
        monkeypatch.setattr(choice_kernels, "_kernels", lambda kernels=kernels: kernels)
        generator = torch.Generator(device="cuda").manual_seed(1)
        state, logits = fixed.start(given, batch=batch, capacity=64, beams=beams), []
        for _ in range(40):
            tokens = torch.randint(300, (batch * beams,), generator=generator, device="cuda")
            state.reserve()
            new, state = fixed.step(tokens, state)
            parents = torch.randint(beams, (batch, beams), generator=generator, device="cuda")
            logits.append(new.float())
            state = state.follow(parents)
        found.append(torch.stack(logits))
    assert (found[0] - found[1]).norm() / found[1].norm() < (
        1e-5 if dtype is torch.float32 else 2e-2
    )


def test_a_missing_c_compiler_is_logged_once_and_pytorch_computes_the_same(tmp_path):
    """In its own process: kernels that Triton has compiled already need no compiler."""
    environment = os.environ | {"CC": "false", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILING, str(Path(__file__).parent)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    torch.manual_seed(0)
    assert found.stdout.strip() == str(
        token_ids(outputs(model("transformer").cuda(), sources()))
    ), found.stderr
    assert found.stderr.count("Triton kernels are unavailable on this GPU") == 1, found.stderr


COMPILING = """
import sys
sys.path[:0] = [sys.argv[1] + part for part in ("", "/..")]
import torch
from test_cuda import model, outputs, token_ids, sources

torch.manual_seed(0)
made, rows = model("transformer").cuda(), sources()
first = token_ids(outputs(made, rows))
assert token_ids(outputs(made, rows)) == first
print(first)
"""


def test_steps_that_cannot_be_recorded_are_logged_once():
    """In its own process: PyTorch's random state is unusable after a failed recording."""
    command = [sys.executable, "-c", FAILING_SEARCH, str(Path(__file__).parent)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "True", found.stderr
    assert found.stderr.count("decoding steps cannot be recorded as CUDA graphs") == 1, found.stderr


FAILING_SEARCH = """
import sys
sys.path[:0] = [sys.argv[1] + part for part in ("", "/..")]
from test_cuda import model, outputs, token_ids, sources
from regard.generation.choose import logits_processors

made, rows = model("transformer").cuda(), sources()
wanted, right = token_ids(outputs(made, rows)), logits_processors.SuppressTokens.__call__

def waiting(self, scores, generated):
    assert generated.length.max().item() >= 0  # waits for the device, which a recording cannot
    right(self, scores, generated)

logits_processors.SuppressTokens.__call__ = waiting
print(token_ids(outputs(made, rows, num_hypotheses=1, seed=2)) == wanted)
"""
