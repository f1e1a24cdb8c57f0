"""Attention over packed sequences, captured and intercepted as over padded ones."""

import pytest
import torch

import regard
from regard.core.sequence import SequenceOffsets
from regard.model.capture import intercepting

LENGTHS, SOURCE_LENGTHS, DIM = (3, 6, 1, 4), (5, 2, 7, 3), 16
LAYERS = {
    "dot": {"score": "dot"},
    "scaled_dot": {},
    "bilinear": {"score": "bilinear"},
    "grouped heads": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1, "score": "bilinear"},
    "qk_norm": {"qk_norm": True},
    "rotary": {"rotary": 4},
    "rotary grouped heads": {"rotary": 4, "kv_heads": 2, "qk_norm": True},
}
CROSS = [name for name in LAYERS if "rotary" not in name]


def layer(name: str) -> regard.MultiHead:
    torch.manual_seed(5)
    settings = dict(LAYERS[name])
    rotary = regard.Rotary(settings.pop("rotary")) if "rotary" in settings else None
    return regard.MultiHead(DIM, 4, rotary=rotary, **settings).double()


def sequences(lengths: tuple[int, ...]) -> tuple[SequenceOffsets, torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return SequenceOffsets.of(lengths), torch.randn(
        sum(lengths), DIM, generator=generator, dtype=torch.float64
    )


def both(name: str, *, causal: bool = False, cross: bool = False):
    """The layer as a function of packed and of padded sequences, and the offsets of the queries."""
    module, (offsets, x) = layer(name), sequences(LENGTHS)
    source_offsets, source = sequences(SOURCE_LENGTHS) if cross else (offsets, None)
    mask = source_offsets.mask[:, None]

    def packed():
        return module.forward_packed(x, offsets, source, source_offsets, causal=causal)

    def padded():
        return module(
            offsets.pad(x),
            None if source is None else source_offsets.pad(source),
            mask=mask,
            causal=causal,
        )

    return module, packed, padded, offsets


CASES = [
    *(
        pytest.param(name, {"causal": causal}, id=f"{name}-causal={causal}")
        for name in LAYERS
        for causal in (0, 1)
    ),
    *(pytest.param(name, {"cross": True}, id=f"{name}-cross") for name in CROSS),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_captured_weights_are_those_of_the_padded_pass(name, kind):
    module, packed, padded, offsets = both(
        name, **{key: bool(value) for key, value in kind.items()}
    )
    with torch.no_grad():
        alone = packed()
        with regard.capture_attention() as calls:
            captured = packed()
        with regard.capture_attention() as padded_calls:
            wanted = offsets.packing.pack(padded())
    assert torch.equal(captured, alone)
    torch.testing.assert_close(captured, wanted, rtol=1e-9, atol=1e-10)
    (call,), (padded_call,) = calls, padded_calls
    assert call.source is module
    rows = offsets.mask[:, None, :, None]
    torch.testing.assert_close(
        call.weights() * rows, padded_call.weights() * rows, rtol=1e-9, atol=1e-12
    )
    on = torch.arange(call.spec.m) < 1
    for name, value in vars(call.summary(top=2, on=on)).items():
        real = offsets.mask[:, None].expand(value.shape[:3])
        torch.testing.assert_close(
            value[real], getattr(padded_call.summary(top=2, on=on), name)[real]
        )


@pytest.mark.parametrize(
    ("name", "kind"), [CASES[2].values, CASES[-1].values], ids=["self", "cross"]
)
def test_an_interceptor_replaces_the_output_and_gets_gradients(name, kind):
    module, packed, padded, offsets = both(
        name, **{key: bool(value) for key, value in kind.items()}
    )

    def doubled_first_head(source, result):
        assert source is module
        assert result.spec.query.requires_grad
        return result._replace(out=torch.cat((2 * result.out[:, :1], result.out[:, 1:]), 1))

    plain = packed()
    with intercepting(lambda source, result: result):
        assert torch.equal(packed(), plain)
    with intercepting(doubled_first_head):
        got, wanted = packed(), offsets.packing.pack(padded())
    assert not torch.allclose(got, plain)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    parameters = list(module.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(got.square().sum(), parameters, allow_unused=True),
        torch.autograd.grad(wanted.square().sum(), parameters, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_capturing_changes_no_gradient():
    module, packed, _, _ = both("grouped heads", causal=True)
    parameters = list(module.parameters())
    plain = torch.autograd.grad(packed().square().sum(), parameters, allow_unused=True)
    with regard.capture_attention():
        captured = torch.autograd.grad(packed().square().sum(), parameters, allow_unused=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, captured, strict=True))


@pytest.mark.parametrize("score", ["additive", "uniform", "reduced_rank"])
def test_scores_that_are_not_packable_are_refused(score):
    offsets, x = sequences(LENGTHS)
    with pytest.raises(
        regard.InvalidArgument, match="score: wanted a score that declares packable"
    ):
        regard.MultiHead(DIM, 4, score=score).double().forward_packed(x, offsets)
