"""Thresholds of single labels: in recipes, options, looks and servers, and chosen on data."""

import json
import shutil
import tomllib

import numpy as np
import pytest

import regard
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe
from regard.recipe.recipe import Recipe
from regard.recipe.toml_text import toml_lines
from support.command_line import command
from support.regressions import label_splits, labelled, recipe
from support.servers import served

TEXTS = ["the film", "vote goal plot", "a new", "law"]
WEAK = {"max_steps": 12, "validate_every": 6}  # training that leaves errors


def with_thresholds(thresholds, target="labels"):
    return recipe(target, train=WEAK) | {"decode": {"thresholds": thresholds}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thresholds") / "run"
    regard.train(with_thresholds({"law and order": 0.05}), folder, data=label_splits())
    return folder


def labels_of(model, texts=TEXTS, **options):
    return [output.labels for (output,) in model.outputs(texts, **options)]


def expected(model, thresholds, other=0.5, texts=TEXTS):
    """The labels whose probability reaches their threshold."""
    chosen = []
    for (output,) in model.outputs(texts):
        names = [
            name
            for name in model.target.names
            if output.probabilities[name] >= thresholds.get(name, other)
        ]
        chosen.append(tuple(names))
    return chosen


def test_a_threshold_changes_the_decisions_about_its_label_alone(run):
    model = regard.load(run)
    own = labels_of(model)
    assert own == expected(model, {"law and order": 0.05})
    assert all("law and order" in labels for labels in own)
    without = labels_of(model, threshold=0.5)  # replaces those of the recipe
    assert without == expected(model, {})
    assert without != own
    others = [[name for name in labels if name != "law and order"] for labels in own]
    assert others == [[name for name in labels if name != "law and order"] for labels in without]


def test_thresholds_that_are_given_join_those_of_the_recipe(run):
    model = regard.load(run)
    both = {"law and order": 0.05, "sport": 0.01}
    assert labels_of(model, thresholds={"sport": 0.01}) == expected(model, both)
    assert model.with_decode(thresholds={"sport": 0.01}).recipe.decode.thresholds == both
    alone = labels_of(model, threshold=0.9, thresholds={"sport": 0.01})
    assert alone == expected(model, {"sport": 0.01}, other=0.9)
    assert len({str(labels) for labels in (both, alone)}) == 2


def predicted(run, *options):
    done = command("predict", run, "--json", *options, text="\n".join(TEXTS) + "\n")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [tuple(line["outputs"][0]["labels"]) for line in lines]


def answered(server, **options):
    status, _, answer = server.ask("/predict", {"input": TEXTS, **options})
    assert status == 200, answer
    return [tuple(result["outputs"][0]["labels"]) for result in answer["results"]]


def test_commands_looks_and_servers_predict_the_same_labels(run):
    model = regard.load(run)
    own = labels_of(model)
    changed = labels_of(model, thresholds={"sport": 0.01})
    for_all = labels_of(model, threshold=0.9)
    assert len({str(labels) for labels in (own, changed, for_all)}) == 3
    assert predicted(run) == own
    assert predicted(run, "--set", "thresholds.sport=0.01") == changed
    assert predicted(run, "--set", "threshold=0.9") == for_all
    assert [regard.look(model, text).output.tokens for text in TEXTS] == own
    other = model.with_decode(thresholds={"sport": 0.01})
    assert [regard.look(other, text).output.tokens for text in TEXTS] == changed
    with served({"topics": model}) as server:
        assert answered(server) == own
        assert answered(server, thresholds={"sport": 0.01}) == changed
        assert answered(server, threshold=0.9) == for_all
        status, _, answer = server.ask("/predict", {"input": "law", "thresholds": {"sprot": 0.5}})
        assert status == 400
        assert "Did you mean 'sport'?" in str(answer)


def test_labels_that_the_model_does_not_have_are_refused(run, tmp_path):
    model = regard.load(run)
    message = r"thresholds\.sprot: wanted a label of the model.*Did you mean 'sport'"
    with pytest.raises(InvalidRecipe, match=message):
        model.predict(TEXTS, thresholds={"sprot": 0.5})
    with pytest.raises(InvalidRecipe, match=message):
        regard.train(with_thresholds({"sprot": 0.5}), tmp_path / "run", data=label_splits(20))
    assert not list(tmp_path.glob("run/step-*"))
    done = command("predict", run, "--set", "thresholds.sprot=0.5", text="law\n")
    assert done.returncode == 2
    assert "Did you mean 'sport'?" in done.stderr


WRONG = {
    "a number": 0.5,
    "a text": {"sport": "high"},
    "a threshold of 1": {"sport": 1.0},
    "a table in the table": {"sport": {"a": 0.5}},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_table_of_thresholds_is_refused(wrong):
    table = with_thresholds(WRONG[wrong])
    table["data"] |= {"train": ["train.x", "train.y"], "valid": ["valid.x", "valid.y"]}
    expected_type = (
        "decode.thresholds: wanted a table, each value a number of at least 0 and below 1"
    )
    with pytest.raises(InvalidRecipe, match=expected_type):
        Recipe.of(table)


def test_other_tasks_have_none(tmp_path):
    table = with_thresholds({"a": 0.5}, target="label")
    table["data"] |= {"train": ["train.x", "train.y"], "valid": ["valid.x", "valid.y"]}
    with pytest.raises(InvalidRecipe, match=r"decode\.thresholds: wanted nothing"):
        Recipe.of(table)
    rows = [("a", "x"), ("b", "y")] * 4
    data = {"train": rows, "valid": rows}
    model = regard.train(recipe("label", train=WEAK), tmp_path / "run", data=data)
    with pytest.raises(InvalidArgument, match="thresholds: wanted nothing for a model that gives"):
        model.predict(["a"], thresholds={"x": 0.5})


def test_a_recipe_is_written_with_names_that_toml_quotes():
    table = {
        "decode": {"threshold": 0.25, "thresholds": {"law and order": 0.5, "a.b": 0.1}},
        "a table": {"of a": {"table": 1}},
    }
    assert tomllib.loads("\n".join(toml_lines(table))) == table


@pytest.fixture
def own_run(run, tmp_path):
    """A copy, with data of its own in a table."""
    shutil.copytree(run, tmp_path / "run")
    lines = [json.dumps({"text": text, "topics": labels}) for text, labels in labelled(40, 7)]
    (tmp_path / "new.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "run"


def choose(own_run, **options):
    table = own_run.with_name("new.jsonl")
    return regard.thresholds(own_run, data=table, columns=["text", "topics"], **options)


def f1_of_each(predicted, gold):
    return 2 * (predicted & gold).sum(0) / np.maximum(1, predicted.sum(0) + gold.sum(0))


def test_chosen_thresholds_have_the_highest_f1_of_all_and_are_used(own_run):
    before = regard.load(own_run)
    names = before.target.names
    rows = labelled(40, 7)
    texts = [text for text, _ in rows]
    gold = np.array([[name in labels for name in names] for _, labels in rows])
    found = before.outputs(texts)
    scores = np.array([[each.probabilities[name] for name in names] for (each,) in found])
    first = np.array([[name in each.labels for name in names] for (each,) in found])
    grid = [f1_of_each(scores >= threshold, gold) for threshold in np.linspace(0, 1, 5001)]
    folder, chosen = choose(own_run)
    assert [each.label for each in chosen] == list(names)
    assert [each.references for each in chosen] == gold.sum(0).tolist()
    assert [each.before for each in chosen] == pytest.approx(f1_of_each(first, gold).tolist())
    highest = np.max(grid, axis=0)
    assert [each.f1 for each in chosen] == pytest.approx(highest.tolist())
    assert (highest > f1_of_each(first, gold)).any()
    after = regard.load(own_run)
    assert after.folder == folder
    outputs = after.outputs(texts)
    last = np.array([[name in each.labels for name in names] for (each,) in outputs])
    assert f1_of_each(last, gold).tolist() == pytest.approx(highest.tolist())
    decode = after.recipe.decode
    assert [decode.threshold_of(each.label) for each in chosen] == [
        each.threshold for each in chosen
    ]
    _, same = choose(own_run)
    assert [each.threshold for each in same] == [each.threshold for each in chosen]


def test_labels_that_cannot_gain_keep_their_thresholds(own_run):
    rows = [("law", ["law and order"]), ("vote law", ["law and order"])]
    lines = [json.dumps({"text": text, "topics": labels}) for text, labels in rows]
    own_run.with_name("new.jsonl").write_text("\n".join(lines) + "\n")
    files = {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()}
    _, chosen = choose(own_run)
    assert {each.label: (each.threshold, each.f1) for each in chosen} == {
        "cinema": (0.5, 0.0),  # without references
        "law and order": (0.05, 1.0),
        "sport": (0.5, 0.0),
    }
    assert {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()} == files


def test_the_checkpoint_stays_whole_and_loses_a_signature_of_other_content(own_run, caplog):
    key = own_run.with_name("key")
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    signed = list(regard.sign(own_run, key))
    best = regard.load(own_run)
    folder, _ = choose(own_run)
    assert folder in signed
    assert f"{folder}: its signature is removed" in caplog.text
    assert dict(regard.verify(own_run)).keys() >= {folder}
    after = regard.load(own_run)
    assert after.recipe.decode != best.recipe.decode
    for name, weight in best.model.state_dict().items():
        assert after.model.state_dict()[name].equal(weight), name


def test_the_command_prints_what_python_returns(own_run, tmp_path):
    table = own_run.with_name("new.jsonl")
    shutil.copytree(own_run, tmp_path / "other")
    _, chosen = choose(own_run)
    columns = ["--data", table, "--column", "text", "--column", "topics"]
    done = command("thresholds", tmp_path / "other", *columns, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [vars(each) for each in chosen]
    printed = command("thresholds", own_run, *columns).stdout.splitlines()
    assert printed[1].split() == ["label", "threshold", "f1", "before", "f1", "references"]
    for line, each in zip(printed[2:], chosen, strict=True):
        shares = [f"{each.threshold:.4f}", f"{each.f1:.2%}", f"{each.f1:.2%}"]
        assert line.startswith(each.label)
        assert line.removeprefix(each.label).split() == [*shares, str(each.references)]


def test_thresholds_are_chosen_for_several_labels_alone(tmp_path):
    rows = [("a", "x"), ("b", "y")] * 4
    data = {"train": rows, "valid": rows}
    regard.train(recipe("label", train=WEAK), tmp_path / "run", data=data)
    table = tmp_path / "new.tsv"
    table.write_text("text\tlabel\na\tx\n")
    with pytest.raises(InvalidArgument, match="wanted a model that predicts several labels"):
        regard.thresholds(tmp_path / "run", data=table, columns=["text", "label"])


def test_a_reference_that_is_no_label_of_the_model_is_refused(own_run):
    own_run.with_name("new.jsonl").write_text('{"text": "law", "topics": ["weather"]}\n')
    with pytest.raises(InvalidData, match="'weather'"):
        choose(own_run)


def test_thresholds_of_labels_that_are_not_changed_stay_in_the_checkpoint(own_run):
    rows = [("law", ["law and order"]), ("vote law", ["law and order", "sport"])]
    lines = [json.dumps({"text": text, "topics": labels}) for text, labels in rows]
    own_run.with_name("new.jsonl").write_text("\n".join(lines) + "\n")
    _, chosen = choose(own_run)
    thresholds = {each.label: each.threshold for each in chosen}
    assert thresholds["sport"] != 0.5
    stored = regard.load(own_run).recipe.decode.thresholds
    assert stored == {"law and order": 0.05, "sport": thresholds["sport"]}
