"""Attention of a caption's words over the regions of its image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.spelling import VISIBLE
from regard.data.tokenizer import Tokenizer
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.interfaces import Source
from regard.model.seq2seq import Model

BLANKS = "".join(VISIBLE.values())  # white space, as tokens show it


@dataclass(frozen=True)
class ImageRegions:
    """The grid of a memory's states over an image."""

    units: int  # learned states before the regions
    rows: int
    columns: int


@dataclass(frozen=True)
class RegionWord:
    """A word of a caption, and the weight it gave each region."""

    text: str
    weights: Float[Tensor, "rows columns"]


@torch.inference_mode()
def image_regions(model: Model, image: Source | None) -> ImageRegions:
    """The grid that a model's encoder makes of images of this size: a batch of one (1, 3, Y, X)."""
    memory = model.encode(image)
    if memory is None or memory.grid is None:
        wanted = "an encoder whose states lie on a grid"
        remedy = "Choose another model."
        raise InvalidArgument(
            "model", wanted=wanted, got=type(model.encoder).__name__, remedy=remedy
        )
    return ImageRegions(memory.cls_tokens, *memory.grid)


def words_over_regions(
    ids: Sequence[int],
    vocabulary: Tokenizer,
    attention: Float[Tensor, "layers H T S"],
    grid: ImageRegions,
) -> list[RegionWord]:
    """The words of a caption, each with the mean over its tokens of the attention of the last layer's mean head."""
    around = {*vocabulary.special_tokens.ends, *vocabulary.special_tokens.target_prefix}
    kept = [step for step, token in enumerate(ids) if token not in around]
    tokens = TokenSequence.of([ids[step] for step in kept], vocabulary)
    last_layer = attention[-1].mean(0)  # (T, S)
    weights = last_layer[kept, grid.units :]  # (tokens, regions)
    by_word = tokens.groups(weights.device).mean(weights, 0)  # (words, regions)
    maps = by_word.view(-1, grid.rows, grid.columns)
    named = zip(tokens.words, maps, strict=True)
    return [RegionWord(word, one) for word, one in named if word.strip(BLANKS)]
