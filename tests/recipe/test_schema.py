"""The JSON Schema and the reference are generated from the dataclasses, and current."""

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from regard.core.config import Config
from regard.recipe import reference as reference_module, schema as schema_module
from regard.recipe.schema import keys, recipe_schema, tables, value_schema
from regard.recipe.shipped import shipped_recipes
from regard.training.config import TrainConfig

ROOT = Path(__file__).parents[2]


def printed(module: str) -> str:
    """What a program of the package prints, in a process without the parts that other tests register."""
    done = subprocess.run(
        [sys.executable, "-m", module], capture_output=True, encoding="utf-8", check=True
    )
    return done.stdout


def test_the_shipped_schema_is_current():
    shipped = (ROOT / "src/regard/recipes/recipe.schema.json").read_text("utf-8")
    assert shipped == printed("regard.recipe.schema"), (
        "run python -m regard.recipe.schema > src/regard/recipes/recipe.schema.json"
    )


def test_the_reference_is_current():
    written = (ROOT / "docs/recipe.md").read_text("utf-8")
    assert written == printed("regard.recipe.reference"), (
        "run python -m regard.recipe.reference > docs/recipe.md"
    )


def test_every_key_is_described():
    missing = [
        f"{name}.{key.name}"
        for name, _, config in tables()
        for key in keys(config)
        if not key.description
    ]
    assert not missing


def fits(value, schema):
    """Whether a value is valid under the parts of JSON Schema that are used here."""
    if "$ref" in schema:
        schema = recipe_schema()["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    for several, enough in (("anyOf", any), ("oneOf", lambda each: sum(each) == 1)):
        if several in schema:
            return enough([fits(value, option) for option in schema[several]])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if schema["type"] == "object":
        known = schema["properties"]
        complete = (
            set(schema.get("required", ())) <= value.keys() if isinstance(value, dict) else False
        )
        return complete and all(
            key in known and fits(inner, known[key]) for key, inner in value.items()
        )
    if schema["type"] == "array":
        return (
            isinstance(value, list)
            and bool(value)
            and all(fits(item, schema["items"]) for item in value)
        )
    types = {"string": str, "boolean": bool, "integer": int, "number": int | float}
    if not isinstance(value, types[schema["type"]]) or (
        isinstance(value, bool) and schema["type"] != "boolean"
    ):
        return False
    low, high, below = (schema.get(key) for key in ("minimum", "maximum", "exclusiveMaximum"))
    return (
        (low is None or value >= low)
        and (high is None or value <= high)
        and (below is None or value < below)
    )


@pytest.mark.parametrize("path", shipped_recipes(), ids=lambda path: path.stem)
def test_shipped_recipes_name_the_schema_and_fit_it(path):
    text = path.read_text("utf-8")
    assert text.startswith("#:schema recipe.schema.json\n# ")
    assert (path.parent / "recipe.schema.json").is_file()
    assert fits(tomllib.loads(text), recipe_schema())


@pytest.mark.parametrize(
    "table",
    [
        {"train": {"learning_rte": 0.1}},
        {"train": {"label_smoothing": 1.0}},
        {"train": {"max_steps": 0}},
        {"train": {"max_steps": "many"}},
        {"decode": {"quantization": "int4"}},
        {"data": {"synthetic": "date"}},
        {"model": {"encoder": {"dim": 3}}},
        {"model": {"encoder": {"kind": "rnn", "heads": 3}}},
        {"model": {"vocab_size": 100}},
        {"modle": {}},
    ],
    ids=str,
)
def test_the_schema_refuses(table):
    assert not fits(table, recipe_schema())


def test_defaults_are_in_the_schema_and_fit_it():
    properties = recipe_schema()["properties"]["train"]["properties"]
    assert properties["betas"]["default"] == TrainConfig.betas
    for name, property in properties.items():
        default = json.loads(json.dumps(property.get("default")))
        assert default is None or fits(default, property), name


def test_a_nested_table_has_its_own_schema():
    nested = next(key for key in keys(TrainConfig) if key.name == "scheduled_sampling")
    assert issubclass(nested.table, Config)
    assert value_schema(nested.hint)["properties"]["teacher_forcing"]["maximum"] == 1.0


@pytest.mark.parametrize("module", [reference_module, schema_module], ids=["reference", "schema"])
def test_modules_that_write_a_file_print_it_as_programs_only(module, capsys):
    """`make docs` writes what they print; imported, they print nothing."""
    runpy.run_path(module.__file__, run_name="imported")
    assert not capsys.readouterr().out
    runpy.run_path(module.__file__, run_name="__main__")
    assert len(capsys.readouterr().out) > 1000
