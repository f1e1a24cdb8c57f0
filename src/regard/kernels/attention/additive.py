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

ROWS, KEYS = 16, 128  # queries and keys of a tile of scores
OWN, COLUMNS = 32, 64  # rows and columns of a tile of the gradient of queries or keys
TILE, WIDTH = 64, 128  # rows and keys of a tile of weights, and columns of the output per program
UNROLL = 8  # loop iterations in flight
SCORES = 2**22  # scores that exist at a time, or are saved for the backward pass


def supports(spec: AttentionSpec, value: Values, dropout: float) -> bool:
    """Additive scores without a bias, on a GPU with Triton."""
    additive = isinstance(spec.score_function, AdditiveScoreFunction) and spec.bias is None
    return additive and triton_launch.can_launch(spec.query, spec.key, value)


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    query, key, weight, allowed, _ = spec.tensors
    # Drawn on the device: no synchronisation, and a CUDA graph draws anew on every replay.
    seed = (
        torch.randint(2**62, (1,), device=query.device)
        if dropout > 0
        else query.new_empty(1, dtype=torch.int64)
    )
    band = spec.visible.behind, spec.visible.ahead
    out, lse = _Additive.apply(
        band, dropped_outcomes(dropout), seed, allowed, query, key, weight, value
    )  # type: ignore[no-untyped-call]
    return out, lse


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        with triton_launch.on_device_of(inputs[2]):
            out, lse, saved = _Launch(*inputs).forward()
        ctx.settings, tensors = inputs[:2], inputs[2:]
        ctx.save_for_backward(out, lse, saved, *tensors)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        out, lse, saved, *tensors = ctx.saved_tensors
        with triton_launch.on_device_of(out), torch.autocast(out.device.type, enabled=False):
            return (
                None,
                None,
                None,
                None,
                *_Launch(*ctx.settings, *tensors).backward(out, lse, saved, d_out),
            )


class _Launch:
    """The arguments of the kernels of one attention call."""

    def __init__(
        self, band: tuple[int | None, int | None], dropped: int, seed: Tensor, allowed: Tensor | None,
        query: Tensor, key: Tensor, weight: Tensor, value: Tensor,
    ) -> None:  # fmt: skip
        self.inputs = query, key, weight, value
        self.batch, self.heads, self.n, self.dim = query.shape
        self.m, self.items = key.shape[2], self.batch * self.heads
        self.group, self.value_group = self.heads // key.shape[1], self.heads // value.shape[1]
        self.query, self.key, self.value, self.weight = (
            x.contiguous() for x in (query, key, value, weight.float())
        )
        self.seed, self.dropped = seed, dropped
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
            grid = piece.items * -(-piece.rows // TILE), -(-out.shape[3] // columns)
            weighted_values[grid](
                scores,
                self.value,
                out,
                lse,
                *self._shared_arguments(piece),
                **self._tile(),
                E=columns,
            )
        return out, lse, scores if scores.shape[:2] == (self.items, self.n) else None

    def backward(
        self, out: Tensor, lse: Tensor, saved: Tensor | None, d_out: Tensor
    ) -> list[Tensor]:
        """The gradients of query, key, weight and value. Saved scores are not overwritten: backward may run again."""
        from regard.kernels.attention.additive_triton import d_weighted_values

        query, key, weight, value = self.inputs
        d_out = d_out.contiguous()
        whole = self.rows == self.n  # else the gradients of keys and values are sums over pieces
        d_query = query.new_empty(query.shape)
        d_key = (key if whole and self.group == 1 else lse).new_empty(self.items, self.m, self.dim)
        d_weight = lse.new_empty(self.items, -(-self.m // OWN), self.dim)
        like = value.new_empty if whole else lse.new_zeros
        d_value = like(self.items, self.m, value.shape[3])
        for piece, scores in self._pieces(lse, saved):
            d_scores = scores if saved is None else scores.new_empty(scores.shape)
            weights = value.new_empty(scores.shape)
            tiles = piece.items * -(-piece.rows // TILE) * -(-self.m // TILE)
            d_weighted_values[(tiles,)](
                scores, d_scores, weights, self.value, out, d_out, lse, *self._shared_arguments(piece),
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
        query, key = _by_column(self.query, ROWS), _by_column(self.key, KEYS)
        buffer = like.new_empty(self.together * self.rows * self.m)
        for item in range(0, self.items, self.together):
            for row in range(0, self.n, self.rows):
                piece = _Piece(
                    item, min(self.together, self.items - item), row, min(self.rows, self.n - row)
                )
                scores = buffer[: piece.items * piece.rows * self.m].view(
                    piece.items, piece.rows, self.m
                )
                tiles = piece.items * -(-piece.rows // ROWS) * -(-self.m // KEYS)
                additive_scores[(tiles,)](
                    query, key, self.weight, scores, item, row, piece.rows, self.n, self.m, query.shape[3],
                    key.shape[3], self.dim, self.group, len(self.weight), *self.mask[-2:],
                    BANDED=self.flags["BANDED"], **self.speed, R=ROWS, C=KEYS,
                )  # fmt: skip
                yield piece, scores

    def _shared_arguments(self, piece: "_Piece") -> list[Any]:
        """The arguments that `weighted_values` and `d_weighted_values` share."""
        start = piece.item, piece.row, piece.rows
        sizes = self.n, self.m, self.value.shape[3], self.heads, self.value_group
        return [self.seed, self.dropped, *self.mask, *start, *sizes]

    def _tile(self) -> dict[str, Any]:
        return {**self.flags, "DROPPED": self.dropped > 0, "R": TILE, "C": TILE}

    def _gradients(
        self, piece: "_Piece", d_scores: Tensor, d_query: Tensor, d_key: Tensor, d_weight: Tensor
    ) -> None:
        """Write the gradient of the piece's queries; write those of keys and weight, or add to them after row 0."""
        from regard.kernels.attention.additive_triton import additive_gradient

        # Of each side: the tensor, the stride of the scores, the first row, rows, length, and heads that share one.
        query = self.query, self.m, piece.row, piece.rows, self.n, 1
        key = self.key, 1, 0, self.m, self.m, self.group
        shared = self.weight, d_scores, piece.item, piece.rows * self.m, self.dim, len(self.weight)
        constants = {"BANDED": self.flags["BANDED"], **self.speed, "R": OWN, "D": COLUMNS}
        shift, (behind, ahead), columns = (
            self.m - self.n + piece.row,
            self.mask[-2:],
            -(-self.dim // COLUMNS),
        )
        additive_gradient[(piece.items * -(-piece.rows // OWN), columns)](
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
        additive_gradient[(piece.items * -(-self.m // OWN), columns)](
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
        by_head = gradient.view(*like.shape[:2], -1, *gradient.shape[1:])
        return (by_head[:, :, 0] if by_head.shape[2] == 1 else by_head.sum(2)).to(like.dtype)


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
