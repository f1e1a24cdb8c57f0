"""Multi-head attention: do several heads do more than one head of the same total size?

Claim   A token may relate to others in more than one way, and one head gives one mixture of them. Several heads split
        the same projections, so they cost no more parameters, and each can attend to a different token.
Test    One attention layer must predict, at every position of a string of random letters, the letters at offsets -2,
        -1, +1 and +2. Accuracy by number of heads, and the offset each head attends to most. As a control,
        Transformers that reverse words, where attending to one position at a time is enough.
Refuted if parameters differ, or one head predicts neighbors as well as four.

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
from letters import Task, learn, reversed_word, right, transformer
from report import Finding, lines, main, share, verdict

OFFSETS = (-2, -1, 1, 2)  # of the letters to predict
EDGE = max(OFFSETS)


@dataclass(frozen=True)
class Found:
    heads: Sequence[int]
    parameters: list[int]
    accuracy: list[float]  # of the predicted neighbors
    attended: list[list[str]]  # the offset each head attends to most
    reversed_word: dict[int, float]  # by heads: accuracy of letters when reversing words


class Neighbors(nn.Module):
    """Embeddings with positions, one attention layer, and a linear classifier per offset."""

    def __init__(self, letters: int, dim: int, heads: int) -> None:
        super().__init__()
        self.letters = letters
        self.embed, self.add_positions = (
            nn.Embedding(letters, dim),
            regard.Add(regard.Sinusoidal(dim)),
        )
        self.attend, self.guess = (
            regard.MultiHead(dim, heads),
            nn.Linear(dim, letters * len(OFFSETS)),
        )

    def forward(self, words: Tensor) -> Tensor:
        """Logits (words, letters, offsets, classes), without the letters at the edges."""
        guesses = self.guess(self.attend(self.add_positions(self.embed(words)))[:, EDGE:-EDGE])
        return guesses.unflatten(-1, (len(OFFSETS), self.letters))


def neighbors(words: Tensor) -> Tensor:
    """The letters to predict (words, letters, offsets)."""
    inner = torch.arange(EDGE, words.shape[1] - EDGE)
    return torch.stack([words[:, inner + offset] for offset in OFFSETS], -1)


def train_model(heads: int, letters: int, dim: int, length: int, steps: int) -> Neighbors:
    torch.manual_seed(1)
    model = Neighbors(letters, dim, heads)
    optimizer = torch.optim.Adam(model.parameters())
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(steps):
        words = torch.randint(letters, (64, length))
        loss = F.cross_entropy(model(words).flatten(0, 2), neighbors(words).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    return model


@torch.no_grad()
def evaluate(model: Neighbors, length: int) -> tuple[float, list[str]]:
    """Accuracy, and the offset each head attends to most, with its mean weight."""
    words = torch.randint(model.letters, (200, length))
    calls: list[regard.AttentionCall] = []
    with regard.capture_attention(calls.append):
        correct = model(words).argmax(-1) == neighbors(words)
    attended = []
    for head in calls[0].weights()[:, :, EDGE:-EDGE].mean(0):  # (inner letters, letters)
        at = {
            offset: float(head.diagonal(EDGE + offset).mean()) for offset in range(-EDGE, EDGE + 1)
        }
        most = max(at, key=lambda offset: at[offset])
        attended.append(f"{most:+d} ({at[most]:.0%})" if most else f"itself ({at[0]:.0%})")
    return float(correct.float().mean()), attended


def backwards(heads: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        task = Task(reversed_word, trained=range(3, 9), tested=range(3, 9))
        model = learn(transformer(64, layers=1, heads=heads), task, steps, 4e-3, Path(folder))
        return right(model)


def measure(
    heads: Sequence[int] = (1, 2, 4, 8, 16),
    letters: int = 10,
    dim: int = 64,
    length: int = 16,
    steps: int = 1500,
    control: Sequence[int] = (1, 4),  # heads of the Transformers that reverse words
) -> Found:
    models = [train_model(count, letters, dim, length, steps) for count in heads]
    results = [evaluate(model, length) for model in models]
    return Found(
        heads,
        [sum(weight.numel() for weight in model.parameters()) for model in models],
        [share for share, _ in results],
        [attended for _, attended in results],
        {count: backwards(count, steps=300) for count in control},
    )


def find() -> Finding:
    found = measure()
    four, best = found.heads.index(4), found.accuracy.index(max(found.accuracy))
    rows = [
        [
            "heads",
            "parameters",
            "correct neighbors",
            "offset with each head's largest weight",
            "reversing",
        ]
    ]
    for heads, size, accuracy, attended in zip(
        found.heads, found.parameters, found.accuracy, found.attended, strict=True
    ):
        whole = share(found.reversed_word[heads]) if heads in found.reversed_word else ""
        rows.append([str(heads), f"{size:,}", share(accuracy), ", ".join(attended[:8]), whole])
    return Finding(
        verdict(len(set(found.parameters)) == 1, found.accuracy[four] > found.accuracy[0] + 0.1),
        f"with {found.parameters[0]:,} parameters each, one head predicts {share(found.accuracy[0])} of the neighbors, "
        f"{found.heads[best]} heads predict {share(found.accuracy[best])}. Where attending to one "
        f"position is enough, one head reverses "
        f"{share(found.reversed_word[1])} of letters correctly and four {share(found.reversed_word[4])}.",
        rows,
        lines(
            "Accuracy by number of heads, at equal parameters",
            found.heads,
            {
                "four neighbors at once": found.accuracy,
                "reversing": [found.reversed_word.get(n) for n in found.heads],
            },
        ),
    )


if __name__ == "__main__":
    main("heads", __doc__, find)
