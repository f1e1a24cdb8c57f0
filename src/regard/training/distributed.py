"""The processes that train one model together, as torchrun starts them: who they are and what they tell one another.

Each has the whole model and reads its share of every batch. An update is the one that a single process would make:
gradients are summed over all ranks and divided once, by all tokens. A rank that falls silent is named by the others,
and all of them end within the time that the recipe gives.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous

from regard.core.errors import InvalidArgument, TrainingFailed
from regard.core.shapes import Int, Tensor

BUCKET = 25 * 2**20  # bytes of gradients that are sent at once
GRACE = 3.0  # seconds for the others to say that they wait too


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, as one of them sees them. By itself, a process is rank 0 of 1."""

    rank: int = 0
    world: int = 1
    store: Any = None  # where they met: it answers though a rank may not

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def gathered(self, numbers: Sequence[int | float]) -> list[list[float]]:
        """These numbers of every rank, in their order. All wait here for the last."""
        if self.alone:
            return [[float(number) for number in numbers]]
        mine = torch.tensor(numbers, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.world)]
        with self.answering():
            dist.all_gather(every, mine)
        return [each.tolist() for each in every]

    def texts(self, text: str) -> list[str]:
        """What every rank says."""
        mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        lengths = [int(length) for (length,) in self.gathered([len(mine)])]
        every = [torch.zeros(max(lengths), dtype=torch.uint8) for _ in lengths]
        with self.answering():
            dist.all_gather(every, nn.functional.pad(mine, (0, max(lengths) - len(mine))))
        return [bytes(each[:length].tolist()).decode() for each, length in zip(every, lengths, strict=True)]

    def seed(self, seed: int, step: int) -> int:
        """Of the random numbers of an update: each rank has its own, and the first one's are those of one alone."""
        shared = _mix(seed, step)
        return shared if self.first else _mix(shared, self.rank)

    def places(self, count: int) -> Int[Tensor, " places"]:
        """Which of so many lanes are this rank's."""
        return torch.arange(self.rank, count, self.world)

    def spread(self, mine: Tensor, dimension: int, count: int) -> Tensor:
        """The lanes of all ranks, of which each gives its own along a dimension."""
        if self.alone:
            return mine
        shape = (*mine.shape[:dimension], count, *mine.shape[dimension + 1 :])
        every = mine.new_zeros(shape).index_copy_(dimension, self.places(count).to(mine.device), mine.detach())
        with self.answering():
            dist.all_reduce(every)
        return every

    def agree(self, said: Mapping[str, Any]) -> None:
        """All ranks say the same of each of these, or all refuse, naming the rank and what differs."""
        if self.alone:
            return
        first, *others = (json.loads(text) for text in self.texts(json.dumps(said, sort_keys=True, default=str)))
        apart = [
            f"{key} = {other.get(key)!r} at rank {rank} for {first.get(key)!r} at rank 0"
            for rank, other in enumerate(others, start=1)
            for key in sorted(first.keys() | other.keys())
            if first.get(key) != other.get(key)
        ]
        if apart:
            raise InvalidArgument(
                "ranks",
                wanted="one recipe, one corpus and one version in all processes",
                got="; ".join(apart[:5]) + (f" and {len(apart) - 5} more" if len(apart) > 5 else ""),
                remedy="Start them all with the same.",
            )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """What goes wrong with an exchange in here is told as one rank's silence."""
        try:
            yield
        except RuntimeError as error:
            raise self.silence(error) from error

    def is_silence(self, error: RuntimeError) -> bool:
        """Whether an error in the middle of something else came from an exchange."""
        return not self.alone and (isinstance(error, dist.DistError) or "gloo" in str(error))

    def silence(self, error: RuntimeError) -> TrainingFailed:
        """Who does not answer: those who wait say so in the store, and the rest are named."""
        others = set(range(self.world)) - {self.rank}
        with suppress(Exception):  # the store may have gone with its host
            self.store.set(f"waits/{self.rank}", "")
            until = time.monotonic() + GRACE
            while len(others) > 1 and time.monotonic() < until:
                others -= {rank for rank in others if self.store.check([f"waits/{rank}"])}
                time.sleep(0.05)
        who = ", ".join(map(str, sorted(others))) or "any other"
        got = " ".join(str(error).split())
        return TrainingFailed(
            f"rank {self.rank} of {self.world}: wanted an answer of every other; got none from rank {who} "
            f"({got[:200]}). The last checkpoint is as it was: see what became of that one, and resume."
        )


ALONE = ProcessGroup()


def _mix(seed: int, step: int) -> int:
    """One number from two, well apart for neighbours (the finaliser of SplitMix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + step + 1) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**63


@contextmanager
def joined(device: str, timeout: int) -> Iterator[ProcessGroup]:
    """All processes that torchrun started, met and connected; without it, this one.

    None of them waits longer than `timeout` seconds for another. On GPUs, "cuda" means this process's own from here on.
    """
    rank, world, local = _environment()
    if world == 1:
        yield ALONE
        return
    if device == "cuda":
        if local >= torch.cuda.device_count():
            got = f"{torch.cuda.device_count()} for rank {rank}, number {local} here"
            raise InvalidArgument("ranks", wanted="a GPU for each process", got=got, remedy="Start fewer a machine.")
        torch.cuda.set_device(local)
    backends = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    limit = timedelta(seconds=timeout)
    try:
        store, rank, world = next(rendezvous("env://", timeout=limit))
        store = _fresh(store, rank, world, timeout)
        dist.init_process_group(backends, store=store, rank=rank, world_size=world, timeout=limit)
    except (RuntimeError, ValueError) as error:
        got = " ".join(str(error).split())[:300]
        raise TrainingFailed(
            f"rank {rank} of {world}: wanted to meet the others; got {got}. Start all of them, with torchrun."
        ) from error
    done = False
    try:
        yield ProcessGroup(rank, world, store)
        done = True
    finally:
        if done or device == "cpu":  # a GPU's exchange that will never end would be waited for
            with suppress(RuntimeError):
                dist.destroy_process_group()


def _fresh(store: Any, rank: int, world: int, timeout: int) -> Any:
    """The store under a name that these processes alone have.

    After a restart torchrun's still holds what the processes before said, and who reads it looks for the dead. So the
    first rank thinks of a name, the others answer it, and it shows them their answers.
    """
    mine = secrets.token_hex(8)
    if rank == 0:
        store.set("regard/name", mine)
        answers = [store.get(f"regard/{mine}/{other}").decode() for other in range(1, world)]  # waits for each
        store.set(f"regard/{mine}/answers", " ".join(answers))
        return dist.PrefixStore(f"regard/{mine}", store)  # type: ignore[attr-defined]
    until, name = time.monotonic() + timeout, ""
    while time.monotonic() < until:
        if (heard := store.get("regard/name").decode()) != name:
            name = heard
            store.set(f"regard/{name}/{rank}", mine)
        if store.check([shown := f"regard/{name}/answers"]) and mine in store.get(shown).decode().split():
            return dist.PrefixStore(f"regard/{name}", store)  # type: ignore[attr-defined]
        time.sleep(0.02)
    raise RuntimeError(f"no first rank within {timeout} seconds")


def _environment() -> tuple[int, int, int]:
    """Rank, how many there are, and the number on this machine."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if "WORLD_SIZE" not in given:
        return 0, 1, 0
    try:
        rank, world, local = (int(given[name]) for name in names)
        if 0 <= rank < world and local >= 0:
            return rank, world, local
    except (KeyError, ValueError):
        pass
    raise InvalidArgument(
        "ranks",
        wanted=f"{', '.join(names)} in the environment, as torchrun sets them",
        got=", ".join(f"{name}={value}" for name, value in given.items()),
        remedy="Start with torchrun, or unset them.",
    )


class GradientBuckets:
    """Sums the gradients of all ranks, the last layers' while the backward is still at work on the first.

    They go in buckets whose content and order follow from the model alone, so that sums have the same bits in a run
    that was stopped as in one that was not.
    """

    def __init__(self, model: nn.Module, ranks: ProcessGroup) -> None:
        self.model, self.ranks = model, ranks
        self.buckets: list[list[nn.Parameter]] = []
        self.place: dict[nn.Parameter, int] = {}  # the bucket of each weight
        self.missing: list[int] = []  # gradients that each bucket still waits for
        self.sent: list[tuple[Tensor, Any]] = []

    def expect(self) -> None:
        """The next backward is the last of this update: send what is ready as it goes."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if len(trained) != len(self.place):  # at first, and once more when what was frozen is trained
            self._arrange(trained)
        self.sent, self.missing = [], [len(bucket) for bucket in self.buckets]

    def send_rest(self) -> None:
        """Send what waits for weights that this rank's batch had no use for, before anything else is exchanged."""
        while len(self.sent) < len(self.buckets):
            self._send()
        self.missing = []

    def collect(self) -> None:
        """Each weight's gradient becomes the sum over all ranks."""
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            with self.ranks.answering():
                work.wait()
            for parameter, piece in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                parameter.grad = piece.view_as(parameter)

    def _arrange(self, trained: list[nn.Parameter]) -> None:
        self.buckets, room = [], 0
        for parameter in reversed(trained):
            if parameter.nbytes > room:
                self.buckets.append([])
                room = BUCKET
            self.buckets[-1].append(parameter)
            room -= parameter.nbytes
            if parameter not in self.place:
                parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
        self.place = {parameter: number for number, bucket in enumerate(self.buckets) for parameter in bucket}

    def _ready(self, parameter: Tensor) -> None:
        if not self.missing:
            return
        self.missing[self.place[parameter]] -= 1  # type: ignore[index]
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self._send()

    def _send(self) -> None:
        """The next bucket, on its way. All ranks send them in one order, whichever is ready first."""
        gradients = (
            p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in self.buckets[len(self.sent)]
        )
        flat = torch.cat(list(gradients))
        with self.ranks.answering():
            self.sent.append((flat, dist.all_reduce(flat, async_op=True)))
