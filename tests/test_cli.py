"""The command line as a user meets it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from regard.recipe import find_recipe, our_recipes, read_recipe

RECIPE = """
[data]
generate = "copy"
source = {tokens = "bytes"}
target = {tokens = "bytes"}

[model]
encoder = {kind = "rnn", width = 16}
decoder = {kind = "rnn", width = 16}

[train]
steps = 6
warmup = 2
validate_every = 3
batch_tokens = 256
log_every = 3
"""


def command(*arguments: str | Path, text: str | bytes = "") -> subprocess.CompletedProcess:
    given = text.encode() if isinstance(text, str) else text
    done = subprocess.run([sys.executable, "-m", "regard", *map(str, arguments)], input=given, capture_output=True)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a recipe and a run of it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "recipe.toml").write_text(RECIPE)
    done = command("train", folder / "recipe.toml", "--out", folder / "run", "--cache", folder / "cache")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == folder / "run"
    assert "validation at step 6" in done.stderr
    return folder


def test_the_command_line_is_frozen():
    """A change here is a change for users: make it on purpose."""
    from regard.cli import app

    found = {}
    for name, verb in typer.main.get_command(app).commands.items():
        verbs = {f"{name} {sub}": v for sub, v in verb.commands.items()} if hasattr(verb, "commands") else {name: verb}
        found |= {n: sorted(o for p in v.params for o in p.opts if o.startswith("--")) for n, v in verbs.items()}
    assert found == {
        "train": ["--allow-changed-data", "--cache", "--dry-run", "--out", "--resume", "--set"],
        "prepare": ["--cache", "--json", "--set"],
        "evaluate": ["--cache", "--device", "--json", "--metric", "--split"],
        "predict": ["--device", "--json", "--longest"],
        "score": ["--device", "--json"],
        "verify": [],
        "recipes": [],
        "demo": ["--out", "--seed"],
        "words train": ["--device", "--out", "--set"],
        "words nearest": ["--count"],
        "words analogy": ["--count"],
        "words score": ["--json"],
    }


def test_every_verb_shows_an_example():
    from regard.cli import app

    for name, verb in typer.main.get_command(app).commands.items():
        for one in getattr(verb, "commands", {name: verb}).values():
            assert re.search(r"Examples?:", one.help), name


def test_predict_answers_line_for_line(place):
    done = command("predict", place / "run", text="abc\n\nde\r\nf")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 4
    (place / "in.txt").write_text("abc\n\nde\r\nf")
    assert command("predict", place / "run", place / "in.txt").stdout == done.stdout
    as_json = command("predict", place / "run", "--json", text="abc\n")
    assert json.loads(as_json.stdout) == {"input": "abc", "output": done.stdout.split("\n")[0]}


def test_score_answers_line_for_line(place):
    (place / "source.txt").write_text("abc\n\nde\n")
    (place / "target.txt").write_text("abc\nx\n\n")
    done = command("score", place / "run", place / "source.txt", place / "target.txt")
    assert done.returncode == 0, done.stderr
    found = [tuple(map(float, line.split("\t"))) for line in done.stdout.splitlines()]
    assert len(found) == 3
    assert command("score", place / "run", text="abc\tabc\n\tx\nde\t\n").stdout == done.stdout
    as_json = [
        json.loads(line)
        for line in command("score", place / "run", "--json", text="abc\tabc\n\tx\nde\t\n").stdout.splitlines()
    ]
    for (log_p, perplexity), each in zip(found, as_json, strict=True):
        assert each["log_probability"] == pytest.approx(log_p, abs=1e-4)
        assert each["perplexity"] == pytest.approx(perplexity, abs=1e-3)
        assert len(each["tokens"]) == len(each["log_probabilities"])
    assert as_json[0]["tokens"] == ["a", "b", "c", "</s>"]
    for arguments, text, message in (
        ([place / "source.txt"], "", "files: wanted a file of sources and one of targets; got 1"),
        ([place / "source.txt", place / "in.txt"], "", "as many lines"),
        ([], "abc\n", "line 1: wanted a source and a target, parted by a tab; got 1 columns"),
    ):
        (place / "in.txt").write_text("one\n")
        done = command("score", place / "run", *arguments, text=text)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_evaluate_prints_metrics(place):
    done = command(
        "evaluate", place / "run", "--cache", place / "cache", "--json", "--metric", "bleu", "--metric", "accuracy"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"loss", "perplexity", "bleu", "accuracy"} == set(found)
    assert "version:" in found["bleu"]["signature"]


def test_prepare_says_what_there_is(place):
    done = command("prepare", place / "recipe.toml", "--cache", place / "cache", "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["splits"]) == {"train", "valid", "test"}


def test_dry_run_shows_and_does_nothing(place):
    out = place / "never"
    done = command(
        "train", place / "recipe.toml", "--out", out, "--cache", place / "cache", "--dry-run", "--set", "train.rate=0.5"
    )
    assert done.returncode == 0, done.stderr
    assert "train.rate = 0.5" in done.stdout
    assert "first batch:" in done.stdout
    assert re.search(r"memory: \d+ MiB", done.stdout)
    assert not out.exists()


def test_verify_finds_damage(place, tmp_path):
    done = command("verify", place / "run")
    assert done.returncode == 0
    assert "step-00000006: 6 files, all as they were saved" in done.stdout
    model = place / "run" / "step-00000006" / "model.safetensors"
    kept = model.read_bytes()
    model.write_bytes(kept[:-1])
    try:
        for verb in ("verify", "predict"):
            done = command(verb, place / "run" / "step-00000006")
            assert done.returncode == 4, verb
            assert "model.safetensors: wanted" in done.stderr
            assert "Traceback" not in done.stderr
    finally:
        model.write_bytes(kept)


MISTAKES = {
    "an unknown verb": (["trian"], 2, "trian"),
    "no recipe": (["train", "nowhere.toml", "--out", "x"], 2, "nowhere.toml: wanted a recipe"),
    "no such name": (["train", "datse", "--out", "x"], 2, "Did you mean 'dates'?"),
    "a wrong key": (["train", "dates", "--out", "x", "--set", "train.rat=1"], 2, "train.rat: wanted a key of train"),
    "no value": (["train", "dates", "--out", "x", "--set", "train.rate"], 2, "--set: wanted key=value"),
    "no model": (["predict", "nowhere"], 2, "nowhere: wanted the folder of a run"),
    "no such device": (["predict", ".", "--device", "gpu"], 2, "device: wanted cpu"),
    "no vectors": (["words", "nearest", "nowhere", "king"], 2, "nowhere"),
    "a folder without checkpoints": (["verify", "."], 4, "wanted a checkpoint"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_short_error(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, code, message = MISTAKES[name]
    done = command(*arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_language_model_has_no_bleu(tmp_path):
    (tmp_path / "t.txt").write_text("a text\n" * 30)
    (tmp_path / "r.toml").write_text(
        f'[data]\ntrain = "{tmp_path}/t.txt"\ntest = "{tmp_path}/t.txt"\ntarget = {{tokens = "bytes"}}\n'
        '[model]\ndecoder = {kind = "rnn", width = 8}\n[train]\nsteps = 2\nwarmup = 1\n'
    )
    cache = ("--cache", tmp_path / "cache")
    assert command("train", tmp_path / "r.toml", "--out", tmp_path / "run", *cache).returncode == 0
    done = command("evaluate", tmp_path / "run", "--metric", "bleu", *cache)
    assert done.returncode == 2
    assert "metric: wanted none for a model without a source" in done.stderr
    assert "perplexity" in command("evaluate", tmp_path / "run", *cache).stdout
    assert command("predict", tmp_path / "run", text="a te\n").returncode == 0
    done = command("score", tmp_path / "run", tmp_path / "t.txt")
    assert done.stdout.count("\n") == 30
    log_p, perplexity = map(float, command("score", tmp_path / "run", text="a text\n").stdout.split("\t"))
    first = [float(x) for x in done.stdout.splitlines()[0].split("\t")]
    assert first == pytest.approx([log_p, perplexity], rel=1e-4)


def test_invalid_utf8_is_named(place):
    done = command("predict", place / "run", text=b"fine\nbad \xff\n")
    assert done.returncode == 2
    assert "line 2" in done.stderr
    assert "0xff" in done.stderr


def test_all_that_is_wrong_with_a_recipe_is_told_at_once(tmp_path):
    (tmp_path / "r.toml").write_text(
        '[data]\ngenerate = "dats"\n[model.encoder]\nkind = "rnnn"\n[train]\nsteps = 0\n[extra]\n'
    )
    done = command("train", tmp_path / "r.toml", "--out", tmp_path / "x")
    assert done.returncode == 2
    for key in ("extra:", "data.generate:", "model.encoder.kind:", "train.steps:"):
        assert key in done.stderr


@pytest.mark.parametrize("path", our_recipes(), ids=lambda path: path.stem)
def test_our_recipes_are_right(path):
    read_recipe(path)
    assert path.read_text().startswith("# ")
    assert find_recipe(path.stem) == path


def test_words_from_text_to_neighbours(tmp_path):
    lines = ["the red fox runs", "the red dog runs", "a blue fish swims", "a blue whale swims"] * 60
    (tmp_path / "text.txt").write_text("\n".join(lines))
    vectors = tmp_path / "vectors.txt"
    done = command(
        "words", "train", tmp_path / "text.txt", "--out", vectors, "--set", "width=8", "--set", "subsample=0"
    )
    assert done.returncode == 0, done.stderr
    done = command("words", "nearest", vectors, "fox", "--count", "3")
    assert done.stdout.count("\n") == 3
    (tmp_path / "pairs.txt").write_text("fox dog 9\nfox whale 2\nfish whale 9\n")
    done = command("words", "score", vectors, tmp_path / "pairs.txt", "--json")
    assert json.loads(done.stdout)["found"] == 3
    done = command("words", "nearest", vectors, "foks")
    assert done.returncode == 2
    assert "'fox'" in done.stderr


@pytest.mark.slow
def test_demo_reads_dates_and_shows_where_it_looks():
    done = command("demo")
    assert done.returncode == 0, done.stderr
    shares = [float(share) for share in re.findall(r"([\d.]+)% of 1,000 dates", done.stdout)]
    assert len(shares) == 2
    assert min(shares) >= 99
    assert "█" in done.stdout
