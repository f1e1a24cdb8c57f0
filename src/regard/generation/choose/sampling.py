"""Sampling of tokens: filters of the distribution, and random numbers that depend on seed, stream and step alone."""

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.generation.config import DecodeConfig


def filtered(log_p: Float[Tensor, "B K V"], config: DecodeConfig) -> Float[Tensor, "B K V"]:
    """Log-probabilities after temperature, top-k, top-p, min-p and typical filtering; −∞ for excluded tokens.

    The order is that of transformers: with several filters, each sees the tokens that the earlier ones left.
    """
    scores = (log_p / config.temperature).log_softmax(-1)
    if config.top_k is not None and config.top_k < scores.shape[-1]:
        smallest = scores.topk(config.top_k)[0][..., -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    if config.top_p is not None:
        scores = _nucleus(scores, -scores, config.top_p)
    if config.min_p is not None:
        smallest = scores.amax(-1, keepdim=True) + torch.tensor(config.min_p).log().item()
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    if config.typical_p is not None:
        normalized = scores.log_softmax(-1)
        entropy = -(normalized.exp() * normalized.masked_fill(normalized == -torch.inf, 0.0)).sum(
            -1, keepdim=True
        )
        scores = _nucleus(scores, (-normalized - entropy).abs(), config.typical_p)
    return scores


def _nucleus(scores: Tensor, cost: Tensor, mass: float) -> Tensor:
    """The fewest tokens, in order of cost, whose probabilities sum to `mass`; at least one."""
    order = cost.argsort(-1)
    p = scores.softmax(-1).gather(-1, order)
    excluded = p.cumsum(-1) - p >= mass
    excluded[..., 0] = False
    return scores.masked_fill(torch.zeros_like(excluded).scatter(-1, order, excluded), -torch.inf)


def sample(scores: Float[Tensor, "B K V"], chance: Float[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """The token at which the cumulative distribution passes `chance`, a uniform random number."""
    cumulative = scores.double().softmax(-1).cumsum(-1)
    threshold = chance.double()[..., None] * cumulative[..., -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)[..., 0]
    return tokens.clamp(max=scores.shape[-1] - 1)


def seed_offset(seed: int) -> int:
    """The first counter of a seed of any size, wrapped to 64 bits."""
    return (seed * 2862933555777941757 + (1 << 63)) % (1 << 64) - (1 << 63)


def uniform(
    offset: int | Int[Tensor, " 1"], streams: Int[Tensor, "*shape"], steps: Int[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Uniform numbers in [0, 1), a pure function of offset, stream and step (https://doi.org/10.1145/2714064.2660195)."""
    x = _mixed(streams * -7046029254386353131 + _mixed(steps + offset))
    return (x >> 11 & (1 << 53) - 1).double() / (1 << 53)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -4658895280553007687
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -7723592293110705685
    return x ^ (x >> 31 & (1 << 33) - 1)
