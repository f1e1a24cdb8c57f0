"""Positions: what does attention know of order without them, and what does each kind add?

Claim   Self-attention sees a set: whoever permutes the source gets the same answer. Positions give it a notion of
        order; they should also serve sentences longer than those in training, for which learned ones know nothing.
Test    Transformers learn to say a word of random letters backwards, without positions and with each kind, and are
        tested on words as long as in training and on longer ones. What share of words gets the same answer when its
        letters are shuffled? As a control, letters to be put in alphabetical order without positions: there the order
        of the source means nothing.
Refuted if the model without positions turns words round as well as the others, or cannot sort letters.

    python experiments/positions.py
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import regard
from letters import Share, Task, in_order, learn, named, right, right_by_length, transformer, turned, words
from report import Finding, lines, main, share, verdict

KINDS = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")


@dataclass(frozen=True)
class Found:
    trained: Sequence[int]
    lengths: list[range]
    turned: dict[str, list[Share]]  # by kind and lengths: of letters
    unmoved: dict[str, float]  # by kind: the share of words whose answer stays when their letters are shuffled
    sorted: dict[str, float]  # by kind: the share of letters right in alphabetical order

    def right(self, kind: str, *, longer: bool) -> float:
        """The mean share of right letters, at lengths of training or at longer ones."""
        pairs = zip(self.lengths, self.turned[kind], strict=True)
        return mean(share[1] for lengths, share in pairs if (lengths[0] > self.trained[-1]) == longer)


def unmoved(model: regard.Predictor, asked: Sequence[str]) -> float:
    chance = random.Random(0)
    shuffled = ["".join(chance.sample(word, len(word))) for word in asked]
    return mean(float(one == other) for one, other in zip(model.predict(asked), model.predict(shuffled), strict=True))


def measure(
    kinds: Sequence[str] = KINDS,
    control: Sequence[str] = ("none",),
    trained: Sequence[int] = range(3, 9),
    tested: Sequence[int] = range(3, 13),
    ends: Sequence[int] = (5, 8, 10),  # of groups of lengths
    width: int = 64,
    steps: int = 400,
    rate: float = 4e-3,
    examples: int = 20_000,
) -> Found:
    with tempfile.TemporaryDirectory() as folder:

        def taught(task: Task, kind: str) -> regard.Predictor:
            model = transformer(width, layers=2, heads=4, position=kind)
            return learn(model, task, steps, rate, Path(folder) / f"{task.answer.__name__}-{kind}")

        backwards = {kind: taught(Task(turned, trained, tested, examples), kind) for kind in kinds}
        lengths, shares = right_by_length(list(backwards.values()), ends)
        asked = words(200, trained, seed=3)
        return Found(
            trained,
            lengths,
            dict(zip(kinds, shares, strict=True)),
            {kind: unmoved(model, asked) for kind, model in backwards.items()},
            {kind: right(taught(Task(in_order, trained, trained, examples), kind)) for kind in control},
        )


def find() -> Finding:
    found = measure()
    ordered = [kind for kind in found.turned if kind != "none"]
    lengths = [named(group) for group in found.lengths]
    best = max(ordered, key=lambda kind: found.right(kind, longer=True))
    return Finding(
        verdict(
            found.unmoved["none"] > 0.95 and all(found.unmoved[kind] < 0.5 for kind in ordered),
            all(found.right(kind, longer=False) > found.right("none", longer=False) + 0.2 for kind in ordered),
            all(
                found.right(kind, longer=True) > found.right("learned", longer=True) + 0.1
                for kind in ordered
                if kind != "learned"
            ),
        ),
        f"without positions {share(found.unmoved['none'])} of shuffled words get the same answer, and "
        f"{share(found.right('none', longer=False))} of letters are right backwards, but "
        f"{share(found.sorted['none'])} in alphabetical order. With positions it is "
        f"{share(min(found.right(kind, longer=False) for kind in ordered))} or more backwards. On longer words than in "
        f"training learned positions get {share(found.right('learned', longer=True))}, the best kind ({best}) "
        f"{share(found.right(best, longer=True))}.",
        [["positions", *(f"{n} letters" for n in lengths), "same answer, shuffled", "in alphabetical order"]]
        + [
            [kind, *(share(value) for _, value, _ in row), share(found.unmoved[kind]), _there(found.sorted.get(kind))]
            for kind, row in found.turned.items()
        ],
        lines("Letters right backwards, by length of the word; trained up to 8", lengths, found.turned),
    )


def _there(value: float | None) -> str:
    return "" if value is None else share(value)


if __name__ == "__main__":
    main("positions", __doc__, find)
