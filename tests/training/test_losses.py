"""The chunked loss equals the plain one; the doubly stochastic penalty."""

from dataclasses import replace

import pytest
import torch

import regard
from measure import peak_bytes
from regard.core.sequence import FeatureGrids, Tokens
from regard.data.batching import Batch
from regard.model.embedding import Embedding, Projection
from regard.model.rnn_decoder import RnnDecoder
from regard.model.rnn_decoder_config import RnnDecoderConfig
from regard.model.seq2seq import Seq2Seq
from regard.recipe.recipe import Recipe
from regard.tasks import losses
from regard.tasks.distillation import Distillation
from regard.tasks.loss_terms import doubly_stochastic_penalty
from regard.tasks.losses import logit_loss, plain_token_loss, token_loss
from regard.tasks.objective import Objective, no_dropout, repeat_batch
from regard.training.config import TrainConfig
from support.models import VOCABULARY, WIDTH, encoder, memory, one, source, words


def inputs(n=38, dim=12, vocabulary=50):
    torch.manual_seed(0)
    project = Projection(dim, vocabulary, tied=Embedding(vocabulary, dim))
    project.bias.data.normal_()
    return torch.randn(n, dim, requires_grad=True), project, torch.randint(vocabulary, (n,))


@pytest.mark.parametrize("rows", [1, 5, 38, 100])
@pytest.mark.parametrize("r_drop", [0.0, 2.5])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_chunked_equals_plain(monkeypatch, rows, r_drop, label_smoothing):
    states, project, gold = inputs()
    monkeypatch.setattr(losses, "CHUNK", rows * 50)
    found = []
    for function in (token_loss, plain_token_loss):
        value, nll = function(states, project, gold, label_smoothing=label_smoothing, r_drop=r_drop)
        assert not nll.requires_grad
        found.append(
            (value, nll, *torch.autograd.grad(value * 0.3, [states, project.weight, project.bias]))
        )
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_chunked_equals_plain_with_scaled_logits_without_bias():
    states, _, gold = inputs()
    project = Projection(states.shape[1], 50, bias=False, scaled=True)
    losses = [
        function(states, project, gold, label_smoothing=0.1).loss
        for function in (token_loss, plain_token_loss)
    ]
    found = [(loss, *torch.autograd.grad(loss, [states, project.weight])) for loss in losses]
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_label_smoothing_includes_the_right_token():
    """As documented: the mass is spread over all tokens, so that the right one keeps 1 - e + e / V."""
    logits, e = torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(3)), 0.1
    gold = torch.arange(5)
    target = torch.full((5, VOCABULARY), e / VOCABULARY)
    target[torch.arange(5), gold] += 1 - e
    wanted = -(target * logits.log_softmax(-1)).sum()
    torch.testing.assert_close(logit_loss(logits, gold, label_smoothing=e).loss, wanted)
    assert (
        "the right one included"
        in TrainConfig.__dataclass_fields__["label_smoothing"].metadata["doc"]
    )


def test_r_drop_adds_the_mean_of_both_divergences():
    states, project, gold = inputs()
    one, other = project(states).log_softmax(-1)[::2], project(states).log_softmax(-1)[1::2]
    both = [
        torch.nn.functional.kl_div(a, b, reduction="sum", log_target=True)
        for a, b in ((one, other), (other, one))
    ]
    wanted = plain_token_loss(states, project, gold).loss + 3.0 * sum(
        both
    )  # each of two rows counts the mean of both
    torch.testing.assert_close(plain_token_loss(states, project, gold, r_drop=3.0).loss, wanted)
    twins = states.detach()[::2].repeat_interleave(2, 0)
    torch.testing.assert_close(
        token_loss(twins, project, gold, r_drop=3.0).loss, token_loss(twins, project, gold).loss
    )


def test_r_drop_repeats_cached_features_under_autocast():
    """Features of images are cached in float16, which not every operation takes under CPU autocast."""
    grid = FeatureGrids(torch.arange(12.0, dtype=torch.float16).view(2, 1, 2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        repeated = repeat_batch(grid).states
    assert torch.equal(repeated, torch.cat((grid.states, grid.states)))


def test_frozen_parts_get_no_gradient():
    states, project, gold = inputs()
    project.requires_grad_(False)
    token_loss(states, project, gold).loss.backward()
    assert project.weight.grad is None
    assert states.grad is not None
    with torch.no_grad():
        assert not token_loss(states, project, gold).loss.requires_grad


def test_impossible_tokens_have_a_finite_loss():
    states, project, gold = inputs()
    project.bias.data[3] = -1e4
    value = token_loss(states, project, torch.full_like(gold, 3)).loss
    assert value.isfinite()
    torch.testing.assert_close(
        value, plain_token_loss(states, project, torch.full_like(gold, 3)).loss
    )


def test_in_low_precision_the_sum_is_float32():
    states, project, gold = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        value = token_loss(states, project, gold, label_smoothing=0.1).loss
    value.backward()
    assert value.dtype == torch.float32
    assert project.weight.grad.dtype == torch.float32
    torch.testing.assert_close(
        value,
        plain_token_loss(states, project, gold, label_smoothing=0.1).loss,
        rtol=2e-2,
        atol=0.0,
    )


def test_memory_does_not_hold_all_logits(monkeypatch):
    monkeypatch.setattr(losses, "CHUNK", 2**20)
    states, project, gold = inputs(n=2000, dim=8, vocabulary=4000)  # all logits: 32 MB
    assert peak_bytes(lambda: token_loss(states, project, gold).loss.backward()) < 16e6
    assert peak_bytes(lambda: plain_token_loss(states, project, gold).loss.backward()) > 32e6


# --- doubly stochastic attention ---


TARGETS = Tokens.of([[1, 5, 6, 2], [1, 7, 2], [1, 8, 9, 10, 3, 2]])


def looking(**options):
    torch.manual_seed(3)
    config = RnnDecoderConfig(dim=WIDTH, dropout=0.0, **options)
    return RnnDecoder(config, words(), Projection(WIDTH, VOCABULARY), WIDTH)


def test_the_penalty_equals_its_definition():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]], [[0.1, 0.2, 0.7], [9.0, 9.0, 9.0]]])
    steps = torch.tensor([[True, True], [True, False]])
    regions = torch.tensor([[True, True, False], [True, True, True]])
    wanted = 0.3**2 + 0.3**2 + 0.9**2 + 0.8**2 + 0.3**2
    assert float(doubly_stochastic_penalty(weights, steps, regions)) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context_gate": True},
        {"attention": "luong"},
        {"attention": "luong", "input_feeding": True},
    ],
)
def test_the_penalty_uses_the_weights_of_the_forward_pass(options):
    """Equal to the captured weights; padding of targets and sources does not count."""
    model, read = Seq2Seq(encoder("gru"), looking(**options)), source("gru", (6, 2, 4))
    batch, calls = Batch(read, TARGETS, 10, torch.arange(3)), []
    with torch.no_grad(), regard.capture_attention(calls.append):
        plain, _, count, _ = Objective()(model, batch)
    used = torch.cat([each.weights() for each in calls], 1)  # (3, T, S)
    penalty = doubly_stochastic_penalty(used, TARGETS.mask[:, 1:], read.mask)
    penalised = Objective(doubly_stochastic=0.7)
    loss, nll, tokens, carried = penalised(model, batch)
    assert (tokens, carried) == (count, None)
    torch.testing.assert_close(nll, plain)
    torch.testing.assert_close(loss.detach(), plain + 0.7 * penalty)
    alone = [
        Batch(one(read, i), one(TARGETS, i), int(TARGETS.lengths[i]) - 1, torch.arange(1))
        for i in range(3)
    ]
    torch.testing.assert_close(loss, sum(penalised(model, each)[0] for each in alone))


def test_the_penalty_is_added_to_every_other_term():
    """With R-Drop, the mean of the penalties of both passes; with distillation, beside the teachers' term."""
    torch.manual_seed(0)
    model = Seq2Seq(encoder("gru"), looking()).eval()
    teacher = Seq2Seq(encoder("gru"), looking()).eval()
    batch = Batch(source("gru", (6, 2, 4)), TARGETS, 10, torch.arange(3))
    penalty = Objective(doubly_stochastic=0.7)(model, batch).loss - Objective()(model, batch).loss
    assert penalty > 0.1
    for terms in ({"r_drop": 2.0}, {"distillation": Distillation([teacher], 0.6, 1.5)}):
        alone = Objective(0.1, **terms)(model, batch)
        both = Objective(0.1, doubly_stochastic=0.7, **terms)(model, batch)
        torch.testing.assert_close(both.loss, alone.loss + penalty)
        torch.testing.assert_close(both.nll, alone.nll)
        assert both.predictions == alone.predictions


def test_the_penalty_spreads_attention_evenly():
    """Trained for it alone, each of six regions receives about n/6 of the attention of n steps."""
    decoder, given, there = looking(), memory(), TARGETS.mask[:, 1:]
    optimizer, losses = torch.optim.Adam(decoder.parameters(), lr=0.02), []
    everywhere = replace(given, states=given.states.clamp(-3, 3), mask=torch.ones_like(given.mask))

    def penalty():
        weights = []
        decoder.carry(
            TARGETS.ids[:, :-1], decoder.start(everywhere, batch=len(TARGETS.ids)), weights
        )
        return doubly_stochastic_penalty(torch.cat(weights, 1), there, everywhere.mask)

    with torch.autocast("cpu", torch.bfloat16):
        low = penalty()
    for _ in range(40):
        losses.append(penalty())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    best = sum(6 * (1 - steps / 6) ** 2 for steps in there.sum(1).tolist())
    assert losses[0] > best + 0.5
    assert losses[-1] < best + 0.1
    torch.testing.assert_close(low, losses[0], atol=0.1, rtol=0.02)


REFUSED = {
    "none": ({"decoder": {"kind": "rnn", "attention": "none"}}, {}),
    "transformer": ({"decoder": {"kind": "transformer"}}, {}),
    "no source": ({"encoder": None}, {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_penalty_without_attention_is_refused(name):
    model, train = REFUSED[name]
    data = {"synthetic": "copy", "source": {"tokenizer": "bytes"}, "target": {"tokenizer": "bytes"}}
    model = {"encoder": {"kind": "rnn"}, "decoder": {"kind": "rnn"}} | model
    table = {
        "data": data,
        "model": {k: v for k, v in model.items() if v},
        "train": {"doubly_stochastic": 0.5} | train,
    }
    with pytest.raises(
        regard.InvalidRecipe,
        match=r"train\.doubly_stochastic: wanted 0 unless a recurrent decoder attends to a source",
    ):
        Recipe.of(table)


def test_log_softmax_is_in_float32_whatever_the_logits_are():
    """With logits of 8 bits of precision, a sum of 20,000 exponentials in bfloat16 would be far off."""
    torch.manual_seed(0)
    project = Projection(8, 20_000, bias=False).to(torch.bfloat16)
    states, gold = torch.randn(16, 8, dtype=torch.bfloat16), torch.randint(20_000, (16,))
    logits = (states @ project.weight.mT).float()
    wanted = -logits.log_softmax(-1).gather(1, gold[:, None]).sum()
    torch.testing.assert_close(token_loss(states, project, gold).nll, wanted, rtol=1e-5, atol=0)


def test_dropout_is_off_in_every_module_and_on_again_after():
    model = torch.nn.ModuleList(
        [torch.nn.GRU(3, 3, num_layers=2, dropout=0.5), torch.nn.Dropout(0.5)]
    ).train()
    with no_dropout(model):
        assert (model[0].dropout, model[0].training, model[1].training) == (0.0, True, False)
        x = torch.randn(2, 4, 3)
        assert torch.equal(model[0](x)[0], model[0](x)[0])
    assert (model[0].dropout, model[0].training, model[1].training) == (0.5, True, True)
