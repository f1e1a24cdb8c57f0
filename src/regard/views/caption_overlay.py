"""A caption's attention on its image: a copy of the image for each word,
darkened where the word attends little.

As PNG, as SVG, and as a figure of an HTML page. File names and captions are untrusted text and are
escaped. The page is self-contained and has no script; its content security policy forbids both
scripts and requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.views.canvas import CANVASES, data_uri, escaped, pillow
from regard.views.html import page_start

SHADE = 0.8  # how much of the light is removed where the weight is zero
TILE = 224  # pixels of an image's longer side, in the drawing
ACROSS = 6  # images in a row
# Pixels around each image, and below it for the word.
MARGIN = 8
LABEL = 30
COARSE = 96  # pixels of a shade's longer side in SVG and HTML, which scale it to the image
LETTERS = 18  # pixels of a word

STYLE = """
body { margin: 2rem; background: #fff; color: #222; font: 18px/1.6 system-ui, sans-serif; }
figure { position: relative; width: min(28rem, 100%); margin: 0 0 3rem; }
figure > img { display: block; width: 100%; }
figcaption small { display: block; color: #666; overflow-wrap: anywhere; }
.word { padding: 0.1em 0.2em; border-radius: 0.2em; cursor: default; }
.word:hover, .word:focus { background: #ffe08a; }
.word img { position: absolute; top: 0; left: 0; width: 100%; opacity: 0; pointer-events: none; }
.word:hover img, .word:focus img { opacity: 1; }
"""
PAGE = (
    page_start("Captions and their attention", STYLE, allowed="img-src data:; ")
    + "<p>Point at a word, or move to it with the tab key: "
    "the regions it attended to stay light.</p>\n"
)


@dataclass(frozen=True)
class Overlay:
    """An image, and the words of its caption with their attention over its regions."""

    name: str
    pixels: NDArray[np.uint8]  # (Y, X, 3)
    words: Sequence[str]
    weights: Float[Tensor, "T rows columns"]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image in the drawing."""
        return _within(self.pixels.shape[:2], TILE)


def upsampled(
    weights: Float[Tensor, "T rows columns"], size: tuple[int, int]
) -> Float[Tensor, "T Y X"]:
    """Weights of regions interpolated to pixels; the largest of each word is 1."""
    if not len(weights):
        return weights.new_zeros(0, *size)
    smooth = F.interpolate(weights[None], size, mode="bicubic", align_corners=False)[0].clamp(min=0)
    return smooth / smooth.amax((1, 2), keepdim=True).clamp(min=1e-12)


def draw(overlay: Overlay, ending: str) -> bytes:
    """The image as it is and once for each word, as ".png" or ".svg"."""
    height, width = overlay.size
    count = 1 + len(overlay.words)
    # From one copy to the next.
    across = width + MARGIN
    down = height + LABEL + MARGIN
    corners = [(MARGIN + i % ACROSS * across, MARGIN + i // ACROSS * down) for i in range(count)]
    size = MARGIN + min(count, ACROSS) * across, MARGIN + -(-count // ACROSS) * down
    canvas = CANVASES[ending](*size, title=f"{overlay.name}: {' '.join(overlay.words)}", scale=1)
    image = pillow().fromarray(overlay.pixels)
    canvas.image(corners[0], (width, height), image, shared=True)
    shade_size = overlay.size if ending == ".png" else _within(overlay.size, COARSE)
    shades = _shades(overlay, shade_size)
    for (x, y), word, shade in zip(corners[1:], overlay.words, shades, strict=True):
        canvas.image((x, y), (width, height), image, shared=True)
        canvas.image((x, y), (width, height), shade)
        canvas.text(
            (x + width / 2, y + height + LABEL / 2),
            word,
            anchor="middle",
            fill="#222222",
            size=LETTERS,
        )
    return canvas.content()


def figure(overlay: Overlay) -> str:
    """The image with its caption as an HTML figure, for a page that begins with PAGE."""
    words = [
        f'<span class="word" tabindex="0">{escaped(word)}<img alt="" '
        f'src="{data_uri(shade)}"></span>'
        for word, shade in zip(
            overlay.words, _shades(overlay, _within(overlay.size, COARSE)), strict=True
        )
    ]
    return (
        '<figure>\n<img alt="" '
        f'src="{data_uri(pillow().fromarray(overlay.pixels))}">\n<figcaption>\n'
        + "\n".join(words)
        + f"\n<small>{escaped(overlay.name)}</small>\n</figcaption>\n</figure>\n"
    )


def _within(size: Sequence[int], longest: int) -> tuple[int, int]:
    height, width = (max(1, round(side * longest / max(size))) for side in size)
    return height, width


def _shades(overlay: Overlay, size: tuple[int, int]) -> list[Any]:
    """For each word a black image, the more transparent the larger the weight."""
    shades = []
    for one in upsampled(overlay.weights, size).numpy():
        alpha = np.rint(255 * SHADE * (1 - one)).astype(np.uint8)
        shades.append(pillow().fromarray(np.stack([np.zeros_like(alpha), alpha], -1), "LA"))
    return shades
