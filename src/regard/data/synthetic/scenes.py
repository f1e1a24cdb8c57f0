"""Synthetic scenes: colored shapes on a noisy background, a caption,
and the bounding box of each captioned shape.

A scene holds parameters only; `draw` renders the same pixels on every machine, with NumPy alone.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pixels
GRID = 8  # positions and sizes are multiples of an eighth of a pixel
EDGE = 1.5  # smallest distance in pixels between a shape and the edge of the image
GAP = 2.0  # smallest distance in pixels between the boxes of two shapes
# The smallest difference between horizontal and vertical distance,
# so that the relation is unambiguous.
MARGIN = 6.0
RADII = (7.0, 13.0)
TINT = 15  # largest deviation of a color channel
LIGHT = 215  # darkest background
GRAIN = 12  # largest noise amplitude

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
Color = tuple[int, int, int]
Vertices = tuple[tuple[float, float], ...]

COLORS: dict[str, Color] = {  # in the order of a caption
    "red": (205, 35, 35),
    "orange": (240, 140, 25),
    "yellow": (235, 215, 30),
    "green": (35, 150, 60),
    "blue": (40, 75, 205),
    "purple": (130, 45, 160),
    "black": (30, 30, 30),
}


# Corners at radius 1, y pointing down; a circle has none.
KINDS: dict[str, Vertices] = {
    "circle": (),
    "square": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "triangle": ((0, -1), (1, 0.8), (-1, 0.8)),
    "cross": ((-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33),
              (0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33)),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A shape of a scene."""

    kind: str
    color: str
    tint: Color  # the jittered color
    x: float  # center, in pixels
    y: float
    radius: float

    @property
    def name(self) -> str:
        article = "an" if self.color[0] in "aeiou" else "a"
        return f"{article} {self.color} {self.kind}"

    @property
    def box(self) -> Box:
        corners = KINDS[self.kind] or ((-1.0, -1.0), (1.0, 1.0))
        across, down = ([self.radius * corner[axis] for corner in corners] for axis in (0, 1))
        return self.x + min(across), self.y + min(down), self.x + max(across), self.y + max(down)

    def distance(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Signed distance of each point to the outline; negative inside."""
        x = x - self.x
        y = y - self.y
        corners = np.array(KINDS[self.kind]) * self.radius
        if not len(corners):
            return np.sqrt(x * x + y * y) - self.radius
        (ax, ay), (bx, by) = (
            side.T[:, :, None, None] for side in (corners, np.roll(corners, -1, axis=0))
        )
        # (K, 1, 1), as are the corners
        ex = bx - ax
        ey = by - ay
        along = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey), 0, 1)  # (K, Y, X)
        away = np.sqrt(((x - ax - along * ex) ** 2 + (y - ay - along * ey) ** 2).min(0))
        # A point is inside if a ray from it crosses an odd number of sides.
        level = np.where(ey == 0, 1.0, ey)
        crossed = ((ay > y) != (by > y)) & (x < ax + (y - ay) * ex / level)
        return np.asarray(np.where(crossed.sum(0) % 2 == 1, -away, away))


@dataclass(frozen=True)
class Scene:
    """One to three shapes, in the order of the caption, and rendering parameters."""

    shapes: tuple[Shape, ...]
    background: Color
    smooth: bool  # whether edges are anti-aliased
    grain: int  # noise amplitude
    noise: int  # noise seed

    @property
    def caption(self) -> str:
        """The first shape, and its position relative to each of the others."""
        first, *others = self.shapes

        relations = [f"{relation(first, other)} {other.name}" for other in others]
        return f"{first.name} {' and '.join(relations)}".strip()

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The bounding box of each shape of the caption."""
        return tuple(shape.box for shape in self.shapes)

    def __str__(self) -> str:
        return f"a drawing of {self.caption}"

    def draw(self) -> NDArray[np.uint8]:
        """The image, (Y, X, 3)."""
        image = np.empty((SIDE, SIDE, 3))
        image[:] = self.background
        for shape in self.shapes:
            left, top, right, bottom = (int(edge) for edge in shape.box)
            window = slice(max(0, top - 1), bottom + 3), slice(max(0, left - 1), right + 3)
            centers = np.arange(0.5, SIDE)  # of pixels
            away = shape.distance(centers[None, window[1]], centers[window[0], None])
            if self.smooth:
                cover = np.clip(0.5 - away, 0, 1)
            else:
                cover = (away < 0).astype(np.float64)
            image[window] += cover[:, :, None] * (np.array(shape.tint) - image[window])
        # Noise from a hash: the same bytes in every version of NumPy and Python.
        drawn = hashlib.shake_128(str(self.noise).encode()).digest(image.size)
        noise = (
            np.frombuffer(drawn, np.uint8).astype(np.int16) * (2 * self.grain + 1) >> 8
        ) - self.grain
        return np.clip(np.rint(image).astype(np.int16) + noise.reshape(image.shape), 0, 255).astype(
            np.uint8
        )


def relation(one: Shape, other: Shape) -> str:
    """The position of one relative to the other, along the axis on which they are further apart."""
    across = one.x - other.x
    down = one.y - other.y
    if abs(across) > abs(down):
        return "left of" if across < 0 else "right of"
    return "above" if down < 0 else "below"


def draw_scene(random: Callable[[], float]) -> Scene:
    """A random scene with an unambiguous caption: different colors, no overlap, clear relations."""
    count = 1 + _random_below(random, 3)
    colors = list(COLORS)
    while len(colors) > count:
        colors.pop(_random_below(random, len(colors)))
    kinds = [list(KINDS)[_random_below(random, len(KINDS))] for _ in colors]
    tints = [_jitter(random, COLORS[color]) for color in colors]
    while True:
        radii = [
            RADII[0] + _random_below(random, int((RADII[1] - RADII[0]) * GRID) + 1) / GRID
            for _ in colors
        ]
        centers = [
            (_random_center(random, radius), _random_center(random, radius)) for radius in radii
        ]
        if _is_clear(centers, radii):
            break
    shapes = tuple(
        Shape(kind, color, tint, x, y, radius)
        for kind, color, tint, radius, (x, y) in zip(
            kinds, colors, tints, radii, centers, strict=True
        )
    )
    red, green, blue = (LIGHT + _random_below(random, 256 - LIGHT) for _ in range(3))
    smooth = random() < 0.5
    grain = _random_below(random, GRAIN + 1)
    return Scene(shapes, (red, green, blue), smooth, grain, noise=_random_below(random, 1 << 32))


def _random_below(random: Callable[[], float], number: int) -> int:
    return int(random() * number)


def _jitter(random: Callable[[], float], color: Color) -> Color:
    """A color with jittered channels."""
    red, green, blue = (
        min(255, max(0, part + _random_below(random, 2 * TINT + 1) - TINT)) for part in color
    )
    return red, green, blue


def _random_center(random: Callable[[], float], radius: float) -> float:
    """A coordinate of a shape's center, away from the edges."""
    return radius + EDGE + int(random() * (SIDE - 2 * (radius + EDGE)) * GRID) / GRID


def _is_clear(centers: Sequence[tuple[float, float]], radii: Sequence[float]) -> bool:
    for i, (x, y) in enumerate(centers):
        for j in range(i):
            across = abs(x - centers[j][0])
            down = abs(y - centers[j][1])
            if max(across, down) < radii[i] + radii[j] + GAP or (
                j == 0 and abs(across - down) < MARGIN
            ):
                return False
    return True
