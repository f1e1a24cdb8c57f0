"""Inputs to begin with: of a model's synthetic test data, images as data: URLs; and series of one fixed length."""

from itertools import islice

from regard.core.errors import MissingExtra
from regard.data.images import load_image, url_of
from regard.data.sources import examples
from regard.data.synthetic.scenes import SIDE, Scene
from regard.inference.predictor import Predictor

EXAMPLES = 6  # of a model


def example_inputs(predictor: Predictor) -> tuple[tuple[str, ...], ...]:
    """Inputs of the model's synthetic test data; of one trained on files, series where all have one length."""
    config = predictor.recipe.data
    if not config.source_fields:
        return ()
    if not config.synthetic:
        pairs = zip(config.source_fields, predictor.sources, strict=True)
        first = [field.first_input(vocabulary) for field, vocabulary in pairs]
        given = tuple(each for each in first if each is not None)
        return (given,) if len(given) == len(first) else ()
    try:
        found = list(islice(examples(config, "test"), EXAMPLES))
        return tuple(
            tuple(
                url_of(load_image(each, SIDE)) if isinstance(each, Scene) else str(each)
                for each in one.sources
            )
            for one in found
        )
    except MissingExtra:  # of the data, or of images
        return ()
