"""The command line as a user meets it."""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer.main

import regard
from regard.api.evaluate import rows_of
from regard.cli import app
from regard.core.errors import InvalidArgument
from regard.evaluation.metrics import METRICS
from regard.recipe.load import read_recipe
from regard.recipe.shipped import find_recipe, shipped_recipes
from support.command_line import command, process
from support.training_runs import rnn_recipe

RECIPE = rnn_recipe(
    dim=16, max_steps=6, warmup_steps=2, validate_every=3, batch_tokens=256, log_every=3
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a recipe and a run of it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "recipe.toml").write_text(RECIPE)
    done = process(
        "train", folder / "recipe.toml", "--out", folder / "run", "--cache", folder / "cache"
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == folder / "run"
    assert "validation at step 6" in done.stderr
    return folder


def test_the_command_line_is_frozen():
    """A change here is a change for users: make it on purpose."""
    found = {}
    for name, verb in typer.main.get_command(app).commands.items():
        verbs = (
            {f"{name} {sub}": v for sub, v in verb.commands.items()}
            if hasattr(verb, "commands")
            else {name: verb}
        )
        found |= {
            n: sorted(o for p in v.params for o in p.opts if o.startswith("--"))
            for n, v in verbs.items()
        }
    assert found == {
        "train": ["--allow-changed-data", "--cache", "--dry-run", "--out", "--resume", "--set"],
        "prepare": ["--cache", "--json", "--set"],
        "evaluate": [
            "--by-length", "--cache", "--column", "--data", "--device", "--json", "--metric", "--outputs",
            "--references", "--resamples", "--set", "--sources", "--split", "--trust-data-paths",
        ],
        "compare": [
            "--by-length", "--cache", "--column", "--data", "--device", "--json", "--metric", "--out",
            "--references", "--resamples", "--sentences", "--set", "--sources", "--split",
            "--trust-data-paths",
        ],
        "predict": [
            "--attention", "--beam", "--column", "--conll", "--constraints", "--device", "--engine", "--ensemble",
            "--errors", "--json", "--markup", "--max-length", "--n-best", "--out", "--prefix", "--probabilities",
            "--replicas", "--sample", "--scores", "--set", "--stop", "--stream", "--top-logprobs", "--truncate",
            "--workers",
        ],
        "caption": ["--beam", "--device", "--draw", "--json", "--max-length", "--scores", "--set"],
        "look": [
            "--ablate", "--alignment", "--beam", "--channel", "--column", "--data", "--device", "--edit", "--file",
            "--head",
            "--json", "--layer", "--map", "--numbers", "--out", "--output", "--rows", "--set", "--sort", "--summary",
            "--truncate", "--trust-data-paths", "--view", "--words",
        ],
        "align": [
            "--beam", "--choose", "--device", "--head", "--json", "--references", "--set", "--sources",
            "--step", "--targets", "--truncate",
        ],
        "score": ["--column", "--device", "--json"],
        "shortlist": ["--candidates", "--column", "--data", "--frequent", "--max-examples", "--trust-data-paths"],
        "thresholds": ["--column", "--data", "--device", "--json", "--split", "--trust-data-paths"],
        "verify": ["--key"],
        "sign": ["--key"],
        "import": ["--dtype", "--out", "--pairs"],
        "export": [
            "--attention", "--dtype", "--examples", "--json", "--list", "--out", "--push", "--quantization", "--report",
            "--to",
        ],
        "convert": ["--from", "--json"],
        "serve": [
            "--allowed-host", "--cors", "--device", "--drain-seconds", "--host", "--keys", "--max-beams",
            "--max-body", "--max-image-body", "--max-inputs", "--max-length", "--no-studio", "--port", "--queue",
            "--search-memory", "--slots", "--tls-certificate", "--tls-key", "--workers",
        ],
        "studio": [
            "--alignment", "--allowed-host", "--column", "--data", "--device", "--max-beams",
            "--max-length", "--no-open", "--port", "--search-memory", "--trust-data-paths",
        ],
        "recipes": ["--schema"],
        "average": ["--out"],
        "plot": [
            "--channel", "--column", "--data", "--device", "--example", "--look-back", "--out", "--trust-data-paths",
        ],
        "data": ["--build", "--fetch", "--folder"],
        "transcribe": ["--channels", "--device", "--overlap", "--rate", "--raw", "--times", "--window"],
        "sweep": ["--cache", "--grid", "--json", "--out", "--range", "--set", "--trials"],
        "demo": ["--out", "--seed"],
        "words train": ["--device", "--out", "--set"],
        "words nearest": ["--count"],
        "words analogy": ["--count"],
        "words score": ["--json"],
    }  # fmt: skip


def test_no_flag_is_set_by_default():
    for name, verb in typer.main.get_command(app).commands.items():
        for one in getattr(verb, "commands", {name: verb}).values():
            assert [
                each.opts for each in one.params if getattr(each, "is_flag", False) and each.default
            ] == [], name


def test_every_verb_is_a_python_function():
    """`regard X` calls `regard.X`; `recipes` and `data` list files, and the verbs of `words` are methods of vectors."""
    for verb in typer.main.get_command(app).commands.keys() - {"recipes", "data", "words"}:
        name = "import_model" if verb == "import" else verb  # a keyword of Python
        assert callable(getattr(regard, name)), verb
        assert name in regard.__all__


def test_every_verb_shows_an_example():
    for name, verb in typer.main.get_command(app).commands.items():
        for one in getattr(verb, "commands", {name: verb}).values():
            assert re.search(r"Examples?:", one.help), name


def test_predict_answers_line_for_line(place):
    done = process("predict", place / "run", text="abc\n\nde\r\nf")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 4
    (place / "in.txt").write_text("abc\n\nde\r\nf")
    assert command("predict", place / "run", place / "in.txt").stdout == done.stdout
    as_json = command("predict", place / "run", place / "in.txt", "--json").stdout.splitlines()
    told = json.loads(as_json[0])
    assert (told["input"], told["output"]) == ("abc", done.stdout.split("\n")[0])
    (best,) = told["outputs"]
    assert sum(best["log_probabilities"]) == pytest.approx(best["log_probability"], abs=1e-4)
    assert json.loads(as_json[1])["output"] == ""  # an empty line stays one


def test_predict_searches(place):
    (place / "in.txt").write_text("abc\n\ncb\n")
    (place / "begin.txt").write_text("a\n\naa\n")
    several = command(
        "predict", place / "run", place / "in.txt", "--beam", 4, "--n-best", 2, "--scores"
    )
    assert several.returncode == 0, several.stderr
    lines = several.stdout.split("\n")[:-1]
    assert len(lines) == 6  # two for each line
    assert lines[2:4] == ["", ""]
    assert float(lines[0].split("\t")[0]) < 0
    begun = command(
        "predict", place / "run", place / "in.txt", "--prefix", place / "begin.txt"
    ).stdout.split("\n")
    assert (begun[0][:1], begun[1], begun[2][:2]) == ("a", "", "aa")
    drawn = [
        command(
            "predict",
            place / "run",
            place / "in.txt",
            "--sample",
            "--set",
            f"seed={seed}",
            "--set",
            "temperature=3.0",
        )
        for seed in (1, 1, 2)
    ]
    assert drawn[0].stdout == drawn[1].stdout != drawn[2].stdout
    (place / "wishes.txt").write_text(
        '{"required": ["cab"], "banned": ["bb"]}\n\n{"required": ["aa"]}\n'
    )
    wished = command(
        "predict", place / "run", place / "in.txt", "--beam", 3, "--constraints", place / "wishes.txt", "--attention",
        place / "looks.jsonl", "--max-length", 20,
    )  # fmt: skip
    assert wished.returncode == 0, wished.stderr
    first, _, third = wished.stdout.split("\n")[:3]
    assert ("cab" in first, "bb" in first, "aa" in third) == (True, False, True)
    looks = json.loads((place / "looks.jsonl").read_text().splitlines()[0])["outputs"][0]
    assert len(looks["attention"][0][0]) - len(looks["tokens"]) in (
        0,
        1,
    )  # and the end, where it came
    assert sum(looks["attention"][0][0][0]) == pytest.approx(1, abs=1e-4)
    (place / "wishes.txt").write_text('{"wanted": ["cab"]}\n')
    wrong = command(
        "predict", place / "run", place / "in.txt", "--constraints", place / "wishes.txt"
    )
    assert (wrong.returncode, "line 1" in wrong.stderr, "Traceback" in wrong.stderr) == (
        2,
        True,
        False,
    )
    wrong = command("predict", place / "run", place / "in.txt", "--set", "beems=3")
    assert (wrong.returncode, "beam" in wrong.stderr, "Traceback" in wrong.stderr) == (
        2,
        True,
        False,
    )


def test_predict_streams(place):
    (place / "in.txt").write_text("abc\n\ncb\n")
    whole = command("predict", place / "run", place / "in.txt", "--beam", 1)
    assert command("predict", place / "run", place / "in.txt", "--stream").stdout == whole.stdout
    wrong = command("predict", place / "run", place / "in.txt", "--stream", "--beam", 2)
    assert (wrong.returncode, "beam_size: wanted 1 in a stream" in wrong.stderr) == (2, True)
    wrong = command("predict", place / "run", place / "in.txt", "--stream", "--json")
    assert (wrong.returncode, "--json: wanted nothing in a stream" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("begin", "message"), [("a\n", "at least 2 lines; got 1"), ("a\n" * 4, "3 lines; got more")]
)
def test_a_file_beside_the_input_has_as_many_lines(place, begin, message):
    (place / "in.txt").write_text("abc\n\ncb\n")
    (place / "begin.txt").write_text(begin)
    wrong = command("predict", place / "run", place / "in.txt", "--prefix", place / "begin.txt")
    assert (wrong.returncode, message in wrong.stderr) == (2, True), wrong.stderr


def test_a_line_that_is_too_long_is_named(place):
    (place / "long.txt").write_text("abc\n" + "a" * 30 + "\n")
    refused = command("predict", place / "run", place / "long.txt", "--set", "max_source_length=20")
    assert refused.returncode == 2
    assert refused.stdout.count("\n") == 2
    assert "line 2: wanted at most 20 tokens; got 30" in refused.stderr
    cut = command(
        "predict", place / "run", place / "long.txt", "--set", "max_source_length=20", "--truncate"
    )
    assert (cut.returncode, cut.stdout.count("\n")) == (0, 2)
    assert "1 line truncated, being too long" in cut.stderr


def test_lines_are_answered_as_they_come(place):
    """A pipe that stays open gets its answer before it ends."""
    made = subprocess.Popen(
        [sys.executable, "-m", "regard", "predict", str(place / "run")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with made:
        assert made.stdin is not None
        assert made.stdout is not None
        for line in ("abc", "", "cb"):
            made.stdin.write(line + "\n")
            made.stdin.flush()
            assert made.stdout.readline().endswith("\n")
        made.stdin.close()
        assert made.wait(60) == 0


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
        for line in command(
            "score", place / "run", "--json", text="abc\tabc\n\tx\nde\t\n"
        ).stdout.splitlines()
    ]
    for (log_p, perplexity), each in zip(found, as_json, strict=True):
        assert each["log_probability"] == pytest.approx(log_p, abs=1e-4)
        assert each["perplexity"] == pytest.approx(perplexity, abs=1e-3)
        assert len(each["tokens"]) == len(each["log_probabilities"])
    assert as_json[0]["tokens"] == ["a", "b", "c", "</s>"]
    for arguments, text, message in (
        (
            [place / "source.txt"],
            "",
            "files: wanted 2 files, of source and target, or a table; got 1",
        ),
        ([place / "source.txt", place / "in.txt"], "", "as many lines"),
        ([], "abc\n", "line 1: wanted source and target, separated by tabs; got 1 columns"),
    ):
        (place / "in.txt").write_text("one\n")
        done = command("score", place / "run", *arguments, text=text)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_evaluate_tells_everything_as_json(place):
    metrics = [part for name in ("loss", "bleu", "accuracy") for part in ("--metric", name)]
    done = command(
        "evaluate",
        place / "run",
        "--cache",
        place / "cache",
        "--json",
        *metrics,
        "--by-length",
        "2",
        "--resamples",
        50,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["examples"], found["resamples"], found["confidence"]) == (1000, 50, 0.95)
    (system,) = found["systems"]
    assert list(system["metrics"]) == ["loss", "bleu", "accuracy"]
    bleu = system["metrics"]["bleu"]
    assert "version:" in bleu["signature"]
    assert bleu["low"] <= bleu["value"] <= bleu["high"]
    assert bleu["totals"]["reference_tokens"] == 1000
    assert sum(group["examples"] for group in system["lengths"]) == 1000
    assert not system["metrics"]["loss"]["higher_is_better"]


def test_evaluate_shows_the_metrics_of_the_task_and_keeps_outputs(place):
    outputs = place / "outputs.txt"
    done = command(
        "evaluate",
        place / "run",
        "--cache",
        place / "cache",
        "--outputs",
        outputs,
        "--split",
        "valid",
    )
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.split("\n\n")[0].splitlines()]
    assert names == ["metric", "loss", "perplexity", "accuracy", "character_error_rate"]
    recipe = read_recipe(place / "recipe.toml")
    sources = [source for source, _ in rows_of(recipe, "valid")]
    assert outputs.read_text() == command("predict", place / "run", text="\n".join(sources)).stdout
    again = evaluated(outputs, place / "run", "--split", "valid", "--metric", "chrf", "--json")
    first, second = json.loads(again)["systems"]
    assert first["metrics"]["chrf"]["value"] == second["metrics"]["chrf"]["value"]
    assert (second["metrics"]["chrf"]["difference"], second["metrics"]["chrf"]["p"]) == (0.0, 1.0)
    short = evaluated(
        place / "run", "--split", "valid", "--metric", "chrf", "--set", "max_length=1", "--json"
    )
    assert (
        json.loads(short)["systems"][0]["metrics"]["chrf"]["value"]
        != first["metrics"]["chrf"]["value"]
    )


@pytest.fixture
def lines(tmp_path, monkeypatch) -> Path:
    """Sources, two references and the outputs of two systems."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "source": "eins zwei\ndrei\nvier fünf sechs\n",
        "right": "one two\nthree\nfour five six\n",
        "also": "one 2\n3\nfour 5 six\n",
        "good": "one two\n3\nfour five six\n",
        "bad": "one\nfour\nfour six\n",
        "short": "one two\nthree\n",
        "empty": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def evaluated(*arguments: str | Path) -> str:
    """What `regard evaluate` prints, in this process, which is ten times as fast."""
    out = io.StringIO()
    with redirect_stdout(out):
        typer.main.get_command(app).commands["evaluate"].main(
            [*map(str, arguments)], standalone_mode=False
        )
    return out.getvalue()


def test_outputs_in_files_are_compared_without_a_model(lines):
    asked = [
        "--references",
        "right",
        "--references",
        "also",
        "--metric",
        "accuracy",
        "--metric",
        "error_rate",
    ]
    done = command("evaluate", "bad", "good", *asked, "--sources", "source", "--by-length", "1,2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy ↑ +good +100.00% .* \+100.00% +0\.", done.stdout)
    assert re.search(r"error_rate ↓ +bad +50.00%", done.stdout)  # 3 edits of 6 words
    assert re.search(r"1–1 \(1\) +2–2 \(1\) +3–3 \(1\)", done.stdout)
    usual = json.loads(evaluated("good", "--references", "right", "--json"))["systems"][0]
    assert list(usual["metrics"]) == ["bleu", "chrf"]


UNFIT = {
    "fewer lines": (["short", "--references", "right"], "short: wanted an output for each of 3 examples; got 2 lines"),
    "more lines": (["good", "--references", "short"], "good: wanted an output for each of 2 examples; got 3 lines"),
    "uneven references": (["good", "--references", "right", "--references", "short"], "got 3 in right and 2 in short"),
    "nothing": (["empty", "--references", "empty"], "references: wanted at least one example"),
    "no references": (["good"], "references: wanted a file beside outputs"),
    "sources alone": (["good", "--sources", "source"], "references: wanted a file beside"),
    "lengths of nothing": (["good", "--references", "right", "--by-length", "2"], "sources: wanted a file whose"),
    "an unknown metric": (["good", "--references", "right", "--metric", "blue"], "Did you mean 'bleu'?"),
    "no model": (["good", "--references", "right", "--metric", "loss"], "It needs a model"),
    "neither": (["nowhere"], "nowhere: wanted the folder of a run"),
    "outputs of what": (["good", "--references", "right", "--outputs", "x"], "outputs: wanted one model"),
    "groups": (["good", "--references", "right", "--sources", "source", "--by-length", "x"], "by-length: wanted"),
    "split and files": (["good", "--references", "right", "--split", "test"], "split: wanted none beside references"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_what_cannot_be_evaluated_is_refused(name, lines):
    arguments, message = UNFIT[name]
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        evaluated(*arguments)
    assert not (lines / "x").exists()


def test_models_are_evaluated_on_other_files(place, tmp_path):
    run, file = place / "run", tmp_path / "source"
    file.write_text("abc\nde\n")
    found = json.loads(evaluated(run, "--sources", file, "--references", file, "--json"))
    assert found["examples"] == 2
    assert list(found["systems"][0]["metrics"]) == ["accuracy", "character_error_rate"]
    refused = {
        "sources: wanted a file for a model to read": ["--references", file],
        "references: wanted none for loss": [
            "--sources",
            file,
            "--references",
            file,
            "--metric",
            "loss",
        ],
        "split: wanted one of train, valid, test; got 'dev'": [
            "--split",
            "dev",
            "--metric",
            "bleu",
        ],
        "character_error_rate, as the model generates texts; got 'f1'": ["--metric", "f1"],
    }
    for message, arguments in refused.items():
        with pytest.raises(InvalidArgument, match=re.escape(message)):
            evaluated(run, *arguments)


def test_the_help_of_evaluate_explains_every_metric():
    shown = re.sub(r"\s+", " ", command("evaluate", "--help").stdout)
    for name, metric in METRICS.items():
        assert f"{name} {'↑' if metric.higher_is_better else '↓'} {metric.description}" in shown


def test_prepare_says_what_there_is(place):
    done = command("prepare", place / "recipe.toml", "--cache", place / "cache", "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["splits"]) == {"train", "valid", "test"}


def test_dry_run_shows_and_does_nothing(place):
    out = place / "never"
    done = command(
        "train",
        place / "recipe.toml",
        "--out",
        out,
        "--cache",
        place / "cache",
        "--dry-run",
        "--set",
        "train.learning_rate=0.5",
    )
    assert done.returncode == 0, done.stderr
    assert "train.learning_rate = 0.5" in done.stdout
    assert "first batch:" in done.stdout
    assert re.search(r"memory: \d+ MiB", done.stdout)
    assert not out.exists()


def test_verify_finds_damage(place, tmp_path):
    done = command("verify", place / "run")
    assert done.returncode == 0
    assert "step-00000006: 6 files, as saved" in done.stdout
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


LONG = "x" * 300  # no system has room for such a name, whoever asks
MISTAKES = {
    "an unknown verb": (["trian"], 2, "trian"),
    "no recipe": (["train", "nowhere.toml", "--out", "x"], 2, "nowhere.toml: wanted a recipe"),
    "no such name": (["train", "datse", "--out", "x"], 2, "Did you mean 'dates'?"),
    "a wrong key": (
        ["train", "dates", "--out", "x", "--set", "train.rat=1"],
        2,
        "train.rat: wanted a key of train",
    ),
    "no value": (
        ["train", "dates", "--out", "x", "--set", "train.learning_rate"],
        2,
        "--set: wanted key=value",
    ),
    "no model": (["predict", "nowhere"], 2, "nowhere: wanted the folder of a run"),
    "no such device": (["predict", ".", "--device", "gpu"], 2, "device: wanted auto, cpu"),
    "no vectors": (["words", "nearest", "nowhere", "king"], 2, "nowhere"),
    "nothing to verify": (["verify", "nowhere"], 2, "nowhere: wanted the folder of a run"),
    "a folder without checkpoints": (["verify", "."], 4, "wanted a checkpoint"),
    "no place for outputs": (
        ["evaluate", "a", "--outputs", LONG],
        2,
        "xx: wanted a file to write to; got File name",
    ),
    "no place for a page": (
        ["compare", "a", "b", "--out", f"{LONG}.html"],
        2,
        "xx.html: wanted a file to write to",
    ),
    "no place for vectors": (
        ["words", "train", "text.txt", "--out", LONG],
        2,
        "xx: wanted a file to write to",
    ),
    "no folder for vectors": (
        ["words", "train", "text.txt", "--out", "no/v.txt"],
        2,
        "path: wanted a file's name in",
    ),
    "no place for a cache": (
        ["prepare", "dates", "--cache", LONG],
        2,
        "xx: wanted a folder to write to; got File",
    ),
    "a file for a cache": (
        ["prepare", "dates", "--cache", "text.txt"],
        2,
        "text.txt: wanted a folder to write to",
    ),
    "no cache to train by": (
        ["train", "dates", "--out", "r", "--cache", LONG],
        2,
        "xx: wanted a folder to write to",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_short_error(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a b\n")
    arguments, code, message = MISTAKES[name]
    done = (process if name == "a wrong key" else command)(*arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


NO_SPACE = "No space left on device. The file that was being written is incomplete: free some space and start again."
FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "arguments", [["recipes"], ["evaluate", "--help"]], ids=["at the end", "on the way"]
)
def test_a_full_disk_is_a_short_error(arguments):
    with FULL.open("w") as full:
        made = [sys.executable, "-m", "regard", *arguments]
        done = subprocess.run(made, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, f"regard: {NO_SPACE}\n")


def test_a_language_model_has_no_bleu(tmp_path):
    (tmp_path / "t.txt").write_text("a text\n" * 30)
    (tmp_path / "r.toml").write_text(
        f'[data]\ntrain = "{tmp_path}/t.txt"\ntest = "{tmp_path}/t.txt"\ntarget = {{tokenizer = "bytes"}}\n'
        '[model]\ndecoder = {kind = "rnn", dim = 8}\n[train]\nmax_steps = 2\nwarmup_steps = 1\n'
    )
    cache = ("--cache", tmp_path / "cache")
    assert command("train", tmp_path / "r.toml", "--out", tmp_path / "run", *cache).returncode == 0
    done = command("evaluate", tmp_path / "run", "--metric", "bleu", *cache)
    assert done.returncode == 2
    assert (
        "metric: wanted one of loss, perplexity, as the model has no outputs to compare"
        in done.stderr
    )
    done = command("evaluate", tmp_path / "run", "--by-length", "3", *cache)
    assert "by-length: wanted at least one example with an output" in done.stderr
    assert "perplexity" in command("evaluate", tmp_path / "run", *cache).stdout
    (tmp_path / "in.txt").write_text("a te\n")
    assert command("predict", tmp_path / "run", tmp_path / "in.txt").returncode == 0
    done = command("score", tmp_path / "run", tmp_path / "t.txt")
    assert done.stdout.count("\n") == 30
    log_p, perplexity = map(
        float, command("score", tmp_path / "run", text="a text\n").stdout.split("\t")
    )
    first = [float(x) for x in done.stdout.splitlines()[0].split("\t")]
    assert first == pytest.approx([log_p, perplexity], rel=1e-4)


def test_invalid_utf8_is_named(place):
    done = process("predict", place / "run", text=b"fine\nbad \xff\n")
    assert done.returncode == 2
    assert "line 2" in done.stderr
    assert "0xff" in done.stderr
    assert "--errors replace" in done.stderr
    done = command("predict", place / "run", "--errors", "replace", text=b"fine\nbad \xff\n")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 2
    done = command("predict", place / "run", "--errors", "ignore")
    assert (
        done.returncode,
        done.stderr.count("--errors: wanted strict or replace; got 'ignore'"),
    ) == (2, 1)


def test_all_that_is_wrong_with_a_recipe_is_told_at_once(tmp_path):
    (tmp_path / "r.toml").write_text(
        '[data]\nsynthetic = "dats"\n[model.encoder]\nkind = "rnnn"\n[train]\nmax_steps = 0\n[extra]\n'
    )
    done = command("train", tmp_path / "r.toml", "--out", tmp_path / "x")
    assert done.returncode == 2
    for key in ("extra:", "data.synthetic:", "model.encoder.kind:", "train.max_steps:"):
        assert key in done.stderr


@pytest.mark.parametrize("path", shipped_recipes(), ids=lambda path: path.stem)
def test_our_recipes_are_right(path):
    read_recipe(path)
    assert path.read_text().startswith("#:schema recipe.schema.json\n# ")
    assert find_recipe(path.stem) == path


def test_words_from_text_to_neighbours(tmp_path):
    lines = ["the red fox runs", "the red dog runs", "a blue fish swims", "a blue whale swims"] * 60
    (tmp_path / "text.txt").write_text("\n".join(lines))
    vectors = tmp_path / "vectors.txt"
    done = command(
        "words",
        "train",
        tmp_path / "text.txt",
        "--out",
        vectors,
        "--set",
        "dim=8",
        "--set",
        "sample=0",
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


def test_a_score_of_words_that_is_none_is_null(tmp_path):
    vectors, pairs, questions = (
        tmp_path / name for name in ("vectors.txt", "pairs.txt", "questions.txt")
    )
    vectors.write_text("3 2\na 1 0\nb 1 1\nc 0 1\n")
    pairs.write_text("a b 5\na c 5\n")
    questions.write_text(": letters\nw x y z\n")
    done = command("words", "score", vectors, pairs, questions, "--json")
    assert [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.splitlines()] == [
        {"file": str(pairs), "spearman": None, "found": 2, "missing": 0},
        {"file": str(questions), "accuracy": None, "right": 0, "asked": 0, "skipped": 1},
    ]
    assert "nan" in command("words", "score", vectors, pairs).stdout


@pytest.mark.slow
def test_demo_reads_dates_and_shows_where_it_looks(tmp_path):
    done = process("demo", "--out", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    shares = [float(share) for share in re.findall(r"([\d.]+)% of 1,000 dates", done.stdout)]
    assert len(shares) == 2
    assert min(shares) >= 99
    assert "█" in done.stdout
