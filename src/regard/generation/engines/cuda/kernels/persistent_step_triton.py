"""A decoding step of one hypothesis of one sequence as a single Triton kernel, or several steps of greedy search.

With one row a step is bound by latency: of some fifty kernels, or of as many barriers. Here one program stays on each
multiprocessor for the whole step (a cooperative launch), and programs send numbers to each other (`messages_triton`).
A layer has six phases (`step_phases_triton`):

    qkv       queries, keys and values of all heads; each program computes some columns
    self      attention of a head, computed by each of its programs, and its part of some columns of the projection
    query     cross-attention's queries
    cross     as self, to the source
    up, down  the feed-forward layer

Greedy search chooses its tokens in the kernel: programs send their largest logits, and all of them begin the next step
with the same token. Every program keeps the whole residual stream and adds what the phases send, parts of all heads in
the same order. Before a program waits, it has loaded the weights of its next phase, and the second-level cache those of
the next layer.
"""

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from regard.core.shapes import Tensor
from regard.generation.engines.cuda.kernels.messages_triton import (
    begin as begin_messages,
    empty,
    fence,
    reading,
    receive_one,
    workspace,
)
from regard.generation.engines.cuda.kernels.step import (
    Activation,
    StackedLayers,
    StepLinear,
    StepNorm,
)
from regard.generation.engines.cuda.kernels.step_phases_triton import (
    CHOSEN as CHOSEN,
    ENDS as ENDS,
    cross_attention,
    norm_choice,
    norm_product,
    plain_product,
    receive_choice,
    self_attention,
)
from regard.kernels.jit_triton import jit
from regard.kernels.layers.linear import ACTIVATIONS
from regard.kernels.triton_launch import HALF

MAX_WIDTH, MAX_FFN = (
    1024,
    4096,
)  # inputs of a product, all of which a program holds for each of its columns
WIDE, NARROW = 16, 4  # columns of a tile: many outputs, outputs of the residual stream's width
PROJECT, CHOOSE = (
    32,
    16,
)  # logits of a tile: stored, or among which a token is chosen, which takes more registers
KEYS = 32  # that a program reads at a time
WARPS = 4  # of a program
MAX_WORDS, MAX_SLICE = (
    32,
    8192,
)  # that a thread receives at a time; weights of an output projection in a program
BULK_PREFETCH = tl.constexpr(  # of $2 bytes at $1, by one thread
    "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; setp.gt.and.s32 p, $2, 0, p; "
    "@p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"
)
KINDS = {
    ACTIVATIONS["relu"]: 1,
    ACTIVATIONS["gelu"]: 2,
    ACTIVATIONS["gelu_tanh"]: 3,
    ACTIVATIONS["silu"]: 4,
}


def supports(layers: StackedLayers, rows: int) -> bool:
    weight = layers.qkv_proj.weight
    width, ffn = weight.shape[-1], layers.ffn_up.weight.shape[1]
    fits = width <= MAX_WIDTH and ffn <= MAX_FFN and width % 4 == ffn % 4 == 0
    return rows == 1 and fits and weight.dtype in HALF and _cooperative()


class Choice(NamedTuple):
    """What greedy search of one sequence reads and writes in each step (`decoding.interfaces.GeneratedTokens`)."""

    kinds: Tensor  # of the tokens: bits CHOSEN and ENDS
    generated: Tensor
    length: Tensor
    min_length: Tensor
    prompt: Tensor
    prefix: Tensor
    limit: Tensor
    ended: Tensor  # as bytes
    done: Tensor  # as bytes
    pad: int


def step(
    tokens: Tensor, table: Tensor, scale: float, positions: Tensor | None, layers: StackedLayers, final_norm: StepNorm,
    project: StepLinear, cache: Tensor, admitted: Tensor, source: Tensor, mask: Tensor, time: Tensor, memory: Tensor,
    heads: int, activation: Activation, choice: Choice | None = None, steps: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Logits after one more token, and all layers' queries, keys and values, and cross-attention queries.

    Writes the new keys and values into the cache, and adds 1 to `time`. `memory` is a `step_workspace` that no other
    step uses at the same time. With a choice, so many steps of greedy search, whose results are the tensors of the
    choice and `tokens`; the tensors that are returned are empty.
    """
    width, (count, ffn, _) = table.shape[1], layers.ffn_up.weight.shape
    crosses, programs, chooses = (
        layers.cross_q_proj is not None,
        _programs(tokens.device),
        choice is not None,
    )
    cross_q, cross_out = (
        layers.cross_q_proj or layers.out_proj,
        layers.cross_out_proj or layers.out_proj,
    )
    returned = 0 if chooses else count
    qkv, query = (
        table.new_empty(returned, 1, 3 * width),
        table.new_empty(returned if crosses else 0, 1, width),
    )
    logits = table.new_empty(1, 0 if chooses else len(project.weight))
    norm_bias, final_bias, any_tensor = layers.norm_bias, final_norm.bias, project.bias
    choice = Choice._make([*[tokens] * 9, 0]) if choice is None else choice
    _step[(programs,)](
        tokens, table, any_tensor if positions is None else positions, admitted, time, qkv, query, cache, source,
        mask.view(torch.uint8), layers.norm_weight, any_tensor if norm_bias is None else norm_bias, final_norm.weight,
        any_tensor if final_bias is None else final_bias, *layers.qkv_proj, *layers.out_proj, *cross_q, *cross_out,
        *layers.ffn_up, *layers.ffn_down, *project, logits, memory, *choice, choice.prefix.shape[-1], steps, scale,
        final_norm.epsilon, 1 / sqrt(width // heads), 0 if positions is None else len(positions), cache.shape[2],
        mask.shape[1], count, _words(layers, heads, programs), OUTPUTS=len(project.weight), BULK=_bulk(tokens.device),
        KIND=1 if final_bias is None else 2, ACTIVATION=KINDS[activation], CROSS=crosses, CHOOSES=chooses, WIDE=WIDE,
        NARROW=NARROW, KEYS=KEYS, PROGRAMS=programs, num_warps=WARPS, **_sizes(width, ffn, heads, programs),
        **({"launch_cooperative_grid": True} if tokens.is_cuda else {}),
    )  # fmt: skip
    return logits, qkv, query


def step_workspace(layers: StackedLayers, heads: int, steps: int = 1) -> Tensor:
    """Memory in which the programs of `step` send numbers to each other, for so many steps in one launch."""
    device = layers.norm_weight.device
    return workspace(steps * _words(layers, heads, _programs(device)), device)


def _words(layers: StackedLayers, heads: int, programs: int) -> int:
    """Two of each program, and those of the layers (`_step`)."""
    count, ffn, width = layers.ffn_up.weight.shape
    return 2 * int(triton.next_power_of_2(programs)) + count * (5 * width + 2 * heads * width + ffn)


@lru_cache(maxsize=64)
def _sizes(width: int, ffn: int, heads: int, programs: int) -> dict[str, int | str]:
    """Sizes of tiles, padded to powers of two, and the assembly that receives so many numbers."""
    head, (width_2, ffn_2) = width // heads, map(triton.next_power_of_2, (width, ffn))
    head_2, threads = triton.next_power_of_2(head), 32 * WARPS
    pack, ffn_pack = (max(1, size // 4 // threads) for size in (width_2, ffn_2))
    group = max(
        each for each in range(1, heads + 1) if heads % each == 0 and 4 * each * pack <= MAX_WORDS
    )
    tile = triton.next_power_of_2(
        triton.cdiv(width, max(1, programs // heads))
    )  # so that each program has one
    return {
        "WIDTH": width, "WIDTH_2": width_2, "FFN": ffn, "FFN_2": ffn_2, "HEADS": heads, "HEAD": head, "HEAD_2": head_2,
        "SLICE": min(tile, max(1, MAX_SLICE // head_2)), "GROUP": group, "PACK": pack, "FFN_PACK": ffn_pack,
        "PROJECT": PROJECT if width_2 <= 512 else PROJECT // 2,  # a program holds two tiles in registers
        "CHOOSE": CHOOSE if width_2 <= 512 else CHOOSE // 2,
        "PARTS_ASM": reading(group, width, pack), "ONE_ASM": reading(1, 0, pack),
        "FFN_ASM": reading(1, 0, ffn_pack), "THREE_ASM": reading(3, width, 1, vector=1, added=False),
        "HEAD_ASM": reading(1, 0, 1, vector=1), "PROGRAMS_2": triton.next_power_of_2(programs),
        "CHOICE_ASM": reading(2, triton.next_power_of_2(programs), 1, vector=1, added=False),
    }  # fmt: skip


@lru_cache(maxsize=16)
def _programs(device: torch.device) -> int:
    """One for each multiprocessor; in Triton's interpreter, which runs one program after another, one."""
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )


@lru_cache(maxsize=16)
def _bulk(device: torch.device) -> bool:
    """Whether one instruction can prefetch many bytes."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache(maxsize=1)
def _cooperative() -> bool:
    """Whether Triton can launch programs that are all resident at once, without which a barrier may never end."""
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return False
    return hasattr(CUDAOptions, "launch_cooperative_grid")


@jit
def _prefetch(weight, count, BULK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Have the second-level cache load so many weights, of which each program asks for some."""
    BITS: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth
    if PROGRAMS > 1:
        if BULK:
            size = count * (BITS // 8)
            share = tl.cdiv(tl.cdiv(size, PROGRAMS), 128) * 128
            first = tl.program_id(0) * share + tl.arange(0, 1)
            tl.inline_asm_elementwise(
                BULK_PREFETCH, "=r,l,r", [weight.to(tl.int64) + first, tl.minimum(size - first, share)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            LINE: tl.constexpr = 1024 // BITS  # weights of 128 bytes
            for first in range(tl.program_id(0) * 128, tl.cdiv(count, LINE), PROGRAMS * 128):
                at = tl.minimum((first + tl.arange(0, 128)) * LINE, count - 1)
                tl.inline_asm_elementwise(
                    "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(weight + at).to(tl.int64)], dtype=tl.int32,
                    is_pure=False, pack=1,
                )  # fmt: skip


@jit
def _prefetch_layer(
    qkv, out, cross_q, cross_out, up, down, layer, WIDTH: tl.constexpr, FFN: tl.constexpr, BULK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Have the second-level cache load the weights of a layer."""
    _prefetch(qkv + layer * 3 * WIDTH * WIDTH, 3 * WIDTH * WIDTH, BULK, PROGRAMS)
    _prefetch(out + layer * WIDTH * WIDTH, WIDTH * WIDTH, BULK, PROGRAMS)
    _prefetch(cross_q + layer * WIDTH * WIDTH, WIDTH * WIDTH, BULK, PROGRAMS)
    _prefetch(cross_out + layer * WIDTH * WIDTH, WIDTH * WIDTH, BULK, PROGRAMS)
    _prefetch(up + layer * FFN * WIDTH, FFN * WIDTH, BULK, PROGRAMS)
    _prefetch(down + layer * FFN * WIDTH, FFN * WIDTH, BULK, PROGRAMS)


@jit
def _step(
    tokens, table, positions, admitted, time, qkv, query, cache, source, visible, norm_weight, norm_bias, final_weight,
    final_bias, qkv_weight, qkv_bias, out_weight, out_bias, cross_q_weight, cross_q_bias, cross_out_weight,
    cross_out_bias, up_weight, up_bias, down_weight, down_bias, project_weight, project_bias, logits, workspace,
    kinds, generated, lengths, min_lengths, prompts, prefix, limits, ended_flags, done_flags, pad, prefixes, steps,
    embed_scale, eps, score_scale, table_size, capacity, length, layers, size,
    OUTPUTS: tl.constexpr, BULK: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_2: tl.constexpr, FFN: tl.constexpr, FFN_2: tl.constexpr, HEADS: tl.constexpr,
    HEAD: tl.constexpr, HEAD_2: tl.constexpr, KIND: tl.constexpr, ACTIVATION: tl.constexpr, CROSS: tl.constexpr,
    CHOOSES: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr, PROJECT: tl.constexpr, CHOOSE: tl.constexpr,
    SLICE: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, FFN_PACK: tl.constexpr,
    PARTS_ASM: tl.constexpr, ONE_ASM: tl.constexpr, FFN_ASM: tl.constexpr, THREE_ASM: tl.constexpr,
    HEAD_ASM: tl.constexpr, PROGRAMS: tl.constexpr, PROGRAMS_2: tl.constexpr, CHOICE_ASM: tl.constexpr,
):  # fmt: skip
    NORMS: tl.constexpr = 3 if CROSS else 2
    # Words that a layer sends to: queries, keys and values; parts of self-attention's output; queries and parts of the
    # output of cross-attention; hidden units; the feed-forward layer's output.
    ATTENDED: tl.constexpr = 3 * WIDTH
    ASKED: tl.constexpr = ATTENDED + HEADS * WIDTH
    CROSSED: tl.constexpr = ASKED + WIDTH
    HIDDEN: tl.constexpr = CROSSED + HEADS * WIDTH
    DOWN: tl.constexpr = HIDDEN + FFN
    now, begin, token = tl.load(time), tl.load(admitted), tl.load(tokens)
    mine, others, half = begin_messages(workspace, size * steps)
    before, min_length, prompt, limit = now, now, now, now
    ended, done = tl.full([], 0, tl.int1), tl.full([], 0, tl.int1)
    if CHOOSES:
        before, min_length, prompt, limit = (
            tl.load(lengths),
            tl.load(min_lengths),
            tl.load(prompts),
            tl.load(limits),
        )
        ended, done = tl.load(ended_flags) != 0, tl.load(done_flags) != 0
    else:
        tl.store(mine + tl.program_id(0), (now + half > 0).to(tl.int32))  # after both were read
    d = tl.arange(0, WIDTH_2)
    for number_of_step in range(steps):
        sent = mine + number_of_step * size
        words = sent + 2 * PROGRAMS_2
        x = (
            tl.load(table + token * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32)
            * embed_scale
        )
        if table_size > 0:
            position = tl.minimum(now - begin, table_size - 1)
            x += tl.load(positions + position * WIDTH + d, mask=d < WIDTH, other=0.0)
        for number in range(layers):
            layer = tl.full([], 0, tl.int64) + number
            norm, shift = norm_weight + layer * NORMS * WIDTH, norm_bias
            if KIND == 2:
                shift += layer * NORMS * WIDTH
            previous = tl.maximum(layer - 1, 0)
            here = words + layer * (DOWN + WIDTH)
            x = norm_product(
                x, words + previous * (DOWN + WIDTH) + DOWN, down_bias + previous * WIDTH, number > 0, norm, shift,
                qkv_weight + layer * 3 * WIDTH * WIDTH, qkv_bias + layer * 3 * WIDTH, here, qkv + layer * 3 * WIDTH,
                eps, 3 * WIDTH, WIDTH, WIDTH_2, KIND, 0, WIDE, True, not CHOOSES, 1, ONE_ASM, 1, PACK, PROGRAMS,
            )  # fmt: skip
            if CHOOSES:  # noqa: SIM102  known when this is compiled
                if number == 0:  # see the keys of the steps before, which others have stored
                    fence(PROGRAMS)
            self_attention(
                here, cache + layer * capacity * 2 * WIDTH, begin, now, out_weight + layer * WIDTH * WIDTH,
                here + ATTENDED, score_scale, WIDTH, HEADS, HEAD, HEAD_2, KEYS, SLICE, THREE_ASM, PROGRAMS,
            )  # fmt: skip
            if number == 0:
                empty(others + number_of_step * size, size, PROGRAMS)
            if number + 1 < layers:
                _prefetch_layer(
                    qkv_weight, out_weight, cross_q_weight, cross_out_weight, up_weight, down_weight, layer + 1, WIDTH,
                    FFN, BULK, PROGRAMS,
                )  # fmt: skip
            if number + 1 == layers:
                _prefetch(project_weight, OUTPUTS * WIDTH, BULK, PROGRAMS)
            added, added_bias = here + ATTENDED, out_bias + layer * WIDTH
            if CROSS:
                norm += WIDTH
                shift += WIDTH
                x = norm_product(
                    x, added, added_bias, True, norm, shift, cross_q_weight + layer * WIDTH * WIDTH,
                    cross_q_bias + layer * WIDTH, here + ASKED, query + layer * WIDTH, eps, WIDTH, WIDTH, WIDTH_2, KIND,
                    0, NARROW, True, not CHOOSES, HEADS, PARTS_ASM, GROUP, PACK, PROGRAMS,
                )  # fmt: skip
                cross_attention(
                    here + ASKED, source + layer * 2 * WIDTH, visible, length, layers,
                    cross_out_weight + layer * WIDTH * WIDTH, here + CROSSED, score_scale, WIDTH, HEADS, HEAD, HEAD_2,
                    KEYS, SLICE, HEAD_ASM, PROGRAMS,
                )  # fmt: skip
                added, added_bias = here + CROSSED, cross_out_bias + layer * WIDTH
            x = norm_product(
                x, added, added_bias, True, norm + WIDTH, shift + WIDTH, up_weight + layer * FFN * WIDTH,
                up_bias + layer * FFN, here + HIDDEN, logits, eps, FFN, WIDTH, WIDTH_2, KIND, ACTIVATION, WIDE, True,
                False, HEADS, PARTS_ASM, GROUP, PACK, PROGRAMS,
            )  # fmt: skip
            plain_product(
                here + HIDDEN, down_weight + layer * FFN * WIDTH, here + DOWN, WIDTH, FFN, FFN_2, NARROW, FFN_ASM,
                FFN_PACK, PROGRAMS,
            )  # fmt: skip
        if not CHOOSES:  # noqa: SIM102
            if tl.program_id(0) == 0:  # when all programs have read them
                program = tl.minimum(tl.arange(0, PROGRAMS_2), PROGRAMS - 1)
                receive_one(sent, program, HEAD_ASM, PROGRAMS)
                tl.store(time, now + 1)
                tl.store(workspace, 1 - half)
        _prefetch_layer(  # for the next step
            qkv_weight, out_weight, cross_q_weight, cross_out_weight, up_weight, down_weight, 0, WIDTH, FFN, BULK,
            PROGRAMS,
        )  # fmt: skip
        last = layers - 1
        if CHOOSES:
            fence(PROGRAMS)  # before others begin the next step, which reads the keys of this one
            norm_choice(
                x, words + last * (DOWN + WIDTH) + DOWN, down_bias + last * WIDTH, final_weight, final_bias,
                project_weight, project_bias, kinds, before >= min_length, sent, eps, OUTPUTS, WIDTH, WIDTH_2, KIND,
                CHOOSE, ONE_ASM, PACK, PROGRAMS, PROGRAMS_2,
            )  # fmt: skip
            token = receive_choice(sent, CHOICE_ASM, PROGRAMS, PROGRAMS_2)
            # As `sampling_triton.greedy_step`, by every program alike.
            forced = tl.load(prefix + tl.minimum(before, prefixes - 1))
            token = tl.where((before < prefixes) & (forced >= 0), forced, token)
            token = tl.where(ended, pad, token)
            if tl.program_id(0) == 0:
                tl.store(generated + before, token)
            ended = ended | (((tl.load(kinds + token) & ENDS) != 0) & (before >= prompt))
            before += (done == 0).to(tl.int64)
            done = done | ended | (before >= limit)
            now += 1
        else:
            norm_product(
                x, words + last * (DOWN + WIDTH) + DOWN, down_bias + last * WIDTH, True, final_weight, final_bias,
                project_weight, project_bias, words, logits, eps, OUTPUTS, WIDTH, WIDTH_2, KIND, 0, PROJECT, False,
                True, 1, ONE_ASM, 1, PACK, PROGRAMS,
            )  # fmt: skip
    if CHOOSES:  # noqa: SIM102
        if (
            tl.program_id(0) == 0
        ):  # all programs have sent their choice, and read what is overwritten here before
            tl.store(time, now)
            tl.store(workspace, 1 - half)
            tl.store(tokens, token)
            tl.store(lengths, before)
            tl.store(ended_flags, ended.to(tl.uint8))
            tl.store(done_flags, done.to(tl.uint8))
