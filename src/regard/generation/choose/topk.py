"""Top-k over large rows, faster than torch.topk on a CPU."""

import torch

from regard.core.shapes import Float, Int, Tensor

BLOCK = 64  # scores whose maximum is computed first: the k largest scores lie in the k blocks with the largest maxima


def topk(
    scores: Float[Tensor, "B N"], count: int
) -> tuple[Float[Tensor, "B count"], Int[Tensor, "B count"]]:
    """The largest scores of each row in descending order, and their indices."""
    return topk_sums(scores[:, None], torch.zeros(len(scores), 1, device=scores.device), count)


def topk_sums(
    scores: Float[Tensor, "B K N"], offsets: Float[Tensor, "B K"], count: int
) -> tuple[Float[Tensor, "B count"], Int[Tensor, "B count"]]:
    """The largest of scores + offsets among all K · N of each b, in descending order, and their indices.

    On a CPU, sorting all of them takes longer than the decoder's step. This compares the maxima of blocks first, to
    which the offset of a row applies as to each score, and then sorts the scores of the best blocks only.
    """
    batch, rows, n = scores.shape
    whole = n // BLOCK
    if scores.device.type != "cpu" or rows * whole <= 2 * count or torch.compiler.is_compiling():
        return torch.topk((scores + offsets[..., None]).flatten(1), count)
    blocks = scores[..., : whole * BLOCK].view(batch, rows, whole, BLOCK)
    best = (
        (blocks.amax(-1) + offsets[..., None]).flatten(1).topk(count)[1]
    )  # (B, count): among all rows' blocks
    row = best // whole
    block = best % whole
    first = row * n + block * BLOCK
    indices = (first[..., None] + torch.arange(BLOCK)).flatten(1)  # (B, count · BLOCK)
    if whole * BLOCK < n:
        rest = torch.arange(rows)[:, None] * n + torch.arange(whole * BLOCK, n)
        indices = torch.cat((indices, rest.flatten().expand(batch, -1)), 1)
    candidates = scores.flatten(1).gather(1, indices) + offsets.gather(1, indices // n)
    values, chosen = candidates.topk(count)
    return values, indices.gather(1, chosen)
