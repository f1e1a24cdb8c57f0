"""Heads: do several look-ups side by side do more than one, for the same parameters?

Claim   A token may relate to others in more than one way, and one head gives one mixture of them. Several heads cut the
        same projections into pieces, so they cost no more parameters, and each can look elsewhere.
Test    One layer of attention must tell, at every place of a word of random letters, which letters stand two before,
        one before, one after and two after it. The share that is right, by number of heads, and where each head looks.
        As a control, Transformers that say words backwards, where one look at a time is enough.
Refuted if parameters differ, or one head tells neighbours as well as four.

    python experiments/heads.py
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from letters import Task, learn, right, transformer, turned
from report import Finding, lines, main, share, verdict

PLACES = (-2, -1, 1, 2)  # of the letters to tell, from each letter
EDGE = max(PLACES)


@dataclass(frozen=True)
class Found:
    heads: Sequence[int]
    parameters: list[int]
    told: list[float]  # the share of neighbours told rightly
    looks: list[list[str]]  # where each head looks most
    turned: dict[int, float]  # by heads: the share of letters said backwards rightly


class Neighbours(nn.Module):
    """Letters and their places, one layer of attention, and a linear guess of each neighbour."""

    def __init__(self, letters: int, dim: int, heads: int) -> None:
        super().__init__()
        self.letters = letters
        self.embed, self.place = nn.Embedding(letters, dim), regard.Add(regard.Sinusoidal(dim))
        self.attend, self.guess = regard.MultiHead(dim, heads), nn.Linear(dim, letters * len(PLACES))

    def forward(self, words: Tensor) -> Tensor:
        """Of every letter but those at the edges, (words, letters, places, guesses)."""
        guesses = self.guess(self.attend(self.place(self.embed(words)))[:, EDGE:-EDGE])
        return guesses.unflatten(-1, (len(PLACES), self.letters))


def neighbours(words: Tensor) -> Tensor:
    """(words, letters, places)"""
    inner = torch.arange(EDGE, words.shape[1] - EDGE)
    return torch.stack([words[:, inner + place] for place in PLACES], -1)


def taught(heads: int, letters: int, dim: int, length: int, steps: int) -> Neighbours:
    torch.manual_seed(1)
    model = Neighbours(letters, dim, heads)
    optimiser = torch.optim.Adam(model.parameters())
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=steps)
    for _ in range(steps):
        words = torch.randint(letters, (64, length))
        loss = F.cross_entropy(model(words).flatten(0, 2), neighbours(words).flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rate.step()
    return model


@torch.no_grad()
def judged(model: Neighbours, length: int) -> tuple[float, list[str]]:
    """The share of neighbours told rightly; and at which place each head looks most, with its share of the weight."""
    words = torch.randint(model.letters, (200, length))
    heard: list[regard.AttentionCall] = []
    with regard.capture_attention(heard.append):
        rightly = model(words).argmax(-1) == neighbours(words)
    looks = []
    for head in heard[0].weights()[:, :, EDGE:-EDGE].mean(0):  # (inner letters, letters)
        at = {place: float(head.diagonal(EDGE + place).mean()) for place in range(-EDGE, EDGE + 1)}
        most = max(at, key=lambda place: at[place])
        looks.append(f"{most:+d} ({at[most]:.0%})" if most else f"itself ({at[0]:.0%})")
    return float(rightly.float().mean()), looks


def backwards(heads: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        task = Task(turned, trained=range(3, 9), tested=range(3, 9))
        model = learn(transformer(64, layers=1, heads=heads), task, steps, 4e-3, Path(folder))
        return right(model)


def measure(
    heads: Sequence[int] = (1, 2, 4, 8, 16),
    letters: int = 10,
    dim: int = 64,
    length: int = 16,
    steps: int = 1500,
    control: Sequence[int] = (1, 4),  # heads of the Transformers that say words backwards
) -> Found:
    models = [taught(count, letters, dim, length, steps) for count in heads]
    results = [judged(model, length) for model in models]
    return Found(
        heads,
        [sum(weight.numel() for weight in model.parameters()) for model in models],
        [share for share, _ in results],
        [looks for _, looks in results],
        {count: backwards(count, steps=300) for count in control},
    )


def find() -> Finding:
    found = measure()
    four, best = found.heads.index(4), found.told.index(max(found.told))
    rows = [["heads", "parameters", "neighbours right", "where each head looks most", "words backwards"]]
    for heads, size, told, looks in zip(found.heads, found.parameters, found.told, found.looks, strict=True):
        whole = share(found.turned[heads]) if heads in found.turned else ""
        rows.append([str(heads), f"{size:,}", share(told), ", ".join(looks[:8]), whole])
    return Finding(
        verdict(len(set(found.parameters)) == 1, found.told[four] > found.told[0] + 0.1),
        f"with {found.parameters[0]:,} parameters each, one head tells {share(found.told[0])} of the neighbours, "
        f"{found.heads[best]} heads tell {share(found.told[best])}. Where one look is enough, one head says "
        f"{share(found.turned[1])} of letters backwards and four {share(found.turned[4])}.",
        rows,
        lines(
            "Right answers by number of heads, parameters being equal",
            found.heads,
            {"four neighbours at once": found.told, "words backwards": [found.turned.get(n) for n in found.heads]},
        ),
    )


if __name__ == "__main__":
    main("heads", __doc__, find)
