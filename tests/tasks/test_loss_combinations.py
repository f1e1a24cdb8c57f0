"""Terms of the loss and ways to read a batch, with one another: each result equals a formula written out here.

Terms: R-Drop, distillation, doubly stochastic attention. Ways: scheduled sampling, a carried state, packed sequences.
"""

import copy

import pytest
import torch

import regard
from regard.api.train import train
from regard.core.config import read
from regard.core.sequence import Tokens
from regard.data.batching import Batch, PackedCapacity, pack_batch
from regard.model.scheduled_sampling import ScheduledSampling
from regard.recipe.recipe import Recipe
from regard.tasks.carried import CarriedStates
from regard.tasks.distillation import Distillation
from regard.tasks.objective import Objective
from regard.training.config import TrainConfig
from support.training_runs import LETTERS, RNN, SHORT, TRANSFORMER, interrupted, log, same, weights

VOCABULARY = 30
SOURCES = [[7, 8, 9, 5], [9, 20], [25, 8, 8]]
TARGETS = [[1, 7, 8, 9, 12, 2], [1, 9, 2], [1, 25, 8, 2]]
PREDICTIONS = 10
OWN = ScheduledSampling(teacher_forcing=0.0)
HALF = ScheduledSampling(teacher_forcing=0.5)
TEXT = [list(range(5, 21)), list(range(14, 30)), [6, 9] * 8]


def still(part: dict) -> dict:
    return part | {"dropout": 0.0}


DECODERS = {"transformer": TRANSFORMER, "rnn": RNN}


def translator(kind: str, seed: int = 0, **changes) -> torch.nn.Module:
    """A model whose distributions are far from uniform."""
    torch.manual_seed(seed)
    part = still(DECODERS[kind]) | changes
    model = regard.build({"encoder": part, "decoder": part, "vocab_size": VOCABULARY})
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    return model


def reader(kind: str, seed: int = 0, **changes) -> torch.nn.Module:
    """A language model."""
    torch.manual_seed(seed)
    model = regard.build({"decoder": still(DECODERS[kind]) | changes, "vocab_size": VOCABULARY})
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    return model


def padded_batch() -> Batch:
    return Batch(Tokens.of(SOURCES), Tokens.of(TARGETS), PREDICTIONS, torch.arange(3))


def packed_batch(*, filled: bool = False) -> Batch:
    """The same batch, packed; filled: with sequences that only fill it to its size."""
    positions = (14, 17) if filled else (9, 10)
    return pack_batch(padded_batch(), PackedCapacity(positions, (4, 5), 6, filled))


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    found = torch.autograd.grad(
        loss, list(model.parameters()), retain_graph=True, allow_unused=True
    )
    return [torch.zeros(()) if each is None else each for each in found]


def assert_equal(model: torch.nn.Module, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """In value and gradient."""
    torch.testing.assert_close(got, wanted)
    pairs = zip(gradients(model, got), gradients(model, wanted), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def free_running(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model reads when each input is its own prediction, by one forward pass after the other, and its logits."""
    inputs = batch.targets.ids[:, :-1].clone()
    for t in range(1, inputs.shape[1]):
        with torch.no_grad():
            inputs[:, t] = model(batch.source, inputs)[:, t - 1].argmax(-1)
    return inputs, model(batch.source, inputs)


def of_targets(batch: Batch, x: torch.Tensor) -> torch.Tensor:
    """The positions that are not padding."""
    return x[batch.targets.mask[:, 1:]]


def cross_entropy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    gold = of_targets(batch, batch.targets.ids[:, 1:])
    return torch.nn.functional.cross_entropy(of_targets(batch, logits), gold, reduction="sum")


def divergence(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    p = teacher.softmax(-1)
    return (p * (p.log() - student.log_softmax(-1))).sum()


# --- scheduled sampling ---


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", DECODERS)
def test_teachers_read_what_the_student_has_read(kind, packed):
    """Its own predictions: a teacher of gold inputs would answer another question."""
    model = translator(kind)
    teacher = translator(kind, 5).eval()
    batch = padded_batch()
    passes = ScheduledSampling(teacher_forcing=0.0, passes=5)
    inputs, logits = free_running(model, batch)
    assert not torch.equal(inputs, batch.targets.ids[:, :-1])
    with torch.no_grad():
        taught = teacher(batch.source, inputs)
    term = divergence(of_targets(batch, taught), of_targets(batch, logits))
    wanted = 0.4 * cross_entropy(logits, batch) + 0.6 * term
    objective = Objective(distillation=Distillation([teacher], 0.6), scheduled_sampling=passes)
    found = objective(model, packed_batch() if packed else batch)
    assert found.predictions == PREDICTIONS
    assert_equal(model, found.loss, wanted)


def test_the_penalty_on_attention_is_that_of_the_inputs_that_were_read():
    model = translator("rnn")
    batch = padded_batch()
    _, logits = free_running(model, batch)
    inputs, _ = free_running(model, batch)
    calls = []
    with torch.no_grad(), regard.capture_attention(calls.append):
        model(batch.source, inputs)
    used = torch.cat([each.weights() for each in calls], 1)  # (B, T, S)
    received = (used * batch.targets.mask[:, 1:, None]).sum(1)
    penalty = ((1 - received) ** 2)[batch.source.mask].sum()
    found = Objective(doubly_stochastic=0.7, scheduled_sampling=OWN)(model, batch)
    torch.testing.assert_close(found.loss.detach(), cross_entropy(logits, batch) + 0.7 * penalty)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", DECODERS)
def test_r_drop_compares_two_passes_of_which_each_reads_its_own_predictions(kind, packed):
    """Their inputs differ, because their dropout masks do."""
    model = translator(kind, dropout=0.4).train()
    batch = packed_batch() if packed else padded_batch()
    seen = []
    objective = Objective(r_drop=2.0, scheduled_sampling=OWN)
    watch_logits(objective, seen)
    found = objective(model, batch)
    (logits,) = seen
    first, second = logits.chunk(2)
    assert (first.argmax(-1) != second.argmax(-1)).any()
    gold = of_targets(padded_batch(), padded_batch().targets.ids[:, 1:])
    nll = torch.nn.functional.cross_entropy(logits, gold.repeat(2), reduction="sum")
    symmetric = divergence(first, second) + divergence(second, first)
    assert_equal(model, found.loss, nll / 2 + symmetric)


def test_teachers_read_what_each_pass_of_r_drop_has_read():
    model = translator("rnn", dropout=0.4).train()
    teacher = translator("rnn", 5).eval()
    batch = padded_batch()
    mask = batch.targets.mask[:, 1:]
    gold = of_targets(batch, batch.targets.ids[:, 1:])
    seen = []
    settings = {"r_drop": 2.0, "scheduled_sampling": OWN}
    objective = Objective(distillation=Distillation([teacher], 0.6), **settings)
    watch_logits(objective, seen)
    found = objective(model, batch)
    passes = seen[0].chunk(2)
    terms = []
    for logits in passes:
        inputs = batch.targets.ids[:, :-1].clone()
        predicted = torch.zeros_like(inputs)
        predicted[mask] = logits.argmax(-1)
        inputs[:, 1:] = predicted[:, :-1]
        with torch.no_grad():
            taught = teacher(batch.source, inputs)
        terms.append(divergence(of_targets(batch, taught), logits))
    assert abs(float((terms[0] - terms[1]).detach())) > 0.1
    nll = torch.nn.functional.cross_entropy(seen[0], gold.repeat(2), reduction="sum")
    symmetric = divergence(*passes) + divergence(*reversed(passes))
    wanted = 0.4 * (nll / 2 + symmetric) + 0.6 * (terms[0] + terms[1]) / 2
    assert_equal(model, found.loss, wanted)


def watch_logits(objective: Objective, seen: list[torch.Tensor]) -> None:
    """Note the logits from which the objective computes its loss."""
    compute = objective.cross_entropy

    def watched(predicted, gold):
        logits = predicted.logits(slice(None))
        seen.append(logits)
        return compute(type(predicted)(logits), gold)

    object.__setattr__(objective, "cross_entropy", watched)


@pytest.mark.parametrize("sampling", [OWN, HALF], ids=["own", "half"])
@pytest.mark.parametrize("kind", DECODERS)
def test_packed_equals_padded(kind, sampling):
    model = translator(kind)
    objective = Objective(0.1, scheduled_sampling=sampling)
    losses = []
    for batch in (padded_batch(), packed_batch()):
        torch.manual_seed(4)
        losses.append(objective(model, batch))
    padded, packed = losses
    assert packed.predictions == padded.predictions == PREDICTIONS
    torch.testing.assert_close(packed.nll, padded.nll)
    assert_equal(model, packed.loss, padded.loss)
    gold = Objective(0.1)(model, padded_batch())
    assert abs(float(gold.nll - padded.nll)) > 1e-3


# --- doubly stochastic attention ---


@pytest.mark.parametrize(
    ("sampling", "filled"),
    [(None, False), (None, True), (OWN, False)],
    ids=["gold", "gold, filled", "own"],
)
def test_a_packed_penalty_equals_the_padded_one(sampling, filled):
    """Sequences that only fill a packed batch receive no penalty."""
    model = translator("rnn")
    objective = Objective(0.1, doubly_stochastic=0.7, scheduled_sampling=sampling)
    padded = objective(model, padded_batch())
    packed = objective(model, packed_batch(filled=filled))
    assert_equal(model, packed.loss, padded.loss)
    without = Objective(0.1, scheduled_sampling=sampling)(model, padded_batch())
    assert float((padded.loss - without.loss).detach()) > 0.1


# --- a carried state ---


def contexts() -> list[Batch]:
    """Three texts side by side, in two parts: each reads on where the one before ended."""
    ids = torch.tensor(TEXT)  # (3, 16)
    parts = [ids[:, :9], ids[:, 8:]]
    lengths = [torch.full((3,), part.shape[1]) for part in parts]
    return [
        Batch(None, Tokens(part, length), 3 * (part.shape[1] - 1), torch.arange(3))
        for part, length in zip(parts, lengths, strict=True)
    ]


def carried_losses(
    objective: Objective, model: torch.nn.Module
) -> tuple[torch.Tensor, CarriedStates]:
    """The summed loss of both parts, and the states after them."""
    states = objective.first_states(model, 3)
    total = torch.zeros(())
    for batch in contexts():
        found = objective(model, batch, carried=states)
        states = found.carried
        total = total + found.loss
    return total, states


@pytest.mark.parametrize("kind", DECODERS)
def test_teachers_carry_their_own_states(kind):
    """A recurrent teacher reads the text as a whole, too; another one reads each part by itself."""
    model = reader("rnn")
    teacher = reader(kind, 5).eval()
    ids = torch.tensor(TEXT)
    logits = model(None, ids[:, :-1])
    with torch.no_grad():
        whole = teacher(None, ids[:, :-1])
        parts = torch.cat([teacher(None, ids[:, :8]), teacher(None, ids[:, 8:-1])], 1)
    assert not torch.allclose(whole, parts, atol=1e-3)
    taught = whole if kind == "rnn" else parts
    gold = ids[:, 1:].flatten()
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), gold, reduction="sum")
    wanted = 0.4 * nll + 0.6 * divergence(taught, logits)
    total, _ = carried_losses(Objective(distillation=Distillation([teacher], 0.6)), model)
    torch.testing.assert_close(total.detach(), wanted.detach())


def test_scheduled_sampling_reads_on_from_the_carried_state():
    """The first token of each part is gold."""
    model = reader("rnn")
    total = torch.zeros(())
    state = model.generator.decoder.start(None, batch=3, capacity=0)
    for batch in contexts():
        gold = batch.targets.ids
        tokens = gold[:, 0]
        for t in range(gold.shape[1] - 1):
            logits, state = model.generator.decoder.step(tokens, state)
            total = total + torch.nn.functional.cross_entropy(
                logits, gold[:, t + 1], reduction="sum"
            )
            tokens = logits.argmax(-1)
    found, states = carried_losses(Objective(scheduled_sampling=OWN), model)
    torch.testing.assert_close(found, total)
    for name, tensor in states.model.tensors().items():
        torch.testing.assert_close(tensor, state.tensors()[name])


def test_both_passes_of_r_drop_begin_with_the_carried_state():
    """And the first of them is carried on. Without dropout, they are equal."""
    model = reader("rnn")
    plain, plain_states = carried_losses(Objective(0.1), model)
    found, states = carried_losses(Objective(0.1, r_drop=2.0), model)
    torch.testing.assert_close(found, plain)
    for name, tensor in states.tensors().items():
        torch.testing.assert_close(tensor, plain_states.tensors()[name])
    dropping = reader("rnn", dropout=0.4).train()
    objective = Objective(r_drop=2.0)
    seen = []
    watch_logits(objective, seen)
    found = objective(dropping, contexts()[1], carried=states)
    first, second = seen[0].chunk(2)
    gold = torch.tensor(TEXT)[:, 9:].flatten()
    nll = torch.nn.functional.cross_entropy(seen[0], gold.repeat(2), reduction="sum")
    symmetric = divergence(first, second) + divergence(second, first)
    assert float(symmetric.detach()) > 0.1
    assert_equal(dropping, found.loss, nll / 2 + symmetric)
    assert {len(each) for each in found.carried.tensors().values()} == {3}


# --- self-critical training ---


@pytest.mark.parametrize("kind", DECODERS)
def test_outputs_are_sampled_from_the_same_sources_where_these_are_packed(kind):
    model = translator(kind)
    outputs = Tokens.of([[1, 7, 2], [1, 9, 9, 20, 2], [1, 2]])
    advantages = torch.tensor([0.5, -1.0, 2.0])
    sources = []

    def sampler(model, batch, step):
        assert step == 3
        read = batch.source
        sources.append([read.row(i) for i in range(3)])
        return outputs, advantages

    objective = Objective(0.1, sampler=sampler, reward_likelihood=0.3)
    padded = objective(model, padded_batch(), step=3)
    packed = objective(model, packed_batch(), step=3)
    assert sources == [SOURCES, SOURCES]
    assert packed.predictions == padded.predictions == 7
    torch.testing.assert_close(packed.nll, padded.nll)
    assert_equal(model, packed.loss, padded.loss)


# --- all at once ---

CARRIED = {
    "data": {
        "train": LETTERS,
        "valid": LETTERS,
        "target": {"tokenizer": "bytes"},
        "context_length": 16,
    },
    "model": {"decoder": RNN},
}
PAIRS = {
    "data": {
        "train": [LETTERS, LETTERS],
        "valid": [LETTERS, LETTERS],
        "source": {"tokenizer": "bytes"},
        "target": {"tokenizer": "bytes"},
    },
    "model": {"encoder": RNN, "decoder": RNN},
}
ALL = {"r_drop": 1.0, "scheduled_sampling": {"teacher_forcing": 0.5}}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (CARRIED, ALL | {"carry_state": True}),
        (PAIRS, ALL | {"packed": True, "doubly_stochastic": 0.5}),
        (PAIRS, ALL | {"packed": True, "reward": "cider", "reward_likelihood": 0.5}),
    ],
    ids=["carried", "packed", "reward"],
)
def test_resumed_equals_uninterrupted(recipe, settings, tmp_path):
    """With teachers; those that carry a state, carry it over the interruption."""
    cache = tmp_path / "cache"
    teacher = tmp_path / "teacher"
    train(recipe | {"train": SHORT | {"seed": 8}}, teacher, cache=cache)
    taught = settings | {"distillation": {"teachers": [str(teacher)], "weight": 0.5}}
    given = recipe | {"train": SHORT | taught}
    train(copy.deepcopy(given), tmp_path / "whole", cache=cache)
    interrupted(copy.deepcopy(given), tmp_path / "parts", 6, cache)
    train(copy.deepcopy(given), tmp_path / "parts", cache=cache, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert log(tmp_path / "whole") == log(tmp_path / "parts")


# --- what stays refused ---

REFUSED = {
    ("cuda_graphs", "accumulate_steps"),
    ("cuda_graphs", "carry_state"),
    ("cuda_graphs", "scheduled_sampling"),
    ("cuda_graphs", "reward"),
    ("fsdp", "reward"),
    ("fsdp", "cuda_graphs"),
    ("fsdp", "unfreeze_after"),
    ("fsdp", "optimizer"),
    ("precision", "fsdp"),
    ("precision", "reward"),
    ("mixed_lengths", "packed"),
    ("packed", "carry_state"),
    ("carry_state", "evaluation_overlap"),
    ("scheduled_sampling", "reward"),
    ("distillation", "reward"),
    ("r_drop", "reward"),
    ("doubly_stochastic", "reward"),
}
SETTINGS = {
    "cuda_graphs": True,
    "accumulate_steps": 2,
    "carry_state": True,
    "scheduled_sampling": {"teacher_forcing": 0.5},
    "reward": "cider",
    "fsdp": True,
    "optimizer": "muon",
    "precision": "float8",
    "mixed_lengths": True,
    "packed": True,
    "evaluation_overlap": 3,
    "distillation": {"teachers": ["a"]},
    "r_drop": 1.0,
    "doubly_stochastic": 1.0,
    "ema_decay": 0.9,
    "label_smoothing": 0.2,
    "on_nan": "skip",
}


def test_all_other_pairs_of_options_are_accepted():
    """Every pair of these options, by what the table [train] says of itself."""
    refused = set()
    for one in SETTINGS:
        for other in SETTINGS:
            if one >= other:
                continue
            values = {each: SETTINGS[each] for each in (one, other)}
            problems = conflicts(values)
            for name, wanted in problems:
                refused.add((name, wanted.split(" with ")[-1]))
    assert refused == {pair for pair in REFUSED if "unfreeze_after" not in pair}
    assert ("fsdp", "nothing with unfreeze_after") in conflicts(
        {"fsdp": True, "unfreeze_after": 1, "freeze": ("encoder.*",)}
    )


def conflicts(values: dict) -> list[tuple[str, str]]:
    """What the table [train] refuses of these values."""
    found = read(TrainConfig, {"max_steps": 500} | values, "train")
    if isinstance(found, TrainConfig):
        return []
    return [(problem.key.removeprefix("train."), problem.wanted) for problem in found]


def test_a_recipe_may_combine_what_was_refused_before():
    Recipe.of(PAIRS | {"train": SHORT | ALL | {"packed": True, "doubly_stochastic": 0.5}})
    Recipe.of(CARRIED | {"train": SHORT | ALL | {"carry_state": True}})
