"""Additive attention on a GPU in kernels of its own: the cube of N × M × D never exists, nor do all scores at once.

Scores are computed a bounded piece at a time. In the forward they weigh the values; in the backward they are computed
again, unless one piece was all of them and could be kept. From their gradients comes the gradient of one side, and then
of the other. To compute tanh each time is cheaper than to keep it. In half precision it is right to 2^-11, in float32
to the last digits.
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
OWN, COLUMNS = 32, 64  # rows and columns of a tile of one side's gradient
TILE, WIDTH = 64, 128  # rows and keys where values are weighed, and how many columns of them one program makes
UNROLL = 8  # how many columns, or others, are on their way at a time
SCORES = 2**22  # how many scores exist at a time, or are kept for the backward


def supports(spec: AttentionSpec, value: Values, dropout: float) -> bool:
    additive = isinstance(spec.score_function, AdditiveScoreFunction) and spec.bias is None
    return additive and triton_launch.can_launch(spec.query, spec.key, value)


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    query, key, weight, allowed, _ = spec.tensors
    # Drawn on the device: nobody waits for it, and a recorded draw is another one each time that it is replayed.
    seed = torch.randint(2**62, (1,), device=query.device) if dropout > 0 else query.new_empty(1, dtype=torch.int64)
    reach = spec.visible.behind, spec.visible.ahead
    out, lse = _Additive.apply(reach, dropped_outcomes(dropout), seed, allowed, query, key, weight, value)  # type: ignore[no-untyped-call]
    return out, lse


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        with triton_launch.on_device_of(given[2]):
            out, lse, kept = _Launch(*given).forward()
        ctx.plain, tensors = given[:2], given[2:]
        ctx.save_for_backward(out, lse, kept, *tensors)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        out, lse, kept, *tensors = ctx.saved_tensors
        with triton_launch.on_device_of(out), torch.autocast(out.device.type, enabled=False):
            return None, None, None, None, *_Launch(*ctx.plain, *tensors).backward(out, lse, kept, d_out)


class _Launch:
    """The numbers and tensors of one look-up as its kernels want them."""

    def __init__(
        self,
        reach: tuple[int | None, int | None],
        dropped: int,
        seed: Tensor,
        allowed: Tensor | None,
        query: Tensor,
        key: Tensor,
        weight: Tensor,
        value: Tensor,
    ) -> None:
        self.given = query, key, weight, value
        self.batch, self.heads, self.n, self.width = query.shape
        self.m, self.items = key.shape[2], self.batch * self.heads
        self.group, self.value_group = self.heads // key.shape[1], self.heads // value.shape[1]
        self.query, self.key, self.value, self.weight = (x.contiguous() for x in (query, key, value, weight.float()))
        self.seed, self.dropped = seed, dropped
        self.sight, self.seen = triton_launch.mask_arguments(AttentionMask(allowed, *reach), query)
        self.pace = {"FAST": query.is_cuda and query.dtype in triton_launch.HALF, "UNROLL": UNROLL}
        self.rows = min(self.n, max(ROWS, SCORES // self.m // ROWS * ROWS))  # of a piece
        self.together = max(1, min(self.items, SCORES // (self.n * self.m)))  # items of one

    def forward(self) -> tuple[Outputs, LogSumExp, Tensor | None]:
        """And all scores, where they are one piece."""
        from regard.kernels.attention.additive_triton import weigh

        out = self.value.new_empty(self.batch, self.heads, self.n, self.value.shape[3])
        lse = out.new_empty(out.shape[:3], dtype=torch.float32)
        columns = min(WIDTH, triton_launch.next_power_of_2(out.shape[3]))
        for piece, scores in self._pieces(lse):
            grid = piece.items * -(-piece.rows // TILE), -(-out.shape[3] // columns)
            weigh[grid](scores, self.value, out, lse, *self._weighing(piece), **self._tile(), E=columns)
        return out, lse, scores if scores.shape[:2] == (self.items, self.n) else None

    def backward(self, out: Tensor, lse: Tensor, kept: Tensor | None, d_out: Tensor) -> list[Tensor]:
        """The gradients of query, key, weight and value. What was kept stays as it is, for another backward."""
        from regard.kernels.attention.additive_triton import d_weigh

        query, key, weight, value = self.given
        d_out = d_out.contiguous()
        whole = self.rows == self.n  # or else what comes of some rows is added to what came of others
        d_query = query.new_empty(query.shape)
        d_key = (key if whole and self.group == 1 else lse).new_empty(self.items, self.m, self.width)
        d_weight = lse.new_empty(self.items, -(-self.m // OWN), self.width)
        like = value.new_empty if whole else lse.new_zeros
        d_value = like(self.items, self.m, value.shape[3])
        for piece, scores in self._pieces(lse, kept):
            d_scores = scores if kept is None else scores.new_empty(scores.shape)
            weights = value.new_empty(scores.shape)
            tiles = piece.items * -(-piece.rows // TILE) * -(-self.m // TILE)
            d_weigh[(tiles,)](
                scores, d_scores, weights, self.value, out, d_out, lse, *self._weighing(piece), **self._tile(), E=64
            )  # fmt: skip
            part = slice(piece.item, piece.item + piece.items)
            d_rows = d_out.flatten(0, 1)[part, piece.row : piece.row + piece.rows]
            if whole:
                torch.bmm(weights.mT, d_rows, out=d_value[part])
            else:
                d_value[part] += weights.mT @ d_rows
            self._to_queries(piece, d_scores, d_query)
            self._to_keys(piece, d_scores, d_key, d_weight)
        of_heads = d_weight.view(self.batch, self.heads, -1, self.width).sum((0, 2))
        return [
            d_query,
            self._gathered(d_key, key),
            of_heads.sum_to_size(weight.shape).to(weight.dtype),
            self._gathered(d_value, value),
        ]

    def _pieces(self, like: Tensor, kept: Tensor | None = None) -> Iterator[tuple["_Piece", Tensor]]:
        """The scores of all rows, piece by piece, each in the place of the last; or those that were kept."""
        from regard.kernels.attention.additive_triton import additive_scores

        if kept is not None:
            yield _Piece(0, self.items, 0, self.n), kept
            return
        query, key = _by_column(self.query, ROWS), _by_column(self.key, KEYS)
        room = like.new_empty(self.together * self.rows * self.m)
        for item in range(0, self.items, self.together):
            for row in range(0, self.n, self.rows):
                piece = _Piece(item, min(self.together, self.items - item), row, min(self.rows, self.n - row))
                scores = room[: piece.items * piece.rows * self.m].view(piece.items, piece.rows, self.m)
                tiles = piece.items * -(-piece.rows // ROWS) * -(-self.m // KEYS)
                additive_scores[(tiles,)](
                    query, key, self.weight, scores, item, row, piece.rows, self.n, self.m, query.shape[3],
                    key.shape[3], self.width, self.group, len(self.weight), *self.sight[-2:],
                    BANDED=self.seen["BANDED"], **self.pace, R=ROWS, C=KEYS,
                )  # fmt: skip
                yield piece, scores

    def _weighing(self, piece: "_Piece") -> list[Any]:
        """The arguments that `weigh` and `d_weigh` share."""
        place = piece.item, piece.row, piece.rows
        sizes = self.n, self.m, self.value.shape[3], self.heads, self.value_group
        return [self.seed, self.dropped, *self.sight, *place, *sizes]

    def _tile(self) -> dict[str, Any]:
        return {**self.seen, "DROPPED": self.dropped > 0, "R": TILE, "C": TILE}

    def _to_queries(self, piece: "_Piece", d_scores: Tensor, d_query: Tensor) -> None:
        from regard.kernels.attention.additive_triton import additive_gradient

        behind, ahead = self.sight[-2:]
        additive_gradient[self._grid(piece, piece.rows)](
            self.query, self.key, self.weight, d_scores, d_query, self.weight,
            piece.item, piece.rows * self.m, self.m, 1, piece.row, 0, piece.rows, self.m, self.n, self.m, self.width,
            1, self.group, len(self.weight), self.m - self.n + piece.row, behind, ahead,
            BANDED=self.seen["BANDED"], ADD=False, WEIGHT=False, **self.pace, R=OWN, D=COLUMNS,
        )  # fmt: skip

    def _to_keys(self, piece: "_Piece", d_scores: Tensor, d_key: Tensor, d_weight: Tensor) -> None:
        from regard.kernels.attention.additive_triton import additive_gradient

        behind, ahead = self.sight[-2:]
        additive_gradient[self._grid(piece, self.m)](
            self.key, self.query, self.weight, d_scores, d_key, d_weight,
            piece.item, piece.rows * self.m, 1, self.m, 0, piece.row, self.m, piece.rows, self.m, self.n, self.width,
            self.group, 1, len(self.weight), self.n - self.m - piece.row, ahead, behind,
            BANDED=self.seen["BANDED"], ADD=piece.row > 0, WEIGHT=True, **self.pace, R=OWN, D=COLUMNS,
        )  # fmt: skip

    def _grid(self, piece: "_Piece", size: int) -> tuple[int, int]:
        return piece.items * -(-size // OWN), -(-self.width // COLUMNS)

    def _gathered(self, gradient: Float[Tensor, "items S _"], like: Tensor) -> Tensor:
        """Summed over the heads that share a head of `like`."""
        by_head = gradient.view(*like.shape[:2], -1, *gradient.shape[1:])
        return (by_head[:, :, 0] if by_head.shape[2] == 1 else by_head.sum(2)).to(like.dtype)


@dataclass(frozen=True)
class _Piece:
    """A run of heads, numbered through the batch, and a run of their rows."""

    item: int
    items: int
    row: int
    rows: int


def _by_column(x: Float[Tensor, "B G S D"], block: int) -> Float[Tensor, "B G D padded"]:
    """One column of all rows after the other, the rows padded to whole blocks, with anything."""
    batch, heads, size, width = x.shape
    padded = x.new_empty(batch, heads, width, size + -size % block)
    padded[..., :size] = x.mT
    return padded
