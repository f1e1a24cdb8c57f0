"""The batches of every epoch of a run, for one rank, prefetched by a thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from regard.core.sequence import pin_memory
from regard.data.augmentation import AugmentKind
from regard.data.batching import (
    Batch,
    PackedCapacity,
    batches,
    plan,
    shift_contexts,
    stateful_batches,
)
from regard.data.corpus import Corpus
from regard.data.prefetch import prefetch
from regard.training.config import TrainConfig
from regard.training.distributed import SINGLE_PROCESS, ProcessGroup

WASTE = 8  # recurrent steps per token above which packed batches get a warning


def lanes_of(config: TrainConfig, context_length: int | None) -> int | None:
    """The number of lanes of running text whose recurrent state is carried;
    None where it is not.
    """
    if not config.carry_state or not context_length:
        return None
    return max(1, config.batch_tokens // context_length)


@dataclass(frozen=True)
class EpochBatches:
    """Calling it with an epoch and the number of its first batch gives the batches
    of this rank from there on.
    """

    config: TrainConfig
    corpus: Corpus
    lanes: int | None = None  # of running text whose recurrent state is carried
    augment: Sequence[AugmentKind] = ()
    device: str = "cpu"
    process_group: ProcessGroup = SINGLE_PROCESS

    def __call__(self, epoch: int, start: int) -> Iterator[Batch]:
        config = self.config
        rank = self.process_group.rank
        world = self.process_group.world_size
        if self.lanes is not None:
            made = stateful_batches(
                self.corpus, rows=self.lanes, start=start, rank=rank, world=world
            )
        else:
            made = batches(
                shift_contexts(self.corpus, seed=config.seed, epoch=epoch),
                **self._plan,
                epoch=epoch,
                start=start,
                rank=rank,
                world=world,
                together=config.accumulate_steps,
                augment=self.augment,
                device=self.device,
            )
        if self.device == "cuda":
            made = map(pin_memory, made)
        return prefetch(made)

    @cached_property
    def total_steps(self) -> int:
        """The updates of a run, by `max_steps` and `max_epochs`.

        Every epoch is counted as the first: those of a large corpus may have a few batches more or
        fewer.
        """
        config = self.config
        if config.max_epochs is None:
            assert config.max_steps is not None
            return config.max_steps
        if self.lanes is not None:
            number = sum(1 for _ in stateful_batches(self.corpus, rows=self.lanes))
        else:
            shifted = shift_contexts(self.corpus, seed=config.seed, epoch=0)
            number = sum(1 for _ in plan(shifted, **self._plan, epoch=0))
        steps = config.max_epochs * -(-number // config.accumulate_steps)
        if config.max_steps is None:
            return steps
        return min(steps, config.max_steps)

    @property
    def _plan(self) -> dict[str, Any]:
        """The arguments of `plan` that are the same in every epoch."""
        size = {"budget": self.config.batch_tokens, "capacity": self._capacity}
        return {**size, "seed": self.config.seed, "mixed": self.config.mixed_lengths}

    @cached_property
    def _capacity(self) -> PackedCapacity | None:
        """Of packed batches.

        On a GPU all are filled to one shape, with CUDA graphs and without, for equal results.
        """
        if not self.config.packed:
            return None
        return PackedCapacity.of(
            self.corpus, self.config.batch_tokens, filled=self.device == "cuda"
        )

    def padding_warning(self) -> str | None:
        """A warning where most steps of a recurrent decoder lie behind the end
        of their packed sequences.
        """
        capacity = self._capacity
        if capacity is None or not capacity.filled:
            return None
        steps = capacity.rows * max(capacity.longest)
        tokens = max(capacity.positions)
        if steps <= WASTE * tokens:
            return None
        return (
            f"train.packed: {capacity.rows:,} sequences of a batch take as many steps as the "
            f"corpus's longest, {max(capacity.longest):,}: {steps:,} for {tokens:,} tokens. Take "
            "the longest out of the data, or leave train.packed out."
        )
