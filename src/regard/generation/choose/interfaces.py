"""The interfaces of token choice: strategies, logits processors, what they read, and hypotheses."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.generation.engines.loop import SearchLoop
from regard.model.kv_cache import Slots

if TYPE_CHECKING:
    from regard.generation.request import GenerationRequest

Alternatives = tuple[tuple[int, float], ...]  # tokens and their log-probabilities, best first
Scores = Float[
    Tensor, "B K V"
]  # log-probabilities or logits of the next token of K hypotheses in each of B slots


class Hypothesis(NamedTuple):
    """One output of a request."""

    tokens: tuple[int, ...]  # without the end token
    log_probabilities: (
        tuple[float, ...] | None
    )  # of each token and of the end token, where there is one
    score: (
        float | None
    )  # the sum of the log-probabilities after the length penalty, by which outputs are ranked
    end: int | None  # the end token that ended it; None: at the maximum length, or at a stop string
    # The most likely tokens at the positions of `log_probabilities`; None where they are not wanted.
    alternatives: tuple[Alternatives, ...] | None = None

    @property
    def ended(self) -> bool:
        """Whether an end token ended it."""
        return self.end is not None


FinishReason = Literal["end", "length", "repetition"]


def finish_reason(tokens: Sequence[int], *, ended: bool) -> FinishReason:
    """Why an output ended: the end token; the maximum length; or the maximum length while it repeated itself.

    It did where its last tokens, half of them or more, are some run of tokens three times or more.
    """
    if ended:
        return "end"
    for period in range(1, len(tokens) // 3 + 1):
        if tokens[-1] != tokens[-1 - period]:  # most outputs: nothing is copied
            continue
        tail = tokens[-max(3 * period, -(-len(tokens) // 2)) :]
        if tail[period:] == tail[:-period]:
            return "repetition"
    return "length"


@dataclass
class GeneratedTokens:
    """The tokens of every hypothesis so far, and the limits of each slot."""

    tokens: Int[
        Tensor, "B K T"
    ]  # padded; one position more than the maximum, written by steps after the end
    length: Int[Tensor, " B"]  # tokens so far
    min_length: Int[Tensor, " B"]
    prompt: Int[
        Tensor, " B"
    ]  # tokens of the prefix that are a language model's prompt: no part of the output
    prefix: Int[Tensor, "B P"]  # tokens that the output begins with; −1 after the last of them
    # The token that the decoder reads before the first of `tokens`: no part of an output, but repetitions count it.
    first: Int[Tensor, " B"]

    def keep(self, slots: Int[Tensor, " n"]) -> "GeneratedTokens":
        """Those of these slots only."""
        return GeneratedTokens(*(getattr(self, each.name)[slots] for each in fields(self)))

    @property
    def output_length(self) -> Int[Tensor, " B"]:
        """Tokens so far, without those of the prompt; at least 1."""
        return (self.length - self.prompt).clamp(min=1)

    def last(self, count: int) -> Int[Tensor, "B K count"]:
        """The last `count` tokens; −1 for positions before the first."""
        positions = (
            self.length[:, None] - count + torch.arange(count, device=self.length.device)
        )  # (B, count)
        tokens = self.tokens.gather(
            2, positions.clamp(min=0)[:, None].expand(-1, self.tokens.shape[1], -1)
        )
        return tokens.masked_fill((positions < 0)[:, None], -1)


class LoopMasks(NamedTuple):
    """Tokens that a compiled search loop excludes, beside those before the minimum length and beside a prefix."""

    suppressed: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0  # 0: n-grams may be repeated
    allow_end: bool = False

    def __or__(self, other: "LoopMasks") -> "LoopMasks":
        """What either of two excludes: a token that repeats an n-gram repeats all shorter ones at its end."""
        sizes = [each.no_repeat_ngram_size for each in (self, other) if each.no_repeat_ngram_size]
        return LoopMasks(
            self.suppressed + other.suppressed,
            min(sizes, default=0),
            self.allow_end or other.allow_end,
        )


class LogitsProcessor(ABC):
    """Changes the scores of the next token in place, before a strategy chooses.

    recordable   a call launches the same kernels on the same tensors at every step and never waits for the device, so
                 that a CUDA graph can record it
    masks_only   it sets scores to −∞ and changes no others: greedy search may then pass logits in place of
                 log-probabilities, and scores of outputs need no copy
    per_slot     it keeps tensors for each slot, which `admit` and `keep` maintain
    every_step   where `per_slot`: it must be called at every step, also while a prompt is read. If not, a prompt
                 may be read at once: a call depends on the tokens that were generated before it alone
    """

    recordable: bool = False
    masks_only: bool = False
    per_slot: bool = False
    every_step: bool = True

    @property
    def loop_masks(self) -> LoopMasks | None:
        """What a compiled search loop does in place of calls; None: it cannot, and the search stays in Python."""
        return None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__call__" in vars(cls) and "loop_masks" not in vars(
            cls
        ):  # those of its parent are of another call
            cls.loop_masks = LogitsProcessor.loop_masks  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        """Change `scores` in place; −∞ excludes a token."""

    def admit(self, slot: int, request: "GenerationRequest") -> None:  # noqa: B027  optional
        """A request begins in this slot. Called where `per_slot`."""

    def keep(self, slots: Int[Tensor, " n"]) -> None:  # noqa: B027  optional
        """The search continues with these slots only. Called where `per_slot`."""


class SearchStrategy(ABC):
    """Chooses the next tokens of K hypotheses in each of B slots: greedy search, sampling, beam search.

    Its tensors are attributes of the instance or of `generated`. On a GPU a step is recorded as a CUDA graph: `advance`
    then must not wait for the device, and the tensors it replaces are copied back to where they were.
    """

    generated: GeneratedTokens
    limit: Int[Tensor, " B"]  # tokens of an output, at most
    done: Bool[Tensor, " B"]  # slots that are finished or empty: further steps change nothing there

    @abstractmethod
    def set_seed(self, seed: int) -> None:
        """The seed of random draws."""

    @abstractmethod
    def admit(self, slots: Slots, inputs: Int[Tensor, " n"]) -> None:
        """Begin the outputs of new inputs, given by number, in these slots. Draws depend on seed and number only."""

    @abstractmethod
    def keep(self, slots: Int[Tensor, " n"]) -> None:
        """Continue with these slots only."""

    def reserve(self, steps: int = 1) -> int:
        """Have room for `steps` more tokens of every output at least; for how many there is room then."""
        return steps

    def prompts(self, count: int) -> Int[Tensor, "B T"] | None:
        """The first `count` tokens of every slot's prompt; None where a search must take a step for each."""
        return None

    def skip(self, slots: Slots, prompts: Int[Tensor, "n T"]) -> None:
        """Take these tokens, which `prompts` gave, as generated in these slots, in place of a step for each."""
        raise NotImplementedError

    def loop(self) -> SearchLoop:
        """What an engine needs that takes steps by itself. Asked only where it has all options of the search."""
        raise NotImplementedError

    @abstractmethod
    def advance(
        self, logits: Float[Tensor, "B K V"]
    ) -> tuple[Int[Tensor, "B K"], Int[Tensor, "B K"] | None]:
        """The next tokens, and the hypothesis each continues (None: its own). May overwrite the logits."""
