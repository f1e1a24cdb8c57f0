"""`regard train`, `prepare`, `recipes` and `demo`."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Cache, Changes, Json, RecipeFile


def train(
    recipe: RecipeFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder of the run.")],
    set_: Changes = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint, with the same --set.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and the first batch, and stop.")] = False,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="Resume although the data has changed.")
    ] = False,
    cache: Cache = None,
) -> None:
    """Train a model from a recipe, with checkpoints.

    A run that was stopped or killed continues with --resume, with the same result as an uninterrupted one.

    Examples:
    regard train dates --out runs/dates

    regard train my.toml --out runs/mine --set train.learning_rate=5e-4 --set model.encoder.layers=6

    regard train my.toml --out runs/mine --set train.learning_rate=5e-4 --set model.encoder.layers=6 --resume

    torchrun --nproc-per-node 8 -m regard train my.toml --out runs/mine
    """
    from regard.recipe.load import find_recipe, read_recipe
    from regard.training.telemetry.progress import TrainingProgress

    found = read_recipe(find_recipe(recipe), set_ or ())
    if dry_run:
        from regard.api.dry_run import dry_run as describe

        print(describe(found, cache))
        return
    from regard.api import train

    progress = TrainingProgress(sys.stderr)
    try:
        model = train.train(
            found, out, resume=resume, cache=cache, allow_changed_data=allow_changed_data, on_event=progress
        )
    finally:
        progress.close()
    if os.environ.get("RANK", "0") == "0":  # only one of torchrun's processes prints
        print(model.folder)


def prepare(recipe: RecipeFile, set_: Changes = None, cache: Cache = None, as_json: Json = False) -> None:
    """Tokenize the data of a recipe once; training finds the result by a hash of its content.

    Example: regard prepare my.toml
    """
    from regard.api.train import prepared
    from regard.recipe.load import find_recipe, read_recipe
    from regard.training.telemetry.progress import TrainingProgress

    progress = TrainingProgress(sys.stderr)
    data = prepared(read_recipe(find_recipe(recipe), set_ or ()), cache, progress)
    progress.close()
    record = {"folder": str(data.folder), "splits": data.record["splits"]}
    if as_json:
        print(json.dumps(record))
        return
    for name, split in record["splits"].items():
        tokens = "".join(f"   {count:,} {side} tokens" for side, count in split["tokens"].items())
        left = "".join(f"   {count:,} left out: {why}" for why, count in split["left_out"].items() if count)
        print(f"{name:<6} {split['examples']:,} examples{tokens}{left}")
    print(data.folder)


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this recipe.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of recipes, for editors.")] = False,
) -> None:
    """List the built-in recipes, or print one to start from.

    Example: regard recipes dates > my.toml
    """
    from regard.recipe.load import find_recipe, shipped_recipes

    if schema:
        from regard.recipe.schema import schema_text

        print(schema_text(), end="")
        return
    if name is not None:
        print(find_recipe(name).read_text("utf-8"), end="")
        return
    for path in shipped_recipes():
        _, title, *_ = path.read_text("utf-8").splitlines()  # after the line that names the schema
        print(f"{path.stem:<22} {title.lstrip('# ')}")


def demo(
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31, help="The seed of all random numbers.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the runs in this folder.")] = None,
) -> None:
    """Train two small models to normalize dates, and show their attention.

    An RNN with attention and a Transformer learn dates in several languages, in under three minutes on two cores; no
    data is needed.

    Example: regard demo --out runs/demo
    """
    from regard.api import demo

    demo.run(seed=seed, out=out)
