"""Verbs that need no network of their own do not import PyTorch, which takes seconds, and mostly not NumPy."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from regard.core.config import nearest
from regard.core.errors import InvalidRecipe
from regard.generation.engines.cpu import compile as native
from regard.recipe.load import read_recipe
from regard.recipe.schema import schema_text
from support.command_line import command

GOLDEN = Path(__file__).parents[1] / "golden/0.1.0"
RUN = """
import sys
from regard.cli import app
sys.argv = ["regard", *sys.argv[1:]]
try:
    app()
finally:
    heavy = {"torch", *([] if sys.argv[1] == "words" else ["numpy"])}  # vectors are arrays
    assert not heavy & set(sys.modules), "imported"
"""
HELP = """
import sys
import typer.main
from typer.testing import CliRunner
from regard.cli import app
for name, verb in typer.main.get_command(app).commands.items():
    for path in [[name, sub] for sub in getattr(verb, "commands", ())] or [[name]]:
        assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0, path
assert not {"torch", "numpy", "tokenizers", "sacrebleu"} & set(sys.modules), "imported"
"""


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True
    )


def test_light_verbs_do_not_import_torch(tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("4 2\nking 1 0\nqueen 1 0.1\ntree 0 1\nleaf 0.1 1\n")
    for arguments, shown in [
        (["recipes"], "text to text:"),
        (["recipes", "dates"], "[data]"),
        (["recipes", "--schema"], schema_text()),
        (["words", "nearest", vectors, "king"], "queen"),
        (["words", "analogy", vectors, "king", "queen", "tree"], "\t"),
        (["verify", GOLDEN / "classifier"], "files, as saved"),
    ]:
        done = run(RUN, *arguments)
        assert "imported" not in done.stderr, arguments
        assert (done.returncode, shown in done.stdout) == (0, True), (arguments, done.stderr)
    done = run(HELP)
    assert done.returncode == 0, done.stderr


def test_every_damaged_checkpoint_is_reported(tmp_path):
    import shutil

    for step in (1, 2, 3):
        shutil.copytree(GOLDEN / "classifier", tmp_path / f"step-{step:08d}")
    for step in (1, 3):
        (tmp_path / f"step-{step:08d}" / "config.json").write_text("{}")
    done = command("verify", tmp_path)
    assert done.returncode == 4
    assert [f"step-0000000{step}" in done.stderr for step in (1, 2, 3)] == [True, False, True]
    assert "step-00000002" in done.stdout


def test_compiling_is_logged(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "regard"), pytest.raises(OSError):
        native._compile(["false"], tmp_path, "step")
    assert "compiling the C++ engine" in caplog.text


def test_only_a_near_name_is_suggested():
    assert nearest("learning_rat", ["dropout", "learning_rate"]) == "Did you mean 'learning_rate'?"
    assert nearest("xyz", ["dropout", "learning_rate"]) == "There are dropout, learning_rate."
    assert nearest("xyz", ["dropout"]) == "There is dropout."
    assert nearest("xyz", ["dropout"], listed=True) == "Choose one of these."
    assert nearest("dropot", ["dropout"], listed=True) == "Did you mean 'dropout'?"
    assert nearest("xyz", [f"a{i}" for i in range(50)]).endswith("a39 and 10 more.")


def test_a_key_without_its_table():
    for change, remedy in [
        ("rate=1", "Did you mean train.learning_rate?"),
        ("seed=1", "Did you mean data.seed or train.seed or decode.seed?"),
        ("strange=1", "Write the table before it"),
    ]:
        with pytest.raises(InvalidRecipe, match="wanted a table before the key") as error:
            read_recipe({}, [change])
        assert remedy in str(error.value)


PREDICT = """
import sys
from regard.cli import app
sys.argv = ["regard", *sys.argv[1:]]
try:
    app()
finally:
    heavy = {"torch._dynamo", "sympy", "triton", "sacrebleu", "pydantic", "PIL", "regard.training.trainer"}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_predict_imports_only_what_it_needs(tmp_path):
    """PyTorch's compiler takes as long to import as PyTorch, and even shapes on the meta device may import it."""
    checkpoint = GOLDEN / "transformer"
    line = tmp_path / "line.txt"
    line.write_text("one\n")
    done = run(PREDICT, "predict", checkpoint, line, "--max-length", 3)
    assert done.returncode == 0, done.stderr
    assert run(PREDICT, "predict", checkpoint, line, "--beam", 0).returncode != 0
