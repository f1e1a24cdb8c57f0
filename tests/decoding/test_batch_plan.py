"""How many tokens a batch of a search has, and the sizes of its buffers."""

import pytest
import torch
from torch import nn

from regard.decoding import batch_plan
from regard.decoding.batch_plan import BatchLimits, BatchPlan, forward_batch_tokens, search_batch_tokens
from regard.decoding.config import DecodeConfig
from regard.model.memory import Memory


class OnGpu(nn.Module):
    """A module of so many parameters that says it is on a GPU."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def parameters(self, recurse: bool = True):
        class Parameter:
            is_cuda, device = True, torch.device("cuda:0")

            def numel(_) -> int:
                return self.size

        return iter([Parameter()])


@pytest.mark.parametrize(
    ("size", "gibibytes", "wanted"),
    [
        (10_000_000, 139, 65_536),
        (10_000_000, 8, 16_384),
        (10_000_000, 7.9, 8_192),  # a power of two: buffers of the same sizes are used again
        (400_000_000, 139, 16_384),
        (7_000_000_000, 100, 4_096),
        (10_000_000, 0.1, 4_096),
    ],
)
def test_a_gpu_has_batches_of_its_size(monkeypatch, size, gibibytes, wanted):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(gibibytes * 2**30) - 2**20, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * 2**20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 2**20)
    assert search_batch_tokens(DecodeConfig(), OnGpu(size)) == wanted
    assert search_batch_tokens(DecodeConfig(batch_tokens=77), OnGpu(size)) == 77


def test_a_cpu_has_small_batches():
    model = nn.Linear(2, 2)
    assert search_batch_tokens(DecodeConfig(), model) == batch_plan.CPU_BATCH_TOKENS == 4096
    assert (forward_batch_tokens(DecodeConfig()), forward_batch_tokens(DecodeConfig(batch_tokens=5))) == (4096, 5)


@pytest.mark.parametrize(
    ("positions", "source", "max_length", "prefix", "wanted"),
    [
        (1, 0, 1, 0, (32, 1, 2, 1)),
        (32, 0, 8, 2, (32, 8, 9, 2)),
        (33, 0, 9, 3, (64, 16, 17, 4)),
        (5, 70, 100, 5, (96, 128, 129, 8)),  # later sources are longer
        (None, 0, 9, 3, (0, 16, 17, 4)),
    ],
)
def test_static_buffers_have_few_sizes(positions, source, max_length, prefix, wanted):
    plan = object.__new__(BatchPlan)
    plan.capacity, plan.static = max_length, True
    plan.limits = BatchLimits(max_length, max_prefix=prefix, source=source)
    memory = None
    if positions is not None:
        memory = Memory(torch.zeros(2, positions, 4), torch.ones(2, positions, dtype=torch.bool), torch.zeros(2, 4))
    assert plan.sizes(memory) == wanted
    plan.static = False
    assert plan.sizes(memory) == (0, max_length, max_length + 1, max(1, prefix))
