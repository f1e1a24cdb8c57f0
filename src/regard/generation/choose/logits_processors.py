"""Logits processors: exclude tokens, or change their scores, before a strategy chooses among them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from regard.core.registry import Registry
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.generation.choose.interfaces import GeneratedTokens, LogitsProcessor, LoopMasks, Scores

if TYPE_CHECKING:
    from regard.generation.request import GenerationRequest

LARGEST_EXPONENT = 60.0  # of e: a factor of 10^26 makes anything end
NEVER = 1 << 30  # tokens: longer than any output

# Processors that a recipe names in decode.logits_processors, by what makes one for a search.
LOGITS_PROCESSORS: Registry[Callable[[], LogitsProcessor]] = Registry("logits processor")


@dataclass(frozen=True)
class SuppressTokens(LogitsProcessor):
    """Excludes tokens that are never part of an output."""

    tokens: Sequence[int]
    recordable = masks_only = True

    @property
    def loop_masks(self) -> LoopMasks:
        return LoopMasks(suppressed=tuple(self.tokens))

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        if scores.is_cuda:
            scores.index_fill_(-1, _ids(tuple(self.tokens), scores.device), -torch.inf)
            return
        for token in self.tokens:
            scores[..., token] = -torch.inf  # one by one is faster than by a list


class MinLength(LogitsProcessor):
    """Excludes the end tokens before the minimum length. `AllowEnd`, after other processors, undoes that if need be."""

    recordable = masks_only = True
    end_scores: list[Float[Tensor, "B K"]]  # of each end token

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = ends

    @property
    def loop_masks(self) -> LoopMasks:
        return LoopMasks()  # the loop has the lengths

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        early = (generated.length < generated.min_length)[:, None]
        self.end_scores = [scores[..., end].clone() for end in self.ends]
        for end in self.ends:
            scores[..., end].masked_fill_(early, -torch.inf)


@dataclass(frozen=True)
class AllowEnd(LogitsProcessor):
    """Restores the end tokens that `min_length` excluded where no other token is left."""

    min_length: MinLength
    recordable = masks_only = True

    @property
    def loop_masks(self) -> LoopMasks:
        return LoopMasks(allow_end=True)

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        empty = scores.amax(-1) == -torch.inf
        for end, saved in zip(self.min_length.ends, self.min_length.end_scores, strict=True):
            scores[..., end] = torch.where(empty, saved, scores[..., end])


class SavePrefix(LogitsProcessor):
    """Saves the scores of the next prefix token before other processors change them, for `ForcePrefix`."""

    recordable = masks_only = True
    tokens: Int[Tensor, "B K 1"]
    active: Bool[Tensor, "B 1 1"]  # whether the prefix has a next token
    scores: Float[Tensor, "B K 1"]

    @property
    def loop_masks(self) -> LoopMasks:
        return LoopMasks()  # the loop has the prefixes

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        length = generated.length[:, None]
        prefix = generated.prefix
        token = prefix.gather(1, length.clamp(max=prefix.shape[1] - 1)).masked_fill(
            length >= prefix.shape[1], -1
        )
        self.active = (token >= 0)[..., None]
        self.tokens = token.clamp(min=0)[..., None].expand(-1, scores.shape[1], -1)
        self.scores = scores.gather(2, self.tokens)


@dataclass(frozen=True)
class ForcePrefix(LogitsProcessor):
    """Excludes all but the next prefix token, whatever other processors do: it is the last of them."""

    saved: SavePrefix
    recordable = masks_only = True

    @property
    def loop_masks(self) -> LoopMasks:
        return LoopMasks()

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        active = self.saved.active
        tokens = self.saved.tokens
        scores.masked_fill_(active, -torch.inf)
        scores.scatter_(2, tokens, torch.where(active, self.saved.scores, scores.gather(2, tokens)))


@dataclass(frozen=True)
class NoRepeatNgram(LogitsProcessor):
    """Excludes tokens that would repeat an n-gram of what the decoder has read, from the token before the output on."""

    size: int
    recordable = masks_only = True

    @property
    def loop_masks(self) -> LoopMasks:
        return LoopMasks(no_repeat_ngram_size=self.size)

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        tokens, count = _read_tokens(generated)
        if tokens.shape[2] < self.size:
            return
        ngrams = tokens.unfold(2, self.size, 1)  # (B, K, N, size)
        # The last tokens of the output; −1, which equals no token, where it is still too short to repeat anything.
        last = generated.last(self.size - 1)[:, :, None]  # (B, K, 1, size − 1)
        repeats = (ngrams[..., :-1] == last).all(-1)  # (B, K, N)
        ends = torch.arange(self.size, tokens.shape[2] + 1, device=repeats.device)
        repeats &= (ends <= count[:, None])[:, None]  # (B, 1, N): not of padding
        exclude(scores, ngrams[..., -1], repeats)


@dataclass(frozen=True)
class RepetitionPenalty(LogitsProcessor):
    """Multiplies the log-probabilities of tokens that the decoder has read (https://arxiv.org/abs/1909.05858)."""

    factor: float
    recordable = True

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        tokens, count = _read_tokens(generated)
        position = torch.arange(tokens.shape[2], device=scores.device)
        read = (position < count[:, None])[:, None].expand_as(tokens).to(scores.dtype)  # (B, K, T)
        # How often each token was read, so that padding does not hide a token that is read as well.
        times = torch.zeros_like(scores).scatter_add_(2, tokens, read)
        scores.copy_(torch.where(times > 0, scores * self.factor, scores))


class ExponentialDecayLengthPenalty(LogitsProcessor):
    """Makes end tokens more likely, the more so the longer an output is beyond a length; as that of transformers.

    start    the length of an output, without its prompt
    factor   of each token beyond it
    longest  tokens of an output at most
    """

    recordable = True

    def __init__(
        self, start: int, factor: float, ends: Sequence[int], longest: int, device: torch.device
    ) -> None:
        self.ends = ends
        # Computed once: a power of tensors is rounded by the place of an element, and an output would depend on others.
        exponents = [max(0, length - start) for length in range(longest + 1)]
        largest = LARGEST_EXPONENT / abs(math.log(factor)) if factor != 1.0 else math.inf
        powers = [math.pow(factor, min(exponent, largest)) - 1.0 for exponent in exponents]
        self.increase = torch.tensor(powers, device=device)  # (lengths,), as a part of |p|

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        length = (generated.length - generated.prompt).clamp(min=0, max=len(self.increase) - 1)
        increase = self.increase[length][:, None]  # (B, 1)
        for end in self.ends:
            before = scores[..., end]
            after = before + before.abs() * increase
            # An end token that is excluded stays so.
            scores[..., end] = torch.where(before == -torch.inf, before, after)


class BannedPhrases(LogitsProcessor):
    """Excludes runs of tokens from the output of each slot, from a given length of the output on."""

    recordable = masks_only = per_slot = True
    every_step = False

    def __init__(self, slots: int, phrases: int, longest: int, device: torch.device) -> None:
        self.phrases = torch.full(
            (slots, phrases, longest), -1, device=device
        )  # right-aligned; −1 matches any token
        self.since = torch.full(
            (slots, phrases), NEVER, device=device
        )  # tokens; NEVER where there is no phrase

    def admit(self, slot: int, request: "GenerationRequest") -> None:
        bans = request.bans
        longest = self.phrases.shape[2]
        device = self.phrases.device
        tokens = [token for run, _ in bans for token in (*[-1] * (longest - len(run)), *run)]
        self.phrases[slot] = -1
        self.since[slot] = NEVER
        self.phrases[slot, : len(bans)] = _ids(tuple(tokens), device).view(-1, longest)
        self.since[slot, : len(bans)] = _ids(tuple(since for _, since in bans), device)

    def keep(self, slots: Int[Tensor, " n"]) -> None:
        self.phrases = self.phrases[slots]
        self.since = self.since[slots]

    def __call__(self, scores: Scores, generated: GeneratedTokens) -> None:
        before = self.phrases[:, None, :, :-1]  # (B, 1, P, L − 1)
        token = self.phrases[:, :, -1].clamp(min=0)  # (B, P)
        last = generated.last(before.shape[-1])[:, :, None]  # (B, K, 1, L − 1)
        active = (generated.length[:, None] >= self.since)[:, None]  # (B, 1, P)
        begun = ((before == last) | (before < 0)).all(-1) & active  # (B, K, P)
        exclude(scores, token[:, None].expand_as(begun), begun)


def _read_tokens(
    generated: GeneratedTokens,
) -> tuple[Int[Tensor, "B K T"], Int[Tensor, " B"]]:
    """All tokens that the decoder has read, the one before the output first, and their number in each slot."""
    first = generated.first[:, None, None].expand(-1, generated.tokens.shape[1], -1)  # (B, K, 1)
    return torch.cat((first, generated.tokens), 2), generated.length + 1


def exclude(scores: Scores, tokens: Int[Tensor, "B K N"], mask: Bool[Tensor, "B K N"]) -> None:
    """Set the scores of tokens to −∞ where the mask is True, without waiting for a GPU to count them."""
    cost = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(mask, -torch.inf)
    scores.scatter_add_(2, tokens, cost)


@lru_cache(maxsize=256)
def _ids(numbers: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    """As a tensor; equal ones are copied to a GPU once."""
    return torch.tensor(numbers, dtype=torch.int64, device=device)
