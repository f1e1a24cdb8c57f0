"""Teacher forcing, free running and the mix of both, for every decoder."""

import itertools

import pytest
import torch

import regard
from regard.core.sequence import Tokens
from regard.data.batching import Batch
from regard.data.special_tokens import END, START
from regard.model.scheduled_sampling import ScheduledSampling, _choose, force
from regard.model.seq2seq import Seq2Seq
from regard.tasks.objective import Objective
from support.models import DECODERS, VOCABULARY, decoder, memory

TARGETS = torch.randint(VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def free_running(module, given) -> torch.Tensor:
    """Each step fed with what the last one found most likely."""
    state, tokens, every = module.start(given, batch=3, capacity=6), TARGETS[:, 0], []
    for _ in range(TARGETS.shape[1]):
        logits, state = module.step(tokens, state)
        every.append(logits)
        tokens = logits.argmax(-1)
    return torch.stack(every, 1)


@pytest.mark.parametrize("name", DECODERS)
def test_all_gold_is_teacher_forcing(name):
    module = decoder(name)
    assert torch.equal(
        force(module, TARGETS, memory(), ScheduledSampling(teacher_forcing=1.0)).logits,
        module(TARGETS, memory()),
    )


@pytest.mark.parametrize("name", DECODERS)
def test_no_gold_is_free_running(name):
    """At once for a recurrent decoder; for a parallel one after as many passes as there are words."""
    module = decoder(name)
    got = force(module, TARGETS, memory(), ScheduledSampling(teacher_forcing=0.0, passes=6)).logits
    torch.testing.assert_close(got, free_running(module, memory()), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(got, module(TARGETS, memory()), atol=1e-3)


@pytest.mark.parametrize(
    "name", ["rnn", "gru bahdanau additive", "gru luong input-feeding", "conv", "transformer"]
)
def test_a_mix_is_neither_and_has_gradient(name):
    module = decoder(name)

    def draw(seed):
        return force(
            module,
            TARGETS,
            memory(),
            ScheduledSampling(teacher_forcing=0.5),
            generator=torch.Generator().manual_seed(seed),
        ).logits

    mixed = draw(3)
    assert torch.equal(mixed, draw(3))
    assert not torch.equal(mixed, draw(4))
    assert not torch.allclose(mixed, module(TARGETS, memory()), atol=1e-3)
    mixed.square().sum().backward()
    assert module.embed_tokens.weight.grad.abs().sum() > 0


def test_the_first_token_is_always_gold_and_a_ratio_is_exact():
    many = torch.ones(200, 11, dtype=torch.bool)
    by_ratio = _choose(many, 0.3, "ratio", None)
    assert by_ratio[:, 0].all()
    assert (by_ratio[:, 1:].sum(1) == 3).all()
    by_token = _choose(many, 0.3, "token", None)
    assert by_token[:, 0].all()
    assert len(by_token[:, 1:].sum(1).unique()) > 3
    assert 0.25 < by_token[:, 1:].float().mean() < 0.35


def test_a_ratio_is_exact_whatever_the_padding():
    lengths = torch.arange(1, 12).repeat(
        50
    )  # of inputs: a first token and up to 10 that may be replaced
    mask = torch.arange(20) < lengths[:, None]
    for share in (0.0, 0.3, 0.5, 1.0):
        gold = _choose(mask, share, "ratio", None)
        wanted = [1 + round(share * (length - 1)) for length in lengths.tolist()]
        assert (gold & mask).sum(1).tolist() == wanted


def test_the_ratio_of_a_training_batch_does_not_count_padding(monkeypatch):
    """Half of 4 free inputs is 2, also where the longest sequence of the batch has 20."""
    rows = [[START, *[5] * 4, END], [START, *[6] * 19, END]]
    batch = Batch(None, Tokens.of(rows), tokens=25, rows=torch.arange(2))
    drawn = []

    def choose(*arguments):
        drawn.append(_choose(*arguments))
        return drawn[-1]

    monkeypatch.setattr("regard.model.scheduled_sampling._choose", choose)
    objective = Objective(scheduled_sampling=ScheduledSampling(teacher_forcing=0.5, mode="ratio"))
    model = Seq2Seq(None, decoder("rnn", None))  # sets the seed
    for _ in range(10):
        objective(model, batch)
    assert [gold[0, 1:5].sum().item() for gold in drawn] == [2] * 10
    assert all(gold[1, 1:].sum() in (9, 10) for gold in drawn)


def test_schedules_begin_and_end_at_their_probabilities():
    for schedule in ("linear", "exponential", "sigmoid"):
        forcing = ScheduledSampling(
            teacher_forcing=1.0, final_teacher_forcing=0.2, over_steps=100, schedule=schedule
        )
        shares = [forcing.share(step) for step in range(0, 101, 10)]
        assert shares[0] == pytest.approx(1.0)
        assert shares[-1] == pytest.approx(0.2)
        assert all(a > b for a, b in itertools.pairwise(shares))
        assert forcing.share(1000) == pytest.approx(0.2)
    assert ScheduledSampling(teacher_forcing=1.0, final_teacher_forcing=0.2, over_steps=100).share(
        50
    ) == pytest.approx(0.6)
    assert ScheduledSampling(teacher_forcing=0.3).share(10**6) == 0.3


def test_a_schedule_changes_what_is_fed():
    module, forcing = (
        decoder("transformer"),
        ScheduledSampling(teacher_forcing=1.0, final_teacher_forcing=0.0, over_steps=10, passes=6),
    )
    assert torch.equal(
        force(module, TARGETS, memory(), forcing, step=0).logits, module(TARGETS, memory())
    )
    torch.testing.assert_close(
        force(module, TARGETS, memory(), forcing, step=10).logits,
        free_running(module, memory()),
        atol=1e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"teacher_forcing": 1.5},
            "teacher_forcing: wanted a number of at least 0 and at most 1; got 1.5",
        ),
        (
            {"final_teacher_forcing": 0.5},
            "final_teacher_forcing, over_steps: wanted both for a schedule, or neither",
        ),
        (
            {"final_teacher_forcing": 0.0, "over_steps": 5, "schedule": "exponential"},
            "final_teacher_forcing: wanted above 0 for an exponential schedule",
        ),
    ],
)
def test_impossible_forcing_is_refused(options, message):
    with pytest.raises(regard.InvalidRecipe, match=message):
        ScheduledSampling(**options)
