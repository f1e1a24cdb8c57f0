"""Ensembles predict with the mean of their members' probabilities, whatever their architectures."""

from dataclasses import replace
from math import exp

import pytest
import torch

import regard
from regard.core.sequence import Tokens
from regard.data.special_tokens import END, START
from regard.generation.ensemble import ClassifierEnsemble, Ensemble
from regard.inference.load import _ensemble
from regard.model.seq2seq import Seq2Seq
from regard.recipe.recipe import Recipe
from support.models import decoder
from support.search import STRATEGIES, decode, model, sources, token_ids

NAMES = ("transformer", "lstm bahdanau", "conv", "rnn")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_itself_equals_the_model(name):
    made, rows = model(name), sources()
    for options in STRATEGIES:
        alone, together = (
            decode(each, rows, batch_tokens=13, **options)
            for each in (made, Ensemble([made, made]))
        )
        assert token_ids(alone) == token_ids(together)
        for one, other in zip(alone, together, strict=True):
            assert [each.score for each in one] == pytest.approx(
                [each.score for each in other], abs=1e-4
            )


@torch.no_grad()
def test_probabilities_are_the_mean_of_the_members():
    members, rows = [model(name) for name in NAMES], sources()
    together = Ensemble(members)
    source, targets = (
        Tokens.of(rows[:3]),
        torch.tensor([[START, 5, 6, END], [START, 8, 8, 9], [START, 9, 7, 5]]),
    )
    p = torch.stack([member.log_probabilities(source, targets).exp() for member in members]).mean(0)
    torch.testing.assert_close(
        together.log_probabilities(source, targets), p.log(), rtol=0, atol=1e-5
    )
    hits = decode(together, rows, beam_size=3, num_hypotheses=3, batch_tokens=13)
    for row, hypotheses in zip(rows, hits, strict=True):
        for each in hypotheses:
            whole = torch.tensor([[START, *each.tokens, *[END] * each.ended]])
            wanted = together.log_probabilities(Tokens.of([row]), whole)[0].tolist()
            assert each.log_probabilities == pytest.approx(wanted, abs=1e-4)


@torch.no_grad()
def test_language_models_form_ensembles():
    members = [Seq2Seq(None, decoder(name, None)) for name in NAMES[:2]]
    targets = torch.tensor([[START, 5, 6, 7]])
    p = torch.stack([member.log_probabilities(None, targets).exp() for member in members]).mean(0)
    torch.testing.assert_close(
        Ensemble(members).log_probabilities(None, targets), p.log(), rtol=0, atol=1e-5
    )


def test_several_runs_are_loaded_as_an_ensemble(tmp_path):
    """Of different architecture, with one vocabulary."""
    made = []
    for kind in ("rnn", "conv"):
        table = {
            "data": {
                "synthetic": "copy",
                "source": {"tokenizer": "bytes"},
                "target": {"tokenizer": "bytes"},
            },
            "model": {"encoder": {"kind": kind, "dim": 16}, "decoder": {"kind": kind, "dim": 16}},
            "train": {"max_steps": 2, "warmup_steps": 1, "validate_every": 2, "log_samples": 0},
            "decode": {"max_length": 12},
        }
        made.append(
            regard.train(Recipe.of(table), tmp_path / kind, cache=tmp_path / "cache").folder
        )
    one, other, both = regard.load(made[0]), regard.load(made[1]), regard.load(made)
    texts, targets = ["abc", "de"], ["cab", "d"]
    assert len(both.predict(texts, beam_size=3)) == 2
    p = [
        [
            sum(exp(x) for x in pair) / 2
            for pair in zip(a.log_probabilities, b.log_probabilities, strict=True)
        ]
        for a, b in zip(one.score(texts, targets), other.score(texts, targets), strict=True)
    ]
    for wanted, score in zip(p, both.score(texts, targets), strict=True):
        assert [exp(x) for x in score.log_probabilities] == pytest.approx(wanted, abs=1e-5)
    alone = regard.load([made[0], made[0]])
    assert alone.predict(texts) == one.predict(texts)
    new = tmp_path / "new.tsv"
    new.write_text(
        "source\ttarget\n"
        + "".join(f"{each}\t{goal}\n" for each, goal in zip(texts, targets, strict=True))
    )
    loss = regard.evaluate(both, data=new, metrics=["loss"], cache=tmp_path / "cache")["loss"].value
    scores = [x for score in both.score(texts, targets) for x in score.log_probabilities]
    assert loss == pytest.approx(-sum(scores) / len(scores), abs=1e-5)
    with pytest.raises(ValueError, match="path: wanted models of one task; got none"):
        regard.load([])
    table["data"] |= {"target": {"tokenizer": "characters"}, "shared_vocab": False}
    stranger = regard.train(
        Recipe.of(table), tmp_path / "stranger", cache=tmp_path / "cache"
    ).folder
    with pytest.raises(ValueError, match=r"wanted the vocabularies of .*; got others"):
        regard.load([made[0], stranger])


def test_the_loss_of_language_models_as_an_ensemble(tmp_path):
    """In contexts that overlap; where the members carry their state it is refused."""
    text = "the red dog sat on the mat and the cat sat too. " * 4
    table = {
        "data": {"context_length": 16, "target": {"tokenizer": "bytes"}},
        "model": {"decoder": {"kind": "rnn", "dim": 16}},
        "train": {
            "max_steps": 2,
            "warmup_steps": 1,
            "log_samples": 0,
            "evaluation_overlap": 5,
            "batch_tokens": 48,
        },
    }

    def trained(name: str, **train):
        recipe = {**table, "train": table["train"] | train}
        data = {"train": [text], "valid": [text[:60]]}
        return regard.train(recipe, tmp_path / name, data=data, cache=tmp_path / "cache").folder

    made = trained("one")
    wanted = regard.evaluate(made, split="valid", metrics=["loss"], cache=tmp_path / "cache")[
        "loss"
    ].value
    twice = regard.load([made, made])
    found = regard.evaluate(twice, split="valid", metrics=["loss"], cache=tmp_path / "cache")[
        "loss"
    ].value
    assert found == pytest.approx(wanted, abs=1e-5)
    carried = trained("carried", carry_state=True, evaluation_overlap=0)
    with pytest.raises(
        ValueError, match=r"wanted one model for the loss of a text .*; got an ensemble"
    ):
        regard.evaluate(
            regard.load([carried, carried]),
            split="valid",
            metrics=["loss"],
            cache=tmp_path / "cache",
        )


def classifier(kind: str, folder, labels=("up", "down")):
    table = {
        "data": {"source": {"tokenizer": "characters"}, "target": {"kind": "label"}},
        "model": {
            "encoder": {"kind": kind, "dim": 16},
            "pool": {"kind": "attention" if kind == "rnn" else "mean"},
        },
        "train": {
            "max_steps": 20,
            "warmup_steps": 1,
            "validate_every": 20,
            "log_samples": 0,
            "learning_rate": 1e-2,
        },
    }
    rows = [
        (text, label)
        for text, label in zip(("abc", "cab", "bcaa"), (*labels, labels[0]), strict=True)
    ]
    return regard.train(
        table, folder / f"{kind}-{labels[0]}", data={"train": rows}, cache=folder / "cache"
    ).folder


def test_classifiers_are_loaded_as_an_ensemble(tmp_path):
    """Of different architecture, with the same labels."""
    made, texts = [classifier(kind, tmp_path) for kind in ("rnn", "conv")], ["abc", "ca", "b"]
    one, other, both = regard.load(made[0]), regard.load(made[1]), regard.load(made)

    def probabilities(model) -> list[dict[str, float]]:
        return [each[0].probabilities for each in model.outputs(texts)]

    of_one, of_other = probabilities(one), probabilities(other)
    assert any(abs(a["up"] - b["up"]) > 1e-2 for a, b in zip(of_one, of_other, strict=True))
    for a, b, mean in zip(of_one, of_other, probabilities(both), strict=True):
        assert mean == pytest.approx({label: (a[label] + b[label]) / 2 for label in a}, abs=1e-5)
    assert both.predict(texts) == [max(each, key=each.get) for each in probabilities(both)]
    scored = [exp(each.log_probabilities[0]) for each in both.score(texts, ["up"] * 3)]
    assert scored == pytest.approx([each["up"] for each in probabilities(both)], abs=1e-5)
    assert regard.load([made[0], made[0]]).predict(texts) == one.predict(texts)
    with pytest.raises(ValueError, match=r"model: wanted .*; got ClassifierEnsemble"):
        regard.look(both, "abc")
    with pytest.raises(ValueError, match="wanted one model; got an ensemble"):
        both.embed(texts)
    with pytest.raises(ValueError, match=r"wanted the vocabularies of .*; got others"):
        regard.load([made[0], classifier("rnn", tmp_path, labels=("left", "right"))])
    with pytest.raises(
        ValueError,
        match="wanted models of one task; got classify and generate",
    ):
        _ensemble([one, replace(one, model=model("rnn"))])


def test_incompatible_members_are_refused():
    with pytest.raises(ValueError, match="models that give labels; got Seq2Seq"):
        ClassifierEnsemble([model("rnn")])
    with pytest.raises(ValueError, match=r"a source for all or none; got .* 1 of 2"):
        Ensemble([model("rnn"), Seq2Seq(None, decoder("rnn", None))])
    with pytest.raises(ValueError, match="models that give sequences; got none"):
        Ensemble([])
