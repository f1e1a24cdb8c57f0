"""Knowledge distillation: values and gradients against the formula, exact resume, refusals."""

import json
from pathlib import Path

import pytest
import torch

import regard
from regard.api.dry_run import dry_run
from regard.api.train import prepare, train
from regard.core.errors import CheckpointRefused, InvalidRecipe
from regard.data.batching import Batch, PackedCapacity, batches, pack_batch
from regard.data.synthetic.sampling import SIZES
from regard.inference.teachers import load_teachers
from regard.model.seq2seq import Model
from regard.recipe.load import read_tables
from regard.recipe.recipe import Recipe
from regard.tasks import losses
from regard.tasks.distillation import Distillation, Predictions, divergence
from regard.tasks.objective import Objective
from regard.tasks.predict_masked import mask_tokens
from regard.tasks.target_reading import PaddedTargets, targets_of
from support.captioners import CNN, DECODERS
from support.training_runs import (
    LETTERS,
    RNN,
    TRANSFORMER,
    hidden_tokens,
    interrupted,
    log,
    same,
    table,
    weights,
)

DROPPING = TRANSFORMER | {"dropout": 0.3}
MODELS = {
    "text": {"encoder": DROPPING, "decoder": DROPPING, "vocab_size": 30},
    "running text": {"decoder": DROPPING, "vocab_size": 30},
    "recurrent": {
        "encoder": RNN | {"dropout": 0.3},
        "decoder": RNN | {"dropout": 0.3},
        "vocab_size": 30,
    },
    "label": {
        "encoder": DROPPING,
        "pool": {"kind": "mean"},
        "source_vocab_size": 30,
        "num_labels": 4,
    },
    "masked": {"encoder": DROPPING, "head": "mlm", "vocab_size": 30},
}
EVEN = [
    [1, 7, 8, 9, 12, 2],
    [1, 9, 9, 20, 21, 2],
    [1, 25, 8, 8, 7, 2],
]  # from the start to the end token
RAGGED = [[1, 7, 8, 9, 12, 2], [1, 9, 2], [1, 25, 8, 2]]


def batch_of(kind: str, rows: list[list[int]] = EVEN) -> Batch:
    source, targets = regard.Tokens.of([each[1:4] for each in rows]), regard.Tokens.of(rows)
    if kind == "label":
        return Batch(source, torch.tensor([3, 0, 2]), 3, torch.arange(3))
    source = None if kind in ("running text", "masked") else source
    return Batch(source, targets, sum(map(len, rows)) - len(rows), torch.arange(3))


def some_teachers(kind: str, count: int = 2) -> list[Model]:
    """Models whose distributions are far from uniform."""
    torch.manual_seed(5)
    teachers = [regard.build(MODELS[kind]).eval().requires_grad_(False) for _ in range(count)]
    for weight in (weight for teacher in teachers for weight in teacher.parameters()):
        weight.mul_(2.0)
    return teachers


def logits_of(
    kind: str, model: Model, batch: Batch, times: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of all predictions of a batch that is computed so many times at once, and the gold ones."""

    def repeated(tokens):
        return (
            None
            if tokens is None
            else regard.Tokens(tokens.ids.repeat(times, 1), tokens.lengths.repeat(times))
        )

    if kind == "label":
        return model(repeated(batch.source)), batch.targets
    if kind == "masked":
        torch.manual_seed(9)
        inputs, chosen = mask_tokens(batch.targets, 0.5, 30)
        return model(repeated(inputs))[chosen.repeat(times, 1)], batch.targets.ids[chosen]
    targets = repeated(batch.targets)
    logits = model(repeated(batch.source), targets.ids[:, :-1])
    return logits[targets.mask[:, 1:]], batch.targets.ids[:, 1:][batch.targets.mask[:, 1:]]


def plain(usual, logits, teachers, *, weight: float, temperature: float) -> torch.Tensor:
    """The formula: (1 - weight) × loss + weight × T² × KL(mean of the teachers ‖ student)."""
    p = sum((each / temperature).softmax(-1) for each in teachers) / len(teachers)
    log_q = (logits / temperature).log_softmax(-1)
    return (1 - weight) * usual + weight * temperature**2 * (p * (p.log() - log_q)).sum()


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
@pytest.mark.parametrize("kind", MODELS)
def test_value_and_gradient_are_those_of_the_formula(kind, r_drop):
    torch.manual_seed(0)
    model, teachers, batch = regard.build(MODELS[kind]).train(), some_teachers(kind), batch_of(kind)
    settings = {"weight": 0.3, "temperature": 2.0}

    def compute(distillation):
        torch.manual_seed(9)
        objective = Objective(0.1, mask_probability=0.5, r_drop=r_drop, distillation=distillation)
        loss, nll, count, _ = objective(model, batch)
        return loss, nll, count, torch.autograd.grad(loss, list(model.parameters()))

    loss, nll, count, gradient = compute(Distillation(teachers, **settings))
    usual, usual_nll, usual_count, usual_gradient = compute(None)
    assert (count, nll) == (usual_count, usual_nll)
    taught = [logits_of(kind, teacher, batch)[0] for teacher in teachers]
    if kind != "masked":  # which has drawn its tokens when dropout begins
        torch.manual_seed(9)
    logits, gold = logits_of(kind, model, batch, times=2 if r_drop else 1)
    assert len(gold) == count
    passes = logits.chunk(2) if r_drop else [logits]
    terms = [plain(0.0, each, taught, **settings) for each in passes]
    term = sum(terms) / len(terms)
    assert term.item() > 0.1
    torch.testing.assert_close(loss, 0.7 * usual + term)
    wanted = torch.autograd.grad(term, list(model.parameters()))
    for got, own, more in zip(gradient, usual_gradient, wanted, strict=True):
        torch.testing.assert_close(got, 0.7 * own + more, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_packed_equals_padded(r_drop):
    torch.manual_seed(0)
    model = regard.build(
        MODELS["text"] | {part: TRANSFORMER | {"dropout": 0.0} for part in ("encoder", "decoder")}
    )
    teachers, padded = some_teachers("text"), batch_of("text", RAGGED)
    objective = Objective(0.1, r_drop=r_drop, distillation=Distillation(teachers, 0.6, 1.5))
    packed = pack_batch(padded, PackedCapacity((8, 12), (3, 5), 3, False))
    wanted, got = (objective(model, each) for each in (padded, packed))
    torch.testing.assert_close(got.loss, wanted.loss)
    logits, *taught = (logits_of("text", each, padded)[0] for each in (model, *teachers))
    usual = Objective(0.1)(model, padded).loss
    torch.testing.assert_close(
        wanted.loss, plain(usual, logits, taught, weight=0.6, temperature=1.5)
    )
    parameters = list(model.parameters())
    for a, b in zip(
        torch.autograd.grad(got.loss, parameters),
        torch.autograd.grad(wanted.loss, parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_chunks_change_nothing(rows, monkeypatch):
    """And predictions that only fill a packed batch are ignored."""
    torch.manual_seed(0)
    model, teachers, batch = (
        regard.build(MODELS["text"]).eval(),
        some_teachers("text"),
        batch_of("text", RAGGED),
    )
    # All positions, padding included.
    positions, mask = batch.targets.ids[:, :-1], batch.targets.mask[:, 1:]
    targets = PaddedTargets(positions, mask, None, batch.source)
    student, *taught = (targets.predict(each) for each in (model, *teachers))
    gold = batch.targets.ids[:, 1:].masked_fill(~batch.targets.mask[:, 1:], -1).flatten()
    logits = [Predictions(each.logits(slice(None))[gold >= 0]) for each in (student, *taught)]
    wanted = plain(
        0.0, logits[0].states, [each.states for each in logits[1:]], weight=1.0, temperature=3.0
    )
    monkeypatch.setattr(losses, "chunk_size", lambda device: 30 * rows)
    got = divergence(student, taught, gold, 3.0)
    torch.testing.assert_close(got, wanted)
    parameters = list(model.parameters())
    gradients = (torch.autograd.grad(each, parameters, retain_graph=True) for each in (got, wanted))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_student_equal_to_its_teacher_has_no_divergence():
    (teacher,) = some_teachers("label", 1)
    logits = Predictions(teacher(batch_of("label").source))
    assert divergence(
        logits, [logits], torch.zeros(3, dtype=torch.int64), 2.0
    ).item() == pytest.approx(0.0, abs=1e-5)
    impossible = Predictions(
        torch.tensor([[0.0, -1e5]])
    )  # a probability of 0 has a finite divergence
    flat = Predictions(torch.zeros(1, 2))
    assert divergence(
        flat, [impossible], torch.zeros(1, dtype=torch.int64), 1.0
    ).item() == pytest.approx(0.6931, abs=1e-4)


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def teachers(tmp_path_factory, cache) -> list[str]:
    """Two trained models of `table()`, one of another architecture."""
    folder = tmp_path_factory.mktemp("teachers")
    train(table(seed=5), folder / "a", cache=cache)
    train(table(RNN, RNN, seed=6), folder / "b", cache=cache)
    return [str(folder / "a"), str(folder / "b")]


def distilled(
    teachers: list[str], weight: float = 0.5, temperature: float = 2.0, **changes
) -> dict:
    given = {"teachers": teachers, "weight": weight, "temperature": temperature}
    return table(distillation=given, **changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"packed": True, "r_drop": 1.0}, {"accumulate_steps": 3, "ema_decay": 0.9}],
    ids=str,
)
def test_resumed_equals_uninterrupted(changes, tmp_path, cache, teachers):
    recipe = distilled(teachers, **changes)
    before = [weights(Path(teacher)) for teacher in teachers]
    train(recipe, tmp_path / "whole", cache=cache)
    interrupted(recipe, tmp_path / "parts", 5, cache)
    train(recipe, tmp_path / "parts", cache=cache, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert log(tmp_path / "whole") == log(tmp_path / "parts")
    train(table(**changes), tmp_path / "alone", cache=cache)
    assert not same(weights(tmp_path / "whole"), weights(tmp_path / "alone"))
    assert all(
        same(weights(Path(teacher)), was) for teacher, was in zip(teachers, before, strict=True)
    )


def test_without_weight_the_teachers_change_nothing(tmp_path, cache, teachers):
    """Bit for bit; they are not evaluated."""
    assert (
        Distillation(some_teachers("text"), weight=0.0).predictions(
            lambda teacher: pytest.fail("evaluated")
        )
        == []
    )
    train(distilled(teachers, weight=0.0), tmp_path / "none", cache=cache)
    train(table(), tmp_path / "alone", cache=cache)
    assert same(weights(tmp_path / "none"), weights(tmp_path / "alone"))
    assert log(tmp_path / "none") == log(tmp_path / "alone")


def test_accumulated_batches_weigh_by_their_tokens(tmp_path, cache, teachers):
    """As many small batches as one large one, without dropout: the same gradient."""
    still = {"encoder": TRANSFORMER | {"dropout": 0.0}, "decoder": TRANSFORMER | {"dropout": 0.0}}
    steps = {
        "max_steps": 1,
        "warmup_steps": 0,
        "validate_every": 1,
        "label_smoothing": 0.0,
        "log_every": 1,
    }
    one = distilled(teachers, **still, **steps, batch_tokens=10_000)
    several = distilled(teachers, **still, **steps, batch_tokens=200, accumulate_steps=1000)
    for name, recipe in {"one": one, "several": several}.items():
        train(recipe, tmp_path / name, cache=cache)
    (large, *_), (small, *_) = (log(tmp_path / name) for name in ("one", "several"))
    assert small["loss"] == pytest.approx(large["loss"], rel=1e-5)
    assert small["norm"] == pytest.approx(large["norm"], rel=1e-4)


def test_a_student_of_teachers_alone_comes_near_to_them(tmp_path, cache, teachers):
    data = prepare(Recipe.of(table()), cache)
    batch, *_ = batches(data.train, budget=10_000, seed=1, epoch=0)

    def distance(run: Path) -> float:
        student, teacher = (regard.load(each, device="cpu").model for each in (run, teachers[0]))
        targets, gold = targets_of(batch)
        with torch.no_grad():
            found = divergence(targets.predict(student), [targets.predict(teacher)], gold, 1.0)
        return found.item() / len(gold)

    fast = {
        "max_steps": 60,
        "learning_rate": 1e-2,
        "validate_every": 60,
        "label_smoothing": 0.0,
        "seed": 9,
    }
    train(distilled(teachers[:1], 1.0, 1.0, **fast), tmp_path / "student", cache=cache)
    train(table(**fast | {"max_steps": 4}), tmp_path / "early", cache=cache)
    assert distance(tmp_path / "student") < 0.5 * distance(tmp_path / "early")


def test_a_resumed_run_keeps_its_teachers(tmp_path, cache, teachers):
    other = tmp_path / "teacher"
    train(table(seed=7), other, cache=cache)
    recipe = distilled([str(other)])
    interrupted(recipe, tmp_path / "run", 5, cache)
    stored = json.loads(next((tmp_path / "run").glob("step-*/training.json")).read_text())
    assert len(stored["teachers"]) == 1
    for path in sorted(other.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    train(table(seed=8), other, cache=cache)
    with pytest.raises(
        CheckpointRefused,
        match=rf"wanted the teachers that the run began with.*{stored['teachers'][0]}",
    ):
        train(recipe, tmp_path / "run", cache=cache, resume=True)
    with pytest.raises(
        CheckpointRefused, match=r"train\.distillation\.weight = 0\.9, which was 0\.5"
    ):
        train(distilled([str(other)], weight=0.9), tmp_path / "run", cache=cache, resume=True)


def test_teachers_are_fixed(cache, teachers):
    recipe = Recipe.of(distilled(teachers))
    found = load_teachers(recipe, prepare(recipe, cache), "cpu")
    assert (found.weight, found.temperature, len(found.teachers)) == (0.5, 2.0, 2)
    for teacher in found.teachers:
        assert not any(module.training for module in teacher.modules())
        assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert len(set(found.fingerprints)) == 2
    assert load_teachers(Recipe.of(table()), prepare(recipe, cache), "cpu") is None
    assert "train.distillation.weight = 0.5" in dry_run(recipe, cache)


def test_teachers_of_other_vocabularies_are_refused_with_both(tmp_path, cache, teachers):
    recipe = distilled(teachers)
    field = {"tokenizer": "characters", "vocab_size": 300}
    recipe["data"] = {
        "train": [LETTERS, LETTERS],
        "valid": [LETTERS, LETTERS],
        "source": field,
        "target": field,
    }
    with pytest.raises(InvalidRecipe) as caught:
        train(recipe, tmp_path / "run", cache=cache)
    first, *rest = caught.value.problems
    assert len(rest) == 3  # source and target of both teachers
    assert first.key == "train.distillation.teachers"
    own = prepare(Recipe.of(recipe), cache).sources[0]
    theirs = regard.load(teachers[0], device="cpu").sources[0]
    assert first.wanted == f"the vocabulary of data.source, {own.size} entries ({own.hash[:8]})"
    assert first.got.endswith(f" with {theirs.size} entries ({theirs.hash[:8]})")
    assert str(teachers[0]) in first.got


def test_teachers_of_another_kind_are_refused(tmp_path, cache, teachers):
    masked = hidden_tokens(
        ["abc", "bcd"],
        {"tokenizer": "bytes"},
        tmp_path / "text",
        distillation={"teachers": teachers},
    )
    with pytest.raises(
        InvalidRecipe,
        match=r"wanted models that give masked tokens; got .*, which gives sequences",
    ):
        train(masked, tmp_path / "run", cache=cache)
    text = {"train": LETTERS, "target": {"tokenizer": "bytes"}, "context_length": 16}
    recipe = {
        "data": text,
        "model": {"decoder": TRANSFORMER},
        "train": {"distillation": {"teachers": teachers}},
    }
    with pytest.raises(
        InvalidRecipe, match=r"wanted models of data.target of running text; got .*data.source and"
    ):
        train(recipe, tmp_path / "run", cache=cache)


def test_a_teacher_that_takes_no_packed_sequences_is_refused(tmp_path, cache, teachers):
    train(table(RNN, TRANSFORMER, max_steps=1, warmup_steps=0), tmp_path / "teacher", cache=cache)
    with pytest.raises(
        InvalidRecipe, match=r"wanted models that take packed sequences, with train\.packed"
    ):
        train(distilled([str(tmp_path / "teacher")], packed=True), tmp_path / "run", cache=cache)


def test_teachers_of_images_must_read_them_alike(tmp_path, monkeypatch):
    for split in ("train", "valid", "test"):
        monkeypatch.setitem(SIZES, split, 4)

    def captioner(mean: float, decoder: str = "transformer", **changes) -> dict:
        fields = {
            "source": {"kind": "image", "image_mean": [mean] * 3},
            "target": {"tokenizer": "words", "vocab_size": 50},
        }
        steps = {
            "max_steps": 2,
            "warmup_steps": 1,
            "validate_every": 2,
            "batch_tokens": 128,
            "log_samples": 0,
        }
        model = {"encoder": CNN, "decoder": DECODERS[decoder]}
        return {"data": {"synthetic": "shapes", **fields}, "model": model, "train": steps | changes}

    taught = {"distillation": {"teachers": [str(tmp_path / "teacher")]}}
    train(captioner(0.4, "rnn"), tmp_path / "teacher", cache=tmp_path)
    train(captioner(0.4, **taught), tmp_path / "student", cache=tmp_path)
    with pytest.raises(
        InvalidRecipe,
        match=r"wanted data\.source\.image_mean = \(0\.5, .*; got .*teacher.* with \(0\.4, ",
    ):
        train(captioner(0.5, **taught), tmp_path / "other", cache=tmp_path)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, r"train\.distillation\.teachers: wanted at least one trained model; got none"),
        (
            {"teachers": ["a"], "temperature": 0.0},
            r"train\.distillation\.temperature: wanted a number above 0",
        ),
        ({"teachers": ["a"], "weight": 1.5}, r"train\.distillation\.weight: wanted .*at most 1"),
        ({"teachers": ["a"], "weights": 0.5}, r"Did you mean 'weight'"),
    ],
)
def test_wrong_settings_are_refused(given, problem):
    with pytest.raises(InvalidRecipe, match=problem):
        Recipe.of(table(distillation=given))


def test_teachers_are_found_beside_the_recipe(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "recipe.toml").write_text('[train.distillation]\nteachers = ["runs/a"]\n')
    tables = read_tables(tmp_path / "recipe.toml")
    assert tables["train"]["distillation"]["teachers"] == [str(tmp_path / "runs" / "a")]
    assert tables["paths"]["train.distillation.teachers"] == ["runs/a"]
