"""Data-parallel training by the processes that torchrun starts: collectives, agreement checks,
gradient buckets.

Each rank has the whole model and its share of every batch. An update equals that of a single
process: gradients are summed over all ranks and divided once, by all target tokens. If a rank stops
answering, the others name it and exit within `train.distributed_timeout`.
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

BUCKET = 25 * 2**20  # bytes of gradients in one all-reduce
GRACE = 3.0  # seconds for the other ranks to report that they are waiting too


@dataclass(frozen=True)
class ProcessGroup:
    """The ranks of a run, seen from one of them. A process without torchrun is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    store: Any = None  # the rendezvous store: reachable even if a rank hangs

    @property
    def single(self) -> bool:
        return self.world_size == 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes checkpoints, logs and reports."""
        return self.rank == 0

    def all_gather(self, numbers: Sequence[int | float]) -> list[list[float]]:
        """The numbers of every rank, in rank order. Also a barrier."""
        if self.single:
            return [[float(number) for number in numbers]]
        own = torch.tensor(numbers, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        with self.communication():
            dist.all_gather(gathered, own)
        return [each.tolist() for each in gathered]

    def all_gather_text(self, text: str) -> list[str]:
        """The text of every rank, in rank order."""
        own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        lengths = [int(length) for (length,) in self.all_gather([len(own)])]
        gathered = [torch.zeros(max(lengths), dtype=torch.uint8) for _ in lengths]
        with self.communication():
            dist.all_gather(gathered, nn.functional.pad(own, (0, max(lengths) - len(own))))
        return [
            bytes(each[:length].tolist()).decode()
            for each, length in zip(gathered, lengths, strict=True)
        ]

    def seed_at(self, seed: int, step: int) -> int:
        """The random seed of an update: one per rank; rank 0 has that of a single process."""
        shared = _mix(seed, step)
        if self.is_main:
            return shared
        return _mix(shared, self.rank)

    def own_lanes(self, count: int) -> Int[Tensor, " lanes"]:
        """Which of `count` lanes of running text belong to this rank."""
        return torch.arange(self.rank, count, self.world_size)

    def gather_lanes(self, own: Tensor, count: int) -> Tensor:
        """The lanes of all ranks along the first axis, of which each rank has its own."""
        if self.single:
            return own
        lanes = own.new_zeros(count, *own.shape[1:])
        lanes.index_copy_(0, self.own_lanes(count).to(own.device), own.detach())
        with self.communication():
            dist.all_reduce(lanes)
        return lanes

    def check_equal(self, values: Mapping[str, Any]) -> None:
        """Raise on every rank, naming rank and key, unless all ranks have the same values."""
        if self.single:
            return
        texts = self.all_gather_text(json.dumps(values, sort_keys=True, default=str))
        first, *others = (json.loads(text) for text in texts)
        differences = [
            f"{key} = {other.get(key)!r} at rank {rank} for {first.get(key)!r} at rank 0"
            for rank, other in enumerate(others, start=1)
            for key in sorted(first.keys() | other.keys())
            if first.get(key) != other.get(key)
        ]
        if differences:
            got = "; ".join(differences[:5])
            if len(differences) > 5:
                got += f" and {len(differences) - 5} more"
            wanted = "one recipe, one corpus and one version in all processes"
            raise InvalidArgument(
                "ranks", wanted=wanted, got=got, remedy="Start them all with the same."
            )

    @contextmanager
    def communication(self) -> Iterator[None]:
        """Turns an error of a collective in this context into one that names the rank
        that does not answer.
        """
        try:
            yield
        except RuntimeError as error:
            raise self.unresponsive(error) from error

    def is_communication_error(self, error: RuntimeError) -> bool:
        """Whether an error raised during a backward pass came from a collective."""
        return not self.single and (isinstance(error, dist.DistError) or "gloo" in str(error))

    def unresponsive(self, error: RuntimeError) -> TrainingFailed:
        """An error that names the ranks that do not answer:
        those that do report it in the store.
        """
        others = set(range(self.world_size)) - {self.rank}
        # The store's host may be down as well.
        with suppress(Exception):
            self.store.set(f"waits/{self.rank}", "")
            deadline = time.monotonic() + GRACE
            while len(others) > 1 and time.monotonic() < deadline:
                others -= {rank for rank in others if self.store.check([f"waits/{rank}"])}
                time.sleep(0.05)
        silent = ", ".join(map(str, sorted(others))) or "any other"
        got = " ".join(str(error).split())
        return TrainingFailed(
            f"rank {self.rank} of {self.world_size}: wanted an answer of every other; "
            f"got none from rank {silent} ({got[:200]}). The last checkpoint is intact: "
            "check that process, and resume."
        )


SINGLE_PROCESS = ProcessGroup()


def _mix(seed: int, step: int) -> int:
    """One seed from two numbers, with unrelated results for neighbors (the finalizer
    of SplitMix64).
    """
    z = (seed * 0x9E3779B97F4A7C15 + step + 1) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**63


@contextmanager
def process_group(device: str, timeout: int) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, connected; without torchrun, this process alone.

    No collective waits longer than `timeout` seconds. On GPUs, "cuda" is this process's own device
    from here on.
    """
    rank, world_size, local_rank = _environment()
    if world_size == 1:
        yield SINGLE_PROCESS
        return
    if device == "cuda":
        if local_rank >= torch.cuda.device_count():
            got = f"{torch.cuda.device_count()} for rank {rank}, number {local_rank} on its machine"
            raise InvalidArgument(
                "ranks", wanted="a GPU for each process", got=got, remedy="Start fewer a machine."
            )
        torch.cuda.set_device(local_rank)
    backends = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    limit = timedelta(seconds=timeout)
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=limit))
        store = _private_store(store, rank, world_size, timeout)
        dist.init_process_group(
            backends, store=store, rank=rank, world_size=world_size, timeout=limit
        )
    except (RuntimeError, ValueError) as error:
        got = " ".join(str(error).split())[:300]
        raise TrainingFailed(
            f"rank {rank} of {world_size}: wanted to meet the others; got {got}. "
            "Start all of them, with torchrun."
        ) from error
    completed = False
    try:
        yield ProcessGroup(rank, world_size, store)
        completed = True
    finally:
        # On a GPU this would wait for a collective that never completes.
        if completed or device == "cpu":
            with suppress(RuntimeError):
                dist.destroy_process_group()


def _private_store(store: Any, rank: int, world_size: int, timeout: int) -> Any:
    """The rendezvous store under a prefix that only these processes use.

    After a restart torchrun's store still holds the keys of the processes before, whose addresses
    are dead. Rank 0 chooses a prefix, every other rank acknowledges it with a random token, and
    rank 0 publishes the tokens.
    """
    token = secrets.token_hex(8)
    if rank == 0:
        store.set("regard/name", token)
        # Waits for each.
        tokens = [store.get(f"regard/{token}/{other}").decode() for other in range(1, world_size)]
        store.set(f"regard/{token}/answers", " ".join(tokens))
        return dist.PrefixStore(f"regard/{token}", store)  # type: ignore[attr-defined]
    deadline = time.monotonic() + timeout
    prefix = ""
    while time.monotonic() < deadline:
        if (current := store.get("regard/name").decode()) != prefix:
            prefix = current
            store.set(f"regard/{prefix}/{rank}", token)
        if (
            store.check([key := f"regard/{prefix}/answers"])
            and token in store.get(key).decode().split()
        ):
            return dist.PrefixStore(f"regard/{prefix}", store)  # type: ignore[attr-defined]
        time.sleep(0.02)
    raise RuntimeError(f"no rank 0 within {timeout} seconds")


def _environment() -> tuple[int, int, int]:
    """Rank, world size and local rank, as torchrun sets them."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if "WORLD_SIZE" not in given:
        return 0, 1, 0
    try:
        rank, world_size, local_rank = (int(given[name]) for name in names)
        if 0 <= rank < world_size and local_rank >= 0:
            return rank, world_size, local_rank
    except (KeyError, ValueError):
        pass
    wanted = f"{', '.join(names)} in the environment, as torchrun sets them"
    got = ", ".join(f"{name}={value}" for name, value in given.items())
    raise InvalidArgument(
        "ranks", wanted=wanted, got=got, remedy="Start with torchrun, or unset them."
    )


class GradientBuckets:
    """Sums the gradients over all ranks in buckets,
    overlapping communication with the backward pass.

    Content and order of the buckets depend on the model alone, so sums have the same bits in a
    resumed run.
    """

    def __init__(self, model: nn.Module, process_group: ProcessGroup) -> None:
        self.model = model
        self.process_group = process_group
        self.buckets: list[list[nn.Parameter]] = []
        self.bucket_of: dict[nn.Parameter, int] = {}
        self.missing: list[int] = []  # gradients that each bucket still lacks
        self.sent: list[tuple[Tensor, Any]] = []

    def expect(self) -> None:
        """Announce that the next backward pass is the last of this update:
        buckets are sent as they fill.
        """
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # Different the first time, and when frozen weights are unfrozen.
        if len(trained) != len(self.bucket_of):
            self._arrange(trained)
        self.sent = []
        self.missing = [len(bucket) for bucket in self.buckets]

    def send_rest(self) -> None:
        """Send the buckets with weights that this rank's batch did not use,
        before any other collective.
        """
        while len(self.sent) < len(self.buckets):
            self._send()
        self.missing = []

    def collect(self) -> None:
        """Set each weight's gradient to the sum over all ranks."""
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            with self.process_group.communication():
                work.wait()
            for parameter, piece in zip(
                bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True
            ):
                parameter.grad = piece.view_as(parameter)

    def _arrange(self, trained: list[nn.Parameter]) -> None:
        self.buckets = []
        free = 0
        for parameter in reversed(trained):
            if parameter.nbytes > free:
                self.buckets.append([])
                free = BUCKET
            self.buckets[-1].append(parameter)
            free -= parameter.nbytes
            if parameter not in self.bucket_of:
                hook = parameter.register_post_accumulate_grad_hook
                hook(self._ready)  # type: ignore[no-untyped-call]
        self.bucket_of = {
            parameter: number for number, bucket in enumerate(self.buckets) for parameter in bucket
        }

    def _ready(self, parameter: Tensor) -> None:
        if not self.missing:
            return
        self.missing[self.bucket_of[parameter]] -= 1  # type: ignore[index]
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self._send()

    def _send(self) -> None:
        """Start the all-reduce of the next bucket. All ranks send buckets in the same order."""
        bucket = self.buckets[len(self.sent)]
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in bucket]
        flat = torch.cat(gradients)
        with self.process_group.communication():
            self.sent.append((flat, dist.all_reduce(flat, async_op=True)))
