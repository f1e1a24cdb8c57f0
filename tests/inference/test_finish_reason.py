"""Why outputs ended: the end token, the maximum length, or that length while they repeated themselves."""

import pytest
import torch

from regard.data.special_tokens import END
from regard.generation.choose.interfaces import finish_reason
from regard.recipe.load import read_recipe
from regard.recipe.shipped import shipped_recipes
from support.predictors import translator


@pytest.mark.parametrize(
    ("tokens", "ended", "reason"),
    [
        ((), False, "length"),
        ((7, 7, 7), True, "end"),
        ((7, 7), False, "length"),
        ((7, 7, 7), False, "repetition"),
        ((5, 6, 7, 8, 9), False, "length"),
        ((5, 6, 5, 6, 5, 6), False, "repetition"),
        ((5, 6, 5, 6), False, "length"),  # twice
        ((1, 2, 3, 5, 6, 5, 6, 5), False, "length"),  # two and a half times
        (
            (1, 2, 3, 4, 5, 6, 7, 7, 7),
            False,
            "length",
        ),  # three times, but less than half of the output
        ((1, 2, 3, 7, 7, 7), False, "repetition"),
        ((1, 2, *(3, 4, 5) * 3, 3), False, "repetition"),  # ends within a repetition
    ],
)
def test_repetition(tokens, ended, reason):
    assert finish_reason(tokens, ended=ended) == reason


@pytest.mark.parametrize("beam_size", [1, 3])
def test_outputs_name_the_reason(beam_size):
    predictor = translator("words")
    (token,) = predictor.target.encode("cat")
    options = {"beam_size": beam_size, "max_length": 9}
    bias = predictor.model.decoder.project.bias
    with torch.no_grad():
        bias[END], bias[token] = -99.0, 99.0
    assert predictor.outputs(["the dog"], **options)[0][0].finish_reason == "repetition"
    assert (
        predictor.outputs(["the dog"], no_repeat_ngram_size=2, **options)[0][0].finish_reason
        == "length"
    )
    with torch.no_grad():
        bias[END], bias[token] = 99.0, 0.0
    assert predictor.outputs(["the dog"], **options)[0][0].finish_reason == "end"


def test_recipes_of_captions_and_translations_prevent_loops():
    paths = [
        path for path in shipped_recipes() if path.stem.startswith(("captions", "translation"))
    ]
    assert len(paths) == 7
    for path in paths:
        assert read_recipe(path).decode.no_repeat_ngram_size, path
