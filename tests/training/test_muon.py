"""Muon in batches equals PyTorch's, matrix by matrix, and its state is the same."""

import torch

from regard.training.muon import Muon, orthogonalize

SHAPES = ((12, 12), (12, 12), (20, 8), (8, 20), (8, 20))
OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def test_updates_and_state_are_those_of_pytorch():
    weights = [torch.randn(shape) for shape in SHAPES]
    ours, theirs = ([torch.nn.Parameter(weight.clone()) for weight in weights] for _ in range(2))
    optimizers = Muon(ours, **OPTIONS), torch.optim.Muon(theirs, **OPTIONS)
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        ours[1].grad = theirs[1].grad = None  # such a weight is left alone
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(ours[1], weights[1])
    for one, other, before in zip(ours, theirs, weights, strict=True):
        if one is not ours[1]:
            change = (other - before).detach()
            assert float((one - other).detach().norm()) < 0.02 * float(
                change.norm()
            )  # products in bfloat16
    mine, other = (optimizer.state_dict()["state"] for optimizer in optimizers)
    assert mine.keys() == other.keys()
    for number, state in mine.items():
        assert state.keys() == other[number].keys() == {"momentum_buffer"}
        torch.testing.assert_close(state["momentum_buffer"], other[number]["momentum_buffer"])


def test_singular_values_become_nearly_one():
    x = torch.randn(3, 16, 40)
    for matrices in (x, x.mT):
        found = torch.linalg.svdvals(
            orthogonalize(matrices, (3.4445, -4.7750, 2.0315), 5, 1e-7).float()
        )
        assert found.shape == (3, 16)
        assert 0.6 < float(found.min()) < float(found.max()) < 1.3


def test_an_update_with_infinite_gradients_is_skipped_on_the_device():
    weights = [torch.nn.Parameter(torch.randn(8, 20)) for _ in range(2)]
    optimizer, buffers = Muon(weights, **OPTIONS), []
    for bad in (0.0, 1.0):
        before = [weight.detach().clone() for weight in weights]
        for weight in weights:
            weight.grad = torch.full_like(weight, torch.nan) if bad else torch.randn_like(weight)
        optimizer.found_inf = torch.tensor(bad)
        optimizer.step()
        assert all(torch.equal(*pair) == bool(bad) for pair in zip(weights, before, strict=True))
        buffers.append([optimizer.state[weight]["momentum_buffer"].clone() for weight in weights])
    assert all(torch.equal(*pair) for pair in zip(*buffers, strict=True))
    assert all(buffer.abs().sum() > 0 for buffer in buffers[0])
