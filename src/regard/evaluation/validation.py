"""How a model does on a corpus: its loss, and its outputs beside the references."""

from collections.abc import Callable, Sequence
from functools import partial
from math import exp
from typing import Any

import torch

from regard.data.batches import evaluation_batches
from regard.data.corpus import Corpus
from regard.errors import InvalidArgument
from regard.evaluation.metrics import Scored, accuracy, bleu, chrf, error_rate
from regard.training.objective import Model, Objective

DECODED: dict[str, Callable[..., Scored]] = {
    "bleu": bleu,
    "bleu_lower": partial(bleu, lower=True),  # capitals and small letters alike
    "chrf": chrf,
    "accuracy": accuracy,
    "error_rate": error_rate,
}


@torch.no_grad()
def mean_loss(model: Model, corpus: Corpus, *, budget: int, masked: float = 0.15) -> float:
    """The loss of a prediction, over all that the corpus asks for; without smoothing, dropout or forcing.

    Hidden tokens are drawn, the same each time.
    """
    device = next(model.parameters()).device
    objective, total, count = Objective(masked=masked), 0.0, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch in evaluation_batches(corpus, budget=budget):
            loss, tokens, _ = objective(model, batch.to(device))
            total, count = total + float(loss), count + tokens
    return total / max(1, count)


def perplexity(loss: float) -> float:
    """Of a mean loss in nats."""
    return exp(min(loss, 700.0))


def score(names: Sequence[str], outputs: Sequence[str], references: Sequence[Any]) -> dict[str, Scored]:
    """The named metrics of outputs."""
    unknown = [name for name in names if name not in DECODED]
    if unknown:
        raise InvalidArgument(
            "metric",
            wanted=f"one of {', '.join(DECODED)}",
            got=repr(unknown[0]),
            remedy="Or loss, which needs no output.",
        )
    return {name: DECODED[name](outputs, references) for name in names}
