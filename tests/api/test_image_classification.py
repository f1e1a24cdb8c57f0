"""Image classification: folders of classes, training, evaluation, prediction and looks, as a user would."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.api.train import train
from regard.core.errors import InvalidData, InvalidRecipe
from regard.data.config import DataConfig
from regard.data.fields.base import make_field
from regard.data.fingerprint import fingerprints, key_of
from regard.data.sources import examples
from regard.data.synthetic.sampling import SIZES
from regard.data.synthetic.shapes import red_shapes
from regard.inference.load import load
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from regard.recipe.shipped import find_recipe
from support.command_line import command

Image = pytest.importorskip(
    "PIL.Image", reason="Pillow is not installed: pip install 'regard[images]'"
)

COLORS = {"blue": (20, 40, 220), "red": (220, 30, 20), "yellow": (230, 220, 30)}
FIELDS = {"source": make_field("image", image_size=16), "target": make_field("label")}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Noisy images of one color each, in a folder for each color; and the same as a zip file."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(1)
    for name, color in COLORS.items():
        (folder / "train" / name).mkdir(parents=True)
        for i in range(6):
            pixels = np.clip(
                np.array(color) + random.integers(-20, 20, (20, 24, 3)), 0, 255
            ).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "train" / name / f"{i}.png")
    (folder / "train" / "red" / "notes.txt").write_text("no image")
    with zipfile.ZipFile(folder / "train.zip", "w") as packed:
        for path in sorted((folder / "train").rglob("*.*")):
            packed.write(path, path.relative_to(folder))
    return folder


def hash_of(config: DataConfig) -> str:
    return key_of(config, fingerprints(config, lambda *_: None, ["train"]), None)


@pytest.mark.parametrize("name", ["train", "train.zip"])
def test_the_label_of_an_image_is_the_name_of_its_folder(photos, name):
    found = list(examples(DataConfig(train=str(photos / name), **FIELDS), "train"))
    assert [each.target for each in found] == [name for name in COLORS for _ in range(6)]
    assert [str(each.source).split("train/")[1] for each in found[5:7]] == [
        "blue/5.png",
        "red/0.png",
    ]


def test_a_share_of_a_folder_is_held_out(photos):
    config = DataConfig(train=str(photos / "train"), valid=0.3, **FIELDS)
    splits = [
        {str(each.source) for each in examples(config, split)} for split in ("train", "valid")
    ]
    assert all(splits)
    assert not splits[0] & splits[1]
    assert len(splits[0] | splits[1]) == 18


def test_the_fingerprint_of_a_folder_is_that_of_its_classes_and_images(photos, tmp_path):
    config = DataConfig(train=str(photos / "train"), **FIELDS)
    shutil.copytree(photos / "train", tmp_path / "copy")
    copy = DataConfig(train=str(tmp_path / "copy"), **FIELDS)
    assert hash_of(copy) == hash_of(config)
    (tmp_path / "copy" / "red").rename(tmp_path / "copy" / "rose")  # in the same order
    renamed = hash_of(copy)
    shutil.copy(photos / "train" / "red" / "0.png", tmp_path / "copy" / "rose" / "1.png")
    packed = DataConfig(train=str(photos / "train.zip"), **FIELDS)
    assert len({hash_of(config), renamed, hash_of(copy), hash_of(packed)}) == 4


def test_images_without_a_class_are_refused(photos, tmp_path):
    def first(path):
        return next(examples(DataConfig(train=str(path), **FIELDS), "train"))

    with pytest.raises(
        InvalidData,
        match=r"wanted images in a folder of their class, as in cats/1\.jpg; got 0\.png",
    ):
        first(photos / "train" / "red")
    with pytest.raises(
        InvalidData, match=r"wanted a folder of images, or a \.zip file; got neither"
    ):
        first(tmp_path / "none")
    with pytest.raises(
        InvalidRecipe, match="train: wanted a file for each of source, target; got photos"
    ):
        DataConfig(train="photos", source=FIELDS["source"])


@pytest.fixture(scope="module")
def run(photos):
    part = {
        "kind": "vit",
        "patch_size": 4,
        "transformer": {"dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16},
    }
    recipe = {
        "data": {
            "train": str(photos / "train"),
            "test": str(photos / "train.zip"),
            "source": {"kind": "image", "image_size": 16},
            "target": {"kind": "label"},
        },
        "model": {"encoder": part, "pool": {"kind": "attention"}},
        "train": {"max_steps": 60, "warmup_steps": 5, "batch_tokens": 64, "learning_rate": 5e-3},
    }
    train(Recipe.of(recipe), photos / "run", cache=photos / "cache")
    return photos / "run"


def test_a_classifier_of_images_is_evaluated_class_by_class(run, photos, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(photos / "cache"))
    for data in (["--trust-data-paths"], ["--data", photos / "train"]):
        done = command("evaluate", run, *data, "--json")
        assert done.returncode == 0, done.stderr
        (system,) = json.loads(done.stdout)["systems"]
        assert system["metrics"]["accuracy"]["value"] == 1.0
        assert [(each["label"], each["references"]) for each in system["classes"]] == [
            (name, 6) for name in COLORS
        ]


def test_predict_takes_images_folders_and_zip_files(run, photos):
    red, yellow = (photos / "train" / name / "0.png" for name in ("red", "yellow"))
    assert command("predict", run, red, yellow).stdout == "red\nyellow\n"
    for path in (photos / "train", photos / "train.zip"):
        assert command("predict", run, path).stdout.split() == [
            name for name in COLORS for _ in range(6)
        ]
    (photos / "paths.txt").write_text(f"{yellow}\n{red}\n")
    assert command("predict", run, photos / "paths.txt", red).stdout == "yellow\nred\nred\n"
    done = command("predict", run, photos / "train.zip", "--json")
    first = json.loads(done.stdout.splitlines()[0])
    assert (first["input"], first["output"]) == (f"{photos}/train.zip/train/blue/0.png", "blue")
    alone = load(run).outputs([photos / "train" / "blue" / "0.png"])[0][0].probabilities
    assert first["probabilities"] == pytest.approx(alone, rel=1e-4)
    name, value, *_ = command("predict", run, red, "--probabilities").stdout.split("\t")
    assert name == "red"
    assert float(value) > 0.5
    done = command("predict", run, photos / "train" / "red" / "notes.txt")
    assert done.returncode == 2
    assert "no image: wanted a file to read" in done.stderr


def test_images_and_labels_from_python(photos, monkeypatch):
    """Paths as texts and as Path, relative to the working directory."""
    monkeypatch.chdir(photos)
    rows = [(f"train/{name}/0.png", name) for name in COLORS] + [
        (Path("train", name, "1.png"), name) for name in COLORS
    ]
    tables = {
        "data": {"source": {"kind": "image", "image_size": 16}, "target": {"kind": "label"}},
        "model": {"encoder": {"kind": "cnn", "dim": 8, "channels": [4]}, "pool": {"kind": "mean"}},
        "train": {"max_steps": 2, "warmup_steps": 1},
    }
    model = train(tables, photos / "run from python", data={"train": rows}, cache=photos / "cache")
    assert model.target.names == tuple(COLORS)
    assert len(model.predict(["train/red/2.png"])) == 1


def test_a_look_shows_the_attention_of_the_decision_over_the_grid(run, photos):
    path = photos / "train" / "red" / "0.png"
    done = command("look", run, path)
    assert done.stdout.startswith("0.png → red (")
    assert "pool, 1 head" in done.stdout
    out = photos / "look.json"
    assert command("look", run, path, "--out", out).returncode == 0
    look = json.loads(out.read_text())
    assert (look["output"]["label"], look["sources"][0]["grid"]) == ("red", [4, 4])


def test_the_label_of_a_scene_is_the_kind_of_its_red_shape():
    for example in red_shapes("valid", size=5):
        (red,) = [shape for shape in example.source.shapes if shape.color == "red"]
        assert example.target == red.kind
    train_set, test_set = (
        {each.source for each in red_shapes(split, size=10)} for split in ("train", "test")
    )
    assert not train_set & test_set


def test_our_recipe_of_image_classification_learns(tmp_path, monkeypatch):
    """A few examples by heart; the whole recipe takes about a minute."""
    for split, size in {"train": 12, "valid": 3, "test": 3}.items():
        monkeypatch.setitem(SIZES, split, size)
    torch.manual_seed(0)
    changes = [
        "train.max_steps=100",
        "train.warmup_steps=5",
        "train.validate_every=100",
        "train.learning_rate=3e-3",
    ]
    recipe = read_recipe(find_recipe("shapes-classification"), changes)
    model = train(recipe, tmp_path / "run", cache=tmp_path / "cache")
    known = list(examples(recipe.data, "train"))
    assert model.predict([each.source for each in known]) == [each.target for each in known]
