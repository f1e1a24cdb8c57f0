"""The JSON Schema of a recipe (https://json-schema.org), for completion and validation in editors.

Written beside the shipped recipes as recipe.schema.json, which their first line names:

    python -m regard.recipe.schema > src/regard/recipes/recipe.schema.json
"""

import json
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from regard.core.config import Config, Range
from regard.core.registry import Registry
from regard.data.config import DataConfig
from regard.decoding.config import DecodeConfig
from regard.model.model_config import ModelOptions
from regard.recipe.fields import keys, parts
from regard.training.config import TrainConfig

TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def recipe_schema() -> dict[str, Any]:
    """The schema of a whole recipe."""
    model = table_schema(ModelOptions)
    for role, kinds in parts().items():
        model["properties"][role] = {"oneOf": [table_schema(config, kind) for kind, config in kinds.items()]}
    model["properties"]["encoders"] = {"type": "array", "items": model["properties"]["encoder"], "minItems": 2}
    tables = {
        "data": table_schema(DataConfig),
        "model": model,
        "train": table_schema(TrainConfig),
        "decode": table_schema(DecodeConfig),
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A Regard recipe",
        "type": "object",
        "properties": tables,
        "additionalProperties": False,
    }


def schema_text() -> str:
    """The schema as a JSON file."""
    return json.dumps(recipe_schema(), indent=1, ensure_ascii=False) + "\n"


def table_schema(config: type[Config], kind: str | None = None) -> dict[str, Any]:
    """The schema of a configuration's table; of a part of the model, with its kind."""
    properties: dict[str, Any] = {} if kind is None else {"kind": {"const": kind}}
    for key in keys(config):
        described = {"description": key.description} if key.description else {}
        is_default = key.default is not None and key.table is None
        properties[key.name] = value_schema(key.hint) | described | ({"default": key.default} if is_default else {})
    required = {} if kind is None else {"required": ["kind"]}
    return {"type": "object", "properties": properties, "additionalProperties": False, **required}


def value_schema(hint: Any) -> dict[str, Any]:
    """The schema of the values that an annotation allows. TOML has no null: None is written by leaving a key out."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return value_schema(arguments[0]) | _limits(arguments[1:])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        options = [value_schema(argument) for argument in arguments if argument is not NoneType]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is tuple:
        return {"type": "array", "items": value_schema(arguments[0]), "minItems": 1}
    return {"type": TYPES[hint]} if hint in TYPES else table_schema(hint)


def _limits(annotations: Sequence[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for each in annotations:
        if isinstance(each, Range):
            limits["minimum"] = each.low
            if each.high is not None:
                limits["exclusiveMaximum" if each.below else "maximum"] = each.high
        elif isinstance(each, Registry) and len(each):
            limits["enum"] = list(each)
    return limits


if __name__ == "__main__":
    print(schema_text(), end="")
