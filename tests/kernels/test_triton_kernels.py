"""Triton kernels of attention equal the reference: on a GPU if there is one, else in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from regard.kernels import triton_launch
from regard.kernels.attention import additive, reference, weights
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import AdditiveScoreFunction, DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from support.poison import poison

pytest.importorskip("triton", reason="needs Triton, which exists for Linux on x86_64")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs a GPU, or TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True
    )

# ‖got − wanted‖ / ‖wanted‖
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
TILE = 16 if DEVICE == "cuda" else 4  # small tiles are faster in the interpreter
DTYPES = list(TOLERANCE) if DEVICE == "cuda" else [torch.float32]
MASKS = {
    "none": {},
    "per head": {"allowed": (1, 2, True, True)},
    "window": {"behind": 3, "ahead": 1},
    "causal padding": {"ahead": 0, "allowed": (2, 1, 1, True)},
    "more queries": {"ahead": 0},
}


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Memory that a kernel leaves unwritten holds NaN, and small cases have many tiles and pieces."""
    poison(monkeypatch)
    for module, names in (
        (additive, ("ROWS", "KEYS", "OWN", "COLUMNS", "TILE")),
        (weights, ("ROWS", "KEYS")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, TILE)
    monkeypatch.setattr(additive, "WIDTH", 16)


def sizes(mask: str) -> tuple[int, int]:
    few, many = TILE + 1, TILE + 3
    return (many, few) if mask == "more queries" else (few, many)


def visibility(n: int, m: int, *, allowed: tuple | None = None, **reach: int) -> AttentionMask:
    if allowed is None:
        return AttentionMask(None, **reach)
    shape = *allowed[:2], n if allowed[2] is True else 1, m
    mask = torch.rand(shape) > 0.4
    mask[0, 0, 0] = False  # a row, or a sequence, that may attend to nothing
    return AttentionMask(mask.to(DEVICE), **reach)


def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, dtype).requires_grad_()


def close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.shape == wanted.shape
    got, wanted = got.double(), wanted.double()
    assert (got - wanted).norm() <= TOLERANCE[dtype] * wanted.norm() + 1e-7


def same(spec: AttentionSpec, value: torch.Tensor, **constants: int) -> None:
    """Output, log-sum-exp and the gradients of all four inputs equal the reference."""
    inputs = [spec.query, spec.key, spec.score_function.weight, value]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    plain = AttentionSpec(AdditiveScoreFunction(exact[2]), exact[0], exact[1], spec.visible)
    wanted, wanted_lse = reference.attend(plain, exact[3])
    direction = torch.randn(wanted.shape, dtype=torch.float64, device=DEVICE)
    expected = torch.autograd.grad(wanted, exact, direction)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in constants.items():
            patch.setattr(additive, name, size)
        out, lse = additive.attend(spec, value)
        found = torch.autograd.grad(out, inputs, direction.to(out.dtype))
    assert out.dtype == value.dtype
    for got, want in zip([out, lse, *found], [wanted, wanted_lse, *expected], strict=True):
        close(got, want, value.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_additive_equals_the_reference(mask, dtype):
    n, m = sizes(mask)
    query, key, value = (
        new(2, 2, n, 3, dtype=dtype),
        new(2, 1, m, 3, dtype=dtype),
        new(2, 2, m, 20, dtype=dtype),
    )
    spec = AttentionSpec(
        AdditiveScoreFunction(new(2, 3)), query, key, visibility(n, m, **MASKS[mask])
    )
    same(spec, value)


@pytest.mark.parametrize("rows", [2 * (TILE + 2), 1], ids=["two items", "fewest rows"])
def test_additive_in_pieces(rows):
    n, m = TILE + 2, TILE + 1
    spec = AttentionSpec(
        AdditiveScoreFunction(new(1, 2)),
        new(1, 3, n, 2),
        new(1, 3, m, 2),
        AttentionMask(None, 9, 2),
    )
    same(spec, new(1, 3, m, 4), SCORES=rows * m)


@pytest.mark.parametrize("scores", [2**22, 1], ids=["saved", "recomputed"])
def test_a_second_backward_equals_the_first(scores, monkeypatch):
    """In one piece and in several: saved tensors are not overwritten."""
    monkeypatch.setattr(additive, "SCORES", scores)
    inputs = query, key, value, weight = [new(1, 2, TILE + 1, 3) for _ in range(3)] + [new(1, 3)]
    out, _ = additive.attend(
        AttentionSpec(AdditiveScoreFunction(weight), query, key, AttentionMask()), value
    )
    first, second = (
        torch.autograd.grad(out, inputs, torch.ones_like(out), retain_graph=True) for _ in range(2)
    )
    assert all(torch.equal(*each) for each in zip(first, second, strict=True))


few, size = st.integers(1, 2), st.integers(1, 6)
reach = st.none() | st.integers(0, 7)


@settings(deadline=None, max_examples=5, derandomize=True)
@given(few, few, few, size, size, size, size, reach, reach, st.booleans())
def test_additive_of_any_shape(batch, groups, group, n, m, dim, wide, behind, ahead, masked):
    torch.manual_seed(1000 * n + m)
    mask = torch.rand(batch, 1, n, m, device=DEVICE) > 0.3 if masked else None
    score_function = AdditiveScoreFunction(new(groups * group if masked else 1, dim))
    query, key = new(batch, groups * group, n, dim), new(batch, groups, m, dim)
    same(
        AttentionSpec(score_function, query, key, AttentionMask(mask, behind, ahead)),
        new(batch, groups, m, wide),
        SCORES=2 * n * m,
    )


def test_dropout_is_the_same_in_the_backward_pass(monkeypatch):
    for name in ("ROWS", "KEYS", "OWN", "TILE"):
        monkeypatch.setattr(additive, name, 16)
    n, m, dropout = 24, 20, 0.3
    query, key, weight = new(1, 2, n, 4), new(1, 2, m, 4), new(1, 4)
    spec = AttentionSpec(AdditiveScoreFunction(weight), query, key, AttentionMask(None, None, 5))
    seen = reference.softmax(reference.scores(spec))
    torch.manual_seed(5)
    shown, _ = additive.attend(
        spec, torch.eye(m, device=DEVICE).expand(1, 2, m, m), dropout
    )  # the weights themselves
    scale = (shown / seen).nan_to_num(0.0).detach()
    kept = scale > 0
    assert abs(kept[seen > 0].float().mean() - (1 - dropout)) < 0.06
    torch.testing.assert_close(
        scale[kept], torch.full_like(scale[kept], 1 / (1 - dropout)), atol=1e-3, rtol=0
    )
    assert not torch.equal(kept[0, 0], kept[0, 1])
    value = new(1, 2, m, 6)
    torch.manual_seed(5)
    out, _ = additive.attend(spec, value, dropout)
    wanted = (seen * scale) @ value
    close(out, wanted, torch.float32)
    direction, inputs = torch.randn_like(out), [query, key, weight, value]
    found, expected = (
        torch.autograd.grad(x, inputs, direction, retain_graph=True) for x in (out, wanted)
    )
    for got, want in zip(found, expected, strict=True):
        close(got, want, torch.float32)
    other, _ = additive.attend(spec, value, dropout)
    assert not torch.equal(out, other)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_scores_saturate(dtype):
    query, key = new(1, 1, 3, 2, dtype=dtype), new(1, 1, 4, 2, dtype=dtype)
    with torch.no_grad():
        query[..., 0], key[..., 0] = 5e4, 5e4
        query[:, :, 1], key[:, :, 1] = 1e9 if dtype != torch.float16 else 6e4, -20.0
    same(
        AttentionSpec(AdditiveScoreFunction(new(1, 2)), query, key, AttentionMask()),
        new(1, 1, 4, 3, dtype=dtype),
    )


def on_cpu(spec: AttentionSpec) -> AttentionSpec:
    query, key, weight, allowed, bias = (None if x is None else x.cpu() for x in spec.tensors)
    return spec.frame.around(query, key, weight, allowed, bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@torch.no_grad()
def test_weights_and_summaries_equal_the_reference(mask, dtype):
    (n, m), top = sizes(mask), 5
    # As projections return them: heads between positions and dims.
    query, key = (
        new(2, n, 2, 7, dtype=dtype).transpose(1, 2),
        new(2, m, 1, 7, dtype=dtype).transpose(1, 2),
    )
    spec = AttentionSpec(DotScoreFunction(0.7), query, key, visibility(n, m, **MASKS[mask]))
    scores = reference.scores(spec)
    lse = torch.where(scores.isinf().all(-1), 0.0, scores.logsumexp(-1))
    wanted = reference.softmax(scores)
    for picks in (
        slice(0, n),
        torch.tensor([n - 1, 3, 3], device=DEVICE),
        torch.empty(0, dtype=torch.int64, device=DEVICE),
    ):
        found = weights.triton_weights(spec, picks, lse)
        torch.testing.assert_close(found, wanted[:, :, picks], atol=1e-6, rtol=1e-5)
    on = (torch.arange(m, device=DEVICE) % 3 == 0).float()
    expected = weights.summarize(on_cpu(spec), top=top, on=on.cpu(), lse=lse.cpu())
    found = weights.Summary(
        *(x.cpu() for x in vars(weights.triton_summary(spec, top, on, lse)).values())
    )
    for name in ("entropy", "distance", "top_weights", "top_keys", "mass"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), atol=1e-5, rtol=1e-4
        )
    assert weights.triton_summary(spec, 0, None, lse).top_weights.shape[-1] == 0


@torch.no_grad()
def test_weights_and_summaries_come_from_the_kernels_where_these_can_be_launched(monkeypatch):
    """Rows with more of the largest weights than fit into registers do not."""
    spec = AttentionSpec(DotScoreFunction(0.7), new(2, 2, 5, 7), new(2, 1, 9, 7), AttentionMask())
    lse = reference.scores(spec).logsumexp(-1)
    wanted = (
        [weights.summarize(spec, top=top, lse=lse) for top in (3, 4)],
        weights.weights(spec, slice(1, 4), lse),
    )
    asked, kernels = (
        [],
        {name: getattr(weights, name) for name in ("triton_summary", "triton_weights")},
    )
    for name in kernels:
        monkeypatch.setattr(
            weights, name, lambda *given, name=name: (asked.append(name), kernels[name](*given))[1]
        )
    monkeypatch.setattr(weights, "triton_supports", lambda spec: True)
    monkeypatch.setattr(weights, "MAX_TOP", 3)
    found = (
        [weights.summarize(spec, top=top, lse=lse) for top in (3, 4)],
        weights.weights(spec, slice(1, 4), lse),
    )
    assert asked == ["triton_summary", "triton_weights"]
    for ours, plain in zip(found[0], wanted[0], strict=True):
        for name in ("entropy", "distance", "top_weights", "top_keys"):
            torch.testing.assert_close(
                getattr(ours, name), getattr(plain, name), atol=1e-5, rtol=1e-4
            )
    torch.testing.assert_close(found[1], wanted[1], atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_of_equal_weights_the_first_keys_come_first():
    query, key = torch.ones(1, 1, 3, 2, device=DEVICE), torch.ones(1, 1, 40, 2, device=DEVICE)
    key[:, :, 30] = 2.0
    spec = AttentionSpec(DotScoreFunction(1.0), query, key, AttentionMask())
    lse = reference.scores(spec).logsumexp(-1)
    top_keys = weights.triton_summary(spec, 6, None, lse).top_keys
    assert top_keys[0, 0].tolist() == [[30, 0, 1, 2, 3, 4]] * 3


def test_kernels_are_not_launched_on_a_cpu():
    query, key, value = (torch.ones(1, 1, 3, 2) for _ in range(3))
    assert not triton_launch.can_launch(query)
    assert not additive.supports(
        AttentionSpec(AdditiveScoreFunction(torch.ones(1, 2)), query, key, AttentionMask()),
        value,
        0.0,
    )
    assert not weights.triton_supports(
        AttentionSpec(DotScoreFunction(1.0), query, key, AttentionMask())
    )


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    program = Path(__file__).parents[1] / "support" / "compile_triton_kernels.py"
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout == "95\n", done.stderr
