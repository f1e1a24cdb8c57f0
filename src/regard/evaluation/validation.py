"""Loss and perplexity of a model on a corpus."""

from collections.abc import Iterator
from dataclasses import replace
from math import exp

import torch

from regard.data.arrays import RunningTextColumn
from regard.data.batching import Batch, evaluation_batches, stateful_batches
from regard.data.corpus import Corpus
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.model.interfaces import CarriedState
from regard.model.seq2seq import Model
from regard.training.objective import Objective, first_state


@torch.no_grad()
def mean_loss(
    model: Model,
    corpus: Corpus,
    *,
    budget: int,
    masked: float = 0.15,
    carry: bool = False,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
) -> float:
    """Mean cross-entropy over all targets of the corpus, without label smoothing, dropout or scheduled sampling.

    budget   tokens per batch
    masked   probability of masking a token, for masked language models; the masks are the same in every call
    carry    for a recurrent language model: each segment continues from the state after the one before, as in training
    special_tokens   of the targets
    """
    device = next(model.parameters()).device
    objective, total, count = Objective(mask_probability=masked, special_tokens=special_tokens), 0.0, 0
    state: CarriedState | None = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch in _all_lanes(corpus, budget) if carry else evaluation_batches(corpus, budget=budget):
            if carry:
                state = first_state(model, len(batch.rows)) if state is None else _last_lanes(state, len(batch.rows))
            _, nll, tokens, state = objective(model, batch.to(device), carried=state)
            total, count = total + float(nll), count + tokens
    return total / max(1, count)


def _all_lanes(corpus: Corpus, budget: int) -> Iterator[Batch]:
    """Running text in lanes of equal length, then the remainder as one lane that continues the last."""
    text = corpus.target
    assert isinstance(text, RunningTextColumn)
    rows = max(1, min(budget, len(text.ids) - 1) // text.context_length)
    yield from stateful_batches(corpus, rows=rows)
    rest = text.ids[(len(text.ids) - 1) // rows * rows :]
    if len(rest) > 1:
        yield from stateful_batches(replace(corpus, target=replace(text, ids=rest)), rows=1)


def _last_lanes(state: CarriedState, rows: int) -> CarriedState:
    """The state of the last `rows` lanes."""
    lanes_before = len(next(iter(state.tensors().values())))
    return state if rows == lanes_before else state.reorder(torch.arange(lanes_before - rows, lanes_before))


def perplexity(loss: float) -> float:
    """The exponential of a mean loss in nats, bounded so that it does not overflow."""
    return exp(min(loss, 700.0))
