"""Contracts that every encoder, decoder and pool must fulfill."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

import regard
from regard.model.memory import Memory
from regard.model.part_config import PoolConfig
from regard.model.pooling import (
    AttentionPool,
    AttentionPoolConfig,
    FirstPool,
    FirstPoolConfig,
    LastPool,
    MeanPool,
)
from regard.model.positions import SinusoidalGrid
from regard.model.seq2seq import Classifier, Seq2Seq
from regard.model.vision import CnnConfig, cnn
from support.models import (
    DECODERS,
    ENCODERS,
    OF_VECTORS,
    QUERY_ENCODERS,
    TEXT_ENCODERS,
    VECTOR_DECODERS,
    VECTOR_ENCODERS,
    VOCABULARY,
    WIDTH,
    WITHOUT_ATTENTION,
    decoder,
    encoder,
    memory,
    one,
    other_targets,
    source,
    targets,
    with_another_future,
    with_garbage,
)

TARGETS = torch.randint(VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(1))
WITH_AND_WITHOUT = [
    pytest.param(name, source, id=f"{name}-{'memory' if source else 'alone'}")
    for name, source in product([*DECODERS, *VECTOR_DECODERS], (True, False))
]
# Every encoder of sequences, of tokens and of vectors; and those whose states are of learned queries.
OF_SEQUENCES = TEXT_ENCODERS | VECTOR_ENCODERS
WITH_QUERIES = [*QUERY_ENCODERS, *(name + OF_VECTORS for name in QUERY_ENCODERS)]


def same_memory(got: Memory, wanted: Memory, i: int) -> None:
    length = wanted.states.shape[1]
    torch.testing.assert_close(got.states[i : i + 1, :length], wanted.states, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got.summary[i : i + 1], wanted.summary, atol=1e-5, rtol=1e-4)
    assert got.mask[i].sum() == wanted.mask.sum()


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_encoded_in_a_batch_equals_encoded_alone(name):
    module, batch = encoder(name), source(name)
    together = module(batch)
    for i in range(3):
        same_memory(together, module(one(batch, i)), i)


@pytest.mark.parametrize("name", OF_SEQUENCES)
@torch.no_grad()
def test_padding_does_not_change_the_memory(name):
    module, batch = encoder(name), source(name)
    wider = with_garbage(batch, 4)
    for i in range(3):
        same_memory(module(wider), module(one(batch, i)), i)


@pytest.mark.parametrize("name", WITH_QUERIES)
@torch.no_grad()
def test_learned_queries_of_an_empty_sequence_have_finite_states(name):
    module = encoder(name)
    found = module(source(name, (2, 0)))
    assert found.mask.all()
    assert found.states.isfinite().all()
    nothing = module(source(name, (0, 0)))
    torch.testing.assert_close(nothing.states[0], found.states[1])


@pytest.mark.parametrize("name", [name for name in OF_SEQUENCES if name not in WITH_QUERIES])
@torch.no_grad()
def test_an_empty_sequence_has_an_empty_memory(name):
    found = encoder(name)(source(name, (2, 0)))
    assert not found.mask[1, found.cls_tokens :].any()
    assert found.cls_tokens or (found.summary[1] == 0).all()
    assert found.states.isfinite().all()


@pytest.mark.parametrize(
    "name", [name for name in OF_SEQUENCES if "causal" in name or "gru unidirectional" in name]
)
@torch.no_grad()
def test_a_causal_encoder_sees_nothing_later(name):
    module, batch = encoder(name), source(name, (6, 6, 6))
    assert module.causal
    changed = with_another_future(batch, 3)
    found = module(changed).states
    assert torch.equal(module(batch).states[:, :3], found[:, :3])
    assert not torch.equal(module(batch).states[:, 3], found[:, 3])


@pytest.mark.parametrize(("name", "has_memory"), WITH_AND_WITHOUT)
@torch.no_grad()
def test_forward_equals_steps(name, has_memory):
    module, given = decoder(name, WIDTH if has_memory else None), memory() if has_memory else None
    whole = module(targets(name), given)
    state, steps = module.start(given, batch=3, capacity=5), []
    for tokens in targets(name).transpose(0, 1):
        logits, state = module.step(tokens, state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in [*DECODERS, *VECTOR_DECODERS]
        if name.removesuffix(OF_VECTORS) not in WITHOUT_ATTENTION
    ],
)
@torch.no_grad()
def test_captured_weights_of_steps_equal_those_of_forward(name):
    """The attention weights of the last token are the same in one forward pass and in single steps."""
    module, given = decoder(name), memory()
    whole, stepped = [], []
    with regard.capture_attention(whole.append):
        module(targets(name), given)
    state = module.start(given, batch=3, capacity=5)
    for tokens in targets(name).transpose(0, 1):
        stepped.clear()
        with regard.capture_attention(stepped.append):
            _, state = module.step(tokens, state)
    lasts = whole[-len(stepped) :]
    assert stepped
    for a, b in zip(lasts, stepped, strict=True):
        assert a.source is b.source
        torch.testing.assert_close(a.weights(rows=-1), b.weights(rows=-1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            a.weights(rows=-1).sum(-1), torch.ones_like(a.weights(rows=-1)[..., 0])
        )


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in [*DECODERS, *VECTOR_DECODERS]
        if "gru" in name or "lstm" in name or name.startswith("rnn")
    ],
)
def test_carried_state_equals_one_pass(name, has_memory):
    """Values in any case; gradients reach earlier tokens unless the state is detached."""
    module, given = decoder(name, WIDTH if has_memory else None), memory() if has_memory else None
    whole = module.hidden(targets(name), given)
    first, state = module.carry(targets(name)[:, :3], module.start(given, batch=3))
    second, _ = module.carry(targets(name)[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, atol=1e-5, rtol=1e-4)
    cut, _ = module.carry(targets(name)[:, 3:], state.detached())
    assert torch.equal(cut, second)
    before = module.embed_tokens(targets(name)[:, :3]).detach().requires_grad_()
    _, reached = module._advance(before[:, :1], module.start(given, batch=3))
    after, _ = module.carry(targets(name)[:, 3:], reached)
    severed, _ = module.carry(targets(name)[:, 3:], reached.detached())
    assert torch.autograd.grad(after.square().sum(), before, retain_graph=True)[0].abs().sum() > 0
    assert torch.autograd.grad(severed.square().sum(), before, allow_unused=True)[0] is None


@pytest.mark.parametrize(("name", "has_memory"), WITH_AND_WITHOUT)
@torch.no_grad()
def test_logits_do_not_depend_on_later_tokens(name, has_memory):
    module, given = decoder(name, WIDTH if has_memory else None), memory() if has_memory else None
    whole = module(targets(name), given)
    for t in range(1, 5):
        before = targets(name)[:, :t]
        after = other_targets(targets(name)[:, t:])
        changed = torch.cat((before, after), 1)
        assert torch.equal(module(changed, given)[:, :t], whole[:, :t])


@pytest.mark.parametrize("name", [*DECODERS, *VECTOR_DECODERS])
@torch.no_grad()
def test_decoded_in_a_batch_equals_decoded_alone(name):
    module, given = decoder(name), memory()
    whole = module(targets(name), given)
    for i in range(3):
        length = int(given.mask[i].sum())
        alone = Memory(
            given.states[i : i + 1, :length],
            given.mask[i : i + 1, :length],
            given.summary[i : i + 1],
        )
        torch.testing.assert_close(
            whole[i : i + 1], module(targets(name)[i : i + 1], alone), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize(("name", "has_memory"), WITH_AND_WITHOUT)
@torch.no_grad()
def test_reordered_state_equals_reordered_prefixes(name, has_memory):
    module, given = decoder(name, WIDTH if has_memory else None), memory() if has_memory else None
    for index in (
        torch.tensor([2, 0, 2]),
        torch.tensor([1, 1, 0, 2]),
    ):  # the same number of sequences, and more
        state = module.start(given, batch=3, capacity=5)
        for tokens in targets(name).transpose(0, 1)[:3]:
            _, state = module.step(tokens, state)
        following = targets(name, (len(index), 1))  # (n, 1, …)
        logits, _ = module.step(following[:, 0], state.reorder(index))
        prefixes = torch.cat((targets(name)[index, :3], following), 1)
        wanted = module(prefixes, None if given is None else given.reorder(index))[:, -1]
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize(("name", "has_memory"), WITH_AND_WITHOUT)
@torch.no_grad()
def test_hypotheses_that_follow_others_equal_forward(name, has_memory, beams):
    module, given = decoder(name, WIDTH if has_memory else None), memory() if has_memory else None
    generator, rows = torch.Generator().manual_seed(2), torch.arange(3).repeat_interleave(beams)
    state = module.start(given, batch=3, capacity=5, beams=beams)
    whole = targets(name, (3 * beams, 5)).unflatten(0, (3, beams))  # (B, K, T, …)
    prefixes = whole[:, :, :0]
    for t in range(5):
        tokens = whole[:, :, t : t + 1]  # (B, K, 1, …)
        prefixes = torch.cat((prefixes, tokens), 2)
        logits, state = module.step(tokens.flatten(0, 2), state)
        wanted = module(prefixes.flatten(0, 1), None if given is None else given.reorder(rows))[
            :, -1
        ]
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-4)
        parents = torch.randint(beams, (3, beams), generator=generator)
        state = state.follow(parents)
        prefixes = torch.stack([each[row] for each, row in zip(prefixes, parents, strict=True)])


@pytest.mark.parametrize("name", [*DECODERS, *VECTOR_DECODERS])
def test_gradient_reaches_every_parameter_of_a_decoder(name):
    module = decoder(name).train()
    torch.manual_seed(0)
    module(targets(name), memory()).log_softmax(-1).square().sum().backward()
    assert not dead(module, name)


@pytest.mark.parametrize("name", ENCODERS)
def test_gradient_reaches_every_parameter_of_an_encoder(name):
    module = encoder(name)
    found = module(source(name))
    direction = torch.linspace(-1, 1, found.states.numel()).reshape(found.states.shape)
    loss = (found.states.masked_fill(~found.mask[..., None], 0.0) * direction).sum()
    (loss + (found.summary * direction[:, 0]).sum()).backward()
    assert not dead(module, name)


def dead(module, name: str) -> set[str]:
    """Parameters without gradient, except those that cannot have one."""
    silent = {
        n for n, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    }
    excused = {
        "k_proj.bias"
    }  # a constant for all scores of a row, to which the softmax is invariant
    if "uniform" in name:
        excused |= {"q_proj.weight", "k_proj.weight", "q_proj.bias"}
    return {n for n in silent if not any(n.endswith(e) for e in excused)}


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_a_saved_encoder_equals_a_loaded_one(name):
    module = encoder(name)
    other = encoder(name)
    for parameter in other.parameters():
        parameter.add_(1.0)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(source(name)).states, module(source(name)).states)


@pytest.mark.parametrize("name", [*DECODERS, *VECTOR_DECODERS])
@torch.no_grad()
def test_saved_equals_loaded(name):
    module, other = decoder(name), decoder(name)
    for parameter in other.parameters():
        parameter.add_(1.0)
    assert not torch.equal(other(targets(name), memory()), module(targets(name), memory()))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(targets(name), memory()), module(targets(name), memory()))


ENCODER_NAMES = ["gru", "conv", "transformer", "bag", "label", "cnn",
           "cnn learned queries", "cnn+transformer", "vit", "vit mlp", "mlp", "perceiver",
           "transformer, stride 2 of vectors", "gru, convolution of vectors"]  # fmt: skip
DECODER_NAMES = [
    "rnn",
    "gru bahdanau additive",
    "gru luong input-feeding",
    "conv",
    "transformer",
    "transformer post-norm",
]


@pytest.mark.parametrize(
    ("name", "encoder_name"),
    [  # every encoder and every decoder once; the other pairs take minutes
        pytest.param(
            name, encoder_name, marks=() if i % len(DECODER_NAMES) == j else pytest.mark.slow
        )
        for (i, encoder_name), (j, name) in product(
            enumerate(ENCODER_NAMES), enumerate(DECODER_NAMES)
        )
    ],
)
def test_any_encoder_with_any_decoder_learns_ten_examples(name, encoder_name):
    """To near-zero loss."""
    torch.manual_seed(0)
    lengths = tuple(range(3, 8)) * 2
    batch = source(encoder_name, lengths)
    model = Seq2Seq(encoder(encoder_name), decoder(name))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    model.train()
    targets = torch.randint(1, VOCABULARY, (10, 6))
    if encoder_name == "label":
        targets = targets[torch.arange(10) % 4]
    targets[:, 0] = 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(500):  # most need 60 to 200; images without attention more
        loss = F.cross_entropy(
            model(batch, targets[:, :-1]).flatten(0, 1), targets[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss < 0.02:
            break
    assert loss < 0.05


@pytest.mark.parametrize(
    "make",
    [
        lambda w: MeanPool(PoolConfig(), w),
        lambda w: LastPool(PoolConfig(), w),
        lambda w: FirstPool(FirstPoolConfig(), w),
        lambda w: FirstPool(FirstPoolConfig("tanh"), w),
        lambda w: FirstPool(FirstPoolConfig(distillation_head=True), w),
        lambda w: AttentionPool(AttentionPoolConfig(), w),
        lambda w: AttentionPool(AttentionPoolConfig(queries=3, heads=2), w),
        lambda w: AttentionPool(AttentionPoolConfig(heads=2, value_dim=3), w),
    ],
    ids=[
        "mean",
        "last",
        "first",
        "first projected",
        "first distilled",
        "attention",
        "three queries",
        "narrow values",
    ],
)
def test_pools_ignore_padding(make):
    pool, given = make(WIDTH), memory()
    pooled = pool(given)
    assert pooled.shape == (3, pool.dim)
    for i in range(3):
        length = int(given.mask[i].sum())
        alone = Memory(
            given.states[i : i + 1, :length],
            given.mask[i : i + 1, :length],
            given.summary[i : i + 1],
        )
        torch.testing.assert_close(pooled[i : i + 1], pool(alone), atol=1e-5, rtol=1e-4)
    assert Classifier(encoder("gru"), pool, labels=5)(source("gru")).shape == (3, 5)


def test_pools_by_their_definition():
    given = memory()
    torch.testing.assert_close(MeanPool(PoolConfig(), WIDTH)(given)[1], given.states[1, :2].mean(0))
    assert torch.equal(LastPool(PoolConfig(), WIDTH)(given)[1], given.states[1, 1])
    assert torch.equal(FirstPool(FirstPoolConfig(), WIDTH)(given), given.states[:, 0])
    for name, function in (("tanh", torch.tanh), ("relu", torch.relu)):
        pool = FirstPool(FirstPoolConfig(name), WIDTH)
        torch.testing.assert_close(pool(given), function(pool.proj(given.states[:, 0])))


def test_two_heads_classify_two_states_and_are_averaged():
    pool, given = FirstPool(FirstPoolConfig(distillation_head=True), WIDTH), memory()
    model = Classifier(encoder("gru"), pool, labels=5)
    first, second = model.classifier.heads
    wanted = (first(given.states[:, 0]) + second(given.states[:, 1])) / 2
    torch.testing.assert_close(model.classifier(pool(given)), wanted)
    assert model.output_weights == (first.weight, second.weight)


@torch.no_grad()
def test_the_summary_of_a_cnn_is_the_mean_or_attention_by_learned_queries():
    found = encoder("cnn")(source("cnn"))
    assert torch.equal(found.summary, found.states.mean(1))
    module = encoder("cnn learned queries")
    learned_queries, attend = module.learned_queries, module.learned_queries.pool.attn
    for size in ((8, 12), (20, 4)):
        found = module(torch.rand(2, 3, *size))
        regions = found.states + SinusoidalGrid(WIDTH)(*found.grid)
        attended = []
        for query in learned_queries.pool.queries:
            weights = (attend.k_proj(regions) @ attend.q_proj(query) / WIDTH**0.5).softmax(-1)
            attended.append(attend.out_proj((weights[..., None] * attend.v_proj(regions)).sum(1)))
        torch.testing.assert_close(
            found.summary, learned_queries.out_proj(torch.cat(attended, -1)), atol=1e-5, rtol=1e-4
        )


def test_learned_queries_start_with_unit_variance():
    """Near zero, as those of a pool, all would start as the mean of the regions."""
    query = cnn(CnnConfig(64, (4,), queries=16)).learned_queries.pool.queries
    assert query.std().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", ["vit", "vit mlp"])
@torch.no_grad()
def test_patches_are_embedded_independently(name):
    regions, images = (
        encoder(name).patch_embed,
        torch.rand(2, 3, 8, 13),
    )  # the last column of pixels is in no patch
    found = regions(images)
    assert found.grid == (2, 3)
    for region in range(6):
        down, across = region // 3 * 4, region % 3 * 4
        patch = images[:, :, down : down + 4, across : across + 4].flatten(1)  # (2, 3 · 4 · 4)
        if name == "vit":
            wanted = patch @ regions.proj.weight.flatten(1).T + regions.proj.bias
        else:
            before, inner, _, outer, after = regions.mlp
            wanted = after(outer(inner(before(patch)).relu()))
        torch.testing.assert_close(found.states[:, region], wanted, atol=1e-5, rtol=1e-4)


def test_log_probabilities_are_sums_in_float32():
    model = Seq2Seq(encoder("gru"), decoder("transformer")).bfloat16()
    found = model.log_probabilities(source("gru"), TARGETS)
    assert found.dtype == torch.float32
    assert found.shape == (3, 4)
    wanted = F.cross_entropy(
        model(source("gru"), TARGETS[:, :-1]).float().flatten(0, 1),
        TARGETS[:, 1:].flatten(),
        reduction="none",
    )
    torch.testing.assert_close(-found.flatten(), wanted)


def test_one_hot_times_matrix_is_a_row():
    embedding = encoder("bag").embed_tokens
    ids = torch.tensor([3, 0, 3, 9])
    torch.testing.assert_close(
        F.one_hot(ids, VOCABULARY).float() @ embedding.weight * WIDTH**0.5, embedding(ids)
    )
