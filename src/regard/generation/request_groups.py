"""Which requests of a search share a batch, and how many threads search at once."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from regard.core.errors import InvalidArgument
from regard.generation.batch_plan import (
    BatchLimits,
    BatchPlan,
    search_batch_tokens,
)
from regard.generation.engines import selection
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search_memory import beams_of, budget, check_budget, has_limit
from regard.model.capture import capturing_here, intercepting_here

MAX_HYPOTHESES = {"cpu": 512, "cuda": 2560}  # in one step
SMALL_SEARCH = (
    1 << 15
)  # tokens of all hypotheses at their longest, whose memory is not worth counting
MIN_PART = 8  # requests that a worker searches together, at least


def length_groups(
    task: SearchTask, requests: Sequence[GenerationRequest], planned: Sequence[GenerationRequest]
) -> Iterator[tuple[list[int], int]]:
    """The indices of requests of similar length that share a batch, and its number of slots."""
    config = task.config
    rows = MAX_HYPOTHESES.get(task.device.type, MAX_HYPOTHESES["cpu"])
    budget = search_batch_tokens(config, task.model)
    # Longest first (the sort is stable): no request that is admitted later needs larger buffers.
    queue = sorted(range(len(requests)), key=lambda i: -requests[i].size)
    while queue:
        size = max(1, requests[queue[0]].size)
        end = next(
            (n for n, i in enumerate(queue) if 2 * max(1, requests[i].size) < size), len(queue)
        )
        group = queue[:end]
        queue = queue[end:]
        slots = max(
            1, min(len(group), budget // size, rows // max(config.beam_size, config.num_hypotheses))
        )
        if task.window is not None and any(planned[i].max_length > task.window for i in group):
            # The windows of a batch slide together: no request is admitted later.
            queue = [*group[slots:], *queue]
            group = group[:slots]
        yield group, slots


def groups_in_memory(
    task: SearchTask,
    planned: Sequence[GenerationRequest],
    groups: Iterable[tuple[list[int], int]],
    workers: int,
) -> list[tuple[list[int], int]]:
    """The groups with as many slots as fit into memory; refused where a single request does not."""
    allowed = None
    found = []
    for group, slots in groups:
        requests = [planned[index] for index in group]
        slots = min(slots, len(group))
        longest = max(each.max_length for each in requests)
        is_small = slots * beams_of(task.config) * longest <= SMALL_SEARCH
        keeps_more = task.attention or any(each.constraint is not None for each in requests)
        if is_small and not keeps_more and not has_limit(task):
            found.append((group, slots))
            continue
        if allowed is None:
            allowed = budget(task) // workers
        limits = BatchLimits.of(requests, slots)
        decoder = BatchPlan(task, limits, slots).decoder
        source = max(each.size for each in requests)
        needed = check_budget(task, decoder, limits, source, allowed)
        fitting = (allowed - needed.shared) // needed.slot
        found.append((group, max(1, min(slots, fitting))))
    return found


def worker_parts(group: Sequence[int], slots: int, workers: int) -> Iterator[Sequence[int]]:
    """Parts of a group for all workers, of similar lengths each and not larger than a batch."""
    rounds = -(-len(group) // (workers * slots))
    count = min(workers * rounds, -(-len(group) // MIN_PART))
    return (group[number::count] for number in range(count))


def search_workers(task: SearchTask, planned: Sequence[GenerationRequest]) -> int:
    """How many threads search at once."""
    if task.device.type != "cpu":
        if task.workers is not None and task.workers > 1:
            wanted = "1 for a model on a GPU, whose batches are larger"
            remedy = "Leave it out, or use the CPU."
            raise InvalidArgument("workers", wanted=wanted, got=str(task.workers), remedy=remedy)
        return 1
    if capturing_here() or intercepting_here() or task.logits_processors or task.trace is not None:
        return 1  # what this thread observes, and objects that are not for several
    if len(planned) < 2 * MIN_PART:
        return 1
    if task.workers is not None:
        return task.workers
    decoder = selection.decoder_for(
        task.model,
        max_length=max(each.max_length for each in planned),
        window=task.window,
        int8=task.config.quantization == "int8",
        constant_weights=task.constant_weights,
    )
    return torch.get_num_threads() if decoder.compiled else 1
