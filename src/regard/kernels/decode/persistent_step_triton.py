"""A decoding step of one hypothesis of one sequence as a single Triton kernel.

With one row a step is bound by the time between kernels, some fifty of them. Here one program stays on each
multiprocessor for the whole step (a cooperative launch). A step is a sequence of phases, products and attentions; each
program computes some tiles of every phase, and all wait for each other between two phases, at a barrier over a counter
in memory. A program loads the weights of its first tile before it waits. Accumulation is in float32.
"""

from functools import lru_cache
from math import sqrt

import torch
import triton
import triton.language as tl

from regard.core.shapes import Tensor
from regard.kernels.decode.step import Activation, StackedLayers, StepLinear, StepNorm
from regard.kernels.decode.step_triton import _normalize
from regard.kernels.jit_triton import jit
from regard.kernels.layers.linear import ACTIVATIONS
from regard.kernels.triton_launch import HALF

MAX_WIDTH, MAX_FFN = 1024, 4096  # inputs of a product, all of which a program holds for each of its columns
WIDE, NARROW, PROJECT = 16, 4, 32  # columns of a tile: many outputs, outputs of the residual stream's width, logits
KEYS = 32  # that a program reads at a time
KINDS = {ACTIVATIONS["relu"]: 1, ACTIVATIONS["gelu"]: 2, ACTIVATIONS["gelu_tanh"]: 3, ACTIVATIONS["silu"]: 4}


def supports(layers: StackedLayers, rows: int) -> bool:
    weight = layers.qkv_proj.weight
    width, ffn = weight.shape[-1], layers.ffn_up.weight.shape[1]
    return rows == 1 and width <= MAX_WIDTH and ffn <= MAX_FFN and weight.dtype in HALF and _cooperative()


def step(
    tokens: Tensor, table: Tensor, scale: float, positions: Tensor | None, layers: StackedLayers, final_norm: StepNorm,
    project: StepLinear, cache: Tensor, admitted: Tensor, source: Tensor, mask: Tensor, time: Tensor, heads: int,
    activation: Activation,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Logits after one more token, and all layers' queries, keys and values, and cross-attention queries.

    Writes the new keys and values into the cache, and adds 1 to `time`.
    """
    width, (count, ffn, _) = table.shape[1], layers.ffn_up.weight.shape
    head_width, crosses, programs = width // heads, layers.cross_q_proj is not None, _programs(tokens.device)
    cross_q, cross_out = layers.cross_q_proj or layers.out_proj, layers.cross_out_proj or layers.out_proj
    x = torch.empty(width, dtype=torch.float32, device=tokens.device)
    context, hidden = table.new_empty(width), table.new_empty(ffn)
    qkv, query = table.new_empty(count, 1, 3 * width), table.new_empty(count if crosses else 0, 1, width)
    logits = table.new_empty(1, len(project.weight))
    counter = torch.zeros(1, dtype=torch.int64, device=tokens.device)
    norm_bias, final_bias = layers.norm_bias, final_norm.bias
    _step[(programs,)](
        tokens, table, x if positions is None else positions, admitted, time, x, qkv, context, query, hidden, cache,
        source, mask.view(torch.uint8), layers.norm_weight, x if norm_bias is None else norm_bias, final_norm.weight,
        x if final_bias is None else final_bias, *layers.qkv_proj, *layers.out_proj, *cross_q, *cross_out,
        *layers.ffn_up, *layers.ffn_down, *project, logits, counter, scale, final_norm.epsilon, 1 / sqrt(head_width),
        0 if positions is None else len(positions), cache.shape[2], mask.shape[1], count, len(project.weight),
        WIDTH=width, WIDTH_2=triton.next_power_of_2(width), FFN=ffn, FFN_2=triton.next_power_of_2(ffn), HEADS=heads,
        HEAD=head_width, HEAD_2=triton.next_power_of_2(head_width), KIND=1 if final_bias is None else 2,
        ACTIVATION=KINDS[activation], CROSS=crosses, WIDE=WIDE, NARROW=NARROW, PROJECT=PROJECT, KEYS=KEYS,
        PROGRAMS=programs, **({"launch_cooperative_grid": True} if tokens.is_cuda else {}),
    )  # fmt: skip
    return logits, qkv, query


@lru_cache(maxsize=16)
def _programs(device: torch.device) -> int:
    """One for each multiprocessor; in Triton's interpreter, which runs one program after another, one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@lru_cache(maxsize=1)
def _cooperative() -> bool:
    """Whether Triton can launch programs that are all resident at once, without which a barrier may never end."""
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return False
    return hasattr(CUDAOptions, "launch_cooperative_grid")


@jit
def _arrive(counter, PROGRAMS: tl.constexpr):
    """Count this program as arrived at the barrier: its part of the phase is written."""
    if PROGRAMS > 1:
        tl.debug_barrier()
        tl.atomic_add(counter, 1, sem="release", scope="gpu")


@jit
def _wait(counter, target, PROGRAMS: tl.constexpr):
    """Wait until all programs have arrived, and see what they have written."""
    if PROGRAMS > 1:
        address = counter.to(tl.int64)
        arrived = target - 1
        while arrived < target:
            arrived = tl.inline_asm_elementwise(
                "ld.acquire.gpu.global.s64 $0, [$1];", "=l,l", [address], dtype=tl.int64, is_pure=False, pack=1
            )
        tl.debug_barrier()


@jit
def _load_columns(weight, bias, column, k, outputs, INPUTS: tl.constexpr):
    """A tile of a linear layer: all weights of some outputs, and their biases."""
    inside = (column < outputs)[:, None] & (k < INPUTS)[None, :]
    tile = tl.load(weight + column[:, None].to(tl.int64) * INPUTS + k[None, :], mask=inside, other=0.0)
    return tile, tl.load(bias + column, mask=column < outputs, other=0.0)


@jit
def _multiply(x, weight, bias):
    """The product of weights and x, rounded to their dtype, plus bias, in float32."""
    return tl.sum(weight.to(tl.float32) * x.to(weight.dtype).to(tl.float32)[None, :], 1) + bias.to(tl.float32)


@jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:  # ReLU
        x = tl.maximum(x, 0.0)
    if ACTIVATION == 2:  # GELU
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACTIVATION == 3:  # its approximation by tanh
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    if ACTIVATION == 4:  # SiLU
        x = x * tl.sigmoid(x)
    return x


@jit
def _norm_product(
    x, norm_weight, norm_bias, weight, bias, out, eps, outputs, counter, target,
    WIDTH: tl.constexpr, WIDTH_2: tl.constexpr, KIND: tl.constexpr, ACTIVATION: tl.constexpr, COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: out = activation(norm(x) · weightᵀ + bias)."""
    d = tl.arange(0, WIDTH_2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    weight_tile, bias_tile = _load_columns(weight, bias, column, d, outputs, WIDTH)
    _wait(counter, target, PROGRAMS)
    here = tl.load(x + d, mask=d < WIDTH, other=0.0, cache_modifier=".cg")
    normed = tl.reshape(_normalize(here[None, :], norm_weight, norm_bias, eps, WIDTH, d, KIND), [WIDTH_2])
    for begin in range(tl.program_id(0) * COLUMNS, outputs, PROGRAMS * COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        product = _activate(_multiply(normed, weight_tile, bias_tile), ACTIVATION)
        tl.store(out + column, product.to(out.dtype.element_ty), mask=column < outputs)
        weight_tile, bias_tile = _load_columns(weight, bias, column + PROGRAMS * COLUMNS, d, outputs, WIDTH)
    _arrive(counter, PROGRAMS)


@jit
def _add_product(
    x, given, weight, bias, counter, target,
    WIDTH: tl.constexpr, INPUTS: tl.constexpr, INPUTS_2: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: x += given · weightᵀ + bias."""
    k = tl.arange(0, INPUTS_2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    weight_tile, bias_tile = _load_columns(weight, bias, column, k, WIDTH, INPUTS)
    _wait(counter, target, PROGRAMS)
    here = tl.load(given + k, mask=k < INPUTS, other=0.0, cache_modifier=".cg")
    for begin in range(tl.program_id(0) * COLUMNS, WIDTH, PROGRAMS * COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        before = tl.load(x + column, mask=column < WIDTH, other=0.0, cache_modifier=".cg")
        tl.store(x + column, before + _multiply(here, weight_tile, bias_tile), mask=column < WIDTH)
        weight_tile, bias_tile = _load_columns(weight, bias, column + PROGRAMS * COLUMNS, k, WIDTH, INPUTS)
    _arrive(counter, PROGRAMS)


@jit
def _attend(query, keys, values, allowed, peak, total, context):
    """Take one more block of keys into an online softmax."""
    score = tl.where(allowed, tl.sum(keys.to(tl.float32) * query[None, :], 1), float("-inf"))
    higher = tl.maximum(peak, tl.max(score, 0))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # all masked so far
    rescale = tl.exp(peak - base)
    weight = tl.exp(score - base)
    total = total * rescale + tl.sum(weight, 0)
    context = context * rescale + tl.sum(weight[:, None] * values.to(tl.float32), 0)
    return higher, total, context


@jit
def _self_attention(
    qkv, cache, begin, now, context, scale, counter, target,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_2: tl.constexpr, KEYS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: heads attend to earlier steps and to this one, whose keys and values are put into the cache."""
    d = tl.arange(0, HEAD_2)
    inside = d < HEAD
    _wait(counter, target, PROGRAMS)
    for head in range(tl.program_id(0), HEADS, PROGRAMS):
        own = qkv + head * HEAD + d
        query = tl.load(own, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32) * scale
        key = tl.load(own + WIDTH, mask=inside, other=0.0, cache_modifier=".cg")
        value = tl.load(own + 2 * WIDTH, mask=inside, other=0.0, cache_modifier=".cg")
        peak, total = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
        sums = tl.zeros([HEAD_2], dtype=tl.float32)
        for start in range(begin, now, KEYS):
            t = start + tl.arange(0, KEYS)
            where = cache + (t * 2 * WIDTH + head * HEAD)[:, None] + d[None, :]
            both = (t < now)[:, None] & inside[None, :]
            keys, values = tl.load(where, mask=both, other=0.0), tl.load(where + WIDTH, mask=both, other=0.0)
            peak, total, sums = _attend(query, keys, values, t < now, peak, total, sums)
        score = tl.sum(query * key.to(tl.float32), 0)  # the step at hand, which is always visible
        higher = tl.maximum(peak, score)
        rescale, weight = tl.exp(peak - higher), tl.exp(score - higher)
        sums = (sums * rescale + value.to(tl.float32) * weight) / (total * rescale + weight)
        tl.store(context + head * HEAD + d, sums.to(context.dtype.element_ty), mask=inside)
        kept = cache + now * 2 * WIDTH + head * HEAD + d
        tl.store(kept, key, mask=inside)
        tl.store(kept + WIDTH, value, mask=inside)
    _arrive(counter, PROGRAMS)


@jit
def _cross_attention(
    queries, source, visible, context, scale, length, layers, counter, target,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_2: tl.constexpr, KEYS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: heads attend to the keys and values of the source."""
    d = tl.arange(0, HEAD_2)
    inside = d < HEAD
    _wait(counter, target, PROGRAMS)
    for head in range(tl.program_id(0), HEADS, PROGRAMS):
        query = tl.load(queries + head * HEAD + d, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32) * scale
        peak, total = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
        sums = tl.zeros([HEAD_2], dtype=tl.float32)
        for start in range(0, length, KEYS):
            t = start + tl.arange(0, KEYS)
            allowed = tl.load(visible + t, mask=t < length, other=0) != 0
            where = source + (t.to(tl.int64) * layers * 2 * WIDTH + head * HEAD)[:, None] + d[None, :]
            both = allowed[:, None] & inside[None, :]
            keys, values = tl.load(where, mask=both, other=0.0), tl.load(where + WIDTH, mask=both, other=0.0)
            peak, total, sums = _attend(query, keys, values, allowed, peak, total, sums)
        sums = sums / tl.where(total == 0.0, 1.0, total)
        tl.store(context + head * HEAD + d, sums.to(context.dtype.element_ty), mask=inside)
    _arrive(counter, PROGRAMS)


@jit
def _step(
    tokens, table, positions, admitted, time, x, qkv, context, query, hidden, cache, source, visible, norm_weight,
    norm_bias, final_weight, final_bias, qkv_weight, qkv_bias, out_weight, out_bias, cross_q_weight, cross_q_bias,
    cross_out_weight, cross_out_bias, up_weight, up_bias, down_weight, down_bias, project_weight, project_bias, logits,
    counter, embed_scale, eps, score_scale, limit, capacity, length, layers, outputs,
    WIDTH: tl.constexpr, WIDTH_2: tl.constexpr, FFN: tl.constexpr, FFN_2: tl.constexpr, HEADS: tl.constexpr,
    HEAD: tl.constexpr, HEAD_2: tl.constexpr, KIND: tl.constexpr, ACTIVATION: tl.constexpr, CROSS: tl.constexpr,
    WIDE: tl.constexpr, NARROW: tl.constexpr, PROJECT: tl.constexpr, KEYS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    NORMS: tl.constexpr = 3 if CROSS else 2
    now, begin = tl.load(time), tl.load(admitted)
    d = tl.arange(0, WIDTH_2)
    if tl.program_id(0) == 0:
        here = tl.load(table + tl.load(tokens) * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32) * embed_scale
        if limit > 0:
            position = tl.minimum(now - begin, limit - 1)
            here += tl.load(positions + position * WIDTH + d, mask=d < WIDTH, other=0.0)
        tl.store(x + d, here, mask=d < WIDTH)
    _arrive(counter, PROGRAMS)
    target = tl.full([], PROGRAMS, tl.int64)  # arrivals after the phases so far
    for number in range(layers):
        layer = tl.full([], 0, tl.int64) + number
        mine, norm, shift = qkv + layer * 3 * WIDTH, norm_weight + layer * NORMS * WIDTH, norm_bias
        if KIND == 2:
            shift += layer * NORMS * WIDTH
        _norm_product(
            x, norm, shift, qkv_weight + layer * 3 * WIDTH * WIDTH, qkv_bias + layer * 3 * WIDTH, mine, eps, 3 * WIDTH,
            counter, target, WIDTH, WIDTH_2, KIND, 0, WIDE, PROGRAMS,
        )  # fmt: skip
        _self_attention(
            mine, cache + layer * capacity * 2 * WIDTH, begin, now, context, score_scale, counter, target + PROGRAMS,
            WIDTH, HEADS, HEAD, HEAD_2, KEYS, PROGRAMS,
        )  # fmt: skip
        _add_product(
            x, context, out_weight + layer * WIDTH * WIDTH, out_bias + layer * WIDTH, counter, target + 2 * PROGRAMS,
            WIDTH, WIDTH, WIDTH_2, NARROW, PROGRAMS,
        )  # fmt: skip
        target += 3 * PROGRAMS
        if CROSS:
            norm += WIDTH
            shift += WIDTH
            asked = query + layer * WIDTH
            _norm_product(
                x, norm, shift, cross_q_weight + layer * WIDTH * WIDTH, cross_q_bias + layer * WIDTH, asked, eps, WIDTH,
                counter, target, WIDTH, WIDTH_2, KIND, 0, NARROW, PROGRAMS,
            )  # fmt: skip
            _cross_attention(
                asked, source + layer * 2 * WIDTH, visible, context, score_scale, length, layers, counter,
                target + PROGRAMS, WIDTH, HEADS, HEAD, HEAD_2, KEYS, PROGRAMS,
            )  # fmt: skip
            _add_product(
                x, context, cross_out_weight + layer * WIDTH * WIDTH, cross_out_bias + layer * WIDTH, counter,
                target + 2 * PROGRAMS, WIDTH, WIDTH, WIDTH_2, NARROW, PROGRAMS,
            )  # fmt: skip
            target += 3 * PROGRAMS
        _norm_product(
            x, norm + WIDTH, shift + WIDTH, up_weight + layer * FFN * WIDTH, up_bias + layer * FFN, hidden, eps, FFN,
            counter, target, WIDTH, WIDTH_2, KIND, ACTIVATION, WIDE, PROGRAMS,
        )  # fmt: skip
        _add_product(
            x, hidden, down_weight + layer * FFN * WIDTH, down_bias + layer * WIDTH, counter, target + PROGRAMS, WIDTH,
            FFN, FFN_2, NARROW, PROGRAMS,
        )  # fmt: skip
        target += 2 * PROGRAMS
    _norm_product(
        x, final_weight, final_bias, project_weight, project_bias, logits, eps, outputs, counter, target, WIDTH,
        WIDTH_2, KIND, 0, PROJECT, PROGRAMS,
    )  # fmt: skip
    if tl.program_id(0) == 0:  # all programs have read it
        tl.store(time, now + 1)
