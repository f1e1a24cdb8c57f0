"""The loss that never holds all logits equals the one that does."""

import pytest
import torch

from measure import peak_bytes
from regard.model.embedding import Embedding, Projection
from regard.training import loss
from regard.training.loss import plain_token_loss, token_loss


def inputs(n=38, width=12, vocabulary=50):
    torch.manual_seed(0)
    project = Projection(width, vocabulary, tied=Embedding(vocabulary, width))
    project.bias.data.normal_()
    return torch.randn(n, width, requires_grad=True), project, torch.randint(vocabulary, (n,))


@pytest.mark.parametrize("rows", [1, 5, 38, 100])
@pytest.mark.parametrize("agreement", [0.0, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunked_equals_plain(monkeypatch, rows, agreement, smoothing):
    states, project, gold = inputs()
    monkeypatch.setattr(loss, "CHUNK", rows * 50)
    found = []
    for function in (token_loss, plain_token_loss):
        value = function(states, project, gold, smoothing=smoothing, agreement=agreement)
        found.append((value, *torch.autograd.grad(value * 0.3, [states, project.weight, project.bias])))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_disagreement_is_the_mean_of_both_divergences():
    states, project, gold = inputs()
    one, other = project(states).log_softmax(-1)[::2], project(states).log_softmax(-1)[1::2]
    both = [torch.nn.functional.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((one, other), (other, one))]
    wanted = plain_token_loss(states, project, gold) + 3.0 * sum(both)  # each of two rows counts the mean of both
    torch.testing.assert_close(plain_token_loss(states, project, gold, agreement=3.0), wanted)
    twins = states.detach()[::2].repeat_interleave(2, 0)
    torch.testing.assert_close(token_loss(twins, project, gold, agreement=3.0), token_loss(twins, project, gold))


def test_frozen_parts_get_no_gradient():
    states, project, gold = inputs()
    project.requires_grad_(False)
    token_loss(states, project, gold).backward()
    assert project.weight.grad is None
    assert states.grad is not None
    with torch.no_grad():
        assert not token_loss(states, project, gold).requires_grad


def test_impossible_tokens_cost_a_finite_price():
    states, project, gold = inputs()
    project.bias.data[3] = -1e4
    value = token_loss(states, project, torch.full_like(gold, 3))
    assert value.isfinite()
    torch.testing.assert_close(value, plain_token_loss(states, project, torch.full_like(gold, 3)))


def test_in_low_precision_the_sum_is_float32():
    states, project, gold = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        value = token_loss(states, project, gold, smoothing=0.1)
    value.backward()
    assert value.dtype == torch.float32
    assert project.weight.grad.dtype == torch.float32
    torch.testing.assert_close(value, plain_token_loss(states, project, gold, smoothing=0.1), rtol=2e-2, atol=0.0)


def test_memory_does_not_hold_all_logits(monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", 2**20)
    states, project, gold = inputs(n=2000, width=8, vocabulary=4000)  # all logits: 32 MB
    assert peak_bytes(lambda: token_loss(states, project, gold).backward()) < 16e6
    assert peak_bytes(lambda: plain_token_loss(states, project, gold).backward()) > 32e6
