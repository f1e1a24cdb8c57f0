"""A Transformer on a CPU in compiled code: a decoder's step, with the same start, step, follow, enter and reorder, and
an encoder's reading.

They know what most models are made of: scaled dot products, absolute positions, one head of keys for each of queries.
Others, and machines without a compiler, take PyTorch's way, with equal results.
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.sequence import Packing, Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.model.embedding import Projection
from regard.model.kv_cache import write_rows
from regard.model.memory import Memory, masked_mean
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from regard.runtime.cpu.weight_layout import (
    Count,
    LinearTable,
    Pointer,
    PositionTable,
    Scratch,
    WeightLayout,
    fingerprint,
    usable,
)

MOST_READ = 2048  # tokens that the compiled encoder takes at once; beyond them PyTorch's products are as fast


class _State(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("cache", "parents", "first", "sources", "mask", "tokens", "places")),
        *((name, Count) for name in ("sentences", "beams", "capacity", "time", "positions")),
        ("room", Scratch),
        ("logits", Pointer),
    )


class _Reading(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("tokens", "begins", "sentence", "places")),
        *((name, Count) for name in ("rows", "longest")),
        ("room", Scratch),
    )


@dataclass
class NativeState:
    """As `TransformerState`; hypotheses know by number whose entries in the cache are their ancestors'."""

    cache: Float[Tensor, "layers B capacity K 2 W"]
    parents: Int[Tensor, "B K capacity"]
    first: Int[Tensor, " B"]  # when each sentence entered
    sources: list[Float[Tensor, "B S E"]]  # a layer: keys and values
    mask: Tensor  # (B, S) of bytes
    time: int = 0
    logits: Float[Tensor, "rows V"] | None = None  # of the last step: memory to use again

    @property
    def beams(self) -> int:
        return self.parents.shape[1]

    def reorder(self, index: Int[Tensor, " sentences"]) -> "NativeState":
        layers, _, *entry = self.cache.shape
        cache = self.cache.new_empty(layers, len(index), *entry)
        cache[:, :, : self.time] = self.cache[:, :, : self.time].index_select(1, index)  # the rest is not written yet
        return replace(
            self,
            cache=cache,
            parents=self.parents[index],
            first=self.first[index],
            sources=[source[index] for source in self.sources],
            mask=self.mask[index],
        )

    def follow(self, parents: Int[Tensor, "B K"]) -> "NativeState":
        if self.beams > 1:
            past = self.parents[:, :, : self.time]
            self.parents[:, :, : self.time] = past.gather(1, parents[..., None].expand_as(past))
        return self

    def admit(self, rows: Int[Tensor, " n"], fresh: "NativeState") -> "NativeState":
        self.first[rows] = self.time
        sources = [write_rows(mine, rows, new) for mine, new in zip(self.sources, fresh.sources, strict=True)]
        self.sources = [source for source in sources if source is not None]
        mask = write_rows(self.mask, rows, fresh.mask)
        assert mask is not None
        self.mask = mask
        return self

    def make_room(self) -> None:
        """Forget the older half where the cache is full and sentences come and go."""
        capacity = self.cache.shape[2]
        if self.time < capacity or not bool(self.first.any()):
            return
        old = capacity // 2
        self.cache = torch.cat((self.cache[:, :, old:], self.cache[:, :, :old]), 2)
        self.parents = torch.cat((self.parents[:, :, old:], self.parents[:, :, :old]), 2)
        self.first = (self.first - old).clamp(min=0)
        self.time -= old


class NativeDecoder:
    """What stands in for a decoder while it searches."""

    def __init__(self, decoder: TransformerDecoder, library: ctypes.CDLL, *, int8: bool = False) -> None:
        self.library, self.places = (
            library,
            PositionTable(decoder.input_layer, beyond=True),
        )  # for sentences that are done
        self.weights = WeightLayout(library, int8=int8)
        project = self.weights.product(decoder.project.weight, decoder.project.bias)
        self.table = self.weights.stack(decoder.stack, decoder.embed_tokens, project)
        self.words = decoder.project.weight.shape[0]
        self.memories = [
            (
                torch.cat((block.cross_attn.k_proj.weight, block.cross_attn.v_proj.weight)).detach(),
                torch.cat((block.cross_attn.k_proj.bias, block.cross_attn.v_proj.bias)).detach(),
            )
            for block in decoder.stack.layers
            if block.cross_attn is not None
        ]

    def start(self, memory: Memory | None, *, batch: int, capacity: int, beams: int | None = None) -> NativeState:
        beams = beams or 1
        if memory is None:
            sources, mask = [], torch.zeros(batch, 0, dtype=torch.uint8)
        else:
            sources = [F.linear(memory.states, weight, bias) for weight, bias in self.memories]  # (B, S, 2 W)
            mask = memory.mask.to(torch.uint8)
        return NativeState(
            torch.empty(self.table.count, batch, capacity, beams, 2, self.table.dim),
            torch.zeros(batch, beams, capacity, dtype=torch.int32),
            torch.zeros(batch, dtype=torch.int32),
            sources,
            mask,
        )

    def step(self, tokens: Int[Tensor, " rows"], state: NativeState) -> tuple[Float[Tensor, "rows V"], NativeState]:
        """The next step's logits lie where these do."""
        state.make_room()
        rows, capacity, positions = len(tokens), state.cache.shape[2], state.mask.shape[1]
        if state.time >= capacity:
            raise IndexError(f"the cache was laid out for {capacity} tokens")
        if state.beams > 1:
            state.parents[:, :, state.time] = torch.arange(state.beams, dtype=torch.int32)
        room, x, _ = self.weights.room(rows, capacity + positions)
        if state.logits is None or len(state.logits) < rows:
            state.logits = torch.empty(rows, self.words)
        logits = state.logits[:rows]
        sources = [source.contiguous() for source in state.sources]
        pointers = (Pointer * max(1, len(sources)))(*(source.data_ptr() for source in sources))
        tensors = (state.cache, state.parents, state.first)
        tokens = tokens.contiguous()
        assert all(each.is_contiguous() for each in (*tensors, state.mask))
        table = _State(
            *(each.data_ptr() for each in tensors),
            ctypes.cast(pointers, Pointer),
            state.mask.data_ptr(),
            tokens.data_ptr(),
            self.places.pointer(state.time + 1 - int(state.first.min())),
            rows // state.beams,
            state.beams,
            capacity,
            state.time,
            positions,
            room,
            logits.data_ptr(),
        )
        self.library.regard_step(ctypes.byref(self.table), ctypes.byref(table), torch.get_num_threads())
        del x  # till here: the table points to it
        state.time += 1
        return logits, state


class NativeEncoder:
    """What stands in for an encoder while a search reads few tokens."""

    def __init__(self, encoder: TransformerEncoder, library: ctypes.CDLL) -> None:
        self.library, self.places = library, PositionTable(encoder.input_layer)
        self.weights = WeightLayout(library)
        self.table = self.weights.stack(encoder.stack, encoder.embed_tokens, LinearTable())

    def __call__(self, source: Tokens) -> Memory:
        mask = source.mask
        packing = Packing.of(mask)
        rows, longest = len(packing.indices), mask.shape[1]
        tokens = source.ids.flatten()[packing.indices]
        begins = F.pad(source.lengths.cumsum(0), (1, 0))
        sentence = packing.indices // longest
        room, x, normed = self.weights.room(rows, longest)
        tensors = (tokens, begins, sentence)
        table = _Reading(*(each.data_ptr() for each in tensors), self.places.pointer(longest), rows, longest, room)
        self.library.regard_read(ctypes.byref(self.table), ctypes.byref(table), torch.get_num_threads())
        states = packing.unpack(normed if self.table.norm_first else x)
        return Memory(states, mask, masked_mean(states, mask))


_made: "WeakKeyDictionary[nn.Module, tuple[list[int], Any]]" = WeakKeyDictionary()


def native_decoder(decoder: nn.Module, *, int8: bool = False) -> NativeDecoder | None:
    """The compiled form of a decoder, where there is one and nobody listens; made again when weights have changed."""
    found: NativeDecoder | None = None
    library = usable(decoder) if isinstance(decoder, TransformerDecoder) else None
    if library is not None and isinstance(decoder, TransformerDecoder) and isinstance(decoder.project, Projection):
        found = _current(decoder, library, lambda: NativeDecoder(decoder, library, int8=int8), int8)
    if int8 and (found is None or not found.weights.most_bytes):
        _no_bytes()
    return found


def encode(model: Any, source: Any) -> Any:
    """What a model's encoder makes of a source; in compiled code where that is faster."""
    encoder = model.encoder if isinstance(model, Seq2Seq) else None
    if isinstance(source, Tokens) and isinstance(encoder, TransformerEncoder) and source.ids.numel() <= MOST_READ:
        library = usable(encoder) if not encoder.causal and encoder.cls_token is None else None
        if library is not None and bool(source.lengths.all()):
            made: NativeEncoder = _current(encoder, library, lambda: NativeEncoder(encoder, library))
            return made(source)
    return model.encode(source)


def _current(module: nn.Module, library: ctypes.CDLL, make: Callable[[], Any], *options: int) -> Any:
    now, known = [*options, *fingerprint(library, module)], _made.get(module)
    if known is None or known[0] != now:
        known = _made[module] = now, make()  # which another thread may replace at once by one of other options
    return known[1]


@lru_cache(maxsize=1)
def _no_bytes() -> None:
    """Say it once."""
    print("regard: int8 is not possible here (decoder or processor): decoding in float32", file=sys.stderr)
