"""docs/extend.md, executed as a user's own modules outside of the package: train, save, load, look, evaluate."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
if "reader" in recipe["data"]:  # which splits lines itself
    del recipe["data"]["source"]["column"], recipe["data"]["target"]["column"]
if "pool" in recipe["model"]:  # a classifier has labels and no decoder
    del recipe["model"]["decoder"]
    recipe["data"]["target"] = dict(kind="label", column="2")
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
print(model.predict(["3 May 2001"]))
look = regard.look(model, "3 May 2001")
assert look.maps
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "module",
    [pytest.param(each, marks=pytest.mark.slow) if i else each for i, each in enumerate(MODULES)],
)
def test_a_part_of_the_users_own_is_trained_saved_loaded_and_shown(module, tmp_path):
    code, changes = MODULES[module]
    (tmp_path / f"{module}.py").write_text(code)
    (tmp_path / "rows.tsv").write_text(
        "".join(f"{i % 7 + 1} May 200{i % 9}\t{'ab'[i % 2]}\n" for i in range(40))
    )
    (tmp_path / "rows.txt").write_text(
        "".join(f"{i % 7 + 1} May 200{i % 9} -> {'ab'[i % 2]}\n" for i in range(40))
    )
    trained = run(TRAIN.format(module=module, changes=changes), tmp_path)
    assert trained.returncode == 0, trained.stderr
    used = run(USE.format(module=module), tmp_path)
    assert used.returncode == 0, used.stderr
    assert re.search(rf"got no registration of that name. Import {module} first", used.stdout)


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
