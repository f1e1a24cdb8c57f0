"""Reading, resizing and normalizing images, alike for training and prediction.

The format is recognized by the content, not by the name. EXIF orientation is applied and the image
converted to RGB: transparent pixels over white, 16 bits scaled to 8, the first frame of an
animation. It is resized to a square without cropping; with `crop_from`, to a larger square whose
center is cropped. An image of more than `LARGE` pixels is first reduced by a whole factor.

Large images are converted in bands, so that they are in memory once as their files have them and
once as what they become, and few are decoded at once: together they have at most `AT_ONCE` pixels,
unless one alone has more.
"""

import os
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument, InvalidData, MissingExtra
from regard.core.memory import release_free_memory
from regard.data.image_store import Member, check_size
from regard.data.synthetic.scenes import Scene
from regard.data.text import open_regular, readable

# The filters of Pillow.
ResizeFilter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
HALVES = (0.5, 0.5, 0.5)
# None of these runs a program, unlike EPS.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A file of some kilobytes may claim billions of pixels.
MAX_PIXELS = 1 << 26
LARGE = 1 << 24
AT_ONCE = 1 << 25
BAND = 1 << 20  # pixels that are converted at a time
GIVEN_BACK = 1 << 22  # pixels from which the memory of an image is given back to the system
WEBP_PIXELS = 1 << 24  # of a WebP in a request: decoding takes 17 bytes for each
CELL = 16  # a square of this side counts as one token of a batch

ORIENTATION = 0x0112  # the EXIF tag

Pixels = NDArray[np.uint8]
# A file, a zip member, a scene, or an array (Y, X, 3).
ImageInput = str | Path | Member | Scene | Pixels


def load_image(
    image: object, size: int, resize: ResizeFilter = "bicubic", crop_from: int | None = None
) -> Pixels:
    """An image as it is stored: (size, size, 3). An array of this shape is taken as it is."""
    if isinstance(image, str | Path | Member):
        return read_image(image, size, resize, crop_from)
    pixels: Any = image
    if isinstance(image, Scene):
        pixels = image.draw()
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 3
        or pixels.shape[2] != 3
    ):
        got = repr(pixels)[:60]
        if isinstance(pixels, np.ndarray):
            got = f"{pixels.dtype} of shape {pixels.shape}"
        wanted = "a path, or an array of uint8 (height, width, 3)"
        raise InvalidArgument("image", wanted=wanted, got=got, remedy="Give RGB, 0 to 255.")
    if 0 in pixels.shape:
        raise InvalidArgument(
            "image", wanted="at least one pixel", got=str(pixels.shape), remedy="Give another."
        )
    if pixels.shape[:2] == (size, size):
        return pixels
    return _squared(_pillow().fromarray(pixels), size, resize, crop_from)


def normalize(
    batch: NDArray[np.uint8], mean: Sequence[float] = HALVES, std: Sequence[float] = HALVES
) -> torch.Tensor:
    """Model input: (B, Y, X, 3) bytes to (B, 3, Y, X) floats, (x / 255 - mean) / std;
    by default in [-1, 1].
    """
    channels = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2))).to(torch.float32)
    if tuple(mean) == tuple(std) == HALVES:
        return channels.div_(127.5).sub_(1.0)
    return (
        channels.div_(255.0)
        .sub_(torch.tensor(mean)[:, None, None])
        .div_(torch.tensor(std)[:, None, None])
    )


def image_token_cost(size: int) -> int:
    """The number of tokens an image counts as in the size of a batch."""
    return max(1, size // CELL) ** 2


def read_image(
    path: str | Path | Member,
    size: int,
    resize: ResizeFilter = "bicubic",
    crop_from: int | None = None,
) -> Pixels:
    """The image of a file, (size, size, 3). Any failure raises InvalidData with the file's name."""
    return _squared(_open(path), size, resize, crop_from)


def read_thumbnail(path: str | Path | Member, longest: int) -> Pixels:
    """The image of a file in its own aspect ratio; the longer side has `longest` pixels."""
    image = _open(path)
    return _resized(
        image, *(max(1, round(side * longest / max(image.size))) for side in image.size)
    )


def decode_image(
    content: bytes,
    name: str,
    size: int,
    resize: ResizeFilter = "bicubic",
    crop_from: int | None = None,
) -> Pixels:
    """The image whose file has this content, (size, size, 3).

    Any failure raises InvalidData with this name.
    """
    check_size(name, len(content))
    return _squared(_decoded(content, name, WEBP_PIXELS), size, resize, crop_from)


def _open(path: str | Path | Member) -> Any:
    """The image of a file, in EXIF orientation and RGB."""
    try:
        with readable(str(path)):
            content = path.read() if isinstance(path, Member) else _content(Path(path))
    except InvalidData:
        raise
    except Exception as error:
        raise _unreadable(path, str(error) or type(error).__name__) from None
    return _decoded(content, path)


class _PixelsAtOnce:
    """Lets threads decode images together while these have few pixels."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._most = most
        self._changed = threading.Condition()

    @contextmanager
    def decoding(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for an image of so many pixels;
        one that is larger than all room is alone.
        """
        taken = min(pixels, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        try:
            yield
        finally:
            with self._changed:
                self._free += taken
                self._changed.notify_all()


_at_once = _PixelsAtOnce(AT_ONCE)


def _decoded(content: bytes, path: str | Path | Member, webp_pixels: int = MAX_PIXELS) -> Any:
    """The image of a file's content, in EXIF orientation and RGB; errors name the path."""
    try:
        with _pillow().open(BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise _too_large(path, f"{width:,} × {height:,}")
            if image.format == "WEBP" and width * height > webp_pixels:
                raise _too_large(path, f"a WebP of {width:,} × {height:,}", webp_pixels)
            if width * height <= BAND:
                return _as_rgb(image)
            with _at_once.decoding(width * height):
                found = _in_bands(image)
                image.close()  # some decoders keep the pixels until garbage is collected
                if width * height > GIVEN_BACK:
                    release_free_memory()
            return found
    except (InvalidData, MissingExtra):
        raise
    except Exception as error:  # decoders raise many types on damaged files
        if "DecompressionBomb" in type(error).__name__:
            raise _too_large(path, "more") from None
        got = str(error) or type(error).__name__
        if type(error).__name__ == "UnidentifiedImageError":
            got = "an empty file"
            if content:
                got = f"a file that begins with {content[:12]!r}"
        raise _unreadable(path, got) from None


def _unreadable(path: str | Path | Member, got: str) -> InvalidData:
    wanted = f"a whole image ({', '.join(FORMATS)})"
    return InvalidData(path, wanted=wanted, got=got[:200], remedy="Save it again, or leave it out.")


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        check_size(path, os.fstat(file.fileno()).st_size)
        return file.read()


def _as_rgb(image: Any) -> Any:
    """In EXIF orientation and RGB."""
    from PIL import ImageOps

    kind = image.format
    return _converted(ImageOps.exif_transpose(image), kind)


def _in_bands(image: Any) -> Any:
    """As `_as_rgb`, band by band; an image of more than `LARGE` pixels is reduced to fewer."""
    from PIL import ImageOps

    kind = image.format
    orientation = image.getexif().get(ORIENTATION)
    factor = 1
    width, height = image.size
    while -(-width // factor) * -(-height // factor) > LARGE:
        factor += 1
    if factor > 1:
        image.draft(None, (-(-width // factor), -(-height // factor)))
        if image.size != (width, height):  # a JPEG, which is decoded smaller
            factor = 1
            width, height = image.size
    whole = _pillow().new("RGB", (-(-width // factor), -(-height // factor)))
    rows = factor * max(1, BAND // width // factor)
    for top in range(0, height, rows):
        band = _converted(image.crop((0, top, width, min(top + rows, height))), kind)
        if factor > 1:
            band = band.reduce(factor)
        whole.paste(band, (0, top // factor))
    if orientation is not None:
        whole.getexif()[ORIENTATION] = orientation
        ImageOps.exif_transpose(whole, in_place=True)
    return whole


def _converted(image: Any, kind: str) -> Any:
    """In RGB; `kind` is the format of its file."""
    from PIL import ImageCms

    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PPM"):
        values = np.asarray(image).astype(np.int64)
        if "transparency" in image.info:  # one value marks transparent pixels
            values[values == image.info["transparency"]] = 65535
        return (
            _pillow().fromarray(((values * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
        )
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, for which no value is agreed to be white")
    if image.has_transparency_data:
        white = _pillow().new("RGBA", image.size, "white")
        return _pillow().alpha_composite(white, image.convert("RGBA")).convert("RGB")
    if image.mode == "LAB":
        lab = ImageCms.createProfile("LAB")
        rgb = ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB")
    return image.convert("RGB")


def _squared(image: Any, size: int, resize: ResizeFilter, crop_from: int | None) -> Pixels:
    side = size if crop_from is None else crop_from
    first = (side - size) // 2
    return _resized(image, side, side, resize)[first : first + size, first : first + size]


def _resized(image: Any, width: int, height: int, resize: ResizeFilter = "bicubic") -> Pixels:
    if image.size != (width, height):
        image = image.resize((width, height), _pillow().Resampling[resize.upper()])
    return np.array(image, dtype=np.uint8)


def _too_large(path: str | Path | Member, got: str, most: int = MAX_PIXELS) -> InvalidData:
    wanted = f"at most {most:,} pixels"
    return InvalidData(path, wanted=wanted, got=got, remedy="Make it smaller, if you trust it.")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "images", "An image file") from None
    return Image


def webp(image: Pixels, *, lossless: bool = False) -> bytes:
    """The WebP file of an image (height, width, 3)."""
    buffer = BytesIO()
    _pillow().fromarray(image).save(buffer, "WEBP", quality=80, lossless=lossless)
    return buffer.getvalue()


def url_of(image: Pixels) -> str:
    """An image as a data: URL, without loss."""
    return f"data:image/webp;base64,{b64encode(webp(image, lossless=True)).decode()}"
