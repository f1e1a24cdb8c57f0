"""Drawn scenes of colored shapes and their captions."""

from collections.abc import Iterator

from regard.data.example import Example, Split
from regard.data.synthetic.sampling import distinct, uniform
from regard.data.synthetic.scenes import Scene, draw_scene


def shapes(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A scene of one to three shapes, and its caption. No arrangement of shapes is in two splits.

    The source is a `Scene`: `draw()` gives its pixels, `boxes` the bounding box of each shape in the caption.

    >>> example = next(shapes("test"))
    >>> example.target
    'a red circle left of a yellow square and below a black square'
    >>> example.source.boxes[0]
    (4.375, 28.125, 22.375, 46.125)
    """
    random = uniform("shapes", split, seed)

    def draw() -> Example:
        scene = draw_scene(random)
        return Example(scene, scene.caption)

    def arrangement(example: Example) -> str:
        assert isinstance(example.source, Scene)
        return " ".join(f"{shape.name} {shape.x} {shape.y} {shape.radius}" for shape in example.source.shapes)

    return distinct(draw, arrangement, split, size)
