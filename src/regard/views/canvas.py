"""Canvases for drawings of boxes, lines, text and images: SVG, and PNG with Pillow."""

import html
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from regard.core.errors import MissingExtra
from regard.core.sanitize import printable

SIZE = 13  # pixels of letters
INK = "#1c1e22"
SHARP = 2  # pixels of a PNG for each pixel of the drawing

Point = tuple[float | int, float | int]


class Canvas(ABC):
    """A white canvas. Coordinates are pixels from the top left corner.

    title   shown by viewers of an SVG
    scale   pixels of a PNG for each pixel of the drawing
    """

    def __init__(
        self, width: float | int, height: float | int, *, title: str = "", scale: int = SHARP
    ) -> None:
        self.width = round(width)
        self.height = round(height)
        self.title = title
        self.scale = scale

    @abstractmethod
    def box(self, at: Point, size: Point, fill: str) -> None: ...

    @abstractmethod
    def line(self, start: Point, end: Point, width: float | int, fill: str) -> None: ...

    @abstractmethod
    def text(
        self, at: Point, text: str, *, anchor: str = "start", fill: str = INK, size: int = SIZE
    ) -> None:
        """Text on one line, centered vertically; `anchor` is start, middle or end."""

    @abstractmethod
    def slanted(self, at: Point, text: str) -> None:
        """Text that starts at a point and runs upwards to the right."""

    @abstractmethod
    def image(self, at: Point, size: Point, image: Any, *, shared: bool = False) -> None:
        """A Pillow image: RGB, or LA drawn over what is there.

        A `shared` one may be drawn again and is stored once.
        """

    @abstractmethod
    def content(self) -> bytes: ...


class SvgCanvas(Canvas):
    """Also has what only charts need: circles with tooltips, polylines, dashes."""

    def __init__(
        self, width: float | int, height: float | int, *, title: str = "", scale: int = SHARP
    ) -> None:
        super().__init__(width, height, title=title, scale=scale)
        size = (
            f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        )
        role = ""
        name = ""
        if title:
            role = ' role="img"'
            name = f"\n<title>{escaped(title)}</title>"
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}{role} font-family="sans-serif" '
            f'font-size="{SIZE}">{name}',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        ]
        self._shared: dict[int, str] = {}

    def box(self, at: Point, size: Point, fill: str) -> None:
        area = f'x="{at[0]:.5g}" y="{at[1]:.5g}" width="{size[0]:.5g}" height="{size[1]:.5g}"'
        self._add("rect", f'{area} fill="{fill}" shape-rendering="crispEdges"')

    def line(
        self, start: Point, end: Point, width: float | int, fill: str, *, dash: str = ""
    ) -> None:
        points = f'x1="{start[0]:.5g}" y1="{start[1]:.5g}" x2="{end[0]:.5g}" y2="{end[1]:.5g}"'
        self._add("line", f'{points} stroke="{fill}" stroke-width="{width:.3g}"{_dashed(dash)}')

    def polyline(
        self, points: Sequence[Point], width: float | int, fill: str, *, dash: str = ""
    ) -> None:
        path = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
        self._add(
            "polyline",
            f'points="{path}" fill="none" stroke="{fill}" '
            f'stroke-width="{width:.3g}"{_dashed(dash)}',
        )

    def circle(self, at: Point, radius: float | int, fill: str, *, tooltip: str = "") -> None:
        self._add(
            "circle", f'cx="{at[0]:.5g}" cy="{at[1]:.5g}" r="{radius:.3g}" fill="{fill}"', tooltip
        )

    def text(
        self,
        at: Point,
        text: str,
        *,
        anchor: str = "start",
        fill: str = INK,
        size: int = SIZE,
        bold: bool = False,
    ) -> None:
        place = f'x="{at[0]:.5g}" y="{at[1]:.5g}" text-anchor="{anchor}"'
        place += f' dominant-baseline="central" fill="{fill}"'
        if size != SIZE:
            place += f' font-size="{size}"'
        if bold:
            place += ' font-weight="bold"'
        self.parts.append(f"<text {place}>{escaped(text)}</text>")

    def slanted(self, at: Point, text: str) -> None:
        place = f'transform="translate({at[0]:.5g} {at[1]:.5g}) rotate(-60)" fill="{INK}"'
        self.parts.append(f"<text {place}>{escaped(text)}</text>")

    def image(self, at: Point, size: Point, image: Any, *, shared: bool = False) -> None:
        area = f'width="{size[0]:.5g}" height="{size[1]:.5g}" preserveAspectRatio="none"'
        place = f'x="{at[0]:.5g}" y="{at[1]:.5g}"'
        if not shared:
            self._add("image", f'{place} {area} href="{data_uri(image)}"')
            return
        if id(image) not in self._shared:
            name = self._shared[id(image)] = f"image{len(self._shared)}"
            self.parts.append(f'<defs><image id="{name}" {area} href="{data_uri(image)}"/></defs>')
        self._add("use", f'{place} href="#{self._shared[id(image)]}"')

    def nested(self, at: Point, other: "SvgCanvas") -> None:
        """Another drawing as part of this one."""
        self.parts.append(
            f'<g transform="translate({at[0]:.5g} {at[1]:.5g})">{other.content().decode()}</g>'
        )

    def _add(self, tag: str, attributes: str, tooltip: str = "") -> None:
        element = f"<{tag} {attributes}/>"
        if tooltip:
            element = f"<{tag} {attributes}><title>{escaped(tooltip)}</title></{tag}>"
        self.parts.append(element)

    def content(self) -> bytes:
        return "\n".join([*self.parts, "</svg>\n"]).encode()


class PngCanvas(Canvas):
    def __init__(
        self, width: float | int, height: float | int, *, title: str = "", scale: int = SHARP
    ) -> None:
        super().__init__(width, height, title=title, scale=scale)
        self.sheet = pillow().new("RGB", (scale * self.width, scale * self.height), "white")
        from PIL import ImageDraw

        self.pen = ImageDraw.Draw(self.sheet)

    def box(self, at: Point, size: Point, fill: str) -> None:
        start = [round(self.scale * place) for place in at]
        end = [
            round(self.scale * (place + length)) - 1 for place, length in zip(at, size, strict=True)
        ]
        self.pen.rectangle((*start, *map(max, start, end)), fill)

    def line(self, start: Point, end: Point, width: float | int, fill: str) -> None:
        self.pen.line(
            [self.scale * place for place in (*start, *end)],
            fill,
            max(1, round(self.scale * width)),
        )

    def text(
        self, at: Point, text: str, *, anchor: str = "start", fill: str = INK, size: int = SIZE
    ) -> None:
        side = {"start": "l", "middle": "m", "end": "r"}[anchor]
        font = _font(self.scale * size)
        self.pen.text(
            (self.scale * at[0], self.scale * at[1]), printable(text), fill, font, anchor=f"{side}m"
        )

    def slanted(self, at: Point, text: str) -> None:
        from PIL import Image, ImageDraw

        font = _font(self.scale * SIZE)
        # With a margin on every side, to rotate it within.
        reach = round(font.getlength(printable(text))) + 2 * SIZE
        flat = Image.new("L", (2 * reach, 2 * reach))
        ImageDraw.Draw(flat).text((reach, reach), printable(text), 255, font, anchor="ls")
        rotated = flat.rotate(60, Image.Resampling.BICUBIC)
        corner = round(self.scale * at[0]) - reach, round(self.scale * at[1]) - reach
        self.sheet.paste(INK, corner, rotated)

    def image(self, at: Point, size: Point, image: Any, *, shared: bool = False) -> None:
        corner = round(self.scale * at[0]), round(self.scale * at[1])
        pixels = round(self.scale * size[0]), round(self.scale * size[1])
        scaled = image
        if image.size != pixels:
            scaled = image.resize(pixels, pillow().Resampling.BICUBIC)
        opacity = scaled.getchannel("A") if "A" in scaled.getbands() else None
        self.sheet.paste(scaled.convert("RGB"), corner, opacity)

    def content(self) -> bytes:
        return _saved(self.sheet, "PNG", optimize=True)


# By the ending of a file's name.
CANVASES: dict[str, type[Canvas]] = {
    ".svg": SvgCanvas,
    ".png": PngCanvas,
}


def mixed(start: Sequence[int], end: Sequence[int], share: float) -> str:
    """The color between two of (red, green, blue): the second has this share."""
    return "#" + "".join(
        f"{round(a + (b - a) * share):02x}" for a, b in zip(start, end, strict=True)
    )


def shortened(name: str, most: int) -> str:
    """A name of at most so many letters."""
    if len(name) <= most:
        return name
    return name[: most - 1] + "…"


def escaped(text: str) -> str:
    """Text between tags or in an attribute; control characters are replaced by a visible sign."""
    return html.escape(printable(text))


def data_uri(image: Any) -> str:
    """A Pillow image as a data URI: PNG with an alpha channel, JPEG without."""
    form = "jpeg"
    options = {"quality": 88}
    if "A" in image.getbands():
        form = "png"
        options = {}
    content = _saved(image, form.upper(), **options)
    return f"data:image/{form};base64,{b64encode(content).decode()}"


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "images", "Drawing a PNG or on an image") from None
    return Image


def _saved(image: Any, form: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _font(size: int) -> Any:
    from PIL import ImageFont

    try:
        # It covers the most scripts, where it is installed.
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default(size)
