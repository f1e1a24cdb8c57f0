"""N × M: must attention hold a number for every query and every key?

Claim   Attention needs much memory: N × M scores and weights are computed and stored for each head.
Test    The peak memory beyond the inputs, forward and backward, by length: the plain form with every weight, the
        fused kernel of PyTorch, `regard.attend`, the same while 64 rows of weights of every head are computed exactly,
        and while entropy and largest weights of every row are.
Refuted if the plain form does not grow with the square of the length; true of that form alone, if the others do not.

    python experiments/memory.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, log10

import torch
from torch import Tensor
from torch.nn import functional as F

import regard
from report import Finding, grad_run, lines, main, peak_bytes, verdict

ROWS = 64


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def with_rows(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    n = query.shape[-2]
    with regard.capture_attention(lambda heard: heard.weights(rows=range(0, n, max(1, n // ROWS)))):
        return regard.attend(query, key, value)


def with_summary(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with regard.capture_attention(lambda heard: heard.summary(top=4)):
        return regard.attend(query, key, value)


METHODS: dict[str, Callable[..., Tensor]] = {
    "all weights": plain,
    "fused": F.scaled_dot_product_attention,
    "attend": regard.attend,
    "+ 64 rows": with_rows,
    "+ summaries": with_summary,
}


@dataclass(frozen=True)
class Found:
    lengths: Sequence[int]
    peak: dict[str, list[int]]  # bytes, by method

    def growth(self, method: str) -> float:
        """The power of the length with which memory grows, between the two longest."""
        (a, b), (n, m) = self.peak[method][-2:], self.lengths[-2:]
        return log(b / a) / log(m / n)


def measure(
    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096),
    heads: int = 4,
    dim: int = 64,
    methods: Sequence[str] = tuple(METHODS),
) -> Found:
    peak: dict[str, list[int]] = {method: [] for method in methods}
    for n in lengths:
        inputs = [torch.randn(1, heads, n, dim, requires_grad=True) for _ in range(3)]
        for method in methods:
            peak[method].append(peak_bytes(grad_run(METHODS[method], inputs)))
    return Found(lengths, peak)


def find() -> Finding:
    found = measure()
    first, *others = found.peak
    square = found.growth(first) > 1.8
    last = {method: row[-1] / 2**20 for method, row in found.peak.items()}
    return Finding(
        verdict(square, all(found.growth(method) > 1.8 for method in others)),
        f"materialized, memory grows with the length to the power {found.growth(first):.2f}; fused, with "
        f"{found.growth('attend'):.2f}. At {found.lengths[-1]:,} tokens that is {last[first]:,.0f} MiB against "
        f"{last['attend']:,.0f}, and {last['+ 64 rows']:,.0f} with {ROWS} exact rows of weights. N × M scores are "
        "still computed, but need not be stored.",
        [
            [
                "MiB beyond the inputs",
                *(f"{n:,} tokens" for n in found.lengths),
                "grows with length to the power",
            ]
        ]
        + [
            [method, *(f"{peak / 2**20:,.1f}" for peak in row), f"{found.growth(method):.2f}"]
            for method, row in found.peak.items()
        ],
        lines(
            "Peak memory of forward and backward pass, by tokens (MiB)",
            found.lengths,
            {method: [log10(peak / 2**20) for peak in row] for method, row in found.peak.items()},
            lambda value: f"{10**value:,.0f}",
        ),
    )


if __name__ == "__main__":
    main("memory", __doc__, find)
