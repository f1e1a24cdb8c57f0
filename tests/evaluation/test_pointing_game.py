"""Attention against boxes that are known."""

import pytest
import torch

from regard.api.pointing_game import named, point
from regard.core.errors import InvalidArgument
from regard.data.synthetic.scenes import SIDE
from regard.data.synthetic.shapes import shapes
from regard.evaluation.pointing_game import box_coverage, pointing_score
from regard.interpret.regions import RegionWord
from support.captioners import captioner


def test_even_weights_point_at_chance():
    chance = torch.Generator().manual_seed(0)
    for _ in range(50):
        (left, right), (top, bottom) = torch.rand(2, 2, generator=chance).sort(1).values.tolist()
        found = pointing_score([(torch.full((5, 7), 0.1), (left, top, right, bottom))])
        assert found.inside == pytest.approx(found.chance, abs=1e-5)
        assert float(box_coverage(5, 7, (left, top, right, bottom)).mean()) == pytest.approx(
            found.chance, abs=1e-5
        )


def test_weights_inside_a_box_are_counted_by_hand():
    weights = torch.tensor([[1.0, 3.0], [0.0, 4.0]])
    found = pointing_score([(weights, (0.5, 0.0, 1.0, 0.5)), (weights, (0.75, 0.0, 1.0, 1.0))])
    assert found.words == 2
    assert found.inside == pytest.approx((3 / 8 + (3 + 4) / 2 / 8) / 2)
    assert found.chance == pytest.approx(1 / 4)
    assert found.hits == pytest.approx(
        1 / 2
    )  # the middle of the heaviest, at 0.75, 0.75, is on the second's edge
    assert pointing_score([]) is None


def perfect(scene, grid=8):
    """Words that look at nothing but what they name, and those that name nothing at everything."""
    said, box = [], None
    for text in scene.caption.split():
        here = next((shape.box for shape in scene.shapes if shape.color == text), None)
        box = here or box
        weights = torch.ones(grid, grid)
        if here or text in ("circle", "square", "triangle", "cross"):
            weights = box_coverage(grid, grid, tuple(edge / SIDE for edge in box))
        said.append(RegionWord(text, weights))
    return said


def test_each_word_is_held_to_the_shape_that_it_names():
    for example in shapes("test", 0, 30):
        scene = example.source
        found = named(scene, perfect(scene))
        assert [len(looks) for looks in found.values()] == [len(scene.shapes)] * 2
        for looks in found.values():
            assert (
                pointing_score(looks).inside > 0.6
            )  # less than all, as regions reach over a box's edge
            turned = [(weights.flip(0, 1), box) for weights, box in looks]
            assert pointing_score(turned).inside < pointing_score(looks).inside


def test_a_captioner_of_scenes_is_measured():
    made = captioner("transformer")
    right, found = point(made, 3)
    assert right == 0  # never trained
    assert found == {"color": None, "kind": None}
    with pytest.raises(
        InvalidArgument, match="model: wanted one model whose decoder attends to its source"
    ):
        point(captioner("blind"), 3)
