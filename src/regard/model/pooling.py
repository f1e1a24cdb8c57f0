"""From a memory to one vector: sequence to label."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from regard.core.config import Count
from regard.core.errors import Problem
from regard.core.shapes import Float, Tensor
from regard.model.interfaces import Pool
from regard.model.memory import Memory, last_state, masked_mean
from regard.model.multihead import MultiHead
from regard.model.part_config import PoolConfig
from regard.model.scores import ScoreName


@dataclass(frozen=True)
class AttentionPoolConfig(PoolConfig):
    queries: Count = 1
    heads: Count = 1
    score: ScoreName = "scaled_dot"

    def memory_conflicts(self, memory_dim: int) -> Iterator[Problem]:
        if memory_dim % self.heads:
            yield Problem("heads", f"a divisor of the encoder's dim = {memory_dim}", str(self.heads), "Change one.")


class MeanPool(Pool):
    """The mean of all states that are there."""

    def __init__(self, config: PoolConfig, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        return masked_mean(memory.states, memory.mask)


class LastPool(Pool):
    """The state at each sequence's own end."""

    def __init__(self, config: PoolConfig, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        return last_state(memory.states, memory.mask)


class FirstPool(Pool):
    """The state of the first position, which a global unit or a class token holds."""

    def __init__(self, config: PoolConfig, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        return memory.states[:, 0]


class AttentionPool(Pool):
    """Learned queries, as many as wanted, each asking the memory; their answers side by side."""

    def __init__(self, config: AttentionPoolConfig, dim: int) -> None:
        super().__init__()
        self.dim = config.queries * dim
        self.query = nn.Parameter(torch.randn(config.queries, dim) * 0.02)
        self.attend = MultiHead(dim, config.heads, score=config.score)
        self.attend.attention_kind = "pool"

    def forward(self, memory: Memory) -> Float[Tensor, "B QW"]:
        asked = self.query.expand(memory.states.shape[0], -1, -1)
        answers: Tensor = self.attend(asked, memory.states, mask=memory.mask[:, None])
        return answers.flatten(1)
