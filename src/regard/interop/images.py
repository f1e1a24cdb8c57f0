"""preprocessor_config.json of a model folder: how images are resized, cropped and normalized."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidData
from regard.data.fields.image import ImageField
from regard.interop.tensors import read_json

FILE = "preprocessor_config.json"
# By Pillow's numbers.
FILTERS = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}


def image_field(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The table [data.source] of a model of images."""
    side = (config.get("encoder") or config)["image_size"]
    field: dict[str, Any] = {"kind": "image", "image_size": side}
    path = folder / FILE
    if not path.is_file():
        return field
    given = read_json(path)
    for key in ("do_resize", "do_rescale"):
        if given.get(key) not in (None, True):
            raise InvalidData(
                f"{path}: {key}", wanted="true", got=repr(given[key])[:80], remedy="Set it."
            )
    if given.get("do_normalize", True):
        for key in ("image_mean", "image_std"):
            if given.get(key) is not None:
                field[key] = given[key]
    else:
        field["image_mean"] = [0.0] * 3
        field["image_std"] = [1.0] * 3
    if given.get("resample") is not None:
        number = given["resample"]
        if number not in FILTERS:
            wanted = f"one of {', '.join(map(str, FILTERS))}"
            raise InvalidData(
                f"{path}: resample", wanted=wanted, got=repr(number)[:80], remedy="Change it."
            )
        field["image_resize"] = FILTERS[number]
    crop = given.get("crop_size")
    size = given.get("size")
    if given.get("do_center_crop") and crop is not None:
        resized = _side(size, path, "size")
        if _side(crop, path, "crop_size") != side:
            raise InvalidData(
                f"{path}: crop_size", wanted=str(side), got=repr(crop)[:80], remedy="Change it."
            )
        field["image_crop_from"] = resized
    elif size is not None and _side(size, path, "size") != side:
        raise InvalidData(
            f"{path}: size", wanted=str(side), got=repr(size)[:80], remedy="Change it."
        )
    return field


def preprocessor_config(field: ImageField) -> dict[str, Any]:
    """preprocessor_config.json for the images of a field."""
    side = {"height": field.image_size, "width": field.image_size}
    before = field.image_crop_from
    config: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor" if before is None else "DeiTImageProcessor",
        "do_resize": True,
        "size": side if before is None else {"height": before, "width": before},
        "resample": next(number for number, name in FILTERS.items() if name == field.image_resize),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(field.image_mean),
        "image_std": list(field.image_std),
    }
    if before is None:
        return config
    return config | {"do_center_crop": True, "crop_size": side}


def _side(value: Any, path: Path, key: str) -> int:
    """The side of a square: a number, or a height and an equal width."""
    if isinstance(value, dict):
        sides = {value.get("shortest_edge")}
        if "height" in value:
            sides = {value.get("height"), value.get("width")}
        if len(sides) == 1:
            (value,) = sides
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidData(
            f"{path}: {key}",
            wanted="the side of a square",
            got=repr(value)[:80],
            remedy="Change it.",
        )
    return value
