"""Evaluation of taggers: accuracy of tokens, metrics of spans, tables, and what training may monitor."""

import json

import pytest

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.evaluation.report_text import report_text
from regard.recipe.recipe import Recipe
from regard.training.telemetry.log_file import LOG_FILE
from support.command_line import command
from support.tagging import noun_phrases, recipe, splits

SPANS = ("span_precision", "span_recall", "span_f1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that has learned little, and monitors F1."""
    folder = tmp_path_factory.mktemp("tagger") / "run"
    table = recipe("rnn", "softmax", {"max_steps": 4, "validate_every": 2, "monitor": "span_f1"})
    regard.train(table, folder, data=splits())
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model whose tags, which are numbers, mark no spans."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    data = {
        split: [(words, [len(tag) for tag in tags]) for words, tags in rows]
        for split, rows in splits(60).items()
    }
    regard.train(recipe("rnn", "softmax", {"max_steps": 4}), folder, data=data)
    return folder


def counted(model):
    """Tokens and spans of the test split that are right, by their definition."""
    gold = [tags for _, tags in noun_phrases(24, 2)]
    outputs = regard.load(model).outputs([words for words, _ in noun_phrases(24, 2)])
    predicted = [output.tags for (output,) in outputs]
    pairs = [
        pair
        for ours, right in zip(predicted, gold, strict=True)
        for pair in zip(ours, right, strict=True)
    ]
    accuracy = sum(a == b for a, b in pairs) / len(pairs)
    mine = {(row, span) for row, tags in enumerate(predicted) for span in spans_of(tags)}
    wanted = {(row, span) for row, tags in enumerate(gold) for span in spans_of(tags)}
    correct = len(mine & wanted)
    precision = correct / max(len(mine), 1)
    recall = correct / len(wanted)
    f1 = 2 * correct / (len(mine) + len(wanted))
    return {"accuracy": accuracy} | dict(zip(SPANS, (precision, recall, f1), strict=True)), pairs


def spans_of(tags):
    """First and last word of each phrase; there is only one type."""
    spans = []
    for place, tag in enumerate(tags):
        if tag == "B-NP":
            spans.append((place, place))
        elif tag == "I-NP":
            spans[-1] = (spans[-1][0], place)
    return spans


def test_metrics_are_those_of_tokens_and_spans(run):
    report = regard.evaluate(run)
    wanted, pairs = counted(run)
    assert 0.1 < wanted["accuracy"] < 0.99
    (system,) = report.systems
    assert list(system.metrics) == ["loss", *wanted]
    for name, value in wanted.items():
        assert report[name].value == pytest.approx(value)
        assert report[name].low <= value <= report[name].high
    rows = {row["label"]: row for row in system.classes}
    for tag in ("O", "B-NP", "I-NP"):
        assert rows[tag]["references"] == sum(right == tag for _, right in pairs)
        assert rows[tag]["outputs"] == sum(ours == tag for ours, _ in pairs)
    (spans,) = system.spans
    assert spans["label"] == "NP"
    assert spans["f1"] == pytest.approx(wanted["span_f1"])
    wrong = [(right, ours) for ours, right in pairs if ours != right]
    assert sum(row["count"] for row in system.confusions) == len(wrong)
    for row in system.confusions:
        assert row["count"] == wrong.count((row["reference"], row["output"]))
    shown = report_text(report)
    for heading in ("class by class", "spans by type", "most frequent confusions"):
        assert heading in shown


def test_a_monitored_metric_is_that_of_the_validation(run):
    events = [json.loads(line) for line in (run / LOG_FILE).read_text().splitlines()]
    best = max(event["span_f1"] for event in events if event.get("event") == "validation")
    report = regard.evaluate(run, split="valid")
    assert report["span_f1"].value == pytest.approx(best)


def test_the_command_prints_what_the_function_returns(run):
    done = command("evaluate", run, "--metric", "span_f1_strict", "--json")
    assert done.returncode == 0, done.stderr
    (system,) = json.loads(done.stdout)["systems"]
    report = regard.evaluate(run, metrics=["span_f1_strict"])
    assert system["metrics"]["span_f1_strict"]["value"] == report["span_f1_strict"].value
    assert system["metrics"]["span_f1_strict"]["signature"] == "mode:strict|scheme:IOB2"


def test_files_of_tags_are_evaluated_without_a_model(run, tmp_path):
    outputs = tmp_path / "outputs.txt"
    regard.evaluate(run, outputs=outputs)
    references = tmp_path / "references.txt"
    references.write_text("".join(f"{' '.join(tags)}\n" for _, tags in noun_phrases(24, 2)))
    metrics = ["token_accuracy", "span_f1"]
    report = regard.evaluate(outputs, references=[references], metrics=metrics)
    of_model = regard.evaluate(run)
    assert report["span_f1"].value == of_model["span_f1"].value
    assert report["token_accuracy"].value == of_model["accuracy"].value
    # Without a model, nobody knows that these are tags: whole lines are compared.
    lines = regard.evaluate(outputs, references=[references], metrics=["accuracy"])
    assert lines["accuracy"].value < of_model["accuracy"].value


def test_lines_of_tags_are_compared_with_a_file_of_tagged_words(tmp_path):
    outputs = tmp_path / "outputs.txt"
    outputs.write_text("D N\nN\n", "utf-8")
    references = tmp_path / "references.conll"
    references.write_text("the D\ncat N\n\nsits V\n\n", "utf-8")
    report = regard.evaluate(outputs, references=[references])
    assert report["accuracy"].value == pytest.approx(2 / 3)


def test_tags_without_a_scheme_have_no_spans(plain):
    report = regard.evaluate(plain)
    (system,) = report.systems
    assert list(system.metrics) == ["loss", "accuracy"]
    assert {row["label"] for row in system.classes} == {"1", "4"}
    with pytest.raises(InvalidArgument, match="wanted tags of spans"):
        regard.evaluate(plain, metrics=["span_f1"])


def test_spans_are_monitored_only_where_tags_mark_some(tmp_path):
    data = {
        split: [(words, [f"tag{len(tag)}" for tag in tags]) for words, tags in rows]
        for split, rows in splits(20).items()
    }
    with pytest.raises(InvalidRecipe, match=r"train\.monitor: .* with the tag 'tag"):
        regard.train(recipe("rnn", "softmax", {"monitor": "span_f1"}), tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()


def test_metrics_of_other_tasks_are_refused(run):
    with pytest.raises(InvalidArgument, match="as the model gives tags; got 'bleu'"):
        regard.evaluate(run, metrics=["bleu"])
    table = recipe("rnn", "softmax", {"monitor": "bleu"})
    table["data"] |= {"train": "a.tsv", "valid": "a.tsv"}
    table["data"]["source"]["column"] = "words"
    table["data"]["target"]["column"] = "tags"
    with pytest.raises(InvalidRecipe, match=r"span_f1 .*for a model that gives tags"):
        Recipe.of(table)
