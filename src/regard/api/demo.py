"""`regard demo`: an RNN with attention and a Transformer learn to normalize dates, and show their attention."""

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

RECIPES = {"dates-rnn": "An RNN with attention", "dates": "A Transformer"}
NEXT = """
Your own data next, a sentence a line in two files:

  regard recipes translation > my.toml        # then write your files' names into [data]
  regard train my.toml --out runs/mine        # stop it, kill it: --resume continues to the same result
  echo "..." | regard predict runs/mine
"""


def run(seed: int, out: Path | None) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as folder:
        for name, title in RECIPES.items():
            _report(f"\n{title} learns dates in several languages ({name}.toml):")
            recipe = read_recipe(find_recipe(name), [f"train.seed={seed}", "train.log_samples=0", "train.device='cpu'"])
            progress = TrainingProgress(sys.stderr)
            model = train(recipe, Path(folder) / name, cache=Path(folder) / "data", on_event=progress)
            progress.close()
            accuracy = evaluate(model, cache=Path(folder) / "data")["accuracy"].value
            print(f"\n{title}: {accuracy:.1%} of 1,000 dates that it never saw, without a mistake.")
            for text, _ in islice(rows_of(recipe, "test"), 2):
                output, weights, rows, columns = last_attention(model, text)
                print(f"\n{text} → {output}\n")
                print(heat_map(weights, rows, columns, width=shutil.get_terminal_size().columns))
    _report(f"\n{time.perf_counter() - began:.0f} s in all")
    print(NEXT)


@torch.no_grad()
def last_attention(predictor: Predictor, text: str) -> tuple[str, Float[Tensor, "T S"], list[str], list[str]]:
    """The output for a text, its last cross-attention (mean of heads), and the labels of rows and columns."""
    assert isinstance(predictor.source, Tokenizer)
    assert isinstance(predictor.target, Tokenizer)
    assert isinstance(predictor.model, Seq2Seq)
    output = predictor.predict([text])[0]
    source, target = [*predictor.source.encode(text), END], [START, *predictor.target.encode(output)]
    calls: list[AttentionCall] = []
    with capture_attention(calls.append):
        predictor.model(Tokens.of([source]), torch.tensor([target]))
    last = predictor.model.decoder.cross_attentions[-1]
    weights = [call.weights() for call in calls if call.source is last]  # of each step, or of all at once
    mean = torch.cat([each.reshape(-1, *each.shape[-2:]).mean(0) for each in weights])
    return output, mean, [*predictor.target.pieces(target[1:]), "⏎"], [*predictor.source.pieces(source[:-1]), "⏎"]


def _report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
