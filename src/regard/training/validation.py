"""Loss, perplexity and accuracy of a model on a corpus."""

from collections.abc import Iterator
from dataclasses import replace
from math import exp

import numpy as np
import torch

from regard.data.batching import Batch, evaluation_batches, stateful_batches
from regard.data.columns import RunningTextColumn
from regard.data.corpus import Corpus
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.model.seq2seq import Model
from regard.tasks.carried import CarriedStates, row_count
from regard.tasks.losses import logit_loss, token_loss
from regard.tasks.objective import Objective


@torch.no_grad()
def mean_loss(
    model: Model,
    corpus: Corpus,
    *,
    budget: int,
    masked: float = 0.15,
    carry: bool = False,
    overlap: int = 0,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
    output_loss: str | None = None,
) -> float:
    """Mean loss over all targets of the corpus, without label smoothing,
    dropout or scheduled sampling.

    The loss is the cross-entropy, or what `output_loss` names.

    budget   tokens per batch
    masked   probability of masking a token, for masked language models; the masks are the same in
             every call
    carry    for a recurrent language model: each segment continues from the state after the one
             before, as in training
    overlap  for a language model of running text: each context begins with so many tokens of the
             one before, which are read and not predicted again, so that every prediction but the
             text's first sees at least these
    special_tokens   of the targets
    output_loss      the name of the loss of the outputs; None: that of the task
    """
    if overlap:
        return _overlapping_loss(model, corpus, budget, overlap)
    device = next(model.parameters()).device
    objective = Objective(
        mask_probability=masked, special_tokens=special_tokens, output_loss=output_loss
    )
    total = 0.0
    count = 0
    state: CarriedStates | None = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if carry:
            batches = _all_lanes(corpus, budget)
        else:
            batches = evaluation_batches(corpus, budget=budget)
        for batch in batches:
            if carry:
                rows = len(batch.rows)
                if state is None:
                    state = objective.first_states(model, rows)
                else:
                    state = _last_lanes(state, rows)
            _, nll, tokens, state = objective(model, batch.to(device), carried=state)
            total = total + float(nll)
            count = count + tokens
    return total / max(1, count)


def _overlapping_loss(model: Model, corpus: Corpus, budget: int, overlap: int) -> float:
    """The mean loss of running text in contexts that overlap."""
    text = corpus.target
    generator = model.generator
    total = 0.0
    assert isinstance(text, RunningTextColumn)
    assert generator is not None
    decoder = generator.decoder
    device = next(model.parameters()).device
    length = text.context_length
    predictions = len(text.ids) - 1
    starts = np.arange(0, max(1, predictions - overlap), length - overlap)
    whole = starts[starts + length <= predictions]
    rows = max(1, budget // length)
    groups = [(whole[first : first + rows], length) for first in range(0, len(whole), rows)]
    groups += [
        (starts[i : i + 1], predictions - int(starts[i])) for i in range(len(whole), len(starts))
    ]
    for begin, size in groups:
        cells = begin[:, None] + np.arange(size + 1)
        ids = torch.from_numpy(text.ids[cells].astype(np.int64)).to(device)  # (B, T + 1)
        counted = torch.from_numpy(
            (cells[:, 1:] > begin[:, None] + overlap) | (begin[:, None] == 0)
        ).to(device)
        inputs = ids[:, :-1]
        gold = ids[:, 1:][counted]
        if decoder.has_hidden:
            losses = token_loss(decoder.hidden(inputs)[counted], decoder.project, gold)
        else:
            losses = logit_loss(decoder(inputs)[counted], gold)
        total += float(losses.nll)
    return total / max(1, predictions)


def _all_lanes(corpus: Corpus, budget: int) -> Iterator[Batch]:
    """Running text in lanes of equal length,
    then the remainder as one lane that continues the last.
    """
    text = corpus.target
    assert isinstance(text, RunningTextColumn)
    rows = max(1, min(budget, len(text.ids) - 1) // text.context_length)
    yield from stateful_batches(corpus, rows=rows)
    rest = text.ids[(len(text.ids) - 1) // rows * rows :]
    if len(rest) > 1:
        yield from stateful_batches(replace(corpus, target=replace(text, ids=rest)), rows=1)


def _last_lanes(states: CarriedStates, rows: int) -> CarriedStates:
    """The states of the last `rows` lanes."""
    lanes_before = row_count(states)
    if rows == lanes_before:
        return states
    return states.reorder(torch.arange(lanes_before - rows, lanes_before))


def perplexity(loss: float) -> float:
    """The exponential of a mean loss in nats, bounded so that it does not overflow."""
    return exp(min(loss, 700.0))
