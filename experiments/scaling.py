"""Scaling by √d: what does it do to the weights, and to the gradient behind them?

Claim   A dot product of more dimensions is a sum of more terms, so its variance grows. The softmax then peaks: low
        entropy, all weight on one key, and hardly any gradient. Dividing by √d keeps all three as they are.
Test    Random queries and keys of d dimensions. Spread of the scores, entropy of the weights, and the norm of the
        gradient that reaches the scores, with the dot product and with the scaled one; and the entropy in a
        `MultiHead` of one head of d dimensions, as it is built, that reads random states.
Refuted if entropy or gradient of the unscaled dot product do not fall with d, or if those of the scaled one do.

    python experiments/scaling.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

import regard
from report import Finding, lines, main, verdict

WHAT = {
    "spread": "spread",
    "entropy": "entropy",
    "gradient": "gradient",
    "entropy in a layer": "in_layer",
}
SCORES = {"dot": regard.Dot, "scaled_dot": regard.ScaledDot}


@dataclass(frozen=True)
class Measured:
    """For one score and one dimension."""

    spread: float  # the standard deviation of the scores
    entropy: float  # of a row of weights, as a share of the largest there is
    gradient: float  # the norm at a row of scores, for an output's gradient of norm 1
    in_layer: float  # entropy again, in a layer as it is built


@dataclass(frozen=True)
class Found:
    dimensions: Sequence[int]
    of: dict[str, list[Measured]]  # by score


def measured(score: str, d: int, keys: int, queries: int) -> Measured:
    torch.manual_seed(d)
    query, key, value = torch.randn(queries, d), torch.randn(keys, d), torch.randn(keys, 16)
    scores = torch.zeros(
        queries, keys, requires_grad=True
    )  # added to the scores, so its gradient is theirs
    out = regard.attend(query, key, value, score=SCORES[score](), bias=scores)
    wanted = torch.nn.functional.normalize(torch.randn_like(out), dim=-1)
    (gradient,) = torch.autograd.grad(out, scores, wanted)
    products = query @ key.mT / (d**0.5 if score == "scaled_dot" else 1)
    return Measured(
        float(products.std()),
        _entropy(regard.attention_summary(query, key, score=SCORES[score]()).entropy, keys),
        float(gradient.norm(dim=-1).mean()),
        _entropy(_in_layer(score, d, keys), keys),
    )


@torch.no_grad()
def _in_layer(score: str, d: int, keys: int) -> Tensor:
    calls: list[regard.AttentionCall] = []
    with regard.capture_attention(calls.append):
        regard.MultiHead(d, heads=1, score=score)(torch.randn(4, keys, d))
    return calls[0].summary().entropy


def _entropy(rows: Tensor, keys: int) -> float:
    return float(rows.mean()) / log(keys)


def measure(
    dimensions: Sequence[int] = (4, 16, 64, 256, 1024), keys: int = 64, queries: int = 2000
) -> Found:
    return Found(
        dimensions,
        {score: [measured(score, d, keys, queries) for d in dimensions] for score in SCORES},
    )


def find() -> Finding:
    found = measure()
    plain, scaled = found.of["dot"], found.of["scaled_dot"]
    rows = [["d", *(f"{what} {how}" for what in WHAT for how in ("q·k", "q·k/√d"))]]
    for d, *both in zip(found.dimensions, plain, scaled, strict=True):
        rows.append(
            [str(d), *(f"{getattr(one, what):.3g}" for what in WHAT.values() for one in both)]
        )
    last, kept = plain[-1], scaled[-1]
    return Finding(
        verdict(
            falls(plain, "entropy") and not falls(scaled, "entropy"),
            falls(plain, "gradient"),
            steady(scaled),
        ),
        f"from d = {found.dimensions[0]} to {found.dimensions[-1]:,} a row of unscaled weights goes from "
        f"{plain[0].entropy:.0%} to {last.entropy:.0%} of the largest entropy, and the gradient at its scores from "
        f"{plain[0].gradient:.3f} to {last.gradient:.3f}; scaled, from {scaled[0].entropy:.0%} to {kept.entropy:.0%} "
        f"and from {scaled[0].gradient:.3f} to {kept.gradient:.3f}.",
        rows,
        lines(
            "Entropy of the weights, and gradient at the scores, by dimension",
            found.dimensions,
            {
                "entropy q·k": [one.entropy for one in plain],
                "entropy q·k/√d": [one.entropy for one in scaled],
                "gradient q·k": [one.gradient for one in plain],
                "gradient q·k/√d": [one.gradient for one in scaled],
            },
            lambda value: f"{value:.2f}",
        ),
    )


def falls(measured: Sequence[Measured], what: str) -> bool:
    """To less than half of what it was."""
    return getattr(measured[-1], what) < getattr(measured[0], what) / 2


def steady(measured: Sequence[Measured]) -> bool:
    return all(abs(one.gradient / measured[0].gradient - 1) < 0.25 for one in measured)


if __name__ == "__main__":
    main("scaling", __doc__, find)
