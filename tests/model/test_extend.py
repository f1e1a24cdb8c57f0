"""docs/extend.md, executed as a user's own modules outside of the package: train, save, load, look, evaluate."""

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = re.findall(
    r"```python\n# (\w+)\.py\n(.*?)```\s*```toml\n(.*?)```",
    (ROOT / "docs/extend.md").read_text(),
    re.DOTALL,
)
MODULES = {name: (code, tomlish) for name, code, tomlish in SECTIONS}

TRAIN = """
import tomllib
import {module}
import regard

TRANSFORMER = dict(kind="transformer", dim=32, layers=1, heads=2, ffn_dim=32)
recipe = dict(
    data=dict(train="rows.tsv", source=dict(tokenizer="characters", vocab_size=300, column="1"),
              target=dict(tokenizer="characters", vocab_size=300, column="2")),
    model=dict(encoder=dict(TRANSFORMER), decoder=dict(TRANSFORMER)),
    train=dict(max_steps=2, warmup_steps=1, batch_tokens=200, device="cpu"),
    decode=dict(),
)
changes = tomllib.loads('''{changes}''')
for table, keys in changes.items():
    for key, value in keys.items():
        old = recipe[table].get(key)
        recipe[table][key] = value if not isinstance(value, dict) or "kind" in value else {{**old, **value}}
target = {target!r}
if target != "text":  # the output follows from the source, without a decoder
    del recipe["model"]["decoder"]
    recipe["data"]["target"] = dict(kind=target, column="2")
if "reader" in recipe["data"]:  # which splits lines itself
    del recipe["data"]["source"]["column"], recipe["data"]["target"]["column"]
regard.train(recipe, "run", cache="cache")
"""
USE = """
import regard

try:
    regard.load("run")
except regard.CheckpointRefused as error:
    print(error)
import {module}

model = regard.load("run")
output, = model.predict(["{source}"])
look = regard.look(model, "{source}")
assert look.maps
(look_again,) = regard.load("run").predict(["{source}"])
assert output == look_again
print("predicted", output)
"""
# The targets of the models that are trained with a part, and what they read; texts are dates by default.
TARGETS = {"max_pool": "label", "ordinal": "label", "quantiles": "number", "cauchy": "number"}
SOURCES = {"dna": "ACGTTGCA"}


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return python(folder, "-c", code)


def python(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Python in a folder whose modules it can import."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(folder),
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The port of a server of the model in `folder`/run."""
    command = [sys.executable, "-m", "regard", "serve", "mine=run", "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            while (found := re.search(r"serving mine on http://127\.0\.0\.1:(\d+)", said)) is None:
                line = process.stderr.readline()
                assert line, said
                said += line
            yield int(found[1])
        finally:
            process.kill()


def ask(port: int, source: str) -> dict[str, Any]:
    """The answer of /predict."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = json.dumps({"input": source})
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


@pytest.mark.parametrize(
    "module",
    [pytest.param(each, marks=pytest.mark.slow) if i else each for i, each in enumerate(MODULES)],
)
def test_a_part_of_the_users_own_is_trained_saved_loaded_and_shown(module, tmp_path):
    trained = train(module, tmp_path)
    assert trained.returncode == 0, trained.stderr
    used = run(USE.format(module=module, source=source_of(module, 2)), tmp_path)
    assert used.returncode == 0, used.stderr
    assert re.search(rf"got no registration of that name. Import {module} first", used.stdout)


def train(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Write the module and some rows, and train a model with it."""
    code, changes = MODULES[module]
    (folder / f"{module}.py").write_text(code)
    target = TARGETS.get(module, "text")
    outputs = "12" if target == "number" else "ab"
    rows = [(source_of(module, i), outputs[i % 2]) for i in range(40)]
    (folder / "rows.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    (folder / "rows.txt").write_text("".join(f"{source} -> {target}\n" for source, target in rows))
    return run(TRAIN.format(module=module, changes=changes, target=target), folder)


def source_of(module: str, i: int) -> str:
    """A source for a model with this part."""
    date = f"{i % 7 + 1} May 200{i % 9}"
    return SOURCES[module][i % 5 :] if module in SOURCES else date


@pytest.mark.slow
@pytest.mark.parametrize("module", ["dna", "neighbours", "ordinal", "quantiles"])
def test_a_model_with_it_is_served_as_it_predicts(module, tmp_path):
    assert train(module, tmp_path).returncode == 0
    # A plugin, as the server imports no module that its command line names.
    package = tmp_path / f"{module}-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    entry = f"[regard.plugins]\n{module} = {module}\n"
    (package / "entry_points.txt").write_text(entry)
    source = source_of(module, 2)
    predicted = python(tmp_path, "-m", "regard", "predict", "run", "--json", given=f"{source}\n")
    assert predicted.returncode == 0, predicted.stderr
    (output,) = json.loads(predicted.stdout)["outputs"]
    with serving(tmp_path) as port:
        served = ask(port, source)
    (result,) = served["results"]
    (answered,) = result["outputs"]
    assert answered["text"] == output["text"]
    assert answered.get("numbers") == output.get("numbers")


def test_every_section_has_a_recipe():
    text = (ROOT / "docs/extend.md").read_text()
    assert (
        len(MODULES)
        == text.count("```python")
        == text.count("regard.register.") - text.count("`regard.register")
    )


def test_a_metric_of_the_users_own_is_computed(tmp_path):
    (tmp_path / "first_character.py").write_text(MODULES["first_character"][0])
    code = (
        "import first_character\nfrom regard.evaluation.metrics import score\n"
        "assert score('first_character', ['ab', 'b'], [['ax'], ['c', 'd']]) == 0.5"
    )
    assert run(code, tmp_path).returncode == 0


def test_a_plugin_is_imported_when_its_name_is_met(tmp_path):
    (tmp_path / "cosine.py").write_text(MODULES["cosine"][0])
    package = tmp_path / "cosine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: cosine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[regard.plugins]\ncosine = cosine\n")
    code = (
        "import sys, regard\nregard.MultiHead(8, 2)\nassert 'cosine' not in sys.modules\n"
        "assert type(regard.MultiHead(8, 2, score='cosine').score).__name__ == 'Cosine'"
    )
    result = run(code, tmp_path)
    assert result.returncode == 0, result.stderr
