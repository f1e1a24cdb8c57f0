"""Where a captioner of drawn scenes looks as it names a shape, measured against the shape's box."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from regard.core.shapes import Tensor
from regard.data.synthetic.scenes import KINDS, SIDE, Scene
from regard.data.synthetic.shapes import shapes
from regard.evaluation.pointing_game import BoundingBox, PointingScore, pointing_score
from regard.inference.predictor import Predictor
from regard.interpret.output_attention import require_cross_attention
from regard.interpret.regions import RegionWord, regions, words

Look = tuple[Tensor, BoundingBox]  # a word's weights, and the box of what it names


def point(predictor: Predictor, count: int = 200) -> tuple[int, dict[str, PointingScore | None]]:
    """Of the first scenes of the test split: how many are captioned right, and in these how colours and kinds point."""
    require_cross_attention("model", predictor.model)
    scenes: list[Any] = [example.source for example in islice(shapes("test"), count)]
    grid, right = regions(predictor), 0
    looks: dict[str, list[Look]] = {"color": [], "kind": []}
    for scene, outputs in zip(scenes, predictor.outputs(scenes, attention=True), strict=True):
        if outputs[0].text == scene.caption:
            right += 1
            for what, found in named(scene, words(predictor, outputs[0], grid)).items():
                looks[what] += found
    return right, {what: pointing_score(found) for what, found in looks.items()}


def named(scene: Scene, said: Sequence[RegionWord]) -> dict[str, list[Look]]:
    """The words of a scene's caption that name a shape, by its colour and by its kind, and the shape's box."""
    boxes = {shape.color: shape.box for shape in scene.shapes}  # of each colour there is one
    found: dict[str, list[Look]] = {"color": [], "kind": []}
    box = None
    for word in said:
        if word.text in boxes:
            left, top, right, bottom = (edge / SIDE for edge in boxes[word.text])
            box = left, top, right, bottom
            found["color"].append((word.weights, box))
        elif word.text in KINDS and box is not None:
            found["kind"].append((word.weights, box))
    return found
