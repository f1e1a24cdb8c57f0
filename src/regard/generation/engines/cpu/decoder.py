"""A Transformer decoder's step in compiled C++ (step.cpp)."""

import ctypes
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from weakref import ref

import torch
from torch import nn

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.generation.engines.base import LEAST_PROMPT
from regard.generation.engines.cpu.compiled_decoder import (
    CompiledDecoder,
    StepCall,
)
from regard.generation.engines.cpu.position_tables import (
    DistanceTable,
    PositionTable,
    RotationTable,
)
from regard.generation.engines.cpu.weight_layout import (
    Count,
    LayerTable,
    LinearTable,
    Pointer,
    Scratch,
    StackTable,
    WeightLayout,
    address,
    addresses,
    apply_linear,
    fields,
)
from regard.generation.engines.published_attention import publish, publish_step
from regard.generation.engines.transformer_weights import LinearWeights
from regard.model.capture import capturing_here
from regard.model.interfaces import AttentionModule, DecoderState
from regard.model.kv_cache import Slots, write_rows
from regard.model.memory import Memory
from regard.model.positions import Add
from regard.model.transformer import TransformerDecoder


class _StepArguments(ctypes.Structure):
    _fields_ = [
        *fields(Pointer, "cache parents admitted sources mask tokens"),
        *fields(Pointer, "position_table rotations distance_bias"),
        *fields(Count, "positions batch beams capacity time source_length"),
        ("scratch", Scratch),
        *fields(Pointer, "logits queries rows"),
        ("row_count", Count),
    ]


FIRST_STEPS = 64  # for which a cache has room at first


@dataclass
class NativeState(DecoderState):
    """A key-value cache shared by the hypotheses of a sequence, with the ancestors of each by number.

    The cache begins small and grows with the steps that are taken. `capacity` is what it may grow to.
    """

    cache: Float[Tensor, "layers B room K 2 C"]
    parents: Int[
        Tensor, "B K room"
    ]  # at each step, the hypothesis whose cache entry is this one's ancestor
    admitted: Int[Tensor, " B"]  # the step at which each sequence was admitted
    released: Bool[Tensor, " B"]  # whether each sequence has ended
    sources: list[Float[Tensor, "B S E"]]  # of each layer: keys and values of the memory
    mask: Tensor  # (B, S), uint8
    capacity: int
    time: int = 0
    logits: Float[Tensor, "rows V"] | None = None  # of the last step; its memory is reused
    tables: Sequence[
        Tensor | None
    ] = ()  # of positions, which the last step has read: they stay for the next

    @property
    def beams(self) -> int:
        return self.parents.shape[1]

    @property
    def room(self) -> int:
        """Steps for which the cache has room, with those that were taken."""
        return self.cache.shape[2]

    def reorder(self, index: Int[Tensor, " n"]) -> "NativeState":
        layers, _, *entry = self.cache.shape
        cache = self.cache.new_empty(layers, len(index), *entry)
        rows = {
            name: getattr(self, name)[index] for name in ("parents", "admitted", "released", "mask")
        }
        old = (
            int(rows["admitted"].min()) if len(index) else 0
        )  # what is before is read no more, the rest is unwritten
        cache[:, :, old : self.time] = self.cache[:, :, old : self.time].index_select(1, index)
        return replace(
            self, cache=cache, sources=[source[index] for source in self.sources], **rows
        )

    def follow(self, parents: Int[Tensor, "B K"]) -> "NativeState":
        if self.beams > 1:
            past = self.parents[:, :, : self.time]
            self.parents[:, :, : self.time] = past.gather(1, parents[..., None].expand_as(past))
        return self

    def admit(self, slots: Slots, fresh: "NativeState") -> "NativeState":
        self._write_past(slots, fresh)
        length = fresh.mask.shape[1]
        pairs = zip(self.sources, fresh.sources, strict=True)
        if length > self.mask.shape[1]:
            self.sources = [write_rows(mine, slots, new) for mine, new in pairs]
        else:
            for mine, new in pairs:
                mine[slots, :length] = new  # what is behind is masked
        self.mask = write_rows(self.mask, slots, fresh.mask)
        return self

    def _write_past(self, slots: Slots, fresh: "NativeState") -> None:
        """Make what `fresh` has read, with one hypothesis each, the past of all hypotheses in these slots."""
        missing = fresh.time - self.time
        if missing > 0:
            self.grow(fresh.time)
            for past in (self.cache, self.parents):
                past[:, :, missing : missing + self.time] = past[:, :, : self.time].clone()
            self.admitted += missing
            self.time += missing
        first = self.time - fresh.time
        self.admitted[slots] = first
        self.released[slots] = False
        if fresh.time:
            self.cache[:, slots, first : self.time, 0] = fresh.cache[:, :, : fresh.time, 0]
            self.parents[slots, :, first : self.time] = 0

    def release(self, slots: Sequence[int]) -> None:
        self.released[list(slots)] = True

    def make_room(self) -> None:
        """Have room for one more step at least: drop what no output needs any more, or grow."""
        if self.time < self.room:
            return
        # Of requests that enter a search later, an output is at most half as long as the capacity.
        longest = self.capacity // 2
        most = self.capacity
        oldest = self._oldest()
        if bool(self.admitted.any()):
            most = longest + longest // 4
            if self.room >= self.capacity:  # those that have ended may not all be released
                oldest = max(oldest, self.time - longest)
        # When a quarter is free again, the next move is far enough for moves to cost little.
        if oldest > 0 and (4 * oldest >= self.room or self.room >= most):
            self._drop(oldest)
        else:
            self.grow(max(self.room + 1, min(2 * self.room, most)))

    def _oldest(self) -> int:
        """The first step that a sequence which has not ended still reads."""
        running = self.admitted[~self.released]
        return int(running.min()) if len(running) else self.time

    def grow(self, room: int) -> None:
        """Have room for so many steps, with those that were taken, as far as the capacity allows."""
        room = min(room, self.capacity)
        if room <= self.room:
            return
        layers, batch, _, *entry = self.cache.shape
        cache = self.cache.new_empty(layers, batch, room, *entry)
        cache[:, :, : self.time] = self.cache[:, :, : self.time]
        self.cache = cache
        parents = self.parents.new_zeros(batch, self.beams, room)
        parents[:, :, : self.time] = self.parents[:, :, : self.time]
        self.parents = parents

    def _drop(self, old: int) -> None:
        """Move what follows the first `old` steps to the beginning, in place and in parts that do not overlap."""
        left = self.time - old
        for first in range(0, left, old):
            end = min(first + old, left)
            for past in (self.cache, self.parents):
                past[:, :, first:end] = past[:, :, first + old : end + old]
        self.admitted = (self.admitted - old).clamp(min=0)
        self.time = left


class NativeDecoder(CompiledDecoder[NativeState]):
    """The compiled form of a Transformer decoder."""

    state_type = NativeState
    step_name = "regard_step"
    search_name = "regard_search"
    scaled_weights: WeightLayout | None = None  # of `with_scaled_heads`

    def __init__(
        self, decoder: TransformerDecoder, library: ctypes.CDLL, *, int8: bool = False
    ) -> None:
        super().__init__(decoder, library, int8=int8)
        blocks = list(decoder.stack.layers)
        input_layer = decoder.input_layer
        rotary = blocks[0].self_attn.rotary
        project = self.weights.linear(decoder.project)
        self.table = self.weights.stack(decoder.stack, input_layer, decoder.embed_tokens, project)
        encoding = input_layer.position_encoding
        # Finished sequences step on beyond the last position until the batch ends.
        self.positions = PositionTable(encoding, clamp=True) if isinstance(encoding, Add) else None
        self.rotations = None if rotary is None else RotationTable(rotary)
        self.biases = (
            None if input_layer.relative_bias is None else DistanceTable(input_layer.relative_bias)
        )
        crosses = [
            (cross.k_proj, cross.v_proj)
            for block in blocks
            if (cross := block.cross_attn) is not None
        ]
        self.attentions = [
            (ref(block.self_attn), block.cross_attn and ref(block.cross_attn)) for block in blocks
        ]
        self.source_projections = [self.weights.linear(*pair) for pair in crosses]
        self.source_norms = [
            block.cross_attn.k_norm for block in blocks if block.cross_attn is not None
        ]

    def with_scaled_heads(
        self, factors: Mapping[AttentionModule, Mapping[int, float]]
    ) -> "NativeDecoder":
        """A decoder in which the outputs of some heads of its attention modules are multiplied.

        It has output projections of its own for these modules, in float32, and shares all other weights.
        """
        scaled = copy(self)
        count = self.table.layer_count
        scaled.scaled_weights = WeightLayout(self.library)
        layers = (LayerTable * count)(*self.table.layers[:count])
        for layer, modules in zip(layers, self.attentions, strict=True):
            for name, reference in zip(("out_proj", "cross_out_proj"), modules, strict=True):
                module = None if reference is None else reference()
                if module is not None and module in factors:
                    weight = module.out_proj.weight.detach().clone()
                    of_heads = weight.view(len(weight), module.heads, -1)
                    for head, factor in factors[module].items():
                        of_heads[:, head] *= factor
                    setattr(
                        layer,
                        name,
                        scaled.scaled_weights.linear(LinearWeights(weight, module.out_proj.bias)),
                    )
        scaled.table = StackTable.from_buffer_copy(self.table)
        scaled.table.layers = layers
        return scaled

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> NativeState:
        if memory is None:
            sources = []
            mask = torch.zeros(batch, 0, dtype=torch.uint8)
        else:
            pairs = zip(self.source_projections, self.source_norms, strict=True)
            sources = [self._source(layer, norm, memory.states) for layer, norm in pairs]
            mask = memory.mask.to(torch.uint8)
        table = self.table
        room = min(capacity, FIRST_STEPS)
        cache = torch.empty(
            table.layer_count, batch, room, beams, 2, table.kv_heads * table.head_dim
        )
        parents = torch.zeros(batch, beams, room, dtype=torch.int32)
        admitted = torch.zeros(batch, dtype=torch.int32)
        released = torch.zeros(batch, dtype=torch.bool)
        return NativeState(cache, parents, admitted, released, sources, mask, capacity)

    def _source(
        self, layer: LinearTable, norm: nn.RMSNorm | None, states: Float[Tensor, "B S D"]
    ) -> Tensor:
        """The keys and values of a layer, of each position of the memory."""
        found = apply_linear(self.library, layer, states)
        if norm is not None:
            keys = found[..., : layer.outputs // 2]
            keys[:] = norm(keys.unflatten(-1, (self.table.kv_heads, -1))).flatten(-2)  # type: ignore[no-untyped-call]
        return found

    def prepare(self, state: NativeState) -> NativeState:
        state.make_room()
        return state

    def most_steps(self, state: NativeState) -> int:
        return state.room - state.time

    def stepped(self, state: NativeState, steps: int) -> None:
        state.time += steps

    def queries(self, tokens: Int[Tensor, " rows"], state: NativeState) -> Tensor:
        """Those of self-attention and of cross-attention."""
        width = self.table.heads * self.table.head_dim
        return torch.empty(len(self.attentions), 2, len(tokens), width)

    def prefill(self, tokens: Int[Tensor, "B T"], state: DecoderState) -> NativeState | None:
        """The keys and values of a forward pass by PyTorch, sequence by sequence: none depends on another's."""
        assert isinstance(state, NativeState)
        decoder = self.decoder()
        length = tokens.shape[1]
        fits = LEAST_PROMPT <= length <= state.capacity
        if decoder is None or self.int8 or state.sources or not fits or capturing_here():
            return None
        state.grow(length)
        for row in range(len(tokens)):
            filled = decoder.prefill(
                tokens[row : row + 1], decoder.start(None, batch=1, capacity=length)
            )
            assert filled is not None
            for layer, cache in zip(state.cache, filled.caches, strict=True):
                for part, x in enumerate((cache.filled.key, cache.filled.value)):
                    layer[row, :length, 0, part] = x[0].transpose(0, 1).flatten(1)
        state.time = length
        return state

    def step_call(
        self, tokens: Int[Tensor, " rows"], state: NativeState, steps: int, queries: Tensor | None
    ) -> StepCall:
        rows = len(tokens)
        capacity = state.room
        source_length = state.mask.shape[1]
        if state.time >= capacity or rows != state.parents[:, :, 0].numel():
            raise IndexError(
                f"the cache was laid out for {capacity} tokens of {len(state.parents)} sequences"
            )
        if state.beams > 1:
            state.parents[:, :, state.time] = torch.arange(state.beams, dtype=torch.int32)
        scratch, *memory = self.weights.scratch(rows, capacity + source_length)
        if state.logits is None or len(state.logits) < rows:
            state.logits = torch.empty(rows, self.vocab_size)
        logits = state.logits[:rows]
        sources = [source.contiguous() for source in state.sources]
        pointers = addresses(sources)
        tensors = (state.cache, state.parents, state.admitted)
        tokens = tokens.contiguous()
        assert all(each.is_contiguous() for each in (*tensors, state.mask))
        count = state.time + steps - int(state.admitted.min())
        tables = (self.positions, self.rotations, self.biases)
        grown = [None if each is None else each.of(count) for each in tables]
        state.tables = grown
        positions = [address(each) for each in grown]
        arguments = _StepArguments(
            *(each.data_ptr() for each in tensors), ctypes.cast(pointers, Pointer), state.mask.data_ptr(),
            tokens.data_ptr(), *positions, count, rows // state.beams, state.beams, capacity, state.time, source_length,
            scratch, logits.data_ptr(), address(queries), None, rows,
        )  # fmt: skip
        return StepCall(arguments, logits, [tokens, sources, pointers, grown, *memory])

    def publish(self, queries: Float[Tensor, "layers 2 rows W"], state: NativeState) -> None:
        mask = state.mask.bool()[:, None]
        heads = (self.table.heads, self.table.kv_heads)
        scaled = bool(self.table.scaled)
        bias = None if self.biases is None else self.biases.of(state.time)[: state.time].flip(0)
        for layer, (self_attn, cross_attn) in enumerate(self.attentions):
            cache = state.cache[layer, :, : state.time]
            parents = state.parents[:, :, : state.time]
            publish_step(
                self_attn(),
                queries[layer, 0],
                cache,
                parents,
                state.admitted,
                *heads,
                bias,
                scaled=scaled,
            )
            if cross_attn is not None:
                source = state.sources[layer].view(*state.mask.shape, 2, -1)
                query = queries[layer, 1].view(len(mask), state.beams, -1)
                publish(cross_attn(), query, source, mask, *heads, scaled=scaled)
