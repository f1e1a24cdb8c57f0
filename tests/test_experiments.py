"""The experiments, each in a small version that must show the direction of its effect; and docs/claims.md."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import distance
import heads
import memory
import regard
import report
import scaling
import sequential
import translation

ROOT = Path(__file__).parent.parent
NAMES = [
    "bottleneck",
    "scaling",
    "positions",
    "sequential",
    "memory",
    "distance",
    "heads",
    "translation",
]


@pytest.fixture(scope="module")
def trained_models() -> dict:
    """What came of the experiments that train."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / "train_experiment.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_one_vector_loses_more_of_long_words_than_attention_does(trained_models):
    (without, attending), right = (
        trained_models["vectors"]["falls"],
        trained_models["vectors"]["right"],
    )
    assert without > attending + 0.1
    assert right[1] > right[0] + 0.2


def test_scaling_keeps_entropy_and_gradient():
    found = scaling.measure(dimensions=(4, 64, 512), keys=32, queries=200)
    plain, scaled = found.of["dot"], found.of["scaled_dot"]
    for what in ("entropy", "gradient", "in_layer"):
        assert scaling.falls(plain, what), what
        assert not scaling.falls(scaled, what), what
    assert plain[-1].spread == pytest.approx(512**0.5, rel=0.1)
    assert scaled[-1].spread == pytest.approx(1, rel=0.1)


@pytest.mark.slow
def test_without_positions_a_shuffled_source_gets_the_same_answer(trained_models):
    found = trained_models["orders"]
    assert found["unmoved"]["none"] == 1  # exactly, however little it has learned
    assert (
        found["unmoved"]["sinusoidal"] < 0.6
    )  # words of two letters are often shuffled into themselves
    assert found["turned"]["sinusoidal"] > found["turned"]["none"] + 0.2
    assert found["sorted"]["none"] > found["turned"]["none"] + 0.2
    assert found["lengths"] == [[2, 3], [4], [5, 6]]


def test_only_an_rnn_reads_sequentially():
    found = sequential.measure(lengths=(4, 8, 16), dim=16, rounds=1)
    for name in ("convolution", "Transformer"):
        assert len(set(found.reading[name])) == 1, name
    four, eight, sixteen = found.reading["RNN"]
    assert sixteen - eight == 2 * (eight - four) > 0  # so many operations for each token
    for name, counts in found.generating.items():
        assert counts[2] - counts[1] == 2 * (counts[1] - counts[0]) > 0, name


def test_a_chain_counts_dependent_operations():
    x = regard.Tokens.of([[1, 2, 3]]).ids.float()
    assert sequential.chain(lambda: x.T.reshape(3)) == 0  # views
    assert sequential.chain(lambda: (x + 1) * (x + 2)) == 2  # two sums side by side, then a product
    assert sequential.chain(lambda: (x + 1).mul_(2).T + 1) == 3  # in place, and seen through a view


def test_only_the_plain_form_holds_every_weight():
    found = memory.measure(
        lengths=(256, 512), heads=1, dim=32, methods=("all weights", "+ 64 rows")
    )
    assert found.growth("all weights") > 1.7
    assert found.growth("+ 64 rows") < 1.3


def test_gradients_vanish_between_distant_tokens_but_not_through_attention():
    found = distance.measure(distances=(1, 40), dim=16, seeds=2)
    share = {name: row[-1] for name, row in found.share.items()}
    assert share["convolution"] == 0  # it reaches 30 tokens
    for name in ("rnn", "gru", "lstm"):
        assert 0 < share[name] < share["attention"] / 100, name


def test_four_heads_predict_more_than_one_of_as_many_parameters():
    found = heads.measure(heads=(1, 4), letters=5, dim=32, length=10, steps=400, control=())
    assert found.parameters[0] == found.parameters[1]
    assert found.accuracy[1] > found.accuracy[0] + 0.1


@pytest.mark.slow
def test_attention_translates_better_than_one_vector(trained_models):
    found = trained_models["translators"]
    assert found["updates"] == dict.fromkeys(translation.family(16), 80)
    assert found["gain"] > 5
    assert found["gain on long ones"] > 5


def test_training_stops_when_its_minutes_are_up(tmp_path):
    text, file = {"tokenizer": "bytes"}, tmp_path / "words"
    file.write_text("ant\nbee\ncat\n")
    recipe = {
        "data": {"train": [str(file), str(file)], "source": text, "target": text},
        "model": translation.family(8)["RNN"],
        "train": {"max_steps": 10**9, "warmup_steps": 1, "validate_every": 2, "device": "cpu"},
    }
    model, updates = translation.learn(recipe, 0, tmp_path / "run", tmp_path / "cache")
    assert updates == 2
    assert model.folder.name.endswith("2")


def test_missing_data_are_refused(tmp_path):
    with pytest.raises(regard.InvalidArgument, match=r"--data FOLDER, or set REGARD_DATA"):
        translation.find(None, 1)
    with pytest.raises(regard.InvalidArgument, match=r"Multi30k's files; got no .*train\.en\.gz"):
        translation.find(tmp_path, 1)


def test_a_finding_is_written_whole_or_refused(tmp_path, capsys):
    drawn = report.lines("Shares", [1, 2], {"a": [0.5, None], "b": [(0.1, 0.2, 0.3), 0.4]})
    found = report.Finding(
        report.verdict(True, False), "half of it.", [["x", "y"], ["1", "50%"]], drawn
    )
    report.run("name", "About.", tmp_path / "new" / "out", lambda: found)
    told = (tmp_path / "new" / "out" / "name.md").read_text()
    assert "About.\n| x | y |\n|---|---|\n| 1 | 50% |\n\nIt held in part: half of it.\n" in told
    assert capsys.readouterr().out == told + "\n"
    assert ElementTree.parse(tmp_path / "new" / "out" / "name.svg").getroot().tag.endswith("svg")
    (tmp_path / "file").write_text("")
    with pytest.raises(regard.InvalidArgument, match="a folder to write to"):
        report.run("name", "About.", tmp_path / "file", lambda: found)
    assert [report.verdict(True, True), report.verdict(False)] == ["held", "did not hold"]


def test_a_script_refuses_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    script = [sys.executable, ROOT / "experiments" / "scaling.py", "--out", tmp_path / "file"]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert re.fullmatch(r"scaling: .*: wanted a folder to write to; got .*\n", result.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_every_experiment(name):
    page, figure = (ROOT / "docs" / "claims.md").read_text(), ROOT / "docs" / f"claims-{name}.svg"
    assert f"(claims-{name}.svg)" in page
    assert f"experiments/{name}.py" in page
    assert figure.stat().st_size < 30_000
    assert ElementTree.parse(figure).getroot().tag.endswith("svg")
