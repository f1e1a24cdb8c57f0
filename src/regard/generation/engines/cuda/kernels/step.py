"""The parts of a Transformer decoder's step: one position of each sequence, in static memory.

The time step is a tensor on the device that the host never reads, so that every step launches the same kernels and can
be recorded as a CUDA graph. `step_triton` has the same functions as Triton kernels; `choice_kernels.kernels` chooses.
"""

from collections.abc import Callable
from math import sqrt
from types import ModuleType
from typing import NamedTuple

import torch
from torch.nn import functional as F

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.generation.engines.choice_kernels import kernels
from regard.kernels.layers.residual_norm import PendingResidual

HiddenRows = Float[Tensor, "rows W"]
Activation = Callable[[Tensor], Tensor]


class StepNorm(NamedTuple):
    weight: Float[Tensor, " W"]
    bias: Float[Tensor, " W"] | None  # None: RMSNorm
    epsilon: float

    def __call__(self, x: HiddenRows) -> HiddenRows:
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class StepLinear(NamedTuple):
    weight: Float[Tensor, "*layers out in"]
    bias: Float[Tensor, "*layers out"]

    def __call__(self, x: Float[Tensor, "*lead in"]) -> Float[Tensor, "*lead out"]:
        return F.linear(x, self.weight, self.bias)


class StackedLayers(NamedTuple):
    """The weights of all layers of a decoder, each kind in one tensor whose first dimension is the layer."""

    norm_weight: Float[Tensor, "layers norms W"]
    norm_bias: Float[Tensor, "layers norms W"] | None  # None: RMSNorm
    norm_eps: float
    qkv_proj: StepLinear
    out_proj: StepLinear
    cross_q_proj: StepLinear | None
    cross_out_proj: StepLinear | None
    ffn_up: StepLinear
    ffn_down: StepLinear

    def layer(self, number: int) -> "StepLayer":
        """The weights of one layer, in the same memory."""
        bias = self.norm_bias
        norms = [
            StepNorm(weight, None if bias is None else bias[number, index], self.norm_eps)
            for index, weight in enumerate(self.norm_weight[number])
        ]
        linears = [each and StepLinear(each.weight[number], each.bias[number]) for each in self[3:]]
        return StepLayer(norms, *linears)  # type: ignore[arg-type]


class StepLayer(NamedTuple):
    """The weights of a layer, cast and fused."""

    norms: list[StepNorm]  # one per sublayer
    qkv_proj: StepLinear
    out_proj: StepLinear
    cross_q_proj: StepLinear | None
    cross_out_proj: StepLinear | None
    ffn_up: StepLinear
    ffn_down: StepLinear


def embed(
    tokens: Int[Tensor, " rows"],
    table: Float[Tensor, "V W"],
    scale: float,
    positions: Float[Tensor, "limit W"] | None,
    admitted: Int[Tensor, " B"],
    time: Int[Tensor, " 1"],
) -> PendingResidual:
    """Token embeddings plus position vectors."""
    x = F.embedding(tokens, table).float() * scale
    if positions is not None:
        at = (time - admitted).clamp(max=len(positions) - 1)
        x = x + positions[at].repeat_interleave(len(tokens) // len(admitted), 0)
    return PendingResidual(x)


def norm_linear(
    given: PendingResidual, norm: StepNorm | None, linear: StepLinear, *, post_norm: bool,
    activation: Activation | None = None,
) -> tuple[Float[Tensor, "rows out"], PendingResidual]:  # fmt: skip
    """linear(norm(residual sum)) with activation; and the sum, or its norm with post-norm blocks."""
    x = given.x if given.added is None else given.x + given.added
    h = x if norm is None else norm(x)
    out = linear(h.to(linear.weight.dtype))
    return (out if activation is None else activation(out)), PendingResidual(h if post_norm else x)


def add_linear(
    given: PendingResidual, context: Float[Tensor, "rows in"], linear: StepLinear
) -> PendingResidual:
    """The residual stream plus linear(context), which may still be pending."""
    assert given.added is None
    return PendingResidual(given.x, linear(context))


def self_attention(
    qkv: Float[Tensor, "rows W3"],
    cache: Float[Tensor, "B capacity K 2 W"],
    parents: Int[Tensor, "B K capacity"],
    admitted: Int[Tensor, " B"],
    time: Int[Tensor, " 1"],
    heads: int,
) -> HiddenRows:
    """Self-attention of step `time` to the earlier ones since `admitted`; its keys and values are put into the cache.

    `qkv` holds queries, keys and values of K hypotheses of B sequences; `parents`, which of the K hypotheses was the
    ancestor at each earlier step.
    """
    batch, capacity, beams, _, width = cache.shape
    query, *key_value = qkv.view(batch, beams, 3, width).unbind(2)
    cache.index_copy_(1, time, torch.stack(key_value, 2)[:, None])
    steps = torch.arange(capacity, device=time.device)
    own = torch.arange(beams, device=time.device)[:, None]
    ancestors = torch.where(steps == time, own, parents)  # (B, K, capacity)
    past = cache.transpose(1, 2)  # (B, K, capacity, 2, W)
    past = past.gather(1, ancestors.long()[..., None, None].expand_as(past))
    visible = (steps <= time) & (steps >= admitted[:, None])  # (B, capacity)
    return _attend(query, past, visible[:, None], heads)


def cross_attention(
    query: HiddenRows, source: Float[Tensor, "B S 2 W"], mask: Bool[Tensor, "B S"], heads: int
) -> HiddenRows:
    """Attention of the K hypotheses of each sequence to the keys and values of its source."""
    queries = query.view(len(mask), -1, query.shape[1])
    return _attend(
        queries, source[:, None].expand(-1, queries.shape[1], -1, -1, -1), mask[:, None], heads
    )


def _attend(
    query: Float[Tensor, "B K W"],
    key_value: Float[Tensor, "B K S 2 W"],
    visible: Bool[Tensor, "B 1 S"],
    heads: int,
) -> HiddenRows:
    batch, beams, width = query.shape
    shape = (batch, beams, key_value.shape[2], heads, -1)
    key, value = (
        each.view(shape).transpose(2, 3) for each in key_value.unbind(3)
    )  # (B, K, H, S, D)
    scores = (key @ query.view(batch, beams, heads, -1, 1))[..., 0].float() / sqrt(
        width // heads
    )  # (B, K, H, S)
    weights = scores.masked_fill(~visible[:, :, None], -torch.inf).softmax(-1).nan_to_num(0.0)
    context: Tensor = weights.to(value.dtype)[..., None, :] @ value  # (B, K, H, 1, D)
    return context.reshape(batch * beams, width)


def persistent(layers: StackedLayers, rows: int) -> ModuleType | None:
    """The module that computes a whole step in one kernel, if it can for these weights and rows."""
    if kernels(layers.qkv_proj.weight) is None:
        return None
    from regard.generation.engines.cuda.kernels import persistent_step_triton

    return persistent_step_triton if persistent_step_triton.supports(layers, rows) else None
