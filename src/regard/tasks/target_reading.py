"""How a decoder reads the target sequences of a batch in training.

A batch of targets is read in one of several ways: from gold inputs at once, or with scheduled sampling; from the start,
or from a carried state; padded or packed. What follows, the terms of the loss, does not depend on the way.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch

from regard.core.sequence import Packed, PackedSequences, Packing, Tokens
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.batching import Batch
from regard.model.interfaces import CarriedState, Source, StatefulDecoder
from regard.model.memory import Memory, PackedMemory
from regard.model.scheduled_sampling import ScheduledSampling, force, force_packed
from regard.model.seq2seq import Model, Seq2Seq
from regard.tasks.loss_terms import CrossAttention, Predictions
from regard.tasks.objective import Objective, repeat_batch


@dataclass(frozen=True)
class Reading:
    """What a decoder computed while it read a batch of targets.

    predicted   for each target that is not padding: hidden states with their projection, or logits
    inputs      the tokens that it read: gold ones, or with scheduled sampling in part its own
    carried     the state after the last token, where one was given
    attention   to the source, where it was asked for
    """

    predicted: Predictions
    inputs: Tensor
    carried: CarriedState | None = None
    attention: CrossAttention | None = None


@dataclass(frozen=True)
class HowToRead:
    """How a decoder reads its targets.

    sampling    scheduled sampling at this update; None: all inputs are gold
    carried     the state to read on from; None: the first
    attention   whether the attention to the source is wanted
    """

    sampling: ScheduledSampling | None = None
    step: int = 0
    carried: CarriedState | None = None
    attention: bool = False

    @staticmethod
    def of(objective: Objective, step: int, carried: CarriedState | None) -> "HowToRead":
        sampling = objective.scheduled_sampling
        if sampling is not None and sampling.share(step) == 1.0:
            sampling = None
        return HowToRead(sampling, step, carried, objective.reads_attention)

    @property
    def is_plain(self) -> bool:
        """Whether all inputs are gold and neither state nor attention is wanted."""
        return self.sampling is None and self.carried is None and not self.attention


class Targets(ABC):
    """A batch of target sequences, as a decoder reads them, and its source."""

    source: Source | None

    @property
    @abstractmethod
    def inputs(self) -> Tensor:
        """The tokens that the decoder reads."""

    @abstractmethod
    def with_inputs(self, inputs: Tensor) -> "Targets":
        """The same, but for the tokens that the decoder reads."""

    @abstractmethod
    def repeated(self) -> "Targets":
        """The batch for two passes at once: followed by itself."""

    @abstractmethod
    def predict(self, model: Model) -> Predictions:
        """Read all inputs at once, as they are."""

    def read(self, model: Seq2Seq, how: HowToRead) -> Reading:
        """Read the targets in the way that is asked for."""
        if how.is_plain:
            return Reading(self.predict(model), self.inputs)
        return self.read_specially(model, how)

    @abstractmethod
    def read_specially(self, model: Seq2Seq, how: HowToRead) -> Reading:
        """Read the targets in a way that may change the inputs, or needs the decoder's state."""


@dataclass(frozen=True)
class PaddedTargets(Targets):
    """Sequences that are padded to one length.

    tokens    (B, T) the decoder's inputs
    mask      False at padding
    packing   the positions that are not padding; None: there is no padding
    source    what the encoder reads, or the memory of it
    """

    tokens: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    packing: Packing | None
    source: Source | None

    @property
    def inputs(self) -> Int[Tensor, "B T"]:
        return self.tokens

    def with_inputs(self, inputs: Tensor) -> "PaddedTargets":
        return replace(self, tokens=inputs)

    def with_source(self, source: Source) -> "PaddedTargets":
        """The same of another source, such as the memory of an encoder that ran."""
        return replace(self, source=source)

    def repeated(self) -> "PaddedTargets":
        assert not isinstance(self.source, Memory)
        mask = repeat_batch(self.mask)
        packing = self.packing
        if packing is not None:
            packing = Packing.of(mask, 2 * len(packing.indices))
        return PaddedTargets(repeat_batch(self.tokens), mask, packing, repeat_batch(self.source))

    def predict(self, model: Model) -> Predictions:
        generator = model.generator
        assert generator is not None
        decoder = generator.decoder
        memory = generator.encode(self.source)
        if not decoder.has_hidden:
            return Predictions(self._kept(decoder(self.tokens, memory)))
        states = decoder.hidden(self.tokens, memory, self.packing)
        packed = states.flatten(0, 1) if self.packing is None else states
        return Predictions(packed, decoder.project)

    def read_specially(self, model: Seq2Seq, how: HowToRead) -> Reading:
        decoder = model.decoder
        memory = model.encode(self.source)
        state = None if how.carried is None else how.carried.detached()
        weights: list[Float[Tensor, "B _ S"]] | None = [] if how.attention else None
        if how.sampling is not None:
            forced = force(
                decoder,
                self.tokens,
                memory,
                how.sampling,
                step=how.step,
                mask=self.mask,
                state=state,
                weights=weights,
            )
            predicted = Predictions(self._kept(forced.logits).float())
            inputs = forced.inputs
            after = forced.state
        else:
            assert isinstance(decoder, StatefulDecoder)
            if state is None:
                state = decoder.start(memory, batch=len(self.tokens), capacity=0)
            states, after = decoder.carry(self.tokens, state, weights)
            predicted = Predictions(self._kept(states), decoder.project)
            inputs = self.tokens
        attention = None
        if weights is not None:
            assert memory is not None
            attention = CrossAttention(torch.cat(weights, 1), self.mask, memory.mask)
        return Reading(predicted, inputs, None if how.carried is None else after, attention)

    def _kept(self, x: Float[Tensor, "B T *rest"]) -> Float[Tensor, "N *rest"]:
        """The positions that are not padding."""
        return x.flatten(0, 1) if self.packing is None else self.packing.pack(x)


@dataclass(frozen=True)
class PackedTargets(Targets):
    """Sequences one after the other, without padding.

    real   False at tokens that only fill the batch to its size
    """

    targets: Packed
    source: PackedSequences | None
    real: Bool[Tensor, " N"]

    @property
    def inputs(self) -> Int[Tensor, " N"]:
        return self.targets.ids

    def with_inputs(self, inputs: Tensor) -> "PackedTargets":
        return replace(self, targets=replace(self.targets, ids=inputs))

    def repeated(self) -> "PackedTargets":
        source = None if self.source is None else self.source.duplicate()
        return PackedTargets(self.targets.duplicate(), source, repeat_batch(self.real))

    def predict(self, model: Model) -> Predictions:
        generator = model.generator
        assert generator is not None
        memory = self._encode(generator)
        states = generator.decoder.hidden_packed(self.targets, memory)
        return Predictions(states, generator.decoder.project)

    def read_specially(self, model: Seq2Seq, how: HowToRead) -> Reading:
        memory = self._encode(model)
        if isinstance(model.decoder, StatefulDecoder):
            assert memory is None or isinstance(memory, Memory)
            return self._read_padded(model, how, memory)
        assert how.sampling is not None
        forced = force_packed(model.decoder, self.targets, memory, how.sampling, step=how.step)
        return Reading(Predictions(forced.logits.float()), forced.inputs)

    def _read_padded(self, model: Seq2Seq, how: HowToRead, memory: Memory | None) -> Reading:
        """Read by a recurrent decoder, whose steps compute all sequences at once: they are padded here."""
        offsets = self.targets.offsets
        packing = offsets.packing
        padded = PaddedTargets(offsets.pad(self.targets.ids), offsets.mask, packing, memory)
        found = padded.read_specially(model, how)
        attention = found.attention
        if attention is not None:
            # Sequences that only fill the batch have no part in a penalty on attention.
            real = offsets.mask & offsets.pad(self.real)  # (B, T)
            source_mask = attention.source_mask & real.any(1, keepdim=True)  # (B, S)
            attention = replace(attention, target_mask=real, source_mask=source_mask)
        inputs = found.inputs.flatten()[packing.indices]
        return replace(found, inputs=inputs, attention=attention)

    def _encode(self, model: Seq2Seq) -> Memory | PackedMemory | None:
        if model.encoder is None:
            return None
        assert self.source is not None
        return model.encoder.forward_packed(self.source)


def targets_of(batch: Batch) -> tuple[Targets, Int[Tensor, " N"]]:
    """The targets of a batch as a decoder reads them, and the gold token after each input."""
    if isinstance(batch.targets, Packed):
        assert batch.source is None or isinstance(batch.source, PackedSequences)
        gold = batch.targets.gold
        assert gold is not None
        return PackedTargets(batch.targets, batch.source, gold >= 0), gold
    assert isinstance(batch.targets, Tokens)
    assert not isinstance(batch.source, PackedSequences)
    inputs, gold, mask = shift_targets(batch.targets)  # (B, T) each
    flat = gold.flatten()
    # The number of predictions is known without waiting for a GPU.
    if batch.tokens == flat.numel():
        return PaddedTargets(inputs, mask, None, batch.source), flat
    packing = Packing.of(mask, batch.tokens)
    return PaddedTargets(inputs, mask, packing, batch.source), flat[packing.indices]


def shift_targets(
    targets: Tokens,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The decoder's inputs, the gold token after each, and the mask of those that exist."""
    return targets.ids[:, :-1], targets.ids[:, 1:], targets.mask[:, 1:]
