"""How sure a model is of what a corpus says, without any output."""

from math import exp

import torch

from regard.data.batches import evaluation_batches
from regard.data.corpus import Corpus
from regard.training.objective import Model, Objective


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
