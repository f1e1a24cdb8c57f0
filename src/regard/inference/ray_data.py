"""Bulk prediction with Ray Data (https://docs.ray.io): chunks of lines,
answered by replicas of a model on a cluster.

A row of the data set is a chunk of lines with the number of its first line. Replicas answer chunks
in any order, and the chunk of one that dies is computed again: the numbers give the outputs their
order, and as random draws depend on the seed and the line's number, a chunk has the same outputs
each time.
"""

import json
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from regard.core.errors import CheckpointRefused, InvalidArgument, MissingExtra, RegardError
from regard.inference.line_chunks import LineChunk, chunk_outputs
from regard.inference.load import load
from regard.tasks.pipeline import Output

if TYPE_CHECKING:
    import pyarrow

ATTEMPTS = 4  # to compute a chunk: Ray itself would try one that no replica survives forever


def predict_chunks(
    folder: Path,
    chunks: Iterable[LineChunk[Any]],
    options: dict[str, Any],
    *,
    device: str,
    replicas: int | None,
) -> Iterator[tuple[Any, list[Output]]]:
    """Each line with its outputs, in order.

    folder     of a checkpoint, which every node of the cluster can read
    replicas   of the model; None: one for each GPU of the cluster, or for each processor without
               any
    """
    with _cluster() as ray:
        import pyarrow

        device, available = _resources(ray, device)
        blocks = [
            ray.put(pyarrow.table({"id": [each.first], "chunk": [_encoded(each)]}))
            for each in chunks
        ]
        if not blocks:
            return
        data = ray.data.from_arrow_refs(blocks)
        data.context.enable_progress_bars = data.context.print_on_execution_start = False
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        attempts = ray.remote(num_cpus=0, scheduling_strategy=here)(Attempts).remote(ATTEMPTS)
        answered = data.map_batches(
            Replica,
            fn_constructor_args=(str(folder), device, options, attempts),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(replicas or available, len(blocks))),
            num_cpus=1,
            num_gpus=int(device == "cuda"),
        )
        try:
            yield from _in_order(answered.iter_rows())
        except ray.exceptions.RayError as error:
            got = str(error).strip().splitlines()[-1]
            raise RegardError(
                f"engine: wanted outputs of every replica; got {got}. See Ray's log."
            ) from error


class Attempts:
    """Counts how often each chunk was begun, in a process of Ray's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.begun: Counter[int] = Counter()

    def begin(self, chunk: int) -> bool:
        """Whether the chunk may be tried."""
        self.begun[chunk] += 1
        return self.begun[chunk] <= self.limit


class Replica:
    """A model in a process of Ray's, loaded once.

    It returns errors instead of raising them, so that the error of the first bad line is the one that
    is reported.

    attempts   the handle of an `Attempts`; None: a chunk is tried without end
    """

    def __init__(
        self, folder: str, device: str, options: dict[str, Any], attempts: Any = None
    ) -> None:
        self.options = options
        self.attempts = attempts
        self.refused = ""
        try:
            self.predictor = load(folder, device=device)
        except RegardError as error:
            self.refused = _encoded_error(error)

    def __call__(self, rows: "pyarrow.Table") -> "pyarrow.Table":
        import pyarrow

        return rows.append_column(
            "answer", pyarrow.array([self._answer(each.as_py()) for each in rows["chunk"]])
        )

    def _answer(self, encoded: str) -> str:
        chunk: LineChunk[str] = LineChunk(**json.loads(encoded))
        try:
            self._check_attempts(chunk)
            return self.refused or _encoded_outputs(
                chunk_outputs(self.predictor, chunk, self.options)
            )
        except RegardError as error:
            return _encoded_error(error)

    def _check_attempts(self, chunk: LineChunk[str]) -> None:
        import ray

        if self.attempts is not None and not ray.get(self.attempts.begin.remote(chunk.first)):
            lines = f"{chunk.first} to {chunk.first + len(chunk.lines) - 1}"
            got = "only replicas that were killed"
            raise RegardError(
                f"lines {lines}: wanted outputs; got {got}. Do they "
                "need more memory? See Ray's log."
            )


def _in_order(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, list[Output]]]:
    """The lines of all chunks with their outputs, in order;
    the error of the first line that has one.
    """
    waiting = dict[int, tuple[str, str]]()
    following = 1
    for row in rows:
        waiting[row["id"]] = row["chunk"], row["answer"]
        while following in waiting:
            chunk, answer = (json.loads(each) for each in waiting.pop(following))
            if "error" in answer:
                raise _decoded_error(answer["error"])
            for line, outputs in zip(chunk["lines"], answer["outputs"], strict=True):
                yield line, [_decoded_output(each) for each in outputs]
            following += len(chunk["lines"])
    assert not waiting, "Ray lost a chunk"


# ---- JSON: Python writes and reads floats exactly ----


def _encoded(chunk: LineChunk[Any]) -> str:
    for line in chunk.lines:
        if not isinstance(line, str):
            wanted = "texts or paths with the engine ray"
            remedy = "Unpack zip files, where all nodes can read them."
            raise InvalidArgument("lines", wanted=wanted, got=str(line), remedy=remedy)
    return json.dumps(vars(chunk))


def _encoded_outputs(answers: Iterable[list[Output]]) -> str:
    def table(output: Output) -> dict[str, Any]:
        weights = output.attention
        numbers = None
        if weights is not None:
            numbers = {"shape": weights.shape, "values": weights.flatten().tolist()}
        return {**vars(output), "attention": numbers}

    return json.dumps({"outputs": [[table(each) for each in outputs] for outputs in answers]})


def _decoded_output(table: dict[str, Any]) -> Output:
    values: dict[str, Any] = {}
    for name, value in table.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    if (weights := values["attention"]) is not None:
        values["attention"] = torch.tensor(weights["values"]).reshape(weights["shape"])
    return Output(**values)


def _encoded_error(error: RegardError) -> str:
    parts = {
        name: getattr(error, name)
        for name in ("argument", "wanted", "got", "remedy")
        if hasattr(error, name)
    }
    return json.dumps({"error": {"message": str(error), "code": error.exit_code, "parts": parts}})


def _decoded_error(table: dict[str, Any]) -> RegardError:
    if table["parts"]:
        return InvalidArgument(**table["parts"])
    kind = CheckpointRefused if table["code"] == CheckpointRefused.exit_code else RegardError
    error = kind(table["message"])
    error.exit_code = table["code"]
    return error


# ---- the cluster ----


@contextmanager
def _cluster() -> Iterator[Any]:
    """Ray, connected: to the cluster of this process, of $RAY_ADDRESS or of this machine,
    else to one that is started.

    What was connected or started here ends here.
    """
    try:
        import ray
        import ray.data
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingExtra(error.name or "ray", "ray", "The engine ray") from None
    if ray.is_initialized():
        yield ray
        return
    terminated = signal.getsignal(signal.SIGTERM)
    try:  # log_to_driver would print what replicas print into the outputs
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        wanted = "the address of a Ray cluster"
        got = f"{os.environ.get('RAY_ADDRESS', '')!r}: {error}"
        raise InvalidArgument(
            "RAY_ADDRESS", wanted=wanted, got=got, remedy="Start it: ray start --head."
        ) from None
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _exit)  # Ray's own exits with 15
        yield ray
    finally:
        ray.shutdown(wait_for_processes=True)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminated)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _resources(ray: Any, device: str) -> tuple[str, int]:
    """The device of every replica, and how many replicas the cluster has room for."""
    cpus, gpus = (int(ray.cluster_resources().get(name, 0)) for name in ("CPU", "GPU"))
    chosen = device
    if device == "auto":
        chosen = "cuda" if gpus else "cpu"
    if chosen not in ("cpu", "cuda") or (chosen == "cuda" and not gpus):
        wanted = "auto, cpu, or cuda where the Ray cluster has a GPU"
        raise InvalidArgument("device", wanted=wanted, got=repr(device), remedy="Use cpu.")
    replicas = gpus if chosen == "cuda" else cpus
    return chosen, max(1, replicas)
