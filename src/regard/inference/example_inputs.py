"""Inputs to begin with: of a model's synthetic test data, images as data: URLs;
and series of one fixed length.
"""

from itertools import islice
from typing import Any

from regard.core.errors import MissingExtra
from regard.data.images import load_image, url_of
from regard.data.sources import examples
from regard.data.synthetic.scenes import SIDE, Scene
from regard.inference.predictor import Predictor

EXAMPLES = 6  # of a model


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
        found = list(islice(examples(config, "test"), EXAMPLES))
        return tuple(tuple(map(_shown, one.sources)) for one in found)
    except MissingExtra:  # of the data, or of images
        return ()


def _shown(source: Any) -> str:
    """A source as the studio shows it: text as it is, and an image as a data URL."""
    if isinstance(source, Scene):
        return url_of(load_image(source, SIDE))
    return str(source)
