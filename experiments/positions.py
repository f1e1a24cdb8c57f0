"""Position encodings: what does attention know about order without them, and what does each kind add?

Claim   Self-attention is permutation-equivariant: a permuted source gives the same output. Positions add order; they
        should also extrapolate to sequences longer than in training, which learned ones cannot.
Test    Transformers learn to reverse strings of random letters, without positions and with each kind, and are
        tested on words as long as in training and on longer ones. What share of words gets the same answer when its
        letters are shuffled? As a control, letters to be put in alphabetical order without positions: there the order
        of the source means nothing.
Refuted if the model without positions reverses words as well as the others, or cannot sort letters.

    python experiments/positions.py
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import regard
from letters import (
    Share,
    Task,
    in_order,
    learn,
    named,
    reversed_word,
    right,
    right_by_length,
    transformer,
)
from report import Finding, lines, main, share, verdict

KINDS = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")
WORDS = Task(reversed_word, trained=range(3, 9), tested=range(3, 13))


@dataclass(frozen=True)
class Found:
    trained: Sequence[int]
    lengths: list[range]
    reversed_word: dict[str, list[Share]]  # by kind and lengths: of letters
    order_invariant: dict[
        str, float
    ]  # by kind: the share of words whose answer stays when their letters are shuffled
    sorted: dict[str, float]  # by kind: the share of letters right in alphabetical order

    def right(self, kind: str, *, longer: bool) -> float:
        """The mean share of right letters, at lengths of training or at longer ones."""
        pairs = zip(self.lengths, self.reversed_word[kind], strict=True)
        return mean(
            share[1] for lengths, share in pairs if (lengths[0] > self.trained[-1]) == longer
        )


def order_invariant(model: regard.Predictor, asked: Sequence[str]) -> float:
    chance = random.Random(0)
    shuffled = ["".join(chance.sample(word, len(word))) for word in asked]
    return mean(
        float(one == other)
        for one, other in zip(model.predict(asked), model.predict(shuffled), strict=True)
    )


def measure(
    kinds: Sequence[str] = KINDS,
    control: Sequence[str] = ("none",),
    task: Task = WORDS,
    ends: Sequence[int] = (5, 8, 10),  # of groups of lengths
    dim: int = 64,
    steps: int = 400,
    rate: float = 4e-3,
    layers: int = 2,
) -> Found:
    with tempfile.TemporaryDirectory() as folder:

        def trained(task: Task, kind: str) -> regard.Predictor:
            model = transformer(dim, layers, heads=4, positions=kind)
            return learn(model, task, steps, rate, Path(folder) / f"{task.answer.__name__}-{kind}")

        backwards = {kind: trained(task, kind) for kind in kinds}
        lengths, shares = right_by_length(list(backwards.values()), ends)
        asked = task.words(200, task.trained, seed=3)
        ordering = replace(task, answer=in_order, tested=task.trained)
        return Found(
            task.trained,
            lengths,
            dict(zip(kinds, shares, strict=True)),
            {kind: order_invariant(model, asked) for kind, model in backwards.items()},
            {kind: right(trained(ordering, kind)) for kind in control},
        )


def find() -> Finding:
    found = measure()
    ordered = [kind for kind in found.reversed_word if kind != "none"]
    lengths = [named(group) for group in found.lengths]
    least, none = (
        min(found.right(kind, longer=False) for kind in ordered),
        found.right("none", longer=False),
    )
    beyond = {kind: found.right(kind, longer=True) for kind in ordered}
    best = max(ordered, key=lambda kind: beyond[kind])
    return Finding(
        verdict(
            found.order_invariant["none"] > 0.95
            and all(found.order_invariant[kind] < 0.5 for kind in ordered),
            least > none + 0.2,
            all(beyond[kind] > beyond["learned"] + 0.1 for kind in ordered if kind != "learned"),
            beyond[best] > 0.9,
        ),
        f"without positions {share(found.order_invariant['none'])} of shuffled strings give the same output, "
        f"and {share(none)} of "
        f"letters are correct in reversing, but {share(found.sorted['none'])} in sorting. With positions at least "
        f"{share(least)} are correct in reversing. On strings longer than in training, learned positions get "
        f"{share(beyond['learned'])} and the best kind ({best}) {share(beyond[best])}.",
        [["positions", *(f"{n} letters" for n in lengths), "same output, shuffled", "sorting"]]
        + [
            [
                kind,
                *(share(value) for _, value, _ in row),
                share(found.order_invariant[kind]),
                _there(found.sorted.get(kind)),
            ]
            for kind, row in found.reversed_word.items()
        ],
        lines(
            "Letters reversed correctly, by length of the string; trained up to 8",
            lengths,
            found.reversed_word,
        ),
    )


def _there(value: float | None) -> str:
    return "" if value is None else share(value)


if __name__ == "__main__":
    main("positions", __doc__, find)
