"""What holds for every export format: `regard export --list`, `regard.export_obstacles` and `regard.export` agree."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.core.errors import InvalidArgument
from regard.interop.huggingface import _model_config
from regard.interop.interfaces import TARGETS, export_target
from support.captioners import captioner
from support.predictors import language_model

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0"
SAVED = ("transformer", "language-model", "rnn", "convolution", "classifier")
MODELS = {
    **{name: lambda name=name: regard.load(GOLDEN / name) for name in SAVED},
    "running text": lambda: language_model(context_length=32),
    "captioner": lambda: captioner("transformer"),
    "ensemble": lambda: regard.load([GOLDEN / "transformer"] * 2),
    "ensemble of classifiers": lambda: regard.load([GOLDEN / "classifier"] * 2),
}
OPTIONAL = (
    "ctranslate2",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "transformers",
    "huggingface_hub",
    "sentencepiece",
)


def destination(folder: Path, to: str) -> Path:
    """Where a format writes: a page is one file, others are folders."""
    return folder / ("model.html" if to == "page" else to)


@pytest.mark.parametrize("name", MODELS)
def test_a_format_writes_a_model_or_says_what_it_cannot_express(name, tmp_path):
    model = MODELS[name]()
    for to, obstacles in regard.export_obstacles(model).items():
        for obstacle in obstacles:  # a part or an option, and the reason, in one line
            assert re.fullmatch(r"\S+.*(:|=|,) .*[^.]", obstacle), obstacle
        if obstacles:
            with pytest.raises(InvalidArgument) as refused:
                regard.export(model, to, destination(tmp_path, to))
            assert (
                f"a model that {export_target(to).title} can express; got {'; '.join(obstacles)}."
                in str(refused.value)
            )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["ensemble", "ensemble of classifiers"])
def test_no_format_writes_an_ensemble(name):
    model = MODELS[name]()
    found = regard.export_obstacles(model)
    assert set(found) == set(TARGETS)
    assert all(found.values()), found
    assert (
        _model_config(model) == "an ensemble is several models: export one of them"
    )  # whatever its members are


@pytest.mark.slow
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("name", SAVED)
def test_a_format_without_obstacles_writes_files(name, to, tmp_path):
    """In a process of its own: the shape checks of the tests prevent torch.export."""
    if export_target(to).obstacles(regard.load(GOLDEN / name)):
        pytest.skip("refused")
    out = destination(tmp_path, to)
    command = [sys.executable, "-m", "regard", "export", GOLDEN / name, "--to", to, "--out", out]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == f"{out}\n", result.stderr
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) > 10_000


@pytest.mark.parametrize("name", ["transformer", "classifier"])
def test_the_list_names_every_format(name):
    obstacles = regard.export_obstacles(GOLDEN / name)
    assert list(obstacles) == list(TARGETS)
    lines = CliRunner().invoke(app, ["export", str(GOLDEN / name), "--list"]).stdout.splitlines()
    wanted = []
    for to, reasons in obstacles.items():
        wanted += [f"{to}: {'no' if reasons else 'yes'}", *(f"  {reason}" for reason in reasons)]
    assert lines == wanted


def test_the_list_needs_no_optional_package():
    program = f"""
import sys
sys.modules.update(dict.fromkeys({OPTIONAL}))
from regard.cli import main
sys.argv = ["regard", "export", {str(GOLDEN / "transformer")!r}, "--list", "--json"]
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert list(json.loads(result.stdout or "{}")) == list(TARGETS), result.stderr


def test_every_target_names_itself():
    for name in TARGETS:
        assert export_target(name).name == name
