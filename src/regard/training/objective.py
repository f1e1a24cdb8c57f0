"""The loss of a batch, whatever the model: a sum over what was to be predicted, for one division at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.sequence import FeatureGrids, Packed, Packing, Tokens
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.batching import Batch
from regard.data.tokenizer import MASK
from regard.model.interfaces import CarriedState, StatefulDecoder
from regard.model.scheduled_sampling import ScheduledSampling, force
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Model, Seq2Seq
from regard.training.losses import logit_loss, token_loss, unevenness

# What a model says itself to the sources of a batch, at an update of this number, and what each is worth.
Speak = Callable[[Seq2Seq, Batch, int], tuple[Tokens, Float[Tensor, " B"]]]
SPECIALS = 5  # tokens that are never hidden: padding, start, end, unknown, mask


@dataclass(frozen=True)
class Objective:
    """How a batch is scored."""

    label_smoothing: float = 0.0
    masked: float = 0.15
    forcing: ScheduledSampling | None = None
    r_drop: float = 0.0
    doubly_stochastic: float = 0.0
    speak: Speak | None = None  # learn from this, and not from the batch's targets

    def __call__(
        self, model: Model, batch: Batch, *, step: int = 0, carried: CarriedState | None = None
    ) -> tuple[Float[Tensor, ""], int, CarriedState | None]:
        """The summed loss, how many predictions it sums over, and the state that goes on where one was carried.

        With agreement a batch is read twice, with other dropout, and the loss is the mean of both and what they
        disagree by (https://arxiv.org/abs/2106.14448, whose weight is twice this one).
        """
        if isinstance(model, Classifier):
            assert isinstance(batch.targets, Tensor)
            return self._labels(model, batch.source, batch.targets)
        if isinstance(batch.targets, Packed):
            assert isinstance(model, Seq2Seq)
            return self._end_to_end(model, batch.source, batch.targets, batch.tokens)
        assert isinstance(batch.targets, Tokens)
        if isinstance(model, MaskedLanguageModel):
            return self._hidden_tokens(model, batch.targets)
        assert isinstance(model, Seq2Seq)
        if self.speak is not None:
            return self._own_words(model, batch, step, self.speak)
        return self._next_tokens(model, batch, step, carried)

    def _labels(self, model: Classifier, source: Any, gold: Int[Tensor, " B"]) -> tuple[Tensor, int, None]:
        logits = model(twice(source) if self.r_drop else source).float()
        return self._loss(logits, gold, logit_loss), len(gold), None

    def _next_tokens(
        self, model: Seq2Seq, batch: Batch, step: int, carried: CarriedState | None
    ) -> tuple[Tensor, int, CarriedState | None]:
        inputs, gold, there = shifted(batch.targets)  # type: ignore[arg-type]
        decoder, source = model.decoder, batch.source
        assert not isinstance(source, Packed)
        packing = None if batch.tokens == gold.numel() else Packing.of(there, batch.tokens)  # without asking the device
        gold = gold.flatten() if packing is None else gold.flatten()[packing.indices]
        if carried is not None:
            assert isinstance(decoder, StatefulDecoder)
            states, carried = decoder.carry(inputs, carried.detached())
            states = states if packing is None else packing.pack(states)
        elif self.forcing is not None and self.forcing.share(step) < 1.0:
            logits = force(decoder, inputs, model.encode(source), self.forcing, step=step)
            logits = logits.flatten(0, 1) if packing is None else packing.pack(logits)
            return logit_loss(logits.float(), gold, label_smoothing=self.label_smoothing), len(gold), None
        elif self.doubly_stochastic:
            memory, weights = model.encode(source), list[Tensor]()
            assert isinstance(decoder, StatefulDecoder)
            assert memory is not None
            states, _ = decoder.carry(inputs, decoder.start(memory, batch=len(inputs), capacity=0), weights)
            states = states if packing is None else packing.pack(states)
            penalty = self.doubly_stochastic * unevenness(torch.cat(weights, 1), there, memory.mask)
            states = states.flatten(0, 1) if packing is None else states
            return (
                token_loss(states, decoder.project, gold, label_smoothing=self.label_smoothing) + penalty,
                len(gold),
                None,
            )
        elif self.r_drop:
            source = None if source is None else twice(source)
            packing = None if packing is None else Packing.of(twice(there), 2 * batch.tokens)
            states = decoder.hidden(twice(inputs), model.encode(source), packing)
        else:
            states = decoder.hidden(inputs, model.encode(source), packing)
        states = states.flatten(0, 1) if packing is None else states
        return self._loss(states, gold, partial(token_loss, project=decoder.project)), len(gold), carried

    def _end_to_end(self, model: Seq2Seq, source: Any, targets: Packed, tokens: int) -> tuple[Tensor, int, None]:
        gold = targets.gold
        assert gold is not None
        if self.r_drop:
            source, targets = None if source is None else source.duplicate(), targets.duplicate()
        decoder = model.decoder
        memory = None if model.encoder is None else model.encoder.forward_packed(source)
        states = decoder.hidden_packed(targets, memory)
        return self._loss(states, gold, partial(token_loss, project=decoder.project)), tokens, None

    def _own_words(self, model: Seq2Seq, batch: Batch, step: int, speak: Speak) -> tuple[Tensor, int, None]:
        """Make likelier what is worth more than nothing, and less likely what is worth less."""
        targets, worth = speak(model, batch, step)
        inputs, said, there = shifted(targets)
        decoder = model.decoder
        assert not isinstance(batch.source, Packed)
        packing = Packing.of(there, int((targets.host_lengths - 1).sum()))
        with undropped(model):  # as it spoke: what is pushed away must be as likely as it was when it was drawn
            logits = decoder.project(decoder.hidden(inputs, model.encode(batch.source), packing)).float()
        surprise = F.cross_entropy(logits, said.flatten()[packing.indices], reduction="none")
        return (surprise * worth[packing.indices // packing.length]).sum(), len(surprise), None

    def _hidden_tokens(self, model: MaskedLanguageModel, tokens: Tokens) -> tuple[Tensor, int, None]:
        shown, hidden = hide(tokens, self.masked, len(model.project.weight))
        gold = tokens.ids[hidden]
        if self.r_drop:
            shown, hidden = twice(shown), twice(hidden)
        memory = model.encoder(shown)
        turned = model.transform(memory.states[:, memory.cls_tokens :][hidden])
        return self._loss(turned, gold, partial(token_loss, project=model.project)), len(gold), None

    def _loss(self, rows: Tensor, gold: Tensor, of: Callable[..., Tensor]) -> Tensor:
        """Of one row for each gold token; with agreement, of two: first all of one reading, then all of the other."""
        if not self.r_drop:
            return of(rows, gold=gold, label_smoothing=self.label_smoothing)
        pairs = torch.stack(rows.chunk(2), 1).flatten(0, 1)
        gold = gold.repeat_interleave(2)
        return of(pairs, gold=gold, label_smoothing=self.label_smoothing, r_drop=self.r_drop) / 2


def twice(side: Any) -> Any:
    """A batch of tokens, pictures or numbers, and the same after it."""
    if isinstance(side, Tokens):
        return Tokens(twice(side.ids), twice(side.lengths), None if side.host_copy is None else twice(side.host_copy))
    if isinstance(side, FeatureGrids):
        return FeatureGrids(twice(side.states))
    return torch.cat((side, side))


@contextmanager
def undropped(model: nn.Module) -> Iterator[None]:
    """Without dropout, but with gradients, for which PyTorch's recurrences must believe that they are trained."""
    modules = [module for module in model.modules() if module.training and not isinstance(module, nn.RNNBase)]
    shares = [(module, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    for module in modules:
        module.training = False
    for module, _ in shares:
        module.dropout = 0.0
    try:
        yield
    finally:
        for module in modules:
            module.training = True
        for module, share in shares:
            module.dropout = share


def shifted(targets: Tokens) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """What a decoder reads, what it should say after each token of that, and where there is such a token."""
    return targets.ids[:, :-1], targets.ids[:, 1:], targets.mask[:, 1:]


def hide(tokens: Tokens, share: float, vocabulary: int) -> tuple[Tokens, Bool[Tensor, "B S"]]:
    """Hide some tokens, at least one a batch: eight in ten behind the mask, one becomes any other, one stays.

    https://arxiv.org/abs/1810.04805
    """
    chance = torch.rand(tokens.ids.shape).to(tokens.ids.device)
    open_ = tokens.mask & (tokens.ids >= SPECIALS)
    hidden = open_ & (chance < share)
    if not hidden.any():
        hidden = open_ & (chance == chance.masked_fill(~open_, 2.0).min())
    fate = torch.rand(tokens.ids.shape).to(tokens.ids.device)
    other = torch.randint(SPECIALS, max(SPECIALS + 1, vocabulary), tokens.ids.shape).to(tokens.ids.device)
    shown = torch.where(hidden & (fate < 0.8), MASK, tokens.ids)
    shown = torch.where(hidden & (fate >= 0.9), other, shown)
    return replace(tokens, ids=shown), hidden


def first_state(model: Model, rows: int) -> CarriedState:
    """What a recurrent language model carries into the first stretch of its text."""
    decoder = model.decoder
    assert isinstance(decoder, StatefulDecoder)
    state: CarriedState = decoder.start(None, batch=rows, capacity=0)
    return state
