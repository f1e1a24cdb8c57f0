"""Batches of examples of about one length, or of all, in an order that is a function of seed and epoch alone.

An epoch's order is a permutation that is computed, not stored: a Feistel network of a few rounds, walked until it lands
on an example (https://doi.org/10.1007/3-540-45760-7_9). It is taken in pools; a pool is sorted by length,
unless lengths are mixed, cut into batches and these are shuffled. So memory does not grow with the corpus, and any
batch can be come back to.
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
from regard.core.sequence import FeatureGrids, Packed, SequenceOffsets, Tokens
from regard.data.arrays import Ids, Indices, RunningTextColumn
from regard.data.augmentation import DRAWS, augment
from regard.data.config import AugmentKind
from regard.data.corpus import Corpus
from regard.data.tokenizer import PAD

POOL = 1 << 16
BLOCK = 64  # positions by which room is measured
MARGIN = 1.125  # more sequences than those of mean length that fill it
ROUNDS = 6


@dataclass(frozen=True)
class Batch:
    """Examples that are computed together."""

    # Token ids, labels, pictures (B, 3, Y, X) or their features, nothing
    source: Tokens | Packed | torch.Tensor | FeatureGrids | None
    targets: Tokens | Packed | torch.Tensor  # token ids from <s> to </s>, or labels
    tokens: int  # how many are to be foretold: every target token but the first of a text, or every label
    rows: torch.Tensor  # which examples of the corpus these are
    plan_batches: int = 1  # batches of an epoch that all ranks have taken together when each has taken such a one
    borrowed: bool = (
        False  # a rank without an example of its own computes this one beside the others; it counts for nothing
    )

    def to(self, device: torch.device | str) -> "Batch":
        """On a device, except `rows`; from pinned memory, copies do not wait."""
        source = None if self.source is None else _moved(self.source, device)
        return replace(self, source=source, targets=_moved(self.targets, device))

    @property
    def shape(self) -> str:
        """For people: rows, and the longest source and target, or the size of pictures."""
        longest = {
            name: side.ids.shape[1]
            for name, side in (("source", self.source), ("target", self.targets))
            if isinstance(side, Tokens)
        }
        if isinstance(self.targets, Packed):
            longest = {"source": self.source.offsets.max_length} if isinstance(self.source, Packed) else {}
            longest["target"] = self.targets.offsets.max_length
        told = [f"the longest {name} {length:,} tokens" for name, length in longest.items()]
        if isinstance(self.source, torch.Tensor) and self.source.ndim == 4:
            told.insert(0, f"pictures of {self.source.shape[3]} × {self.source.shape[2]} pixels")
        if isinstance(self.source, FeatureGrids):
            told.insert(0, "pictures of {2} × {1} regions".format(*self.source.states.shape))
        return ", ".join([f"{len(self.rows):,} examples", *told])


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
    """An epoch, each example once, in batches of at most `budget` cells: rows times the longest source or target.

    With room, sequences are laid end to end in it instead, in the epoch's order, whatever their lengths. If mixed,
    rows are in that order too, and padded.
    An example over the budget is a batch of its own. Of all batches, counted from 0, the first `start` are passed over.
    The rest is divided among the `world` as `shares` says, `together` batches at a time.
    How an example's picture is changed (`augment`, on the `device`) is a function of seed, epoch and its number.
    """
    _at_least("start", start, 0)
    _at_least("together", together, 1)
    _rank_of(rank, world)
    planned = islice(plan(corpus, budget=budget, seed=seed, epoch=epoch, capacity=capacity, mixed=mixed), start, None)
    made = (
        replace(_collated(corpus, rows, capacity), plan_batches=count, borrowed=lent)
        for rows, count, lent in rank_share(planned, rank=rank, world=world, together=together)
    )
    return (_changed(batch, augment, (seed, epoch), device) for batch in made) if augment else made


def plan(
    corpus: Corpus, *, budget: int, seed: int, epoch: int, capacity: "PackedCapacity | None" = None, mixed: bool = False
) -> Iterator[Indices]:
    """Which examples are in which batch of an epoch; cheap, for nothing of them is read but their lengths."""
    _at_least("budget", budget, 1)
    return _planned(corpus, budget, seed, epoch, mixed) if capacity is None else _laid(corpus, capacity, seed, epoch)


@dataclass(frozen=True)
class PackedCapacity:
    """What a batch of sequences laid end to end may hold, of sources and of targets."""

    positions: tuple[int, int]
    longest: tuple[int, int]  # sequences of the corpus
    rows: int  # sequences of either side, with those that only fill it up
    filled: bool = False  # up to this size, so that all batches are of one shape

    @staticmethod
    def of(corpus: Corpus, budget: int, *, filled: bool = False) -> "PackedCapacity":
        """Of `budget` positions for the side that has more, and for the other in proportion."""
        sums, longest = np.zeros(2, np.int64), np.ones(2, np.int64)
        for pool in _pools(len(corpus)):
            lengths = _both_lengths(corpus, pool)
            sums, longest = sums + lengths.sum(1), np.maximum(longest, lengths.max(1))
        share = np.ceil(budget * sums / max(1, sums.max()) / BLOCK).astype(np.int64) * BLOCK
        positions = np.maximum(np.minimum(share, budget), longest)
        usual = positions.max() * len(corpus) / max(1, sums.max())  # as many as fill it, of the corpus's mean length
        capacity = PackedCapacity((int(positions[0]), int(positions[1])), (int(longest[0]), int(longest[1])), 0, filled)
        return replace(capacity, rows=max(capacity.fillers((0, 0)), ceil(MARGIN * usual)) + 1)

    def fillers(self, used: Sequence[int]) -> int:
        """Sequences that fill up what is left on either side."""
        sides = zip(self.positions, used, self.longest, strict=True)
        return max(-(-(size - taken) // most) for size, taken, most in sides)

    def takes(self, count: int, used: Sequence[int]) -> bool:
        """Whether so many sequences fit that are so long, with those that fill up what they leave."""
        short = any(taken > size for taken, size in zip(used, self.positions, strict=True))
        return not short and count + self.fillers(used) <= self.rows


def rank_share(
    planned: Iterator[Indices], *, rank: int, world: int, together: int
) -> Iterator[tuple[Indices, int, bool]]:
    """What one rank takes: rows, for how many batches of the plan its turn stands, and whether the rows are only lent.

    Of each `together` batches, as many as go round go round whole; what is left is divided row by row. So the ranks'
    rows are those of one process, each once, and all ranks take as many turns, on examples of about one length. Who
    would have no row is lent one.
    """
    while group := list(islice(planned, together)):
        whole = len(group) // world * world
        for first in range(0, whole, world):
            yield group[first + rank], world, False
        for rows in group[whole:]:
            yield (rows[rank::world], 1, False) if rank < len(rows) else (rows[:1], 1, True)


def shift_contexts(corpus: Corpus, *, seed: int, epoch: int) -> Corpus:
    """Running text whose stretches begin at another token each epoch, as if it had as many times the examples."""
    text = corpus.target
    if not isinstance(text, RunningTextColumn):
        return corpus
    most = min(text.context_length, len(text.ids) - 1)  # something is always left
    first = int(permute(np.array([epoch % most]), most, (seed, most))[0])
    return replace(corpus, target=replace(text, ids=text.ids[first:]))


def evaluation_batches(corpus: Corpus, budget: int) -> Iterator[Batch]:
    """Every example once, the short ones of a pool first; `Batch.rows` says where each belongs."""
    _at_least("budget", budget, 1)
    return (_collated(corpus, rows) for pool in _pools(len(corpus)) for rows in _cut(corpus, pool, budget))


def stateful_batches(
    corpus: Corpus, *, rows: int, context_length: int, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Batch]:
    """Running text in `rows` lanes side by side, each read on from batch to batch: for states that are carried over.

    Lanes are of one length, so up to rows - 1 tokens at the end of the text are not read. Lane l is for rank l % world.
    """
    if not isinstance(corpus.target, RunningTextColumn):
        raise InvalidArgument(
            "corpus", wanted="running text", got="separate examples", remedy="Prepare it with data.context_length."
        )
    _at_least("rows", rows, 1)
    _at_least("stretch", context_length, 1)
    _at_least("start", start, 0)
    length = (len(corpus.target.ids) - 1) // rows
    _at_least("tokens of the corpus for each row", length, 1)
    _rank_of(rank, world)
    _at_least("rows", rows, world)
    return _lanes(corpus.target.ids, np.arange(rank, rows, world), length, context_length, start)


def permute(places: Indices, size: int, key: tuple[int, ...]) -> Indices:
    """What stands at these places of the permutation of range(size) that belongs to the key."""
    bits = max(2, (size - 1).bit_length())
    values = _rounds(places.astype(np.uint64), bits, key)
    while (outside := np.flatnonzero(values >= size)).size:
        values[outside] = _rounds(values[outside], bits, key)
    return values.astype(np.int64)


def _rounds(values: NDArray[np.uint64], bits: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """A permutation of all numbers of so many bits: each round changes one half by what the other half says."""
    low = bits // 2
    high = bits - low
    left, right = values >> np.uint64(low), values & np.uint64((1 << low) - 1)
    secret = _secret(key)
    for turn in range(ROUNDS):
        change = _mixed(right + np.uint64(secret ^ (turn << 56)))
        left, right = right, left ^ (change & np.uint64((1 << high) - 1))
        low, high = high, low
    return (left << np.uint64(low)) | right


def uniform_draws(rows: Indices, count: int, key: tuple[int, ...]) -> NDArray[np.float64]:
    """So many numbers from 0 to below 1 for each of these examples (B, count), the same whoever else is there."""
    places = (rows[:, None] * count + np.arange(count)).astype(np.uint64)
    return (_mixed(_mixed(places) + np.uint64(_secret(key))) >> np.uint64(11)) / 2**53


def _secret(key: tuple[int, ...]) -> int:
    secret = 0
    for number in key:
        secret = _mixed(np.array([secret ^ number & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)).item()
    return secret


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finishing steps of SplitMix64, which leave no bit as it was (https://doi.org/10.1145/2660193.2660195)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _planned(corpus: Corpus, budget: int, seed: int, epoch: int, mixed: bool) -> Iterator[Indices]:
    for number, pool in enumerate(_pools(len(corpus))):
        cut = list(_cut(corpus, permute(pool, len(corpus), (seed, epoch)), budget, mixed))
        for place in permute(np.arange(len(cut)), len(cut), (seed, epoch, number)):
            yield cut[place]


def _laid(corpus: Corpus, capacity: PackedCapacity, seed: int, epoch: int) -> Iterator[Indices]:
    """Examples in the epoch's order, as many to a batch as there is room for."""
    kept, used = list[Indices](), (0, 0)
    for pool in _pools(len(corpus)):
        rows = permute(pool, len(corpus), (seed, epoch))
        first = 0
        for place, new in enumerate(_both_lengths(corpus, rows).T.tolist()):
            count = sum(map(len, kept)) + place - first
            used = used[0] + new[0], used[1] + new[1]
            if count and not capacity.takes(count + 1, used):
                yield np.concatenate([*kept, rows[first:place]])
                kept, used, first = [], (new[0], new[1]), place
        kept.append(rows[first:])
    yield np.concatenate(kept)


def _both_lengths(corpus: Corpus, rows: Indices) -> NDArray[np.int64]:
    """Of sources, and of what is read of targets: all but the last token."""
    return np.stack((corpus.source_lengths(rows), corpus.target_lengths(rows) - 1)).astype(np.int64)


def _pools(size: int) -> Iterator[Indices]:
    return (np.arange(first, min(first + POOL, size)) for first in range(0, size, POOL))


def _cut(corpus: Corpus, pool: Indices, budget: int, mixed: bool = False) -> Iterator[Indices]:
    """Examples by length, or as they come if mixed, in batches as large as the budget allows."""
    sources, targets = corpus.source_lengths(pool), corpus.target_lengths(pool)
    longest, more = np.maximum(sources, targets), sources - targets
    # By the longer side, then by how much longer it is: by turns up and down, so that there is no jump where a batch
    # reaches over to the next length. The sort is stable: equals stay in the pool's order.
    order = np.arange(len(pool)) if mixed else np.lexsort((np.where(longest % 2, more, -more), longest))
    first, most = 0, 0
    for place, length in enumerate(longest[order].tolist()):
        most = max(most, length)
        if place > first and (place + 1 - first) * most > budget:
            yield pool[order[first:place]]
            first, most = place, length
    yield pool[order[first:]]


def _lanes(text: Ids, rows: Indices, length: int, context_length: int, start: int) -> Iterator[Batch]:
    for first in range(start * context_length, length, context_length):
        count = min(context_length, length - first)
        cells = (rows * length)[:, None] + np.arange(first, first + count + 1)  # (B, S)
        ids = torch.from_numpy(text[cells].astype(np.int64))
        lengths = torch.full((len(rows),), count + 1)
        yield Batch(None, Tokens(ids, lengths), len(rows) * count, torch.from_numpy(rows))


def _collated(corpus: Corpus, rows: Indices, capacity: PackedCapacity | None = None) -> Batch:
    source = None if corpus.source is None else corpus.source.gather(rows)
    targets = corpus.target.gather(rows)
    assert not isinstance(targets, FeatureGrids)
    tokens = int((targets.lengths - 1).sum()) if isinstance(targets, Tokens) else len(rows)
    batch = Batch(source, targets, tokens, torch.from_numpy(rows))
    return batch if capacity is None else pack_batch(batch, capacity)


def pack_batch(batch: Batch, capacity: PackedCapacity) -> Batch:
    """The same batch without padding."""
    assert isinstance(batch.targets, Tokens)
    targets, source = batch.targets, batch.source
    gold = targets.ids[:, 1:][targets.mask[:, 1:]]
    given = replace(targets, ids=targets.ids[:, :-1], lengths=targets.lengths - 1)
    laid = _packed(given, capacity, 1, gold)
    return replace(batch, source=_packed(source, capacity, 0) if isinstance(source, Tokens) else source, targets=laid)


def _packed(tokens: Tokens, capacity: PackedCapacity, side: int, gold: torch.Tensor | None = None) -> Packed:
    """Filled up, where asked for, by sequences of padding that nothing is said to, and by such of no length."""
    ids, lengths, longest = tokens.ids[tokens.mask], tokens.lengths, int(tokens.lengths.max())
    if capacity.filled:
        longest = capacity.longest[side]
        fill = capacity.positions[side] - len(ids)
        rest = [min(longest, fill - first) for first in range(0, fill, longest)]
        free = capacity.rows - len(lengths) - len(rest)
        assert free >= 0, (capacity, len(lengths), fill)
        none = [0] * free
        lengths = torch.cat((lengths, torch.tensor([*rest, *none], dtype=lengths.dtype)))
        ids = torch.nn.functional.pad(ids, (0, fill), value=PAD)
        gold = None if gold is None else torch.nn.functional.pad(gold, (0, fill), value=-1)
    return Packed(ids, SequenceOffsets.of(lengths, longest), gold)


def _changed(batch: Batch, changes: Sequence[AugmentKind], key: tuple[int, ...], device: str) -> Batch:
    assert isinstance(batch.source, torch.Tensor)
    drawn = torch.from_numpy(uniform_draws(batch.rows.numpy(), DRAWS, key)).float()
    return replace(batch, source=augment(batch.source.to(device), changes, drawn))


def _moved(side: Any, device: torch.device | str) -> Any:
    return side.to(device, non_blocking=True) if isinstance(side, torch.Tensor) else side.to(device)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidArgument(name, wanted=f"at least {least}", got=str(value), remedy="Raise it.")


def _rank_of(rank: int, world: int) -> None:
    _at_least("world", world, 1)
    if not 0 <= rank < world:
        raise InvalidArgument("rank", wanted=f"from 0 to {world - 1}", got=str(rank), remedy="Ranks count from 0.")
