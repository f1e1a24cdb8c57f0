"""What a search does with the logits of a step, and how changed weights are noticed, as kernels of a GPU."""

from typing import no_type_check

import torch
import triton
import triton.language as tl

from regard.core.shapes import Tensor
from regard.kernels.decode.programmatic_launch import early, release, wait

HIGH = 64  # numbers of a pile, whose largest is found first


def speak(
    scores: Tensor, said: Tensor, length: Tensor, limit: Tensor, over: Tensor, done: Tensor, end: int, pad: int
) -> Tensor:
    """The likeliest token of each row, written down: all that a greedy search does in a step. No end: −1."""
    rows, _, words = scores.shape
    tokens = torch.empty(rows, 1, dtype=torch.int64, device=scores.device)
    _speak[(rows,)](
        scores, said, length, limit, over.view(torch.uint8), done.view(torch.uint8), tokens, scores.stride(0),
        said.shape[2], words, end, pad, WORDS=min(4096, triton.next_power_of_2(words)), num_warps=8, **early(),
    )  # fmt: skip
    return tokens


def log_sum_exp(scores: Tensor) -> Tensor:
    batch, beams, words = scores.shape
    out = torch.empty(batch, beams, dtype=torch.float32, device=scores.device)
    _log_sum_exp[(batch * beams,)](
        scores, out, scores.stride(1), words, WORDS=min(4096, triton.next_power_of_2(words)), num_warps=8, **early()
    )
    return out


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest numbers of each row, in order and in float32, and where they are; few of many."""
    batch, beams, words = scores.shape
    values = torch.empty(batch, beams, count, dtype=torch.float32, device=scores.device)
    where = torch.empty(batch, beams, count, dtype=torch.int64, device=scores.device)
    piles = triton.cdiv(words, HIGH)
    _best[(batch * beams,)](
        scores, values, where, scores.stride(1), words, piles, count,
        HIGH=HIGH, PILES=triton.next_power_of_2(piles), COUNT=triton.next_power_of_2(count),
        num_warps=1 if piles <= 256 else 4, **early(),
    )  # fmt: skip
    return values, where


def prints(where: Tensor, sizes: Tensor) -> Tensor:
    """A number for each of some tensors, another once many of its numbers have changed: of a part of them, by address.

    Sizes count pieces of four bytes.
    """
    found = torch.empty_like(where)
    _prints[(len(where),)](where, sizes, found, PIECES=1024)
    return found


@triton.jit
@no_type_check
def _speak(
    scores, said, length, limit, over, done, tokens, by_row, room, words, end, pad,
    WORDS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    release(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    best = tl.full([1], float("-inf"), tl.float32)
    token = tl.full([1], 0, tl.int64)
    for begin in range(0, words, WORDS):
        word = begin + tl.arange(0, WORDS)
        score = tl.load(scores + row * by_row + word, mask=word < words, other=float("-inf")).to(tl.float32)
        higher, at = tl.max(score, 0, return_indices=True)
        token = tl.where(higher > best, begin + at, token)
        best = tl.maximum(best, higher)
    one = tl.arange(0, 1)
    ended = tl.load(over + row + one) != 0
    still = tl.load(done + row + one) == 0
    token = tl.where(ended, pad, token)
    before = tl.load(length + row + one)
    tl.store(said + row * room + before, token)
    now = before + still.to(tl.int64)
    ended = ended | (token == end)
    tl.store(length + row + one, now)
    tl.store(over + row + one, ended.to(tl.uint8))
    tl.store(done + row + one, ((still == 0) | ended | (now >= tl.load(limit + row + one))).to(tl.uint8))
    tl.store(tokens + row + one, token)


@triton.jit
@no_type_check
def _log_sum_exp(scores, out, by_row, words, WORDS: tl.constexpr, EARLY: tl.constexpr):
    release(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    most = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    for begin in range(0, words, WORDS):
        word = begin + tl.arange(0, WORDS)
        score = tl.load(scores + row * by_row + word, mask=word < words, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(score, 0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(score - higher), 0)
        most = higher
    tl.store(out + row + tl.arange(0, 1), most + tl.log(total))


@triton.jit
@no_type_check
def _best(
    scores, values, where, by_row, words, piles, count,
    HIGH: tl.constexpr, PILES: tl.constexpr, COUNT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Numbers lie in piles, `piles` apart. Take the largest top, and look for the next in its pile alone; and again."""
    release(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    mine = scores + row * by_row
    pile, high, turn = tl.arange(0, PILES), tl.arange(0, HIGH), tl.arange(0, COUNT)
    tops = tl.full([PILES], float("-inf"), tl.float32)
    for level in range(0, HIGH):
        word = level * piles + pile
        here = tl.load(mine + word, mask=(pile < piles) & (word < words), other=float("-inf"))
        tops = tl.maximum(tops, here.to(tl.float32))
    taken = tl.full([COUNT], -1, tl.int32)
    found = tl.full([COUNT], float("-inf"), tl.float32)
    for number in range(0, count):
        _, highest = tl.max(tops, 0, return_indices=True)
        word = high * piles + highest
        score = tl.load(mine + word, mask=word < words, other=float("-inf")).to(tl.float32)
        gone = tl.max((word[:, None] == taken[None, :]).to(tl.int32), 1) > 0
        score = tl.where(gone, float("-inf"), score)
        largest, at = tl.max(score, 0, return_indices=True)
        taken = tl.where(turn == number, at * piles + highest, taken)
        found = tl.where(turn == number, largest, found)
        tops = tl.where(pile == highest, tl.max(tl.where(high == at, float("-inf"), score), 0), tops)
    there = turn < count
    tl.store(values + row * count + turn, found, mask=there)
    tl.store(where + row * count + turn, taken.to(tl.int64), mask=there)


@triton.jit
@no_type_check
def _prints(where, sizes, out, PIECES: tl.constexpr):
    which = tl.program_id(0)
    begin = tl.load(where + which).to(tl.pointer_type(tl.int32))
    size = tl.load(sizes + which)
    place = tl.arange(0, PIECES).to(tl.int64)
    apart = tl.maximum(size // (4 * PIECES), 1)
    total = tl.zeros([PIECES], dtype=tl.int64)
    for part in range(0, 4):
        at = (part * PIECES + place) * apart
        piece = tl.load(begin + at, mask=at < size, other=0).to(tl.int64)
        total = total * 31 + piece * (2 * place + 1)
    tl.store(out + which, tl.sum(total, 0))
