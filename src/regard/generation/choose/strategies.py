"""What all search strategies share: the generated tokens, logits processors, limits and required phrases."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.generation.choose.alternatives import most_likely, read_alternatives
from regard.generation.choose.constrained_beam import RequiredPhrases
from regard.generation.choose.interfaces import (
    GeneratedTokens,
    Hypothesis,
    LogitsProcessor,
    LoopMasks,
    SearchStrategy,
)
from regard.generation.choose.stop_strings import SlotStops
from regard.generation.config import DecodeConfig
from regard.generation.engines.loop import SearchLoop
from regard.model.kv_cache import Slots


@dataclass(eq=False)
class DecodingStrategy(SearchStrategy):
    """A search strategy over generated tokens, whose finished slots are read as hypotheses.

    ends       whether an end token ends an output; if not, it is a token like others
    prompted   whether requests may have prompts, whose end tokens end nothing
    required   the required phrases of all slots; None where no request has any
    stops      the stop strings of all slots; None where no request has any
    longest    tokens of an output at most: buffers grow to this; 0: they have all the room that they need
    per_slot   names of the tensors that hold a row for each slot
    per_token  names of those that hold a number for each token of an output
    """

    config: DecodeConfig
    generated: GeneratedTokens
    limit: Int[Tensor, " B"]
    processors: Sequence[LogitsProcessor]
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    ends: bool = True
    required: RequiredPhrases | None = None
    prompted: bool = True
    longest: int = 0
    stops: SlotStops | None = None
    per_slot: ClassVar[tuple[str, ...]]
    per_token: ClassVar[tuple[str, ...]] = ("log_p", "alternatives")
    log_p: Float[Tensor, "B K T"] = field(
        init=False
    )  # of each token; of width 0 where it is not wanted
    # At each token, as `most_likely` gives them; of width 0 where they are not wanted.
    alternatives: Float[Tensor, "B K T A"] = field(init=False)

    def __post_init__(self) -> None:
        self.masks_only = all(each.masks_only for each in self.processors)
        self.done = torch.ones_like(self.limit, dtype=torch.bool)
        tokens = self.generated.tokens
        width = 2 * self.config.top_logprobs
        self.alternatives = tokens.new_zeros((*tokens.shape, width), dtype=torch.float32)
        self.longest = max(self.longest, self.generated.tokens.shape[2] - 1)

    def reserve(self, steps: int = 1) -> int:
        size = self.generated.tokens.shape[2]
        if size > self.longest:  # the room for all tokens; a GPU is not asked how many there are
            return self.longest
        used = int(self.generated.length.max())
        if size - used < steps:
            size = min(self.longest + 1, max(2 * size, used + steps))
            pad = self.special_tokens.pad
            self.generated.tokens = _longer(self.generated.tokens, size, pad)
            for name in self.per_token:
                old = getattr(self, name)
                if old.shape[2] > 0:
                    setattr(self, name, _longer(old, size, 0))
        return size - used

    def keep(self, slots: Int[Tensor, " n"]) -> None:
        self.generated = self.generated.keep(slots)
        for name in ("limit", "done", *self.per_slot):
            setattr(self, name, getattr(self, name)[slots])
        for processor in self.processors:
            if processor.per_slot:
                processor.keep(slots)
        if self.required is not None:
            self.required.keep(slots.tolist())
        if self.stops is not None:
            self.stops = self.stops.keep(slots.tolist())

    def prompts(self, count: int) -> Int[Tensor, "B T"] | None:
        if any(each.per_slot and each.every_step for each in self.processors):
            return None
        return self.generated.prefix[:, :count]

    def skip(self, slots: Slots, prompts: Int[Tensor, "n T"]) -> None:
        count = prompts.shape[1]
        self.reserve(count)
        self.generated.tokens[slots, :, :count] = prompts[:, None]
        self.log_p[slots, :, :count] = 0.0
        self.alternatives[slots, :, :count] = 0.0
        self.generated.length[slots] = count
        if self.required is not None:
            numbers = torch.arange(len(self.limit))[
                slots if isinstance(slots, slice) else slots.cpu()
            ]
            self.required.skip(numbers.tolist(), count)

    def common_loop(self, log_p: Float[Tensor, "B K T"] | None, *, normalized: bool) -> SearchLoop:
        """The part of `loop` that strategies share."""
        assert self.required is None
        masks = self._masks()
        generated = self.generated
        limits = (self.limit, generated.min_length, generated.prompt, generated.prefix)
        ends = self.special_tokens.ends if self.ends else ()
        forced = len(self.special_tokens.target_prefix)
        return SearchLoop(
            generated.tokens,
            log_p,
            generated.length,
            *limits,
            generated.first,
            self.done,
            masks.suppressed,
            ends,
            forced,
            masks.no_repeat_ngram_size,
            masks.allow_end,
            normalized,
        )

    def _masks(self) -> LoopMasks:
        """What the processors exclude."""
        masks = LoopMasks()
        for processor in self.processors:
            own = processor.loop_masks
            assert own is not None
            masks |= own
        return masks

    def is_end(
        self, tokens: Int[Tensor, "B ..."], position: Int[Tensor, " B"]
    ) -> Bool[Tensor, "B ..."]:
        """Which of these tokens, generated at these positions, end an output."""
        if not self.ends:
            return torch.zeros_like(tokens, dtype=torch.bool)
        found = tokens == self.special_tokens.end
        for token in self.special_tokens.other_ends:
            found |= tokens == token
        if self.prompted:
            found &= (position >= self.generated.prompt).view(-1, *[1] * (tokens.dim() - 1))
        return found

    def most_likely(self, log_p: Float[Tensor, "B K V"]) -> Float[Tensor, "B K A"] | None:
        """The alternatives of a step, from the model's log-probabilities; None where they are not wanted."""
        count = self.config.top_logprobs
        return most_likely(log_p, count) if count else None

    def with_alternatives(
        self, found: list[list[Hypothesis]], alternatives: Float[Tensor, "n K T A"]
    ) -> list[list[Hypothesis]]:
        """Hypotheses with the most likely tokens at their positions, where these are wanted."""
        if not self.config.top_logprobs:
            return found
        counts = [[len(each.tokens) + each.ended for each in row] for row in found]
        longest = max((count for row in counts for count in row), default=0)
        numbers = alternatives[:, :, :longest].tolist()
        return [
            [
                each._replace(alternatives=read_alternatives(own[:count]))
                for each, own, count in zip(*row, strict=False)
            ]
            for row in zip(found, numbers, counts, strict=True)
        ]

    @abstractmethod
    def hypotheses(self, slots: Slots) -> list[list[Hypothesis]]:
        """The outputs of each of these slots, which are finished; best first."""


def _longer(x: Tensor, size: int, value: int) -> Tensor:
    """With room for `size` tokens of each hypothesis; the new ones have this value."""
    longer = x.new_full((*x.shape[:2], size, *x.shape[3:]), value)
    longer[:, :, : x.shape[2]] = x
    return longer
