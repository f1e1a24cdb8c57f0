"""The largest few of many numbers."""

import torch

from regard.core.shapes import Float, Int, Tensor

BLOCK = 64  # numbers whose largest is found first; of as many, the largest few lie in the few best blocks


def top(scores: Float[Tensor, "B N"], count: int) -> tuple[Float[Tensor, "B count"], Int[Tensor, "B count"]]:
    """The largest numbers of each row, in order, and where they are."""
    return top_sums(scores[:, None], torch.zeros(len(scores), 1, device=scores.device), count)


def top_sums(
    scores: Float[Tensor, "B K N"], more: Float[Tensor, "B K"], count: int
) -> tuple[Float[Tensor, "B count"], Int[Tensor, "B count"]]:
    """The largest of scores + more, all K rows of each of B together, in order, and where they are in K · N.

    On a CPU, sorting all of them takes longer than the step that made them, so this looks at the largest of each block,
    and only the best blocks are added to: the largest of a block stays its largest.
    """
    batch, rows, n = scores.shape
    whole = n // BLOCK
    if scores.device.type != "cpu" or rows * whole <= 2 * count or torch.compiler.is_compiling():
        return torch.topk((scores + more[..., None]).flatten(1), count)
    blocks = scores[..., : whole * BLOCK].view(batch, rows, whole, BLOCK)
    best = (blocks.amax(-1) + more[..., None]).flatten(1).topk(count)[1]  # (B, count): of all rows' blocks
    row, block = best // whole, best % whole
    first = row * n + block * BLOCK
    where = (first[..., None] + torch.arange(BLOCK)).flatten(1)  # (B, count · BLOCK)
    if whole * BLOCK < n:
        ends = torch.arange(rows)[:, None] * n + torch.arange(whole * BLOCK, n)
        where = torch.cat((where, ends.flatten().expand(batch, -1)), 1)
    near = scores.flatten(1).gather(1, where) + more.gather(1, where // n)
    values, at = near.topk(count)
    return values, where.gather(1, at)
