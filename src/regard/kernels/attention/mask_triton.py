"""Triton twin of `mask`: the attention mask of a tile of scores."""

import triton.language as tl

from regard.kernels.jit_triton import jit


@jit
def visible(
    allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead,
    MASKED: tl.constexpr, BANDED: tl.constexpr,
):  # fmt: skip
    """Which of these rows (R,) may attend to which of these keys (C,): `AttentionMask.tile`."""
    row = rows[:, None]
    key = keys[None, :]
    may = (row < n) & (key < m)
    if BANDED:
        position = row + (m - n)
        may = may & (key >= position - behind) & (key <= position + ahead)
    if MASKED:
        start = allowed + (item // heads) * b_step + (item % heads) * h_step
        may = may & (
            tl.load(start + row.to(tl.int64) * n_step + key * m_step, mask=may, other=0) != 0
        )
    return may
