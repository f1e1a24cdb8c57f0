"""Reading recipes: TOML files, changes of single keys, the shipped recipes, and the paths in a recipe."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.data import huggingface_datasets
from regard.recipe.recipe import Recipe, settings

DATA_PATHS = ("data.train", "data.valid", "data.test", "data.images")
PATHS = (*DATA_PATHS, "train.init_from", "model.encoder.backbone.weights")


def read_recipe(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Recipe:
    """From a TOML file or tables, with changes such as "train.learning_rate=0.001" or "model.encoder.layers=6"."""
    return Recipe.of(read_tables(source, changes))


def read_tables(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a recipe with changes, unchecked. Paths of a file's recipe are resolved (see `resolve_paths`).

    A recipe that begins with `extends = "NAME"`, a shipped recipe or a file, changes the tables of that one.
    """
    path = None if isinstance(source, Mapping) else Path(source)
    tables = _extended(source if isinstance(source, Mapping) else read_toml(Path(source)), [path] if path else [])
    for change in changes:
        tables = with_setting(tables, change)
    return tables if isinstance(source, Mapping) else resolve_paths(tables, Path(source).parent)


def _extended(tables: Mapping[str, Any], files: list[Path]) -> dict[str, Any]:
    """The tables with those of the recipe that they extend; `files` extend one another, the last one first read."""
    own = {key: value for key, value in tables.items() if key != "extends"}
    base = tables.get("extends")
    if base is None:
        return own
    if not isinstance(base, str):
        raise InvalidArgument("extends", wanted="the name or file of a recipe", got=repr(base), remedy="Name one.")
    beside = files[-1].parent / base if files else Path(base)
    path = beside if beside.is_file() else find_recipe(base)
    if path.resolve() in [file.resolve() for file in files]:
        names = " → ".join(map(str, [*files, path]))
        raise InvalidArgument("extends", wanted="a recipe that does not extend this one", got=names, remedy="End it.")
    return _merged(_extended(read_toml(path), [*files, path]), own)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the keys of another table; a table of another kind takes the place of the base's."""
    merged = dict(base)
    for key, value in own.items():
        before = base.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            kind = before.get("kind")
            value = _merged(before, value) if value.get("kind", kind) == kind else value
        merged[key] = value
    return merged


def shipped_recipes() -> list[Path]:
    """The recipes that come with Regard."""
    return sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file of this name, or the shipped recipe of this name."""
    shipped = {path.stem: path for path in shipped_recipes()}
    if Path(name).is_file() or name.endswith(".toml"):
        return Path(name)
    if name not in shipped:
        wanted = f"a TOML file, or one of {', '.join(shipped)}"
        raise InvalidArgument("recipe", wanted=wanted, got=repr(name), remedy=nearest(name, shipped))
    return shipped[name]


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(str(path), wanted="a recipe", got=got, remedy="`regard recipes` lists ours.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(str(path), wanted="a TOML file", got=str(error), remedy="Mend that line.") from None


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


def resolve_paths(tables: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tables with relative paths resolved against the recipe's folder, then the working directory.

    The table `paths` of the result holds the folder and the paths as they were written.
    """
    resolved, written = dict(tables), dict[str, Any]()
    for key, value in _given_paths(tables):
        written[key] = value
        files = [_resolve(file, folder) for file in ([value] if isinstance(value, str) else value)]
        resolved = _put(resolved, key.split("."), files[0] if isinstance(value, str) else files, key)
    return resolved | {"paths": {"folder": str(folder.absolute()), **written}} if written else resolved


def check_files(recipe: Recipe) -> None:
    """Refuse a recipe from a file whose data are in neither place: all missing files at once, with the paths tried."""
    problems = []
    folder = recipe.paths.get("folder", "")
    for key in [key for key in DATA_PATHS if key in recipe.paths and recipe.data.reader is None]:
        written = recipe.paths[key]
        for file in [written] if isinstance(written, str) else written:
            tried = list(dict.fromkeys([Path(folder) / file, Path(file).absolute()]))
            if _is_local(file) and not any(path.exists() for path in tried):
                got = f"none at {' nor at '.join(map(str, tried))}"
                problems.append(Problem(key, "a file to read", got, "Paths are relative to the recipe's folder."))
    if problems:
        raise InvalidRecipe(problems)


def _given_paths(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The paths of a recipe by key: texts, or lists of texts. Anything else is left for the checks."""
    for key, value in settings(tables):
        is_path = re.sub(r"^model\.encoders\.\d+", "model.encoder", key) in PATHS
        files = [value] if isinstance(value, str) else value
        if is_path and files and isinstance(files, list) and all(isinstance(file, str) for file in files):
            yield key, value


def _resolve(file: str, folder: Path) -> str:
    beside = folder / file
    return str(beside) if _is_local(file) and not Path(file).is_absolute() and beside.exists() else file


def _is_local(file: str) -> bool:
    return not huggingface_datasets.is_dataset(file)


def _put(table: Mapping[str, Any], parts: list[str], value: Any, key: str) -> dict[str, Any]:
    first, *rest = parts
    if not rest:
        return {**table, first: value}
    inner = table.get(first, {})
    if isinstance(inner, list) and rest[0].isdigit() and 0 < int(rest[0]) <= len(inner) and len(rest) > 1:
        index = int(rest[0]) - 1
        return {**table, first: [*inner[:index], _put(inner[index], rest[1:], value, key), *inner[index + 1 :]]}
    if not isinstance(inner, Mapping):
        raise InvalidArgument("--set", wanted=f"a table at {first!r}", got=repr(inner), remedy=f"{key} is no key.")
    return {**table, first: _put(inner, rest, value, key)}
