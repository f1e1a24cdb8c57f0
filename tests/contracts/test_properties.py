"""Attention on generated shapes, masks and windows: every kernel against the reference."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from regard.kernels.attention import blockwise, reference, sdpa
from regard.kernels.attention.bias import DistanceBias
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import AdditiveScoreFunction, DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec

size, few = st.integers(1, 9), st.integers(1, 3)
reach = st.none() | st.integers(0, 10)


@st.composite
def lookups(draw):
    (batch, groups, group), (n, m, dim) = ([draw(each) for _ in range(3)] for each in (few, size))
    heads = groups * group
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    axes = [draw(st.sampled_from([1, full])) for full in (batch, heads, n, m)]
    bias_axes = [draw(st.sampled_from([1, full])) for full in (batch, heads, n, m)]
    spec = AttentionSpec(
        score_function=draw(
            st.sampled_from(
                [
                    DotScoreFunction(0.7),
                    AdditiveScoreFunction(new(1, dim)),
                    AdditiveScoreFunction(new(heads, dim)),
                ]
            )
        ),
        query=new(batch, heads, n, dim).requires_grad_(),
        key=new(batch, groups, m, dim).requires_grad_(),
        visible=AttentionMask(
            draw(st.sampled_from([None, new(*axes) > -0.5])), draw(reach), draw(reach)
        ),
        bias=draw(
            st.sampled_from([None, new(*bias_axes), DistanceBias(new(*bias_axes[:2], n + m - 1))])
        ),
    )
    return spec, new(batch, groups, m, draw(size)).requires_grad_()


@pytest.mark.parametrize("small", [True, False], ids=["many blocks", "one block"])
@settings(deadline=None, max_examples=150, derandomize=True)
@given(lookups())
def test_every_kernel_equals_the_plain_one(small, asked):
    spec, value = asked
    inputs = [spec.query, spec.key, value]
    wanted, lse = reference.attend(spec, value)
    expected = torch.autograd.grad(wanted.square().sum(), inputs)
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(sdpa, "TILE", 12)
            patch.setattr(blockwise, "BLOCK", 12)
            patch.setattr("regard.kernels.attention.score_function.CUBE", 20)
        for kernel in (blockwise, sdpa):
            if kernel is sdpa and not sdpa.supports(spec, value, 0.0):
                continue
            out, its_lse = kernel.attend(spec, value)
            torch.testing.assert_close(out, wanted)
            torch.testing.assert_close(its_lse, lse)
            torch.testing.assert_close(torch.autograd.grad(out.square().sum(), inputs), expected)
