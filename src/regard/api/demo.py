"""`regard.demo`: an RNN with attention and a Transformer learn to normalize dates, and show their attention."""

import shutil
import sys
import tempfile
import time
from contextlib import closing, nullcontext
from itertools import islice
from pathlib import Path

from regard.api.evaluate import evaluate, rows_of
from regard.api.look import look
from regard.api.train import train
from regard.recipe.load import read_recipe
from regard.recipe.shipped import find_recipe
from regard.training.telemetry.progress import TrainingProgress
from regard.views.terminal import look_text

RECIPES = {"dates-rnn": "An RNN with attention", "dates": "A Transformer"}
NEXT = """
Your own data next, a sentence a line in two files:

  regard recipes translation > my.toml        # then write your files' names into [data]
  regard train my.toml --out runs/mine        # stop it, kill it: --resume continues to the same result
  echo "..." | regard predict runs/mine
"""


def demo(seed: int = 1, out: str | Path | None = None) -> None:
    """Train both models and print their accuracy and attention; the runs are kept in the folder `out`, if given."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as folder:
        for name, title in RECIPES.items():
            print(f"\n{title} learns dates in several languages ({name}.toml):", file=sys.stderr, flush=True)
            recipe = read_recipe(find_recipe(name), [f"train.seed={seed}", "train.log_samples=0", "train.device='cpu'"])
            cache = Path(folder) / "data"
            with closing(TrainingProgress(sys.stderr)) as progress:
                model = train(recipe, Path(folder) / name, cache=cache, on_event=progress)
            accuracy = evaluate(model, metrics=["accuracy"], cache=cache)["accuracy"].value
            print(f"\n{title}: {accuracy:.1%} of 1,000 dates that it never saw, without a mistake.")
            for text, _ in islice(rows_of(recipe, "test"), 2):
                print(f"\n{look_text(look(model, text), width=shutil.get_terminal_size().columns)}")
    print(f"\n{time.perf_counter() - began:.0f} s in all", file=sys.stderr, flush=True)
    print(NEXT)
