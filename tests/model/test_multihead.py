"""Multi-head attention: PyTorch's with the same weights, whole = cached steps, grouped = repeated, and every score."""

import pytest
import torch
from torch import nn

import regard
from regard.core.sequence import SequenceOffsets
from regard.model import multihead
from regard.model.kv_cache import KeyValue

WIDTH, HEADS, BATCH, N, M = 24, 4, 3, 6, 9


def theirs(ours: regard.MultiHead, source_dim: int = WIDTH) -> nn.MultiheadAttention:
    """PyTorch's module with our weights."""
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=source_dim, vdim=source_dim)
    with torch.no_grad():
        if source_dim == WIDTH:
            module.in_proj_weight.copy_(
                torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight])
            )
        else:
            module.q_proj_weight.copy_(ours.q_proj.weight)
            module.k_proj_weight.copy_(ours.k_proj.weight)
            module.v_proj_weight.copy_(ours.v_proj.weight)
        module.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias]))
        module.out_proj.weight.copy_(ours.out_proj.weight)
        module.out_proj.bias.copy_(ours.out_proj.bias)
    return module


def with_biases(module: regard.MultiHead) -> regard.MultiHead:
    """Biases start at zero, which would hide that one is missing."""
    for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
        if projection.bias is not None:
            nn.init.normal_(projection.bias)
    return module


@pytest.mark.parametrize("source_dim", [WIDTH, 10])
def test_equals_torch_with_the_same_weights(source_dim):
    ours = with_biases(regard.MultiHead(WIDTH, HEADS, source_dim=source_dim))
    module = theirs(ours, source_dim)
    x, source = torch.randn(BATCH, N, WIDTH, requires_grad=True), torch.randn(BATCH, M, source_dim)
    mask = torch.rand(BATCH, 1, M) > 0.3
    mask[..., 0] = True
    calls: list[regard.AttentionCall] = []
    with regard.capture_attention(calls.append):
        out = ours(x, source, mask=mask)
    wanted, weights = module(
        x, source, source, key_padding_mask=~mask[:, 0], average_attn_weights=False
    )
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(calls[0].weights(), weights)
    assert calls[0].source is ours
    direction = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, [x, ours.k_proj.weight], direction),
        (
            torch.autograd.grad(wanted, x, direction, retain_graph=True)[0],
            torch.autograd.grad(
                wanted,
                module.k_proj_weight if source_dim != WIDTH else module.in_proj_weight,
                direction,
            )[0][slice(None) if source_dim != WIDTH else slice(WIDTH, 2 * WIDTH)],
        ),
    )


def test_causal_equals_torch_with_the_same_weights():
    ours = with_biases(regard.MultiHead(WIDTH, HEADS))
    x = torch.randn(BATCH, N, WIDTH)
    future = torch.ones(N, N, dtype=torch.bool).triu(1)
    wanted, _ = theirs(ours)(x, x, x, attn_mask=future, is_causal=True)
    torch.testing.assert_close(ours(x, causal=True), wanted)


def test_costs_the_parameters_of_one_wide_head():
    sizes = {
        heads: sum(p.numel() for p in regard.MultiHead(WIDTH, heads).parameters())
        for heads in (1, 2, 4, 8)
    }
    assert set(sizes.values()) == {4 * WIDTH * (WIDTH + 1)}


LAYERS = {
    **{score: {"score": score} for score in regard.SCORES},
    "grouped": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    **{
        f"grouped {score}": {"score": score, "kv_heads": 2}
        for score in ("bilinear", "reduced_rank", "additive")
    },
    "normalised": {"qk_norm": True},
    "rotary": {"rotary": WIDTH // HEADS},
    "wide heads": {"head_dim": 10},
    "narrow values": {"value_dim": 2},
    "wide values": {"value_dim": 9, "kv_heads": 2, "rotary": WIDTH // HEADS, "qk_norm": True},
    "wide values additive": {"value_dim": 9, "score": "additive"},
    "without bias": {"bias": False},
}


def layer(name: str) -> regard.MultiHead:
    options = dict(LAYERS[name])
    if "rotary" in options:
        options["rotary"] = regard.Rotary(options["rotary"])
    return with_biases(regard.MultiHead(WIDTH, HEADS, **options)).eval()


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_cached_steps_equal_the_whole(name, window):
    module, x = layer(name), torch.randn(BATCH, N, WIDTH)
    whole = module(x, causal=True, window=window)
    cache = module.empty_cache(x, capacity=N)
    # the first three at once, then one by one
    steps = [
        module.step(part, cache, window=window) for part in (x[:, :3], *x[:, 3:].split(1, dim=1))
    ]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("kind", ["alibi", "relative"])
@torch.no_grad()
def test_cached_steps_equal_the_whole_with_a_bias_of_distance(kind):
    positions = (
        regard.Alibi(HEADS)
        if kind == "alibi"
        else regard.RelativeBias(HEADS, buckets=8, max_distance=6)
    )
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    module, x = regard.MultiHead(WIDTH, HEADS), torch.randn(BATCH, N, WIDTH)
    whole = module(x, causal=True, bias=positions(N, N))
    cache = module.empty_cache(x, capacity=N)
    steps = [
        module.step(part, cache, bias=positions(1, i + 1))
        for i, part in enumerate(x.split(1, dim=1))
    ]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("positions", ["one of all", "one of each"])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_hypotheses_at_one_position_attend_to_the_past_and_to_themselves(name, positions):
    module, past, next_ones = (
        layer(name),
        torch.randn(BATCH, N, WIDTH),
        torch.randn(BATCH, 3, WIDTH),
    )
    cache = module.empty_cache(past, capacity=N + 3)
    module.step(past, cache)
    visible = torch.cat(
        (torch.ones(3, N, dtype=torch.bool), torch.eye(3, dtype=torch.bool)), 1
    ).expand(BATCH, -1, -1)
    position = N if positions == "one of all" else torch.full((BATCH,), N)
    found = module.step(next_ones, cache, visible=visible, position=position)
    alone = [
        module(torch.cat((past, each), 1), causal=True)[:, -1:]
        for each in next_ones.split(1, dim=1)
    ]
    torch.testing.assert_close(found, torch.cat(alone, 1))


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_reordered_cache_equals_reordered_prefixes(name):
    module, x, following = layer(name), torch.randn(BATCH, N, WIDTH), torch.randn(4, 1, WIDTH)
    for index in (
        torch.tensor([2, 0, 2]),
        torch.tensor([1, 1, 0, 2]),
    ):  # beams move; beams become more
        cache = module.empty_cache(x, capacity=N + 1)
        module.step(x, cache)
        cache = cache.reorder(index)
        nexts = following[: len(index)]
        wanted = module(torch.cat((x[index], nexts), 1), causal=True)[:, -1:]
        torch.testing.assert_close(module.step(nexts, cache), wanted)


@pytest.mark.parametrize("name", [name for name in LAYERS if "rotary" not in LAYERS[name]])
@torch.no_grad()
def test_source_projected_once_equals_projected_each_time(name):
    module, x, source = layer(name), torch.randn(BATCH, N, WIDTH), torch.randn(BATCH, M, WIDTH)
    memory = module.project_memory(source)
    torch.testing.assert_close(module.attend_memory(x, memory), module(x, source))
    index = torch.tensor([1, 1, 0])
    torch.testing.assert_close(
        module.attend_memory(x[index], memory.reorder(index)), module(x, source)[index]
    )


@pytest.mark.parametrize("name", LAYERS)
def test_padded_equals_alone(name):
    module, x = layer(name), torch.randn(BATCH, N, WIDTH)
    lengths = torch.tensor([N, 4, 2])
    mask = torch.arange(N) < lengths[:, None]
    padded = module(x.masked_fill(~mask[..., None], 9.0), mask=mask[:, None])
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, :length], module(x[row : row + 1, :length])[0])


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_reaches_every_parameter(name):
    module = layer(name)
    module(torch.randn(BATCH, N, WIDTH), causal=True).square().sum().backward()
    dead = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # uniform scores do not depend on them; a bias of the keys adds a constant to a row of scores, which softmax cancels
    excused = {"uniform": {"q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"}}.get(
        name, set()
    )
    assert set(dead) <= excused | {"k_proj.bias"}


@pytest.mark.parametrize("value_dim", [1, 5, 6, 11])
@pytest.mark.parametrize("score", regard.SCORES)
def test_values_of_another_dim_equal_the_definition(score, value_dim):
    """Head by head: the weights come from queries and keys, and average values of any dim."""
    ours = with_biases(regard.MultiHead(WIDTH, HEADS, score=score, value_dim=value_dim))
    x = torch.randn(BATCH, N, WIDTH, requires_grad=True)
    calls: list[regard.AttentionCall] = []
    with regard.capture_attention(calls.append):
        out = ours(x, causal=True)
    query, key, value = (
        projection(x).unflatten(2, (HEADS, -1)).transpose(1, 2)  # (B, H, N, D) or (B, H, N, E)
        for projection in (ours.q_proj, ours.k_proj, ours.v_proj)
    )
    assert value.shape[-1] == value_dim
    weights = regard.attention_weights(query, key, score=ours.score, causal=True)
    torch.testing.assert_close(calls[0].weights(), weights)
    wanted = ours.out_proj((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, wanted)
    direction = torch.randn_like(out)
    of = [x, ours.v_proj.weight, ours.out_proj.weight]
    torch.testing.assert_close(
        torch.autograd.grad(out, of, direction, retain_graph=True),
        torch.autograd.grad(wanted, of, direction),
    )


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        # Queries and keys (24 + 1) · 24 each, values (24 + 1) · 4 · 10, the output (4 · 10 + 1) · 24.
        ({"value_dim": 10}, 2 * 25 * 24 + 25 * 40 + 41 * 24),
        ({"value_dim": 2}, 2 * 25 * 24 + 25 * 8 + 9 * 24),
        # Two heads of keys and values: keys 25 · 2 · 3, values 25 · 2 · 5.
        (
            {"head_dim": 3, "value_dim": 5, "kv_heads": 2},
            25 * 12 + 25 * 6 + 25 * 10 + 21 * 24,
        ),
        # Keys and values of a source of 7.
        ({"value_dim": 10, "source_dim": 7}, 25 * 24 + 8 * 24 + 8 * 40 + 41 * 24),
    ],
)
def test_parameters_with_values_of_another_dim(options, parameters):
    layer = regard.MultiHead(WIDTH, HEADS, **options)
    assert sum(p.numel() for p in layer.parameters()) == parameters


def test_packed_sequences_refuse_values_of_another_dim():
    layer = regard.MultiHead(WIDTH, HEADS, value_dim=2)
    with pytest.raises(regard.InvalidArgument, match="value_dim: wanted the head_dim, 6"):
        layer.forward_packed(torch.randn(5, WIDTH), SequenceOffsets.of([3, 2]))


def test_a_value_dim_is_at_least_one():
    with pytest.raises(regard.InvalidArgument, match="value_dim: wanted numbers of at least 1"):
        regard.MultiHead(WIDTH, HEADS, value_dim=0)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_equal_repeated_heads(kv_heads):
    grouped = with_biases(regard.MultiHead(WIDTH, HEADS, kv_heads=kv_heads))
    full = regard.MultiHead(WIDTH, HEADS)
    state = grouped.state_dict()
    for role in ("k_proj", "v_proj"):
        for kind in ("weight", "bias"):
            heads = state[f"{role}.{kind}"].unflatten(0, (kv_heads, -1))
            state[f"{role}.{kind}"] = heads.repeat_interleave(HEADS // kv_heads, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(BATCH, N, WIDTH)
    calls: list[regard.AttentionCall] = []
    with regard.capture_attention(calls.append):
        torch.testing.assert_close(grouped(x, causal=True), full(x, causal=True))
    torch.testing.assert_close(calls[0].weights(), calls[1].weights())
    torch.testing.assert_close(
        calls[0].weights(heads=[3, 1], rows=[2]), calls[1].weights()[:, [3, 1], 2:3]
    )


@pytest.mark.parametrize("name", LAYERS)
def test_saved_equals_loaded(name):
    module, other, x = layer(name), layer(name), torch.randn(BATCH, N, WIDTH)
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x), other(x))


def test_dropout_only_in_training():
    module, x = regard.MultiHead(WIDTH, HEADS, dropout=0.5), torch.randn(BATCH, N, WIDTH)
    assert not torch.allclose(module(x), module(x))
    assert torch.equal(module.eval()(x), module(x))


def test_autocast_runs_in_half_precision():
    module, x = (
        regard.MultiHead(WIDTH, HEADS, qk_norm=True, rotary=regard.Rotary(WIDTH // HEADS)),
        torch.randn(2, N, WIDTH),
    )
    calls: list[regard.AttentionCall] = []
    with torch.autocast("cpu", torch.bfloat16), regard.capture_attention(calls.append):
        out = module(x, causal=True)
    assert calls[0].spec.query.dtype == calls[0].spec.key.dtype == torch.bfloat16
    assert (out.float() - module(x, causal=True)).norm() < 0.03 * out.float().norm()


@torch.no_grad()
def test_2d_block_equals_convolutions():
    """One-by-one convolutions, every position attends to every position, a residual: written out with convolutions."""
    block, x = regard.SelfAttention2d(8, heads=2), torch.randn(2, 8, 3, 5)
    assert torch.equal(block(x), x)  # a new block changes nothing
    block.gate.fill_(0.7)
    m = block.attn
    q, k, v = (
        nn.functional.conv2d(x, p.weight[..., None, None], p.bias).reshape(2, 2, 4, 15)
        for p in (m.q_proj, m.k_proj, m.v_proj)
    )
    weights = (q.mT @ k / 2).softmax(-1)
    mixed = (v @ weights.mT).reshape(2, 8, 3, 5)
    wanted = x + 0.7 * nn.functional.conv2d(
        mixed, m.out_proj.weight[..., None, None], m.out_proj.bias
    )
    torch.testing.assert_close(block(x), wanted)


def test_parameter_free_self_attention():
    x = torch.randn(2, N, WIDTH)
    torch.testing.assert_close(regard.self_attend(x), (x @ x.mT).softmax(-1) @ x)
    torch.testing.assert_close(
        regard.self_attend(x, scaled=True), (x @ x.mT / WIDTH**0.5).softmax(-1) @ x
    )
    order = torch.randperm(N)
    torch.testing.assert_close(regard.self_attend(x[:, order]), regard.self_attend(x)[:, order])


@pytest.mark.parametrize("length", [2, 4, 5])
def test_rows_of_a_cache_are_replaced_by_shorter_and_longer_ones(length):
    """In place, unless they are longer: then the other rows are padded with zeros."""
    old, new = (
        KeyValue(*torch.randn(2, rows, 3, n, 7).unbind()) for rows, n in ((3, 4), (2, length))
    )
    before, rows = old.key.clone(), torch.tensor([2, 0])
    written = old.write(rows, new)
    assert written.key.shape == written.value.shape == (3, 3, max(4, length), 7)
    assert (written.key is old.key) is (length <= 4)
    assert written.key[rows, :, :length].equal(new.key)
    assert written.value[rows, :, :length].equal(new.value)
    assert written.key[1, :, :4].equal(before[1])
    assert not written.key[1, :, 4:].any()


def test_weights_that_lie_side_by_side_are_joined_without_a_copy():
    whole = torch.randn(6, 4)
    parts = [nn.Parameter(x, requires_grad=False) for x in whole.split([2, 1, 3])]
    joined = multihead._joined(parts)
    assert torch.equal(joined, whole)
    assert joined.data_ptr() == whole.data_ptr()
    for others in (parts[::-1], [parts[0], parts[2]], [parts[0], parts[1].clone(), parts[2]]):
        joined = multihead._joined(others)
        assert torch.equal(joined, torch.cat(others))
        assert joined.data_ptr() != whole.data_ptr()
    trained = [nn.Parameter(x) for x in whole.split([2, 4])]
    multihead._joined(trained).sum().backward()
    assert all(torch.equal(x.grad, torch.ones_like(x)) for x in trained)
