"""`regard sweep`: one training run for each combination of settings, and a table of their results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from regard.api.train import train
from regard.core.errors import InvalidArgument
from regard.core.metric_names import HIGHER_IS_BETTER
from regard.core.text_table import text_table
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from regard.recipe.shipped import find_recipe
from regard.training.telemetry.log_file import LOG_FILE, EventHandler, ignore_event


@dataclass(frozen=True)
class SweepRun:
    """One combination of settings and its best validation."""

    settings: Mapping[str, str]
    folder: Path
    metric: str
    value: float
    step: int


def sweep(
    recipe: str | Path | Mapping[str, Any],
    out: str | Path,
    grid: Mapping[str, Sequence[object]],
    *,
    changes: Sequence[str] = (),
    cache: Path | None = None,
    on_event: EventHandler = ignore_event,
    progress: bool = True,
) -> list[SweepRun]:
    """Train a recipe with every combination of the values of a grid; the best run first, by `train.monitor`.

    grid       values by key: {"train.learning_rate": [1e-3, 5e-4], "model.encoder.layers": [2, 4]}
    progress   as of `regard.train`

    Each run has a folder of its own in `out`. A sweep that was stopped goes on where it ended when it is called again.
    """
    if not grid or not all(grid.values()):
        got = ", ".join(key for key, values in grid.items() if not values) or "no key"
        raise InvalidArgument("grid", wanted="keys, each with its values", got=got, remedy="As in rate=1e-3,5e-4.")
    source = find_recipe(str(recipe)) if isinstance(recipe, str | Path) else recipe
    combinations = [dict(zip(grid, map(str, values), strict=True)) for values in product(*grid.values())]
    # Every combination is checked before the first one is trained.
    recipes = [read_recipe(source, [*changes, *_settings(each)]) for each in combinations]
    results = []
    for settings, parsed in zip(combinations, recipes, strict=True):
        if "valid" not in parsed.data.splits:
            raise InvalidArgument(
                "recipe", wanted="validation data to compare by", got="none", remedy="Set data.valid."
            )
        folder = Path(out) / " ".join(_settings(settings)).replace("/", "_")
        train(parsed, folder, resume=folder.exists(), cache=cache, on_event=on_event, progress=progress)
        results.append(_result(settings, folder, parsed))
    higher = HIGHER_IS_BETTER[results[0].metric]
    return sorted(results, key=lambda result: -result.value if higher else result.value)


def sweep_table(results: Sequence[SweepRun]) -> str:
    """The results as text."""
    rows = [[*results[0].settings, f"best {results[0].metric}", "step", "run"]]
    rows += [[*each.settings.values(), f"{each.value:.4f}", f"{each.step:,}", str(each.folder)] for each in results]
    return text_table(rows, left=len(results[0].settings))


def _settings(combination: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in combination.items()]


def _result(settings: Mapping[str, str], folder: Path, recipe: Recipe) -> SweepRun:
    metric = recipe.train.monitor
    events = [json.loads(line) for line in (folder / LOG_FILE).read_text("utf-8").splitlines()]
    values = [(event[metric], event["step"]) for event in events if event.get("event") == "validation"]
    value, step = (max if HIGHER_IS_BETTER[metric] else min)(values)
    return SweepRun(settings, folder, metric, value, step)
