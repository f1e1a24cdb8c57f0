"""Self-critical sequence training: rewards, the direction of the gradient, improvement, exact resume."""

import copy

import numpy as np
import pytest
import torch

from regard.api.evaluate import score
from regard.api.train import make_model, train
from regard.core.errors import InvalidRecipe
from regard.core.sequence import Tokens
from regard.data.batching import batches
from regard.data.columns import FeatureColumn, ImageColumn, TextColumn
from regard.data.corpus import Corpus, prepare
from regard.data.special_tokens import END, START
from regard.data.synthetic.sampling import SIZES
from regard.data.train_tokenizer import train_tokenizer
from regard.evaluation.cider_reward import STOP, CiderReward
from regard.generation.choose.interfaces import Hypothesis
from regard.model.scheduled_sampling import ScheduledSampling
from regard.recipe.recipe import Recipe
from regard.tasks.distillation import Distillation
from regard.tasks.objective import Objective
from regard.training.scst import SelfCriticalSampler
from support.captioners import CNN, DECODERS

TRAIN = {
    "max_steps": 30,
    "warmup_steps": 5,
    "validate_every": 30,
    "learning_rate": 1e-2,
    "label_smoothing": 0.0,
    "batch_tokens": 128,
    "seed": 3,
}


def recipe(decoder: str = "rnn", **settings) -> Recipe:
    return Recipe.of(
        {
            "data": {
                "synthetic": "shapes",
                "source": {"kind": "image"},
                "target": {"tokenizer": "words", "vocab_size": 50},
            },
            "model": {"encoder": CNN, "decoder": DECODERS[decoder]},
            "train": {**TRAIN, **settings},
            "decode": {"max_length": 15},
        }
    )


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(SIZES, "train", 8)
    monkeypatch.setitem(SIZES, "valid", 2)
    monkeypatch.setitem(SIZES, "test", 2)


def critic(given: Recipe, folder):
    data = prepare(given.data, folder)
    reward = CiderReward(data.train, data.target, word_tokens=True)
    sampler = SelfCriticalSampler(reward, max_length=given.decode.max_length, seed=given.train.seed)
    return sampler, data, make_model(given, given.sized(data))


def test_features_of_images_keep_the_references_of_each_image():
    """A reward compares with all captions of an image, also where its features take the place of its pixels."""
    words = train_tokenizer("words", ["a red circle", "one circle", "a blue cross"], 50, False)
    rows = [
        [START, *words.encode(text), END] for text in ("a red circle", "one circle", "a blue cross")
    ]
    targets = TextColumn(np.concatenate(rows), np.cumsum([len(row) for row in rows]))
    images = ImageColumn(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 0, 1]))
    features = FeatureColumn(images, np.zeros((2, 1, 1, 3), np.float16))
    of_pixels, of_features = (
        CiderReward(Corpus(each, targets), words, word_tokens=True) for each in (images, features)
    )
    assert len(of_features.references[0]) == 2
    assert of_features.references == of_pixels.references


@pytest.mark.parametrize("decoder", ["rnn", "transformer"])
def test_advantages_are_cider_less_that_of_the_greedy_output(decoder, tmp_path, few):
    sampler, data, model = critic(recipe(decoder, reward="cider"), tmp_path)
    (batch,) = batches(data.train, budget=1000, seed=1, epoch=0)
    model.train()
    sampled, advantages = sampler(model, batch, 7)
    assert model.training
    again, same = sampler(model, batch, 7)
    assert torch.equal(sampled.ids, again.ids)
    assert torch.equal(advantages, same)
    assert not torch.equal(sampled.ids, sampler(model, batch, 8)[0].ids)
    assert advantages.shape == (8,)
    gold = [
        Hypothesis(tuple(data.train.target.row(row)[1:-1].tolist()), None, None, END)
        for row in range(8)
    ]
    best = [sampler.reward(row, each) for row, each in enumerate(gold)]
    assert (
        min(best) > 9.0
    )  # the only reference itself: ten, or a little less where an order has no rare n-gram
    broken = [
        sampler.reward(row, Hypothesis(each.tokens, None, None, None))
        for row, each in enumerate(gold)
    ]
    assert all(cut < whole for cut, whole in zip(broken, best, strict=True))  # it did not end
    assert sampler.reward.references[0][0][-1] == STOP


def test_of_several_samples_the_others_are_the_baseline(tmp_path, few):
    given = recipe("transformer", reward="cider", reward_samples=3)
    sampler, data, model = critic(given, tmp_path)
    (batch,) = batches(data.train, budget=1000, seed=1, epoch=0)
    sampler.samples, rewards, reward = 3, list[float](), sampler.reward
    sampler.reward = lambda row, output: rewards.append(reward(row, output)) or rewards[-1]
    sampled, advantages = sampler(model, batch, 7)
    assert len(rewards) == len(sampled.ids) == 24  # no greedy outputs
    by_source = torch.tensor(rewards).view(8, 3)
    wanted = by_source - torch.stack(
        [by_source[:, [1, 2]], by_source[:, [0, 2]], by_source[:, [0, 1]]], 1
    ).mean(2)
    torch.testing.assert_close(advantages.view(8, 3), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(advantages.view(8, 3).sum(1), torch.zeros(8), atol=1e-4, rtol=0)
    # Each sample's log-probability is that of its own source.
    objective = Objective(sampler=lambda model, batch, step: (sampled, advantages))
    loss = objective(model.eval(), batch)
    sources = batch.source.repeat_interleave(3, 0)
    log_p = (
        model.log_probabilities(sources, sampled.ids).masked_fill(~sampled.mask[:, 1:], 0.0).sum(1)
    )
    torch.testing.assert_close(loss.loss, -(log_p * advantages).sum(), atol=1e-3, rtol=1e-4)
    with pytest.raises(InvalidRecipe, match=r"train.reward_samples: wanted 1 without reward"):
        recipe(reward_samples=3)


def sampled_batch(folder, decoder: str = "transformer", dropout: float = 0.0):
    """A model, a batch, and outputs that it sampled with made-up advantages of both signs."""
    given = recipe(decoder, reward="cider").as_dict()
    given["model"]["decoder"]["dropout"] = dropout
    sampler, data, model = critic(Recipe.of(given), folder)
    (batch,) = batches(data.train, budget=1000, seed=1, epoch=0)
    sampled, _ = sampler(model, batch, 7)
    advantages = torch.linspace(-1.0, 2.0, len(sampled.ids))
    return model, batch, sampled, advantages, lambda model, batch, step: (sampled, advantages)


def test_the_rewarded_distribution_has_the_temperature_of_the_samples(tmp_path, few):
    model, batch, sampled, advantages, given = sampled_batch(tmp_path)
    cold = Objective(sampler=given, reward_temperature=0.5)(model.eval(), batch).loss
    logits = model(batch.source, sampled.ids[:, :-1]) / 0.5
    log_p = (
        logits.log_softmax(-1)
        .gather(2, sampled.ids[:, 1:, None])[..., 0]
        .masked_fill(~sampled.mask[:, 1:], 0.0)
    )
    torch.testing.assert_close(cold, -(log_p.sum(1) * advantages).sum(), atol=1e-3, rtol=1e-4)
    sampler, _, _ = critic(recipe("transformer", reward="cider"), tmp_path)
    sampler.temperature = 1e-4  # only the most likely token is left
    outputs, worth = sampler(model, batch, 7)
    assert worth.abs().max() < 1e-6  # greedy outputs, as the baseline
    sampler.temperature = 1.0
    assert not torch.equal(outputs.ids, sampler(model, batch, 7)[0].ids)


@pytest.mark.parametrize("term", ["label_smoothing", "distillation", "scheduled_sampling"])
def test_the_loss_of_the_targets_is_added_with_its_weight(tmp_path, few, term):
    """With all its own terms."""
    model, batch, _, _, given = sampled_batch(tmp_path)
    model.eval()
    terms = {
        "label_smoothing": 0.1,
        "distillation": Distillation([untrained(model)], weight=0.7),
        # Always its own tokens, the most likely.
        "scheduled_sampling": ScheduledSampling(teacher_forcing=0.0),
    }
    settings = {term: terms[term]}
    reward = Objective(sampler=given)(model, batch)
    targets = Objective(**settings)(model, batch)
    assert not torch.equal(targets.loss, Objective()(model, batch).loss)
    both = Objective(sampler=given, reward_likelihood=0.3, **settings)(model, batch)
    mean = both.loss / both.predictions  # what an update divides by
    wanted = reward.loss / reward.predictions + 0.3 * targets.loss / targets.predictions
    torch.testing.assert_close(mean, wanted, atol=1e-5, rtol=1e-4)
    assert (both.nll, both.predictions) == (reward.nll, reward.predictions)


def untrained(model):
    """A model of the same sizes with other weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    return other.eval()


def test_with_dropout_the_gradient_is_weighted_by_the_ratio_of_probabilities(tmp_path, few):
    model, batch, sampled, advantages, given = sampled_batch(tmp_path, dropout=0.5)
    mask = sampled.mask[:, 1:]

    def nll() -> torch.Tensor:
        log_p = model(batch.source, sampled.ids[:, :-1]).log_softmax(-1)
        return -log_p.gather(2, sampled.ids[:, 1:, None])[..., 0][mask]

    model.eval()
    without = nll().detach()
    objective = Objective(sampler=given, reward_dropout=True)
    loss = objective(model, batch)  # nothing is dropped: every ratio is 1
    each = advantages[:, None].expand_as(mask)[mask]
    torch.testing.assert_close(loss.loss, (without * each).sum(), atol=1e-3, rtol=1e-4)
    model.train()
    dropped = objective(model, batch)
    assert abs(dropped.nll - without.sum()) > 0.01 * without.sum()  # dropout is on
    # Its packed rows draw other masks than padded ones, so the ratio is compared where it is known: from the loss.
    model.eval()
    shifted = model.decoder.project.weight.clone()
    with torch.no_grad():
        losses = []
        for scale in (1.0, 3.0):  # as if dropout had made the model more certain
            model.decoder.project.weight.copy_(shifted * scale)
            losses.append(nll())
    ratio = (losses[0] - losses[1]).exp()
    assert ratio.max() > 2.0
    assert ratio.min() < 1.0
    calls = iter([1.0, 3.0])

    def encode(source, encode=model.encode):
        with torch.no_grad():
            model.decoder.project.weight.copy_(shifted * next(calls))
        return encode(source)

    model.encode = encode
    wanted = (losses[1] * each * ratio.clamp(max=2.0)).sum()
    torch.testing.assert_close(objective(model, batch).loss, wanted, atol=1e-2, rtol=1e-3)


def test_outputs_are_sampled_without_autocast(tmp_path, few):
    """The steps of a search are recorded as CUDA graphs without autocast only, and are much slower otherwise."""
    sampler, data, model = critic(recipe("transformer", reward="cider"), tmp_path)
    (batch,) = batches(data.train, budget=1000, seed=1, epoch=0)
    seen, encode = list[bool](), model.encode
    model.encode = lambda source: seen.append(torch.is_autocast_enabled("cpu")) or encode(source)
    with torch.autocast("cpu", torch.bfloat16):
        ids = sampler(model, batch, 7)[0].ids
    assert seen
    assert not any(seen)
    assert torch.equal(ids, sampler(model, batch, 7)[0].ids)


def test_outputs_of_higher_reward_become_more_probable(tmp_path, few):
    _, data, model = critic(recipe(), tmp_path)
    (batch,) = batches(data.train, budget=1000, seed=1, epoch=0)
    model.eval()

    def gradient(objective: Objective) -> torch.Tensor:
        model.zero_grad()
        loss, _, count, _ = objective(model, batch)
        assert count == batch.tokens
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    gold = gradient(Objective())
    for worth in (1.0, -0.5):
        own = Objective(
            sampler=lambda model, batch, step, worth=worth: (batch.targets, torch.full((8,), worth))
        )
        assert torch.allclose(gradient(own), worth * gold, atol=1e-5)
    first = torch.zeros(8).index_fill(0, torch.tensor([0]), 1.0)
    alone = gradient(Objective(sampler=lambda model, batch, step: (batch.targets, first)))
    short = Tokens(batch.targets.ids[:1], batch.targets.lengths[:1])
    logits = model(batch.source[:1], short.ids[:, :-1])[short.mask[:, 1:]]
    model.zero_grad()
    torch.nn.functional.cross_entropy(
        logits, short.ids[:, 1:][short.mask[:, 1:]], reduction="sum"
    ).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert torch.allclose(alone, expected, atol=1e-5)


CAPTIONS = {
    "one": "a red dog runs",
    "two": "two cats sleep on grass",
    "three": "a small boat sails away",
    "four": "people walk near the old bridge",
}


def learned(folder, run: str, resume: bool = False, dropout: float = 0.0, **settings):
    """From a label to a caption: the smallest task."""
    table = {
        "data": {"source": {"kind": "label"}, "target": {"tokenizer": "words", "vocab_size": 50}},
        "model": {
            "encoder": {"kind": "label", "dim": 16},
            "decoder": {**DECODERS["blind"], "dim": 24, "dropout": dropout},
        },
        "train": {
            **TRAIN,
            "warmup_steps": 1,
            "lr_schedule": "constant",
            "validate_every": 1000,
            **settings,
        },
        "decode": {"max_length": 8},
    }
    rows = list(CAPTIONS.items()) * (12 if "reward" in settings else 1)
    return train(table, folder / run, data={"train": rows}, cache=folder / "cache", resume=resume)


@pytest.mark.parametrize(("dropout", "first", "gain"), [(0.0, 30, 0.5), (0.5, 120, 0.1)])
def test_reward_rises(tmp_path, dropout, first, gain):
    """The reward of sampled captions rises; greedy captions were correct before and stay so.

    With dropout too: log-probabilities must be those without dropout, from which the captions were sampled.
    """
    before = learned(tmp_path, "first", dropout=dropout, max_steps=first)
    more = {
        "max_steps": 30,
        "learning_rate": 4e-3,
        "batch_tokens": 2000,
        "init_from": str(tmp_path / "first"),
    }
    after = learned(tmp_path, "second", dropout=dropout, reward="cider", **more)
    asked, gold = list(CAPTIONS) * 50, [[caption] for caption in CAPTIONS.values()] * 50
    drawn = [score("cider", made.predict(asked, sample=True), gold) for made in (before, after)]
    assert drawn[1] > drawn[0] + gain, drawn
    assert after.predict(list(CAPTIONS)) == list(CAPTIONS.values())


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    learned(tmp_path, "first", max_steps=10)
    given = {"reward": "cider", "init_from": str(tmp_path / "first"), "validate_every": 3}
    whole = learned(tmp_path, "whole", max_steps=6, **given)
    learned(tmp_path, "parts", max_steps=3, **given)
    parts = learned(tmp_path, "parts", max_steps=6, resume=True, **given)
    for (name, one), other in zip(
        whole.model.named_parameters(), parts.model.parameters(), strict=True
    ):
        assert torch.equal(one, other), name


def test_training_in_bfloat16(tmp_path):
    """Weights cast by autocast without gradients must not be reused with gradients."""
    first = learned(tmp_path, "first", max_steps=2)
    more = {
        "reward": "cider",
        "init_from": str(tmp_path / "first"),
        "precision": "bfloat16",
        "batch_tokens": 2000,
    }
    second = learned(tmp_path, "second", max_steps=2, **more)
    weights = zip(first.model.named_parameters(), second.model.parameters(), strict=True)
    still = [name for (name, one), other in weights if torch.equal(one, other)]
    assert not still


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"reward_temperature": 0.5},
            "train.reward_temperature: wanted 1.0 without reward; got 0.5",
        ),
        ({"reward_likelihood": 0.1}, "train.reward_likelihood: wanted 0.0 without reward; got 0.1"),
        ({"reward_dropout": True}, "train.reward_dropout: wanted False without reward; got True"),
        (
            {"reward": "cider", "reward_temperature": 0.0},
            "train.reward_temperature: wanted a number above 0",
        ),
        ({"reward": "cider", "r_drop": 1.0}, "train.r_drop: wanted nothing with reward"),
        (
            {"reward": "cider", "distillation": {"teachers": ["a"]}},
            "train.distillation: wanted nothing with reward",
        ),
    ],
)
def test_settings_of_a_reward_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(InvalidRecipe, match=message):
        recipe(**settings)
    # Beside the reward there is a loss of the targets, of which these are terms.
    with_targets = {"reward": "cider", "reward_likelihood": 0.1}
    recipe(**with_targets, r_drop=1.0)
    recipe(**with_targets, scheduled_sampling={})
    recipe(**with_targets, distillation={"teachers": ["a"]})


WRONG = {
    "labels": (
        {"model": {"encoder": {"kind": "rnn"}, "pool": {"kind": "mean"}}},
        {},
        "train.reward: wanted nothing unless",
    ),
    "no source": (
        {"model": {"decoder": {"kind": "rnn"}}},
        {},
        "train.reward: wanted nothing unless",
    ),
    "forcing": (
        {},
        {"scheduled_sampling": {}},
        "train.scheduled_sampling: wanted nothing with reward",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_recipes_without_a_reward_are_refused(case):
    changed, settings, message = WRONG[case]
    with pytest.raises(InvalidRecipe, match=message):
        Recipe.of(
            {**recipe().as_dict(), **changed, "train": {**TRAIN, "reward": "cider", **settings}}
        )
