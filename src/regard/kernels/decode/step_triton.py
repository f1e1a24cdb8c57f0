"""What `single` does, as kernels of a GPU: each is one launch where PyTorch takes from two to twenty.

With few rows a step waits for kernels to begin and end. So norms, sums and products are one, where PyTorch's products
are faster with many; and kernels begin early. Sums are in float32, whatever the numbers are stored in.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from regard.core.shapes import Tensor
from regard.kernels.decode.programmatic_launch import early, release, wait
from regard.kernels.decode.sampling_triton import best, log_sum_exp, prints, speak

__all__ = ["best", "enter", "log_sum_exp", "look", "look_back", "normed", "onto", "prints", "speak"]

BACK, KEYS = 16, 32  # places that a program looks at together, of its own sequence and of a source
ROWS, COLUMNS = 16, 64  # that a program makes of a product by hand
FEW = 96  # rows at most, for such products
WIDEST, MOST = 1024, 512  # numbers of a row under a norm, and of one as it is, that a program holds
HALF = (torch.bfloat16, torch.float16)


def enter(tokens: Tensor, table: Tensor, scale: float, places: Tensor | None, first: Tensor, time: Tensor) -> Tensor:
    rows, width = len(tokens), table.shape[1]
    x = torch.empty(rows, width, dtype=torch.float32, device=table.device)
    _enter[(rows,)](
        tokens, table, x if places is None else places, first, time, x, scale, rows // len(first),
        0 if places is None else len(places), width, WIDE=triton.next_power_of_2(width), **early(),
    )  # fmt: skip
    return x


def normed(x: Tensor, added: Tensor | None, norm: Any, product: Any, last: bool, relu: bool) -> tuple[Tensor, Tensor]:
    (rows, width), outputs = x.shape, len(product.weight)
    weight, bias, epsilon, kind = _norm(norm, x)
    plus = x if added is None else added
    total = x if added is None and not last else torch.empty_like(x)
    kind |= {"LAST": last, "ADD": added is not None, "WIDE": triton.next_power_of_2(width), **early()}
    if _by_hand(x, product):
        out = product.weight.new_empty(rows, outputs)
        _normed[(triton.cdiv(rows, ROWS), triton.cdiv(outputs, COLUMNS))](
            x, plus, weight, bias, product.weight, product.bias, total, out, epsilon, rows, width, outputs,
            RELU=relu, ROWS=ROWS, COLUMNS=COLUMNS, **kind,
        )  # fmt: skip
        return out, total
    h = product.weight.new_empty(rows, width)
    _onward[(rows,)](x, plus, weight, bias, total, h, epsilon, width, **kind)
    if relu:
        return torch._addmm_activation(product.bias, h, product.weight.T), total
    return F.linear(h, product.weight, product.bias), total


def onto(x: Tensor, seen: Tensor, product: Any) -> tuple[Tensor, Tensor | None]:
    (rows, width), inputs = x.shape, seen.shape[1]
    if inputs > MOST or not _by_hand(x, product):
        return x, F.linear(seen, product.weight, product.bias)
    out = torch.empty_like(x)
    _onto[(triton.cdiv(rows, ROWS), triton.cdiv(width, 16))](
        x, seen, product.weight, product.bias, out, rows, width, inputs,
        ROWS=ROWS, COLUMNS=16, INPUTS=triton.next_power_of_2(inputs), num_warps=8, **early(),
    )  # fmt: skip
    return out, None


def look_back(
    asked: Tensor, cache: Tensor, parents: Tensor, first: Tensor, time: Tensor, heads: int, scale: float
) -> Tensor:
    rows, (_, capacity, beams, _, width) = len(asked), cache.shape
    out = asked.new_empty(rows, width)
    wide = width // heads
    _look_back[(rows, heads)](
        asked, cache, parents, first, time, out, scale, capacity, beams, width, wide,
        SEVERAL=beams > 1, KEYS=BACK, WIDE=triton.next_power_of_2(wide), num_warps=1, **early(),
    )  # fmt: skip
    return out


def look(asked: Tensor, source: Tensor, mask: Tensor, heads: int, scale: float) -> Tensor:
    rows, width = asked.shape
    batch, length = mask.shape
    out = torch.empty_like(asked)
    wide, beams = width // heads, rows // batch
    if beams == 1:
        _look[(rows, heads)](
            asked, source, mask.view(torch.uint8), out, scale, length, *source.stride()[:3], width, wide,
            KEYS=KEYS, WIDE=triton.next_power_of_2(wide), num_warps=1, **early(),
        )  # fmt: skip
    else:
        _look_together[(batch, heads)](
            asked, source, mask.view(torch.uint8), out, scale, beams, length, *source.stride()[:3], width, wide,
            BEAMS=max(16, triton.next_power_of_2(beams)), KEYS=KEYS, WIDE=max(16, triton.next_power_of_2(wide)),
            num_warps=1, **early(),
        )  # fmt: skip
    return out


def _by_hand(x: Tensor, product: Any) -> bool:
    return len(x) <= FEW and x.shape[1] <= WIDEST and product.weight.dtype in HALF


def _norm(norm: Any, anything: Tensor) -> tuple[Tensor, Tensor, float, dict[str, Any]]:
    """As kernels take it. Kind 0 is none, 1 one without a shift, 2 one that also centres."""
    if norm is None:
        return anything, anything, 0.0, {"KIND": 0}
    if norm.bias is None:
        return norm.weight, anything, norm.epsilon, {"KIND": 1}
    return norm.weight, norm.bias, norm.epsilon, {"KIND": 2}


@triton.jit
@no_type_check
def _enter(tokens, table, places, first, time, x, scale, beams, limit, width, WIDE: tl.constexpr, EARLY: tl.constexpr):
    release(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDE)
    there = d < width
    token = tl.load(tokens + row)
    here = tl.load(table + token * width + d, mask=there, other=0.0).to(tl.float32) * scale
    if limit > 0:
        place = tl.minimum(tl.load(time) - tl.load(first + row // beams), limit - 1)
        here += tl.load(places + place * width + d, mask=there, other=0.0)
    tl.store(x + row * width + d, here, mask=there)


@triton.jit
@no_type_check
def _even(here, weight, bias, epsilon, width, d, KIND: tl.constexpr):
    """Rows under their norm; zeros beyond the width stay zeros."""
    there = (d < width)[None, :]
    even = here
    if KIND == 2:
        even = tl.where(there, here - (tl.sum(here, 1) / width)[:, None], 0.0)
    if KIND > 0:
        spread = tl.sqrt(tl.sum(even * even, 1) / width + epsilon)
        even = even / spread[:, None] * tl.load(weight + d, mask=d < width, other=0.0)[None, :]
    if KIND == 2:
        even += tl.load(bias + d, mask=d < width, other=0.0)[None, :]
    return even


@triton.jit
@no_type_check
def _onward(
    x, added, weight, bias, total, out, epsilon, width,
    KIND: tl.constexpr, LAST: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    release(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    d = tl.arange(0, WIDE)
    at = (row * width)[:, None] + d[None, :]
    there = (d < width)[None, :]
    here = tl.load(x + at, mask=there, other=0.0)
    if ADD:
        here += tl.load(added + at, mask=there, other=0.0).to(tl.float32)
    even = _even(here, weight, bias, epsilon, width, d, KIND)
    if LAST or ADD:
        tl.store(total + at, even if LAST else here, mask=there)
    tl.store(out + at, even.to(out.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def _normed(
    x, added, weight, bias, matrix, shift, total, out, epsilon, rows, width, outputs,
    KIND: tl.constexpr, LAST: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    release(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    d = tl.arange(0, WIDE)
    wide = (d < width)[None, :]
    lines = tl.load(
        matrix + column[:, None].to(tl.int64) * width + d[None, :], mask=(column < outputs)[:, None] & wide, other=0.0
    )
    at = row[:, None] * width + d[None, :]
    mine = (row < rows)[:, None] & wide
    wait(EARLY)
    here = tl.load(x + at, mask=mine, other=0.0)
    if ADD:
        here += tl.load(added + at, mask=mine, other=0.0).to(tl.float32)
    even = _even(here, weight, bias, epsilon, width, d, KIND)
    if LAST or ADD:
        tl.store(total + at, even if LAST else here, mask=mine & (tl.program_id(1) == 0))
    found = tl.dot(even.to(lines.dtype), tl.trans(lines))
    found += tl.load(shift + column, mask=column < outputs, other=0.0)[None, :].to(tl.float32)
    if RELU:
        found = tl.maximum(found, 0.0)
    where = out + row[:, None].to(tl.int64) * outputs + column[None, :]
    tl.store(where, found.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < outputs)[None, :])


@triton.jit
@no_type_check
def _onto(
    x, seen, matrix, shift, out, rows, width, inputs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INPUTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    release(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, INPUTS)
    inside, mine = (k < inputs)[None, :], (row < rows)[:, None]
    lines = tl.load(matrix + column[:, None] * inputs + k[None, :], mask=(column < width)[:, None] & inside, other=0.0)
    wait(EARLY)
    given = tl.load(seen + row[:, None] * inputs + k[None, :], mask=mine & inside, other=0.0)
    found = tl.dot(given, tl.trans(lines))
    found += tl.load(shift + column, mask=column < width, other=0.0)[None, :].to(tl.float32)
    at = row[:, None] * width + column[None, :]
    both = mine & (column < width)[None, :]
    tl.store(out + at, found + tl.load(x + at, mask=both, other=0.0), mask=both)


@triton.jit
@no_type_check
def _look_back(
    asked, cache, parents, first, time, out, scale, capacity, beams, width, wide,
    SEVERAL: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    release(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sentence, beam = row // beams, row % beams
    d = tl.arange(0, WIDE)
    there = d < wide
    most = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    seen = tl.zeros([WIDE], dtype=tl.float32)
    wait(EARLY)
    now, since = tl.load(time), tl.load(first + sentence)
    mine = asked + row * 3 * width + head * wide + d
    query = tl.load(mine, mask=there, other=0.0).to(tl.float32) * scale
    key = tl.load(mine + width, mask=there, other=0.0)
    value = tl.load(mine + 2 * width, mask=there, other=0.0)
    for begin in range(since, now, KEYS):
        t = begin + tl.arange(0, KEYS)
        before = t < now
        at = (sentence * capacity + t) * beams
        if SEVERAL:
            at += tl.load(parents + row * capacity + t, mask=before, other=0)
        both = before[:, None] & there[None, :]
        where = cache + (at * 2 * width + head * wide)[:, None] + d[None, :]
        keys = tl.load(where, mask=both, other=0.0).to(tl.float32)
        values = tl.load(where + width, mask=both, other=0.0).to(tl.float32)
        score = tl.where(before, tl.sum(keys * query[None, :], 1), float("-inf"))
        higher = tl.maximum(most, tl.max(score))
        shrink = tl.exp(most - higher)
        weight = tl.exp(score - higher)
        total = total * shrink + tl.sum(weight)
        seen = seen * shrink + tl.sum(weight[:, None] * values, 0)
        most = higher
    score = tl.sum(query * key.to(tl.float32))  # the place where it stands, which it sees always
    higher = tl.maximum(most, score)
    shrink, weight = tl.exp(most - higher), tl.exp(score - higher)
    seen = (seen * shrink + value.to(tl.float32) * weight) / (total * shrink + weight)
    tl.store(out + row * width + head * wide + d, seen.to(out.dtype.element_ty), mask=there)
    kept = cache + ((sentence * capacity + now) * beams + beam) * 2 * width + head * wide + d
    tl.store(kept, key, mask=there)
    tl.store(kept + width, value, mask=there)


@triton.jit
@no_type_check
def _look(
    asked, source, visible, out, scale, length, by_sentence, by_place, by_role, width, wide,
    KEYS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    release(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, WIDE)
    there = d < wide
    most = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    seen = tl.zeros([WIDE], dtype=tl.float32)
    here = source + row * by_sentence + head * wide
    may, keys, values = _known(here, visible + row * length, 0, length, by_place, by_role, d, there, KEYS)
    wait(EARLY)
    query = tl.load(asked + row * width + head * wide + d, mask=there, other=0.0).to(tl.float32) * scale
    for begin in range(0, length, KEYS):
        score = tl.where(may, tl.sum(keys.to(tl.float32) * query[None, :], 1), float("-inf"))
        higher = tl.maximum(most, tl.max(score))
        from_here = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
        shrink = tl.exp(most - from_here)
        weight = tl.exp(score - from_here)
        total = total * shrink + tl.sum(weight)
        seen = seen * shrink + tl.sum(weight[:, None] * values.to(tl.float32), 0)
        most = higher
        may, keys, values = _known(
            here, visible + row * length, begin + KEYS, length, by_place, by_role, d, there, KEYS
        )
    seen = seen / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * width + head * wide + d, seen.to(out.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def _known(here, visible, begin, length, by_place, by_role, d, there, KEYS: tl.constexpr):
    """What may be seen of the next places of a source, their keys and their values."""
    place = begin + tl.arange(0, KEYS)
    may = tl.load(visible + place, mask=place < length, other=0) != 0
    both = may[:, None] & there[None, :]
    where = here + (place * by_place)[:, None] + d[None, :]
    return may, tl.load(where, mask=both, other=0.0), tl.load(where + by_role, mask=both, other=0.0)


@triton.jit
@no_type_check
def _look_together(
    asked, source, visible, out, scale, beams, length, by_sentence, by_place, by_role, width, wide,
    BEAMS: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `_look`, for all hypotheses of a sentence."""
    release(EARLY)
    sentence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    k, d = tl.arange(0, BEAMS), tl.arange(0, WIDE)
    there = d < wide
    at = ((sentence * beams + k) * width)[:, None] + head * wide + d[None, :]
    mine = (k < beams)[:, None] & there[None, :]
    most = tl.full([BEAMS], float("-inf"), tl.float32)
    total = tl.zeros([BEAMS], dtype=tl.float32)
    seen = tl.zeros([BEAMS, WIDE], dtype=tl.float32)
    here, visible = source + sentence * by_sentence + head * wide, visible + sentence * length
    may, keys, values = _known(here, visible, 0, length, by_place, by_role, d, there, KEYS)
    wait(EARLY)
    query = tl.load(asked + at, mask=mine, other=0.0)
    for begin in range(0, length, KEYS):
        score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        score = tl.where(may[None, :], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        from_here = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
        shrink = tl.exp(most - from_here)
        weight = tl.exp(score - from_here[:, None])
        total = total * shrink + tl.sum(weight, 1)
        seen = seen * shrink[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
        most = higher
        may, keys, values = _known(here, visible, begin + KEYS, length, by_place, by_role, d, there, KEYS)
    seen = seen / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + at, seen.to(out.dtype.element_ty), mask=mine)
