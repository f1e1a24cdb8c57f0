"""A Transformer decoder's step in compiled code, on a CPU: the same start, step, follow, enter and reorder.

It knows what most models are made of: scaled dot products, absolute positions, one head of keys for each of queries.
Others, and machines without a compiler, take PyTorch's way, with equal results.
"""

import ctypes
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F

from regard.kernels import native
from regard.model.embedding import Embedding, Projection
from regard.model.listening import anyone
from regard.model.memory import Memory
from regard.model.multihead import MultiHead
from regard.model.positions import Add
from regard.model.scores import ScaledDot
from regard.model.state import put_rows
from regard.model.transformer import ACTIVATIONS, Block, TransformerDecoder
from regard.shapes import Float, Int, Tensor

KINDS = {ACTIVATIONS["relu"]: 1, ACTIVATIONS["gelu"]: 2, ACTIVATIONS["gelu_tanh"]: 3, ACTIVATIONS["silu"]: 4}
Pointer, Count = ctypes.c_void_p, ctypes.c_int64


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("weight", "bias", "small", "scale", "offset")),
        *((name, Count) for name in ("inputs", "outputs")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("scale", Pointer), ("shift", Pointer), ("epsilon", ctypes.c_float))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Product) for name in ("open", "out", "ask", "tell", "widen", "narrow")),
        *((name, _Norm) for name in ("around_attend", "around_cross", "around_perceive")),
    )


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        ("project", _Product),
        ("last", _Norm),
        *((name, Count) for name in ("count", "width", "heads", "hidden", "activation", "norm_first", "crosses")),
    )


class _State(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("cache", "parents", "first", "sources", "mask")),
        *((name, Count) for name in ("sentences", "beams", "capacity", "time", "positions")),
        *((name, Pointer) for name in ("x", "normed", "wide", "seen", "scores", "logits")),
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

    @property
    def beams(self) -> int:
        return self.parents.shape[1]

    def reorder(self, index: Int[Tensor, " sentences"]) -> "NativeState":
        return replace(
            self,
            cache=self.cache[:, index],
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

    def enter(self, rows: Int[Tensor, " n"], fresh: "NativeState") -> "NativeState":
        self.first[rows] = self.time
        sources = [put_rows(mine, rows, new) for mine, new in zip(self.sources, fresh.sources, strict=True)]
        self.sources = [source for source in sources if source is not None]
        mask = put_rows(self.mask, rows, fresh.mask)
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
        self.decoder, self.library = decoder, library
        library.regard_bytes.restype = Count
        self.most_bytes = library.regard_bytes() if int8 else 0  # inputs of a product in bytes, at most
        self.kept: list[Tensor] = []  # what the tables point to
        library.regard_columns.restype = Count
        self.columns = library.regard_columns()
        blocks = list(decoder.stack.blocks)
        self.layers = (_Layer * len(blocks))(*(self._layer(block) for block in blocks))
        attend, last = blocks[0].attend, decoder.stack.norm
        first, hidden = blocks[0].perceive, blocks[0].perceive.open.out_features
        self.width, self.crosses = attend.width, hasattr(blocks[0], "cross")
        self.table = _Decoder(
            self.layers,
            self._product(decoder.project.weight, decoder.project.bias),
            _Norm() if isinstance(last, nn.Identity) else self._norm(last),
            len(blocks),
            self.width,
            attend.heads,
            hidden,
            KINDS[first.activation],
            not isinstance(last, nn.Identity),
            self.crosses,
        )
        self.words, self.widest = decoder.project.weight.shape[0], max(3 * self.width, hidden)
        self.memories = [
            (
                torch.cat((block.cross.key.weight, block.cross.value.weight)).detach(),
                torch.cat((block.cross.key.bias, block.cross.value.bias)).detach(),
            )
            for block in blocks
            if self.crosses
        ]
        self.places = self._places(64)

    def start(self, memory: Memory | None, *, batch: int, capacity: int, beams: int | None = None) -> NativeState:
        beams = beams or 1
        blocks = len(self.layers)
        if memory is None:
            sources, mask = [], torch.zeros(batch, 0, dtype=torch.uint8)
        else:
            sources = [F.linear(memory.states, weight, bias) for weight, bias in self.memories]  # (B, S, 2 W)
            mask = memory.mask.to(torch.uint8)
        return NativeState(
            torch.empty(blocks, batch, capacity, beams, 2, self.width),
            torch.zeros(batch, beams, capacity, dtype=torch.int32),
            torch.zeros(batch, dtype=torch.int32),
            sources,
            mask,
        )

    def step(self, tokens: Int[Tensor, " rows"], state: NativeState) -> tuple[Float[Tensor, "rows V"], NativeState]:
        state.make_room()
        rows, capacity, positions = len(tokens), state.cache.shape[2], state.mask.shape[1]
        if state.time >= capacity:
            raise IndexError(f"the cache was laid out for {capacity} tokens")
        state.parents[:, :, state.time] = torch.arange(state.beams, dtype=torch.int32)
        x = self._embed(tokens, state)
        room = torch.empty(rows * (2 * self.width + self.widest + capacity + positions))
        parts = [rows * self.width, rows * self.widest, rows * self.width, rows * (capacity + positions)]
        normed, wide, seen, scores = torch.split(room, parts)
        logits = torch.empty(rows, self.words)
        sources = [source.contiguous() for source in state.sources]
        pointers = (Pointer * max(1, len(sources)))(*(source.data_ptr() for source in sources))
        tensors = (state.cache, state.parents, state.first)
        assert all(each.is_contiguous() for each in (*tensors, state.mask))
        table = _State(
            *(each.data_ptr() for each in tensors),
            ctypes.cast(pointers, Pointer),
            state.mask.data_ptr(),
            rows // state.beams,
            state.beams,
            capacity,
            state.time,
            positions,
            *(each.data_ptr() for each in (x, normed, wide, seen, scores, logits)),
        )
        self.library.regard_step(ctypes.byref(self.table), ctypes.byref(table), torch.get_num_threads())
        state.time += 1
        return logits, state

    def _embed(self, tokens: Tensor, state: NativeState) -> Float[Tensor, "rows W"]:
        embedding = self.decoder.embedding
        x = F.embedding(tokens, embedding.weight) * embedding.scale
        if self.places is None:
            return x
        at = state.time - state.first  # (B,)
        longest = int(at.max()) + 1
        if longest > len(self.places):
            self.places = self._places(2 * longest)
        assert self.places is not None
        return x + self.places[at.repeat_interleave(state.beams)]

    def _places(self, count: int) -> Float[Tensor, "count W"] | None:
        place = self.decoder.entrance.place
        if place is None:
            return None
        assert isinstance(place, Add)
        limit = place.positions.limit
        known: Tensor = place.positions(torch.arange(count if limit is None else limit))
        return known.detach()

    def _layer(self, block: Block) -> _Layer:
        attend, nothing = block.attend, _Product()
        joint = [attend.query, attend.key, attend.value]
        cross = getattr(block, "cross", None)
        return _Layer(
            self._product(torch.cat([each.weight for each in joint]), torch.cat([each.bias for each in joint])),
            self._product(attend.out.weight, attend.out.bias),
            nothing if cross is None else self._product(cross.query.weight, cross.query.bias),
            nothing if cross is None else self._product(cross.out.weight, cross.out.bias),
            self._product(block.perceive.open.weight, block.perceive.open.bias),
            self._product(block.perceive.close.weight, block.perceive.close.bias),
            self._norm(block.around_attend.norm),
            _Norm() if cross is None else self._norm(block.around_cross.norm),
            self._norm(block.around_perceive.norm),
        )

    def _product(self, weight: Tensor, bias: Tensor) -> _Product:
        outputs, inputs = weight.shape
        padded = -(-outputs // self.columns) * self.columns
        if inputs <= self.most_bytes and inputs % 4 == 0:
            return self._small_product(weight.detach(), bias, padded)
        packed = torch.zeros(padded * inputs)
        self._pack(self.library.regard_pack, weight.detach(), packed)
        return _Product(self._keep(packed), self._keep(bias), None, None, None, inputs, outputs)

    def _small_product(self, weight: Tensor, bias: Tensor, padded: int) -> _Product:
        """Weights in bytes, each row by its own scale."""
        outputs, inputs = weight.shape
        scale = weight.abs().amax(1).clamp(min=1e-30) / 127
        small = (weight / scale[:, None]).round().to(torch.int8)
        packed = torch.zeros(padded * inputs, dtype=torch.int8)
        self._pack(self.library.regard_pack_bytes, small, packed)
        offset = 128 * small.sum(1, dtype=torch.int32)
        more = (0, padded - outputs)
        return _Product(
            None,
            self._keep(bias),
            self._keep(packed),
            self._keep(F.pad(scale, more)),
            self._keep(F.pad(offset, more)),
            inputs,
            outputs,
        )

    @staticmethod
    def _pack(pack: Any, weight: Tensor, packed: Tensor) -> None:
        laid = weight.contiguous()
        pack(Pointer(laid.data_ptr()), Count(laid.shape[0]), Count(laid.shape[1]), Pointer(packed.data_ptr()))

    def _norm(self, norm: nn.Module) -> _Norm:
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        shift: Tensor | None = getattr(norm, "bias", None)
        return _Norm(self._keep(norm.weight), None if shift is None else self._keep(shift), norm.eps)

    def _keep(self, tensor: Tensor) -> int:
        kept = tensor.detach().contiguous().clone()
        self.kept.append(kept)
        return kept.data_ptr()


_made: "WeakKeyDictionary[nn.Module, tuple[list[int], NativeDecoder]]" = WeakKeyDictionary()


def native_decoder(decoder: nn.Module, *, int8: bool = False) -> NativeDecoder | None:
    """The compiled form of a decoder, where there is one and nobody listens; made again when weights have changed."""
    found = _native(decoder, int8)
    if int8 and (found is None or not found.most_bytes):
        _no_bytes()
    return found


@lru_cache(maxsize=1)
def _no_bytes() -> None:
    """Say it once."""
    print("regard: int8 is not possible here (decoder or processor): decoding in float32", file=sys.stderr)


def _native(decoder: nn.Module, int8: bool) -> NativeDecoder | None:
    library = native.library() if isinstance(decoder, TransformerDecoder) and not anyone() else None
    if library is None or not isinstance(decoder, TransformerDecoder) or not _known(decoder):
        return None
    # By content: optimisers that do a whole step in one kernel change weights without counting it as a version.
    now = [int(int8), *(int(torch.hash_tensor(p).view(torch.int64)) for p in decoder.parameters())]
    if decoder not in _made or _made[decoder][0] != now:
        _made[decoder] = now, NativeDecoder(decoder, library, int8=int8)
    return _made[decoder][1]


def _known(decoder: TransformerDecoder) -> bool:
    weight, place = decoder.project.weight, decoder.entrance.place
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not decoder.training
        and isinstance(decoder.embedding, Embedding)
        and isinstance(decoder.project, Projection)
        and (place is None or isinstance(place, Add))
        and decoder.entrance.distance is None
        and decoder.entrance.narrow is None
        and isinstance(decoder.entrance.norm, nn.Identity)
        and all(_plain(block) for block in decoder.stack.blocks)
    )


def _plain(block: Block) -> bool:
    looks = [block.attend, *([block.cross] if hasattr(block, "cross") else [])]
    return not block.perceive.gated and block.perceive.activation in KINDS and all(_plain_look(each) for each in looks)


def _plain_look(look: MultiHead) -> bool:
    return (
        isinstance(look.score, ScaledDot)
        and look.key_heads == look.heads
        and look.heads * look.head_width == look.width
        and look.rotary is None
        and look.query_norm is None
        and look.query.bias is not None
    )
