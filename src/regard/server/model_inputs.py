"""Inputs of models in requests: texts, labels and images, an image as a data: URL, and examples of them."""

import base64
import binascii
from collections.abc import Sequence
from itertools import islice

from regard.core.errors import InvalidArgument, MissingExtra
from regard.data.images import Pixels, load_image, webp
from regard.data.sources import examples
from regard.data.synthetic.scenes import SIDE, Scene
from regard.inference.predictor import Predictor
from regard.server.wire import ImageFile, SourceValue

EXAMPLES = 6  # of a model


def sources_of(parts: Sequence[str], reads: Sequence[str]) -> list[SourceValue]:
    """The sources of one input, from a string for each: an image as a data: URL."""
    kinds = [*reads, *["text"] * (len(parts) - len(reads))]  # a language model reads one text
    return [
        image_of(part, f"input {number}") if kind == "image" else part
        for number, (part, kind) in enumerate(zip(parts, kinds, strict=False), start=1)
    ]


def image_of(url: str, name: str) -> ImageFile:
    """The content of a data: URL (RFC 2397) in base64. No file and no other address is ever read."""
    head, comma, content = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        wanted = "an image as data:image/png;base64,…"
        raise InvalidArgument(name, wanted=wanted, got=repr(url[:40]), remedy="Send its content.")
    try:
        return ImageFile(base64.b64decode(content, validate=True))
    except binascii.Error as error:
        raise InvalidArgument(name, wanted="base64", got=str(error), remedy="Encode its content.") from None


def url_of(image: Pixels) -> str:
    """An image as a data: URL, without loss."""
    return f"data:image/webp;base64,{base64.b64encode(webp(image, lossless=True)).decode()}"


def example_inputs(predictor: Predictor) -> tuple[tuple[str, ...], ...]:
    """Inputs of the model's synthetic test data; none of a model that was trained on files."""
    config = predictor.recipe.data
    if not config.synthetic or not config.source_fields:
        return ()
    try:
        found = list(islice(examples(config, "test"), EXAMPLES))
        return tuple(
            tuple(url_of(load_image(each, SIDE)) if isinstance(each, Scene) else str(each) for each in one.sources)
            for one in found
        )
    except MissingExtra:  # of the data, or of images
        return ()
