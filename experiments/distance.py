"""Interaction distance: how much of the gradient at the last token reaches the first?

Claim   In an RNN, what joins two tokens must pass every step between them, and its gradient vanishes on the way (or
        explodes); a convolution sees as far as its layers reach; attention has the same distance between any two.
Test    Encoders as they are built, which see no later token, read random tokens. The norm of the gradient of the last
        state by the first token's embedding, as a share of that by the last token's own, by the distance between them.
Refuted if the RNNs' gradient does not fall faster than attention's, or the convolution's passes its reach.

    python experiments/distance.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from statistics import mean

import torch

import regard
from report import Finding, Point, lines, main, verdict

VOCABULARY = 50
READERS = {
    "rnn": {"kind": "rnn", "cell": "elman", "bidirectional": False},
    "gru": {"kind": "rnn", "cell": "gru", "bidirectional": False},
    "lstm": {"kind": "rnn", "cell": "lstm", "bidirectional": False},
    "convolution": {"kind": "conv", "causal": True, "kernel_size": 3, "dilations": (1, 2, 4, 8)},
    "attention": {"kind": "transformer", "causal": True, "layers": 2, "heads": 4, "ffn_dim": 128},
}
REACH = 2 * (1 + 2 + 4 + 8)  # of the convolution: kernel − 1 times its dilations


@dataclass(frozen=True)
class Found:
    distances: Sequence[int]
    share: dict[str, list[float]]  # by reader: of the gradient at the last token itself


def gradient(reader: str, distance: int, dim: int, seed: int) -> float:
    torch.manual_seed(seed)
    table = {
        "encoder": READERS[reader] | {"dim": dim, "dropout": 0.0},
        "pool": {"kind": "last"},
        "num_labels": 2,
    }
    encoder = regard.build(table | {"source_vocab_size": VOCABULARY}).encoder.double()
    embedded: list[torch.Tensor] = []
    encoder.embed_tokens.register_forward_hook(lambda module, given, out: embedded.append(out))
    states = encoder(regard.Tokens.of([torch.randint(VOCABULARY, (distance + 1,)).tolist()])).states
    (found,) = torch.autograd.grad(states[0, -1], embedded, torch.randn(dim).double())
    norms = found.view(distance + 1, dim).norm(dim=-1)
    return float(norms[0] / norms[-1])


def measure(
    distances: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256), dim: int = 64, seeds: int = 10
) -> Found:
    return Found(
        distances,
        {
            name: [
                mean(gradient(name, distance, dim, seed) for seed in range(seeds))
                for distance in distances
            ]
            for name in READERS
        },
    )


def find() -> Finding:
    found = measure()
    last = {name: row[-1] for name, row in found.share.items()}
    beyond = [
        share
        for d, share in zip(found.distances, found.share["convolution"], strict=True)
        if d > REACH
    ]
    points: dict[str, Sequence[Point]] = {
        name: [log10(share) if share > 1e-12 else None for share in row]
        for name, row in found.share.items()
    }
    return Finding(
        verdict(
            all(last[name] < last["attention"] / 100 for name in ("rnn", "gru", "lstm")),
            not any(beyond),
            last["attention"] * found.distances[-1]
            > found.share["attention"][0] * found.distances[0] / 2,
        ),
        f"over {found.distances[-1]} tokens {last['attention']:.1e} of the gradient comes through attention, "
        f"{last['rnn']:.0e} through the plain RNN, {last['gru']:.0e} through the GRU, {last['lstm']:.0e} through the "
        f"LSTM, and none through the convolution beyond its {REACH} tokens. Attention's share falls too, but more "
        "slowly than 1 / distance: it is spread over all tokens.",
        [["gradient at the first token / at the last", *map(str, found.distances)]]
        + [
            [name, *(f"{share:.1e}" if share else "0" for share in row)]
            for name, row in found.share.items()
        ],
        lines(
            "Gradient that reaches the first token, by distance",
            found.distances,
            points,
            lambda value: f"{10**value:.0e}",
        ),
    )


if __name__ == "__main__":
    main("distance", __doc__, find)
