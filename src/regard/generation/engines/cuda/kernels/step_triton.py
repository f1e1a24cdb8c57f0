"""Triton kernels of `step`: each is one launch where PyTorch needs from two to twenty.

With few rows a step is bound by launch latency, so that residual addition, norm and product are fused, and kernels use
programmatic dependent launch; with many rows PyTorch's products are faster. Accumulation is in float32.
"""

from math import sqrt

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from regard.core.shapes import Tensor
from regard.generation.engines.cuda.kernels.beam_step_triton import (
    MAX_CANDIDATES as MAX_CANDIDATES,
    beam_step as beam_step,
    follow as follow,
)
from regard.generation.engines.cuda.kernels.programmatic_launch_triton import (
    launch_dependents,
    launch_options,
    wait,
)
from regard.generation.engines.cuda.kernels.sampling_triton import (
    fingerprints as fingerprints,
    greedy_step as greedy_step,
    log_sum_exp as log_sum_exp,
    top_k as top_k,
)
from regard.generation.engines.cuda.kernels.step import Activation, StepLinear, StepNorm
from regard.kernels.jit_triton import jit
from regard.kernels.layers.residual_norm import PendingResidual
from regard.kernels.triton_launch import HALF

PAST_KEYS, SOURCE_KEYS = 16, 32  # that a program reads at a time
ROWS, COLUMNS = 16, 64  # of a tile of a fused product
FUSED_ROWS = 96  # at peak, for fused products
MAX_NORM_WIDTH, MAX_INPUTS = (
    1024,
    512,
)  # columns that a program of a fused product holds, with and without norm


def embed(
    tokens: Tensor,
    table: Tensor,
    scale: float,
    positions: Tensor | None,
    admitted: Tensor,
    time: Tensor,
) -> PendingResidual:
    rows, width = len(tokens), table.shape[1]
    x = torch.empty(rows, width, dtype=torch.float32, device=table.device)
    _embed[(rows,)](
        tokens, table, x if positions is None else positions, admitted, time, x, scale, rows // len(admitted),
        0 if positions is None else len(positions), width, WIDE=triton.next_power_of_2(width), **launch_options(),
    )  # fmt: skip
    return PendingResidual(x)


def norm_linear(
    given: PendingResidual, norm: StepNorm | None, linear: StepLinear, *, post_norm: bool,
    activation: Activation | None = None,
) -> tuple[Tensor, PendingResidual]:  # fmt: skip
    (x, added), relu = given, activation is F.relu_
    (rows, width), outputs = x.shape, len(linear.weight)
    weight, bias, eps, kind = _norm(norm, x)
    plus = x if added is None else added
    total = x if added is None and not post_norm else torch.empty_like(x)
    kind |= {
        "POST_NORM": post_norm,
        "ADD": added is not None,
        "WIDE": triton.next_power_of_2(width),
    }
    kind |= launch_options()
    if _fused(x, linear):
        out = linear.weight.new_empty(rows, outputs)
        _norm_linear[(triton.cdiv(rows, ROWS), triton.cdiv(outputs, COLUMNS))](
            x, plus, weight, bias, linear.weight, linear.bias, total, out, eps, rows, width, outputs,
            RELU=relu, ROWS=ROWS, COLUMNS=COLUMNS, **kind,
        )  # fmt: skip
    else:
        h = linear.weight.new_empty(rows, width)
        _add_norm[(rows,)](x, plus, weight, bias, total, h, eps, width, **kind)
        out = torch._addmm_activation(linear.bias, h, linear.weight.T) if relu else linear(h)
    return (out if activation is None or relu else activation(out)), PendingResidual(total)


def add_linear(given: PendingResidual, context: Tensor, linear: StepLinear) -> PendingResidual:
    x, added = given
    assert added is None
    (rows, width), inputs = x.shape, context.shape[1]
    if inputs > MAX_INPUTS or not _fused(x, linear):
        return PendingResidual(x, linear(context))
    out = torch.empty_like(x)
    _add_linear[(triton.cdiv(rows, ROWS), triton.cdiv(width, 16))](
        x, context, linear.weight, linear.bias, out, rows, width, inputs,
        ROWS=ROWS, COLUMNS=16, INPUTS=triton.next_power_of_2(inputs), num_warps=8, **launch_options(),
    )  # fmt: skip
    return PendingResidual(out)


def self_attention(
    qkv: Tensor, cache: Tensor, parents: Tensor, admitted: Tensor, time: Tensor, heads: int
) -> Tensor:  # fmt: skip
    rows, (_, capacity, beams, _, width) = len(qkv), cache.shape
    out = qkv.new_empty(rows, width)
    head_width = width // heads
    _self_attention[(rows, heads)](
        qkv, cache, parents, admitted, time, out, 1 / sqrt(head_width), capacity, beams, width, head_width,
        BEAM_SEARCH=beams > 1, KEYS=PAST_KEYS, WIDE=triton.next_power_of_2(head_width), num_warps=1,
        **launch_options(),
    )  # fmt: skip
    return out


def cross_attention(query: Tensor, source: Tensor, mask: Tensor, heads: int) -> Tensor:
    rows, width = query.shape
    batch, length = mask.shape
    out = torch.empty_like(query)
    head_width, beams = width // heads, rows // batch
    tensors = query, source, mask.view(torch.uint8), out, 1 / sqrt(head_width)
    sizes = length, *source.stride()[:3], width, head_width
    constants = {"KEYS": SOURCE_KEYS, "num_warps": 1, **launch_options()}
    wide = triton.next_power_of_2(head_width)
    if beams == 1:
        _cross_attention[(rows, heads)](*tensors, *sizes, WIDE=wide, **constants)
    else:
        padded_beams = max(16, triton.next_power_of_2(beams))
        _cross_attention_beams[(batch, heads)](
            *tensors, beams, *sizes, BEAMS=padded_beams, WIDE=max(16, wide), **constants
        )  # fmt: skip
    return out


def _fused(x: Tensor, linear: StepLinear) -> bool:
    return len(x) <= FUSED_ROWS and x.shape[1] <= MAX_NORM_WIDTH and linear.weight.dtype in HALF


def _norm(norm: StepNorm | None, unused: Tensor) -> tuple[Tensor, Tensor, float, dict[str, int]]:
    """A norm as kernel arguments. KIND: 0 none, 1 RMSNorm, 2 LayerNorm."""
    if norm is None:
        return unused, unused, 0.0, {"KIND": 0}
    if norm.bias is None:
        return norm.weight, unused, norm.epsilon, {"KIND": 1}
    return norm.weight, norm.bias, norm.epsilon, {"KIND": 2}


@jit
def _embed(
    tokens, table, positions, admitted, time, x, scale, beams, limit, width, WIDE: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDE)
    there = d < width
    token = tl.load(tokens + row)
    here = tl.load(table + token * width + d, mask=there, other=0.0).to(tl.float32) * scale
    if limit > 0:
        position = tl.minimum(tl.load(time) - tl.load(admitted + row // beams), limit - 1)
        here += tl.load(positions + position * width + d, mask=there, other=0.0)
    tl.store(x + row * width + d, here, mask=there)


@jit
def _normalize(here, weight, bias, eps, width, d, KIND: tl.constexpr):
    """Normalized rows; columns beyond the width stay zero."""
    there = (d < width)[None, :]
    normed = here
    if KIND == 2:
        normed = tl.where(there, here - (tl.sum(here, 1) / width)[:, None], 0.0)
    if KIND > 0:
        spread = tl.sqrt(tl.sum(normed * normed, 1) / width + eps)
        normed = normed / spread[:, None] * tl.load(weight + d, mask=d < width, other=0.0)[None, :]
    if KIND == 2:
        normed += tl.load(bias + d, mask=d < width, other=0.0)[None, :]
    return normed


@jit
def _add_norm(
    x, added, weight, bias, total, out, eps, width,
    KIND: tl.constexpr, POST_NORM: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    d = tl.arange(0, WIDE)
    at = (row * width)[:, None] + d[None, :]
    there = (d < width)[None, :]
    here = tl.load(x + at, mask=there, other=0.0)
    if ADD:
        here += tl.load(added + at, mask=there, other=0.0).to(tl.float32)
    normed = _normalize(here, weight, bias, eps, width, d, KIND)
    if POST_NORM or ADD:
        tl.store(total + at, normed if POST_NORM else here, mask=there)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=there)


@jit
def _norm_linear(
    x, added, weight, bias, linear_weight, linear_bias, total, out, eps, rows, width, outputs,
    KIND: tl.constexpr, POST_NORM: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    launch_dependents(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    d = tl.arange(0, WIDE)
    inside = (d < width)[None, :]
    weight_tile = tl.load(
        linear_weight + column[:, None].to(tl.int64) * width + d[None, :],
        mask=(column < outputs)[:, None] & inside,
        other=0.0,
    )
    at = row[:, None] * width + d[None, :]
    mine = (row < rows)[:, None] & inside
    wait(EARLY)
    here = tl.load(x + at, mask=mine, other=0.0)
    if ADD:
        here += tl.load(added + at, mask=mine, other=0.0).to(tl.float32)
    normed = _normalize(here, weight, bias, eps, width, d, KIND)
    if POST_NORM or ADD:
        tl.store(total + at, normed if POST_NORM else here, mask=mine & (tl.program_id(1) == 0))
    out_tile = tl.dot(normed.to(weight_tile.dtype), tl.trans(weight_tile))
    out_tile += tl.load(linear_bias + column, mask=column < outputs, other=0.0)[None, :].to(
        tl.float32
    )
    if RELU:
        out_tile = tl.maximum(out_tile, 0.0)
    where = out + row[:, None].to(tl.int64) * outputs + column[None, :]
    tl.store(
        where,
        out_tile.to(out.dtype.element_ty),
        mask=(row < rows)[:, None] & (column < outputs)[None, :],
    )


@jit
def _add_linear(
    x, context, linear_weight, linear_bias, out, rows, width, inputs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INPUTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    launch_dependents(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, INPUTS)
    inside, mine = (k < inputs)[None, :], (row < rows)[:, None]
    weight_tile = tl.load(
        linear_weight + column[:, None] * inputs + k[None, :],
        mask=(column < width)[:, None] & inside,
        other=0.0,
    )
    wait(EARLY)
    given = tl.load(context + row[:, None] * inputs + k[None, :], mask=mine & inside, other=0.0)
    out_tile = tl.dot(given, tl.trans(weight_tile))
    out_tile += tl.load(linear_bias + column, mask=column < width, other=0.0)[None, :].to(
        tl.float32
    )
    at = row[:, None] * width + column[None, :]
    both = mine & (column < width)[None, :]
    tl.store(out + at, out_tile + tl.load(x + at, mask=both, other=0.0), mask=both)


@jit
def _self_attention(
    qkv, cache, parents, admitted, time, out, scale, capacity, beams, width, head_width,
    BEAM_SEARCH: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    launch_dependents(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, beam = row // beams, row % beams
    d = tl.arange(0, WIDE)
    there = d < head_width
    peak = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    context = tl.zeros([WIDE], dtype=tl.float32)
    wait(EARLY)
    now, begin_step = tl.load(time), tl.load(admitted + sequence)
    mine = qkv + row * 3 * width + head * head_width + d
    query = tl.load(mine, mask=there, other=0.0).to(tl.float32) * scale
    key = tl.load(mine + width, mask=there, other=0.0)
    value = tl.load(mine + 2 * width, mask=there, other=0.0)
    for begin in range(begin_step, now, KEYS):
        t = begin + tl.arange(0, KEYS)
        before = t < now
        at = (sequence * capacity + t) * beams
        if BEAM_SEARCH:
            at += tl.load(parents + row * capacity + t, mask=before, other=0)
        both = before[:, None] & there[None, :]
        where = cache + (at * 2 * width + head * head_width)[:, None] + d[None, :]
        keys = tl.load(where, mask=both, other=0.0).to(tl.float32)
        values = tl.load(where + width, mask=both, other=0.0).to(tl.float32)
        score = tl.where(before, tl.sum(keys * query[None, :], 1), float("-inf"))
        higher = tl.maximum(peak, tl.max(score))
        rescale = tl.exp(peak - higher)
        weight = tl.exp(score - higher)
        total = total * rescale + tl.sum(weight)
        context = context * rescale + tl.sum(weight[:, None] * values, 0)
        peak = higher
    score = tl.sum(query * key.to(tl.float32))  # the step at hand, which is always visible
    higher = tl.maximum(peak, score)
    rescale, weight = tl.exp(peak - higher), tl.exp(score - higher)
    context = (context * rescale + value.to(tl.float32) * weight) / (total * rescale + weight)
    tl.store(
        out + row * width + head * head_width + d, context.to(out.dtype.element_ty), mask=there
    )
    kept = cache + ((sequence * capacity + now) * beams + beam) * 2 * width + head * head_width + d
    tl.store(kept, key, mask=there)
    tl.store(kept + width, value, mask=there)


@jit
def _cross_attention(
    queries, source, visible, out, scale, length, sequence_stride, position_stride, value_offset, width, head_width,
    KEYS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    launch_dependents(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, WIDE)
    there = d < head_width
    peak = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    context = tl.zeros([WIDE], dtype=tl.float32)
    here = source + row * sequence_stride + head * head_width
    visible += row * length
    allowed, keys, values = _load_source(
        here, visible, 0, length, position_stride, value_offset, d, there, KEYS
    )
    wait(EARLY)
    query = (
        tl.load(queries + row * width + head * head_width + d, mask=there, other=0.0).to(tl.float32)
        * scale
    )
    for begin in range(0, length, KEYS):
        score = tl.where(allowed, tl.sum(keys.to(tl.float32) * query[None, :], 1), float("-inf"))
        higher = tl.maximum(peak, tl.max(score))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # all masked so far
        rescale = tl.exp(peak - base)
        weight = tl.exp(score - base)
        total = total * rescale + tl.sum(weight)
        context = context * rescale + tl.sum(weight[:, None] * values.to(tl.float32), 0)
        peak = higher
        allowed, keys, values = _load_source(
            here, visible, begin + KEYS, length, position_stride, value_offset, d, there, KEYS
        )
    context = context / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out + row * width + head * head_width + d, context.to(out.dtype.element_ty), mask=there
    )


@jit
def _load_source(
    here, visible, begin, length, position_stride, value_offset, d, there, KEYS: tl.constexpr
):
    """Mask, keys and values of the next positions of a source."""
    position = begin + tl.arange(0, KEYS)
    allowed = tl.load(visible + position, mask=position < length, other=0) != 0
    both = allowed[:, None] & there[None, :]
    where = here + (position * position_stride)[:, None] + d[None, :]
    return (
        allowed,
        tl.load(where, mask=both, other=0.0),
        tl.load(where + value_offset, mask=both, other=0.0),
    )


@jit
def _cross_attention_beams(
    queries, source, visible, out, scale, beams, length, sequence_stride, position_stride, value_offset, width,
    head_width, BEAMS: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `_cross_attention`, for all hypotheses of a sequence."""
    launch_dependents(EARLY)
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    k, d = tl.arange(0, BEAMS), tl.arange(0, WIDE)
    there = d < head_width
    at = ((sequence * beams + k) * width)[:, None] + head * head_width + d[None, :]
    mine = (k < beams)[:, None] & there[None, :]
    peak = tl.full([BEAMS], float("-inf"), tl.float32)
    total = tl.zeros([BEAMS], dtype=tl.float32)
    context = tl.zeros([BEAMS, WIDE], dtype=tl.float32)
    here, visible = (
        source + sequence * sequence_stride + head * head_width,
        visible + sequence * length,
    )
    allowed, keys, values = _load_source(
        here, visible, 0, length, position_stride, value_offset, d, there, KEYS
    )
    wait(EARLY)
    query = tl.load(queries + at, mask=mine, other=0.0)
    for begin in range(0, length, KEYS):
        score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        score = tl.where(allowed[None, :], score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # all masked so far
        rescale = tl.exp(peak - base)
        weight = tl.exp(score - base[:, None])
        total = total * rescale + tl.sum(weight, 1)
        context = context * rescale[:, None] + tl.dot(
            weight.to(values.dtype), values, input_precision="ieee"
        )
        peak = higher
        allowed, keys, values = _load_source(
            here, visible, begin + KEYS, length, position_stride, value_offset, d, there, KEYS
        )
    context = context / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + at, context.to(out.dtype.element_ty), mask=mine)
