"""Inputs to begin with: of a model's synthetic test data, images as data: URLs;
and series of one fixed length.
"""

import math
from itertools import islice
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument, InvalidData, MissingExtra
from regard.data.fields.base import Field
from regard.data.images import load_image, url_of
from regard.data.sources import examples
from regard.data.synthetic.scenes import SIDE, Scene
from regard.inference.file_inputs import file_inputs
from regard.inference.predictor import Predictor
from regard.tasks.look_inputs import source_parts

EXAMPLES = 6  # of a model


def examples_of_file(predictor: Predictor, file: str) -> tuple[tuple[str, ...], ...]:
    """The first inputs of a file, as a page sends them."""
    fields = predictor.recipe.data.source_fields or (predictor.recipe.data.target,)
    if any(field.is_file for field in fields):
        raise InvalidArgument(
            "examples",
            wanted="nothing for a model of images",
            got=repr(file),
            remedy="Leave it out: images are dropped into the page.",
        )
    found = []
    for value in islice(file_inputs(predictor, Path(file)), EXAMPLES):
        parts = zip(fields, source_parts(value, fields), strict=True)
        found.append(tuple(field.request_text(part) for field, part in parts))
    if not found:
        raise InvalidData(file, wanted="at least one input", got="none", remedy="Name another.")
    return tuple(found)


def example_inputs(predictor: Predictor) -> tuple[tuple[str, ...], ...]:
    """Inputs of the model's synthetic test data; of one trained on files,
    series where all have one length.
    """
    config = predictor.recipe.data
    if not config.source_fields:
        return ()
    if not config.synthetic:
        pairs = zip(config.source_fields, predictor.sources, strict=True)
        first = [field.first_input(vocabulary) for field, vocabulary in pairs]
        given = tuple(each for each in first if each is not None)
        if len(given) < len(first):
            return ()
        return (given,)
    try:
        # Windows of a series overlap: one after the other.
        step = 1
        if config.series is not None:
            step = math.ceil(config.series.window / config.series.evaluation_stride)
        found = list(islice(examples(config, "test"), 0, EXAMPLES * step, step))
        fields = config.source_fields
        return tuple(
            tuple(_shown(field, value) for field, value in zip(fields, one.sources, strict=True))
            for one in found
        )
    except MissingExtra:  # of the data, or of images
        return ()


def _shown(field: Field, source: Any) -> str:
    """A source as the studio shows it: as the text of a request, and an image as a data URL."""
    if isinstance(source, Scene):
        return url_of(load_image(source, SIDE))
    return field.request_text(source)
