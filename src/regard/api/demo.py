"""The demonstration: two models learn to read dates, and show where they look while they write."""

import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch

from regard.api.evaluate import evaluate, rows_of
from regard.api.train import train
from regard.core.sequence import Tokens
from regard.core.shapes import Float, Tensor
from regard.data.tokenizer import END, START, Tokenizer
from regard.inference.predictor import Predictor
from regard.model.capture import AttentionCall, capture_attention
from regard.model.seq2seq import Seq2Seq
from regard.recipe.load import find_recipe, read_recipe
from regard.training.telemetry.progress import TrainingProgress
from regard.views.terminal import heat_map

SHOWN = {"dates-rnn": "An RNN with attention", "dates": "A Transformer"}
NEXT = """
Your own data next, a sentence a line in two files:

  regard recipes translation > my.toml        # then write your files' names into [data]
  regard train my.toml --out runs/mine        # stop it, kill it: --resume goes on to the same end
  echo "..." | regard predict runs/mine
"""


def run(seed: int, out: Path | None) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as folder:
        for name, title in SHOWN.items():
            _say(f"\n{title} learns dates in several languages ({name}.toml):")
            recipe = read_recipe(find_recipe(name), [f"train.seed={seed}", "train.log_samples=0", "train.device='cpu'"])
            progress = TrainingProgress(sys.stderr)
            model = train(recipe, Path(folder) / name, cache=Path(folder) / "data", tell=progress)
            progress.close()
            found = evaluate(model, cache=Path(folder) / "data")
            print(f"\n{title}: {found['accuracy'].value:.1%} of 1,000 dates that it never saw, without a mistake.")
            for text, _ in islice(rows_of(recipe, "test"), 2):
                show(model, text)
    _say(f"\n{time.perf_counter() - began:.0f} s in all")
    print(NEXT)


def show(model: Predictor, text: str) -> None:
    """A date, what the model makes of it, and where each character of that looked."""
    output, weights, rows, columns = looked_at(model, text)
    print(f"\n{text} → {output}\n")
    print(heat_map(weights, rows, columns, width=shutil.get_terminal_size().columns))


@torch.no_grad()
def looked_at(predictor: Predictor, text: str) -> tuple[str, Float[Tensor, "T S"], list[str], list[str]]:
    """The output for a text, the exact weights of its last look at the source, and what rows and columns are."""
    assert isinstance(predictor.source, Tokenizer)
    assert isinstance(predictor.target, Tokenizer)
    assert isinstance(predictor.model, Seq2Seq)
    output = predictor.predict([text])[0]
    source, target = [*predictor.source.encode(text), END], [START, *predictor.target.encode(output)]
    heard: list[AttentionCall] = []
    with capture_attention(heard.append):
        predictor.model(Tokens.of([source]), torch.tensor([target]))
    looker = predictor.model.decoder.cross_attentions[-1]
    looks = [one.weights() for one in heard if one.source is looker]  # a look at each step, or one for all
    weights = torch.cat([look.reshape(-1, *look.shape[-2:]).mean(0) for look in looks])
    return output, weights, [*predictor.target.pieces(target[1:]), "⏎"], [*predictor.source.pieces(source[:-1]), "⏎"]


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
