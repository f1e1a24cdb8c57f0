"""The bottleneck: does one vector for the whole source cost more, the longer the source is?

Claim   An RNN without attention compresses the whole source into one vector of fixed size, so accuracy falls with the
        source length; attention, which reads every encoder state, removes the bottleneck.
Test    GRUs learn to copy strings of random letters. Accuracy of letters by length: without attention, for two sizes of
        the vector, and with attention.
Refuted if the model without attention falls no further from short to long words than the one with it.

    python experiments/bottleneck.py
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from letters import Share, Task, copied, learn, named, right_by_length
from report import Finding, lines, main, share, verdict

WORDS = Task(copied, trained=range(3, 17), tested=range(3, 17))


@dataclass(frozen=True)
class Found:
    lengths: list[range]
    right: dict[str, list[Share]]  # by model and lengths: of letters

    def fall(self, model: str) -> float:
        """From the shortest words to the longest."""
        return self.right[model][0][1] - self.right[model][-1][1]


def gru(dim: int, attention: str) -> dict[str, dict[str, object]]:
    part = {"kind": "rnn", "dim": dim, "dropout": 0.0}
    return {"encoder": part, "decoder": part | {"attention": attention}}


def measure(
    widths: Sequence[int] = (48, 128),
    task: Task = WORDS,
    ends: Sequence[int] = (4, 8, 12),  # of groups of lengths
    steps: int = 600,
) -> Found:
    models = {f"without, {dim} wide": (dim, "none") for dim in widths}
    models[f"with attention, {widths[0]} wide"] = (widths[0], "bahdanau")
    with tempfile.TemporaryDirectory() as folder:
        learned = [
            learn(
                gru(dim, attention), task, steps, rate=0.042 / dim**0.5, folder=Path(folder) / name
            )
            for name, (dim, attention) in models.items()
        ]
        groups, right = right_by_length(learned, ends)
    return Found(groups, dict(zip(models, right, strict=True)))


def find() -> Finding:
    found = measure()
    narrow, wide, attending = found.right
    lengths = [named(group) for group in found.lengths]
    return Finding(
        verdict(
            found.fall(narrow) > found.fall(attending) + 0.1,
            found.fall(wide) > found.fall(attending) + 0.1,
        ),
        f"from the shortest words to the longest, the share of right letters falls by {share(found.fall(narrow))} "
        f"({narrow}), {share(found.fall(wide))} ({wide}) and {share(found.fall(attending))} ({attending}).",
        [["correct letters, by length of the string", *lengths]]
        + [[name, *(share(value) for _, value, _ in row)] for name, row in found.right.items()],
        lines("Letters copied correctly, by length of the string", lengths, found.right),
    )


if __name__ == "__main__":
    main("bottleneck", __doc__, find)
