"""Jobs in worker threads, each of which computes with a single thread: searches of parts of many requests at once.

Compiled steps run without Python's lock, so that threads suffice, with one copy of the weights.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

Result = TypeVar("Result")


def run_in_threads(jobs: Iterable[Callable[[], Result]], workers: int) -> Iterator[Result]:
    """The results of jobs, in their order; as many run at once as there are workers, and as many more wait."""
    pool = _pool(workers, os.getpid())
    running = deque[Future[Result]]()
    try:
        for job in jobs:
            running.append(pool.submit(job))
            if len(running) >= 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()
        for future in running:  # none may run on when the caller has left: it may change the model
            if not future.cancelled():
                future.exception()


@lru_cache(maxsize=8)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process, in which PyTorch uses one thread each."""
    return worker_pool(workers, 1)


def worker_pool(workers: int, threads: int, name: str = "regard-worker") -> ThreadPoolExecutor:
    """New threads, in each of which PyTorch and the compiled engine use so many threads."""
    before = torch.get_num_threads()
    started = threading.Barrier(workers + 1)
    pool = ThreadPoolExecutor(workers, name)
    for _ in range(workers):
        pool.submit(_use_threads, threads, started)
    started.wait()
    torch.set_num_threads(before)  # that of threads which are started later
    return pool


def _use_threads(threads: int, started: threading.Barrier) -> None:
    torch.set_num_threads(threads)
    torch.get_num_threads()  # takes effect in this thread by its first use, after which others may set it
    started.wait()
