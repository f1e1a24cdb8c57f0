"""A checkpoint of somebody else does not choose which files are read; one's own run is evaluated without a flag."""

import ast
import json
import logging
import shutil
from pathlib import Path

import pytest

import regard
from support.forged import forge

EXAMPLES = [{"source": "abc", "target": "cba"}, {"source": "ab", "target": "ba"}]
DATA = {
    "source": {"tokenizer": "bytes", "column": "source"}, "target": {"tokenizer": "bytes", "column": "target"},
}  # fmt: skip
PART = {"kind": "transformer", "dim": 8, "heads": 2, "ffn_dim": 16, "layers": 1}


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A file of the user's."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "private.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in EXAMPLES))
    return file


def naming(tmp_path, path):
    """A checkpoint of somebody else that names this path."""
    return forge(
        tmp_path / "foreign",
        "config.json",
        lambda config: config["recipe"]["data"].update(test=str(path)),
    )


def test_paths_of_a_foreign_checkpoint_are_refused(tmp_path, private, caplog):
    foreign = naming(tmp_path, private)
    for read in (
        lambda: regard.evaluate(foreign, resamples=2),
        lambda: regard.compare([foreign, foreign], resamples=2),
        lambda: regard.ablate(foreign, ["test"]),
    ):
        with pytest.raises(regard.InvalidArgument, match=rf"names {private}.*--trust-data-paths"):
            read()
    caplog.set_level(logging.INFO, "regard")
    assert regard.evaluate(foreign, resamples=2, trust_data_paths=True).systems
    assert f"reading data that the checkpoint names: {private}" in caplog.text
    assert regard.evaluate(foreign, data=[private], resamples=2).systems  # the user names it


def test_nothing_trusts_paths_unless_told():
    """Every function of the package that has the argument, and every class that has the field."""
    defaults = list[tuple[str, str]]()
    for path in sorted(Path(regard.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.arguments):
                positional, named = (
                    [*node.posonlyargs, *node.args],
                    zip(node.kwonlyargs, node.kw_defaults, strict=True),
                )
                given = [
                    *zip(
                        positional[len(positional) - len(node.defaults) :],
                        node.defaults,
                        strict=True,
                    ),
                    *named,
                ]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                given = [(ast.arg(node.target.id), node.value)]
            else:
                continue
            found = [
                value
                for argument, value in given
                if argument.arg == "trust_data_paths" and value is not None
            ]
            defaults += [(f"{path.parent.name}/{path.name}", ast.unparse(value)) for value in found]
    files = {file for file, _ in defaults}
    assert {
        "api/shortlist.py",
        "api/look.py",
        "cli/evaluate.py",
        "studio/sources.py",
    } <= files
    assert [each for each in defaults if each[1] != "False"] == []


def test_a_foreign_checkpoint_fetches_nothing(tmp_path, private):
    with pytest.raises(regard.InvalidArgument, match="names hf:somebody/something:test"):
        regard.evaluate(naming(tmp_path, "hf:somebody/something:test"))


def test_a_missing_file_is_named_as_such(tmp_path, private):
    with pytest.raises(regard.InvalidArgument, match=r"missing\.jsonl") as error:
        regard.evaluate(naming(tmp_path, tmp_path / "missing.jsonl"))
    assert "--trust-data-paths" not in str(error.value)


def test_own_runs_are_evaluated_without_a_flag(tmp_path, private):
    recipe = {
        "data": {"train": str(private), "test": str(private), **DATA},
        "model": {"encoder": PART, "decoder": PART},
        "train": {"max_steps": 1, "warmup_steps": 0, "device": "cpu"},
    }
    regard.train(recipe, tmp_path / "run")
    assert regard.evaluate(tmp_path / "run", resamples=2).systems
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert regard.evaluate(tmp_path / "elsewhere", resamples=2).systems
