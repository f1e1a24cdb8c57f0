"""Reading recipes: TOML files, changes of single keys, and the paths in a recipe."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.data import huggingface_datasets
from regard.data.config import DataConfig
from regard.data.example import Split
from regard.recipe.recipe import Recipe, settings, with_text_paths
from regard.recipe.shipped import find_recipe

PATHS = (
    "data.train", "data.valid", "data.test", "data.images", "data.files_from",
    "train.init_from", "train.distillation.teachers",
    "model.encoder.backbone.weights", "model.encoder.word_vectors", "model.decoder.word_vectors",
)  # fmt: skip


def read_recipe(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Recipe:
    """Read a TOML file, or tables, with changes such as "train.learning_rate=0.001" or "model.encoder.layers=6"."""
    return Recipe.of(read_tables(source, changes))


def read_tables(
    source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()
) -> dict[str, Any]:
    """The tables of a recipe with changes, unchecked, with resolved paths (see `resolve_paths`).

    A recipe that begins with `extends = "NAME"` changes the tables of the recipe it names: a shipped one, or a file.
    """
    path = None
    if isinstance(source, Mapping):
        tables = _extended(source, [])
    else:
        path = Path(source)
        tables = _extended(read_toml(path), [path])
    tables = with_text_paths(tables)
    for change in changes:
        tables = with_setting(tables, change)
    if "paths" in tables:
        return tables
    folder = path.parent if path else Path()
    return resolve_paths(tables, folder)


def _extended(tables: Mapping[str, Any], files: list[Path]) -> dict[str, Any]:
    """Merge tables into those of the recipe that they extend.

    files   the recipe files read so far, each of which is extended by the one before it
    """
    own = {key: value for key, value in tables.items() if key != "extends"}
    base = tables.get("extends")
    if base is None:
        return own
    if not isinstance(base, str):
        raise InvalidArgument(
            "extends", wanted="the name or file of a recipe", got=repr(base), remedy="Name one."
        )
    path = Path(base)
    if files:
        path = files[-1].parent / base
    if not path.is_file():
        path = find_recipe(base)
    if path.resolve() in [file.resolve() for file in files]:
        names = " → ".join(map(str, [*files, path]))
        raise InvalidArgument(
            "extends", wanted="a recipe that does not extend this one", got=names, remedy="End it."
        )
    return _merged(_extended(read_toml(path), [*files, path]), own)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the keys of another table; a table of another kind replaces the base's table."""
    merged = dict(base)
    for key, value in own.items():
        before = base.get(key)
        merged[key] = value
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            kind = before.get("kind")
            if value.get("kind", kind) == kind:
                merged[key] = _merged(before, value)
    return merged


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(
            str(path), wanted="a recipe", got=got, remedy="`regard recipes` lists ours."
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(
            str(path), wanted="a TOML file", got=str(error), remedy="Mend that line."
        ) from None


def with_setting(table: Mapping[str, Any], change: str) -> dict[str, Any]:
    """The tables with one key set by `key=value`; a value that is not TOML is taken as text."""
    key, equals, value = change.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        remedy = "As in --set train.learning_rate=0.001."
        raise InvalidArgument("--set", wanted="key=value", got=repr(change), remedy=remedy)
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = value.strip()
    return _put(table, parts, parsed, key)


def with_value(table: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The tables with one key, given by its full name, set to a value."""
    return _put(table, key.split("."), value, key)


def resolve_paths(tables: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tables with absolute paths: relative ones are in the recipe's folder, else in the working directory.

    The table `paths` of the result holds the folder and the paths as they were written.
    """
    resolved = dict(tables)
    written = dict[str, Any]()
    for key, value in _given_paths(tables):
        written[key] = value
        files = [_resolve(file, folder) for file in ([value] if isinstance(value, str) else value)]
        resolved = _put(
            resolved, key.split("."), files[0] if isinstance(value, str) else files, key
        )
    if written:
        return resolved | {"paths": {"folder": str(folder.absolute()), **written}}
    return resolved


def locate_data(recipe: Recipe, splits: Sequence[Split] | None = None) -> DataConfig:
    """The data of a recipe, perhaps of a checkpoint, with the paths of these splits (default: all) as they are now.

    A file is where it was when the recipe was read, or else where its path as written leads from the recipe's folder or
    from the working directory. All missing files are refused at once, with the paths tried.
    """
    data = recipe.data
    problems = []
    if splits is None:
        splits = data.splits
    chosen = [data.files_key(split) for split in splits]
    for key in dict.fromkeys([*chosen, "images", "files_from"]):
        stored = getattr(data, key)
        written = recipe.paths.get(f"data.{key}")
        if written is None or stored is None or data.reader is not None:
            continue
        if len(_listed(written)) != len(_listed(stored)):
            got = repr(written)[:80]
            raise InvalidRecipe(
                [Problem(f"paths.data.{key}", "a path for each file", got, "Check it.")]
            )
        found = []
        for path, relative in zip(_listed(stored), _listed(written), strict=True):
            candidates = [Path(recipe.paths.get("folder", "")) / relative, Path(relative)]
            if path != relative:
                # The place where the file was when the recipe was read comes first.
                candidates.insert(0, Path(path))
            tried = list(dict.fromkeys(map(Path.absolute, candidates)))
            there = [path]
            if _is_local(path):
                there = [str(each) for each in tried if each.exists()]
            found.append(next(iter(there), path))
            if not there:
                got = f"none at {' nor at '.join(map(str, tried))}"
                remedy = "Paths are relative to the recipe's folder, then to the working directory."
                problems.append(Problem(f"data.{key}", "a file to read", got, remedy))
        changed: dict[str, Any] = {key: tuple(found)}
        if isinstance(stored, str):
            changed = {key: found[0]}
        data = replace(data, **changed)
    if problems:
        raise InvalidRecipe(problems)
    return data


def _listed(paths: str | Sequence[str]) -> Sequence[str]:
    if isinstance(paths, str):
        return [paths]
    return paths


def _given_paths(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The paths of a recipe by key: texts, or lists of texts. Anything else is left for the checks."""
    for key, value in settings(tables):
        if re.sub(r"^model\.encoders\.\d+", "model.encoder", key) not in PATHS:
            continue
        files = [value] if isinstance(value, str) else value
        is_list = isinstance(files, list) and len(files) > 0
        if is_list and all(isinstance(file, str) for file in files):
            yield key, value


def _resolve(file: str, folder: Path) -> str:
    """The absolute path of a file in the recipe's folder or the working directory; else the path as written."""
    if not _is_local(file):
        return file
    for path in (folder / file, Path(file)):
        if path.exists():
            return str(path.absolute())
    return file


def _is_local(file: str) -> bool:
    return not huggingface_datasets.is_dataset(file)


def _put(table: Mapping[str, Any], parts: list[str], value: Any, key: str) -> dict[str, Any]:
    first, *rest = parts
    if not rest:
        return {**table, first: value}
    inner = table.get(first, {})
    is_place = len(rest) > 1 and rest[0].isdigit()
    if isinstance(inner, list) and is_place and 0 < int(rest[0]) <= len(inner):
        # The tables of a list are counted from 1.
        index = int(rest[0]) - 1
        changed = _put(inner[index], rest[1:], value, key)
        return {**table, first: [*inner[:index], changed, *inner[index + 1 :]]}
    if not isinstance(inner, Mapping):
        raise InvalidArgument(
            "--set", wanted=f"a table at {first!r}", got=repr(inner), remedy=f"{key} is no key."
        )
    return {**table, first: _put(inner, rest, value, key)}
