"""Variable-length attention: within packed sequences, without padding (dot-product scores).

On a GPU, short sequences take Triton kernels in which one program computes one head of one sequence, forward and
backward, looping over the head dimension where the head is wide. Longer ones take PyTorch's variable-length flash
attention, whose backward pass adds in no fixed order. Everything else is padded, which is also the reference.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Float, Tensor, Values
from regard.kernels import triton_launch
from regard.kernels.attention import blockwise, sdpa
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction, ScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers.dropout import dropped_outcomes

TILES = (32, 64, 128)  # sequence lengths that a program can hold, one launch for each
MAX_HELD_DIM = 256  # head dim that a program holds in registers
MAX_LOOPED_DIM = 1024  # head dim that it loops over, LOOP_STEP at a time, where heads share no keys
LOOP_STEP = 128
LOOP_SHARED_MEMORY = 80 << 10  # bytes that looping takes


@dataclass(frozen=True)
class HeadLayout:
    """How a row of queries, keys or values is divided into heads, and the settings of the attention."""

    heads: int
    kv_heads: int
    dim: int
    scale: float
    causal: bool = False
    dropout: float = 0.0
    window: int | None = None  # keys before the query's position that it attends to; None: all


@dataclass(frozen=True)
class PackedAttentionSpec:
    """An attention call over packed sequences: a query of sequence i attends to the keys of sequence i.

    kv   keys and values, concatenated on the last axis; with None, `query` holds queries, keys and values
    """

    layout: HeadLayout
    query: Float[Tensor, "N _"]
    kv: Float[Tensor, "M _"] | None
    offsets: SequenceOffsets
    kv_offsets: SequenceOffsets

    @property
    def max_length(self) -> int:
        return max(self.offsets.max_length, self.kv_offsets.max_length)

    @property
    def roles(self) -> tuple[Tensor, Tensor, Tensor]:
        """Views: queries (N, H, D), keys and values (M, G, D)."""
        layout = self.layout
        query_size = layout.heads * layout.dim
        key_size = layout.kv_heads * layout.dim
        query = self.query
        kv = self.kv
        if kv is None:
            kv = query[:, query_size:]
            query = query[:, :query_size]
        key = kv[:, :key_size]
        value = kv[:, key_size:]
        of_query = query.view(len(query), layout.heads, layout.dim)  # (N, H, D)
        of_key = key.view(len(key), layout.kv_heads, layout.dim)  # (M, G, D)
        of_value = value.view(len(value), layout.kv_heads, layout.dim)  # (M, G, D)
        return of_query, of_key, of_value

    def padded(self) -> tuple[AttentionSpec, Values]:
        """The same call over padded sequences, and its values. Queries of the padding are not masked."""
        packed_query, packed_key, packed_value = self.roles
        query = self.offsets.pad(packed_query).transpose(1, 2)  # (B, H, S, D)
        key = self.kv_offsets.pad(packed_key).transpose(1, 2)  # (B, G, S, D)
        value = self.kv_offsets.pad(packed_value).transpose(1, 2)  # (B, G, S, D)
        layout = self.layout
        allowed = self.kv_offsets.mask[:, None, None]  # (B, 1, 1, S)
        mask = AttentionMask(allowed, layout.window, 0 if layout.causal else None)
        return AttentionSpec(DotScoreFunction(layout.scale), query, key, mask), value

    def pack(self, out: Float[Tensor, "B H S D"]) -> Float[Tensor, "N _"]:
        """Outputs of the padded call, packed."""
        return self.offsets.packing.pack(out.transpose(1, 2)).flatten(1)


def supports(score_function: ScoreFunction) -> bool:
    return isinstance(score_function, DotScoreFunction)


def attend(spec: PackedAttentionSpec) -> Float[Tensor, "N _"]:
    """The output (N, heads · dim)."""
    layout = spec.layout
    query = spec.query
    kv = spec.kv
    tensors = [query] if kv is None else [query, kv]
    if layout.window is None and triton_launch.can_launch(*tensors):
        looped = _looped(layout, spec.max_length, query)
        if looped is not None:
            query = query.contiguous()
            if kv is not None:
                kv = kv.contiguous()
            seed = query.new_empty(1, dtype=torch.int64)
            if layout.dropout > 0:
                seed = torch.randint(2**62, (1,), device=query.device)
            out: Tensor = _Short.apply(
                looped, layout, spec.offsets, spec.kv_offsets, seed, query, kv
            )  # type: ignore[no-untyped-call]
            return out
        if query.dtype in triton_launch.HALF and layout.dim <= MAX_HELD_DIM and layout.dim % 8 == 0:
            return _flash(spec)
    return attend_padded(spec)


def _looped(layout: HeadLayout, max_length: int, like: Tensor) -> bool | None:
    """Whether a program loops over a head that it cannot hold; None where it can do neither."""
    size = next((size for size in TILES if size >= max_length), None)
    if size is None:
        return None
    shared = triton_launch.shared_memory_bytes(like.device)
    each = like.element_size()
    # The most shared memory that Triton was seen to take, for three dims and tiles of 64 and 128.
    held = (8 * size * triton_launch.next_power_of_2(layout.dim) + 2 * size**2) * each
    if layout.dim <= MAX_HELD_DIM and held <= shared:
        return False
    ungrouped = layout.heads == layout.kv_heads
    # Larger tiles compile for a minute.
    small = size * each <= 256
    if ungrouped and small and layout.dim <= MAX_LOOPED_DIM and shared >= LOOP_SHARED_MEMORY:
        return True
    return None


def attend_padded(spec: PackedAttentionSpec) -> Float[Tensor, "N _"]:
    """The output, computed over padded sequences."""
    padded, value = spec.padded()
    dropout = spec.layout.dropout
    kernel = sdpa if sdpa.supports(padded, value, dropout) else blockwise
    out, _ = kernel.attend(padded, value, dropout)  # (B, H, S, D)
    return spec.pack(out)


def _flash(spec: PackedAttentionSpec) -> Tensor:
    layout = spec.layout
    offsets = spec.offsets
    kv_offsets = spec.kv_offsets
    query, key, value = spec.roles
    key, value = (x.repeat_interleave(layout.heads // layout.kv_heads, 1) for x in (key, value))
    out: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, offsets.cu_seqlens, kv_offsets.cu_seqlens, offsets.max_length,
        kv_offsets.max_length,
        layout.dropout, layout.causal, False, scale=layout.scale,
    )[0]  # fmt: skip
    return out.flatten(1)


class _Short(torch.autograd.Function):
    """The Triton kernels of short sequences."""

    @staticmethod
    def forward(
        ctx: Any, looped: bool, layout: HeadLayout, offsets: SequenceOffsets,
        kv_offsets: SequenceOffsets,
        seed: Tensor, query: Tensor, kv: Tensor | None,
    ) -> Tensor:  # fmt: skip
        from regard.kernels.attention.varlen_triton import short_attention

        spec = PackedAttentionSpec(layout, query, kv, offsets, kv_offsets)
        out = query.new_empty(len(query), layout.heads * layout.dim)
        _launch(short_attention, layout.heads, looped, spec, seed, out)
        ctx.save_for_backward(seed, query, kv)
        ctx.settings = looped, layout, offsets, kv_offsets
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.attention.varlen_triton import d_short_attention

        refuse_second_derivative()
        looped, layout, offsets, kv_offsets = ctx.settings
        seed, query, kv = ctx.saved_tensors
        spec = PackedAttentionSpec(layout, query, kv, offsets, kv_offsets)
        d_query = query.new_empty(query.shape)
        d_kv = None
        if kv is not None:
            d_kv = kv.new_empty(kv.shape)
        d_roles = replace(spec, query=d_query, kv=d_kv).roles
        _launch(
            d_short_attention, layout.kv_heads, looped, spec, seed, d_out.contiguous(), *d_roles
        )
        return None, None, None, None, None, d_query, d_kv


def _launch(
    kernel: Any, heads: int, looped: bool, spec: PackedAttentionSpec, seed: Tensor, *tensors: Tensor
) -> None:
    """Launch a kernel for each tile: for the pairs of sequences too long for the tile before, up to its own size."""
    layout = spec.layout
    (query, key, _) = spec.roles
    batch = len(spec.offsets.cu_seqlens) - 1
    arguments = [
        *spec.roles, *tensors, spec.offsets.cu_seqlens, spec.kv_offsets.cu_seqlens, seed,
        query.stride(0), key.stride(0), layout.heads * layout.dim, layout.scale,
        dropped_outcomes(layout.dropout),
        layout.heads, layout.heads // layout.kv_heads, layout.dim,
    ]  # fmt: skip
    constants = {"CAUSAL": layout.causal, "DROP": layout.dropout > 0, "LOOPED": looped}
    for previous, size in pairwise((0, *TILES)):
        if previous >= spec.max_length:
            break
        warps = min(8, size**2 // 1024)
        if looped:
            tile = {"D": min(LOOP_STEP, 8192 // size), "num_warps": max(2, warps), "num_stages": 2}
        else:
            tile = {"D": triton_launch.next_power_of_2(layout.dim), "num_warps": warps}
        with triton_launch.on_device_of(query):
            kernel[(batch, heads)](*arguments, previous, R=size, C=size, **constants, **tile)
