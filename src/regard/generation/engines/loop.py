"""What a search strategy hands to an engine that takes steps and chooses tokens without Python between them."""

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from regard.core.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class SearchLoop:
    """The tensors and settings of a search strategy, for a loop that an engine runs without Python between tokens.

    The loop overwrites tokens, log_p, length, done and those of greedy or beam search as the strategy's `advance` does.
    """

    tokens: Int[Tensor, "B K T"]
    log_p: Float[Tensor, "B K T"] | None  # None: not wanted
    length: Int[Tensor, " B"]
    limit: Int[Tensor, " B"]
    min_length: Int[Tensor, " B"]
    prompt: Int[Tensor, " B"]
    prefix: Int[Tensor, "B P"]
    first: Int[Tensor, " B"]  # the token before the first of `tokens`, which repetitions count
    done: Bool[Tensor, " B"]
    suppressed: tuple[int, ...]  # tokens that are never generated
    ends: tuple[int, ...]  # tokens that end an output
    forced: int  # tokens that every output begins with, at log-probability 0
    no_repeat_ngram_size: int
    allow_end: (
        bool  # whether an output may end before its minimum length where no other token is left
    )
    normalized: bool  # whether log-probabilities are compared, and not logits
    greedy: "GreedyTensors | None" = None  # either this
    beam: "BeamTensors | None" = None  # or this


class Interrupt:
    """Ends a compiled loop after its current step, from another thread; until `clear`, every loop after one step."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int32(0)

    def set(self) -> None:
        self._flag.value = 1

    def clear(self) -> None:
        self._flag.value = 0

    @property
    def address(self) -> int:
        """Of the 32-bit integer that a loop reads after each step."""
        return ctypes.addressof(self._flag)


@dataclass(frozen=True)
class LoopBounds:
    """Where a loop without Python ends: after `steps` steps, or as soon as one of the other conditions holds.

    stop           so many more slots are done
    microseconds   have passed; 0: no limit
    interrupt      is set
    """

    steps: int
    stop: int
    microseconds: int = 0
    interrupt: Interrupt | None = None


class Candidates:
    """The output tokens that each sequence of a batch may have: those of a vocabulary shortlist.

    The others have logits of −∞. What a compiled loop needs is computed once: all of them hardly change.
    """

    def __init__(self, allowed: Bool[Tensor, "B V"]) -> None:
        self.allowed = allowed

    @cached_property
    def tokens(self) -> Int[Tensor, " U"]:
        """The candidates of any sequence, in ascending order."""
        return self.allowed.any(0).nonzero()[:, 0]

    @cached_property
    def column(self) -> Int[Tensor, " V"]:
        """The place of each token among `tokens`; -1: it is none of them."""
        column = torch.full((self.allowed.shape[1],), -1, dtype=torch.int32)
        column[self.tokens] = torch.arange(len(self.tokens), dtype=torch.int32)
        return column

    @cached_property
    def bias(self) -> Float[Tensor, "B U"]:
        """−∞ where one of `tokens` is no candidate of a sequence, else 0."""
        return torch.zeros(len(self.allowed), len(self.tokens)).masked_fill_(
            ~self.allowed[:, self.tokens], -torch.inf
        )


@dataclass(frozen=True)
class GreedyTensors:
    ended: Bool[Tensor, "B 1"]
    pad: int = 0  # the token of steps after the end, where `greedy_steps` takes them


@dataclass(frozen=True)
class BeamTensors:
    total: Float[Tensor, "B K"]
    ended_score: Float[Tensor, "B K"]
    ended_log_p: Float[Tensor, "B K T"]
    ended_tokens: Int[Tensor, "B K T"]
    ended_length: Int[Tensor, "B K"]
    penalty: Float[Tensor, " lengths"]  # what a score is divided by, of each length
    early_stopping: bool | Literal["never"]
