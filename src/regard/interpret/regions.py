"""Where a caption's words looked: its tokens' attention as words and a picture's regions."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.inference.outputs import Output
from regard.inference.predictor import Predictor

SPACE = "▁"  # how a token shows that a word begins


@dataclass(frozen=True)
class CaptionRegions:
    """How the columns of attention lie on a picture."""

    units: int  # so many columns come first that are no places
    rows: int
    columns: int


@dataclass(frozen=True)
class RegionWord:
    """A word of a caption, and the weight that it gave each region."""

    text: str
    weights: Float[Tensor, "rows columns"]


def regions(predictor: Predictor) -> CaptionRegions:
    """The grid that the encoder of a model of pictures makes, whatever the picture."""
    assert predictor.image_size is not None
    blank = np.zeros((predictor.image_size, predictor.image_size, 3), np.uint8)
    with torch.inference_mode():
        memory = predictor.model.encoder(predictor.inputs.collate([blank]))  # type: ignore[misc]
    if memory.grid is None:
        wanted, remedy = "an encoder whose states lie on a grid", "Choose another model."
        raise InvalidArgument("model", wanted=wanted, got=type(predictor.model.encoder).__name__, remedy=remedy)
    return CaptionRegions(memory.cls_tokens, *memory.grid)


def words(predictor: Predictor, output: Output, grid: CaptionRegions) -> list[RegionWord]:
    """The words of an output that came with its attention, each with the mean of its tokens' weights.

    A token's are the mean over the heads of the last block, which is the nearest to what is said.
    """
    assert output.attention is not None
    weights = output.attention[-1].mean(0)[:, grid.units :].reshape(-1, grid.rows, grid.columns)
    apart = predictor.recipe.data.target.tokenizer == "words"
    starts = [i for i, token in enumerate(output.tokens) if apart or i == 0 or token.startswith(SPACE)]
    found = []
    for start, end in pairwise([*starts, len(output.tokens)]):
        text = "".join(output.tokens[start:end]).removeprefix(SPACE)
        if text:
            found.append(RegionWord(text, weights[start:end].mean(0)))
    return found
