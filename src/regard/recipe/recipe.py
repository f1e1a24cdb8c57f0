"""The typed recipe: [data], [model], [train] and [decode], checked as a whole."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from os import PathLike, fspath
from typing import Any

from regard.core.config import RENAMED, nearest, read
from regard.core.errors import InvalidRecipe, Problem
from regard.core.registry import extensions
from regard.data.config import DataConfig
from regard.data.corpus import Prepared, SourceVocabularies, VocabularyType
from regard.generation.config import DecodeConfig
from regard.model.build import parse_model, part_names
from regard.model.model_config import SIZES, ModelConfig
from regard.recipe.check import decode_problems, model_problems, training_problems
from regard.tasks.base import Task, find_task
from regard.training.config import TrainConfig

TABLES = {"data": DataConfig, "train": TrainConfig, "decode": DecodeConfig}


@dataclass(frozen=True)
class Recipe:
    """The configuration of a training run."""

    data: DataConfig
    model: ModelConfig  # without the sizes of its vocabularies, which the data give
    train: TrainConfig
    decode: DecodeConfig
    # Of a recipe file: its folder, and the paths as they are written, by key. The tables above hold resolved paths.
    paths: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(table: Mapping[str, Any]) -> "Recipe":
        """Read tables. All problems of all tables are reported together, as InvalidRecipe."""
        table = with_text_paths(table)
        names = ("data", "model", "train", "decode")
        problems = []
        for key in table:
            if key in (*names, "paths"):
                continue
            if isinstance(table[key], Mapping):
                wanted = f"one of {', '.join(names)}"
                remedy = nearest(key, names, listed=True)
                problems.append(Problem(key, wanted, "an unknown table", remedy))
            else:
                problems.append(_without_table(key))
        parts: dict[str, Any] = {}
        for name in names:
            given = table.get(name, {})
            if not isinstance(given, Mapping):
                problems.append(Problem(name, "a table", repr(given), f"Write [{name}]."))
                continue
            if name == "model":
                part = _read_model(given)
            else:
                part = read(TABLES[name], given, name)
            if isinstance(part, list):
                problems += part
            else:
                parts[name] = part
        data = parts.get("data")
        model = parts.get("model")
        train = parts.get("train")
        # Checks between tables need tables that are valid on their own.
        if data is not None and model is not None:
            model = parts["model"] = with_inputs(model, data)
            problems += model_problems(model, data)
            if "decode" in parts:
                problems += decode_problems(parts["decode"], data, model)
            if train is not None:
                problems += training_problems(train, data, model)
        paths = table.get("paths", {})
        if not isinstance(paths, Mapping) or not all(_is_path(each) for each in paths.values()):
            problems.append(
                Problem("paths", "the paths of a recipe's file", repr(paths)[:80], "Leave it out.")
            )
        if problems:
            raise InvalidRecipe(problems)
        recipe = Recipe(**parts, paths=paths)
        return replace(recipe, train=recipe.train.with_defaults(recipe.task))

    def as_dict(self) -> dict[str, Any]:
        """The tables, as `of` reads them."""
        tables = {
            "data": asdict(self.data),
            "model": dict(self.model.table),
            "train": asdict(self.train),
            "decode": asdict(self.decode),
        }
        if self.paths:
            tables["paths"] = dict(self.paths)
        return tables

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Every key with a value, by its full name: ("train.learning_rate", 0.001)."""
        return settings({key: table for key, table in self.as_dict().items() if key != "paths"})

    def changes_since(self, before: "Recipe", *tables: str) -> str:
        """The keys of these tables whose values differ from those of an earlier recipe, in parentheses."""
        old = {key: value for key, value in before.settings() if key.startswith(tables)}
        new = {key: value for key, value in self.settings() if key.startswith(tables)}
        keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
        if not keys:
            return ""
        changes = "; ".join(f"{key} = {new.get(key)!r}, which was {old.get(key)!r}" for key in keys)
        return f" ({changes})"

    @cached_property
    def task(self) -> Task:
        """What the model is trained for."""
        return find_task(self.model, self.data)

    def extensions(self) -> list[dict[str, str | None]]:
        """The names in the recipe that were registered at run time, with the packages that registered them."""
        names = (table.registered() for table in (self.data, self.train, self.decode))
        return extensions(chain(part_names(self.model), *names))

    def sized(self, data: Prepared) -> dict[str, Any]:
        """The model's table with the sizes of the data's vocabularies, as `regard.build` takes it."""
        return self.with_sizes(data.sources, data.target)

    def with_sizes(self, sources: SourceVocabularies, target: VocabularyType) -> dict[str, Any]:
        """The same, with the sizes of these vocabularies."""
        sizes: dict[str, Any] = dict(self.task.sizes(target))
        model = self.model
        for option in ("source_vocab_size", "source_dim"):
            # A model of masked tokens has an encoder and no source: it reads its target.
            if not sources:
                continue
            places = model.sized_by(option)
            learned = [sources[place] for place in places]
            rows = [vocabulary.size for vocabulary in learned if vocabulary is not None]
            if rows:
                sizes[option] = rows[0] if len(places) == 1 else rows
        return dict(model.table) | sizes | self.task.source_sizes(sources)


def with_inputs(model: ModelConfig, data: DataConfig) -> ModelConfig:
    """The model with the input modules that its sources need, where its table does not name others."""
    read = data.source_fields
    if len(read) != len(model.encoders):
        return model
    chosen = {}
    for place, (name, each) in enumerate(zip(model.encoder_names, read, strict=True)):
        has_module = model.encoders[place].module.has_input_module
        if has_module and each.needs_input_module and not model.names_input(place):
            chosen[name] = {"kind": each.input_kind}
    if not chosen:
        return model
    table = with_input_tables(model.table, chosen)
    changed = parse_model(table, sized=False)
    if isinstance(changed, list):
        raise InvalidRecipe(changed)
    return changed


def with_input_tables(
    model: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A model's table in which these encoders ("encoder", or "encoders.1", ...) have these input modules."""
    table = dict(model)
    if "encoder" in inputs:
        table["encoder"] = {**model["encoder"], "input": inputs["encoder"]}
    if "encoders" in model:
        encoders = []
        for i, each in enumerate(model["encoders"], start=1):
            name = f"encoders.{i}"
            if name in inputs:
                each = {**each, "input": inputs[name]}
            encoders.append(each)
        table["encoders"] = encoders
    return table


def with_text_paths(value: Any, depth: int = 8) -> Any:
    """Tables in which path objects, which Python code may put there, are texts, which checkpoints can hold.

    depth   of nested tables and lists; no recipe is as deep
    """
    if isinstance(value, PathLike):
        return fspath(value)
    if depth and isinstance(value, Mapping):
        return {key: with_text_paths(each, depth - 1) for key, each in value.items()}
    if depth and type(value) in (list, tuple):
        return type(value)(with_text_paths(each, depth - 1) for each in value)
    return value


def _without_table(key: str) -> Problem:
    """The problem of a key outside of all tables. Its remedy names the tables that know the key."""
    names = (key, *RENAMED.get(key, "").split())
    known = [
        f"{name}.{each.name}"
        for name, config in TABLES.items()
        for each in fields(config)
        if each.name in names
    ]
    if known:
        remedy = f"Did you mean {' or '.join(known)}?"
    else:
        remedy = "Write the table before it: train.KEY, say."
    return Problem(key, f"a table before the key ({', '.join((*TABLES, 'model'))})", "none", remedy)


def _is_path(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, str) for each in value)
    return isinstance(value, str)


def _read_model(table: Mapping[str, Any]) -> ModelConfig | list[Problem]:
    given = [
        Problem(f"model.{key}", "nothing here: the data give it", repr(table[key]), "Leave it out.")
        for key in SIZES
        if key in table
    ]
    written = {key: value for key, value in table.items() if key not in SIZES}
    model = parse_model(written, sized=False)
    if isinstance(model, list):
        return given + model
    return given or model


def settings(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of nested tables with a value, by its full name; tables of a list are counted from 1."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{before}{key}.")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            numbered = {f"{key}.{i}": each for i, each in enumerate(value, start=1)}
            yield from settings(numbered, before)
        elif value is not None:
            yield f"{before}{key}", value
