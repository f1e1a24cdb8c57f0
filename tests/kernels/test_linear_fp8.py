"""Linear layers in float8: as near to float32 as 3 (2) bits of mantissa allow, in value and gradient."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import regard
from regard.api.train import device_of
from regard.core.errors import InvalidRecipe
from regard.core.sequence import Tokens
from regard.data.batching import Batch
from regard.data.columns import LabelColumn
from regard.data.corpus import Corpus
from regard.kernels.layers import linear as plain, linear_fp8
from regard.kernels.layers.linear import ACTIVATIONS, activation_backward, linear
from regard.kernels.layers.linear_fp8 import E4M3, E5M2, MULTIPLE, quantize
from regard.model.transformer_block import use_fp8
from regard.recipe.recipe import Recipe
from regard.training.config import TrainConfig
from regard.training.epoch_batches import EpochBatches
from regard.training.trainer import Trainer
from support.poison import poison

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# ‖got − wanted‖ / ‖wanted‖: rounding to 3 bits of mantissa is off by 2.6 % of a number on average, to 2 bits by 5.2 %.
VALUE, GRADIENT = 0.045, 0.085
TRITON = DEVICE == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(
    not TRITON, reason="needs a GPU, or TRITON_INTERPRET=1 before Triton is imported"
)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    got, wanted = got.detach().float(), wanted.detach().float()
    return float((got - wanted).norm() / wanted.norm())


def low(*given, **options) -> torch.Tensor:
    """On a GPU, in bfloat16 elsewhere than in the products, as in training."""
    with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        return linear_fp8.linear_fp8(*given, **options)


def layer(rows: int, dim: int = 64, out_dim: int = 48) -> list[torch.Tensor]:
    """Input, weight, bias, and the gradient of the output."""
    shapes = ((2, rows, dim), (out_dim, dim), (out_dim,), (2, rows, out_dim))
    x, weight, bias, d_out = (torch.randn(shape, device=DEVICE) for shape in shapes)
    return [
        x.requires_grad_(),
        (weight / dim**0.5).requires_grad_(),
        bias.requires_grad_(),
        1e-5 * d_out,
    ]


@pytest.mark.parametrize(
    "rows", [32, 37]
)  # the weight's gradient is a product over rows: here they are padded
@pytest.mark.parametrize("activation", [None, "gelu", "gelu_tanh", "silu"])
def test_value_and_gradients_are_as_near_to_float32_as_float8_allows(rows, activation):
    *given, d_out = layer(rows)
    got = low(*given, activation)
    wanted = F.linear(*given)
    wanted = wanted if activation is None else ACTIVATIONS[activation](wanted)
    assert 0.005 < error(got, wanted) < VALUE  # nearer would not be float8
    gradients = (torch.autograd.grad(each, given, d_out) for each in (got, wanted))
    for name, one, other in zip(("x", "weight", "bias"), *gradients, strict=True):
        assert one.dtype == other.dtype
        assert error(one, other) < GRADIENT, name


def test_gradients_of_a_relu_are_those_of_the_outputs_it_kept():
    *given, d_out = layer(32)
    got = low(*given, "relu")
    assert error(got, F.relu(F.linear(*given))) < VALUE
    kept = d_out * (got > 0)
    wanted = torch.autograd.grad(F.linear(*given), given, kept)
    for one, other in zip(torch.autograd.grad(got, given, d_out), wanted, strict=True):
        assert error(one, other) < GRADIENT


def test_a_layer_without_bias():
    x, weight, _, d_out = layer(32)
    got, wanted = low(x, weight, None), F.linear(x, weight)
    assert error(got, wanted) < VALUE
    gradients = (torch.autograd.grad(each, (x, weight), d_out) for each in (got, wanted))
    for one, other in zip(*gradients, strict=True):
        assert error(one, other) < GRADIENT


def test_without_gradients_the_product_is_the_plain_one():
    x, weight, bias, _ = layer(8)
    with torch.no_grad():
        assert torch.equal(low(x, weight, bias, "gelu"), linear(x, weight, bias, "gelu"))


@pytest.mark.parametrize(("dtype", "bits"), [(E4M3, 3), (E5M2, 2)])
def test_the_largest_number_becomes_the_largest_of_the_format_and_others_are_rounded(dtype, bits):
    x = (
        (torch.randn(21, 32, device=DEVICE) * 1e-4).bfloat16().float()
    )  # kernels read float32 as bfloat16
    rows, columns, scale = quantize(x, dtype)
    assert float(rows.float().abs().max()) == torch.finfo(dtype).max
    normal = x.abs() / scale > torch.finfo(dtype).smallest_normal
    assert (
        float(((rows.float() * scale - x)[normal] / x[normal]).abs().max())
        <= 2.0 ** -(bits + 1) + 1e-6
    )
    assert columns.shape == (32, 32)
    assert columns.is_contiguous()
    assert torch.equal(columns.float()[:, :21], rows.float().mT)
    assert not columns.float()[:, 21:].any()  # rows that were added


def test_zeros_stay_zeros_and_numbers_that_are_not_finite_stay_so():
    assert not quantize(torch.zeros(16, 16, device=DEVICE), E4M3).rows.float().any()
    for bad in (torch.nan, torch.inf):
        x = torch.ones(16, 16, device=DEVICE)
        x[3, 4] = bad
        rows, _, scale = quantize(x, E5M2)
        assert not (rows.float() * scale)[3, 4].isfinite(), bad


@needs_triton
def test_kernels_quantize_as_the_plain_version(monkeypatch):
    """Of numbers that the format holds: the interpreter rounds others wrongly where that changes the exponent."""
    poison(monkeypatch)
    for name, value in (("TILE", 16), ("PROGRAMS", 3), ("BLOCK", 64)):
        monkeypatch.setattr(linear_fp8, name, value)
    for dtype in (E4M3, E5M2):
        bound = torch.finfo(dtype).max
        x = (torch.randn(37, 48) * 30).clamp(-bound, bound).to(dtype).bfloat16().to(DEVICE)
        x[20, 40] = -bound  # the scale is 1
        largest = linear_fp8.largest_magnitude(x)
        assert float(largest) == bound
        got, wanted = linear_fp8._cast_transpose(x, dtype, largest), quantize(x.cpu(), dtype)
        for one, other in zip(got, wanted, strict=True):
            assert torch.equal(one.float().cpu(), other.float())


@needs_triton
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_the_kernel_of_the_gradient_also_finds_its_largest_magnitude(monkeypatch, activation):
    poison(monkeypatch)
    monkeypatch.setattr(plain, "ROWS", 16)
    monkeypatch.setattr(plain, "COLUMNS", 16)
    d_out, x = torch.randn(2, 50, 40, device=DEVICE)
    d_out[7, 3], x[7, 3] = -9.0, 3.0  # the largest, kept by every activation
    d_x, d_bias, largest = activation_backward(
        d_out, None if activation is None else x, activation, magnitude=True
    )
    torch.testing.assert_close(d_bias, d_x.sum(0))
    assert float(largest) == float(d_x.abs().max())


def blocks(**options: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    part = {
        "kind": "transformer",
        "dim": 32,
        "layers": 2,
        "heads": 2,
        "ffn_dim": 64,
        "dropout": 0.0,
        **options,
    }
    model = regard.build({"encoder": part, "decoder": part, "vocab_size": 32}).to(DEVICE).train()
    use_fp8(model)
    return model


def test_activation_checkpointing_recomputes_in_float8():
    ids = torch.randint(5, 32, (4, 16), device=DEVICE)
    gradients = []
    for checkpointing in (False, True):
        model = blocks(activation_checkpointing=checkpointing)
        states = model.decoder.hidden(
            ids, model.encode(Tokens(ids, torch.full((4,), 16, device=DEVICE)))
        )
        states.square().sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert (gradient is None) == (gradients[1][name] is None)
        assert gradient is None or torch.equal(gradient, gradients[1][name]), name


def losses(precision: str) -> list[float]:
    """Of updates of a language model on one batch, by the trainer."""
    torch.manual_seed(0)
    part = {
        "kind": "transformer",
        "dim": 32,
        "layers": 2,
        "heads": 2,
        "ffn_dim": 64,
        "dropout": 0.0,
    }
    model = regard.build({"decoder": part, "vocab_size": 32}).to(DEVICE).train()
    config = TrainConfig(
        max_steps=100, warmup_steps=0, learning_rate=3e-3, precision=precision, label_smoothing=0.0
    )
    unused = Corpus(None, LabelColumn(np.zeros(1, np.uint32)))  # the batch is given
    events: list[dict] = []
    batches = EpochBatches(config, unused)
    trainer = Trainer(model, batches, texts={}, run=Path(), data_key="", on_event=events.append)
    ids = torch.randint(5, 32, (8, 17), generator=torch.Generator().manual_seed(1))
    batch = Batch(None, Tokens(ids, torch.full((8,), 17)), 8 * 16, torch.arange(8))
    found = []
    for _ in range(60):
        before = trainer.state.loss_since
        trainer._update([batch])
        trainer._settle()
        found.append((trainer.state.loss_since - before) / batch.tokens)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    return found


def test_training_in_float8_learns_as_in_bfloat16():
    low, half = losses("float8"), losses("bfloat16")
    assert low != half
    assert half[-1] < 0.6 * half[0]
    assert low[-1] == pytest.approx(half[-1], rel=0.1)


def recipe(train: dict, decoder: dict, encoder: dict | None = None) -> Recipe:
    parts = {"decoder": decoder} | ({} if encoder is None else {"encoder": encoder})
    source = {} if encoder is None else {"source": {}}
    return Recipe.of({"data": {"synthetic": "copy", **source}, "model": parts, "train": train})


def test_the_recipe_is_refused_with_all_dimensions_that_float8_cannot_multiply():
    part = {"kind": "transformer", "dim": 36, "heads": 2, "ffn_dim": 100}
    with pytest.raises(InvalidRecipe) as refusal:
        recipe({"precision": "float8"}, {"kind": "transformer"}, part)
    assert [problem.key for problem in refusal.value.problems] == [
        "model.encoder.dim", "model.encoder.ffn_dim", "model.encoder.heads", "model.encoder.kv_heads",
    ]  # fmt: skip
    assert all(f"a multiple of {MULTIPLE}" in problem.wanted for problem in refusal.value.problems)


def test_values_of_another_dim_must_fit_too():
    part = {"kind": "transformer", "dim": 64, "heads": 2, "value_dim": 12}
    wanted = r"model\.decoder\.value_dim: wanted a multiple of 16 .*; got 24 in all"
    with pytest.raises(InvalidRecipe, match=wanted):
        recipe({"precision": "float8"}, part, {"kind": "transformer"})
    recipe({"precision": "float8"}, part | {"value_dim": 24}, {"kind": "transformer"})


def test_a_model_without_transformer_blocks_and_other_options_are_refused():
    rnn = {"kind": "rnn"}
    with pytest.raises(
        InvalidRecipe,
        match=r"train\.precision: wanted 'bfloat16' with model\.encoder\.kind = 'rnn'",
    ):
        recipe({"precision": "float8"}, rnn, rnn)
    with pytest.raises(
        InvalidRecipe, match=r"train\.precision: wanted 'bfloat16' with fsdp; got 'float8'"
    ):
        recipe(
            {"precision": "float8", "fsdp": True}, {"kind": "transformer"}, {"kind": "transformer"}
        )


def test_memories_that_cross_attention_projects_must_fit_too():
    with pytest.raises(InvalidRecipe, match=r"model\.encoder\.dim: wanted a multiple of 16"):
        recipe({"precision": "float8"}, {"kind": "transformer"}, {"kind": "rnn", "dim": 40})


def test_a_device_that_does_not_multiply_in_float8_is_refused(monkeypatch):
    given = recipe(
        {"precision": "float8", "device": "cpu"}, {"kind": "transformer"}, {"kind": "transformer"}
    )
    with pytest.raises(
        InvalidRecipe, match=r"train\.precision: wanted .*Hopper.*; got 'float8' on a CPU"
    ):
        device_of(given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    given = recipe(
        {"precision": "float8", "device": "cuda"}, {"kind": "transformer"}, {"kind": "transformer"}
    )
    with pytest.raises(InvalidRecipe, match=r"got 'float8' on a GPU of compute capability 8\.0"):
        device_of(given)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert device_of(given) == "cuda"
