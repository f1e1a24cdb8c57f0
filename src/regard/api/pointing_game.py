"""The pointing game for captioners of synthetic scenes:
does a word that names a shape attend to the shape's box?
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from regard.api.caption import caption_words, predictor_regions
from regard.core.shapes import Tensor
from regard.data.synthetic.scenes import KINDS, SIDE, Scene
from regard.data.synthetic.shapes import shapes
from regard.evaluation.pointing_game import BoundingBox, PointingScore, pointing_score
from regard.inference.predictor import Predictor
from regard.interpret.output_attention import require_cross_attention
from regard.interpret.regions import RegionWord

WordInBox = tuple[Tensor, BoundingBox]  # a word's weights, and the box of the shape it names


def point(predictor: Predictor, count: int = 200) -> tuple[int, dict[str, PointingScore | None]]:
    """For the first scenes of the test split: the number of right captions,
    and their scores for colors and kinds.
    """
    require_cross_attention("model", predictor.model)
    scenes: list[Any] = [example.source for example in islice(shapes("test"), count)]
    grid = predictor_regions(predictor)
    right = 0
    mentions: dict[str, list[WordInBox]] = {"color": [], "kind": []}
    for scene, outputs in zip(scenes, predictor.outputs(scenes, attention=True), strict=True):
        if outputs[0].text == scene.caption:
            right += 1
            for what, words in named(scene, caption_words(predictor, outputs[0], grid)).items():
                mentions[what] += words
    return right, {what: pointing_score(words) for what, words in mentions.items()}


def named(scene: Scene, words: Sequence[RegionWord]) -> dict[str, list[WordInBox]]:
    """The words of a scene's caption that name a shape, by its color and by its kind,
    with the shape's box.
    """
    boxes = {shape.color: shape.box for shape in scene.shapes}  # colors are unique in a scene
    mentions: dict[str, list[WordInBox]] = {"color": [], "kind": []}
    box = None
    for word in words:
        if word.text in boxes:
            left, top, right, bottom = (edge / SIDE for edge in boxes[word.text])
            box = left, top, right, bottom
            mentions["color"].append((word.weights, box))
        elif word.text in KINDS and box is not None:
            mentions["kind"].append((word.weights, box))
    return mentions
