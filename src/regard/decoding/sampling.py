"""Draws from a distribution, reproducible row by row whatever the batch around them."""

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.decoding.config import DecodeConfig


def narrowed(log_p: Float[Tensor, "B K V"], config: DecodeConfig) -> Float[Tensor, "B K V"]:
    """Log-probabilities of what may be drawn: tempered, cut as the recipe says; −∞ elsewhere."""
    scores = (log_p / config.temperature).log_softmax(-1)
    if config.top_k is not None and config.top_k < scores.shape[-1]:
        least = scores.topk(config.top_k)[0][..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if config.min_p is not None:
        least = scores.amax(-1, keepdim=True) + torch.tensor(config.min_p).log().item()
        scores = scores.masked_fill(scores < least, -torch.inf)
    if config.typical_p is not None:
        known = scores.log_softmax(-1)
        surprise = -(known.exp() * known.masked_fill(known == -torch.inf, 0.0)).sum(-1, keepdim=True)
        scores = _fewest(scores, (-known - surprise).abs(), config.typical_p)
    if config.top_p is not None:
        scores = _fewest(scores, -scores, config.top_p)
    return scores


def _fewest(scores: Tensor, cost: Tensor, share: float) -> Tensor:
    """Of the cheapest tokens, the fewest that have this share of the probability together."""
    order = cost.argsort(-1)
    p = scores.softmax(-1).gather(-1, order)
    over = p.cumsum(-1) - p >= share
    over[..., 0] = False  # one is always left
    spare = torch.zeros_like(over).scatter(-1, order, over)
    return scores.masked_fill(spare, -torch.inf)


def draw(scores: Float[Tensor, "B K V"], chance: Float[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """The token at which the probabilities, added up in order, pass this chance."""
    reached = scores.double().softmax(-1).cumsum(-1)
    at = chance.double()[..., None] * reached[..., -1:]
    found = torch.searchsorted(reached, at, right=True)[..., 0]
    return found.clamp(max=scores.shape[-1] - 1)


def start_of(seed: int) -> int:
    """Where the draws of a seed begin: as 64 bits would overflow, for any seed."""
    return (seed * 2862933555777941757 + (1 << 63)) % (1 << 64) - (1 << 63)


def chances(
    start: int | Int[Tensor, " 1"], rows: Int[Tensor, "*shape"], steps: Int[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """A number from 0 to 1 that is a pure function of start, row and step (https://doi.org/10.1145/2714064.2660195)."""
    x = _mixed(rows * -7046029254386353131 + _mixed(steps + start))
    return (x >> 11 & (1 << 53) - 1).double() / (1 << 53)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -4658895280553007687
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -7723592293110705685
    return x ^ (x >> 31 & (1 << 33) - 1)
