"""Paper for drawings of boxes, lines and words: SVG, and PNG by Pillow."""

import html
from abc import ABC, abstractmethod
from io import BytesIO
from typing import Any

from regard.core.errors import MissingExtra
from regard.core.sanitize import printable

SIZE = 13  # pixels of letters
INK = "#1c1e22"
SHARP = 2  # pixels of a PNG for each of a drawing's

Point = tuple[float | int, float | int]


class Canvas(ABC):
    """White, and so many pixels large."""

    def __init__(self, width: float | int, height: float | int) -> None:
        self.width, self.height = round(width), round(height)

    @abstractmethod
    def box(self, at: Point, size: Point, fill: str) -> None: ...

    @abstractmethod
    def line(self, start: Point, end: Point, width: float | int, fill: str) -> None: ...

    @abstractmethod
    def text(self, at: Point, text: str, *, anchor: str = "start", fill: str = INK) -> None:
        """On the height of a point, where it starts or ends, or has its middle."""

    @abstractmethod
    def slanted(self, at: Point, text: str) -> None:
        """From a point on, upwards to the right."""

    @abstractmethod
    def content(self) -> bytes: ...


class SvgCanvas(Canvas):
    def __init__(self, width: float | int, height: float | int) -> None:
        super().__init__(width, height)
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{SIZE}">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        ]

    def box(self, at: Point, size: Point, fill: str) -> None:
        place = f'x="{at[0]:.5g}" y="{at[1]:.5g}" width="{size[0]:.5g}" height="{size[1]:.5g}"'
        self.parts.append(f'<rect {place} fill="{fill}" shape-rendering="crispEdges"/>')

    def line(self, start: Point, end: Point, width: float | int, fill: str) -> None:
        ends = f'x1="{start[0]:.5g}" y1="{start[1]:.5g}" x2="{end[0]:.5g}" y2="{end[1]:.5g}"'
        self.parts.append(f'<line {ends} stroke="{fill}" stroke-width="{width:.3g}"/>')

    def text(self, at: Point, text: str, *, anchor: str = "start", fill: str = INK) -> None:
        place = f'x="{at[0]:.5g}" y="{at[1]:.5g}" text-anchor="{anchor}" dominant-baseline="central" fill="{fill}"'
        self.parts.append(f"<text {place}>{html.escape(printable(text))}</text>")

    def slanted(self, at: Point, text: str) -> None:
        place = f'transform="translate({at[0]:.5g} {at[1]:.5g}) rotate(-60)" fill="{INK}"'
        self.parts.append(f"<text {place}>{html.escape(printable(text))}</text>")

    def content(self) -> bytes:
        return "\n".join([*self.parts, "</svg>\n"]).encode()


class PngCanvas(Canvas):
    def __init__(self, width: float | int, height: float | int) -> None:
        super().__init__(width, height)
        try:
            from PIL import Image, ImageDraw
        except ImportError:
            raise MissingExtra("pillow", "images", "A PNG") from None
        self.image = Image.new("RGB", (SHARP * self.width, SHARP * self.height), "white")
        self.pen, self.font = ImageDraw.Draw(self.image), _font()

    def box(self, at: Point, size: Point, fill: str) -> None:
        start = [round(SHARP * place) for place in at]
        end = [round(SHARP * (place + length)) - 1 for place, length in zip(at, size, strict=True)]
        self.pen.rectangle((*start, *map(max, start, end)), fill)

    def line(self, start: Point, end: Point, width: float | int, fill: str) -> None:
        self.pen.line([SHARP * place for place in (*start, *end)], fill, max(1, round(SHARP * width)))

    def text(self, at: Point, text: str, *, anchor: str = "start", fill: str = INK) -> None:
        side = {"start": "l", "middle": "m", "end": "r"}[anchor]
        self.pen.text((SHARP * at[0], SHARP * at[1]), printable(text), fill, self.font, anchor=f"{side}m")

    def slanted(self, at: Point, text: str) -> None:
        from PIL import Image, ImageDraw

        reach = round(self.font.getlength(printable(text))) + 2 * SIZE  # room on every side, to turn it in
        flat = Image.new("L", (2 * reach, 2 * reach))
        ImageDraw.Draw(flat).text((reach, reach), printable(text), 255, self.font, anchor="ls")
        turned = flat.rotate(60, Image.Resampling.BICUBIC)
        corner = round(SHARP * at[0]) - reach, round(SHARP * at[1]) - reach
        self.image.paste(INK, corner, turned)

    def content(self) -> bytes:
        file = BytesIO()
        self.image.save(file, "PNG", optimize=True)
        return file.getvalue()


def _font() -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.truetype("DejaVuSans.ttf", SHARP * SIZE)  # which knows the most letters, where there is one
    except OSError:
        return ImageFont.load_default(SHARP * SIZE)
