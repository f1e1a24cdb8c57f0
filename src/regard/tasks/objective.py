"""The training loss of a batch: a sum over predictions, divided once per update.

`Objective` holds what [train] says of the loss. The task of the model computes predictions; the objective makes their
cross-entropy, with label smoothing and R-Drop, and adds the terms of `regard.tasks.loss_terms`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import nn

from regard.core.sequence import FieldBatch, Tokens
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.model.scheduled_sampling import ScheduledSampling
from regard.model.seq2seq import Model, Seq2Seq
from regard.tasks.base import Task, task_of
from regard.tasks.carried import CarriedStates, carries_state, first_state
from regard.tasks.distillation import Distillation
from regard.tasks.loss_terms import (
    Computed,
    CrossAttention,
    DoublyStochastic,
    LossTerm,
    Predictions,
)
from regard.tasks.losses import Losses, logit_loss, token_loss
from regard.tasks.output_losses import LOSSES, OutputLoss

# Samples outputs for each source of a batch, as many for each, at a given update: the tokens, and their advantages.
Sampler = Callable[[Seq2Seq, Batch, int], tuple[Tokens, Float[Tensor, " B"]]]
BatchSide = TypeVar("BatchSide", bound=FieldBatch | None)


class BatchLoss(NamedTuple):
    """The loss of a batch: sums over its predictions.

    nll          negative log-likelihood of the gold outputs alone, without a gradient; of numbers, the squared error
    predictions  how many there are
    carried      the recurrent states to carry on, where some were given
    """

    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    predictions: int
    carried: CarriedStates | None = None


@dataclass(frozen=True)
class Objective:
    """The terms of the loss, as [train] configures them.

    ctc_weight       of a head that is trained beside a decoder
    output_loss      the name of the loss of the model's outputs; None: that of its task
    sampler          self-critical training: sampled outputs take the place of the targets
    special_tokens   of the targets
    """

    label_smoothing: float = 0.0
    output_loss: str | None = None
    mask_probability: float = 0.15
    scheduled_sampling: ScheduledSampling | None = None
    r_drop: float = 0.0
    doubly_stochastic: float = 0.0
    ctc_weight: float = 0.0
    reward_temperature: float = 1.0
    reward_likelihood: float = 0.0
    reward_dropout: bool = False
    sampler: Sampler | None = None
    distillation: Distillation | None = None
    special_tokens: SpecialTokens = DEFAULT_TOKENS

    def __call__(
        self, model: Model, batch: Batch, *, step: int = 0, carried: CarriedStates | None = None
    ) -> BatchLoss:
        """The loss of a batch at an update, computed from the weights of the model."""
        return task_of(model).loss(self, model, batch, step=step, carried=carried)

    @property
    def passes(self) -> int:
        """Forward passes of a batch: two with R-Drop, with different dropout masks."""
        return 2 if self.r_drop else 1

    def repeated(self, side: BatchSide) -> BatchSide:
        """A side of the batch for all passes at once, one after the other."""
        return repeat_batch(side) if self.r_drop else side

    def teach(self, forward: Callable[[Model], Predictions]) -> list[Predictions]:
        """The predictions of each teacher for the same batch, which is not repeated for R-Drop."""
        return [] if self.distillation is None else self.distillation.predictions(forward)

    def loss_of_outputs(
        self, task: Task, outputs: Tensor, gold: Tensor, known: Tensor | None = None
    ) -> OutputLoss:
        """The loss that [train] names, or that of the task.

        known   which targets count; None: all
        """
        name = self.output_loss or task.default_loss
        assert name is not None
        kind = LOSSES[name]
        if kind.smooths:
            return kind.compute(outputs, gold, label_smoothing=self.label_smoothing)
        if known is None:
            return kind.compute(outputs, gold)
        return kind.compute(outputs, gold, known)

    @property
    def terms(self) -> list[LossTerm]:
        """What is added to the cross-entropy, in this order."""
        terms: list[LossTerm] = []
        if self.distillation is not None:
            terms.append(self.distillation)
        if self.doubly_stochastic:
            terms.append(DoublyStochastic(self.doubly_stochastic))
        return terms

    @property
    def reads_attention(self) -> bool:
        """Whether a term is computed from the attention of the decoder."""
        return any(term.reads_attention for term in self.terms)

    def total(
        self,
        predicted: Predictions,
        gold: Tensor,
        teachers: Sequence[Predictions] = (),
        attention: CrossAttention | None = None,
    ) -> Losses:
        """The cross-entropy of predictions with all terms, and the negative log-likelihood in it.

        predicted   a row for each gold output; with R-Drop all rows of one pass, then all of the other
        teachers    what each teacher predicted (`teach`)
        attention   of the decoder, where a term reads it
        """
        found = self.cross_entropy(predicted, gold)
        computed = Computed(predicted, gold, teachers, self.passes, attention)
        loss = found.loss
        for term in self.terms:
            loss = term.add_to(loss, computed)
        return Losses(loss, found.nll)

    def cross_entropy(self, predicted: Predictions, gold: Tensor) -> Losses:
        """The cross-entropy of one row for each gold output, with label smoothing and R-Drop.

        With R-Drop (https://arxiv.org/abs/2106.14448) there are two rows for each: all of one pass, then all of the
        other. The loss is the mean of both plus `r_drop` times their symmetric KL divergence (the paper's weight is
        twice ours).
        """
        rows, project = predicted
        loss = logit_loss if project is None else partial(token_loss, project=project)
        if not self.r_drop:
            return loss(rows, gold=gold, label_smoothing=self.label_smoothing)
        pairs = torch.stack(rows.chunk(2), 1).flatten(0, 1)
        golds = gold.repeat_interleave(2)
        both = loss(pairs, gold=golds, label_smoothing=self.label_smoothing, r_drop=self.r_drop)
        return Losses(both.loss / 2, both.nll / 2)

    def first_states(self, model: Model, rows: int) -> CarriedStates:
        """The states that a recurrent language model, and its teachers, carry into the first tokens of a text."""
        teachers = () if self.distillation is None else self.distillation.evaluated
        carrying = [first_state(each, rows) if carries_state(each) else None for each in teachers]
        return CarriedStates(first_state(model, rows), tuple(carrying))


def repeat_batch(side: BatchSide) -> BatchSide:
    """A batch concatenated with itself: a tensor, or a dataclass of tensors and of batches."""
    if side is None:
        return side
    if isinstance(side, Tensor):
        # torch.cat refuses float16 under CPU autocast.
        return cast(BatchSide, side.repeat(2, *[1] * (side.ndim - 1)))
    parts: dict[str, Any] = {}
    for name, part in vars(side).items():
        if isinstance(part, tuple):
            parts[name] = tuple(map(repeat_batch, part))
        elif part is not None:
            parts[name] = repeat_batch(part)
    batch: Any = side
    return cast(BatchSide, replace(batch, **parts))


@contextmanager
def no_dropout(model: nn.Module) -> Iterator[None]:
    """Without dropout but with gradients. cuDNN's RNNs need training mode for these, so only their dropout is set."""
    modules = [
        module
        for module in model.modules()
        if module.training and not isinstance(module, nn.RNNBase)
    ]
    recurrent = [
        (module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)
    ]
    for module in modules:
        module.training = False
    for rnn, _ in recurrent:
        rnn.dropout = 0.0
    try:
        yield
    finally:
        for module in modules:
            module.training = True
        for rnn, dropout in recurrent:
            rnn.dropout = dropout
