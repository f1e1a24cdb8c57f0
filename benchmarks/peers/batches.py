"""The same batches for every peer: token numbers of Multi30k, cut by a budget of target tokens with their padding."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

VOCABULARY = 8000
SMOOTHING = 0.1
SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")  # in the order that Joey NMT insists on
PAD, START, END = 1, 2, 3
BUDGET = 4096
POOL = 8192  # sentences sorted by length at a time


@dataclass(frozen=True)
class Batch:
    source: Tensor  # (B, S), longest first, each with its end
    source_lengths: Tensor  # (B,)
    given: Tensor  # (B, T), each target with its start
    wanted: Tensor  # (B, T), each target with its end
    source_mask: Tensor  # (B, S), True where there is a token
    wanted_mask: Tensor  # (B, T)

    @property
    def tokens(self) -> int:
        """How many target tokens are no padding."""
        return int(self.wanted_mask.sum())


def batches(file: Path, kind: str) -> list[Batch]:
    """All batches of the corpus in a fixed random order: `bucketed` by length, or `shuffled` with all their padding."""
    arrays = np.load(file)
    sources, targets = (_rows(arrays[side], arrays[f"{side}_lengths"]) for side in ("en", "de"))
    random = np.random.default_rng(0)
    order = random.permutation(len(sources))
    if kind == "bucketed":
        pools = [order[first : first + POOL] for first in range(0, len(order), POOL)]
        order = np.concatenate(
            [sorted(pool, key=lambda i: (len(targets[i]), len(sources[i]))) for pool in pools]
        )
    cut = list(_cut(order, targets))
    return [
        _batch([sources[i] for i in cut[j]], [targets[i] for i in cut[j]])
        for j in random.permutation(len(cut))
    ]


def _rows(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(lengths)[:-1])


def _cut(order: np.ndarray, targets: list[np.ndarray]) -> Iterator[list[int]]:
    batch: list[int] = []
    longest = 0
    for i in order:
        length = len(targets[i]) + 1
        if batch and (len(batch) + 1) * max(longest, length) > BUDGET:
            yield batch
            batch, longest = [], 0
        batch.append(int(i))
        longest = max(longest, length)
    yield batch


def _batch(sources: list[np.ndarray], targets: list[np.ndarray]) -> Batch:
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    source = _padded([np.append(sources[i], END) for i in order])
    given = _padded([np.append(START, targets[i]) for i in order])
    wanted = _padded([np.append(targets[i], END) for i in order])
    return Batch(source, (source != PAD).sum(1), given, wanted, source != PAD, wanted != PAD)


def _padded(rows: list[np.ndarray]) -> Tensor:
    out = np.full((len(rows), max(len(row) for row in rows)), PAD)
    for row, into in zip(rows, out, strict=True):
        into[: len(row)] = row
    return torch.from_numpy(out)
