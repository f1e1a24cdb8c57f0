"""The loss of generated sequences: every target token, given those before it."""

from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from regard.core.sequence import Packed, Packing, Tokens
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.batching import Batch
from regard.model.interfaces import CarriedState, Source, StatefulDecoder
from regard.model.scheduled_sampling import force
from regard.model.seq2seq import Model, Seq2Seq
from regard.tasks.distillation import Predictions
from regard.tasks.losses import doubly_stochastic_penalty
from regard.tasks.objective import BatchLoss, Objective, Sampler, no_dropout

MAX_IMPORTANCE = 2.0  # of a sampled token, in self-critical training with dropout


def sequence_loss(
    objective: Objective,
    model: Seq2Seq,
    batch: Batch,
    *,
    step: int = 0,
    carried: CarriedState | None = None,
) -> BatchLoss:
    """The loss of a batch of target sequences, or of outputs sampled in their place."""
    if isinstance(batch.targets, Packed):
        return packed_loss(objective, model, batch, batch.targets)
    if objective.sampler is not None:
        return self_critical_loss(objective, model, batch, step, objective.sampler)
    return next_tokens_loss(objective, model, batch, step, carried)


@dataclass(frozen=True)
class _Reading:
    """What the decoder computed while it read a batch of inputs.

    predicted   before padding is dropped: hidden states with their projection, or logits
    carried     the state after the last token, where one was given
    penalty     a term of the loss beside cross-entropy
    """

    predicted: Predictions
    carried: CarriedState | None = None
    penalty: Tensor | None = None


def next_tokens_loss(
    objective: Objective,
    model: Seq2Seq,
    batch: Batch,
    step: int,
    carried: CarriedState | None,
) -> BatchLoss:
    """The loss of each target token given the gold tokens before it, or with scheduled sampling given its own."""
    assert isinstance(batch.targets, Tokens)
    assert not isinstance(batch.source, Packed)
    inputs, gold, mask = shift_targets(batch.targets)  # (B, T) each
    # The number of predictions is known without waiting for a GPU.
    packing = None
    if batch.tokens != gold.numel():
        packing = Packing.of(mask, batch.tokens)
    flat_gold = gold.flatten()
    kept_gold = flat_gold if packing is None else flat_gold[packing.indices]
    teachers = objective.teach(
        partial(next_tokens, inputs=inputs, source=batch.source, packing=packing)
    )
    # With R-Drop all passes are computed as one batch.
    source = objective.repeated(batch.source)
    inputs = objective.repeated(inputs)
    mask = objective.repeated(mask)
    if packing is not None and objective.passes > 1:
        packing = Packing.of(mask, objective.passes * batch.tokens)
    read = _read(objective, model, source, inputs, mask, packing, step, carried)
    losses = objective.cross_entropy(read.predicted, kept_gold, teachers)
    loss = losses.loss
    if read.penalty is not None:
        loss = loss + read.penalty / objective.passes
    return BatchLoss(loss, losses.nll, len(kept_gold), read.carried)


def _read(
    objective: Objective,
    model: Seq2Seq,
    source: Source | None,
    inputs: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    packing: Packing | None,
    step: int,
    carried: CarriedState | None,
) -> _Reading:
    """Read the inputs in the way that the objective asks for."""
    decoder = model.decoder
    sampling = objective.scheduled_sampling
    if carried is not None:
        assert isinstance(decoder, StatefulDecoder)
        states, moved = decoder.carry(inputs, carried.detached())
        return _Reading(Predictions(_kept(states, packing), decoder.project), moved)
    if sampling is not None and sampling.share(step) < 1.0:
        logits = force(decoder, inputs, model.encode(source), sampling, step=step, mask=mask)
        return _Reading(Predictions(_kept(logits, packing).float()))
    if objective.doubly_stochastic:
        memory = model.encode(source)
        weights = list[Tensor]()
        assert isinstance(decoder, StatefulDecoder)
        assert memory is not None
        state = decoder.start(memory, batch=len(inputs), capacity=0)
        states, _ = decoder.carry(inputs, state, weights)
        penalty = doubly_stochastic_penalty(torch.cat(weights, 1), mask, memory.mask)
        predicted = Predictions(_kept(states, packing), decoder.project)
        return _Reading(predicted, penalty=objective.doubly_stochastic * penalty)
    if not decoder.has_hidden:
        logits = decoder(inputs, model.encode(source)).flatten(0, 1)
        return _Reading(Predictions(logits if packing is None else logits[packing.indices]))
    return _Reading(next_tokens(model, inputs, source, packing))


def _kept(x: Float[Tensor, "B T *rest"], packing: Packing | None) -> Float[Tensor, "N *rest"]:
    """The positions that are not padding."""
    return x.flatten(0, 1) if packing is None else packing.pack(x)


def packed_loss(objective: Objective, model: Seq2Seq, batch: Batch, targets: Packed) -> BatchLoss:
    gold = targets.gold
    source = batch.source
    assert gold is not None
    assert source is None or isinstance(source, Packed)
    teachers = objective.teach(partial(next_packed_tokens, source=source, targets=targets))
    if objective.r_drop:
        source = None if source is None else source.duplicate()
        targets = targets.duplicate()
    return BatchLoss(
        *objective.cross_entropy(next_packed_tokens(model, source, targets), gold, teachers),
        batch.tokens,
    )


def self_critical_loss(
    objective: Objective, model: Seq2Seq, batch: Batch, step: int, sampler: Sampler
) -> BatchLoss:
    """REINFORCE: the log-probability of each sampled output, weighted by its advantage; `nll` is of the samples.

    Log-probabilities must be those that the samples were drawn from, which are without dropout. Those with dropout
    are of another distribution: truncated importance weights (https://doi.org/10.1198/106186008X320456) correct it.
    """
    targets, advantages = sampler(model, batch, step)
    packing = Packing.of(targets.mask[:, 1:], int((targets.host_lengths - 1).sum()))
    weights = advantages[packing.indices // packing.length]
    if objective.reward_dropout:
        with no_dropout(model), torch.no_grad():
            drawn_from = sample_nll(objective, model, batch, targets, packing)
        losses = sample_nll(objective, model, batch, targets, packing)
        weights = weights * (drawn_from - losses.detach()).exp().clamp(max=MAX_IMPORTANCE)
    else:
        with no_dropout(model):
            losses = sample_nll(objective, model, batch, targets, packing)
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
    assert not isinstance(batch.source, Packed)
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


def next_tokens(
    model: Model, inputs: Int[Tensor, "B T"], source: Source | None, packing: Packing | None
) -> Predictions:
    """What is predicted after each input token that is not padding."""
    generator = model.generator
    assert generator is not None
    states = generator.decoder.hidden(inputs, generator.encode(source), packing)
    return Predictions(
        states.flatten(0, 1) if packing is None else states, generator.decoder.project
    )


def next_packed_tokens(model: Model, source: Packed | None, targets: Packed) -> Predictions:
    """The same in packed sequences."""
    generator = model.generator
    assert generator is not None
    memory = None
    if generator.encoder is not None:
        assert source is not None
        memory = generator.encoder.forward_packed(source)
    return Predictions(generator.decoder.hidden_packed(targets, memory), generator.decoder.project)


def shift_targets(
    targets: Tokens,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The decoder's inputs, the gold token after each, and the mask of those that exist."""
    return targets.ids[:, :-1], targets.ids[:, 1:], targets.mask[:, 1:]


def first_state(model: Model, rows: int) -> CarriedState:
    """The state that a recurrent language model carries into the first tokens of a text."""
    decoder = model.decoder
    assert isinstance(decoder, StatefulDecoder)
    state: CarriedState = decoder.start(None, batch=rows, capacity=0)
    return state
