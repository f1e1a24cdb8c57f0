"""Vocabulary shortlists (https://arxiv.org/abs/1412.2007, https://arxiv.org/abs/1605.03209).

The output tokens that a source may have are the most likely translations of its tokens, and the most frequent tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Int, Tensor
from regard.data.special_tokens import SpecialTokens
from regard.generation.choose.phrase_automaton import Phrase
from regard.generation.request import GenerationRequest

# The tensors of its file.
LIKELY = "likely"
FREQUENT = "frequent"


@dataclass(frozen=True)
class Shortlist:
    """The candidates of each source token, and those of every source.

    likely     output tokens for each source token, most likely first; -1 after the last
    frequent   output tokens that every output may have
    size       of the vocabulary of outputs
    """

    likely: Int[Tensor, "S N"]
    frequent: Int[Tensor, " F"]
    size: int

    @staticmethod
    def of(tensors: dict[str, Tensor], sources: int, size: int) -> "Shortlist":
        """From the tensors of its file; ValueError unless they belong to vocabularies of these sizes."""
        likely, frequent = (tensors.get(name, torch.empty(0)) for name in (LIKELY, FREQUENT))
        if set(tensors) != {LIKELY, FREQUENT} or {likely.dtype, frequent.dtype} != {torch.int32}:
            raise ValueError(
                f"wanted the int32 tensors {LIKELY} and {FREQUENT}; got {sorted(tensors)}"
            )
        if likely.dim() != 2 or len(likely) != sources or frequent.dim() != 1:
            got = f"{tuple(likely.shape)} and {tuple(frequent.shape)}"
            raise ValueError(
                f"wanted a row for each of {sources} source tokens, and a list; got {got}"
            )
        for each, least in ((likely, -1), (frequent, 0)):
            if each.numel() and not least <= int(each.min()) <= int(each.max()) < size:
                raise ValueError(f"wanted tokens below {size}; got others")
        return Shortlist(likely.long(), frequent.long(), size)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {LIKELY: self.likely.int(), FREQUENT: self.frequent.int()}

    def allowed(
        self, requests: Sequence[GenerationRequest], special: SpecialTokens
    ) -> Bool[Tensor, "B V"]:
        """The candidates of each request, among them the tokens of its prefix and of its required phrases."""
        allowed = torch.zeros(
            len(requests), self.size + 1, dtype=torch.bool
        )  # the last column: none
        allowed[:, self.frequent] = True
        for row, request in zip(allowed, requests, strict=True):
            row[self.likely[_source_tokens(request.source, len(self.likely))].flatten()] = True
            phrases = (Phrase.of(each) for each in request.required)
            own = [
                *request.prefix,
                *(token for each in phrases for run in each.runs for token in run if token >= 0),
            ]
            row[[*own, *special.target_prefix, *special.ends]] = True
        return allowed[:, : self.size]


def _source_tokens(source: Any, count: int) -> Int[Tensor, " n"]:
    if isinstance(source, list | tuple) and all(
        isinstance(token, int) and 0 <= token < count for token in source
    ):
        return torch.tensor(source, dtype=torch.int64)
    wanted = "a model of one text as its source"
    remedy = "Set shortlist = false."
    raise InvalidArgument("shortlist", wanted=wanted, got="another source", remedy=remedy)
