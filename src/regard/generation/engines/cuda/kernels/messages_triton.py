"""Float32 numbers that the programs of one kernel, all resident at once, send to each other through memory.

A word that is not written yet holds EMPTY, a NaN that no sender writes: a receiver reads the word of a number until it
holds another value. That takes one write and one read, where a barrier takes a fence, an atomic addition and the wait
for the slowest program before the first read. Each word of a workspace is written at most once in a launch. A workspace
has two halves: one for this launch, and one that this launch empties for the next.
"""

import torch
import triton.language as tl

from regard.core.shapes import Tensor
from regard.kernels.jit_triton import jit

HEADER = tl.constexpr(32)  # words before the two halves; the first tells which of them is next
EMPTY = tl.constexpr(-1)
NAN = tl.constexpr(0x7FFFFFFF)  # what arithmetic gives, and is sent instead of EMPTY
BLOCK = tl.constexpr(1024)  # words emptied at a time


def workspace(words: int, device: torch.device) -> Tensor:
    """Memory for launches that send at most so many numbers each; launches that share it follow each other."""
    made = torch.full((HEADER.value + 2 * words,), EMPTY.value, dtype=torch.int32, device=device)
    made[0] = 0
    return made


def reading(rows: int, spacing: int, pack: int, *, vector: int = 4, added: bool = True) -> str:
    """Assembly that reads words until all of them are sent: `vector` words at each of `pack` addresses of a thread.

    It does so for `rows` rows that are `spacing` words apart. Outputs are their sums, or all of them where not `added`.
    """
    count = vector * pack
    registers = [
        [[f"w{row * count + word * pack + at}" for word in range(vector)] for at in range(pack)]
        for row in range(rows)
    ]
    addresses = [f"${(count if added else rows * count) + at}" for at in range(pack)]
    kind = f".v{vector}" if vector > 1 else ""
    loads = [
        f"ld.relaxed.gpu.global{kind}.b32 {'{' + ', '.join(words) + '}' if kind else words[0]}, "
        f"[{addresses[at]}+{4 * row * spacing}];"
        for row, each in enumerate(registers)
        for at, words in enumerate(each)
    ]
    total = rows * count
    checks = [
        f"setp.eq{'.or' if at else ''}.s32 p, w{at}, {EMPTY.value}{', p' if at else ''};"
        for at in range(total)
    ]
    results = [f"mov.b32 ${at}, w{at};" for at in range(count if added else total)]
    if added:
        results += [
            f"add.f32 ${at}, ${at}, w{row * count + at};"
            for row in range(1, rows)
            for at in range(count)
        ]
    lines = [
        ".reg .pred p;",
        f".reg .b32 w<{total}>;",
        "again:",
        *loads,
        *checks,
        "@p bra again;",
        *results,
    ]
    return "{ " + " ".join(lines) + " }"


@jit
def begin(workspace, size):
    """The half of the workspace for this launch, the half that this launch empties for the next, and its own number."""
    half = tl.load(workspace)
    return workspace + HEADER + half * size, workspace + HEADER + (1 - half) * size, half


@jit
def empty(words, size, PROGRAMS: tl.constexpr):
    """Empty these words, of which each program takes some."""
    for first in range(tl.program_id(0) * BLOCK, size, PROGRAMS * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(words + at, tl.full([BLOCK], EMPTY, tl.int32), mask=at < size)


@jit
def fence(PROGRAMS: tl.constexpr):
    """Make what this program has stored visible to programs that receive what it sends from now on.

    And the other way round: let it see what the senders of numbers that it has received had stored.
    """
    if PROGRAMS > 1:
        tl.debug_barrier()
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; mov.b32 $0, 0;",
            "=r,r",
            [tl.arange(0, 128)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.debug_barrier()


@jit
def send(words, x, inside):
    bits = x.to(tl.int32, bitcast=True)
    tl.store(words, tl.where(bits == EMPTY, NAN, bits), mask=inside)


@jit
def receive(
    words, COUNT: tl.constexpr, SIZE: tl.constexpr, ASM: tl.constexpr, PACK: tl.constexpr, PROGRAMS: tl.constexpr
):  # fmt: skip
    """COUNT numbers, a multiple of four, in a tensor of SIZE; what is beyond COUNT is arbitrary.

    ASM: `reading`, for PACK addresses of a thread.
    """
    if PROGRAMS > 1:
        registers: tl.constexpr = "=f,=f,=f,=f," * PACK + "l" + ",l" * (PACK - 1)
        fourth = tl.minimum(tl.arange(0, SIZE // 4), COUNT // 4 - 1)
        address = (words + fourth * 4).to(tl.int64)
        a = fourth.to(tl.float32)
        b, c, d, more = a, a, a, tl.full([], 1, tl.int32)
        while (
            more > 0
        ):  # once: else Triton would read again for each layout in which the numbers are needed
            a, b, c, d = tl.inline_asm_elementwise(
                ASM, registers, [address], dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=False,
                pack=PACK,
            )  # fmt: skip
            more = tl.full([], 0, tl.int32)
        x = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [SIZE])
    else:
        x = tl.load(words + tl.minimum(tl.arange(0, SIZE), COUNT - 1)).to(tl.float32, bitcast=True)
    return x


@jit
def receive_sum(
    words, PARTS: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr, ASM: tl.constexpr, GROUP: tl.constexpr,
    PACK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Sums of PARTS numbers each, COUNT words apart; ASM adds GROUP of them."""
    x = receive(words, COUNT, SIZE, ASM, PACK, PROGRAMS)
    if PROGRAMS > 1:
        for part in tl.static_range(GROUP, PARTS, GROUP):
            x += receive(words + part * COUNT, COUNT, SIZE, ASM, PACK, PROGRAMS)
    else:
        for part in range(1, PARTS):
            x += receive(words + part * COUNT, COUNT, SIZE, ASM, PACK, PROGRAMS)
    return x


@jit
def receive_one(words, at, ASM: tl.constexpr, PROGRAMS: tl.constexpr):
    """The numbers sent to these words, few of them."""
    if PROGRAMS > 1:
        address = (words + at).to(tl.int64)
        x, more = at.to(tl.float32), tl.full([], 1, tl.int32)
        while more > 0:  # as in `receive`
            x = tl.inline_asm_elementwise(
                ASM, "=f,l", [address], dtype=tl.float32, is_pure=False, pack=1
            )
            more = tl.full([], 0, tl.int32)
    else:
        x = tl.load(words + at).to(tl.float32, bitcast=True)
    return x


@jit
def receive_two(words, at, SPACING: tl.constexpr, ASM: tl.constexpr, PROGRAMS: tl.constexpr):
    """Two numbers each, SPACING words apart."""
    if PROGRAMS > 1:
        address = (words + at).to(tl.int64)
        x, y, more = at.to(tl.float32), at.to(tl.float32), tl.full([], 1, tl.int32)
        while more > 0:  # as in `receive`
            x, y = tl.inline_asm_elementwise(
                ASM, "=f,=f,l", [address], dtype=(tl.float32, tl.float32), is_pure=False, pack=1
            )
            more = tl.full([], 0, tl.int32)
    else:
        x = receive_one(words, at, ASM, PROGRAMS)
        y = receive_one(words + SPACING, at, ASM, PROGRAMS)
    return x, y


@jit
def receive_three(words, at, SPACING: tl.constexpr, ASM: tl.constexpr, PROGRAMS: tl.constexpr):
    """Three numbers each, SPACING words apart."""
    if PROGRAMS > 1:
        address = (words + at).to(tl.int64)
        x, y, z, more = (
            at.to(tl.float32),
            at.to(tl.float32),
            at.to(tl.float32),
            tl.full([], 1, tl.int32),
        )
        while more > 0:  # as in `receive`
            x, y, z = tl.inline_asm_elementwise(
                ASM,
                "=f,=f,=f,l",
                [address],
                dtype=(tl.float32, tl.float32, tl.float32),
                is_pure=False,
                pack=1,
            )
            more = tl.full([], 0, tl.int32)
    else:
        x = receive_one(words, at, ASM, PROGRAMS)
        y = receive_one(words + SPACING, at, ASM, PROGRAMS)
        z = receive_one(words + 2 * SPACING, at, ASM, PROGRAMS)
    return x, y, z
