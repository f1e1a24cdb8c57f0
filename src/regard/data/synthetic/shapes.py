"""Drawn scenes of colored shapes, with captions, with the kind of one shape,
or with questions and answers.
"""

from collections.abc import Iterator

from regard.data.example import Example, Split
from regard.data.synthetic.sampling import distinct, uniform
from regard.data.synthetic.scenes import Scene, draw_scene


def shapes(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A scene of one to three shapes, and its caption. No arrangement of shapes is in two splits.

    The source is a `Scene`: `draw()` gives its pixels, `boxes` the bounding box of each shape in
    the caption.

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

    return distinct(draw, _arrangement, split, size)


def red_shapes(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A scene with one red shape and at most two of other colors, and the kind of the red one,
    as a label.

    >>> example = next(red_shapes("test"))
    >>> example.source.caption, example.target
    ('a red circle above a green circle', 'circle')
    """
    random = uniform("red-shapes", split, seed)

    def draw() -> Example:
        while True:
            scene = draw_scene(random)
            for shape in scene.shapes:
                if shape.color == "red":
                    return Example(scene, shape.kind)

    return distinct(draw, _arrangement, split, size)


def questions(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """Two sources, a scene and a question about the color or the kind of one of its shapes;
    and the answer.

    The question describes one shape only. No arrangement of shapes is in two splits.

    >>> example = next(questions("test"))
    >>> example.sources[0].caption
    'a yellow cross below a purple triangle and left of a black cross'
    >>> example.sources[1], example.target
    ('what color is the triangle?', 'purple')
    """
    random = uniform("questions", split, seed)

    def draw() -> Example:
        while True:
            scene = draw_scene(random)
            shape = scene.shapes[int(random() * len(scene.shapes))]
            asked = "color"
            given = shape.kind
            answer = shape.color
            if random() < 0.5:
                asked = "shape"
                given = shape.color
                answer = shape.kind
            if sum(given in (other.kind, other.color) for other in scene.shapes) == 1:
                question = f"what is {given}?"
                if asked == "color":
                    question = f"what color is the {given}?"
                return Example((scene, question), answer)

    return distinct(draw, _arrangement, split, size)


def _arrangement(example: Example) -> str:
    scene = example.sources[0]
    assert isinstance(scene, Scene)
    return " ".join(f"{shape.name} {shape.x} {shape.y} {shape.radius}" for shape in scene.shapes)
