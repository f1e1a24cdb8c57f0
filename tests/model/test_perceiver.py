"""Learned queries: as many states as the recipe says, whatever the source."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import MultiSource, Tokens
from regard.interpret.output_attention import require_cross_attention
from regard.interpret.sites import attention_sites
from regard.model.perceiver import PerceiverEncoder
from regard.model.seq2seq import Seq2Seq
from support.models import PERCEIVER, WIDTH, encoder, source, without_zeros, words

TABLE = {"kind": "perceiver", "queries": 5, "dim": 12, "layers": 2, "heads": 2, "ffn_dim": 20}
ROWS = [[5, 6, 7, 8, 9], [6, 5], [9, 8, 7]]
TARGETS = torch.tensor([[1, 4, 2], [1, 3, 3], [1, 0, 7]])
TRANSFORMER = {"kind": "transformer", "dim": 12, "layers": 1, "heads": 2, "ffn_dim": 16}


def built(decoder: dict | None = None, **options: object) -> Seq2Seq:
    torch.manual_seed(2)
    output = {"decoder": decoder or TRANSFORMER, "vocab_size": 12}
    return without_zeros(regard.build({"encoder": {**TABLE, **options}, **output})).eval()


@pytest.mark.parametrize("queries", [1, 5, 9])
@torch.no_grad()
def test_the_memory_has_a_state_for_each_query(queries):
    encoder = built(queries=queries).encoder
    for rows in (ROWS, [[1]], [list(range(12)) * 3]):
        memory = encoder(Tokens.of(rows))
        assert memory.states.shape == (len(rows), queries, 12)
        assert memory.mask.shape == (len(rows), queries)
        assert memory.mask.all()
        torch.testing.assert_close(memory.summary, memory.states.mean(1))


def attended(attention: regard.MultiHead, queries: torch.Tensor, source: torch.Tensor):
    """Multi-head attention of one sequence, head by head, and the mean weights of its heads."""
    heads = []
    weights = []
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    inputs = (queries, source, source)
    split = [
        projection(x).chunk(attention.heads, -1)
        for projection, x in zip(projections, inputs, strict=True)
    ]
    for query, key, value in zip(*split, strict=True):
        weights.append((query @ key.mT / query.shape[-1] ** 0.5).softmax(-1))
        heads.append(weights[-1] @ value)
    return attention.out_proj(torch.cat(heads, -1)), torch.stack(weights)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_states_equal_the_definition(norm_first, repeated):
    """Queries attend to the source, then to each other, each with a feed-forward network, residuals and norms."""
    config = replace(PERCEIVER, norm_first=norm_first, repeat_cross_attention=repeated, value_dim=3)
    torch.manual_seed(1)
    module = without_zeros(PerceiverEncoder(config, words())).eval()
    row = torch.tensor([1, 7, 3, 2])
    inputs = module.input_layer(module.embed_tokens(row)[None])[0]

    def residual(x, norm, sublayer):
        return x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))

    def feed_forward(block):
        return lambda x: block.ffn.down(F.relu(block.ffn.up(x)))

    x = module.queries
    of_source = []
    for i, layer in enumerate(module.layers):
        cross = layer.cross
        block = layer.block
        assert (cross is not None) == (i == 0 or repeated)
        if cross is not None:
            read = cross.source_norm(inputs)
            seen = attended(cross.cross_attn, cross.norm1(x) if norm_first else x, read)[1]
            of_source.append(seen)
            x = residual(x, cross.norm1, lambda h, c=cross, s=read: attended(c.cross_attn, h, s)[0])
            x = residual(x, cross.norm2, feed_forward(cross))
        x = residual(x, block.norm1, lambda h, b=block: attended(b.self_attn, h, h)[0])
        x = residual(x, block.norm2, feed_forward(block))
    calls: list[regard.AttentionCall] = []
    with regard.capture_attention(calls.append):
        memory = module(Tokens(row[None], torch.tensor([4])))
    torch.testing.assert_close(memory.states[0], module.norm(x), atol=1e-5, rtol=1e-4)
    of_queries = [
        call for call in calls if call.spec.m == 4 and call.source.attention_kind == "pool"
    ]
    assert len(of_queries) == len(of_source) == (2 if repeated else 1)
    for call, weights in zip(of_queries, of_source, strict=True):
        torch.testing.assert_close(call.weights()[0], weights, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_order_of_the_source_counts_through_positions_only():
    order = [3, 0, 4, 1, 2]
    permuted = Tokens.of([[ROWS[0][i] for i in order]])
    for positions, counts in (("none", False), ("sinusoidal", True), ("learned", True)):
        encoder = built(positions=positions).encoder
        moved = (encoder(permuted).states - encoder(Tokens.of([ROWS[0]])).states).abs().max()
        assert (moved > 1e-3) == counts


def test_queries_start_different():
    queries = built(queries=64).encoder.queries
    assert queries.std().item() == pytest.approx(1.0, abs=0.1)


def test_parameters():
    """A block is 4 projections of 12 · 12, a feed-forward network of 20 and two norms, here of a decoder's kind too."""
    attention = 4 * 13 * 12
    ffn = 13 * 20 + 21 * 12
    norm = 2 * 12
    block = attention + ffn + 2 * norm
    cross = attention + ffn + 3 * norm
    for repeated in (False, True):
        made = built(repeat_cross_attention=repeated).encoder
        wanted = 5 * 12 + 12 * 12 + 2 * block + (2 if repeated else 1) * cross + norm
        assert sum(p.numel() for p in made.parameters()) == wanted


REFUSED = {
    "positions": ({"positions": "rotary"}, r"model\.encoder\.positions: wanted 'sinusoidal'"),
    "bias": ({"positions": "alibi"}, r"model\.encoder\.positions: wanted 'sinusoidal'"),
    "heads": ({"heads": 5}, r"model\.encoder\.heads: wanted a divisor of dim = 12; got 5"),
    "queries": ({"queries": 0}, r"model\.encoder\.queries: wanted a whole number of at least 1"),
    "unused": ({"max_positions": 9}, r"model\.encoder\.max_positions: wanted nothing here"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_means_nothing_is_refused(options, message):
    with pytest.raises(InvalidRecipe, match=message):
        built(**options)


def test_a_masked_token_head_needs_a_state_for_each_token():
    wanted = r"model\.encoder\.kind: wanted an encoder with a state for each token, .* masked-token"
    with pytest.raises(InvalidRecipe, match=wanted):
        regard.build({"encoder": TABLE, "head": "mlm", "vocab_size": 9})


@pytest.mark.parametrize("several", [False, True])
def test_what_aligns_tokens_refuses_queries(several):
    parts = {"encoders": [TRANSFORMER, TABLE]} if several else {"encoder": TABLE}
    model = regard.build({**parts, "decoder": TRANSFORMER, "vocab_size": 12})
    with pytest.raises(InvalidArgument, match=r"model: wanted .* attends to the positions"):
        require_cross_attention("model", model)


@pytest.mark.parametrize("pool", ["mean", "first", "last", "attention"])
@torch.no_grad()
def test_every_token_reaches_every_pool(pool):
    """The state of each query has seen the whole source."""
    torch.manual_seed(3)
    table = {"encoder": TABLE, "pool": {"kind": pool}, "num_labels": 3, "source_vocab_size": 12}
    model = regard.build(table).eval()
    for place in range(5):
        changed = [11 if at == place else token for at, token in enumerate(ROWS[0])]
        difference = model(Tokens.of([ROWS[0]])) - model(Tokens.of([changed]))
        assert difference.abs().max() > 1e-6


@pytest.mark.parametrize("place", [0, 1])
@torch.no_grad()
def test_one_of_several_sources(place):
    encoders = [TRANSFORMER, TRANSFORMER]
    encoders[place] = TABLE
    table = {"encoders": encoders, "decoder": TRANSFORMER, "vocab_size": 12}
    torch.manual_seed(4)
    model = without_zeros(regard.build(table)).eval()
    sources = MultiSource((Tokens.of(ROWS), Tokens.of(ROWS[::-1])))
    together = model(sources, TARGETS)
    for i in range(3):
        alone = MultiSource((Tokens.of([ROWS[i]]), Tokens.of([ROWS[::-1][i]])))
        torch.testing.assert_close(
            together[i : i + 1], model(alone, TARGETS[i : i + 1]), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "decoder",
    [TRANSFORMER, {"kind": "rnn", "dim": 12}, {"kind": "conv", "dim": 12, "dilations": [1]}],
)
@torch.no_grad()
def test_searched_in_a_batch_equals_searched_alone(decoder, beams):
    model = built(decoder)
    together = outputs(model, ROWS, beams)
    assert together == [output for row in ROWS for output in outputs(model, [row], beams)]


def outputs(model: Seq2Seq, rows: list[list[int]], beams: int) -> list[list[int]]:
    """The tokens of a search of six steps, with a greedy choice among the hypotheses."""
    memory = model.encode(Tokens.of(rows))
    state = model.decoder.start(memory, batch=len(rows), capacity=6, beams=beams)
    tokens = torch.arange(beams).repeat(len(rows))
    found = [tokens]
    for _ in range(6):
        logits, state = model.decoder.step(tokens, state)
        tokens = logits.argmax(-1)
        found.append(tokens)
    return torch.stack(found, 1).view(len(rows), -1).tolist()


@torch.no_grad()
def test_a_look_names_queries_and_not_tokens():
    """The map of the encoder reads tokens; the others read the states of queries, which have numbers."""
    model = built(queries=5)
    look = regard.look(model, Tokens.of([ROWS[0]]), output=[4, 2])
    assert [each.name for each in look.maps] == [
        "encoder pool", "encoder 1", "encoder 2", "decoder 1 self", "decoder 1 cross",
    ]  # fmt: skip
    numbers = tuple("12345")
    tokens = look.source.tokens
    assert len(tokens) == 5
    assert look.names(look["encoder pool"]) == (numbers, tokens)
    assert look.names(look["encoder 1"]) == (numbers, numbers)
    assert look.names(look["decoder 1 cross"])[1] == numbers
    assert look["encoder pool"].key_side == "source"
    assert look["decoder 1 cross"].key_side == "pool"
    assert look["encoder pool"].weights().shape == (2, 5, 5)


@torch.no_grad()
def test_a_hidden_token_is_hidden_where_tokens_are_read():
    model = built(queries=3, repeat_cross_attention=True)
    edits = [{"edit": "mask_source", "token": 1}]
    look = regard.look(model, Tokens.of([ROWS[0]]), output=[4, 2], edits=edits)
    for name in ("encoder pool", "encoder pool 2"):
        weights = look[name].weights()
        assert not weights[..., 1].any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert look["decoder 1 cross"].weights()[..., 1].all()
    # The same as if the token had never been there, without positions.
    free = built(positions="none", layers=1)
    hidden = regard.look(free, Tokens.of([ROWS[0]]), output=[4, 2], edits=edits)
    without = regard.look(free, Tokens.of([[5, 7, 8, 9]]), output=[4, 2])
    assert hidden.output.scores == pytest.approx(without.output.scores, abs=1e-5)


@torch.no_grad()
def test_a_look_at_several_sources_names_queries_and_tokens():
    table = {"encoders": [TABLE, TRANSFORMER], "decoder": TRANSFORMER, "vocab_size": 12}
    model = without_zeros(regard.build(table)).eval()
    sources = MultiSource((Tokens.of([ROWS[0]]), Tokens.of([ROWS[2]])))
    look = regard.look(model, sources, output=[4, 2])
    first, second = (look[f"decoder 1 cross source {i}"] for i in (1, 2))
    assert look.names(first)[1] == tuple("12345")
    assert look.names(second)[1] == look.sources[1].tokens
    assert (first.key_side, second.key_side) == ("pool", "source")
    edits = [{"edit": "mask_source", "token": 1, "source": 0}]
    edited = regard.look(model, sources, output=[4, 2], edits=edits)
    assert edited["decoder 1 cross source 1"].weights()[..., 1].all()
    assert not edited["source 1 encoder pool"].weights()[..., 1].any()


def test_sites_without_learned_queries_read_positions():
    model = regard.build({"encoder": TRANSFORMER, "decoder": TRANSFORMER, "vocab_size": 12})
    sides = {
        site.name: (site.query_side, site.key_side) for site in attention_sites(model).values()
    }
    assert sides == {
        "encoder 1": ("source", "source"),
        "decoder 1 self": ("output", "output"),
        "decoder 1 cross": ("output", "source"),
    }


@torch.no_grad()
def test_an_empty_batch_of_empty_sources():
    found = encoder("perceiver")(Tokens.of([[], []]))
    assert found.states.shape == (2, 4, WIDTH)
    assert found.states.isfinite().all()


def test_more_tokens_than_learned_positions_are_refused():
    module = PerceiverEncoder(replace(PERCEIVER, positions="learned", max_positions=4), words())
    module(source("perceiver", (4, 2)))
    with pytest.raises(InvalidArgument, match="4"):
        module(source("perceiver", (5, 2)))
