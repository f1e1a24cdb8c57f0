"""A caption on its picture: for each word the regions it looked at, as PNG, as SVG, and as a page to point at words.

Whatever a picture is called and a caption says is text here, and nothing else. The page is one file that needs nothing
from anywhere and holds no script; its policy forbids both.
"""

import html
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional as F

from regard.core.errors import MissingExtra
from regard.core.sanitize import printable
from regard.core.shapes import Float, Tensor

SHADE = 0.8  # of the light that is taken from where nobody looked
TILE = 224  # pixels of a picture's longer side, in the drawing
ACROSS = 6  # pictures in a row
MARGIN, LABEL = 8, 30  # pixels around each, and below it for the word
VEIL = 96  # pixels of a veil's longer side, which is stretched over the picture

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
POLICY = f"default-src 'none'; img-src data:; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>Captions, and where their words looked</title>
<style>{STYLE}</style>
</head>
<body>
<p>Point at a word, or go to it with the tab key, and its regions stay light.</p>
"""
PAGE_END = "</body>\n</html>\n"


@dataclass(frozen=True)
class Drawing:
    """A picture, and the words of its caption with what each looked at."""

    name: str
    pixels: NDArray[np.uint8]  # (Y, X, 3)
    words: Sequence[str]
    weights: Float[Tensor, "T rows columns"]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture, where its longer side is a tile's."""
        return _within(self.pixels.shape[:2], TILE)


def light(weights: Float[Tensor, "T rows columns"], size: tuple[int, int]) -> Float[Tensor, "T Y X"]:
    """Weights spread smoothly over so many pixels, 1 where a word looked most."""
    if not len(weights):
        return weights.new_zeros(0, *size)
    spread = F.interpolate(weights[None], size, mode="bicubic", align_corners=False)[0].clamp(min=0)
    return spread / spread.amax((1, 2), keepdim=True).clamp(min=1e-12)


def png(drawing: Drawing) -> bytes:
    """The picture as it is, and once for each word."""
    image_class = _pillow()
    from PIL import ImageDraw, ImageFont

    height, width = drawing.size
    places, (down, across) = _places(drawing)
    sheet = image_class.new("RGB", (across, down), "white")
    canvas, font = ImageDraw.Draw(sheet), ImageFont.load_default(18)
    plain = image_class.fromarray(drawing.pixels).resize((width, height), image_class.Resampling.BICUBIC)
    sheet.paste(plain, places[0])
    for (x, y), word, veil in zip(places[1:], drawing.words, _veils(drawing, (height, width)), strict=True):
        sheet.paste(plain, (x, y))
        sheet.paste("black", (x, y), veil.getchannel("A"))
        canvas.text((x + width / 2, y + height + LABEL / 2), printable(word), "#222", font, anchor="mm")
    return _saved(sheet, "PNG")


def svg(drawing: Drawing) -> str:
    """The same, to be scaled to any size."""
    height, width = drawing.size
    places, (down, across) = _places(drawing)
    frame = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" width="{across}" height="{down}">',
        f"<title>{_text(drawing.name)}: {_text(' '.join(drawing.words))}</title>",
        f'<defs><image id="picture" {frame} href="{_picture(drawing)}"/></defs>',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<use href="#picture" x="{places[0][0]}" y="{places[0][1]}"/>',
    ]
    for (x, y), word, veil in zip(places[1:], drawing.words, _veils(drawing, _within(drawing.size, VEIL)), strict=True):
        parts += [
            f'<g transform="translate({x} {y})"><use href="#picture"/>',
            f'<image {frame} preserveAspectRatio="none" href="{_data(_saved(veil, "PNG"), "png")}"/>',
            f'<text x="{width / 2:g}" y="{height + LABEL * 0.7:g}" text-anchor="middle" font-family="sans-serif" '
            f'font-size="18" fill="#222">{_text(word)}</text></g>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def figure(drawing: Drawing) -> str:
    """The same for a page, between PAGE and PAGE_END."""
    spoken = [
        f'<span class="word" tabindex="0">{_text(word)}<img alt="" src="{_data(_saved(veil, "PNG"), "png")}"></span>'
        for word, veil in zip(drawing.words, _veils(drawing, _within(drawing.size, VEIL)), strict=True)
    ]
    return (
        f'<figure>\n<img alt="" src="{_picture(drawing)}">\n<figcaption>\n'
        + "\n".join(spoken)
        + f"\n<small>{_text(drawing.name)}</small>\n</figcaption>\n</figure>\n"
    )


def _text(text: str) -> str:
    return html.escape(printable(text))


def _within(size: Sequence[int], longest: int) -> tuple[int, int]:
    height, width = (max(1, round(side * longest / max(size))) for side in size)
    return height, width


def _places(drawing: Drawing) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Where the picture and that of each word begin (x, y), and the height and width of all."""
    height, width = drawing.size
    count = 1 + len(drawing.words)
    across, down = width + MARGIN, height + LABEL + MARGIN
    places = [(MARGIN + i % ACROSS * across, MARGIN + i // ACROSS * down) for i in range(count)]
    return places, (MARGIN + -(-count // ACROSS) * down, MARGIN + min(count, ACROSS) * across)


def _veils(drawing: Drawing, size: tuple[int, int]) -> list[Any]:
    """For each word a black image, the clearer the more it looked there."""
    found = []
    for one in light(drawing.weights, size).numpy():
        shade = np.rint(255 * SHADE * (1 - one)).astype(np.uint8)
        found.append(_pillow().fromarray(np.stack([np.zeros_like(shade), shade], -1), "LA"))
    return found


def _picture(drawing: Drawing) -> str:
    return _data(_saved(_pillow().fromarray(drawing.pixels), "JPEG", quality=88), "jpeg")


def _saved(image: Any, form: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _data(content: bytes, form: str) -> str:
    return f"data:image/{form};base64,{b64encode(content).decode()}"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "images", "Drawing on pictures") from None
    return Image
