"""The same numbers as PyTorch's own modules, with the same weights."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.core.sequence import Tokens
from regard.model.embedding import Embedding, Projection
from regard.model.memory import Memory
from regard.model.rnn_encoder import RnnConfig, RnnEncoder
from regard.model.transformer import TransformerDecoder
from regard.model.transformer_block import PaddedInputs, TransformerStack
from regard.model.transformer_config import TransformerConfig
from support.models import VOCABULARY, WIDTH, without_zeros, words


def copy_attention(ours, theirs) -> None:
    theirs.in_proj_weight.copy_(
        torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight])
    )
    theirs.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_block(ours, theirs) -> None:
    copy_attention(ours.self_attn, theirs.self_attn)
    norms = [ours.norm1, ours.ffn_norm]
    if ours.cross_attn is not None:
        copy_attention(ours.cross_attn, theirs.multihead_attn)
        norms.insert(1, ours.norm2)
    for i, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{i}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.ffn.up.state_dict())
    theirs.linear2.load_state_dict(ours.ffn.down.state_dict())


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_encoder(norm_first, activation):
    config = TransformerConfig(
        dim=16,
        layers=3,
        heads=4,
        ffn_dim=40,
        dropout=0.0,
        norm_first=norm_first,
        activation=activation,
        positions="none",
    )
    ours = without_zeros(TransformerStack(config))
    layer = nn.TransformerEncoderLayer(
        16, 4, 40, 0.0, activation, batch_first=True, norm_first=norm_first
    )
    theirs = nn.TransformerEncoder(
        layer, 3, nn.LayerNorm(16) if norm_first else None, enable_nested_tensor=False
    )
    with torch.no_grad():
        for mine, other in zip(ours.layers, theirs.layers, strict=True):
            copy_block(mine, other)
        if norm_first:
            theirs.norm.load_state_dict(ours.norm.state_dict())
    x = torch.randn(3, 6, 16, requires_grad=True)
    mask = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    out, wanted = ours(x, PaddedInputs(mask[:, None])), theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(out[mask], wanted[mask])
    torch.testing.assert_close(
        torch.autograd.grad(out[mask].square().sum(), x),
        torch.autograd.grad(wanted[mask].square().sum(), x),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_decoder(norm_first):
    config = TransformerConfig(
        dim=16, layers=2, heads=4, ffn_dim=40, dropout=0.0, norm_first=norm_first, positions="none"
    )
    embedding = Embedding(VOCABULARY, 16)
    ours = without_zeros(TransformerDecoder(config, embedding, Projection(16, VOCABULARY), 16))
    layer = nn.TransformerDecoderLayer(
        16, 4, 40, 0.0, "relu", batch_first=True, norm_first=norm_first
    )
    theirs = nn.TransformerDecoder(layer, 2, nn.LayerNorm(16) if norm_first else None)
    with torch.no_grad():
        for mine, other in zip(ours.stack.layers, theirs.layers, strict=True):
            copy_block(mine, other)
        if norm_first:
            theirs.norm.load_state_dict(ours.stack.norm.state_dict())
    targets, states = torch.randint(VOCABULARY, (3, 5)), torch.randn(3, 7, 16)
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    out = ours(targets, Memory(states, mask, states[:, 0]))
    future = nn.Transformer.generate_square_subsequent_mask(5)
    wanted = theirs(
        embedding(targets),
        states,
        tgt_mask=future,
        memory_key_padding_mask=~mask,
        tgt_is_causal=True,
    )
    torch.testing.assert_close(out, ours.project(wanted))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_recurrent_encoder(cell, bidirectional):
    """Each sentence alone through PyTorch's module; the reversed direction begins at the sentence's own end."""
    encoder = without_zeros(
        RnnEncoder(
            RnnConfig(cell, WIDTH, layers=2, dropout=0.0, bidirectional=bidirectional), words()
        )
    ).eval()
    theirs = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell](
        WIDTH, WIDTH // (1 + bidirectional), 2, batch_first=True, bidirectional=bidirectional
    )
    theirs.load_state_dict(encoder.rnn.state_dict())
    rows = [[1, 2, 3, 4], [5], [6, 7]]
    memory = encoder(Tokens.of(rows))
    for i, row in enumerate(rows):
        states, hidden = theirs(encoder.embed_tokens(torch.tensor([row])))
        torch.testing.assert_close(memory.states[i, : len(row)], states[0])
        last = hidden[0] if cell == "lstm" else hidden
        torch.testing.assert_close(
            memory.summary[i], last[-2:, 0].flatten() if bidirectional else last[-1, 0]
        )


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_attention_of_few_dimensions(dim):
    query, key, value = torch.randn(2, 3, dim), torch.randn(2, 5, dim), torch.randn(2, 5, 4)
    torch.testing.assert_close(
        regard.attend(query, key, value), F.scaled_dot_product_attention(query, key, value)
    )
