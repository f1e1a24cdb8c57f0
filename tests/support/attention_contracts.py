"""What must hold for every implementation of attention. A contract takes the implementation: faults can be planted."""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard
from support.family import TOLERANCE, Attend, Case, oracle, oracle_weights


def close(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Equal up to rounding: element by element, or in norm for bfloat16."""
    got, wanted = got.double(), wanted.double()
    if dtype == torch.bfloat16:
        assert (got - wanted).norm() <= 0.05 * wanted.norm() + 1e-3
    else:
        torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])


def gradients(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return torch.autograd.grad(out, inputs, direction, materialize_grads=True)


class Definition(NamedTuple):
    """A case by the oracle, whose pairs in Python take most of the time."""

    inputs: list[Tensor]
    out: Tensor
    gradients: tuple[Tensor, ...]
    weights: Tensor


@cache
def _definition(score: str, mask: str, dtype: torch.dtype, shape: str) -> Definition:
    case = Case(score, mask, dtype, shape)
    out = oracle(case.query, case.key, case.value, **case.keywords)
    weights = oracle_weights(case.query, case.key, **case.keywords)
    return Definition(case.inputs, out.detach(), gradients(out, case.inputs), weights.detach())


def definition(case: Case) -> Definition:
    """Computed once for all implementations: a case with the same names has the same inputs."""
    found = _definition(case.score, case.mask, case.dtype, case.shape)
    assert all(
        torch.equal(mine, theirs) for mine, theirs in zip(case.inputs, found.inputs, strict=True)
    )
    return found


def equals_definition(attend: Attend, case: Case) -> None:
    """Value and gradient are those of attention written out pair by pair."""
    out = attend(case.query, case.key, case.value, **case.keywords)
    assert out.dtype == case.dtype
    wanted = definition(case)
    close(out, wanted.out, case.dtype)
    for got, expected in zip(gradients(out, case.inputs), wanted.gradients, strict=True):
        close(got, expected, case.dtype)


def masked_rows_give_zeros(attend: Attend, case: Case) -> None:
    """A row that may attend to nothing gives exact zeros, zero gradient, and no NaN anywhere."""
    out = attend(case.query, case.key, case.value, **case.keywords)
    assert (out[0, case.n // 2] == 0).all()
    assert (out[1] == 0).all()
    assert out.isfinite().all()
    for tensor, gradient in zip(case.inputs, gradients(out, case.inputs), strict=True):
        assert gradient.isfinite().all()
        if tensor.dim() == 3:  # query, key and value of the fully masked sequence
            assert (gradient[1] == 0).all()


def future_changes_nothing(attend: Attend, case: Case) -> None:
    """Changing keys and values after a query's position changes no bit of its output."""
    before = attend(case.query, case.key, case.value, **case.keywords)
    for i in range(case.n):
        later = slice(max(0, i + case.m - case.n + 1), None)
        key, value = case.key.detach().clone(), case.value.detach().clone()
        key[:, later] = key[:, later] * -50 + 3
        value[:, later] = 1e4
        after = attend(case.query, key, value, **case.keywords)
        assert torch.equal(after[:, : i + 1], before[:, : i + 1])


def padding_changes_nothing(attend: Attend, case: Case) -> None:
    """Masked keys, whatever they hold, change neither outputs nor gradients."""
    extra = 4
    garbage = [
        torch.full((2, extra, x.shape[-1]), 50.0, dtype=case.dtype) for x in (case.key, case.value)
    ]
    key, value = torch.cat((case.key, garbage[0]), 1), torch.cat((case.value, garbage[1]), 1)
    mask = torch.arange(case.m + extra).expand(2, 1, -1) < case.m
    alone = attend(case.query, case.key, case.value, score=case.module)
    padded = attend(case.query, key, value, score=case.module, mask=mask)
    close(padded, alone, case.dtype)
    for got, wanted in zip(
        gradients(padded, case.inputs), gradients(alone, case.inputs), strict=True
    ):
        close(got, wanted, case.dtype)


def order_of_keys_changes_nothing(attend: Attend, case: Case) -> None:
    """Permuting keys with their values changes nothing; permuting queries permutes outputs."""
    keys, queries = torch.randperm(case.m), torch.randperm(case.n)
    out = attend(case.query, case.key, case.value, score=case.module)
    shuffled = attend(
        case.query[:, queries], case.key[:, keys], case.value[:, keys], score=case.module
    )
    close(shuffled, out[:, queries], case.dtype)


def capturing_changes_no_bit(attend: Attend, case: Case) -> None:
    """Outputs and gradients are bit-identical while attention is captured."""
    plain = attend(case.query, case.key, case.value, **case.keywords)
    with regard.capture_attention():
        captured = attend(case.query, case.key, case.value, **case.keywords)
    assert torch.equal(plain, captured)
    for got, wanted in zip(
        gradients(captured, case.inputs), gradients(plain, case.inputs), strict=True
    ):
        assert torch.equal(got, wanted)


def agrees_with_torch(attend: Attend, case: Case) -> None:
    """PyTorch's scaled_dot_product_attention gives the same."""
    seen = case.seen
    mask, causal = seen.get("mask"), seen.get("causal", False)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        case.query,
        case.key,
        case.value,
        attn_mask=mask if mask is not None else seen.get("bias"),
        is_causal=causal,
        scale=1.0 if case.score == "dot" else None,
    )
    out = attend(case.query, case.key, case.value, **case.keywords)
    close(out, theirs, case.dtype)
    for got, wanted in zip(
        gradients(out, case.inputs), gradients(theirs, case.inputs), strict=True
    ):
        close(got, wanted, case.dtype)


def weights_are_exact(weights: Attend, case: Case, slack: float = 1.0) -> None:
    """Weights sum to one, are exactly zero where masked, and are the softmax of the scores."""
    got = weights(case.query, case.key, **case.keywords)
    wanted = definition(case).weights
    total = got.double().sum(-1)
    ones = (wanted.sum(-1) > 0.5).double()
    assert (total - ones).abs().max() < (1e-2 if case.dtype == torch.bfloat16 else 1e-5)
    assert (got[wanted == 0] == 0).all()
    error = (got.double() - wanted.double()).abs().max()
    assert (
        error
        <= slack * {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2}[case.dtype]
    )


def captured_weights(query: Tensor, key: Tensor, *, rows: Any = None, **keywords: Any) -> Tensor:
    """The weights of a captured call, recomputed from the log-sum-exp that its kernel returned."""
    value = torch.zeros(*key.shape[:-1], 4, dtype=key.dtype)
    with regard.capture_attention() as calls:
        regard.attend(query, key, value, **keywords)
    (call,) = calls
    return call.weights(rows=rows)
