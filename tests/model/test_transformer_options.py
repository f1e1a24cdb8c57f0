"""The options of Transformers by their definitions. The contracts hold for them too: see support/models.py."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import Tokens
from regard.generation.engines.plain_transformer import is_plain
from regard.kernels.layers.residual_norm import OffsetRMSNorm
from regard.model.embedding import Embedding, Projection
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from regard.model.transformer_block import FeedForward, InputLayer, TransformerBlock
from regard.model.transformer_config import TransformerConfig
from regard.model.vision import VitConfig
from support.models import SMALL, WIDTH, decoder, encoder, source, words

BIASES = {
    "all": {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"},
    "qkv": {"q_proj.bias", "k_proj.bias", "v_proj.bias"},
    "none": set(),
}


@pytest.mark.parametrize("which", BIASES)
def test_biases_of_attention(which):
    block = TransformerBlock(replace(SMALL, attention_bias=which), WIDTH)
    for attention in (block.self_attn, block.cross_attn):
        assert {name for name, _ in attention.named_parameters() if "bias" in name} == BIASES[which]


def test_parameters_of_a_model_with_values_of_another_dim():
    """Counted by hand: 16 to 2 heads of keys of 8, and of values of 3."""
    table = {"kind": "transformer", "dim": 16, "layers": 3, "heads": 2, "ffn_dim": 24}
    options = {"source_vocab_size": 9, "num_labels": 4}
    pool = {"kind": "attention", "heads": 2, "value_dim": 5}
    wide, plain = (
        regard.build({"encoder": {**table, **values}, "pool": {**pool, **pooled}, **options})
        for values, pooled in (({"value_dim": 3}, {}), ({}, {"value_dim": 8}))
    )
    counts = [sum(p.numel() for p in model.parameters()) for model in (wide, plain)]
    # A value projection (16 + 1) · 2 · E and an output projection (2 · E + 1) · 16.
    blocks, pooling = (
        [17 * 2 * dim + (2 * dim + 1) * 16 for dim in dims] for dims in ((3, 8), (5, 8))
    )
    assert counts[0] - counts[1] == 3 * (blocks[0] - blocks[1]) + pooling[0] - pooling[1]
    assert wide.pool.attn.v_proj.out_features == 10


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_a_feed_forward_network_without_biases(activation):
    names = dict(
        FeedForward(replace(SMALL, activation=activation, ffn_bias=False)).named_parameters()
    )
    assert set(names) == {"up.weight", "down.weight"} | (
        {"gate.weight"} if activation == "swiglu" else set()
    )


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
@torch.no_grad()
def test_gated_units_equal_their_definition(name):
    """SwiGLU and GEGLU, the latter with the tanh approximation of GELU (https://arxiv.org/abs/2002.05202)."""
    ffn, x = FeedForward(replace(SMALL, activation=name)).eval(), torch.randn(3, WIDTH)
    activation = (
        nn.functional.silu if name == "swiglu" else partial(nn.functional.gelu, approximate="tanh")
    )
    torch.testing.assert_close(ffn(x), ffn.down(activation(ffn.gate(x)) * ffn.up(x)))


@pytest.mark.parametrize("recomputed", [False, True])
def test_activation_checkpointing_computes_every_block_twice(recomputed):
    """Once more in the backward pass; outputs and gradients are the same."""
    config = replace(SMALL, layers=2, dropout=0.0, attention_dropout=0.0, ffn_dropout=0.0)
    made = TransformerEncoder(replace(config, activation_checkpointing=recomputed), words()).train()
    plain = TransformerEncoder(config, words()).train()
    plain.load_state_dict(made.state_dict())
    calls, gradients = [0, 0], []
    for number, module in enumerate((made, plain)):
        for block in module.stack.layers:
            block.norm1.register_forward_hook(
                lambda *given, number=number: calls.__setitem__(number, calls[number] + 1)
            )
        out = module(Tokens.of([[1, 2, 3], [4]])).states
        gradients.append(torch.autograd.grad(out.sin().sum(), list(module.stack.parameters())))
    assert calls[1] > 0
    assert calls[0] == calls[1] * (2 if recomputed else 1)
    torch.testing.assert_close(*gradients)


@torch.no_grad()
def test_the_gain_of_an_offset_norm_is_one_plus_its_weight():
    offset, plain, x = OffsetRMSNorm(WIDTH, 1e-3), nn.RMSNorm(WIDTH, 1e-3), torch.randn(3, WIDTH)
    assert torch.equal(offset(x), plain(x))
    offset.weight.copy_(torch.randn(WIDTH))
    plain.weight.copy_(1 + offset.weight)
    assert torch.equal(offset(x), plain(x))


def test_head_dim_is_independent_of_dim():
    attention = TransformerBlock(
        replace(SMALL, heads=3, head_dim=10, positions="rotary"), WIDTH
    ).self_attn
    assert attention.q_proj.weight.shape == (30, WIDTH)
    assert attention.rotary.dim == 10
    with pytest.raises(
        InvalidRecipe, match=r"heads: wanted a divisor of dim = 16; got 3\. .* or give head_dim"
    ):
        replace(SMALL, heads=3)
    with pytest.raises(
        InvalidRecipe, match=r"heads of a dim that is a multiple of 2, for rotary .* got a dim of 5"
    ):
        replace(SMALL, head_dim=5, positions="rotary")


def test_norm_eps_is_that_of_queries_and_keys_too():
    attention = TransformerBlock(replace(SMALL, qk_norm=True, norm_eps=0.01)).self_attn
    assert attention.q_norm.eps == attention.k_norm.eps == 0.01


def test_the_wavelengths_of_rotary_positions():
    rotary = TransformerBlock(
        replace(SMALL, positions="rotary", rotary_base=100.0)
    ).self_attn.rotary
    x = torch.zeros(1, 8)
    x[0, 1] = 1.0  # the second pair, of dimensions 1 and 5, turns by 100^(-1/4) for each position
    torch.testing.assert_close(
        rotary(x, torch.tensor([3]))[0, 1], torch.tensor(3 * 100**-0.25).cos()
    )


def test_the_buckets_of_relative_positions():
    table = {"kind": "transformer", "dim": 8, "heads": 2, "layers": 1, "positions": "relative"}
    options = {"relative_buckets": 8, "relative_max_distance": 20}
    model = regard.build({"encoder": table | options, "decoder": table, "vocab_size": 9})
    bias = model.encoder.input_layer.relative_bias
    assert (bias.table.shape, bias.max_distance, bias.bidirectional) == ((2, 8), 20, True)
    bias = model.decoder.input_layer.relative_bias
    assert (bias.table.shape, bias.max_distance, bias.bidirectional) == ((2, 32), 128, False)
    with pytest.raises(
        InvalidRecipe, match="relative_max_distance: wanted more than 4, half of relative_buckets"
    ):
        TransformerConfig(positions="relative", relative_buckets=8, relative_max_distance=4)
    with pytest.raises(
        InvalidRecipe, match="relative_buckets: wanted nothing here: positions are not relative"
    ):
        regard.build({"decoder": table | options | {"positions": "rotary"}, "vocab_size": 9})


@torch.no_grad()
def test_learned_positions_after_unused_rows():
    layer = InputLayer(
        replace(SMALL, positions="learned", max_positions=5, position_offset=2), bidirectional=True
    )
    table, x = layer.position_encoding.positions.table, torch.zeros(1, 3, WIDTH)
    assert table.shape == (7, WIDTH)
    assert layer.limit == 5
    assert torch.equal(layer.eval()(x, 2)[0], table[4:7])
    with pytest.raises(InvalidArgument, match="at most 5 positions"):
        layer(x, 3)
    part = {"kind": "transformer", "positions": "rotary", "position_offset": 2}
    with pytest.raises(
        InvalidRecipe, match="position_offset: wanted nothing here: only learned positions are rows"
    ):
        regard.build({"decoder": part, "vocab_size": 9})


@torch.no_grad()
def test_the_vector_of_the_first_segment_is_added_before_the_norm():
    layer, x = (
        InputLayer(replace(SMALL, token_types=2, norm_input=True), bidirectional=True).eval(),
        torch.randn(1, 3, 16),
    )
    assert layer.token_types.shape == (2, WIDTH)
    torch.testing.assert_close(
        layer(x), layer.norm(layer.position_encoding(x + layer.token_types[0]))
    )
    with pytest.raises(
        InvalidRecipe, match="token_types: wanted nothing here: only the input of an encoder"
    ):
        regard.build({"decoder": {"kind": "transformer", "token_types": 2}, "vocab_size": 9})


@torch.no_grad()
def test_a_distillation_token_comes_after_the_cls_token():
    made = encoder("vit distillation_token")
    given = []
    made.stack.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    found = made(source("vit", (1, 1)))
    table = made.input_layer.position_encoding.positions.table
    assert torch.equal(
        given[0][0, :2],
        torch.stack((made.cls_token.embedding, made.distillation_token.embedding)) + table[:2],
    )
    assert (found.cls_tokens, found.states.shape[1], made.cls_tokens) == (2, 2 + 6, 2)
    with pytest.raises(InvalidRecipe, match="cls_token: wanted true with a distillation_token"):
        VitConfig(4, SMALL, distillation_token=True)


@torch.no_grad()
def test_output_layers_with_and_without_bias_and_scale():
    embedding, states = Embedding(9, WIDTH), torch.randn(2, WIDTH)
    plain, scaled = (
        Projection(WIDTH, 9, tied=embedding, bias=False),
        Projection(WIDTH, 9, tied=embedding, scaled=True),
    )
    scaled.bias.copy_(torch.randn(9))
    assert set(dict(plain.named_parameters())) == {"weight"}
    torch.testing.assert_close(scaled(states), plain(states) / WIDTH**0.5 + scaled.bias)
    part = {"kind": "transformer", "dim": 8, "heads": 2, "layers": 1}
    options = {"output_bias": False, "scale_logits": True}
    for model in ({"decoder": part}, {"encoder": part, "head": "mlm"}):
        built = regard.build(model | options | {"vocab_size": 9})
        project = built.project if "head" in model else built.decoder.project
        assert (project.bias, project.scale) == (None, 8**-0.5)
    pool = {"encoder": part, "pool": {"kind": "mean"}, "source_vocab_size": 9, "num_labels": 2}
    with pytest.raises(
        InvalidRecipe, match="scale_logits: wanted nothing here: no tokens are predicted"
    ):
        regard.build(pool | {"scale_logits": True})


@torch.no_grad()
def test_a_position_attends_to_as_many_as_the_sliding_window_has():
    module, targets = decoder("transformer like Mistral", None), torch.randint(11, (2, 9))
    with regard.capture_attention() as calls:
        module(targets)
    visible = torch.ones(9, 9).tril() - torch.ones(9, 9).tril(-3)
    for call in calls:
        assert torch.equal(call.weights() > 0, visible.bool().expand(call.weights().shape))


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_steps_with_a_sliding_window_equal_forward(beams):
    """Beyond the capacity of the cache, which holds two windows; hypotheses follow others; others are admitted."""
    module, batch, length = decoder("transformer like Mistral", None), 2, 17
    generator = torch.Generator().manual_seed(1)
    state = module.start(None, batch=batch, capacity=length, beams=beams)
    assert state.caches[0].capacity == 6 * beams
    prefixes = torch.zeros(batch, beams, 0, dtype=torch.int64)
    for step in range(length):
        if step == 8:
            state = state.admit(
                torch.tensor([1]), module.start(None, batch=1, capacity=0, beams=beams)
            )
        tokens = torch.randint(11, (batch, beams, 1), generator=generator)
        prefixes = torch.cat((prefixes, tokens), 2)
        logits, state = module.step(tokens.flatten(), state)
        for row in range(batch):
            read = prefixes[row, :, 8 if row == 1 and step >= 8 else 0 :]
            wanted = module(read)[:, -1]
            torch.testing.assert_close(
                logits.view(batch, beams, -1)[row], wanted, atol=1e-5, rtol=1e-4
            )
        parents = torch.randint(beams, (batch, beams), generator=generator)
        state = state.follow(parents)
        prefixes = prefixes.gather(1, parents[..., None].expand_as(prefixes))


def test_engines_decline_a_window_and_segments():
    def plain(**options):
        embedding = words()
        config = replace(SMALL, **options)
        decoder = TransformerDecoder(config, embedding, Projection(WIDTH, 11, tied=embedding), None)
        return [
            is_plain(module.eval()) for module in (decoder, TransformerEncoder(config, embedding))
        ]

    assert plain() == [True, True]
    assert plain(causal=True, sliding_window=3) == [False, False]
    assert plain(token_types=2) == [False, False]


def test_a_sliding_window_is_for_causal_attention():
    part = {"kind": "transformer", "dim": 8, "heads": 2, "layers": 1, "sliding_window": 4}
    with pytest.raises(
        InvalidRecipe, match=r"encoder.sliding_window: wanted nothing here: only causal attention"
    ):
        regard.build(
            {"encoder": part, "pool": {"kind": "mean"}, "source_vocab_size": 9, "num_labels": 2}
        )
    encoder = part | {"causal": True}
    assert regard.build({"encoder": encoder, "decoder": part, "vocab_size": 9}).encoder.window == 3
    with pytest.raises(
        InvalidRecipe, match=r"transformer.sliding_window: wanted none: regions have no order"
    ):
        VitConfig(4, replace(SMALL, sliding_window=3))
