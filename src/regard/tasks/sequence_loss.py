"""The loss of generated sequences: every target token, given those before it."""

from dataclasses import replace

import torch
from torch.nn import functional as F

from regard.core.sequence import PackedSequences, Packing, Tokens
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch
from regard.model.ctc_head import CtcHead
from regard.model.interfaces import CarriedState
from regard.model.seq2seq import Model, Seq2Seq
from regard.tasks.carried import CarriedStates, one_pass, repeated_state
from regard.tasks.ctc_loss import PlainTargets, memory_losses
from regard.tasks.loss_terms import Predictions
from regard.tasks.objective import BatchLoss, Objective, Sampler, no_dropout
from regard.tasks.target_reading import HowToRead, PaddedTargets, Targets, shift_targets, targets_of

MAX_IMPORTANCE = 2.0  # of a sampled token, in self-critical training with dropout


def sequence_loss(
    objective: Objective,
    model: Seq2Seq,
    batch: Batch,
    *,
    step: int = 0,
    carried: CarriedStates | None = None,
) -> BatchLoss:
    """The loss of a batch of target sequences, or of outputs sampled in their place."""
    if objective.sampler is not None:
        return self_critical_loss(objective, model, batch, step, objective.sampler)
    return next_tokens_loss(objective, model, batch, step, carried)


def next_tokens_loss(
    objective: Objective,
    model: Seq2Seq,
    batch: Batch,
    step: int,
    carried: CarriedStates | None,
) -> BatchLoss:
    """The loss of each target token given the gold tokens before it, or with scheduled sampling given its own."""
    targets, gold = targets_of(batch)
    # With R-Drop both passes are computed as one batch, and begin with the same carried state.
    passes = targets if objective.passes == 1 else targets.repeated()
    state = None if carried is None else repeated_state(carried.model, objective.passes)
    auxiliary = None
    own_passes = passes
    if model.auxiliary_head is not None and objective.ctc_weight:
        # Teachers encode the source themselves: the encoded one is the student's alone.
        assert isinstance(passes, PaddedTargets)
        own_passes, auxiliary = with_ctc_loss(objective, model, batch, passes)
    how = HowToRead.of(objective, step, state)
    read = own_passes.read(model, how)
    if how.sampling is None:
        taught = targets
        teacher_passes = 1
    else:
        # Teachers read what the student has read, which differs between its passes.
        taught = passes.with_inputs(read.inputs)
        teacher_passes = objective.passes
    teachers = CarryingTeachers(taught, teacher_passes, carried)
    predicted = objective.teach(teachers.predict)
    losses = objective.total(read.predicted, gold, predicted, read.attention)
    after = None
    if read.carried is not None:
        own = one_pass(read.carried, objective.passes)
        after = CarriedStates(own, tuple(teachers.after))
    loss = losses.loss
    if auxiliary is not None:
        loss = loss + objective.ctc_weight * auxiliary
    return BatchLoss(loss, losses.nll, batch.tokens, after)


def with_ctc_loss(
    objective: Objective, model: Seq2Seq, batch: Batch, targets: PaddedTargets
) -> tuple[PaddedTargets, Float[Tensor, ""]]:
    """The targets of all passes with their sources encoded, and the loss of the CTC head: the mean over the passes."""
    head = model.auxiliary_head
    assert isinstance(head, CtcHead)
    assert isinstance(batch.targets, Tokens)
    memory = model.encode(targets.source)
    assert memory is not None
    plain = PlainTargets.of(batch.targets, objective.special_tokens).repeated(objective.passes)
    rows = batch.rows.tolist() * objective.passes
    loss = memory_losses(head, memory, plain, rows).sum() / objective.passes
    return targets.with_source(memory), loss


class CarryingTeachers:
    """The teachers of a batch, which are asked one after the other, with the states that they carry.

    after   the state of each teacher after the batch; None where it carries none
    """

    def __init__(self, targets: Targets, passes: int, carried: CarriedStates | None) -> None:
        self.targets = targets
        self.passes = passes
        self.carried = carried
        self.after: list[CarriedState | None] = []

    def predict(self, teacher: Model) -> Predictions:
        """What the next teacher predicts at the targets."""
        number = len(self.after)
        before = None if self.carried is None else self.carried.of_teacher(number)
        if before is None:
            self.after.append(None)
            return self.targets.predict(teacher)
        assert teacher.generator is not None
        how = HowToRead(carried=repeated_state(before, self.passes))
        read = self.targets.read(teacher.generator, how)
        assert read.carried is not None
        self.after.append(one_pass(read.carried, self.passes))
        return read.predicted


def self_critical_loss(
    objective: Objective, model: Seq2Seq, batch: Batch, step: int, sampler: Sampler
) -> BatchLoss:
    """REINFORCE: the log-probability of each sampled output, weighted by its advantage; `nll` is of the samples.

    Log-probabilities must be those that the samples were drawn from, which are without dropout. Those with dropout
    are of another distribution: truncated importance weights (https://doi.org/10.1198/106186008X320456) correct it.
    """
    padded = batch
    if isinstance(batch.source, PackedSequences):
        # A search reads padded sources.
        padded = replace(batch, source=batch.source.padded())
    targets, advantages = sampler(model, padded, step)
    packing = Packing.of(targets.mask[:, 1:], int((targets.host_lengths - 1).sum()))
    weights = advantages[packing.indices // packing.length]
    if objective.reward_dropout:
        with no_dropout(model), torch.no_grad():
            drawn_from = sample_nll(objective, model, padded, targets, packing)
        losses = sample_nll(objective, model, padded, targets, packing)
        weights = weights * (drawn_from - losses.detach()).exp().clamp(max=MAX_IMPORTANCE)
    else:
        with no_dropout(model):
            losses = sample_nll(objective, model, padded, targets, packing)
    loss = (losses * weights).sum()
    if objective.reward_likelihood:
        gold = next_tokens_loss(objective, model, batch, step, None)
        loss = loss + objective.reward_likelihood * gold.loss * (len(losses) / gold.predictions)
    return BatchLoss(loss, losses.detach().sum(), len(losses))


def sample_nll(
    objective: Objective, model: Seq2Seq, batch: Batch, targets: Tokens, packing: Packing
) -> Float[Tensor, " predictions"]:
    """The negative log-likelihood of each token of sampled outputs, as many for each source of the batch."""
    inputs, sampled, _ = shift_targets(targets)
    assert not isinstance(batch.source, PackedSequences)
    rows = torch.arange(len(batch.rows), device=inputs.device).repeat_interleave(
        len(inputs) // len(batch.rows)
    )
    memory = model.encode(batch.source)
    assert memory is not None
    logits = model.decoder.project(
        model.decoder.hidden(inputs, memory.reorder(rows), packing)
    ).float()
    gold = sampled.flatten()[packing.indices]
    return F.cross_entropy(logits / objective.reward_temperature, gold, reduction="none")
