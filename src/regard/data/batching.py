"""Batches of examples of similar (or mixed) lengths,
in an order that is a function of seed and epoch alone.

An epoch's order is a permutation that is computed, not stored: a Feistel network with cycle walking
(https://doi.org/10.1007/3-540-45760-7_9). It is taken in pools; a pool is sorted by length, unless
lengths are mixed, cut into batches, and these are shuffled. So memory does not grow with the
corpus, and training resumes at any batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.core.sequence import (
    FeatureGrids,
    FieldBatch,
    MultiSource,
    Packed,
    PackedSequences,
    PackedVectors,
    SequenceOffsets,
    Tokens,
    Vectors,
)
from regard.data.augmentation import DRAWS, AugmentKind, augment
from regard.data.columns import Indices, RunningTextColumn
from regard.data.corpus import Corpus

POOL = 1 << 16
BLOCK = 64  # packed capacities are multiples of this
MARGIN = 1.125  # sequences of a packed batch, relative to its number of mean length
ROUNDS = 6  # of the Feistel network


@dataclass(frozen=True)
class Batch:
    """Examples of one forward pass."""

    # Token ids, labels, images (B, 3, Y, X) or their features, several of these, or None
    source: FieldBatch | None
    targets: FieldBatch  # token ids from <s> to </s>, tags, or labels
    tokens: int  # number of predictions: every target token but the first of a text, or every label
    rows: torch.Tensor  # indices of the examples in the corpus
    # Batches of the epoch's plan that all ranks together have taken with this one.
    plan_batches: int = 1
    # Computed by a rank without an example of its own; its loss does not count.
    borrowed: bool = False

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device, except `rows`; asynchronous from pinned memory."""
        source = self.source
        if source is not None:
            source = _moved(source, device)
        return replace(self, source=source, targets=_moved(self.targets, device))

    @property
    def shape(self) -> str:
        """A description for messages: examples, longest source and target, size of images."""
        sources = self.source.parts if isinstance(self.source, MultiSource) else (self.source,)
        parts = [f"{len(self.rows):,} examples"]
        for name, side in (*(("source", source) for source in sources), ("target", self.targets)):
            if isinstance(side, Tokens):
                parts.append(f"the longest {name} {side.ids.shape[1]:,} tokens")
            elif isinstance(side, Vectors):
                parts.append(f"the longest {name} {side.values.shape[1]:,} vectors")
            elif isinstance(side, PackedSequences):
                items = "vectors" if isinstance(side, PackedVectors) else "tokens"
                parts.append(f"the longest {name} {side.offsets.max_length:,} {items}")
            elif isinstance(side, FeatureGrids):
                parts.append("images of {2} × {1} regions".format(*side.states.shape))
            elif isinstance(side, torch.Tensor) and side.ndim == 4:
                parts.append(f"images of {side.shape[3]} × {side.shape[2]} pixels")
        return ", ".join(parts)


def batches(
    corpus: Corpus,
    *,
    budget: int,
    seed: int,
    epoch: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    together: int = 1,
    augment: Sequence[AugmentKind] = (),
    device: str = "cpu",
    capacity: "PackedCapacity | None" = None,
    mixed: bool = False,
) -> Iterator[Batch]:
    """An epoch, each example once, in batches of at most `budget` tokens:
    rows times the longest source or target.

    budget      an example longer than this is a batch of its own
    start       number of batches to skip, to resume an epoch
    together    batches of an update, which `rank_share` divides among the `world` ranks
    augment     random changes of images, on the `device`: a function of seed, epoch and the
                example's index
    capacity    pack sequences into batches of this capacity instead, in the epoch's order
    mixed       pad examples in the epoch's order instead of sorting them by length
    """
    planned = islice(
        plan(corpus, budget=budget, seed=seed, epoch=epoch, capacity=capacity, mixed=mixed),
        start,
        None,
    )
    collated = (
        replace(_collate(corpus, rows, capacity), plan_batches=count, borrowed=borrowed)
        for rows, count, borrowed in rank_share(planned, rank=rank, world=world, together=together)
    )
    if not augment:
        return collated
    return (_augment(batch, augment, (seed, epoch), device) for batch in collated)


def plan(
    corpus: Corpus,
    *,
    budget: int,
    seed: int,
    epoch: int,
    capacity: "PackedCapacity | None" = None,
    mixed: bool = False,
) -> Iterator[Indices]:
    """The example indices of each batch of an epoch. Reads only the lengths of examples."""
    if capacity is None:
        return _padded(corpus, budget, seed, epoch, mixed)
    return _packed(corpus, capacity, seed, epoch)


@dataclass(frozen=True)
class PackedCapacity:
    """Capacity of a batch of packed sequences, for sources and for targets."""

    positions: tuple[int, int]
    longest: tuple[int, int]  # sequence of the corpus
    rows: int  # sequences of either side, fillers included
    filled: bool = False  # with fillers up to this capacity, so that all batches have one shape

    @staticmethod
    def of(corpus: Corpus, budget: int, *, filled: bool = False) -> "PackedCapacity":
        """`budget` positions for the side with more tokens, and in proportion for the other."""
        sums = np.zeros(2, np.int64)
        longest = np.ones(2, np.int64)
        for pool in _pools(len(corpus)):
            lengths = _both_lengths(corpus, pool)
            sums = sums + lengths.sum(1)
            longest = np.maximum(longest, lengths.max(1))
        share = np.ceil(budget * sums / max(1, sums.max()) / BLOCK).astype(np.int64) * BLOCK
        positions = np.maximum(np.minimum(share, budget), longest)
        # The sequences of mean length that fill it.
        typical = positions.max() * len(corpus) / max(1, sums.max())
        capacity = PackedCapacity(
            (int(positions[0]), int(positions[1])), (int(longest[0]), int(longest[1])), 0, filled
        )
        return replace(capacity, rows=max(capacity.fillers((0, 0)), ceil(MARGIN * typical)) + 1)

    def fillers(self, used: Sequence[int]) -> int:
        """Number of filler sequences for the unused positions of either side."""
        sides = zip(self.positions, used, self.longest, strict=True)
        return max(-(-(size - taken) // most) for size, taken, most in sides)

    def takes(self, count: int, used: Sequence[int]) -> bool:
        """Whether `count` sequences of `used` positions in total fit, with their fillers."""
        exceeded = any(taken > size for taken, size in zip(used, self.positions, strict=True))
        return not exceeded and count + self.fillers(used) <= self.rows


def rank_share(
    planned: Iterator[Indices], *, rank: int, world: int, together: int
) -> Iterator[tuple[Indices, int, bool]]:
    """The batches of one rank: rows, how many batches of the plan they complete,
    and whether the rows are borrowed.

    Of each `together` batches, a multiple of `world` is distributed whole; the rest is divided row
    by row. So all ranks together see each example once, as one process would, and take the same
    number of batches of similar lengths. A rank that would have no row borrows one.
    """
    while group := list(islice(planned, together)):
        undivided = len(group) // world * world
        for first in range(0, undivided, world):
            yield group[first + rank], world, False
        for rows in group[undivided:]:
            if rank < len(rows):
                yield rows[rank::world], 1, False
            else:
                yield rows[:1], 1, True


def shift_contexts(corpus: Corpus, *, seed: int, epoch: int) -> Corpus:
    """Running text whose contexts begin at another token each epoch, so that epochs differ."""
    text = corpus.target
    if not isinstance(text, RunningTextColumn):
        return corpus
    limit = min(text.context_length, len(text.ids) - 1)  # at least one prediction remains
    first = int(permute(np.array([epoch % limit]), limit, (seed, limit))[0])
    return replace(corpus, target=replace(text, ids=text.ids[first:]))


def evaluation_batches(corpus: Corpus, budget: int) -> Iterator[Batch]:
    """Every example once, short ones of a pool first; `Batch.rows` holds their indices."""
    return (
        _collate(corpus, rows)
        for pool in _pools(len(corpus))
        for rows in _cut(corpus, pool, budget)
    )


def stateful_batches(
    corpus: Corpus, *, rows: int, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Batch]:
    """Running text in `rows` parallel streams, each continued in the next batch:
    for a recurrent state carried over.

    Streams are of one length, so up to rows - 1 tokens at the end of the text are dropped. Stream i
    is for rank i % world.
    """
    text = corpus.target
    assert isinstance(text, RunningTextColumn)
    length = (len(text.ids) - 1) // rows
    if length < 1:
        wanted = f"more than {rows} tokens, for {rows} rows of running text"
        got = str(len(text.ids))
        raise InvalidArgument("corpus", wanted=wanted, got=got, remedy="Lower train.batch_tokens.")
    return _streams(text, np.arange(rank, rows, world), length, start)


def permute(positions: Indices, size: int, key: tuple[int, ...]) -> Indices:
    """The values at these positions of the permutation of range(size) that the key selects."""
    bits = max(2, (size - 1).bit_length())
    values = _feistel(positions.astype(np.uint64), bits, key)
    while (outside := np.flatnonzero(values >= size)).size:
        values[outside] = _feistel(values[outside], bits, key)
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], bits: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """A Feistel permutation of all numbers of `bits` bits."""
    low = bits // 2
    high = bits - low
    left = values >> np.uint64(low)
    right = values & np.uint64((1 << low) - 1)
    hashed = _hash_key(key)
    for turn in range(ROUNDS):
        change = _splitmix(right + np.uint64(hashed ^ (turn << 56)))
        mixed = left ^ (change & np.uint64((1 << high) - 1))
        left = right
        right = mixed
        low, high = high, low
    return (left << np.uint64(low)) | right


def uniform_draws(rows: Indices, count: int, key: tuple[int, ...]) -> NDArray[np.float64]:
    """Random numbers in [0, 1) for each example (B,
    count), independent of the other examples of the batch.
    """
    counters = (rows[:, None] * count + np.arange(count)).astype(np.uint64)
    return (_splitmix(_splitmix(counters) + np.uint64(_hash_key(key))) >> np.uint64(11)) / 2**53


def _hash_key(key: tuple[int, ...]) -> int:
    hashed = 0
    for number in key:
        hashed = _splitmix(np.array([hashed ^ number & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)).item()
    return hashed


def _splitmix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (https://doi.org/10.1145/2660193.2660195)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _padded(corpus: Corpus, budget: int, seed: int, epoch: int, mixed: bool) -> Iterator[Indices]:
    for number, pool in enumerate(_pools(len(corpus))):
        pooled = list(_cut(corpus, permute(pool, len(corpus), (seed, epoch)), budget, mixed))
        for position in permute(np.arange(len(pooled)), len(pooled), (seed, epoch, number)):
            yield pooled[position]


def _packed(corpus: Corpus, capacity: PackedCapacity, seed: int, epoch: int) -> Iterator[Indices]:
    """Examples in the epoch's order, as many to a batch as its capacity takes."""
    kept = list[Indices]()
    used = (0, 0)
    for pool in _pools(len(corpus)):
        rows = permute(pool, len(corpus), (seed, epoch))
        first = 0
        for position, new in enumerate(_both_lengths(corpus, rows).T.tolist()):
            count = sum(map(len, kept)) + position - first
            used = used[0] + new[0], used[1] + new[1]
            if count and not capacity.takes(count + 1, used):
                yield np.concatenate([*kept, rows[first:position]])
                kept = []
                used = (new[0], new[1])
                first = position
        kept.append(rows[first:])
    yield np.concatenate(kept)


def _both_lengths(corpus: Corpus, rows: Indices) -> NDArray[np.int64]:
    """Lengths of sources, and of the decoder's inputs."""
    both = corpus.source_lengths(rows), corpus.target.read_lengths(rows)
    return np.stack(both).astype(np.int64)


def _pools(size: int) -> Iterator[Indices]:
    return (np.arange(first, min(first + POOL, size)) for first in range(0, size, POOL))


def _cut(corpus: Corpus, pool: Indices, budget: int, mixed: bool = False) -> Iterator[Indices]:
    """Examples by length, or in the pool's order if mixed,
    in the largest batches that the budget allows.
    """
    sources = corpus.source_lengths(pool)
    targets = corpus.target.lengths(pool)
    longest = np.maximum(sources, targets)
    more = sources - targets
    # By the longer side, then by the difference of the sides, alternately rising and falling, so
    # that a batch that spans two lengths has no jump. The sort is stable: ties stay in the pool's
    # order.
    order = np.arange(len(pool))
    if not mixed:
        alternating = np.where(longest % 2, more, -more)
        order = np.lexsort((alternating, longest))
    first = 0
    most = 0
    for position, length in enumerate(longest[order].tolist()):
        most = max(most, length)
        if position > first and (position + 1 - first) * most > budget:
            yield pool[order[first:position]]
            first = position
            most = length
    yield pool[order[first:]]


def _streams(text: RunningTextColumn, rows: Indices, length: int, start: int) -> Iterator[Batch]:
    for first in range(start * text.context_length, length, text.context_length):
        count = min(text.context_length, length - first)
        cells = (rows * length)[:, None] + np.arange(first, first + count + 1)  # (B, S)
        ids = torch.from_numpy(text.ids[cells].astype(np.int64))
        lengths = torch.full((len(rows),), count + 1)
        yield Batch(None, Tokens(ids, lengths), len(rows) * count, torch.from_numpy(rows))


def _collate(corpus: Corpus, rows: Indices, capacity: PackedCapacity | None = None) -> Batch:
    source = None
    if corpus.source is not None:
        source = corpus.source.gather(rows)
    targets = corpus.target.gather(rows)
    assert not isinstance(targets, FeatureGrids | MultiSource)
    predictions = corpus.target.predictions(rows)
    batch = Batch(source, targets, predictions, torch.from_numpy(rows))
    if capacity is None:
        return batch
    return pack_batch(batch, capacity)


def pack_batch(batch: Batch, capacity: PackedCapacity) -> Batch:
    """The batch with packed instead of padded sequences."""
    source = batch.source
    if isinstance(source, Tokens | Vectors):
        source = _pack(source, capacity, 0)
    return replace(batch, source=source, targets=_packed_targets(batch.targets, capacity))


def _packed_targets(targets: FieldBatch, capacity: PackedCapacity) -> PackedSequences:
    if isinstance(targets, Vectors):
        return _pack(targets, capacity, 1)
    assert isinstance(targets, Tokens)
    inputs = replace(targets, ids=targets.ids[:, :-1], lengths=targets.lengths - 1)
    packed = _pack(inputs, capacity, 1)
    assert isinstance(packed, Packed)
    gold = targets.ids[:, 1:][targets.mask[:, 1:]]  # (N,)
    more = len(packed.ids) - len(gold)
    return replace(packed, gold=torch.nn.functional.pad(gold, (0, more), value=-1))


def _pack(given: Tokens | Vectors, capacity: PackedCapacity, side: int) -> PackedSequences:
    """Packed sequences; with `filled`, followed by fillers and by empty sequences.

    Fillers are padding: token 0, or vectors of zeros in a source, and vectors without a target.
    """
    lengths = given.lengths
    count = int(lengths.sum())
    longest = int(lengths.max())
    fill = 0
    if capacity.filled:
        longest = capacity.longest[side]
        fill = capacity.positions[side] - count
        fillers = [min(longest, fill - first) for first in range(0, fill, longest)]
        empty = capacity.rows - len(lengths) - len(fillers)
        assert empty >= 0, (capacity, len(lengths), fill)
        lengths = torch.cat((lengths, torch.tensor([*fillers, *[0] * empty], dtype=lengths.dtype)))
    offsets = SequenceOffsets.of(lengths, longest)
    if isinstance(given, Tokens):
        ids = given.ids[given.mask]  # (N,)
        return Packed(torch.nn.functional.pad(ids, (0, fill)), offsets)
    vectors = given.values[given.places]  # (N, D)
    padding = float("nan") if side else 0.0
    return PackedVectors(torch.nn.functional.pad(vectors, (0, 0, 0, fill), value=padding), offsets)


def _augment(
    batch: Batch, kinds: Sequence[AugmentKind], key: tuple[int, ...], device: str
) -> Batch:
    draws = torch.from_numpy(uniform_draws(batch.rows.numpy(), DRAWS, key)).float()
    source = batch.source
    if isinstance(source, MultiSource):
        parts = []
        for part in source.parts:
            if isinstance(part, torch.Tensor) and part.ndim == 4:
                part = augment(part.to(device), kinds, draws)
            parts.append(part)
        return replace(batch, source=MultiSource(tuple(parts)))
    assert isinstance(source, torch.Tensor)
    return replace(batch, source=augment(source.to(device), kinds, draws))


def _moved(side: Any, device: torch.device | str) -> Any:
    if isinstance(side, torch.Tensor):
        return side.to(device, non_blocking=True)
    return side.to(device)
