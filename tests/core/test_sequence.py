"""Work that leaves out the padding equals work that does not; and dropout drops what it should."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.core.sequence import Packing, Tokens, Vectors
from regard.kernels.layers.dropout import Dropout
from regard.model.memory import Memory
from regard.tasks.objective import repeat_batch
from support import models
from support.models import WIDTH, decoder, encoder, memory, source

PACKED_ENCODERS = [
    name for name in models.TEXT_ENCODERS | models.VECTOR_ENCODERS if "transformer" in name
]


def with_gradient(module, run):
    out = run()
    direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return out, torch.autograd.grad(
        (out * direction).sum(), list(module.parameters()), allow_unused=True
    )


# Gradients of up to 25, sums over all positions in another order, have errors of 1.5e-5 in float32:
# at a number that is near 0, no relative tolerance allows for them.
TOLERANCES = {torch.float32: 5e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", PACKED_ENCODERS)
def test_packed_encoder_equals_padded(name, dtype, monkeypatch):
    module, batch = encoder(name).to(dtype), source(name)
    if isinstance(batch, Vectors):
        batch = replace(batch, values=batch.values.to(dtype))

    def states():
        found = module(batch)
        return found.states.masked_fill(~found.mask[..., None], 0.0)

    packed = with_gradient(module, states)
    monkeypatch.setattr(Packing, "where_useful", staticmethod(lambda mask: None))
    padded = with_gradient(module, states)
    relative = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(packed, padded, atol=TOLERANCES[dtype], rtol=relative)


@pytest.mark.parametrize("name", models.DECODERS)
def test_packed_states_are_the_padded_ones(name):
    module, given = decoder(name), memory()
    targets = Tokens.of([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 1]])
    packing = Packing.of(targets.mask)
    packed = with_gradient(module, lambda: module.hidden(targets.ids, given, packing))
    padded = with_gradient(module, lambda: module.hidden(targets.ids, given)[targets.mask])
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=1e-4)


def test_packing_and_back():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    x = torch.randn(2, 3, 4, requires_grad=True)
    packing = Packing.of(mask)
    assert torch.equal(packing.pack(x), x[mask])
    back = packing.unpack(packing.pack(x))
    assert torch.equal(back, x.masked_fill(~mask[..., None], 0.0))
    (gradient,) = torch.autograd.grad(back.sum(), x)
    assert torch.equal(gradient, mask[..., None].expand_as(x).float())
    assert Packing.where_useful(torch.ones_like(mask)) is None


def test_dropout_drops_its_share_and_keeps_the_mean():
    torch.manual_seed(0)
    x = torch.full((400, 1000), 2.0, requires_grad=True)
    drop = Dropout(0.3)
    out = drop(x)
    lost = float((out == 0).float().mean())
    assert abs(lost - 0.3) < 0.004  # five standard deviations
    assert abs(float(out.detach().mean()) - 2.0) < 0.02
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out.detach() / 2)
    rows = (out == 0).float()
    neighbours = ((rows[:, 1:] - 0.3) * (rows[:, :-1] - 0.3)).mean() / 0.21
    assert abs(float(neighbours)) < 0.01  # bits cut from one random number are independent
    assert drop.eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert isinstance(drop, nn.Dropout)


def test_one_seed_drops_the_same():
    x, found = torch.ones(50, WIDTH), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(Dropout(0.5)(x))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_lists_become_tokens():
    """Of different lengths, of none, and of none at all."""
    found = Tokens.of([[3, 2**40], (), [5]])
    assert found.ids.tolist() == [[3, 2**40], [0, 0], [5, 0]]
    assert found.lengths.tolist() == [2, 0, 1]
    assert Tokens.of([[], []]).ids.shape == (2, 0)


def test_lengths_stay_with_the_host():
    """Reading values on PyTorch's device `meta` is an error, so a copy from the device would fail."""
    rows = [[5, 6, 7], [8]]
    moved = Tokens.of(rows).to("meta")
    for tokens in (Tokens.of(rows), moved, moved.to("meta"), Tokens.of(rows, device="meta")):
        assert tokens.host_lengths.tolist() == [3, 1]
        assert repeat_batch(tokens).host_lengths.tolist() == [3, 1, 3, 1]
    with pytest.raises(NotImplementedError):
        replace(moved, host_copy=None).host_lengths.tolist()


def test_dropout_onto_another_dtype_drops_too():
    """As under autocast: the residual stream in float32, its change in bfloat16."""
    dropout = Dropout(0.25).train()
    x, change = torch.full((40, 50), 3.0), torch.ones(40, 50, dtype=torch.bfloat16)
    added = dropout.onto(x, change) - x
    assert added.dtype == torch.float32
    assert 0.2 < (added == 0).float().mean() < 0.3
    torch.testing.assert_close(
        added[added != 0], torch.full_like(added[added != 0], 1 / 0.75), rtol=1e-2, atol=0
    )


def test_an_empty_memory_shows_nothing():
    """Of a decoder's buffers before a request is admitted."""
    given = Memory(
        torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 4), cls_tokens=1
    )
    empty = given.empty(6, 7)
    assert (empty.states.shape, empty.mask.shape, empty.summary.shape) == (
        (6, 7, 4),
        (6, 7),
        (6, 4),
    )
    assert not empty.mask.any()
    assert not empty.states.any()
    assert not empty.summary.any()
    assert empty.cls_tokens == 1
