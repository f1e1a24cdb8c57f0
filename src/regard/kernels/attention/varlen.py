"""Attention within sequences that are laid end to end: no padding, and short ones in kernels made for them.

On a GPU a program takes one head of one sequence, whole, forwards and backwards, and needs nothing of other programs;
of a wide head it holds the weights, and walks the rest.
Sequences too long for that go to PyTorch's kernel for many lengths, whose backward adds in no fixed order, so that two
runs may differ in last bits. Elsewhere they are padded, which is the reference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Float, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention import blockwise, sdpa
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers.dropout import dropped_of

TILES = (32, 64, 128)  # positions of sequences that programs take whole, each launch those of one size
WIDEST = 256  # head that a program holds whole
WALKED = 1024  # head that it walks, where none are shared: PART numbers at a time, and fewer of the longest sequences
PART = 128
WALKING = 80 << 10  # bytes of shared memory that this takes


@dataclass(frozen=True)
class HeadLayout:
    """How a row of queries, keys or values is divided, and how they meet."""

    heads: int
    kv_heads: int
    dim: int
    scale: float
    causal: bool = False
    dropout: float = 0.0


def attend(
    asked: Float[Tensor, "N _"],
    known: Float[Tensor, "M _"] | None,
    kind: HeadLayout,
    ends: SequenceOffsets,
    around: SequenceOffsets,
) -> Float[Tensor, "N _"]:
    """For each query what it sees of its own sequence, or of that one of `around` which has the same number.

    `asked` holds queries, `known` keys and values side by side; or `asked` holds all three.
    """
    tensors = (asked,) if known is None else (asked, known)
    if triton_launch.takes(*tensors):
        walked = _walked(kind, max(ends.max_length, around.max_length), asked)
        if walked is not None:
            asked, known = asked.contiguous(), None if known is None else known.contiguous()
            seed = asked.new_empty(1, dtype=torch.int64)
            if kind.dropout > 0:
                seed = torch.randint(2**62, (1,), device=asked.device)
            out: Tensor = _Short.apply(walked, kind, ends, around, seed, asked, known)  # type: ignore[no-untyped-call]
            return out
        if asked.dtype in triton_launch.HALF and kind.dim <= WIDEST and kind.dim % 8 == 0:
            return _flash(*_roles(asked, known, kind), kind, ends, around)
    return _padded(*_roles(asked, known, kind), kind, ends, around)


def _walked(kind: HeadLayout, longest: int, like: Tensor) -> bool | None:
    """Whether a program walks a head that it cannot hold whole; None: it can do neither."""
    size = next((size for size in TILES if size >= longest), None)
    if size is None:
        return None
    room, each = triton_launch.shared(like.device), like.element_size()
    # The most that Triton was seen to take, of three widths and of tiles of 64 and 128.
    if kind.dim <= WIDEST and (8 * size * triton_launch.power(kind.dim) + 2 * size**2) * each <= room:
        return False
    alone, small = kind.heads == kind.kv_heads, size * each <= 256  # larger ones take Triton a minute to compile
    return True if alone and small and kind.dim <= WALKED and room >= WALKING else None


def _roles(asked: Tensor, known: Tensor | None, kind: HeadLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, H, D), keys and values (M, G, D), as they lie."""
    queries, keys = kind.heads * kind.dim, kind.kv_heads * kind.dim
    query, rest = (asked[:, :queries], asked[:, queries:]) if known is None else (asked, known)
    counts = kind.heads, kind.kv_heads, kind.kv_heads
    parts = zip((query, rest[:, :keys], rest[:, keys:]), counts, strict=True)
    return tuple(part.view(len(part), count, kind.dim) for part, count in parts)  # type: ignore[return-value]


def _padded(
    query: Tensor, key: Tensor, value: Tensor, kind: HeadLayout, ends: SequenceOffsets, around: SequenceOffsets
) -> Tensor:
    mask = around.mask[:, None, None]
    query, key, value = (side.pad(x).transpose(1, 2) for side, x in ((ends, query), (around, key), (around, value)))
    spec = AttentionSpec(
        DotScoreFunction(kind.scale), query, key, AttentionMask(mask, None, 0 if kind.causal else None)
    )
    kernel = sdpa if sdpa.supports(spec, value, kind.dropout) else blockwise
    out, _ = kernel.attend(spec, value, kind.dropout)  # (B, H, N, D)
    return ends.pack(out.transpose(1, 2)).flatten(1)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, kind: HeadLayout, ends: SequenceOffsets, around: SequenceOffsets
) -> Tensor:
    key, value = (x.repeat_interleave(kind.heads // kind.kv_heads, 1) for x in (key, value))
    out: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, ends.cu_seqlens, around.cu_seqlens, ends.max_length, around.max_length,
        kind.dropout, kind.causal, False,
        scale=kind.scale,
    )[0]  # fmt: skip
    return out.flatten(1)


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, walked: bool, kind: HeadLayout, ends: SequenceOffsets, around: SequenceOffsets, seed: Tensor,
        asked: Tensor, known: Tensor | None,
    ) -> Tensor:  # fmt: skip
        from regard.kernels.attention.varlen_wide_triton import wide_look
        from regard.kernels.layers.training_triton import look

        kernel = wide_look if walked else look
        query, key, value = _roles(asked, known, kind)
        out = asked.new_empty(len(asked), kind.heads * kind.dim)
        with triton_launch.on_device_of(asked):
            for tile in _tiles(walked, kind, ends, around):
                kernel[(len(ends.cu_seqlens) - 1, kind.heads)](
                    query, key, value, out, *_common(kind, ends, around, seed, query, key), **tile
                )
        ctx.save_for_backward(seed, asked, known)
        ctx.plain = walked, kind, ends, around
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.attention.varlen_wide_triton import d_wide_look
        from regard.kernels.layers.training_triton import d_look

        refuse_second_derivative()
        d_out = d_out.contiguous()
        walked, kind, ends, around = ctx.plain
        kernel = d_wide_look if walked else d_look
        seed, asked, known = ctx.saved_tensors
        d_asked, d_known = asked.new_empty(asked.shape), None if known is None else known.new_empty(known.shape)
        query, key, value = _roles(asked, known, kind)
        with triton_launch.on_device_of(asked):
            for tile in _tiles(walked, kind, ends, around):
                kernel[(len(ends.cu_seqlens) - 1, kind.kv_heads)](
                    query, key, value, d_out, *_roles(d_asked, d_known, kind),
                    *_common(kind, ends, around, seed, query, key), **tile,
                )  # fmt: skip
        return None, None, None, None, None, d_asked, d_known


def _common(
    kind: HeadLayout, ends: SequenceOffsets, around: SequenceOffsets, seed: Tensor, query: Tensor, key: Tensor
) -> list[Any]:
    steps = query.stride(0), key.stride(0), kind.heads * kind.dim
    dropped = dropped_of(kind.dropout)
    return [
        ends.cu_seqlens, around.cu_seqlens, seed, *steps, kind.scale, dropped, kind.heads, kind.heads // kind.kv_heads,
        kind.dim,
    ]  # fmt: skip


def _tiles(walked: bool, kind: HeadLayout, ends: SequenceOffsets, around: SequenceOffsets) -> Iterator[dict[str, Any]]:
    """What each launch is for: pairs that are longer than the one before can take, up to its own size."""
    longest, before = max(ends.max_length, around.max_length), 0
    for size in TILES:
        if before >= longest:
            break
        yield {
            "beyond": before, "CAUSAL": kind.causal, "DROP": kind.dropout > 0, "R": size, "C": size,
            **_pace(walked, kind.dim, size),
        }  # fmt: skip
        before = size


def _pace(walked: bool, dim: int, size: int) -> dict[str, int]:
    """How much of a head a program takes at a time, and by how many warps."""
    warps = min(8, size**2 // 1024)
    if not walked:
        return {"D": triton_launch.power(dim), "num_warps": warps}
    return {"D": min(PART, 8192 // size), "num_warps": max(2, warps), "num_stages": 2}
