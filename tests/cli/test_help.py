"""Help in the terms of its readers."""

import inspect
import re

import pytest
import typer.main
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.core.errors import InvalidArgument
from regard.core.text_table import counted
from regard.inference.load import pick_device
from regard.recipe.shipped import recipes_by_task, shipped_recipes
from support.command_line import command

VERBS = {
    tuple(path): verb
    for name, group in typer.main.get_command(app).commands.items()
    for path, verb in (
        [([name, sub], each) for sub, each in group.commands.items()]
        if hasattr(group, "commands")
        else [([name], group)]
    )
}


def text(*path):
    done = CliRunner().invoke(app, [*path, "--help"], terminal_width=80, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help_is_in_the_terms_of_its_readers(path):
    shown = text(*path)
    assert not re.search(r"<(str|int|path|list|bool)|INTEGER|\bPATH\b|\[x>=|x<=|\{\w+\}", shown)
    _, examples = shown.split("Examples:\n")
    lines = re.match(r"(    .*\n)+", examples)[0].splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert len(line) <= 80
        assert line.endswith("\\") == following.startswith("      --")
    devices = [each for each in VERBS[path].params if "--device" in each.opts]
    assert all(each.default in ("auto", ["auto"]) for each in devices)


def test_summaries_are_whole():
    commands = text().split("Commands:\n")[1]
    assert "..." not in commands
    for name, verb in typer.main.get_command(app).commands.items():
        assert re.search(rf"  {name} ", commands)
        assert verb.get_short_help_str(500).split()[-1] in commands


@pytest.mark.parametrize(
    "name",
    [path[0] for path in VERBS if len(path) == 1 and callable(getattr(regard, path[0], None))],
)
def test_defaults_are_those_of_the_python_function(name):
    """None and an empty value are alike: the command line has no empty lists."""
    own = inspect.signature(getattr(regard, name)).parameters
    for parameter in VERBS[name,].params:
        if (
            parameter.name in own
            and (wanted := own[parameter.name].default) is not inspect.Parameter.empty
        ):
            found = parameter.default
            assert (found or None) in (wanted or None, [wanted]), parameter.name


def test_the_keys_of_word2vec_are_listed():
    shown = text("words", "train")
    for key in regard.Word2VecConfig.__dataclass_fields__:
        assert re.search(rf"^  {key}\b", shown, re.M), key


def test_recipes_are_listed_by_task():
    groups = recipes_by_task()
    assert sorted(path for paths in groups.values() for path in paths) == shipped_recipes()
    stems = {task: [path.stem for path in paths] for task, paths in groups.items()}
    assert "translation" in stems["text to text"]
    assert "captions-rnn" in stems["image to text"]
    assert stems["language model"] == [
        "language-model",
        "word-language-model-rnn",
        "word-language-model",
    ]
    assert stems["classification"] == [
        "classification-pretrained",
        "classification",
        "shapes-classification",
        "spoken-digits",
    ]
    assert stems["speech to text"] == ["digit-strings-attention", "digit-strings"]
    assert stems["forecasting"] == ["forecast-linear", "forecast-waves", "forecast"]
    assert stems["masked language model"] == ["masked-language-model"]
    assert stems["tagging"] == ["parts-of-speech"]


def test_the_titles_of_recipes_stand_in_one_column():
    lines = [line for line in command("recipes").stdout.splitlines() if line.startswith("  ")]
    assert len(lines) == len(shipped_recipes())
    stems = [path.stem for path in shipped_recipes()]
    columns = set()
    for line in lines:
        stem, _, title = line.strip().partition(" ")
        assert stem in stems
        columns.add(line.index(title.strip()))
    assert len(columns) == 1


def test_devices_and_plurals():
    assert pick_device("auto") in ("cpu", "cuda")
    for name in ("gpu", "cuda:x", "cuda:99"):
        with pytest.raises(InvalidArgument, match="device: wanted auto, cpu") as refused:
            pick_device(name)
        assert ("cuda" in refused.value.remedy) == (name == "gpu")


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("train dates --dry-run --set train.device=gpu", "Did you mean 'cuda'?"),
        ("train dates --dry-run --set train.optimizer=lion", "Choose one of these."),
        ("train quake", "Choose one of these."),
        ("export runs/none --to zzz --out o", "Choose one of these."),
        ("data xyz", "Choose one of these."),
    ],
)
def test_valid_names_are_listed_once(line, remedy):
    done = command(*line.split())
    assert done.returncode == 2
    assert done.stderr.strip().endswith(remedy)
    listed = done.stderr.partition("wanted ")[2].partition("; got")[0]
    assert "one of" in listed
    assert (counted(1, "image"), counted(0, "line"), counted(1200, "line")) == (
        "1 image",
        "0 lines",
        "1,200 lines",
    )
