"""The shared MLP: every position for itself."""

import pytest
import torch
from torch import nn

import regard
from regard.core.errors import InvalidRecipe
from regard.core.sequence import Packed, SequenceOffsets, Tokens
from regard.model.mlp import MlpEncoder
from support.models import without_zeros

ROWS = [[5, 6, 7, 8, 9], [6, 5], [9, 8, 7]]


def built(**options: object) -> MlpEncoder:
    torch.manual_seed(2)
    encoder = {"kind": "mlp", "dim": 12, "ffn_dim": 20, **options}
    table = {"encoder": encoder, "pool": {"kind": "mean"}, "num_labels": 3, "source_vocab_size": 12}
    return without_zeros(regard.build(table)).eval().encoder


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@torch.no_grad()
def test_the_states_are_one_mlp_of_each_embedding(layers, residual):
    encoder = built(layers=layers, residual=residual, activation="relu")
    linears = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == layers + 1
    source = Tokens.of(ROWS)
    memory = encoder(source)
    for row, ids in enumerate(ROWS):
        for position, token in enumerate(ids):
            x = encoder.embed_tokens(torch.tensor(token))
            hidden = x
            for linear in linears[:-1]:
                hidden = (linear.weight @ hidden + linear.bias).relu()
            wanted = linears[-1].weight @ hidden + linears[-1].bias
            wanted = x + wanted if residual else wanted
            torch.testing.assert_close(memory.states[row, position], wanted)
        torch.testing.assert_close(
            memory.summary[row], memory.states[row, : len(ids)].mean(0), atol=1e-6, rtol=1e-5
        )


@torch.no_grad()
def test_permuted_sources_have_permuted_states():
    encoder = built(layers=2, residual=True)
    order = torch.tensor([3, 0, 4, 1, 2])
    ids = torch.tensor([ROWS[0]])
    memory = encoder(Tokens(ids, torch.tensor([5])))
    permuted = encoder(Tokens(ids[:, order], torch.tensor([5])))
    torch.testing.assert_close(permuted.states, memory.states[:, order])
    torch.testing.assert_close(permuted.summary, memory.summary)


@pytest.mark.parametrize("place", range(5))
@torch.no_grad()
def test_a_token_changes_its_own_state_alone(place):
    encoder = built()
    changed = [11 if at == place else token for at, token in enumerate(ROWS[0])]
    difference = encoder(Tokens.of([changed])).states - encoder(Tokens.of([ROWS[0]])).states
    moved = difference[0].abs().amax(-1) > 0
    assert moved.tolist() == [at == place for at in range(5)]


@pytest.mark.parametrize(
    ("layers", "parameters"), [(1, 13 * 20 + 21 * 12), (2, 13 * 20 + 21 * 20 + 21 * 12)]
)
def test_parameters(layers, parameters):
    encoder = built(layers=layers)
    embedding = 12 * 12
    assert sum(p.numel() for p in encoder.parameters()) == parameters + embedding


@torch.no_grad()
def test_packed_equals_padded():
    encoder = built(layers=2, residual=True)
    source = Tokens.of(ROWS)
    offsets = SequenceOffsets.of([len(row) for row in ROWS])
    packed = encoder.forward_packed(Packed(torch.tensor([*ROWS[0], *ROWS[1], *ROWS[2]]), offsets))
    padded = encoder(source).states[source.mask]
    torch.testing.assert_close(packed.states, padded)


@pytest.mark.parametrize("pool", ["first", "last"])
def test_a_pool_of_one_state_is_refused(pool):
    encoder = {"kind": "mlp", "dim": 12}
    table = {"encoder": encoder, "pool": {"kind": pool}, "num_labels": 3, "source_vocab_size": 12}
    with pytest.raises(InvalidRecipe, match=r"model\.pool\.kind: wanted 'mean' or 'attention'"):
        regard.build(table)


def test_it_keeps_positions():
    assert built().keeps_positions
