"""The largest few of many numbers."""

import torch

from regard.shapes import Float, Int, Tensor

BLOCK = 64  # numbers whose largest is found first; of as many, the largest few lie in the few best blocks


def top(scores: Float[Tensor, "B N"], count: int) -> tuple[Float[Tensor, "B count"], Int[Tensor, "B count"]]:
    """The largest numbers of each row, in order, and where they are.

    Sorting all of them takes longer than the step that made them, so this looks at the largest of each block.
    """
    rows, n = scores.shape
    whole = n // BLOCK
    if whole <= 2 * count or torch.compiler.is_compiling():
        return torch.topk(scores, count)
    some, apart, within = scores[:, : whole * BLOCK], BLOCK, 1
    if scores.is_cuda:  # which reads what lies side by side at once: so numbers of a block lie apart
        blocks, apart, within = some.view(rows, BLOCK, whole).mT, 1, whole
    else:
        blocks = some.view(rows, whole, BLOCK)
    best = blocks.amax(-1).topk(count)[1]  # (B, count)
    near = blocks.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)  # (B, count · BLOCK)
    where = (best[..., None] * apart + torch.arange(BLOCK, device=scores.device) * within).flatten(1)
    if whole * BLOCK < n:
        near = torch.cat((near, scores[:, whole * BLOCK :]), 1)
        where = torch.cat((where, torch.arange(whole * BLOCK, n, device=scores.device).expand(rows, -1)), 1)
    values, at = near.topk(count)
    return values, where.gather(1, at)
