"""Which requests of a search share a batch, in what order, and how a batch is divided among workers."""

from itertools import chain

import pytest
import torch
from torch import nn

from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.request_groups import MAX_HYPOTHESES, length_groups, worker_parts


def groups(
    sizes, *, window=None, longest=9, device="cpu", **options
) -> list[tuple[list[int], int]]:
    """Of requests of these sizes, each of outputs of at most `longest` tokens, or of so many."""
    task = object.__new__(SearchTask)
    vars(task).update(
        device=torch.device(device),
        window=window,
        model=nn.Identity(),
        config=DecodeConfig(**options),
    )
    requests = [GenerationRequest([3] * size, size) for size in sizes]
    limits = [longest] * len(sizes) if isinstance(longest, int) else longest
    planned = [
        each._replace(max_length=limit) for each, limit in zip(requests, limits, strict=True)
    ]
    return list(length_groups(task, requests, planned))


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([], []),
        ([5], [[0]]),
        ([3, 8, 4, 7], [[1, 3, 2], [0]]),  # longest first; up to half as long
        ([4, 4, 4], [[0, 1, 2]]),  # in order, where they are as long
        ([0, 2, 1], [[1, 2, 0]]),  # an empty one counts as one token
        ([0, 3], [[1], [0]]),
        ([1, 16, 5, 2, 9], [[1, 4], [2], [3, 0]]),
    ],
)
def test_requests_of_similar_length_share_a_batch(sizes, wanted):
    assert [group for group, _ in groups(sizes, batch_tokens=10_000)] == wanted


@pytest.mark.parametrize(
    ("sizes", "options", "slots"),
    [
        ([4] * 9, {"batch_tokens": 20}, 5),
        ([4] * 9, {"batch_tokens": 23}, 5),
        ([4] * 9, {"batch_tokens": 3}, 1),  # one that is longer than a batch has it alone
        ([4] * 9, {"batch_tokens": 4000}, 9),
        ([0] * 9, {"batch_tokens": 7}, 7),
        ([1] * 600, {"batch_tokens": 4000}, 512),  # hypotheses of a step on a CPU
        ([1] * 600, {"batch_tokens": 4000, "device": "cuda"}, 600),
        ([1] * 600, {"batch_tokens": 4000, "device": "meta"}, 512),
        ([1] * 600, {"batch_tokens": 4000, "beam_size": 5, "device": "cuda"}, 512),
        ([1] * 600, {"batch_tokens": 4000, "beam_size": 5}, 102),
        ([1] * 600, {"batch_tokens": 4000, "sample": True, "num_hypotheses": 8}, 64),
        ([1] * 600, {"batch_tokens": 4000, "beam_size": 600}, 1),
    ],
)
def test_slots_of_a_batch(sizes, options, slots):
    """As many as its tokens and the hypotheses of a step allow; at least one."""
    (group,) = groups(sizes, **options)
    assert group == ([*range(len(sizes))], slots)
    assert MAX_HYPOTHESES["cpu"] < MAX_HYPOTHESES["cuda"]


def test_no_request_is_admitted_later_where_a_window_slides():
    """The windows of a batch slide together, as soon as one of its outputs is longer than a window."""
    sizes = [4] * 5
    apart = [([0, 1], 2), ([2, 3], 2), ([4], 1)]
    assert groups(sizes, batch_tokens=8, window=10, longest=11) == apart
    assert groups(sizes, batch_tokens=8, window=10, longest=[10, 10, 10, 10, 11]) == apart
    assert groups(sizes, batch_tokens=8, window=10, longest=10) == [([0, 1, 2, 3, 4], 2)]
    assert groups(sizes, batch_tokens=8, window=None, longest=11) == [([0, 1, 2, 3, 4], 2)]
    # Those that are left over are searched before shorter ones, and with these where they are long enough.
    assert groups([4, 4, 4, 2, 1], batch_tokens=8, window=5, longest=6) == [
        ([0, 1], 2),
        ([2, 3], 2),
        ([4], 1),
    ]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("slots", [8, 16, 100])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 33, 100])
def test_parts_for_workers_are_alike(count, slots, workers):
    group = [*range(100, 100 + count)]
    parts = [list(part) for part in worker_parts(group, slots, workers)]
    assert sorted(chain(*parts)) == group
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= slots
    assert all(
        part == [*range(part[0], 100 + count, len(parts))] for part in parts
    )  # long and short ones


@pytest.mark.parametrize(
    ("count", "slots", "workers", "wanted"),
    [
        (16, 100, 2, 2),
        (15, 100, 2, 2),
        (8, 100, 2, 1),  # not less than eight
        (17, 100, 4, 3),
        (40, 10, 2, 4),  # two batches for each
        (41, 10, 2, 6),
        (100, 1, 2, 13),
    ],
)
def test_all_workers_have_as_many_parts(count, slots, workers, wanted):
    assert len([*worker_parts(range(count), slots, workers)]) == wanted
