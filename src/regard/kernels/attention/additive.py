"""Additive attention on a GPU in Triton kernels: neither the (N, M, D) cube nor all scores exist at once.

Scores are computed one piece of bounded size at a time, and again in the backward pass, unless one piece held them all
and was saved. tanh is recomputed, which is cheaper than reading it from memory; its error is 2^-11 in half precision
and rounding in float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from regard.core.shapes import Float, LogSumExp, Outputs, Tensor, Values
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import AdditiveScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers.dropout import dropped_outcomes

# Queries and keys of a tile of scores.
ROWS = 16
KEYS = 128
# Rows and columns of a tile of the gradient of queries or keys.
OWN = 32
COLUMNS = 64
# Rows and keys of a tile of weights, and columns of the output per program.
TILE = 64
WIDTH = 128
UNROLL = 8  # loop iterations in flight
SCORES = 2**22  # scores that exist at a time, or are saved for the backward pass


def supports(spec: AttentionSpec, value: Values, dropout: float) -> bool:
    """Additive scores without a bias, on a GPU with Triton."""
    additive = isinstance(spec.score_function, AdditiveScoreFunction) and spec.bias is None
    return additive and triton_launch.can_launch(spec.query, spec.key, value)


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    query, key, weight, allowed, _ = spec.tensors
    # Drawn on the device: without synchronization, and again on every replay of a CUDA graph.
    if dropout > 0:
        seed = torch.randint(2**62, (1,), device=query.device)
    else:
        seed = query.new_empty(1, dtype=torch.int64)
    band = (spec.visible.behind, spec.visible.ahead)
    dropped = dropped_outcomes(dropout)
    out, lse = _Additive.apply(band, dropped, seed, allowed, query, key, weight, value)  # type: ignore[no-untyped-call]
    return out, lse


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        with triton_launch.on_device_of(inputs[2]):
            out, lse, saved = _Launch(*inputs).forward()
        ctx.settings = inputs[:2]
        tensors = inputs[2:]
        ctx.save_for_backward(out, lse, saved, *tensors)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        out, lse, saved, *tensors = ctx.saved_tensors
        with triton_launch.on_device_of(out), torch.autocast(out.device.type, enabled=False):
            gradients = _Launch(*ctx.settings, *tensors).backward(out, lse, saved, d_out)
        # Band, dropout, seed and mask have no gradient.
        return None, None, None, None, *gradients


class _Launch:
    """The arguments of the kernels of one attention call."""

    def __init__(
        self, band: tuple[int | None, int | None], dropped: int, seed: Tensor,
        allowed: Tensor | None,
        query: Tensor, key: Tensor, weight: Tensor, value: Tensor,
    ) -> None:  # fmt: skip
        self.inputs = (query, key, weight, value)
        self.batch, self.heads, self.n, self.dim = query.shape
        self.m = key.shape[2]
        self.items = self.batch * self.heads
        self.group = self.heads // key.shape[1]
        self.value_group = self.heads // value.shape[1]
        self.query = query.contiguous()
        self.key = key.contiguous()
        self.value = value.contiguous()
        self.weight = weight.float().contiguous()
        self.seed = seed
        self.dropped = dropped
        self.mask, self.flags = triton_launch.mask_arguments(AttentionMask(allowed, *band), query)
        self.speed = {"FAST": query.is_cuda and query.dtype in triton_launch.HALF, "UNROLL": UNROLL}
        self.rows = min(self.n, max(ROWS, SCORES // self.m // ROWS * ROWS))  # of a piece
        self.together = max(1, min(self.items, SCORES // (self.n * self.m)))  # items of one

    def forward(self) -> tuple[Outputs, LogSumExp, Tensor | None]:
        """The output, the log-sum-exp, and all scores where they are one piece."""
        from regard.kernels.attention.additive_triton import weighted_values

        out = self.value.new_empty(self.batch, self.heads, self.n, self.value.shape[3])
        lse = out.new_empty(out.shape[:3], dtype=torch.float32)
        columns = min(WIDTH, triton_launch.next_power_of_2(out.shape[3]))
        for piece, scores in self._pieces(lse):
            row_tiles = -(-piece.rows // TILE)
            grid = (piece.items * row_tiles, -(-out.shape[3] // columns))
            weighted_values[grid](
                scores,
                self.value,
                out,
                lse,
                *self._shared_arguments(piece),
                **self._tile(),
                E=columns,
            )
        held_all_scores = scores.shape[:2] == (self.items, self.n)
        return out, lse, scores if held_all_scores else None

    def backward(
        self, out: Tensor, lse: Tensor, saved: Tensor | None, d_out: Tensor
    ) -> list[Tensor]:
        """The gradients of query, key, weight and value. Saved scores are not overwritten: backward may run again."""
        from regard.kernels.attention.additive_triton import d_weighted_values

        query, key, weight, value = self.inputs
        d_out = d_out.contiguous()
        # If not, the gradients of keys and values are sums over pieces, in float32.
        whole = self.rows == self.n
        d_query = query.new_empty(query.shape)
        like_d_key = key if whole and self.group == 1 else lse
        d_key = like_d_key.new_empty(self.items, self.m, self.dim)
        d_weight = lse.new_empty(self.items, -(-self.m // OWN), self.dim)
        new_d_value = value.new_empty if whole else lse.new_zeros
        d_value = new_d_value(self.items, self.m, value.shape[3])
        for piece, scores in self._pieces(lse, saved):
            d_scores = scores
            if saved is not None:
                d_scores = scores.new_empty(scores.shape)
            weights = value.new_empty(scores.shape)
            row_tiles = -(-piece.rows // TILE)
            key_tiles = -(-self.m // TILE)
            tiles = piece.items * row_tiles * key_tiles
            d_weighted_values[(tiles,)](
                scores, d_scores, weights, self.value, out, d_out, lse,
                *self._shared_arguments(piece),
                **self._tile(), E=64,
            )  # fmt: skip
            part = slice(piece.item, piece.item + piece.items)
            d_rows = d_out.flatten(0, 1)[part, piece.row : piece.row + piece.rows]
            if whole:
                torch.bmm(weights.mT, d_rows, out=d_value[part])
            else:
                d_value[part] += weights.mT @ d_rows
            self._gradients(piece, d_scores, d_query, d_key, d_weight)
        head_sums = d_weight.view(self.batch, self.heads, -1, self.dim).sum((0, 2))
        d_weight = head_sums.sum_to_size(weight.shape).to(weight.dtype)
        return [d_query, self._sum_groups(d_key, key), d_weight, self._sum_groups(d_value, value)]

    def _pieces(
        self, like: Tensor, saved: Tensor | None = None
    ) -> Iterator[tuple["_Piece", Tensor]]:
        """The scores of all rows, piece by piece, in one buffer; or those that were saved."""
        from regard.kernels.attention.additive_triton import additive_scores

        if saved is not None:
            yield _Piece(0, self.items, 0, self.n), saved
            return
        query = _by_column(self.query, ROWS)
        key = _by_column(self.key, KEYS)
        buffer = like.new_empty(self.together * self.rows * self.m)
        for item in range(0, self.items, self.together):
            for row in range(0, self.n, self.rows):
                items = min(self.together, self.items - item)
                rows = min(self.rows, self.n - row)
                piece = _Piece(item, items, row, rows)
                scores = buffer[: items * rows * self.m].view(items, rows, self.m)
                row_tiles = -(-rows // ROWS)
                key_tiles = -(-self.m // KEYS)
                tiles = items * row_tiles * key_tiles
                additive_scores[(tiles,)](
                    query, key, self.weight, scores, item, row, piece.rows, self.n, self.m,
                    query.shape[3],
                    key.shape[3], self.dim, self.group, len(self.weight), *self.mask[-2:],
                    BANDED=self.flags["BANDED"], **self.speed, R=ROWS, C=KEYS,
                )  # fmt: skip
                yield piece, scores

    def _shared_arguments(self, piece: "_Piece") -> list[Any]:
        """The arguments that `weighted_values` and `d_weighted_values` share."""
        start = (piece.item, piece.row, piece.rows)
        sizes = (self.n, self.m, self.value.shape[3], self.heads, self.value_group)
        return [self.seed, self.dropped, *self.mask, *start, *sizes]

    def _tile(self) -> dict[str, Any]:
        return {**self.flags, "DROPPED": self.dropped > 0, "R": TILE, "C": TILE}

    def _gradients(
        self, piece: "_Piece", d_scores: Tensor, d_query: Tensor, d_key: Tensor, d_weight: Tensor
    ) -> None:
        """Write the gradient of the piece's queries; write the gradients of keys and weight, or add to them.

        They are added to except in the pieces that begin at row 0.
        """
        from regard.kernels.attention.additive_triton import additive_gradient

        # For each side: the tensor, the stride of the scores, the first row, rows, length, and heads that share one.
        query = (self.query, self.m, piece.row, piece.rows, self.n, 1)
        key = (self.key, 1, 0, self.m, self.m, self.group)
        scores_per_item = piece.rows * self.m
        shared = (self.weight, d_scores, piece.item, scores_per_item, self.dim, len(self.weight))
        constants = {"BANDED": self.flags["BANDED"], **self.speed, "R": OWN, "D": COLUMNS}
        shift = self.m - self.n + piece.row
        (behind, ahead) = self.mask[-2:]
        column_tiles = -(-self.dim // COLUMNS)
        query_grid = (piece.items * -(-piece.rows // OWN), column_tiles)
        key_grid = (piece.items * -(-self.m // OWN), column_tiles)
        additive_gradient[query_grid](
            *query,
            *key,
            *shared,
            d_query,
            self.weight,
            shift,
            behind,
            ahead,
            ADD=False,
            WEIGHT=False,
            **constants,
        )
        # Seen from the keys, the band is mirrored.
        additive_gradient[key_grid](
            *key,
            *query,
            *shared,
            d_key,
            d_weight,
            -shift,
            ahead,
            behind,
            ADD=piece.row > 0,
            WEIGHT=True,
            **constants,
        )

    def _sum_groups(self, gradient: Float[Tensor, "items S _"], like: Tensor) -> Tensor:
        """Summed over the query heads that share a head of `like`."""
        by_head = gradient.view(*like.shape[:2], -1, *gradient.shape[1:])  # (B, G, group, S, _)
        summed = by_head[:, :, 0] if by_head.shape[2] == 1 else by_head.sum(2)
        return summed.to(like.dtype)


@dataclass(frozen=True)
class _Piece:
    """Consecutive items (heads, numbered through the batch) and consecutive rows of them."""

    item: int
    items: int
    row: int
    rows: int


def _by_column(x: Float[Tensor, "B G S D"], block: int) -> Float[Tensor, "B G D padded"]:
    """Transposed, the rows padded to a multiple of `block` with arbitrary values."""
    batch, heads, size, dim = x.shape
    padded = x.new_empty(batch, heads, dim, size + -size % block)
    padded[..., :size] = x.mT
    return padded
