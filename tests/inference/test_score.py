"""Scores of given targets equal those of the search and of the whole model."""

import json
from dataclasses import replace
from math import exp

import pytest
import torch

import regard
from regard.core.errors import InvalidData
from regard.core.sequence import Tokens
from regard.data.special_tokens import END, START
from regard.inference.score import CHUNK, pairs, score_lines
from support.command_line import command
from support.forged import GOLDEN
from support.predictors import classifier, language_model, translator

TEXTS = ["the cat sat", "a dog", "", "the red car and the dog; a dogma", "mat"]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.0},
        {"sample": True, "num_hypotheses": 20},
    ],
    ids=str,
)
def test_scores_equal_those_of_the_search(options):
    model, checked = translator("words"), 0  # with one tokenization of each text
    with torch.no_grad():
        model.model.decoder.project.bias[END] = 6.0
    for text, outputs in zip(TEXTS, model.outputs(TEXTS, scores=True, **options), strict=True):
        for output in outputs:
            (found,) = model.score([text], [output.text])
            if len(found.tokens) == len(
                output.log_probabilities
            ):  # it ended before the maximum length
                assert found.log_probabilities == pytest.approx(output.log_probabilities, abs=1e-4)
                assert found.log_probability == pytest.approx(output.log_probability, abs=1e-4)
                checked += 1
    assert checked


@torch.no_grad()
def test_scores_equal_those_of_the_model():
    model, targets = translator(), TEXTS[::-1]
    for budget in (None, 8):
        found = model.score(TEXTS, targets, batch_tokens=budget)
        for text, target, score in zip(TEXTS, targets, found, strict=True):
            ids = [START, *model.target.encode(target), END]
            source = Tokens.of([[*model.source.encode(text), END]])
            wanted = model.model.log_probabilities(source, torch.tensor([ids]))[0].tolist()
            assert score.log_probabilities == pytest.approx(wanted, abs=1e-4)
            assert score.tokens == tuple(model.target.pieces(ids[1:]))
            assert score.perplexity == pytest.approx(exp(-sum(wanted) / len(wanted)), rel=1e-4)


@torch.no_grad()
def test_language_models_score_texts():
    for running in (False, True):
        model = language_model(**({"context_length": 8} if running else {}))
        for text, score in zip(TEXTS, model.score(TEXTS), strict=True):
            ids = model.target.encode(text)
            ids = [END, *ids] if running else [START, *ids, END]
            wanted = (
                model.model.log_probabilities(None, torch.tensor([ids]))[0].tolist()
                if len(ids) > 1
                else []
            )
            assert score.log_probabilities == pytest.approx(wanted, abs=1e-4)


def test_classifiers_score_labels():
    model = classifier()
    likely = [
        {o.text: o.score for o in outputs}
        for outputs in model.outputs(TEXTS, num_hypotheses=3, beam_size=3, scores=True)
    ]
    labels = ["good", "bad", "fine", "bad", "good"]
    for label, known, score in zip(
        labels, likely, model.score(TEXTS, labels, batch_tokens=8), strict=True
    ):
        assert score.log_probability == pytest.approx(known[label], abs=1e-5)
        assert score.tokens == (label,)
    with pytest.raises(ValueError, match="label: wanted one of the 3"):
        model.score(["the"], ["best"])


def test_lines_are_scored_in_chunks():
    model = translator("words")
    taken = 0

    def given():
        nonlocal taken
        for n in range(CHUNK + 5):
            taken += 1
            yield TEXTS[n % 5], TEXTS[n % 3]

    scores = score_lines(model, given())
    first = next(scores)
    assert taken == CHUNK
    assert len([first, *scores]) == CHUNK + 5


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (translator, (["a"],), "targets: wanted one for each text"),
        (translator, (["a"], ["a", "b"]), "targets: wanted 1, one for each text"),
        (language_model, (["a"], ["b"]), "targets: wanted none for a model without a source"),
        (translator, ("a", "b"), "texts: wanted a list"),
    ],
)
def test_bad_input_is_refused(make, given, message):
    with pytest.raises(ValueError, match=message):
        make().score(*given)


def test_the_training_mode_is_restored():
    model = translator()
    model.model.train()
    assert replace(model).score(["a"], ["b"]) == model.score(["a"], ["b"])
    assert model.model.training


def test_an_unknown_label_is_named_with_its_file_and_line(tmp_path):
    """Of two files, that of the labels; of a table, the table."""
    texts, labels, table = (tmp_path / name for name in ("texts", "labels", "pairs.tsv"))
    texts.write_text("the cat\na dog\n")
    labels.write_text("good\ngod\n")
    names = classifier().recipe.data.table_columns()
    table.write_text("\t".join(names) + "\nthe cat\tgood\na dog\tgod\n")
    for files, where in (([texts, labels], "labels, line 2"), ([table], "pairs.tsv, line 3")):
        with pytest.raises(
            InvalidData,
            match=rf"{where}: wanted one of the .* labels of the training data; got 'god'. Did you mean 'good'\?",
        ):
            [*pairs(classifier(), files)]


def test_pairs_of_standard_input_are_separated_by_tabs():
    """Of a model with a source; one without reads whole lines."""
    found = command(
        "score", GOLDEN / "rnn", "--json", text="1 May 2003\t2003-05-01\n2 May 2003\t2003-05-02\n"
    )
    assert found.returncode == 0, found.stderr
    wanted = regard.load(GOLDEN / "rnn").score(
        ["1 May 2003", "2 May 2003"], ["2003-05-01", "2003-05-02"]
    )
    scores = [json.loads(line) for line in found.stdout.splitlines()]
    assert [each["log_probability"] for each in scores] == pytest.approx(
        [each.log_probability for each in wanted]
    )
