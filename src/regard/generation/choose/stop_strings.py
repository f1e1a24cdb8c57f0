"""Stop strings: an output ends with the token that completes one of them in its text, as at an end token.

Strings are compared with texts and not with tokens: a string may begin and end within tokens. The text that follows
the beginning of the string is cut off when the output is given (`regard.tasks.stop_strings`).
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from regard.core.shapes import Bool, Int, Tensor
from regard.generation.choose.interfaces import GeneratedTokens

EDGE = 16  # characters at the beginning of a part of a text that may differ from those in the whole


@runtime_checkable
class TokenTexts(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""

    def spellings(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token."""


class StopCondition:
    """Whether the text of tokens contains one of some strings."""

    def __init__(self, tokenizer: TokenTexts, strings: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.strings = tuple(strings)
        self.longest = max(map(len, self.strings))
        # A string is completed by a token that has its last byte. Decoders may drop or add white space.
        self.last_bytes = {each.encode()[-1] for each in self.strings}
        self.any_token = any(each[-1].isspace() for each in self.strings)
        self._completing: dict[int, bool] = {}

    def may_complete(self, token: int) -> bool:
        """Whether a string can be complete with this token, and not before: few tokens need a look at the text."""
        if self.any_token:
            return True
        known = self._completing.get(token)
        if known is None:
            (spelling,) = self.tokenizer.spellings([token])
            known = self._completing[token] = not self.last_bytes.isdisjoint(spelling)
        return known

    def is_met(self, tokens: Sequence[int]) -> bool:
        """Whether a string is complete in the text of these tokens, with the last of them."""
        decode = self.tokenizer.decode
        size = self.longest + EDGE
        # Enough of the last tokens that all characters of a string are among theirs.
        while size < len(tokens) and len(decode(tokens[-size:-1])) < self.longest + EDGE:
            size *= 2
        if not self._contained(decode(tokens[-size:])):
            return False
        return size >= len(tokens) or self._contained(decode(tokens))

    def _contained(self, text: str) -> bool:
        return any(each in text for each in self.strings)


class SlotStops:
    """The stop strings of all slots."""

    def __init__(self) -> None:
        self.slots: dict[int, StopCondition] = {}

    def admit(self, slot: int, condition: StopCondition | None) -> None:
        self.release(slot)
        if condition is not None:
            self.slots[slot] = condition

    def release(self, slot: int) -> None:
        self.slots.pop(slot, None)

    def keep(self, slots: Sequence[int]) -> "SlotStops":
        """Those of these slots only."""
        kept = SlotStops()
        kept.slots = {new: self.slots[old] for new, old in enumerate(slots) if old in self.slots}
        return kept

    def met(
        self,
        generated: GeneratedTokens,
        tokens: Int[Tensor, "B C"],
        parents: Int[Tensor, "B C"] | None = None,
    ) -> Bool[Tensor, "B C"]:
        """Which of these next tokens complete a stop string; each continues its parent, by default its own row."""
        met = torch.zeros_like(tokens, dtype=torch.bool)
        if not self.slots:
            return met
        chosen = tokens.tolist()
        lengths = generated.length.tolist()
        prompts = generated.prompt.tolist()
        for slot, condition in self.slots.items():
            if lengths[slot] < prompts[slot]:
                continue
            for column, token in enumerate(chosen[slot]):
                if not condition.may_complete(token):
                    continue
                row = column if parents is None else int(parents[slot, column])
                before = generated.tokens[slot, row, prompts[slot] : lengths[slot]].tolist()
                met[slot, column] = condition.is_met([*before, token])
        return met
