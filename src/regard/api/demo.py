"""`regard.demo`: an RNN with attention and a Transformer learn to normalize dates,
and show their attention.
"""

import os
import shlex
import shutil
import sys
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from regard.api.evaluate import evaluate, rows_of
from regard.api.look import look
from regard.api.train import train
from regard.checkpoint import store
from regard.core.atomic_io import cache_folder
from regard.core.errors import CheckpointRefused
from regard.recipe.load import read_recipe
from regard.recipe.shipped import find_recipe
from regard.views.progress import TrainingProgress
from regard.views.terminal import look_text

RECIPES = {"dates-rnn": "An RNN with attention", "dates": "A Transformer"}
NEXT = """
Your own data next, a sentence a line in two files:

  regard recipes translation > my.toml        # then write your files' names into [data]
  regard train my.toml --out runs/mine        # stop it, kill it: --resume continues to the same result
  echo "..." | regard predict runs/mine
"""


def demo(seed: int = 1, out: str | Path | None = None) -> None:
    """Train an RNN with attention and a Transformer to normalize dates,
    and print their accuracy and attention.

    seed   of all random numbers
    out    the folder of the runs, by default one of the cache; a demo that was stopped resumes
           there

    A demo in the cache that another version of Regard began is begun anew.
    """
    began = time.perf_counter()
    folder = cache_folder() / f"demo-{seed}" if out is None else Path(out)
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for name, title in RECIPES.items():
        print(f"\n{title} learns dates in several languages ({name}):", file=sys.stderr, flush=True)
        recipe = read_recipe(
            find_recipe(name), [f"train.seed={seed}", "train.log_samples=0", "train.device='cpu'"]
        )
        run = folder / Path(name).stem
        cache = folder / "data"
        with closing(TrainingProgress(sys.stderr)) as progress:
            options: dict[str, Any] = {"cache": cache, "on_event": progress, "progress": False}
            try:
                model = train(recipe, run, resume=bool(store.steps(run)), **options)
            except CheckpointRefused:
                if out is not None:
                    raise
                progress(
                    {
                        "event": "warning",
                        "message": f"{run} is of another version of Regard: training begins",
                    }
                )
                shutil.rmtree(run)
                model = train(recipe, run, **options)
        accuracy = evaluate(model, metrics=["accuracy"], cache=cache)["accuracy"].value
        print(f"\n{title}: {accuracy:.1%} of 1,000 dates that it never saw, without a mistake.")
        for text, _ in islice(rows_of(recipe, "test"), 2):
            width = shutil.get_terminal_size().columns
            shown = look_text(look(model, text), width=width, color=color)
            print(f"\n{shown}")
        print(
            f'\nThe model is in {run}:\n  echo "3 March 1999" | regard predict '
            f"{shlex.quote(str(run))}"
        )
    print(f"\n{time.perf_counter() - began:.0f} s in all", file=sys.stderr, flush=True)
    print(NEXT)
