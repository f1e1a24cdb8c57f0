"""Cross-entropy with label smoothing and R-Drop of rows of logits, on a GPU: loss and gradient in one pass.

`tasks.losses` has the same in plain PyTorch and chooses between the two; tests compare them.
"""

from regard.core.shapes import Float, Int, Tensor
from regard.kernels import triton_launch

TILE = {"U": 4, "C": 1024}  # logits of a row that a program reads at a time


def cross_entropy_(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, " N"],
    losses: Float[Tensor, " N"],
    nlls: Float[Tensor, " N"],
    *,
    label_smoothing: float,
    r_drop: float,
) -> None:
    """Write the loss of each row into `losses`, and overwrite the logits with the gradient of the sum.

    `nlls` gets the negative log-likelihoods: the losses without label smoothing and R-Drop.

    Rows with a negative target are ignored. With R-Drop, rows 2 i and 2 i + 1 are two predictions of one target.
    """
    from regard.kernels.layers.cross_entropy_triton import cross_entropy, r_drop_cross_entropy

    size = logits.shape[1]
    with triton_launch.on_device_of(logits):
        if r_drop:
            # A program computes a pair of rows.
            grid = (len(targets) // 2,)
            r_drop_cross_entropy[grid](
                logits, targets, losses, nlls, label_smoothing, r_drop, size, **TILE
            )
        else:
            grid = (len(targets),)
            cross_entropy[grid](logits, targets, losses, nlls, label_smoothing, size, **TILE)
