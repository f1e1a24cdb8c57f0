"""Additive attention on a GPU in kernels of its own: neither the cube of N × M × D nor N × M ever exists.

The forward streams keys past blocks of queries. The backward computes the gradients of a bounded piece of scores at a
time, and from them the gradient of either side: tanh is computed once in the forward and three times in the backward,
which is cheaper than to keep it. In half precision it is right to 2^-11, in float32 to the last digits.
"""

from typing import Any

import torch

from regard.kernels import gpu
from regard.kernels.dropout import dropped_of
from regard.kernels.energies import AdditiveEnergy
from regard.kernels.lookup import Lookup
from regard.kernels.streamed import refuse_second_derivative
from regard.kernels.visibility import Visibility
from regard.shapes import Float, LogSumExp, Outputs, Tensor, Values

# The fastest of those tried on an H200.
ROWS, KEYS = 16, 128  # queries and keys of a tile of scores
OWN, COLUMNS = 16, 128  # rows and columns of a tile of one side's gradient
UNROLL, WARPS = 2, 4
SCORES = 2**21  # how many scores exist at a time in the backward
WIDTH = 512  # columns of values that one program has room for; wider ones compute the scores again


def supports(lookup: Lookup, value: Values, dropout: float) -> bool:
    additive = isinstance(lookup.energy, AdditiveEnergy) and lookup.bias is None
    return additive and gpu.takes(lookup.query, lookup.key, value)


def attend(lookup: Lookup, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    query, key, weight, allowed, _ = lookup.tensors
    # Drawn on the device: nobody waits for it, and a recorded draw is another one each time that it is replayed.
    seed = torch.randint(2**62, (1,), device=query.device) if dropout > 0 else query.new_empty(1, dtype=torch.int64)
    reach = lookup.visible.behind, lookup.visible.ahead
    out, lse = _Additive.apply(reach, dropped_of(dropout), seed, allowed, query, key, weight, value)  # type: ignore[no-untyped-call]
    return out, lse


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        out, lse = _Launch(*given).forward()
        ctx.plain, tensors = given[:2], given[2:]
        ctx.save_for_backward(out, lse, *tensors)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        out, lse, *tensors = ctx.saved_tensors
        return None, None, None, None, *_Launch(*ctx.plain, *tensors).backward(out, lse, d_out)


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
        self.visible = Visibility(allowed, *reach)
        self.batch, self.heads, self.n, self.width = query.shape
        self.m, self.items = key.shape[2], self.batch * self.heads
        self.group = self.heads // key.shape[1]
        self.query, self.key, self.value, self.weight = (x.contiguous() for x in (query, key, value, weight.float()))
        q, k = _by_column(query, ROWS), _by_column(key, KEYS)
        sight, seen = gpu.sight(self.visible, query)
        self.tensors = q, k, self.weight, self.value
        self.rules = seed, dropped, *sight
        self.sizes = (
            self.n, self.m, q.shape[3], k.shape[3], self.width, value.shape[3],
            self.heads, self.group, self.heads // value.shape[1], len(weight),
        )  # fmt: skip
        self.constants: dict[str, Any] = {
            **seen, "DROPPED": dropped > 0, "FAST": query.is_cuda and query.dtype in gpu.HALF,
            "R": ROWS, "C": KEYS, "UNROLL": UNROLL, "num_warps": WARPS,
        }  # fmt: skip

    def forward(self) -> tuple[Outputs, LogSumExp]:
        from regard.kernels.gpu_code import additive_forward

        width = self.value.shape[3]
        out = self.value.new_empty(self.batch, self.heads, self.n, width)
        lse = out.new_empty(out.shape[:3], dtype=torch.float32)
        columns = min(WIDTH, gpu.power(width))
        grid = self.items * -(-self.n // ROWS), -(-width // columns)
        additive_forward[grid](*self.tensors, out, lse, *self.rules, *self.sizes, **self.constants, E=columns)
        return out, lse

    def backward(self, out: Tensor, lse: Tensor, d_out: Tensor) -> list[Tensor]:
        """The gradients of query, key, weight and value."""
        from regard.kernels.gpu_code import additive_d_scores

        query, key, weight, value = self.given
        d_out = d_out.contiguous()
        step = max(ROWS, SCORES // self.m // ROWS * ROWS)
        count = max(1, SCORES // (self.n * self.m)) if step >= self.n else 1
        room = min(count, self.items) * min(step, self.n) * self.m
        weights, d_scores = value.new_empty(room), lse.new_empty(room)
        d_query = query.new_empty(query.shape)
        d_key = lse.new_empty(self.items, self.m, self.width)
        d_value = lse.new_zeros(self.items, self.m, value.shape[3])
        d_weight = lse.new_empty(self.items, -(-self.m // OWN), self.width)
        for item in range(0, self.items, count):
            for row in range(0, self.n, step):
                items, rows = min(count, self.items - item), min(step, self.n - row)
                tiles = items * -(-rows // ROWS) * -(-self.m // KEYS)
                additive_d_scores[(tiles,)](
                    *self.tensors, out, d_out, lse, *self.rules, weights, d_scores, item, row, rows, *self.sizes,
                    **self.constants, E=64,
                )  # fmt: skip
                part = slice(item, item + items)
                seen = weights[: items * rows * self.m].view(items, rows, self.m)
                d_value[part] += seen.mT @ d_out.flatten(0, 1)[part, row : row + rows]
                self._to_queries(d_scores, d_query, item, items, row, rows)
                self._to_keys(d_scores, d_key, d_weight, item, items, row, rows)
        of_heads = d_weight.sum(1).unflatten(0, (self.batch, self.heads)).sum(0)
        return [
            d_query,
            self._gathered(d_key, key),
            of_heads.sum_to_size(weight.shape).to(weight.dtype),
            self._gathered(d_value, value),
        ]

    def _to_queries(self, d_scores: Tensor, d_query: Tensor, item: int, items: int, row: int, rows: int) -> None:
        from regard.kernels.gpu_code import additive_gradient

        behind, ahead = self.rules[-2:]
        additive_gradient[self._grid(items, rows)](
            self.query, self.key, self.weight, d_scores, d_query, self.weight, item, rows * self.m, self.m, 1,
            row, 0, rows, self.m, self.n, self.m, self.width,
            1, self.group, len(self.weight), self.m - self.n + row, behind, ahead,
            **self._constants(), ADD=False, WEIGHT=False,
        )  # fmt: skip

    def _to_keys(
        self, d_scores: Tensor, d_key: Tensor, d_weight: Tensor, item: int, items: int, row: int, rows: int
    ) -> None:
        from regard.kernels.gpu_code import additive_gradient

        behind, ahead = self.rules[-2:]
        additive_gradient[self._grid(items, self.m)](
            self.key, self.query, self.weight, d_scores, d_key, d_weight, item, rows * self.m, 1, self.m,
            0, row, self.m, rows, self.m, self.n, self.width,
            self.group, 1, len(self.weight), self.n - self.m - row, ahead, behind,
            **self._constants(), ADD=row > 0, WEIGHT=True,
        )  # fmt: skip

    def _grid(self, items: int, size: int) -> tuple[int, int]:
        return items * -(-size // OWN), -(-self.width // COLUMNS)

    def _constants(self) -> dict[str, Any]:
        names = "BANDED", "FAST", "UNROLL", "num_warps"
        return {name: self.constants[name] for name in names} | {"R": OWN, "D": COLUMNS}

    def _gathered(self, gradient: Float[Tensor, "items S _"], like: Tensor) -> Tensor:
        """Summed over the heads that share a head of `like`."""
        batch, heads, *_ = like.shape
        return gradient.unflatten(0, (batch, heads, self.heads // heads)).sum(2).to(like.dtype)


def _by_column(x: Float[Tensor, "B G S D"], block: int) -> Float[Tensor, "B G D padded"]:
    """One column of all rows after the other, the rows padded to whole blocks."""
    batch, heads, size, width = x.shape
    padded = x.new_zeros(batch, heads, width, size + -size % block)
    padded[..., :size] = x.mT
    return padded
