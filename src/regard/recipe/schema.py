"""The keys of a recipe, read from the configuration dataclasses, and its JSON Schema (https://json-schema.org).

The schema is for completion and validation in editors. It is in the folder of the shipped recipes, which name it in
their first line, as recipe.schema.json:

    python -m regard.recipe.schema > src/regard/recipes/recipe.schema.json
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.core.config import Config, Range, config_class
from regard.core.registry import Registry
from regard.data.config import DataConfig
from regard.generation.config import DecodeConfig
from regard.model.build import DECODERS, ENCODERS, HEADS, INPUTS, POOLS
from regard.model.model_config import SIZES, ModelOptions
from regard.training.config import TrainConfig
from regard.word_vectors.config import Word2VecConfig

EXTENDS = {
    "type": "string",
    "description": "a recipe whose tables this one changes: a shipped one's name, or a file",
}
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


@dataclass(frozen=True)
class Key:
    """A key of a table."""

    name: str
    hint: Any  # its type annotation
    default: Any
    description: str

    @property
    def table(self) -> type[Config] | None:
        """The configuration of a nested table."""
        return config_class(self.hint)


def keys(config: type[Config]) -> Iterator[Key]:
    """The keys of a configuration, without the model sizes that the data give."""
    hints = get_type_hints(config, include_extras=True)
    # The keys of a mixin, which have to be given by name, stand after the part's own.
    for field in sorted(fields(config), key=lambda field: bool(field.kw_only)):
        if config is not ModelOptions or field.name not in SIZES:
            yield Key(field.name, hints[field.name], _default(field), field.metadata.get("doc", ""))


def parts() -> dict[str, dict[str, type[Config]]]:
    """The configurations of the registered encoders, decoders and pools, by role and kind."""
    registries: tuple[Registry[Any], ...] = (ENCODERS, DECODERS, POOLS, HEADS)
    return {
        registry.kind: {kind: registry[kind].config for kind in registry} for registry in registries
    }


def tables() -> Iterator[tuple[str, str, type[Config]]]:
    """The tables of a recipe: name, note, configuration."""
    yield from _with_nested("data", "", DataConfig)
    yield "model", "", ModelOptions
    for role, kinds in parts().items():
        for kind, config in kinds.items():
            yield from _with_nested(f"model.{role}", f'kind = "{kind}"', config)
        if role == "encoder":
            for kind in INPUTS:
                entry = INPUTS[kind].config
                yield from _with_nested("model.encoder.input", f'kind = "{kind}"', entry)
    yield from _with_nested("train", "", TrainConfig)
    yield "decode", "", DecodeConfig
    yield "words", "`regard words train --set`", Word2VecConfig


def _with_nested(
    name: str, note: str, config: type[Config]
) -> Iterator[tuple[str, str, type[Config]]]:
    yield name, note, config
    for kind, variant in config.variants().items():
        yield from _with_nested(name, f'kind = "{kind}"', variant)
    if config.variants():
        return
    for key in keys(config):
        if key.table is not None:
            yield from _with_nested(f"{name}.{key.name}", note, key.table)


def _default(field: "Field[Any]") -> Any:
    if field.default_factory is MISSING:
        return field.default
    return field.default_factory()


def recipe_schema() -> dict[str, Any]:
    """The schema of a whole recipe."""
    model = table_schema(ModelOptions)
    for role, kinds in parts().items():
        model["properties"][role] = {
            "oneOf": [table_schema(config, kind) for kind, config in kinds.items()]
        }
    for encoder in model["properties"]["encoder"]["oneOf"]:
        encoder["properties"]["input"] = {"$ref": "#/definitions/input"}
    model["properties"]["encoders"] = {
        "type": "array",
        "items": model["properties"]["encoder"],
        "minItems": 2,
    }
    # A head without keys may be written as its kind alone.
    names = {"enum": list(HEADS)}
    model["properties"]["head"] = {"anyOf": [names, model["properties"]["head"]]}
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
        "properties": {"extends": EXTENDS, **tables},
        "additionalProperties": False,
        "definitions": {"input": _input_schema()},
    }


def _input_schema() -> dict[str, Any]:
    """The input module of an encoder, which may also be written as its kind alone."""
    modules = [table_schema(INPUTS[kind].config, kind) for kind in INPUTS]
    return {"anyOf": [{"enum": list(INPUTS)}, {"oneOf": modules}]}


def schema_text() -> str:
    """The schema as a JSON file."""
    return json.dumps(recipe_schema(), indent=1, ensure_ascii=False) + "\n"


def table_schema(config: type[Config], kind: str | None = None) -> dict[str, Any]:
    """The schema of a configuration's table; of a part of the model, with its kind."""
    if config.variants():
        return {"anyOf": [table_schema(variant) for variant in config.variants().values()]}
    properties: dict[str, Any] = {}
    if kind is not None:
        properties["kind"] = {"const": kind}
    for key in keys(config):
        schema = value_schema(key.hint)
        if key.description:
            schema["description"] = key.description
        if key.default is not None and key.table is None:
            schema["default"] = key.default
        properties[key.name] = schema
    whole = {"type": "object", "properties": properties, "additionalProperties": False}
    if kind is not None:
        whole["required"] = ["kind"]
    return whole


def value_schema(hint: Any) -> dict[str, Any]:
    """The schema of the values that an annotation allows. TOML has no null: None is written by leaving a key out."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return value_schema(arguments[0]) | _limits(arguments[1:])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        options = [value_schema(argument) for argument in arguments if argument is not NoneType]
        if len(options) == 1:
            return options[0]
        return {"anyOf": options}
    if origin is tuple:
        return {"type": "array", "items": value_schema(arguments[0]), "minItems": 1}
    if origin is dict:
        return {"type": "object", "additionalProperties": value_schema(arguments[1])}
    if hint in TYPES:
        return {"type": TYPES[hint]}
    return table_schema(hint)


def _limits(annotations: Sequence[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for each in annotations:
        if isinstance(each, Range):
            limits["minimum"] = each.low
            if each.high is not None:
                upper_limit = "exclusiveMaximum" if each.below else "maximum"
                limits[upper_limit] = each.high
        elif isinstance(each, Registry) and len(each):
            limits["enum"] = list(each)
    return limits


if __name__ == "__main__":
    print(schema_text(), end="")
