"""Shell completion of values: recipes, data sets, metrics, views, splits, devices and keys.
Imports nothing heavy.
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

VIEWS = ("heat", "heads", "lines", "image", "series")


def recipes() -> list[str]:
    from regard.recipe.shipped import shipped_recipes

    return [path.stem for path in shipped_recipes()]


def data_sets() -> list[str]:
    from regard.data.public_datasets import DATASETS

    return list(DATASETS)


def metrics() -> list[str]:
    from regard.core.metric_names import HIGHER_IS_BETTER

    return list(HIGHER_IS_BETTER)


def views() -> list[str]:
    return list(VIEWS)


def splits() -> list[str]:
    return ["train", "valid", "test"]


def devices() -> list[str]:
    return ["auto", "cpu", "cuda"]


def recipe_keys() -> list[tuple[str, str]]:
    """Each key of a recipe with its meaning: "train.learning_rate=", …"""
    schema = _schema()
    return list(_keys(schema, schema["definitions"]))


def decode_keys() -> list[tuple[str, str]]:
    """Each key of a recipe's [decode]."""
    schema = _schema()
    return list(_keys(schema["properties"]["decode"], schema["definitions"]))


def word_vector_keys() -> list[tuple[str, str]]:
    from regard.word_vectors.config import Word2VecConfig

    return [(f"{each.name}=", each.metadata["doc"]) for each in fields(Word2VecConfig)]


def _schema() -> dict[str, Any]:
    from regard.recipe.shipped import SCHEMA

    schema: dict[str, Any] = json.loads(SCHEMA.read_text("utf-8"))
    return schema


def _keys(
    schema: dict[str, Any], definitions: dict[str, Any], before: str = ""
) -> Iterator[tuple[str, str]]:
    """The keys of a JSON Schema; a part of a model has those of each of its kinds."""
    properties = {
        name: value
        for kind in _kinds(schema, definitions)
        for name, value in kind.get("properties", {}).items()
    }
    for name, value in properties.items():
        inner = list(_keys(value, definitions, f"{before}{name}."))
        yield from inner or [(f"{before}{name}=", value.get("description", ""))]


def _kinds(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema, and all that it may be instead."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    yield schema
    for other in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from _kinds(other, definitions)
