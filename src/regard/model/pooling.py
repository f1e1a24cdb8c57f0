"""Pools: a memory reduced to one vector, for classifiers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from regard.core.config import Count, doc
from regard.core.errors import Problem
from regard.core.shapes import Float, Tensor
from regard.model.interfaces import Pool
from regard.model.memory import Memory, last_state, masked_mean
from regard.model.multihead import MultiHead
from regard.model.part_config import PoolConfig
from regard.model.scores import ScoreName


@dataclass(frozen=True)
class AttentionPoolConfig(PoolConfig):
    queries: Count = doc(1, "number of learned queries")
    heads: Count = doc(1, "attention heads")
    score: ScoreName = doc("scaled_dot", "attention score function")
    value_dim: Count | None = doc(
        None,
        "dimension of the values of an attention head; left out: that of its queries and keys, "
        "the encoder's dim / heads",
    )

    def memory_conflicts(self, memory_dim: int) -> Iterator[Problem]:
        if memory_dim % self.heads:
            yield Problem(
                "heads",
                f"a divisor of the encoder's dim = {memory_dim}",
                str(self.heads),
                "Change one.",
            )


@dataclass(frozen=True)
class LastPoolConfig(PoolConfig):
    """Without options."""


@dataclass(frozen=True)
class FirstPoolConfig(PoolConfig):
    projection: Literal["none", "tanh", "relu"] = doc(
        "none",
        "activation of a linear layer after the pool; none: no such layer",
        arxiv="1810.04805",
    )
    distillation_head: bool = doc(
        False,
        "a second classifier, of the encoder's distillation_token; the logits of both are averaged",
        arxiv="2012.12877",
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.distillation_head and self.projection != "none":
            yield Problem(
                "projection",
                "'none' with a distillation_head",
                repr(self.projection),
                "Leave it out.",
            )

    def encoder_conflicts(self, cls_tokens: int) -> Iterator[Problem]:
        if self.distillation_head and cls_tokens < 2:
            remedy = "Set distillation_token in a vit encoder."
            yield Problem(
                "distillation_head", "an encoder with a distillation_token", "none", remedy
            )


class _StatePool(Pool):
    """A pool of states without parameters."""

    def __init__(self, config: PoolConfig, dim: int) -> None:
        super().__init__()
        self.dim = dim


class MeanPool(_StatePool):
    """The mean of all unmasked states."""

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        return masked_mean(memory.states, memory.mask)


class LastPool(_StatePool):
    """The last state of each sequence; of an encoder that reads in both directions,
    that of each direction.
    """

    reads = "last"

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        if memory.last is not None:
            return memory.last
        return last_state(memory.states, memory.mask)


class FirstPool(Pool):
    """The first state, such as that of a cls_token,
    through a linear layer and its activation if there is one.

    With a distillation head, the first two, one after the other.
    """

    reads = "first"

    def __init__(self, config: FirstPoolConfig, dim: int) -> None:
        super().__init__()
        self.parts = 2 if config.distillation_head else 1
        self.dim = self.parts * dim
        self.proj = None
        self.activation = torch.tanh if config.projection == "tanh" else torch.relu
        if config.projection != "none":
            self.proj = nn.Linear(dim, dim)

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        first = memory.states[:, : self.parts].flatten(1)
        if self.proj is None:
            return first
        return self.activation(self.proj(first))


class AttentionPool(Pool):
    """Attention by learned queries; the results of all queries are concatenated."""

    def __init__(self, config: AttentionPoolConfig, dim: int) -> None:
        super().__init__()
        self.dim = config.queries * dim
        self.queries = nn.Parameter(torch.randn(config.queries, dim) * 0.02)
        self.attn = MultiHead(dim, config.heads, value_dim=config.value_dim, score=config.score)
        self.attn.attention_kind = "pool"

    def forward(self, memory: Memory) -> Float[Tensor, "B QW"]:
        queries = self.queries.expand(memory.states.shape[0], -1, -1)
        pooled: Tensor = self.attn(queries, memory.states, mask=memory.mask[:, None])
        return pooled.flatten(1)
