"""Traps that attention code falls into without a word: strides, shared memory, changed tensors, precision."""

from types import SimpleNamespace

import pytest
import torch

import regard
from regard.kernels.attention import blockwise, reference, sdpa
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec

LONG = 300  # enough rows and keys for PyTorch's kernel to go in blocks


def strided(kind: str, *shape: int) -> torch.Tensor:
    match kind:
        case "transposed":
            return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
        case "every other":
            return torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
        case "expanded":
            return torch.randn(*shape[:-1], 1).expand(shape)
        case "heads last":
            return torch.randn(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["transposed", "every other", "expanded", "heads last"])
@pytest.mark.parametrize("window", [None, 20])
def test_strides_change_nothing(kind, window):
    query, key, value = (strided(kind, 2, 3, LONG, 8).requires_grad_() for _ in range(3))
    out = regard.attend(query, key, value, window=window)
    dense = regard.attend(query.contiguous(), key.contiguous(), value.contiguous(), window=window)
    torch.testing.assert_close(out, dense)
    direction = strided(kind, *out.shape)
    torch.testing.assert_close(
        torch.autograd.grad(out, (query, key, value), direction),
        torch.autograd.grad(dense, (query, key, value), direction.contiguous()),
    )


def test_an_image_laid_flat_attends_to_itself():
    x = torch.randn(2, 16, 6, 7).flatten(2).mT
    torch.testing.assert_close(regard.self_attend(x), (x @ x.mT).softmax(-1) @ x)


def test_a_score_with_heads_gives_each_head_its_own():
    score = regard.Additive(8, 8, 4, heads=3)
    query, key, value = torch.randn(3, 5, 8), torch.randn(3, 6, 8), torch.randn(3, 6, 8)
    torch.testing.assert_close(
        regard.attend(query, key, value, score=score),
        regard.attend(query[None], key[None], value[None], score=score)[0],
    )
    spread = regard.attend(query[:1], key[:1], value[:1], score=score)  # one input, three heads
    torch.testing.assert_close(
        spread[1],
        regard.attend(
            query[:1].expand(3, -1, -1),
            key[:1].expand(3, -1, -1),
            value[:1].expand(3, -1, -1),
            score=score,
        )[1],
    )


@torch.no_grad()
def test_captured_weights_stay_the_same_when_beams_move():
    layer, x = regard.MultiHead(8, 2), torch.randn(3, 4, 8)
    calls: list[regard.AttentionCall] = []
    cache = layer.empty_cache(x, capacity=6)
    with regard.capture_attention(calls.append):
        layer.step(x, cache)
        before = calls[0].weights()
        cache = cache.reorder(torch.tensor([1, 1, 0]))
        layer.step(x[:, :1], cache)
    assert torch.equal(calls[0].weights(), before)
    torch.testing.assert_close(before.sum(-1), torch.ones(3, 2, 4))


@pytest.mark.parametrize("keywords", [{"window": 20}, {"dropout": 0.1}], ids=str)
def test_a_mask_changed_before_the_backward_is_noticed(keywords):
    query, key, value = (torch.randn(1, LONG, 8, requires_grad=True) for _ in range(3))
    mask = torch.rand(1, LONG, LONG) > 0.5
    out = regard.attend(query, key, value, mask=mask, **keywords)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("kernel", [sdpa, blockwise])
def test_a_second_derivative_is_refused_and_not_forgotten(kernel, monkeypatch):
    monkeypatch.setattr(sdpa, "TILE", 20)
    query, key, value = (torch.randn(1, 2, 10, 8, requires_grad=True) for _ in range(3))
    spec = AttentionSpec(DotScoreFunction(1.0), query, key, AttentionMask(behind=3), None)
    out, _ = kernel.attend(spec, value)
    with pytest.raises(regard.RegardError, match="create_graph=True"):
        torch.autograd.grad(out.sum(), query, create_graph=True)
    (first,) = torch.autograd.grad(reference.attend(spec, value)[0].sum(), query, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), query)[0].isfinite().all()


@pytest.mark.parametrize("score", [None, regard.Additive(8, 8, 4)], ids=["fused", "streamed"])
def test_weights_are_as_exact_under_autocast(score):
    query, key, value = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    found = []
    with (
        torch.autocast("cpu", torch.bfloat16),
        regard.capture_attention(lambda call: found.append(call.weights())),
    ):
        out = regard.attend(query, key, value, score=score)
        found.append(regard.attention_weights(query, key, score=score))
    assert out.dtype == torch.bfloat16
    for weights in found:
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5), atol=1e-4, rtol=0)
        torch.testing.assert_close(
            weights, regard.attention_weights(query, key, score=score), atol=0.02, rtol=0
        )


def test_positions_are_exact_whatever_the_default_dtype():
    wanted = regard.Sinusoidal(16)(torch.arange(2000))
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(regard.Sinusoidal(16)(torch.arange(2000)), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def test_a_step_that_fails_leaves_the_cache_as_it_was():
    layer, x = regard.MultiHead(8, 2), torch.randn(3, 1, 8)
    cache = layer.empty_cache(x, capacity=6)
    with pytest.raises(ValueError, match="window"):
        layer.step(x, cache, window=-1)
    assert cache.length == 0


def test_dropping_almost_everything():
    x = torch.ones(1, 50, 8)
    assert regard.attend(x, x, x, dropout=0.999999).isfinite().all()


def test_an_empty_batch():
    x = torch.randn(0, 4, 8)
    assert regard.attend(x, x, x).shape == (0, 4, 8)
    assert regard.attention_summary(x, x, top=2).entropy.shape == (0, 4)


def test_infinite_biases_are_masks():
    x = torch.randn(2, 5, 8)
    bias = torch.zeros(5, 5)
    bias[:, 3:] = -torch.inf
    bias[2] = -torch.inf
    mask = (bias == 0)[None]
    for score in (None, regard.Additive(8, 8, 4)):
        torch.testing.assert_close(
            regard.attend(x, x, x, score=score, bias=bias),
            regard.attend(x, x, x, score=score, mask=mask),
        )


@pytest.mark.parametrize("shape", [(0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0)], ids=str)
def test_of_nothing_comes_nothing(shape):
    """No sequences, heads, queries or keys."""
    batch, heads, n, m = shape
    query, key, value = (
        torch.randn(batch, heads, n, 4),
        torch.randn(batch, heads, m, 4),
        torch.randn(batch, heads, m, 6),
    )
    assert torch.equal(regard.attend(query, key, value), torch.zeros(batch, heads, n, 6))
    assert regard.attention_weights(query, key).shape == shape


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("choice", "kernel"), [(0, "efficient"), (1, "flash"), (3, "cudnn")])
def test_on_a_gpu_the_kernel_is_the_one_that_pytorch_chooses_unless_there_is_a_mask(
    monkeypatch, choice, kernel, masked
):
    """Which kernel is called, on tensors without content; each returns what PyTorch's returns."""
    called, asked = [], []

    class Kernels:
        def __getattr__(self, name):
            def call(q, *_, **__):
                called.append(name)
                wide = "cudnn" in name, -q.shape[2] % 32 if "efficient" in name else 0
                lse = q.new_empty(*q.shape[:2], q.shape[2] + wide[1], *([1] if wide[0] else []))
                return torch.empty_like(q), lse, None

            return SimpleNamespace(default=call)

    monkeypatch.setattr(sdpa, "aten", Kernels())
    monkeypatch.setattr(
        torch, "_fused_sdp_choice", lambda *given, **_: asked.append(given) or choice
    )
    q, k, v = (torch.empty(2, heads, 5, 8, device="meta") for heads in (4, 2, 2))
    mask = torch.empty(2, 1, 5, 5, device="meta") if masked else None
    out, lse = sdpa._forward(q, k, v, mask, False, 0.5, 0.0)
    assert called == [f"_scaled_dot_product_{'efficient' if masked else kernel}_attention"]
    assert len(asked) == (not masked)
    assert out.shape == q.shape
    assert lse.shape == q.shape[:3]
