"""Image augmentation: each operation against its definition; results depend on seed, epoch and example alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import regard
from regard.api.train import train
from regard.core.config import read
from regard.data.augmentation import AREA, DRAWS, JITTER, LUMA, RATIO, augment
from regard.data.batching import batches, evaluation_batches, uniform_draws
from regard.data.columns import ImageColumn, LabelColumn
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, prepare
from regard.data.images import normalize
from regard.data.synthetic.sampling import SIZES
from regard.recipe.recipe import Recipe
from support.training_runs import interrupted, log, same, weights

ALL = ("crop", "flip", "color")


def drawn(count=64, seed=0):
    return torch.rand(count, DRAWS, generator=torch.Generator().manual_seed(seed))


def pictures(count=4, size=8, seed=0):
    return (
        2 * torch.rand(count, 3, size, size + 2, generator=torch.Generator().manual_seed(seed)) - 1
    )


# --- what is done to a picture ---


def test_crops_are_parts_of_the_image():
    """Red encodes the column of a pixel and green its row, so that the position of a crop can be read from it."""
    size, numbers = 32, drawn()
    place = (torch.arange(size) + 0.5) / size  # from 0 to 1
    map_ = torch.stack(
        (place.expand(size, size), place[:, None].expand(size, size), torch.zeros(size, size))
    )
    found = augment(map_.expand(64, -1, -1, -1), ["crop"], numbers)
    inner = found[:, :, 4:-4, 4:-4]  # at the edge a pixel has nothing to mix with
    step_right, step_down = inner[:, 0].diff(dim=2), inner[:, 1].diff(dim=1)
    width, height = step_right.mean((1, 2)) * size, step_down.mean((1, 2)) * size
    torch.testing.assert_close(
        step_right * size, width[:, None, None].expand_as(step_right), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        step_down * size, height[:, None, None].expand_as(step_down), atol=1e-4, rtol=0
    )
    assert (inner[:, 0].diff(dim=1).abs() < 1e-5).all()
    area, ratio = width * height, width / height
    assert (area > AREA - 0.12).all()  # a wide one of nearly all is cut to what there is
    assert (area < 1 + 1e-4).all()
    assert area.min() < 0.66
    assert area.max() > 0.9
    assert (ratio < RATIO + 1e-3).all()
    assert (ratio > 1 / RATIO - 1e-3).all()
    middle = torch.stack((found[:, 0].mean((1, 2)), found[:, 1].mean((1, 2))), 1)
    half = torch.stack((width, height), 1) / 2
    assert (middle - half > -0.02).all()
    assert (middle + half < 1.02).all()
    assert (middle.std(0) > 0.03).all()


def test_a_full_crop_is_the_image():
    numbers = torch.full((4, DRAWS), 0.5)
    numbers[:, 1] = 1.0  # all of the area, in its own shape
    torch.testing.assert_close(
        augment(pictures(), ["crop"], numbers), pictures(), atol=1e-5, rtol=0
    )


def test_every_second_image_is_flipped():
    numbers, given = drawn(), pictures(64)
    found = augment(given, ["flip"], numbers)
    turned = numbers[:, 0] < 0.5
    assert 20 < turned.sum() < 44
    assert torch.equal(found[turned], given[turned].flip(3))
    assert torch.equal(found[~turned], given[~turned])


def test_color_jitter_equals_its_definition():
    """Brightness, then contrast, then saturation, pixel by pixel, on values from 0 to 1."""
    numbers, given = drawn(16), 0.4 * pictures(16)
    found = augment(given, ["color"], numbers)
    luma = torch.tensor(LUMA)[:, None, None]
    for picture, one, got in zip(given, numbers, found, strict=True):
        brightness, contrast, colourful = (1 + JITTER * (2 * one[-3:] - 1)).tolist()
        value = brightness * (picture + 1) / 2
        value = contrast * value + (1 - contrast) * (luma * value).sum(0).mean()
        value = colourful * value + (1 - colourful) * (luma * value).sum(0)
        torch.testing.assert_close(got, 2 * value - 1, atol=1e-5, rtol=0)
    assert augment(4 * given, ["color"], numbers).abs().max() == 1.0
    torch.testing.assert_close(
        augment(given, ["color"], torch.full((16, DRAWS), 0.5)), given, atol=1e-5, rtol=0
    )


def test_images_of_a_batch_are_independent():
    numbers, given = drawn(4), pictures()
    together = augment(given, ALL, numbers)
    for i in range(4):
        alone = augment(given[i : i + 1], ALL, numbers[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-6, rtol=0)
    assert torch.equal(given, pictures())  # as it was


# --- which numbers ---


def test_random_numbers_are_uniform_and_belong_to_the_example():
    found = uniform_draws(np.arange(5000), DRAWS, (1, 2))
    assert found.min() >= 0
    assert found.max() < 1
    assert np.abs(found.mean(0) - 0.5).max() < 0.02
    assert np.abs(found.var(0) - 1 / 12).max() < 0.005
    assert np.abs(np.corrcoef(found.T) - np.eye(DRAWS)).max() < 0.06
    assert np.array_equal(uniform_draws(np.array([77, 3]), DRAWS, (1, 2)), found[[77, 3]])
    for key in ((1, 3), (2, 2), (2, 1)):
        assert (
            np.abs(np.corrcoef(found[:, 0], uniform_draws(np.arange(5000), DRAWS, key)[:, 0])[0, 1])
            < 0.06
        )


def corpus(count=30):
    pixels = np.random.default_rng(0).integers(0, 256, (count // 2, 8, 8, 3), dtype=np.uint8)
    return Corpus(
        ImageColumn(pixels, np.arange(count) // 2), LabelColumn(np.zeros(count, np.uint32))
    )


def shown(**settings):
    """Each example's image in an epoch."""
    found = {}
    for batch in batches(
        corpus(), **{"budget": 7, "seed": 1, "epoch": 0, "augment": ALL} | settings
    ):
        found |= dict(zip(batch.rows.tolist(), batch.source, strict=True))
    return found


def test_augmentation_depends_on_seed_epoch_and_example():
    first = shown()
    assert len(first) == 30
    for other in (shown(), shown(budget=3), shown(rank=0, world=2) | shown(rank=1, world=2)):
        assert all(torch.allclose(first[i], other[i], atol=1e-6) for i in first)
    later = shown(start=2)
    assert len(later) == 30 - 14
    assert all(torch.equal(first[i], later[i]) for i in later)
    for other in (shown(epoch=1), shown(seed=2)):
        assert not any(torch.allclose(first[i], other[i], atol=1e-2) for i in first)
    assert not torch.allclose(first[0], first[1], atol=1e-2)  # one picture, two examples


def test_evaluation_images_are_not_augmented():
    stored = corpus().source
    plain = shown(augment=())
    assert all(torch.equal(plain[i], stored.gather(np.array([i]))[0]) for i in plain)
    for batch in evaluation_batches(corpus(), 7):
        assert torch.equal(batch.source, normalize(stored.pixels[stored.which[batch.rows]]))


# --- in a recipe ---


def table(**source):
    return {
        "data": {
            "synthetic": "shapes",
            "source": {"kind": "image", **source},
            "target": {"tokenizer": "words", "vocab_size": 50},
        },
        "model": {
            "encoder": {"kind": "cnn", "channels": [4, 4], "dim": 8},
            "decoder": {"kind": "rnn", "dim": 8, "dropout": 0.0},
        },
        "train": {
            "max_steps": 6,
            "warmup_steps": 1,
            "validate_every": 6,
            "batch_tokens": 64,
            "log_every": 2,
            "log_samples": 0,
        },
    }


@pytest.fixture
def few(monkeypatch):
    for split, count in (("train", 12), ("valid", 2), ("test", 2)):
        monkeypatch.setitem(SIZES, split, count)


def test_resumed_equals_uninterrupted(tmp_path, few):
    recipe = table(augment=["crop", "color"])
    train(recipe, tmp_path / "whole", cache=tmp_path / "cache")
    interrupted(recipe, tmp_path / "parts", 4, tmp_path / "cache")  # within the second epoch
    other = table(augment=["crop"])
    with pytest.raises(regard.CheckpointRefused, match="wanted the recipe that the run began with"):
        train(other, tmp_path / "parts", cache=tmp_path / "cache", resume=True)
    train(recipe, tmp_path / "parts", cache=tmp_path / "cache", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert log(tmp_path / "whole") == log(tmp_path / "parts")
    train(table(), tmp_path / "plain", cache=tmp_path / "cache")
    assert not same(weights(tmp_path / "whole"), weights(tmp_path / "plain"))


def test_augmentation_does_not_change_the_prepared_corpus(tmp_path, few):
    plain = Recipe.of(table()).data
    changed = replace(plain, source=replace(plain.source, augment=ALL))
    assert prepare(plain, tmp_path).folder == prepare(changed, tmp_path).folder


WRONG = {
    "of a text": (
        {"train": "a", "target": {"augment": ["flip"]}},
        "data.target.augment: wanted nothing here",
    ),
    "of bytes": (
        {"train": "a", "target": {"tokenizer": "bytes", "augment": ["flip"]}},
        "data.target.augment: wanted no",
    ),
    "unknown": (
        {"train": "a.json", "source": {"kind": "image", "augment": ["colour"]}},
        "data.source.augment: wanted a list, each item one of 'crop', 'flip', 'color'",
    ),
    "no list": (
        {"train": "a.json", "source": {"kind": "image", "augment": "flip"}},
        "data.source.augment: wanted a",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_augmentation_of_other_fields_is_refused(name):
    given, message = WRONG[name]
    problems = read(DataConfig, given, "data")
    assert isinstance(problems, list)
    assert any(message in str(problem) for problem in problems), list(map(str, problems))
