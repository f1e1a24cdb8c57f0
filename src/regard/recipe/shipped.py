"""The recipes that come with Regard, found without importing PyTorch."""

import tomllib
from pathlib import Path
from typing import Any

from regard.core.config import nearest
from regard.core.errors import InvalidArgument

FOLDER = Path(__file__).parents[1] / "recipes"
SCHEMA = FOLDER / "recipe.schema.json"  # written by `regard.recipe.schema`


def shipped_recipes() -> list[Path]:
    """The recipes that come with Regard."""
    return sorted(FOLDER.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file or the shipped recipe of this name."""
    shipped = {path.stem: path for path in shipped_recipes()}
    if Path(name).is_file() or name.endswith(".toml"):
        return Path(name)
    if name not in shipped:
        wanted = f"a TOML file, or one of {', '.join(shipped)}"
        raise InvalidArgument(
            "recipe", wanted=wanted, got=repr(name), remedy=nearest(name, shipped, listed=True)
        )
    return shipped[name]


def recipes_by_task() -> dict[str, list[Path]]:
    """The shipped recipes, grouped by what their models do."""
    groups: dict[str, list[Path]] = {}
    for path in shipped_recipes():
        task = _task(tomllib.loads(path.read_text("utf-8")))
        groups.setdefault(task, []).append(path)
    return dict(sorted(groups.items()))


def _task(tables: dict[str, Any]) -> str:
    data = tables["data"]
    sources = data.get("sources", [])
    if "source" in data and "sources" not in data:
        sources = [data["source"]]
    if data["target"].get("kind") == "tags":
        return "tagging"
    if "series" in data:
        return "forecasting"
    if data["target"].get("kind") == "label":
        return "classification"
    if any("features" in source for source in sources):
        return "speech to text"
    if "head" in tables["model"]:
        return "masked language model"
    if any(source.get("kind") == "image" for source in sources):
        return "image to text"
    return "text to text" if sources else "language model"
