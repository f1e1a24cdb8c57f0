"""Triton kernels for what a beam search does in a step after the largest logits of each hypothesis are known.

In PyTorch that is dozens of kernels for few numbers, each of which takes some microseconds however little it does.
"""

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

MAX_CANDIDATES = 128  # of a slot: each is compared with each, in registers
COLUMNS = 64  # of the histories, which are reordered at a time


def beam_step(
    logits: Tensor, vocabulary: Tensor, normalizer: Tensor, total: Tensor, tokens: Tensor, log_p: Tensor,
    length: Tensor, prompt: Tensor, limit: Tensor, done: Tensor, ended_tokens: Tensor, ended_log_p: Tensor,
    ended_length: Tensor, ended_score: Tensor, penalties: Tensor, end: int, early_stopping: bool | str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Extend the hypotheses by one token each, in place. Returns the tokens and the parents, (B, K) each.

    `logits` are the largest of each hypothesis, `vocabulary` their token ids (both (B, K, count)), and `normalizer`
    the log-sum-exp of all; `penalties`, what a score of each length is divided by. No end token: −1.
    """
    batch, beams, count = logits.shape
    chosen, parents = torch.empty(2, batch, beams, dtype=torch.int64, device=logits.device)
    _beam_step[(batch,)](
        logits, vocabulary, normalizer, total, tokens, log_p, length, prompt, limit, done.view(torch.uint8),
        ended_tokens, ended_log_p, ended_length, ended_score, penalties, chosen, parents,
        beams, count, tokens.shape[2], end, STOP={False: 0, True: 1, "never": 2}[early_stopping],
        CANDIDATES=triton.next_power_of_2(beams * count), COUNT=triton.next_power_of_2(count),
        BEAMS=triton.next_power_of_2(beams), COLUMNS=COLUMNS, **launch_options(),
    )  # fmt: skip
    return chosen, parents


def follow(ancestors: Tensor, parents: Tensor, time: Tensor) -> None:
    """Let the ancestors (B, K, capacity) of each hypothesis be those of its parent, in the steps before `time`."""
    batch, beams, capacity = ancestors.shape
    _follow[(batch,)](
        ancestors, parents, time, beams, capacity, BEAMS=triton.next_power_of_2(beams), COLUMNS=COLUMNS,
        **launch_options(),
    )  # fmt: skip


@jit
def _order(score, N: tl.constexpr):
    """The rank of each score; of equal ones, the first comes first."""
    index = tl.arange(0, N)
    before = (score[None, :] > score[:, None]) | (
        (score[None, :] == score[:, None]) & (index[None, :] < index[:, None])
    )
    return tl.sum(before.to(tl.int32), 1)


@jit
def _ranked(x, order, N: tl.constexpr):
    """The first N of x in this order; 0 where none has that rank."""
    return tl.sum(tl.where(order[None, :] == tl.arange(0, N)[:, None], x[None, :], 0), 1)


@jit
def _beam_step(
    logits, vocabulary, normalizer, total, tokens, log_p, length, prompt, limit, done, ended_tokens, ended_log_p,
    ended_length, ended_score, penalties, chosen, parents, beams, count, max_length, end,
    STOP: tl.constexpr, CANDIDATES: tl.constexpr, COUNT: tl.constexpr, BEAMS: tl.constexpr, COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    launch_dependents(EARLY)
    wait(EARLY)
    slot = tl.program_id(0).to(tl.int64)
    finished, before = tl.load(done + slot) != 0, tl.load(length + slot)
    given, most = tl.load(prompt + slot), tl.load(limit + slot)
    now = before + tl.where(finished, 0, 1)
    last, position = now >= most, now - 1
    penalty = tl.load(penalties + tl.maximum(now - given, 1))

    # The best `count` extensions of all hypotheses, best first.
    c, n, k = tl.arange(0, CANDIDATES), tl.arange(0, COUNT), tl.arange(0, BEAMS)
    there, real = c < beams * count, k < beams
    each = slot * beams + c // count
    gain = tl.load(logits + slot * beams * count + c, mask=there, other=float("-inf"))
    gain -= tl.load(normalizer + each, mask=there, other=0.0)
    value = gain + tl.load(total + each, mask=there, other=0.0)
    order = _order(value, CANDIDATES)
    order = tl.where(there, order, CANDIDATES)
    value, gain = (
        tl.where(n < count, _ranked(value, order, COUNT), float("-inf")),
        _ranked(gain, order, COUNT),
    )
    token = _ranked(
        tl.load(vocabulary + slot * beams * count + c, mask=there, other=0), order, COUNT
    )
    parent = _ranked(c // count, order, COUNT)
    ends = last | ((token == end) & (before >= given))

    # The best of the hypotheses that ended before and those that end now.
    old = tl.load(ended_score + slot * beams + k, mask=real, other=float("-inf"))
    new = tl.where(ends & (n < beams), value / penalty, float("-inf"))
    old_order = _order(old, BEAMS) + tl.sum((new[None, :] > old[:, None]).to(tl.int32), 1)
    new_order = _order(new, COUNT) + tl.sum((old[None, :] >= new[:, None]).to(tl.int32), 1)
    old_order = tl.where(finished, k, old_order)
    new_order = tl.where(finished, BEAMS, new_order)
    is_new = _ranked(tl.full([COUNT], 1, tl.int32), new_order, BEAMS) > 0
    score = tl.where(is_new, _ranked(new, new_order, BEAMS), _ranked(old, old_order, BEAMS))
    score = tl.where(real, score, float("-inf"))
    kept = slot * beams + _ranked(k, old_order, BEAMS)
    kept_length = tl.load(ended_length + kept, mask=real, other=0)
    new_parent = slot * beams + _ranked(parent, new_order, BEAMS)
    new_token, new_gain = _ranked(token, new_order, BEAMS), _ranked(gain, new_order, BEAMS)

    # The best K of those that do not end.
    open_value = tl.where(ends, float("-inf"), value)
    order = _order(open_value, COUNT)
    next_total = tl.where(real, _ranked(open_value, order, BEAMS), float("-inf"))
    next_total = tl.where(
        (now <= given) & (next_total > float("-inf")), 0.0, next_total
    )  # prompts cost nothing
    next_token, next_gain, next_parent = (
        _ranked(token, order, BEAMS), _ranked(gain, order, BEAMS), _ranked(parent, order, BEAMS),
    )  # fmt: skip
    own, moved = slot * beams + k, slot * beams + next_parent

    for begin in range(0, now, COLUMNS):
        t = begin + tl.arange(0, COLUMNS)[None, :]
        inside, at_end = real[:, None] & (t < now), t == position
        from_open, from_new = moved[:, None] * max_length + t, new_parent[:, None] * max_length + t
        from_old = kept[:, None] * max_length + t
        are_new, are_old = inside & is_new[:, None], inside & (is_new == 0)[:, None]
        open_tokens = tl.load(tokens + from_open, mask=inside, other=0)
        open_log_p = tl.load(log_p + from_open, mask=inside, other=0.0)
        new_tokens = tl.load(tokens + from_new, mask=are_new, other=0)
        new_log_p = tl.load(log_p + from_new, mask=are_new, other=0.0)
        old_tokens = tl.load(ended_tokens + from_old, mask=are_old, other=0)
        old_log_p = tl.load(ended_log_p + from_old, mask=are_old, other=0.0)
        new_tokens = tl.where(at_end, new_token[:, None], new_tokens)
        new_log_p = tl.where(at_end, new_gain[:, None], new_log_p)
        tl.debug_barrier()  # all of these columns are loaded before they are overwritten
        to = own[:, None] * max_length + t
        tl.store(tokens + to, tl.where(at_end, next_token[:, None], open_tokens), mask=inside)
        tl.store(log_p + to, tl.where(at_end, next_gain[:, None], open_log_p), mask=inside)
        tl.store(ended_tokens + to, tl.where(is_new[:, None], new_tokens, old_tokens), mask=inside)
        tl.store(ended_log_p + to, tl.where(is_new[:, None], new_log_p, old_log_p), mask=inside)

    # Whether no open hypothesis would rank among those that have ended.
    worst = tl.min(tl.where(real, score, float("inf")), 0)
    if STOP == 1:
        full = worst > float("-inf")
    else:
        if STOP == 2:  # the longer, the better
            penalty = tl.load(penalties + tl.maximum(most - given, 1))
        full = tl.max(next_total, 0) / penalty <= worst
    tl.debug_barrier()
    tl.store(total + own, next_total, mask=real)
    tl.store(ended_score + own, score, mask=real)
    tl.store(ended_length + own, tl.where(is_new, now, kept_length), mask=real)
    tl.store(chosen + own, next_token, mask=real)
    tl.store(parents + own, next_parent.to(tl.int64), mask=real)
    tl.store(length + slot, now)
    tl.store(done + slot, (finished | last | full).to(tl.uint8))


@jit
def _follow(
    ancestors, parents, time, beams, capacity, BEAMS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    launch_dependents(EARLY)
    wait(EARLY)
    slot, k = tl.program_id(0).to(tl.int64), tl.arange(0, BEAMS)
    own = slot * beams + k
    parent = slot * beams + tl.load(parents + own, mask=k < beams, other=0)
    now = tl.load(time)
    for begin in range(0, now, COLUMNS):
        t = begin + tl.arange(0, COLUMNS)[None, :]
        inside = (k < beams)[:, None] & (t < now)
        moved = tl.load(ancestors + parent[:, None] * capacity + t, mask=inside, other=0)
        tl.debug_barrier()  # all of these columns are loaded before they are overwritten
        tl.store(ancestors + own[:, None] * capacity + t, moved, mask=inside)
