"""Image augmentation of whole batches, from given random numbers.

- flip: a horizontal flip of every second image. Captions that say left and right become wrong.
- crop: a random resized crop of 0.6 to 1 of the area, with an aspect ratio between 3/4 and 4/3
- color: jitter of brightness, contrast and saturation
"""

from collections.abc import Sequence
from math import log
from typing import Literal

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor

AugmentKind = Literal["crop", "flip", "color"]
DRAWS = 8  # random numbers per image, whichever augmentations are chosen
AREA = 0.6  # smallest crop
RATIO = 4 / 3  # largest aspect ratio, and the inverse of the smallest
JITTER = 0.3  # largest deviation of brightness, contrast and saturation from 1
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601 luma of red, green and blue


def augment(
    images: Float[Tensor, "B 3 Y X"], kinds: Sequence[AugmentKind], draws: Float[Tensor, "B draws"]
) -> Float[Tensor, "B 3 Y X"]:
    """Augmented images, values in [-1, 1]. `draws` holds DRAWS numbers in [0, 1) for each image."""
    draws = draws.to(images.device)
    if "flip" in kinds:
        flipped = (draws[:, 0] < 0.5).nonzero()[:, 0]
        images = images.index_copy(0, flipped, images[flipped].flip(3))
    if "crop" in kinds:
        images = _crop(images, draws[:, 1:5])
    if "color" in kinds:
        return _jitter_color(images, draws[:, 5:])
    return images


def _crop(images: Tensor, draws: Float[Tensor, "B 4"]) -> Tensor:
    """A random resized crop, sampled bilinearly; image coordinates run from -1 to 1."""
    area = AREA + (1 - AREA) * draws[:, 0]
    ratio = torch.exp(log(RATIO) * (2 * draws[:, 1] - 1))
    width = (area * ratio).sqrt().clamp(max=1.0)
    height = (area / ratio).sqrt().clamp(max=1.0)
    # The center.
    x = (1 - width) * (2 * draws[:, 2] - 1)
    y = (1 - height) * (2 * draws[:, 3] - 1)
    zero = torch.zeros_like(width)
    first_row = torch.stack((width, zero, x), 1)  # (B, 3)
    second_row = torch.stack((zero, height, y), 1)
    transforms = torch.stack((first_row, second_row), 1)  # (B, 2, 3)
    grid = F.affine_grid(transforms, list(images.shape), align_corners=False)  # (B, Y, X, 2)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _jitter_color(images: Tensor, draws: Float[Tensor, "B 3"]) -> Tensor:
    """One color matrix and one shift for each image; values are clamped to [-1, 1].

    Brightness b scales v in [0, 1], contrast c its distance from the mean gray, saturation s the
    distance of each pixel from its own gray: v ← M v + (1 - c) b mean with M = b c (s + (1 - s)
    gray).
    """
    factors = (1 + JITTER * (2 * draws - 1))[:, :, None, None]  # (B, 3, 1, 1)
    brightness, contrast, saturation = factors.unbind(1)  # (B, 1, 1) each
    gray = images.new_tensor(LUMA).expand(3, 3)
    same = torch.eye(3, device=images.device)
    matrix = brightness * contrast * (saturation * same + (1 - saturation) * gray)  # (B, 3, 3)
    mean = (images.mean((2, 3)) @ gray[0])[:, None, None] / 2 + 0.5  # (B, 1, 1), as v
    # For values in [-1, 1].
    shift = 2 * (1 - contrast) * brightness * mean + brightness * contrast - 1
    return torch.baddbmm(shift, matrix, images.flatten(2)).clamp_(-1, 1).view_as(images)
