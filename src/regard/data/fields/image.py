"""The field `image`: an image file becomes pixels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.core.config import Count, Probability, Range, doc
from regard.core.errors import InvalidArgument, Problem
from regard.core.shapes import Tensor
from regard.data.augmentation import AugmentKind
from regard.data.column_files import ColumnWriter, ImageWriter, open_images
from regard.data.columns import Column
from regard.data.fields.base import FORMER_DEFAULTS, Field
from regard.data.image_store import IMAGES
from regard.data.images import (
    HALVES,
    Pixels,
    ResizeFilter,
    decode_image,
    image_token_cost,
    load_image,
    normalize,
    url_of,
)
from regard.data.synthetic.scenes import SIDE


@dataclass(frozen=True)
class ImageField(Field):
    """An image, which becomes pixels."""

    kind: Literal["image"] = doc("image", "an image becomes pixels")
    image_size: Count = doc(SIDE, "height and width in pixels to which images are resized")
    image_resize: ResizeFilter = doc("bicubic", "filter with which images are resized")
    image_crop_from: Count | None = doc(
        None,
        "height and width to which images are resized instead, before their "
        "center of image_size is cropped",
    )
    image_mean: tuple[Probability, ...] = doc(
        HALVES, "subtracted from red, green and blue, which are in [0, 1]"
    )
    image_std: tuple[Annotated[float, Range(1e-3)], ...] = doc(
        HALVES, "by which they are divided then"
    )
    augment: tuple[AugmentKind, ...] | None = doc(
        None,
        'random changes of each training image. "flip" is wrong where captions say left and right',
    )

    noun = "an image"
    is_file = True
    content_key = "image"
    stored = IMAGES
    folder_key = "images"
    input_kind = "image"

    def conflicts(self) -> Iterator[Problem]:
        if self.image_crop_from is not None and self.image_crop_from < self.image_size:
            wanted = f"at least image_size = {self.image_size}"
            yield Problem("image_crop_from", wanted, str(self.image_crop_from), "Raise it.")
        for key in ("image_mean", "image_std"):
            if len(getattr(self, key)) != 3:
                got = str(list(getattr(self, key)))
                remedy = f"As in {key} = [0.5, 0.5, 0.5]."
                yield Problem(key, "three numbers: of red, green and blue", got, remedy)
        if not self.normalized_to_one and "color" in (self.augment or ()):
            wanted = "no 'color' with another image_mean or image_std than 0.5"
            yield Problem("augment", wanted, str(list(self.augment or ())), "Leave one out.")

    @property
    def normalized_to_one(self) -> bool:
        """Whether the numbers of an image are in [-1, 1]."""
        return self.image_mean == self.image_std == HALVES

    def color_problems(self, *, normalized_by_encoder: bool) -> Iterator[Problem]:
        if normalized_by_encoder and not self.normalized_to_one:
            wanted = "nothing here: the backbone normalizes colors itself"
            got = f"{list(self.image_mean)}, {list(self.image_std)}"
            yield Problem("image_mean, image_std", wanted, got, "Leave them out.")

    @property
    def resizing(self) -> tuple[int, ResizeFilter, int | None]:
        """The arguments of `images.load_image` beside the image."""
        return self.image_size, self.image_resize, self.image_crop_from

    @property
    def random_changes(self) -> tuple[AugmentKind, ...] | None:
        return self.augment

    @property
    def arrays_settings(self) -> dict[str, Any]:
        # Random changes are made in batches, not on disk.
        own = {key.name: getattr(self, key.name) for key in fields(self) if key.name != "augment"}
        return FORMER_DEFAULTS | own

    def row_text(self, vocabulary: None, values: Tensor, row: int) -> str:
        height, width = values.shape[2:]
        return f"an image of {width} × {height} pixels"

    def example(self, vocabulary: Any) -> NDArray[np.uint8]:
        return np.zeros((self.image_size, self.image_size, 3), np.uint8)

    def from_request(self, name: str, given: Any, size: int | None) -> Pixels:
        if not isinstance(given, bytes):
            raise InvalidArgument(
                name,
                wanted='the content of an image: {"image": BASE64}, or uploaded',
                got="a list",
                remedy="No path and no URL is taken.",
            )
        return decode_image(given, f"image of {name}", *self.resizing)

    def request_text(self, value: Any) -> str:
        size, resize, crop_from = self.resizing
        return url_of(load_image(value, crop_from or size, resize))

    def title(self, cell: Any) -> str:
        return Path(cell).name if isinstance(cell, str | Path) else "image"

    def learn(self, values: Iterator[Any], *, is_target: bool) -> None:
        return None

    def encode(self, vocabulary: None, values: Sequence[Any]) -> list[Any]:
        return list(values)

    def length(self, encoded: Any) -> int:
        return image_token_cost(self.image_size)

    def collate(self, vocabulary: None, encoded: Sequence[Any]) -> Tensor:
        pixels = np.stack([load_image(image, *self.resizing) for image in encoded])
        return normalize(pixels, self.image_mean, self.image_std)

    def writer(self, stem: Path, vocabulary: None, *, running: bool) -> ColumnWriter:
        return ImageWriter(stem, self.resizing)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_images(stem, self.image_mean, self.image_std)


def require_image(field: Field) -> ImageField:
    """The field as one of images: for what is only called with one."""
    assert isinstance(field, ImageField)
    return field
