"""Triton kernels for the logits of a decoding step (greedy step, log-sum-exp, top-k) and for weight fingerprints."""

import torch
import triton
import triton.language as tl

from regard.core.shapes import Tensor
from regard.generation.engines.cuda.kernels.programmatic_launch_triton import (
    launch_dependents,
    launch_options,
    wait,
)
from regard.kernels.jit_triton import jit

DEPTH = 64  # scores of a column, whose maximum is kept
AT_ONCE = 4096  # scores that a warp reads at a time


def greedy_step(
    scores: Tensor, generated: Tensor, length: Tensor, prompt: Tensor, limit: Tensor, over: Tensor, done: Tensor,
    end: int, pad: int,
) -> Tensor:  # fmt: skip
    """All that greedy search does in a step: argmax, append, and update of lengths and flags. No end token: −1.

    Tokens of a prompt, which is `prompt` tokens long, end nothing.
    """
    rows, _, vocab = scores.shape
    tokens = torch.empty(rows, 1, dtype=torch.int64, device=scores.device)
    _greedy_step[(rows,)](
        scores, generated, length, prompt, limit, over.view(torch.uint8), done.view(torch.uint8), tokens,
        scores.stride(0), generated.shape[2], vocab, end, pad, BLOCK=_block(vocab), num_warps=8, **launch_options(),
    )  # fmt: skip
    return tokens


def log_sum_exp(scores: Tensor) -> Tensor:
    batch, beams, vocab = scores.shape
    out = torch.empty(batch, beams, dtype=torch.float32, device=scores.device)
    constants = {"BLOCK": _block(vocab), "num_warps": 8, **launch_options()}
    _log_sum_exp[(batch * beams,)](scores, out, scores.stride(1), vocab, **constants)
    return out


def _block(vocab: int) -> int:
    return min(4096, 1 << (vocab - 1).bit_length())


def top_k(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores of each row, sorted, in float32, and their indices."""
    batch, beams, vocab = scores.shape
    values = torch.empty(batch, beams, count, dtype=torch.float32, device=scores.device)
    where = torch.empty(batch, beams, count, dtype=torch.int64, device=scores.device)
    columns = triton.cdiv(vocab, 16 * DEPTH) * 16  # so that Triton reads several scores at a time
    padded, warps = triton.next_power_of_2(columns), 1 if columns <= 256 else 4
    _top_k[(batch * beams,)](
        scores, values, where, scores.stride(1), vocab, columns, count,
        DEPTH=DEPTH, LEVELS=max(1, min(DEPTH, AT_ONCE * warps // padded)), COLUMNS=padded,
        COUNT=triton.next_power_of_2(count), num_warps=warps, **launch_options(),
    )  # fmt: skip
    return values, where


def fingerprints(addresses: Tensor, sizes: Tensor) -> Tensor:
    """A hash of each tensor, of a sample of its elements, given addresses and sizes in units of four bytes."""
    hashes = torch.empty_like(addresses)
    _fingerprints[(len(addresses),)](addresses, sizes, hashes, BLOCK=1024)
    return hashes


@jit
def _greedy_step(
    scores, generated, length, prompt, limit, over, done, tokens, row_stride, max_length, vocab, end, pad,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    peak = tl.full([1], float("-inf"), tl.float32)
    token = tl.full([1], 0, tl.int64)
    for begin in range(0, vocab, BLOCK):
        token_id = begin + tl.arange(0, BLOCK)
        score = tl.load(
            scores + row * row_stride + token_id, mask=token_id < vocab, other=float("-inf")
        ).to(tl.float32)
        higher, at = tl.max(score, 0, return_indices=True)
        token = tl.where(higher > peak, begin + at, token)
        peak = tl.maximum(peak, higher)
    one = tl.arange(0, 1)
    ended = tl.load(over + row + one) != 0
    running = tl.load(done + row + one) == 0
    token = tl.where(ended, pad, token)
    before = tl.load(length + row + one)
    tl.store(generated + row * max_length + before, token)
    now = before + running.to(tl.int64)
    ended = ended | ((token == end) & (before >= tl.load(prompt + row + one)))
    tl.store(length + row + one, now)
    tl.store(over + row + one, ended.to(tl.uint8))
    tl.store(
        done + row + one,
        ((running == 0) | ended | (now >= tl.load(limit + row + one))).to(tl.uint8),
    )
    tl.store(tokens + row + one, token)


@jit
def _log_sum_exp(scores, out, row_stride, vocab, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    peak = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    for begin in range(0, vocab, BLOCK):
        token_id = begin + tl.arange(0, BLOCK)
        score = tl.load(
            scores + row * row_stride + token_id, mask=token_id < vocab, other=float("-inf")
        ).to(tl.float32)
        higher = tl.maximum(peak, tl.max(score, 0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(score - higher), 0)
        peak = higher
    tl.store(out + row + tl.arange(0, 1), peak + tl.log(total))


@jit
def _top_k(
    scores, values, where, row_stride, vocab, columns, count,
    DEPTH: tl.constexpr, LEVELS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Scores form columns of DEPTH rows. The largest scores are in the columns with the largest maxima."""
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    mine = scores + row * row_stride
    column, depth, rank = tl.arange(0, COLUMNS), tl.arange(0, DEPTH), tl.arange(0, COUNT)
    maxima = tl.full([COLUMNS], float("-inf"), tl.float32)
    for first in range(0, DEPTH, LEVELS):
        token_id = (first + tl.arange(0, LEVELS))[:, None] * columns + column[None, :]
        here = tl.load(
            mine + token_id,
            mask=(column < columns)[None, :] & (token_id < vocab),
            other=float("-inf"),
        )
        maxima = tl.maximum(maxima, tl.max(here.to(tl.float32), 0))
    best_columns = tl.full([COUNT], 0, tl.int32)
    for number in range(0, count):
        _, highest = tl.max(maxima, 0, return_indices=True)
        best_columns = tl.where(rank == number, highest, best_columns)
        maxima = tl.where(column == highest, float("-inf"), maxima)
    token_id = depth[None, :] * columns + best_columns[:, None]
    inside = (rank < count)[:, None] & (token_id < vocab)
    score = tl.load(mine + token_id, mask=inside, other=float("-inf")).to(tl.float32)
    chosen = tl.full([COUNT], 0, tl.int32)
    best_scores = tl.full([COUNT], float("-inf"), tl.float32)
    for number in range(0, count):
        largest = tl.max(score)
        token = tl.min(tl.where((score == largest) & inside, token_id, DEPTH * columns))
        chosen = tl.where(rank == number, tl.minimum(token, vocab - 1), chosen)
        best_scores = tl.where(rank == number, largest, best_scores)
        inside = inside & (token_id != token)  # else one without probability would be chosen again
        score = tl.where(inside, score, float("-inf"))
    there = rank < count
    tl.store(values + row * count + rank, best_scores, mask=there)
    tl.store(where + row * count + rank, chosen.to(tl.int64), mask=there)


@jit
def _fingerprints(addresses, sizes, out, BLOCK: tl.constexpr):
    which = tl.program_id(0)
    begin = tl.load(addresses + which).to(tl.pointer_type(tl.int32))
    size = tl.load(sizes + which)
    index = tl.arange(0, BLOCK).to(tl.int64)
    stride = tl.maximum(size // (4 * BLOCK), 1)
    total = tl.zeros([BLOCK], dtype=tl.int64)
    for part in range(0, 4):
        at = (part * BLOCK + index) * stride
        element = tl.load(begin + at, mask=at < size, other=0).to(tl.int64)
        total = total * 31 + element * (2 * index + 1)
    tl.store(out + which, tl.sum(total, 0))
