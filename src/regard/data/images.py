"""Pictures to numbers: read with care, made square, and scaled in one place for training and prediction alike.

A file is known by its content, whatever its name. It is turned as its EXIF data say and becomes RGB: what is
transparent shows white, sixteen bits are scaled to eight, of an animation the first frame counts. A picture is
stretched to a square, so that all of it is seen.
"""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument, InvalidData, MissingExtra
from regard.data.image_store import Member
from regard.data.synthetic.scenes import Scene
from regard.data.text import readable

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # none that runs a program, as EPS does
MAX_PIXELS = 1 << 26  # pixels; a file of some kilobytes may claim to hold billions
CELL = 16  # pixels a side that count as one token in a batch's budget

Pixels = NDArray[np.uint8]
ImageInput = str | Path | Member | Scene | Pixels  # a file, packed or not, drawn as it is needed, or an array (Y, X, 3)


def load_image(picture: object, size: int) -> Pixels:
    """A `Picture` as it is stored: (size, size, 3)."""
    if isinstance(picture, str | Path | Member):
        return read_image(picture, size)
    found: Any = picture.draw() if isinstance(picture, Scene) else picture
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] != 3:
        got = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else repr(found)[:60]
        raise InvalidArgument(
            "picture", wanted="a path, or an array of uint8 (height, width, 3)", got=got, remedy="Give RGB, 0 to 255."
        )
    if 0 in found.shape:
        raise InvalidArgument("picture", wanted="at least one pixel", got=str(found.shape), remedy="Give another.")
    if found.shape[:2] == (size, size):
        return found
    return _square(_pillow().fromarray(found), size)


def normalize(batch: NDArray[np.uint8]) -> torch.Tensor:
    """What a network reads: from (B, Y, X, 3) of 0 to 255 to (B, 3, Y, X) of -1 to 1."""
    channels = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2)))
    return channels.to(torch.float32).div_(127.5).sub_(1.0)


def image_token_cost(size: int) -> int:
    """How many tokens of a batch's budget a picture takes."""
    return max(1, size // CELL) ** 2


def read_image(path: str | Path | Member, size: int) -> Pixels:
    """The picture of a file, (size, size, 3); whatever is wrong with it, the error names the file."""
    return _square(_upright(path), size)


def read_thumbnail(picture: str | Path | Member, longest: int) -> Pixels:
    """The picture of a file as people look at it, in its own proportions; its longer side has so many pixels."""
    image = _upright(picture)
    width, height = (max(1, round(side * longest / max(image.size))) for side in image.size)
    return np.array(image.resize((width, height), _pillow().Resampling.BICUBIC, reducing_gap=3.0), dtype=np.uint8)


def _upright(path: str | Path | Member) -> Any:
    """The image of a file, upright and in RGB."""
    image_class = _pillow()
    content = path.read() if isinstance(path, Member) else _content(path)
    try:
        with image_class.open(BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise _too_large(path, f"{width:,} × {height:,}")
            return _as_rgb(image)
    except InvalidData:
        raise
    except Exception as error:  # decoders stumble over bad files in every way there is
        if "DecompressionBomb" in type(error).__name__:
            raise _too_large(path, "more") from None
        got = str(error) or type(error).__name__
        if type(error).__name__ == "UnidentifiedImageError":
            got = f"a file that begins with {content[:12]!r}" if content else "an empty file"
        raise InvalidData(
            path, wanted=f"a whole picture ({', '.join(FORMATS)})", got=got[:200], remedy="Save it again, or drop it."
        ) from None


def _content(path: str | Path) -> bytes:
    try:
        with readable(path):
            return Path(path).read_bytes()
    except ValueError as error:
        if isinstance(error, InvalidData):
            raise
        raise InvalidData(repr(path), wanted="a file's name", got=str(error), remedy="Check the path.") from None


def _as_rgb(image: Any) -> Any:
    """Upright and in RGB."""
    from PIL import ImageOps

    kind = image.format
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PPM"):
        values = np.asarray(image).astype(np.int64)
        if "transparency" in image.info:  # one value that stands for none
            values[values == image.info["transparency"]] = 65535
        return _pillow().fromarray(((values * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, for which no value is agreed to be white")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = _pillow().new("RGBA", image.size, "white")
        return _pillow().alpha_composite(white, image).convert("RGB")
    if image.mode == "LAB":
        from PIL import ImageCms

        return ImageCms.profileToProfile(
            image, ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    return image.convert("RGB")


def _square(image: Any, size: int) -> Pixels:
    if image.size != (size, size):
        image = image.resize((size, size), _pillow().Resampling.BICUBIC, reducing_gap=3.0)
    return np.array(image, dtype=np.uint8)


def _too_large(path: str | Path | Member, got: str) -> InvalidData:
    wanted = f"at most {MAX_PIXELS:,} pixels"
    return InvalidData(path, wanted=wanted, got=got, remedy="Make it smaller, if you trust it.")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "images", "A picture's file") from None
    return Image


def webp(picture: Pixels) -> bytes:
    """A picture (height, width, 3) as a small file, which browsers show."""
    packed = BytesIO()
    _pillow().fromarray(picture).save(packed, "WEBP", quality=80)
    return packed.getvalue()
