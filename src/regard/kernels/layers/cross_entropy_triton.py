"""Triton kernels of `cross_entropy`: the loss of each row of logits, which are overwritten by their gradient."""

import triton.language as tl

from regard.kernels.jit_triton import jit


@jit
def log_sum_exp(logits, size, U: tl.constexpr, C: tl.constexpr):
    """Log-sum-exp and sum of one row, computed online over tiles of U × C logits.

    The maximum of each column of U is taken first: one exponential per logit, and one to rescale the running total.
    """
    peak = tl.full((C,), float("-inf"), tl.float32)
    total = tl.zeros((C,), tl.float32)
    total_logit = tl.zeros((C,), tl.float32)
    for start in range(0, size, U * C):
        columns = start + tl.arange(0, U)[:, None] * C + tl.arange(0, C)[None, :]
        there = columns < size
        z = tl.load(logits + columns, mask=there, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(z, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(z - base[None, :]), 0)
        peak = higher
        total_logit += tl.sum(tl.where(there, z, 0.0), 0)
    highest = tl.max(peak, 0)
    return highest + tl.log(tl.sum(total * tl.exp(peak - highest), 0)), tl.sum(total_logit, 0)


@jit
def cross_entropy(logits, targets, loss, nll, smoothing, size, U: tl.constexpr, C: tl.constexpr):
    """Cross-entropy of one row with label smoothing, and without (nll); the gradient overwrites the logits.

    All are zero where the target is negative (ignored).
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * size
    target = tl.load(targets + row)
    lse = 0.0
    total_logit = 0.0
    logit = 0.0
    if target >= 0:
        logit = tl.load(logits + target).to(
            tl.float32
        )  # loaded before the reductions, which synchronize the threads
        lse, total_logit = log_sum_exp(logits, size, U, C)
    tl.store(loss + row, lse - (1 - smoothing) * logit - smoothing * total_logit / size)
    tl.store(nll + row, lse - logit)
    for start in range(0, size, U * C):
        columns = start + tl.arange(0, U)[:, None] * C + tl.arange(0, C)[None, :]
        there = columns < size
        z = tl.load(logits + columns, mask=there, other=0.0).to(tl.float32)
        change = (
            tl.exp(z - lse) - smoothing / size - tl.where(columns == target, 1 - smoothing, 0.0)
        )
        change = tl.where(target >= 0, change, 0.0)
        tl.store(logits + columns, change.to(logits.dtype.element_ty), mask=there)


@jit
def r_drop_cross_entropy(
    logits, targets, loss, nll, smoothing, r_drop, size, U: tl.constexpr, C: tl.constexpr
):
    """As `cross_entropy`, of two rows for each target, plus `r_drop` times the KL divergence of each from the other.

    R-Drop: https://arxiv.org/abs/2106.14448
    """
    pair = tl.program_id(0).to(tl.int64)
    one = logits + 2 * pair * size
    other = one + size
    target = tl.load(targets + 2 * pair)
    lse_one = 0.0
    lse_other = 0.0
    loss_one = 0.0
    loss_other = 0.0
    kl_one = 0.0
    kl_other = 0.0
    logit_one = 0.0
    logit_other = 0.0
    if target >= 0:
        logit_one = tl.load(one + target).to(tl.float32)
        logit_other = tl.load(other + target).to(tl.float32)
        lse_one, total_logit_one = log_sum_exp(one, size, U, C)
        lse_other, total_logit_other = log_sum_exp(other, size, U, C)
        loss_one = lse_one - (1 - smoothing) * logit_one - smoothing * total_logit_one / size
        loss_other = (
            lse_other - (1 - smoothing) * logit_other - smoothing * total_logit_other / size
        )
        sum_one = tl.zeros((C,), tl.float32)
        sum_other = tl.zeros((C,), tl.float32)
        for start in range(0, size, C):
            columns = start + tl.arange(0, C)
            there = columns < size
            a = tl.load(one + columns, mask=there, other=0.0).to(tl.float32) - lse_one
            b = tl.load(other + columns, mask=there, other=0.0).to(tl.float32) - lse_other
            sum_one += tl.where(there, tl.exp(a) * (a - b), 0.0)
            sum_other += tl.where(there, tl.exp(b) * (b - a), 0.0)
        kl_one = tl.sum(sum_one, 0)
        kl_other = tl.sum(sum_other, 0)
    tl.store(loss + 2 * pair, loss_one + r_drop * kl_one)
    tl.store(loss + 2 * pair + 1, loss_other + r_drop * kl_other)
    tl.store(nll + 2 * pair, lse_one - logit_one)
    tl.store(nll + 2 * pair + 1, lse_other - logit_other)
    for start in range(0, size, C):
        columns = start + tl.arange(0, C)
        there = columns < size
        a = tl.load(one + columns, mask=there, other=0.0).to(tl.float32) - lse_one
        b = tl.load(other + columns, mask=there, other=0.0).to(tl.float32) - lse_other
        p = tl.exp(a)
        q = tl.exp(b)
        smoothed = smoothing / size + tl.where(columns == target, 1 - smoothing, 0.0)
        change = p - smoothed + r_drop * (p * (a - b - kl_one + 1) - q)
        tl.store(
            one + columns,
            tl.where(target >= 0, change, 0.0).to(logits.dtype.element_ty),
            mask=there,
        )
        change = q - smoothed + r_drop * (q * (b - a - kl_other + 1) - p)
        tl.store(
            other + columns,
            tl.where(target >= 0, change, 0.0).to(logits.dtype.element_ty),
            mask=there,
        )
