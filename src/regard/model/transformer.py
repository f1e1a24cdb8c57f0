"""The Transformer encoder and decoder, made of blocks."""

from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from regard.core.sequence import PackedSequences, Packing
from regard.core.shapes import Bool, Float, Int, Shaped, Tensor
from regard.kernels.attention.bias import Bias, tile
from regard.model.capture import capturing_here, intercepting_here
from regard.model.inputs import InputModule, InputVectors
from regard.model.interfaces import Decoder, DecoderState, SequenceEncoder
from regard.model.kv_cache import FIRST_POSITIONS, KeyValue, KeyValueCache, LayerMemories, Slots
from regard.model.memory import Memory, PackedMemory, last_state, masked_mean
from regard.model.multihead import MultiHead
from regard.model.positions import POSITIONS, Start
from regard.model.transformer_block import (
    ClsToken,
    InputLayer,
    PackedInputs,
    PaddedInputs,
    StepInputs,
    TransformerStack,
)
from regard.model.transformer_config import TransformerConfig
from regard.model.vector_embedding import TargetEmbedding, TargetProjection


class TransformerEncoder(SequenceEncoder):
    """A Transformer encoder (https://arxiv.org/abs/1706.03762)."""

    packable = True
    shardable = True
    has_blocks = True

    def __init__(self, config: TransformerConfig, input_module: InputModule) -> None:
        super().__init__(input_module)
        self.dim = config.dim
        self.causal = config.causal
        self.window = config.window if config.causal else None
        self.cls_token = ClsToken(config.dim) if config.cls_token else None
        self.cls_tokens = int(config.cls_token)
        self.input_layer = InputLayer(config, bidirectional=not config.causal)
        self.stack = TransformerStack(config)

    def encode(self, vectors: InputVectors) -> Memory:
        x = vectors.states()  # (B, S, W)
        mask = vectors.mask
        if self.cls_token is not None:
            x, mask = self.cls_token(x, mask)
        types = vectors.types
        if types is not None and x.shape[1] > types.shape[1]:
            # The [CLS] state is of the first segment.
            types = F.pad(types, (x.shape[1] - types.shape[1], 0))
        length = x.shape[1]
        x = self.input_layer(x, types=types)
        packing = Packing.where_useful(mask)
        bias = self.input_layer.bias(length, length)
        if packing is not None:
            x = packing.pack(x)
        states = self.stack(
            x, PaddedInputs(mask[:, None], self.causal, bias, packing, window=self.window)
        )
        # Zeros in the padding, with a packing or without.
        if packing is None:
            states = states.masked_fill(~mask[..., None], 0.0)
        else:
            states = packing.unpack(states)
        if self.cls_token is not None:
            return Memory(states, mask, states[:, 0], cls_tokens=1)
        summary = last_state(states, mask) if self.causal else masked_mean(states, mask)
        return Memory(states, mask, summary)

    def forward_packed(self, source: PackedSequences) -> PackedMemory:
        """As `forward`, for packed sequences; not with a cls_token,
        nor with positions that bias the scores.
        """
        x = self.input_layer(self.input_module.read_packed(source), source.offsets)
        inputs = PackedInputs(source.offsets, self.causal, window=self.window)
        return PackedMemory(self.stack(x, inputs), source.offsets)


@dataclass
class TransformerState(DecoderState):
    """The state of a Transformer decoder, of K hypotheses for each of B sequences.

    The hypotheses of a sequence share one cache, K positions per step, and each may attend to its
    own ancestors only: when a hypothesis continues another, only this mask changes and no keys or
    values are copied.
    """

    caches: list[KeyValueCache]
    memory: LayerMemories | None
    beams: int = 1
    time: int = 0  # steps taken
    # None: one hypothesis each, all since the first step.
    visible: Bool[Tensor, "B K room"] | None = None
    entered: Int[Tensor, " B"] | None = None  # the step at which each sequence was admitted
    # Whether a full cache drops its older half: a sliding window needs only the other.
    slides: bool = False

    @property
    def length(self) -> int:
        """Steps in the cache."""
        return self.caches[0].length // self.beams

    def reorder(self, index: Int[Tensor, " n"]) -> "TransformerState":
        return replace(
            self,
            caches=[cache.reorder(index) for cache in self.caches],
            memory=None if self.memory is None else self.memory.reorder(index),
            visible=None if self.visible is None else self.visible[index],
            entered=None if self.entered is None else self.entered[index],
        )

    def follow(self, parents: Int[Tensor, "B K"]) -> "TransformerState":
        if self.beams == 1:
            return self
        assert self.visible is not None
        seen = self.caches[0].length
        past = self.visible[:, :, :seen]
        self.visible[:, :, :seen] = past.gather(1, parents[..., None].expand_as(past))
        return self

    def admit(self, slots: Slots, fresh: "TransformerState") -> "TransformerState":
        cache = self.caches[0]
        if self.visible is None:
            self.visible = cache.filled.key.new_ones(len(cache), 1, cache.length, dtype=torch.bool)
        if self.entered is None:
            self.entered = cache.filled.key.new_zeros(len(cache), dtype=torch.int64)
        self.entered[slots] = self.time - fresh.time
        self._write_past(slots, fresh)
        if self.memory is not None and fresh.memory is not None:
            self.memory = self.memory.write(slots, fresh.memory)
        return self

    def _write_past(self, slots: Slots, fresh: "TransformerState") -> None:
        """Make what `fresh` has read, with one hypothesis each,
        the past of all hypotheses in these slots.
        """
        assert self.visible is not None
        steps = fresh.length
        if self.slides:
            steps = min(steps, self.caches[0].capacity // self.beams // 2)
        if (missing := (steps - self.length) * self.beams) > 0:
            for cache in self.caches:
                cache.insert_empty(missing)
            shifted = F.pad(self.visible, (missing, 0))
            self.visible = shifted[:, :, : self.caches[0].capacity]
        self._see(self.caches[0].length)
        self.visible[slots] = False
        if steps:
            for mine, other in zip(self.caches, fresh.caches, strict=True):
                mine.write(slots, other.filled.last(steps), self.beams)
            end = self.caches[0].length
            self.visible[slots, :, end - steps * self.beams : end : self.beams] = True

    def _see(self, positions: int) -> None:
        """Have room in `visible` for so many positions: it grows with the caches, by doubling."""
        assert self.visible is not None
        room = self.visible.shape[2]
        if positions > room:
            larger = min(self.caches[0].capacity, max(positions, 2 * room))
            self.visible = F.pad(self.visible, (0, larger - room))

    def make_room(self) -> None:
        """Drop the older half of a full cache, if it slides or sequences were admitted:
        none is longer than half.
        """
        cache = self.caches[0]
        if (
            not (self.slides or self.entered is not None)
            or cache.length + self.beams <= cache.capacity
        ):
            return
        old = cache.capacity // self.beams // 2 * self.beams
        for each in self.caches:
            each.drop_oldest(old)
        if self.visible is not None:
            self.visible = torch.cat(
                (self.visible[:, :, old:], torch.zeros_like(self.visible[:, :, :old])), -1
            )


class TransformerDecoder(Decoder[TransformerState]):
    """A Transformer decoder."""

    packable = True
    shardable = True
    has_blocks = True

    def __init__(
        self,
        config: TransformerConfig,
        embedding: TargetEmbedding,
        project: TargetProjection,
        memory_dim: int | None,
    ):
        super().__init__()
        self.embed_tokens = embedding
        self.project = project
        self.extrapolates = POSITIONS[config.positions].extrapolates
        self.window = config.window
        self.input_layer = InputLayer(config, bidirectional=False)
        self.stack = TransformerStack(config, memory_dim)

    @property
    def longest(self) -> int | None:
        return self.input_layer.limit

    @property
    def cross_attentions(self) -> list[MultiHead]:
        return [block.cross_attn for block in self.stack.layers if block.cross_attn is not None]

    def hidden(
        self,
        targets: Shaped[Tensor, "B T *each"],
        memory: Memory | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "*lead W"]:
        x = self.input_layer(self.embed_tokens(targets))
        length = targets.shape[1]
        inputs = PaddedInputs(
            None, True, self.input_layer.bias(length, length), packing, window=self.window
        )
        if memory is not None:
            inputs = inputs.with_memory(memory)
        if packing is not None:
            x = packing.pack(x)
        states: Tensor = self.stack(x, inputs)
        return states

    def hidden_packed(
        self, targets: PackedSequences, memory: Memory | PackedMemory | None
    ) -> Float[Tensor, "N W"]:
        """As `hidden`, for packed sequences; not with positions that bias the scores."""
        assert not isinstance(memory, Memory)
        x = self.input_layer(self.embed_tokens(targets.items), targets.offsets)
        states: Tensor = self.stack(x, PackedInputs(targets.offsets, True, memory, self.window))
        return states

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> TransformerState:
        empty = self.project.weight.new_zeros(batch, 0, self.embed_tokens.dim)
        room = capacity
        projected = None
        # Captures and interceptors get all positions, in every call.
        shown = capturing_here() or intercepting_here()
        if self.window is not None and not shown:
            room = min(capacity, 2 * self.window + 2)
        slides = room < capacity
        capacity = room * beams
        if memory is not None:
            layers = [
                cross_attn.project_memory(memory.states) for cross_attn in self.cross_attentions
            ]
            projected = LayerMemories(layers, memory.mask[:, None])
        caches = [block.self_attn.empty_cache(empty, capacity) for block in self.stack.layers]
        shown_first = min(capacity, FIRST_POSITIONS * beams)
        visible = None
        if beams > 1:
            visible = empty.new_zeros(batch, beams, shown_first, dtype=torch.bool)
        return TransformerState(caches, projected, beams, visible=visible, slides=slides)

    def step(
        self, tokens: Shaped[Tensor, "B *each"], state: TransformerState
    ) -> tuple[Float[Tensor, "B V"], TransformerState]:
        state.make_room()
        beams = state.beams
        seen = state.caches[0].length
        if state.visible is not None:
            state._see(seen + beams)
        visible = state.visible
        position: int | Tensor = state.time
        if state.entered is not None:
            # Finished sequences are stepped beyond the learned positions; their output is not used.
            position = state.time - state.entered
            limit = self.input_layer.limit
            if limit is not None:
                position = position.clamp(max=limit - 1)
        start: Start = position
        if not isinstance(position, int):
            start = position.repeat_interleave(beams)
        x = self.input_layer(self.embed_tokens(tokens[:, None]), start)
        bias: Bias | None = self.input_layer.bias(1, state.length + 1)
        if visible is not None:
            visible[:, :, seen : seen + beams] = torch.eye(
                beams, dtype=torch.bool, device=visible.device
            )
            visible = visible[:, :, : seen + beams]
            if self.window is not None and seen > self.window * beams:
                old = seen - self.window * beams
                visible = F.pad(visible[:, :, old:], (old, 0))  # False before the window
            if bias is not None:
                bias = tile(bias, slice(0, 1), 0, state.length + 1, 1).repeat_interleave(beams, -1)
        states = self.stack(
            x.view(-1, beams, x.shape[-1]), self._step_inputs(state, bias, visible, position)
        )
        state.time += 1
        logits: Tensor = self.project(states).flatten(0, 1)
        return logits, state

    def prefill(
        self, tokens: Int[Tensor, "B T"], state: TransformerState
    ) -> TransformerState | None:
        assert state.time == 0
        cache = state.caches[0]
        end = tokens.shape[1]
        if not (state.slides or end * state.beams <= cache.capacity):
            return None
        if state.visible is not None:
            one = self.prefill(
                tokens,
                replace(self.start(None, batch=len(tokens), capacity=end), memory=state.memory),
            )
            if one is not None:
                state._write_past(slice(len(tokens)), one)
                state.time = end
            return None if one is None else state
        while state.time < end:  # in parts, where the cache slides
            state.make_room()
            seen = cache.length
            part = tokens[:, : cache.capacity - cache.length]
            tokens = tokens[:, part.shape[1] :]
            bias = self.input_layer.bias(part.shape[1], seen + part.shape[1])
            x = self.input_layer(self.embed_tokens(part), state.time)
            self.stack(x, self._step_inputs(state, bias, None, state.time))
            state.time += part.shape[1]
        return state

    def _step_inputs(
        self,
        state: TransformerState,
        bias: Bias | None,
        visible: Tensor | None,
        position: int | Tensor | None,
    ) -> list[StepInputs]:
        """What the attentions of each layer read; see `MultiHead.step`."""
        memories: list[KeyValue | None] = [None] * len(state.caches)
        if state.memory is not None:
            memories = [*state.memory.layers]
        mask = None if state.memory is None else state.memory.mask
        window = None if visible is not None else (self.window, None)
        each = zip(state.caches, memories, strict=True)
        return [
            StepInputs(cache, bias, window, visible, position, memory, mask)
            for cache, memory in each
        ]
