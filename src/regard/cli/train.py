"""`regard train`, `prepare`, `sweep`, `average`, `plot`, `recipes`, `data` and `demo`."""

import json
import os
import shlex
import shutil
import sys
from contextlib import closing
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli import completion
from regard.cli.options import (
    Cache,
    Changes,
    Column,
    Device,
    Json,
    RecipeFile,
    TrustDataPaths,
    argument,
    flag,
    option,
)
from regard.core.errors import InterruptedTraining, InvalidArgument
from regard.core.text_table import counted


def train(
    recipe: RecipeFile,
    out: Annotated[
        str | None,
        option(
            "FOLDER",
            "The folder of the run: a new or an empty one [default: runs/RECIPE, or "
            "runs/RECIPE-2, … where that is taken].",
            "--out",
            "-o",
        ),
    ] = None,
    set_: Changes = None,
    resume: Annotated[
        bool, flag("--resume", "Resume from the last checkpoint, with the same --set.")
    ] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the plan and the first batch, and stop.")
    ] = False,
    allow_changed_data: Annotated[
        bool, flag("--allow-changed-data", "Resume although the data has changed.")
    ] = False,
    cache: Cache = None,
) -> None:
    """Train a model from a recipe, with checkpoints.

    A run that was stopped or killed continues with --resume, with the same result as an
    uninterrupted one.

    Examples:
    regard train dates

    regard train my.toml --out runs/mine --set train.learning_rate=5e-4 --set model.encoder.layers=6

    regard train my.toml --out runs/mine --set train.learning_rate=5e-4 --set model.encoder.layers=6
    --resume

    torchrun --nproc-per-node 8 -m regard train my.toml --out runs/mine
    """
    from regard.api.dry_run import dry_run as describe
    from regard.recipe.load import read_recipe
    from regard.recipe.shipped import find_recipe
    from regard.views.progress import TrainingProgress

    parsed = read_recipe(find_recipe(recipe), set_ or ())
    if dry_run:
        print(describe(parsed, cache))
        return
    if out is None:
        out = str(_default_folder(recipe, resume=resume))
        print(f"regard: the folder of this run is {out}", file=sys.stderr)
    try:
        with closing(TrainingProgress(sys.stderr)) as progress:
            model = regard.train(
                parsed,
                out,
                resume=resume,
                cache=cache,
                allow_changed_data=allow_changed_data,
                on_event=progress,
                progress=False,
            )
    except InterruptedTraining as stopped:
        if _processes() > 1:
            raise
        changes = [word for change in set_ or () for word in ("--set", change)]
        place = [] if cache is None else ["--cache", str(cache)]
        command = ["regard", "train", recipe, "--out", out, *changes, *place, "--resume"]
        raise InterruptedTraining(stopped.signal_number, stopped.run, shlex.join(command)) from None
    if os.environ.get("RANK", "0") == "0":  # only one of torchrun's processes prints
        print(model.folder)


def _default_folder(recipe: str, *, resume: bool) -> Path:
    """The folder of a run that is named after its recipe: a new one, or the one to resume."""
    if _processes() > 1:
        raise InvalidArgument(
            "--out",
            wanted="the folder of the run, which all processes of torchrun share",
            got="none",
            remedy="Name one, as in --out runs/mine.",
        )
    first = Path("runs") / Path(recipe).stem
    names = chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2)))
    taken = list(takewhile(_is_taken, names))
    if resume:
        if len(taken) != 1:
            got = f"no run {first}"
            if taken:
                got = f"none; there are {', '.join(map(str, taken))}"
            raise InvalidArgument(
                "--out", wanted="the run to resume", got=got, remedy="Name its folder."
            )
        return taken[0]
    if not taken:
        return first
    return first.with_name(f"{first.name}-{len(taken) + 1}")


def _is_taken(folder: Path) -> bool:
    """Whether a run cannot begin in a folder of this name:
    something other than an empty folder has it.
    """
    if folder.is_dir():
        return next(folder.iterdir(), None) is not None
    return folder.exists() or folder.is_symlink()


def _processes() -> int:
    """The number of processes that torchrun has started to train one model."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def prepare(
    recipe: RecipeFile, set_: Changes = None, cache: Cache = None, as_json: Json = False
) -> None:
    """Tokenize the data of a recipe once; training finds the result by a hash of its content.

    Example: regard prepare my.toml
    """
    from regard.recipe.load import read_recipe
    from regard.recipe.shipped import find_recipe
    from regard.views.progress import TrainingProgress

    with closing(TrainingProgress(sys.stderr)) as progress:
        data = regard.prepare(read_recipe(find_recipe(recipe), set_ or ()), cache, progress)
    record = {"folder": str(data.folder), "splits": data.record["splits"]}
    if as_json:
        print(json.dumps(record))
        return
    for name, split in record["splits"].items():
        tokens = "".join(f"   {count:,} {side} tokens" for side, count in split["tokens"].items())
        left = "".join(
            f"   {count:,} left out: {why}" for why, count in split["left_out"].items() if count
        )
        print(f"{name:<6} {counted(split['examples'], 'example')}{tokens}{left}")
    print(data.folder)


def sweep(
    recipe: RecipeFile,
    out: Annotated[
        Path | None,
        option(
            "FOLDER",
            "The folder of the runs; those that it has are not trained again "
            "[default: runs/RECIPE-sweep].",
            "--out",
            "-o",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        option(
            "KEY=A,B,…",
            "A key and its values; may be repeated.",
            "--grid",
            complete=completion.recipe_keys,
        ),
    ] = None,
    range_: Annotated[
        list[str] | None,
        option(
            "KEY=LOW:HIGH[:log]",
            "A key whose best value to search with Optuna; may be repeated. "
            "Values of --grid are then choices.",
            "--range",
            complete=completion.recipe_keys,
        ),
    ] = None,
    trials: Annotated[int, option("N", "The runs of a search over ranges.", least=1)] = 20,
    set_: Changes = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Train a recipe with every combination of settings, or search the best ones,
    and print a table of the results.

    Examples:
    regard sweep my.toml --grid train.learning_rate=1e-3,5e-4

    regard sweep my.toml --out runs/sweep --grid train.learning_rate=1e-3,5e-4 --grid
    model.encoder.layers=2,4

    regard sweep my.toml --out runs/sweep --range train.learning_rate=1e-4:1e-2:log --trials 30
    """
    from dataclasses import asdict

    from regard.api.sweep import sweep_table
    from regard.views.progress import TrainingProgress

    if out is None:
        # Always the same, so that a sweep that was stopped goes on when it is called again.
        out = Path("runs") / f"{Path(recipe).stem}-sweep"
        print(f"regard: the folder of this sweep is {out}", file=sys.stderr)
    pairs = [each.partition("=") for each in grid or ()]
    values = {key: [value for value in listed.split(",") if value] for key, _, listed in pairs}
    ranges = {key: ends for key, _, ends in (each.partition("=") for each in range_ or ())}
    with closing(TrainingProgress(sys.stderr)) as progress:
        results = regard.sweep(
            recipe,
            out,
            values,
            ranges=ranges,
            trials=trials,
            changes=set_ or (),
            cache=cache,
            on_event=progress,
            progress=False,
        )
    if as_json:
        print(json.dumps([asdict(each) for each in results], default=str))
    else:
        print(sweep_table(results))


def average(
    models: Annotated[
        list[Path], argument("MODEL", "The folders of two or more runs, or of checkpoints.")
    ],
    out: Annotated[Path, option("FOLDER", "A new folder for the checkpoint.", "--out", "-o")],
) -> None:
    """Write one model whose weights are the mean of those of several,
    trained on from the same weights.

    Example: regard average runs/seed-1 runs/seed-2 runs/seed-3 --out runs/average
    """
    print(regard.average(models, out))


def plot(
    runs: Annotated[list[Path], argument("RUN", "The folders of one or more runs.")],
    out: Annotated[
        Path | None, option("FILE", "Draw them in this .svg or .png file instead.")
    ] = None,
    data: Annotated[
        list[str] | None,
        option(
            "NAME|FILE",
            "Plot the vectors that the model predicts for an example of this split, or of these "
            "files, beside the true ones.",
            complete=completion.splits,
        ),
    ] = None,
    example: Annotated[int, option("N", "Of --data: the number of the example.", least=1)] = 1,
    channel: Annotated[
        list[str] | None,
        option(
            "NAME|N",
            "Of --data: only this number of the vectors; may be repeated [default: the first 8].",
        ),
    ] = None,
    look_back: Annotated[
        int | None, option("N", "Of --data: rows before a forecast, at most.", least=1)
    ] = None,
    column: Column = None,
    device: Device = "auto",
    trust_data_paths: TrustDataPaths = False,
) -> None:
    """Plot the losses, metrics and learning rate of runs; or what a model predicts,
    against what is true.

    Examples: regard plot runs/one runs/two --out curves.svg

    regard plot runs/forecast --data test --example 7 --look-back 96 --out forecast.svg
    """
    width = shutil.get_terminal_size().columns
    if data:
        if len(runs) != 1:
            raise InvalidArgument(
                "RUN", wanted="one beside --data", got=str(len(runs)), remedy="Plot one at a time."
            )
        options: dict[str, Any] = {"example": example, "channels": channel, "look_back": look_back}
        options |= {"columns": column or (), "trust_data_paths": trust_data_paths}
        text = regard.plot_forecast(runs[0], data, out, width=width, device=device, **options)
    else:
        of_data = {"--channel": channel, "--look-back": look_back, "--column": column}
        for name, given in of_data.items():
            if given:
                raise InvalidArgument(
                    name, wanted="--data, of which it is", got="none", remedy="Add --data test."
                )
        text = regard.plot(runs, out, width=width)
    if text is not None:
        print(text)


def recipes(
    name: Annotated[str | None, argument("NAME", "Print this recipe.", completion.recipes)] = None,
    schema: Annotated[
        bool, flag("--schema", "Print the JSON Schema of recipes, for editors.")
    ] = False,
) -> None:
    """List the built-in recipes, or print one to start from.

    Example: regard recipes dates > my.toml
    """
    from regard.recipe.shipped import SCHEMA, find_recipe, recipes_by_task

    if schema or name is not None:
        print((SCHEMA if name is None else find_recipe(name)).read_text("utf-8"), end="")
        return
    groups = recipes_by_task()
    longest = max(len(path.stem) for paths in groups.values() for path in paths)
    for number, (task, paths) in enumerate(groups.items()):
        print("\n" * bool(number) + f"{task}:")
        for path in paths:
            # after the line that names the schema
            _, title, *_ = path.read_text("utf-8").splitlines()
            print(f"  {path.stem:<{longest}}  {title.lstrip('# ')}")


def data(
    name: Annotated[
        str | None,
        argument(
            "NAME", "Say where this data set comes from, and check its files.", completion.data_sets
        ),
    ] = None,
    fetch: Annotated[bool, flag("--fetch", "Download the files that are missing.")] = False,
    build: Annotated[
        bool, flag("--build", "Write what the recipes read and what is made from its files.")
    ] = False,
    folder: Annotated[
        Path, option("FOLDER", "Where the data are; paths in recipes are relative to it.")
    ] = Path(),
) -> None:
    """List the public data sets that the built-in recipes use, check the files of one,
    fetch or build them.

    Example: regard data multi30k --fetch
    """
    from regard.data import public_datasets

    if name is None:
        for known, dataset in public_datasets.DATASETS.items():
            print(f"{known:<16} {dataset.title} ({', '.join(dataset.recipes)})")
        return
    dataset = public_datasets.public_dataset(name)
    print(
        f"{dataset.title}\n{dataset.page}\nterms: {dataset.terms}\nrecipes: "
        f"{', '.join(dataset.recipes)}"
    )
    for fetched in public_datasets.fetch(dataset, folder) if fetch else ():
        print(f"fetched {fetched}")
    missing = public_datasets.missing_files(dataset, folder)
    for path in dataset.files:
        print(f"{'missing' if path in missing else 'in place'}: {folder / path}")
    if dataset.how:
        print(dataset.how)
    if not build:
        return
    if dataset.build is None:
        raise InvalidArgument(
            "--build",
            wanted="nothing for this data set, whose files the recipes read",
            got="--build",
            remedy="Leave it out.",
        )
    for written in dataset.build(folder):
        print(f"wrote {written}")


def demo(
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**31, help="The seed of all random numbers.")
    ] = 1,
    out: Annotated[
        Path | None, option("FOLDER", "The folder of the runs [default: in the cache].")
    ] = None,
) -> None:
    """Train two small models to normalize dates, and show their attention.

    An RNN with attention and a Transformer learn dates in several languages, in under three minutes
    on two cores; no data is needed. A demo that was stopped resumes.

    Example: regard demo --out runs/demo
    """
    regard.demo(seed=seed, out=out)
