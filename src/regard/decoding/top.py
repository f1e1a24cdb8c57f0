"""The largest few of many numbers."""

import torch

from regard.shapes import Float, Int, Tensor

BLOCK = 64  # numbers whose largest is found first; of as many, the largest few lie in the few best blocks


def top(scores: Float[Tensor, "B N"], count: int) -> tuple[Float[Tensor, "B count"], Int[Tensor, "B count"]]:
    """The largest numbers of each row, in order, and where they are.

    On a CPU, sorting all of them takes longer than the step that made them, so this looks at the largest of each block.
    """
    rows, n = scores.shape
    whole = n // BLOCK
    if scores.device.type != "cpu" or whole <= 2 * count or torch.compiler.is_compiling():
        return torch.topk(scores, count)
    blocks = scores[:, : whole * BLOCK].view(rows, whole, BLOCK)
    best = blocks.amax(-1).topk(count)[1]  # (B, count)
    near = blocks.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)  # (B, count · BLOCK)
    where = (best[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    if whole * BLOCK < n:
        near = torch.cat((near, scores[:, whole * BLOCK :]), 1)
        where = torch.cat((where, torch.arange(whole * BLOCK, n).expand(rows, -1)), 1)
    values, at = near.topk(count)
    return values, where.gather(1, at)
