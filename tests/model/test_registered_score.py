"""A score of the user's own, registered by name, in multi-head attention and in a recurrent decoder."""

import pytest
import torch

import regard
from regard.model.scores import SCORES
from support.family import ReluScore


class HeadedRelu(ReluScore):
    @classmethod
    def build(cls, query_dim, key_dim, heads=None, kv_heads=None):
        return cls(query_dim, heads or 1)


@pytest.fixture(autouse=True)
def registered():
    SCORES.register("relu", HeadedRelu)
    yield
    SCORES.unregister("relu")


def test_multi_head_attention_equals_its_definition():
    torch.manual_seed(1)
    module, x = (
        regard.MultiHead(8, 2, score="relu").double(),
        torch.randn(2, 5, 8, dtype=torch.float64),
    )
    query, key, value = (
        layer(x).unflatten(2, (2, 4)).transpose(1, 2)
        for layer in (module.q_proj, module.k_proj, module.v_proj)
    )
    scores = (
        module.score.weight[:, None, None] * torch.relu(query[:, :, :, None] + key[:, :, None])
    ).sum(-1)
    wanted = module.out_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
    got, parameters = module(x), list(module.parameters())
    torch.testing.assert_close(got, wanted)
    found, expected = (torch.autograd.grad(out.square().sum(), parameters) for out in (got, wanted))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


def test_a_recurrent_decoder_takes_it_and_its_steps_equal_the_whole():
    torch.manual_seed(2)
    encoder, decoder = (
        {"kind": "rnn", "dim": 8, "bidirectional": False},
        {"kind": "rnn", "dim": 8, "score": "relu"},
    )
    table = {"encoder": encoder, "decoder": decoder, "vocab_size": 9, "source_vocab_size": 9}
    model = regard.build(table).eval()
    memory, targets = (
        model.encode(regard.Tokens.of([[3, 4, 5], [6, 7]])),
        torch.tensor([[1, 3, 4], [1, 5, 2]]),
    )
    whole = model.decoder(targets, memory)
    whole.square().sum().backward()
    assert model.decoder.score.weight.grad.abs().sum() > 0
    state, steps = model.decoder.start(memory, batch=2, capacity=3), []
    with torch.no_grad():
        for t in range(3):
            logits, state = model.decoder.step(targets[:, t], state)
            steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), whole.detach())
