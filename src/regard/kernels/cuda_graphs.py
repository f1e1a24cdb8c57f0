"""CUDA graphs: kernels recorded once and replayed with one launch, on the memory they were recorded with.

A small model spends more time on launching kernels one by one than on executing them. One recorder serves decoding
steps, encoders and training updates.
"""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from functools import lru_cache

import torch

log = logging.getLogger(__name__)

WARMUP = 2  # eager runs before a recording: libraries choose their kernels in the first


class GraphRecorder:
    """Records work by key and replays it. Work of one key launches the same kernels on the same memory each time."""

    def __init__(
        self, *, limit: int | None = None, release_cache: bool = False,
        on_failure: Callable[[RuntimeError], None] | None = None,
    ) -> None:  # fmt: skip
        self.limit = limit  # recordings at most; each has memory of its own
        self.release_cache = release_cache  # return cached memory to the device before recording
        self.on_failure = on_failure or (
            lambda error: _warn(first_line(error))
        )  # may raise; otherwise the work is launched eagerly from then on
        self.runs: Counter[Hashable] = Counter()
        self.replays: dict[Hashable, Callable[[], None]] = {}

    def due(self, key: Hashable) -> bool:
        """Count a run of this key; whether it is recorded, or is to be recorded now."""
        if key in self.replays:
            return True
        self.runs[key] += 1
        return self.runs[key] > WARMUP and (self.limit is None or len(self.replays) < self.limit)

    def replay(self, key: Hashable, work: Callable[[], None]) -> None:
        """Record the work, if it is not recorded yet, and replay it."""
        if key not in self.replays:
            try:
                self.replays[key] = capture(work, release_cache=self.release_cache)
            except RuntimeError as error:
                self.on_failure(error)
                self.replays[key] = work
        self.replays[key]()

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Launch the work the first times, then record and replay it."""
        if self.due(key):
            self.replay(key, work)
        else:
            work()


def capture(work: Callable[[], None], *, release_cache: bool = False) -> Callable[[], None]:
    """Record work into a CUDA graph and return its replay; nothing is computed yet."""
    if release_cache:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
    current = torch.cuda.current_stream()
    stream = _capture_stream(torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
    except RuntimeError as error:  # the first error, not the one of ending a failed recording
        raise error.__context__ if isinstance(error.__context__, RuntimeError) else error from None
    current.wait_stream(stream)
    return graph.replay


@lru_cache(maxsize=16)
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0].rstrip(".")


@lru_cache(maxsize=1)  # logged once
def _warn(reason: str) -> None:
    log.warning("decoding steps cannot be recorded as CUDA graphs, which is slower: %s", reason)
