"""One position of each sequence at a time, in memory that stays where it is: what a step of a decoder is made of.

Time is a number on the device that nobody asks for, so a GPU does the same at each step, and can record it once.
Here is the plain form of each part, which also serves where Triton does not; `single_gpu` has kernels.
"""

from collections.abc import Callable
from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels.layers.residual_norm import PendingResidual
from regard.kernels.triton_launch import present

HiddenRows = Float[Tensor, "rows W"]
Activation = Callable[[Tensor], Tensor]


class StepNorm(NamedTuple):
    weight: Float[Tensor, " W"]
    bias: Float[Tensor, " W"] | None  # None: by the mean square alone
    epsilon: float

    def __call__(self, x: HiddenRows) -> HiddenRows:
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class StepLinear(NamedTuple):
    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"]

    def __call__(self, x: Float[Tensor, "*lead in"]) -> Float[Tensor, "*lead out"]:
        return F.linear(x, self.weight, self.bias)


def enter(
    tokens: Int[Tensor, " rows"],
    table: Float[Tensor, "V W"],
    scale: float,
    places: Float[Tensor, "limit W"] | None,
    first: Int[Tensor, " B"],
    time: Int[Tensor, " 1"],
) -> PendingResidual:
    """What tokens are where they stand."""
    if (gpu := kernels(table)) is not None:
        return PendingResidual(gpu.enter(tokens, table, scale, places, first, time))
    x = F.embedding(tokens, table).float() * scale
    if places is not None:
        at = (time - first).clamp(max=len(places) - 1)
        x = x + places[at].repeat_interleave(len(tokens) // len(first), 0)
    return PendingResidual(x)


def normed(
    given: PendingResidual,
    norm: StepNorm | None,
    product: StepLinear,
    *,
    last: bool,
    activation: Activation | None = None,
) -> tuple[Float[Tensor, "rows out"], PendingResidual]:
    """A product of the sum under a norm; and the sum, or its norm where norms come last."""
    if (gpu := kernels(given.x)) is not None:
        relu = activation is F.relu_  # part of the product there
        out, x = gpu.normed(given.x, given.added, norm, product, last, relu)
        return (out if activation is None or relu else activation(out)), PendingResidual(x)
    x = given.x if given.added is None else given.x + given.added
    h = x if norm is None else norm(x)
    out = product(h.to(product.weight.dtype))
    return (out if activation is None else activation(out)), PendingResidual(h if last else x)


def onto(given: PendingResidual, seen: Float[Tensor, "rows in"], product: StepLinear) -> PendingResidual:
    """The sum with a product of what was seen."""
    assert given.added is None
    if (gpu := kernels(given.x)) is not None:
        return PendingResidual(*gpu.onto(given.x, seen, product))
    return PendingResidual(given.x, product(seen))


def look_back(
    asked: Float[Tensor, "rows W3"],
    cache: Float[Tensor, "B capacity K 2 W"],
    parents: Int[Tensor, "B K capacity"],
    first: Int[Tensor, " B"],
    time: Int[Tensor, " 1"],
    heads: int,
) -> HiddenRows:
    """Self-attention of what stands at `time`, whose keys and values go into the cache.

    `asked` holds queries, keys and values of K hypotheses for each of B sentences, which began at `first`; `parents`
    says which of the K was its ancestor at each time before.
    """
    batch, capacity, beams, _, width = cache.shape
    if (gpu := kernels(asked)) is not None:
        found: Tensor = gpu.look_back(asked, cache, parents, first, time, heads, 1 / sqrt(width // heads))
        return found
    query, *known = asked.view(batch, beams, 3, width).unbind(2)
    cache.index_copy_(1, time, torch.stack(known, 2)[:, None])
    places = torch.arange(capacity, device=time.device)
    whose = torch.where(places == time, torch.arange(beams, device=time.device)[:, None], parents)  # (B, K, capacity)
    past = cache.transpose(1, 2)  # (B, K, capacity, 2, W)
    past = past.gather(1, whose.long()[..., None, None].expand_as(past))
    visible = (places <= time) & (places >= first[:, None])  # (B, capacity)
    return _attend(query, past, visible[:, None], heads)


def look(asked: HiddenRows, source: Float[Tensor, "B S 2 W"], mask: Bool[Tensor, "B S"], heads: int) -> HiddenRows:
    """Attention of the K hypotheses of each sentence to the keys and values of its source."""
    if (gpu := kernels(asked)) is not None:
        found: Tensor = gpu.look(asked, source, mask, heads, 1 / sqrt(asked.shape[1] // heads))
        return found
    query = asked.view(len(mask), -1, asked.shape[1])
    return _attend(query, source[:, None].expand(-1, query.shape[1], -1, -1, -1), mask[:, None], heads)


def _attend(
    query: Float[Tensor, "B K W"], known: Float[Tensor, "B K S 2 W"], visible: Bool[Tensor, "B 1 S"], heads: int
) -> HiddenRows:
    batch, beams, width = query.shape
    shape = (batch, beams, known.shape[2], heads, -1)
    key, value = (known[:, :, :, role].view(shape).transpose(2, 3) for role in (0, 1))  # (B, K, H, S, D)
    scores = (key @ query.view(batch, beams, heads, -1, 1))[..., 0].float() / sqrt(width // heads)  # (B, K, H, S)
    weights = scores.masked_fill(~visible[:, :, None], -torch.inf).softmax(-1).nan_to_num(0.0)  # zeros of nothing
    seen: Tensor = weights.to(value.dtype)[..., None, :] @ value  # (B, K, H, 1, D)
    return seen.reshape(batch * beams, width)


def kernels(x: Tensor) -> Any | None:
    """The module with kernels, for what lies on a GPU."""
    return _kernels() if x.is_cuda and present(x.device) else None


@lru_cache(maxsize=1)
def _kernels() -> Any | None:
    from regard.kernels.decode import step_triton

    return step_triton
