"""Pictures that change a little each time they are shown: a whole batch at once, by numbers that somebody else draws.

- flip: left becomes right, for every second picture. Captions that say left and right become wrong by it.
- crop: a part of the picture, from 0.6 to all of its area and a little wider or higher, drawn up to the whole size
- colour: brighter or darker, with more or less contrast, more or less colourful
"""

from collections.abc import Sequence
from math import log

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.data.config import AugmentKind

DRAWS = 8  # numbers a picture takes, whichever changes are asked for
AREA = 0.6  # of a crop, at least
RATIO = 4 / 3  # of its width to its height, at most, and the other way round
JITTER = 0.3  # how far brightness, contrast and colourfulness may stray from 1
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue are to the eye


def augment(
    pictures: Float[Tensor, "B 3 Y X"], changes: Sequence[AugmentKind], dice: Float[Tensor, "B dice"]
) -> Float[Tensor, "B 3 Y X"]:
    """The pictures, of values from -1 to 1, with these changes, by numbers from 0 to 1 for each."""
    dice = dice.to(pictures.device)
    if "flip" in changes:
        turned = (dice[:, 0] < 0.5).nonzero()[:, 0]
        pictures = pictures.index_copy(0, turned, pictures[turned].flip(3))
    if "crop" in changes:
        pictures = _cropped(pictures, dice[:, 1:5])
    return _coloured(pictures, dice[:, 5:]) if "color" in changes else pictures


def _cropped(pictures: Tensor, dice: Float[Tensor, "B 4"]) -> Tensor:
    """By a map from each pixel to where it comes from, in coordinates in which a picture reaches from -1 to 1."""
    area, ratio = AREA + (1 - AREA) * dice[:, 0], torch.exp(log(RATIO) * (2 * dice[:, 1] - 1))
    width, height = (area * ratio).sqrt().clamp(max=1.0), (area / ratio).sqrt().clamp(max=1.0)
    across, down = (1 - width) * (2 * dice[:, 2] - 1), (1 - height) * (2 * dice[:, 3] - 1)  # where its middle is
    zero = torch.zeros_like(width)
    rows = torch.stack((width, zero, across), 1), torch.stack((zero, height, down), 1)
    grid = F.affine_grid(torch.stack(rows, 1), list(pictures.shape), align_corners=False)  # (B, Y, X, 2)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def _coloured(pictures: Tensor, dice: Float[Tensor, "B 3"]) -> Tensor:
    """One matrix and one shift of the colours for each picture, and no value beyond black and white.

    Brightness b multiplies v, from 0 to 1; contrast c pulls b·v from its mean grey; colourfulness s pulls each pixel
    from its own grey: v ← M v + (1 - c) b mean with M = b c (s + (1 - s) grey).
    """
    brightness, contrast, colourful = (1 + JITTER * (2 * dice - 1))[:, :, None, None].unbind(1)  # (B, 1, 1) each
    grey, same = pictures.new_tensor(LUMA).expand(3, 3), torch.eye(3, device=pictures.device)
    matrix = brightness * contrast * (colourful * same + (1 - colourful) * grey)  # (B, 3, 3)
    mean = (pictures.mean((2, 3)) @ grey[0])[:, None, None] / 2 + 0.5  # (B, 1, 1), as v
    shift = 2 * (1 - contrast) * brightness * mean + brightness * contrast - 1  # as values from -1 to 1 need it
    return torch.baddbmm(shift, matrix, pictures.flatten(2)).clamp_(-1, 1).view_as(pictures)
