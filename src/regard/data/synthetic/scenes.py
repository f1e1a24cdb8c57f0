"""Drawn scenes: a few coloured shapes on noisy paper, with a caption, and the box of each shape that it names.

A scene is its parameters; `draw` makes the same pixels of them everywhere, with NumPy alone.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pixels
GRID = 8  # places and sizes are whole eighths of a pixel
EDGE = 1.5  # pixels between a shape and the picture's edge, at least
GAP = 2.0  # pixels between the boxes of two shapes, at least
MARGIN = 6.0  # by how much one is further left, say, than it is further up: what is neither is not drawn
RADII = (7.0, 13.0)
TINT = 15  # how far a colour may stray
LIGHT = 215  # of the paper, at least
GRAIN = 12  # the strongest noise, either way

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
Color = tuple[int, int, int]
Vertices = tuple[tuple[float, float], ...]

COLORS: dict[str, Color] = {  # in the order in which a caption names them
    "red": (205, 35, 35),
    "orange": (240, 140, 25),
    "yellow": (235, 215, 30),
    "green": (35, 150, 60),
    "blue": (40, 75, 205),
    "purple": (130, 45, 160),
    "black": (30, 30, 30),
}


# The corners of each for a radius of 1, y pointing down; a circle has none.
KINDS: dict[str, Vertices] = {
    "circle": (),
    "square": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "triangle": ((0, -1), (1, 0.8), (-1, 0.8)),
    "cross": ((-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33),
              (0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33)),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    kind: str
    color: str
    tint: Color  # the colour as it is here
    x: float  # of the middle, in pixels
    y: float
    radius: float

    @property
    def name(self) -> str:
        return f"{'an' if self.color[0] in 'aeiou' else 'a'} {self.color} {self.kind}"

    @property
    def box(self) -> Box:
        corners = KINDS[self.kind] or ((-1.0, -1.0), (1.0, 1.0))
        across, down = ([self.radius * corner[axis] for corner in corners] for axis in (0, 1))
        return self.x + min(across), self.y + min(down), self.x + max(across), self.y + max(down)

    def distance(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """From each point to the outline; negative within."""
        x, y = x - self.x, y - self.y
        corners = np.array(KINDS[self.kind]) * self.radius
        if not len(corners):
            return np.sqrt(x * x + y * y) - self.radius
        (ax, ay), (bx, by) = (side.T[:, :, None, None] for side in (corners, np.roll(corners, -1, axis=0)))
        ex, ey = bx - ax, by - ay  # (K, 1, 1), as are the corners
        along = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey), 0, 1)  # (K, Y, X)
        away = np.sqrt(((x - ax - along * ex) ** 2 + (y - ay - along * ey) ** 2).min(0))
        # A point is within if a ray from it crosses an odd number of sides.
        level = np.where(ey == 0, 1.0, ey)
        crossed = ((ay > y) != (by > y)) & (x < ax + (y - ay) * ex / level)
        return np.asarray(np.where(crossed.sum(0) % 2 == 1, -away, away))


@dataclass(frozen=True)
class Scene:
    """One to three shapes, in the order of the caption, and how they are drawn."""

    shapes: tuple[Shape, ...]
    paper: Color
    smooth: bool  # whether edges are anti-aliased
    grain: int  # the noise is at most this, either way
    noise: int  # which noise

    @property
    def caption(self) -> str:
        """The first shape, and where it lies from each of the others."""
        first, *others = self.shapes
        return f"{first.name} {' and '.join(f'{relation(first, other)} {other.name}' for other in others)}".strip()

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Where each shape of the caption is."""
        return tuple(shape.box for shape in self.shapes)

    def __str__(self) -> str:
        return f"a drawing of {self.caption}"

    def draw(self) -> NDArray[np.uint8]:
        """The picture, (Y, X, 3)."""
        picture = np.empty((SIDE, SIDE, 3))
        picture[:] = self.paper
        for shape in self.shapes:
            left, top, right, bottom = (int(edge) for edge in shape.box)
            window = slice(max(0, top - 1), bottom + 3), slice(max(0, left - 1), right + 3)
            places = np.arange(0.5, SIDE)  # the middles of pixels
            away = shape.distance(places[None, window[1]], places[window[0], None])
            cover = np.clip(0.5 - away, 0, 1) if self.smooth else (away < 0).astype(np.float64)
            picture[window] += cover[:, :, None] * (np.array(shape.tint) - picture[window])
        # A hash draws the noise: it gives the same bytes in every version of everything, and faster than most.
        drawn = hashlib.shake_128(str(self.noise).encode()).digest(picture.size)
        noise = (np.frombuffer(drawn, np.uint8).astype(np.int16) * (2 * self.grain + 1) >> 8) - self.grain
        return np.clip(np.rint(picture).astype(np.int16) + noise.reshape(picture.shape), 0, 255).astype(np.uint8)


def relation(one: Shape, other: Shape) -> str:
    """Where one is from the other: along the axis on which they are further apart."""
    across, down = one.x - other.x, one.y - other.y
    if abs(across) > abs(down):
        return "left of" if across < 0 else "right of"
    return "above" if down < 0 else "below"


def draw_scene(chance: Callable[[], float]) -> Scene:
    """Any scene whose caption leaves no doubt: no two colours alike, none over another, each clearly to one side."""
    count, colors = 1 + _below(chance, 3), list(COLORS)
    while len(colors) > count:
        colors.pop(_below(chance, len(colors)))
    kinds = [list(KINDS)[_below(chance, len(KINDS))] for _ in colors]
    tints = [_stray(chance, COLORS[color]) for color in colors]
    while True:
        radii = [RADII[0] + _below(chance, int((RADII[1] - RADII[0]) * GRID) + 1) / GRID for _ in colors]
        places = [(_within(chance, radius), _within(chance, radius)) for radius in radii]
        if _clear(places, radii):
            break
    shapes = tuple(
        Shape(kind, color, tint, x, y, radius)
        for kind, color, tint, radius, (x, y) in zip(kinds, colors, tints, radii, places, strict=True)
    )
    light = 256 - LIGHT
    paper = LIGHT + _below(chance, light), LIGHT + _below(chance, light), LIGHT + _below(chance, light)
    return Scene(shapes, paper, chance() < 0.5, _below(chance, GRAIN + 1), _below(chance, 1 << 32))


def _below(chance: Callable[[], float], number: int) -> int:
    return int(chance() * number)


def _stray(chance: Callable[[], float], color: Color) -> Color:
    """Much the same colour."""
    red, green, blue = (min(255, max(0, part + _below(chance, 2 * TINT + 1) - TINT)) for part in color)
    return red, green, blue


def _within(chance: Callable[[], float], radius: float) -> float:
    """Where a shape's middle may be."""
    return radius + EDGE + int(chance() * (SIDE - 2 * (radius + EDGE)) * GRID) / GRID


def _clear(places: Sequence[tuple[float, float]], radii: Sequence[float]) -> bool:
    for i, (x, y) in enumerate(places):
        for j in range(i):
            across, down = abs(x - places[j][0]), abs(y - places[j][1])
            if max(across, down) < radii[i] + radii[j] + GAP or (j == 0 and abs(across - down) < MARGIN):
                return False
    return True
