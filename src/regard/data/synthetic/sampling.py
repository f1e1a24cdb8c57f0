"""Reproducible sampling of synthetic examples: a function of the task,
the split and the seed alone.
"""

import hashlib
import random
from collections.abc import Callable, Iterator

from regard.core.errors import InvalidArgument
from regard.data.example import SPLITS, Example, Split

SIZES: dict[Split, int] = {"train": 20_000, "valid": 1_000, "test": 1_000}
# Of the space that is sampled.
SHARES: dict[Split, float] = {"train": 0.8, "valid": 0.1, "test": 0.1}


def uniform(task: str, split: Split, seed: int) -> Callable[[], float]:
    """A generator of numbers in [0,
    1). Of `random`, only these are the same in every version of Python.
    """
    check_split(split)
    return random.Random(f"{task} {split} {seed}").random


def distinct(
    draw: Callable[[], Example], key: Callable[[Example], str], split: Split, size: int | None
) -> Iterator[Example]:
    """Draws with different sources whose key belongs to this split: `size` of them,
    or SIZES[split].
    """
    seen: set[object] = set()
    wanted = SIZES[split] if size is None else size
    while len(seen) < wanted:
        example = draw()
        if example.source not in seen and split_of(key(example), SHARES) == split:
            seen.add(example.source)
            yield example


def split_of(key: str, shares: dict[Split, float]) -> Split:
    """The split of a key, by its hash: no key is in two splits."""
    position = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    if position < shares["test"]:
        return "test"
    return "valid" if position < shares["test"] + shares["valid"] else "train"


def check_split(split: Split) -> None:
    """Refuse an unknown split."""
    if split not in SPLITS:
        raise InvalidArgument(
            "split", wanted=f"one of {', '.join(SPLITS)}", got=repr(split), remedy="Name one."
        )
