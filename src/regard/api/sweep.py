"""`regard sweep`: a training run for each combination of settings, or a search by Optuna,
and a table of results.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, nan
from pathlib import Path
from typing import Any, Literal

from regard.api.train import train
from regard.core.errors import Diverged, InvalidArgument, MissingExtra
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


@dataclass(frozen=True)
class Range:
    """The values of a key that a search may try: from `low` to `high`,
    whole numbers if both are.
    """

    low: int | float
    high: int | float
    log: bool = False  # as many trials between 1e-4 and 1e-3 as between 1e-3 and 1e-2

    @classmethod
    def parse(cls, key: str, text: str) -> "Range":
        """From LOW:HIGH or LOW:HIGH:log."""
        ends = text.removesuffix(":log").split(":")
        is_log = text.endswith(":log")
        try:
            low, high = (int(end) if re.fullmatch(r"-?\d+", end) else float(end) for end in ends)
        except ValueError:
            low = high = nan
        if not (-inf < low < high < inf and (low > 0 or not is_log)):
            wanted = "LOW:HIGH or LOW:HIGH:log, the lower one first, and positive for log"
            remedy = "As in train.learning_rate=1e-4:1e-2:log."
            raise InvalidArgument(f"range of {key}", wanted=wanted, got=repr(text), remedy=remedy)
        return cls(low, high, is_log)


def sweep(
    recipe: str | Path | Mapping[str, Any],
    out: str | Path,
    grid: Mapping[str, Sequence[object]] | None = None,
    *,
    ranges: Mapping[str, str | Range] | None = None,
    trials: int = 20,
    changes: Sequence[str] = (),
    cache: Path | None = None,
    on_event: EventHandler = ignore_event,
    progress: bool = True,
) -> list[SweepRun]:
    """Train a recipe with every combination of the values of a grid; the best run first,
    by `train.monitor`.

    recipe     a TOML file, the name of a built-in recipe, or a mapping with its tables
    out        the folder of the runs, each in a folder of its own
    grid       values by key: {"train.learning_rate": [1e-3, 5e-4], "model.encoder.layers": [2, 4]}
    ranges     search instead, with Optuna's default sampler: {"train.learning_rate":
               "1e-4:1e-2:log"}; the values of a grid are then choices of the search
    trials     runs of a search; one that diverges counts, and is left out of the results
    changes    of the recipe, for all runs: "train.max_steps=500"
    cache, on_event, progress   as of `regard.train`

    A sweep that was stopped goes on where it ended when it is called again.
    """
    grid = grid or {}
    ranges = ranges or {}
    if not (grid or ranges) or not all(grid.values()):
        got = ", ".join(key for key, values in grid.items() if not values) or "no key"
        raise InvalidArgument(
            "grid", wanted="keys, each with its values", got=got, remedy="As in rate=1e-3,5e-4."
        )
    if both := sorted(grid.keys() & ranges.keys()):
        wanted = "keys that are not in the grid"
        got = ", ".join(both)
        raise InvalidArgument(
            "ranges", wanted=wanted, got=got, remedy="Give each key values or a range."
        )
    source = recipe
    if isinstance(recipe, str | Path):
        source = find_recipe(str(recipe))

    def parsed(settings: Mapping[str, str]) -> Recipe:
        recipe = read_recipe(source, [*changes, *_settings(settings)])
        if "valid" not in recipe.data.splits:
            wanted = "validation data to compare by"
            raise InvalidArgument("recipe", wanted=wanted, got="none", remedy="Set data.valid.")
        return recipe

    def run(settings: Mapping[str, str]) -> SweepRun:
        folder = Path(out) / " ".join(_settings(settings)).replace("/", "_")
        recipe = parsed(settings)
        train(
            recipe,
            folder,
            resume=folder.exists(),
            cache=cache,
            on_event=on_event,
            progress=progress,
        )
        return _result(settings, folder, recipe)

    combinations = [
        dict(zip(grid, map(str, values), strict=True)) for values in product(*grid.values())
    ]
    read = {}
    for key, each in ranges.items():
        read[key] = Range.parse(key, each) if isinstance(each, str) else each
    lowest = {key: str(r.low) for key, r in read.items()}
    highest = {key: str(r.high) for key, r in read.items()}
    # Every combination, and both ends of every range, are checked before the first run.
    for settings in (
        combination | end for combination in combinations for end in (lowest, highest)
    ):
        higher = HIGHER_IS_BETTER[parsed(settings).train.monitor]
    if read:
        results = _search(run, grid, read, trials, higher, on_event)
    else:
        results = [run(each) for each in combinations]
    sign = -1 if higher else 1  # the best first
    return sorted(results, key=lambda result: sign * result.value)


def _search(
    run: Callable[[Mapping[str, str]], SweepRun],
    grid: Mapping[str, Sequence[object]],
    ranges: Mapping[str, Range],
    trials: int,
    higher_is_better: bool,
    on_event: EventHandler,
) -> list[SweepRun]:
    """The runs of a search by Optuna.

    Its choices follow from the results so far, so that a search can be repeated.
    """
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "optuna", "a sweep over ranges") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0)
    direction: Literal["maximize", "minimize"] = "maximize" if higher_is_better else "minimize"
    study = optuna.create_study(direction=direction, sampler=sampler)
    results: dict[tuple[str, ...], SweepRun] = {}
    for _ in range(trials):
        trial = study.ask()
        settings = {
            key: trial.suggest_categorical(key, [str(value) for value in values])
            for key, values in grid.items()
        }
        for key, each in ranges.items():
            whole = isinstance(each.low, int) and isinstance(each.high, int)
            suggest: Any = trial.suggest_int if whole else trial.suggest_float
            settings[key] = repr(suggest(key, each.low, each.high, log=each.log))
        try:
            result = run(settings)
        except Diverged as error:
            on_event({"event": "warning", "message": f"{' '.join(_settings(settings))}: {error}"})
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, result.value)
            results[tuple(settings.values())] = result
    if not results:
        raise Diverged(
            f"sweep: wanted a trial that does not diverge; got none of {trials}. Try other ranges."
        )
    return list(results.values())


def sweep_table(results: Sequence[SweepRun]) -> str:
    """The results as text."""
    rows = [[*results[0].settings, f"best {results[0].metric}", "step", "run"]]
    rows += [
        [*each.settings.values(), f"{each.value:.4f}", f"{each.step:,}", str(each.folder)]
        for each in results
    ]
    return text_table(rows, left=len(results[0].settings))


def _settings(combination: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in combination.items()]


def _result(settings: Mapping[str, str], folder: Path, recipe: Recipe) -> SweepRun:
    metric = recipe.train.monitor
    events = [json.loads(line) for line in (folder / LOG_FILE).read_text("utf-8").splitlines()]
    values = [
        (event[metric], event["step"]) for event in events if event.get("event") == "validation"
    ]
    best = max if HIGHER_IS_BETTER[metric] else min
    value, step = best(values)
    return SweepRun(settings, folder, metric, value, step)
