"""The training loss of a batch, for every kind of model: a sum over predictions, divided once per update."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.errors import InvalidArgument
from regard.core.sequence import FeatureGrids, MultiSource, Packed, Packing, Tokens
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.batching import Batch
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.model.interfaces import CarriedState, Source, StatefulDecoder
from regard.model.scheduled_sampling import ScheduledSampling, force
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Model, Seq2Seq
from regard.training.distillation import Distillation, Predictions
from regard.training.losses import Losses, doubly_stochastic_penalty, logit_loss, token_loss

# Samples outputs for each source of a batch, as many for each, at a given update: the tokens, and their advantages.
Sampler = Callable[[Seq2Seq, Batch, int], tuple[Tokens, Float[Tensor, " B"]]]
MAX_IMPORTANCE = 2.0  # of a sampled token, in self-critical training with dropout
BatchSide = TypeVar("BatchSide", bound=Tokens | Tensor | FeatureGrids | MultiSource)


class BatchLoss(NamedTuple):
    """The loss of a batch: sums over its predictions."""

    loss: Float[Tensor, ""]
    nll: Float[
        Tensor, ""
    ]  # negative log-likelihood: of the gold tokens alone, and without a gradient
    predictions: int
    carried: CarriedState | None = None  # the recurrent state to carry on, where one was given


@dataclass(frozen=True)
class Objective:
    """The loss of a batch, as [train] configures it."""

    label_smoothing: float = 0.0
    mask_probability: float = 0.15
    scheduled_sampling: ScheduledSampling | None = None
    r_drop: float = 0.0
    doubly_stochastic: float = 0.0
    reward_temperature: float = 1.0
    reward_likelihood: float = 0.0
    reward_dropout: bool = False
    sampler: Sampler | None = (
        None  # self-critical training: sampled outputs take the place of the targets
    )
    distillation: Distillation | None = None
    special_tokens: SpecialTokens = DEFAULT_TOKENS  # of the targets

    def __call__(
        self, model: Model, batch: Batch, *, step: int = 0, carried: CarriedState | None = None
    ) -> BatchLoss:
        """The loss of a batch at an update, computed from the weights of the model.

        With R-Drop (https://arxiv.org/abs/2106.14448) the batch is computed twice with different dropout masks; the
        loss is the mean of both plus `r_drop` times their symmetric KL divergence (the paper's weight is twice ours).
        """
        if (classifier := model.as_classifier()) is not None:
            return self._classification(classifier, batch)
        if (masked := model.as_masked_language_model()) is not None:
            assert isinstance(batch.targets, Tokens)
            return self._masked_tokens(masked, batch.targets)
        generator = model.as_seq2seq()
        assert generator is not None
        if isinstance(batch.targets, Packed):
            return self._packed(generator, batch, batch.targets)
        if self.sampler is not None:
            return self._self_critical(generator, batch, step, self.sampler)
        return self._next_tokens(generator, batch, step, carried)

    def _classification(self, model: Classifier, batch: Batch) -> BatchLoss:
        source, gold = batch.source, batch.targets
        assert isinstance(gold, Tensor)
        assert source is not None
        assert not isinstance(source, Packed)
        teachers = self._teach(lambda teacher: Predictions(teacher(source)))
        logits = model(repeat_batch(source) if self.r_drop else source).float()
        return BatchLoss(*self._loss(Predictions(logits), gold, teachers), len(gold))

    def _next_tokens(
        self, model: Seq2Seq, batch: Batch, step: int, carried: CarriedState | None
    ) -> BatchLoss:
        inputs, gold, mask = shift_targets(batch.targets)  # type: ignore[arg-type]
        decoder, source = model.decoder, batch.source
        assert not isinstance(source, Packed)
        packing = (
            None if batch.tokens == gold.numel() else Packing.of(mask, batch.tokens)
        )  # without a device sync
        gold = gold.flatten() if packing is None else gold.flatten()[packing.indices]
        teachers = self._teach(partial(next_tokens, inputs=inputs, source=source, packing=packing))
        if carried is not None:
            assert isinstance(decoder, StatefulDecoder)
            states, carried = decoder.carry(inputs, carried.detached())
            states = states.flatten(0, 1) if packing is None else packing.pack(states)
            predicted = Predictions(states, decoder.project)
        elif self.scheduled_sampling is not None and self.scheduled_sampling.share(step) < 1.0:
            logits = force(
                decoder, inputs, model.encode(source), self.scheduled_sampling, step=step, mask=mask
            )
            logits = logits.flatten(0, 1) if packing is None else packing.pack(logits)
            return BatchLoss(
                *logit_loss(logits.float(), gold, label_smoothing=self.label_smoothing), len(gold)
            )
        elif self.doubly_stochastic:
            memory, weights = model.encode(source), list[Tensor]()
            assert isinstance(decoder, StatefulDecoder)
            assert memory is not None
            states, _ = decoder.carry(
                inputs, decoder.start(memory, batch=len(inputs), capacity=0), weights
            )
            states = states.flatten(0, 1) if packing is None else packing.pack(states)
            penalty = self.doubly_stochastic * doubly_stochastic_penalty(
                torch.cat(weights, 1), mask, memory.mask
            )
            loss, nll = token_loss(
                states, decoder.project, gold, label_smoothing=self.label_smoothing
            )
            return BatchLoss(loss + penalty, nll, len(gold))
        elif self.r_drop:
            source = None if source is None else repeat_batch(source)
            packing = None if packing is None else Packing.of(repeat_batch(mask), 2 * batch.tokens)
            predicted = next_tokens(model, repeat_batch(inputs), source, packing)
        elif not decoder.has_hidden:
            logits = decoder(inputs, model.encode(source)).flatten(0, 1)
            logits = logits if packing is None else logits[packing.indices]
            return BatchLoss(
                *logit_loss(logits, gold, label_smoothing=self.label_smoothing), len(gold)
            )
        else:
            predicted = next_tokens(model, inputs, source, packing)
        return BatchLoss(*self._loss(predicted, gold, teachers), len(gold), carried)

    def _packed(self, model: Seq2Seq, batch: Batch, targets: Packed) -> BatchLoss:
        gold, source = targets.gold, batch.source
        assert gold is not None
        assert source is None or isinstance(source, Packed)
        teachers = self._teach(partial(next_packed_tokens, source=source, targets=targets))
        if self.r_drop:
            source, targets = None if source is None else source.duplicate(), targets.duplicate()
        return BatchLoss(
            *self._loss(next_packed_tokens(model, source, targets), gold, teachers), batch.tokens
        )

    def _self_critical(
        self, model: Seq2Seq, batch: Batch, step: int, sampler: Sampler
    ) -> BatchLoss:
        """REINFORCE: the log-probability of each sampled output, weighted by its advantage; `nll` is of the samples.

        Log-probabilities must be those that the samples were drawn from, which are without dropout. Those with dropout
        are of another distribution: truncated importance weights (https://doi.org/10.1198/106186008X320456) correct it.
        """
        targets, advantages = sampler(model, batch, step)
        packing = Packing.of(targets.mask[:, 1:], int((targets.host_lengths - 1).sum()))
        weights = advantages[packing.indices // packing.length]
        if self.reward_dropout:
            with no_dropout(model), torch.no_grad():
                drawn_from = self._sample_nll(model, batch, targets, packing)
            losses = self._sample_nll(model, batch, targets, packing)
            weights = weights * (drawn_from - losses.detach()).exp().clamp(max=MAX_IMPORTANCE)
        else:
            with no_dropout(model):
                losses = self._sample_nll(model, batch, targets, packing)
        loss = (losses * weights).sum()
        if self.reward_likelihood:
            gold = self._next_tokens(model, batch, step, None)
            loss = loss + self.reward_likelihood * gold.loss * (len(losses) / gold.predictions)
        return BatchLoss(loss, losses.detach().sum(), len(losses))

    def _sample_nll(
        self, model: Seq2Seq, batch: Batch, targets: Tokens, packing: Packing
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
        return F.cross_entropy(logits / self.reward_temperature, gold, reduction="none")

    def _masked_tokens(self, model: MaskedLanguageModel, tokens: Tokens) -> BatchLoss:
        inputs, masked = mask_tokens(
            tokens, self.mask_probability, len(model.project.weight), self.special_tokens
        )
        gold = tokens.ids[masked]
        teachers = self._teach(partial(masked_tokens, inputs=inputs, masked=masked))
        if self.r_drop:
            inputs, masked = repeat_batch(inputs), repeat_batch(masked)
        return BatchLoss(
            *self._loss(masked_tokens(model, inputs, masked), gold, teachers), len(gold)
        )

    def _teach(self, forward: Callable[[Model], Predictions]) -> list[Predictions]:
        """The predictions of each teacher for the same batch, which is not repeated for R-Drop."""
        return [] if self.distillation is None else self.distillation.predictions(forward)

    def _loss(self, predicted: Predictions, gold: Tensor, teachers: list[Predictions]) -> Losses:
        """The loss of one row for each gold token; with R-Drop, of two: all of one pass, then all of the other."""
        rows, project = predicted
        loss = logit_loss if project is None else partial(token_loss, project=project)
        if not self.r_drop:
            usual = loss(rows, gold=gold, label_smoothing=self.label_smoothing)
        else:
            pairs, golds = torch.stack(rows.chunk(2), 1).flatten(0, 1), gold.repeat_interleave(2)
            both = loss(pairs, gold=golds, label_smoothing=self.label_smoothing, r_drop=self.r_drop)
            usual = Losses(both.loss / 2, both.nll / 2)
        return (
            usual
            if self.distillation is None
            else self.distillation(usual, predicted, teachers, gold)
        )


def next_tokens(
    model: Model, inputs: Int[Tensor, "B T"], source: Source | None, packing: Packing | None
) -> Predictions:
    """What is predicted after each input token that is not padding."""
    generator = model.as_seq2seq()
    assert generator is not None
    states = generator.decoder.hidden(inputs, generator.encode(source), packing)
    return Predictions(
        states.flatten(0, 1) if packing is None else states, generator.decoder.project
    )


def next_packed_tokens(model: Model, source: Packed | None, targets: Packed) -> Predictions:
    """The same in packed sequences."""
    generator = model.as_seq2seq()
    assert generator is not None
    memory = None
    if generator.encoder is not None:
        assert source is not None
        memory = generator.encoder.forward_packed(source)
    return Predictions(generator.decoder.hidden_packed(targets, memory), generator.decoder.project)


def masked_tokens(model: Model, inputs: Tokens, masked: Bool[Tensor, "B S"]) -> Predictions:
    """What is predicted in place of the masked tokens."""
    own = model.as_masked_language_model()
    assert own is not None
    memory = own.encoder(inputs)
    return Predictions(own.transform(memory.states[:, memory.cls_tokens :][masked]), own.project)


def repeat_batch(side: BatchSide) -> BatchSide:
    """Tokens, features or a tensor, concatenated with itself along the batch."""
    if isinstance(side, Tensor):
        return cast(
            BatchSide, side.repeat(2, *[1] * (side.ndim - 1))
        )  # torch.cat refuses float16 under CPU autocast
    if isinstance(side, MultiSource):
        return replace(side, parts=tuple(map(repeat_batch, side.parts)))
    return replace(
        side, **{name: repeat_batch(part) for name, part in vars(side).items() if part is not None}
    )


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


def shift_targets(
    targets: Tokens,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The decoder's inputs, the gold token after each, and the mask of those that exist."""
    return targets.ids[:, :-1], targets.ids[:, 1:], targets.mask[:, 1:]


def mask_tokens(
    tokens: Tokens, probability: float, vocab_size: int, special: SpecialTokens = DEFAULT_TOKENS
) -> tuple[Tokens, Bool[Tensor, "B S"]]:
    """Choose tokens to predict, at least one a batch: 80 % become the mask token, 10 % a random token, 10 % stay.

    BERT (https://arxiv.org/abs/1810.04805). Special tokens are neither masked nor drawn. Returns the inputs, and the
    mask of the chosen positions.
    """
    draws = torch.rand(tokens.ids.shape).to(tokens.ids.device)
    ordinary = torch.ones(vocab_size, dtype=torch.bool)
    ordinary[[token for token in special.ids if token < vocab_size]] = False
    candidates = tokens.mask & ordinary.to(tokens.ids.device)[tokens.ids]
    chosen = candidates & (draws < probability)
    if not chosen.any():
        chosen = candidates & (draws == draws.masked_fill(~candidates, 2.0).min())
    replacement = torch.rand(tokens.ids.shape).to(tokens.ids.device)
    words = ordinary.nonzero().flatten() if ordinary.any() else torch.zeros(1, dtype=torch.int64)
    random = words[torch.randint(len(words), tokens.ids.shape)].to(tokens.ids.device)
    if special.mask is None:
        wanted, remedy = "a vocabulary with a mask token", "Start from a masked language model."
        raise InvalidArgument("special_tokens.mask", wanted=wanted, got="none", remedy=remedy)
    inputs = torch.where(chosen & (replacement < 0.8), special.mask, tokens.ids)
    inputs = torch.where(chosen & (replacement >= 0.9), random, inputs)
    return replace(tokens, ids=inputs), chosen


def first_state(model: Model, rows: int) -> CarriedState:
    """The state that a recurrent language model carries into the first tokens of a text."""
    decoder = model.decoder
    assert isinstance(decoder, StatefulDecoder)
    state: CarriedState = decoder.start(None, batch=rows, capacity=0)
    return state
