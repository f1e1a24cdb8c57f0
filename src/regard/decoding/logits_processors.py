"""Rules of a search: small callables that compose. Each changes log-probabilities of the next token in place.

A rule gets log-probabilities (B, K, V), of K hypotheses for each of B inputs, and what was said so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.tokenizer import END

Scores = Float[Tensor, "B K V"]


@dataclass
class GeneratedTokens:
    """What each hypothesis has said, and what its input asks for."""

    tokens: Int[Tensor, "B K T"]  # padded; one more than are ever said, where who is done may go on
    length: Int[Tensor, " B"]  # how many tokens so far
    least: Int[Tensor, " B"]  # and at least
    forced: Int[Tensor, "B P"]  # what an output begins with; −1 after it

    def keep(self, rows: Int[Tensor, " n"]) -> "GeneratedTokens":
        """Of these inputs alone."""
        return GeneratedTokens(self.tokens[rows], self.length[rows], self.least[rows], self.forced[rows])

    def last(self, count: int) -> Int[Tensor, "B K count"]:
        """The last tokens; those before the first are −1."""
        where = self.length[:, None] - count + torch.arange(count, device=self.length.device)  # (B, count)
        found = self.tokens.gather(2, where.clamp(min=0)[:, None].expand(-1, self.tokens.shape[1], -1))
        return found.masked_fill((where < 0)[:, None], -1)


LogitsProcessor = Callable[[Scores, GeneratedTokens], None]


@dataclass(frozen=True)
class SuppressTokens:
    """Tokens that are part of no text."""

    tokens: Sequence[int]

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        if scores.is_cuda:
            scores.index_fill_(-1, _numbers(tuple(self.tokens), scores.device), -torch.inf)
            return
        for token in self.tokens:
            scores[..., token] = -torch.inf  # one by one is faster than by a list


class MinLength:
    """No end before the least length; `relent`, after other rules, allows it where they leave nothing else to say."""

    kept: Float[Tensor, "B K"]

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        self.kept = scores[..., END].clone()
        scores[..., END].masked_fill_((said.length < said.least)[:, None], -torch.inf)

    def relent(self, scores: Scores, said: GeneratedTokens) -> None:
        silent = scores.amax(-1) == -torch.inf
        scores[..., END] = torch.where(silent, self.kept, scores[..., END])


class ForcedPrefix:
    """What an output must begin with, whatever other rules say: it notes its scores before them, and comes last."""

    tokens: Int[Tensor, "B K 1"]
    now: Bool[Tensor, "B 1 1"]  # whether there is one
    kept: Float[Tensor, "B K 1"]

    def note(self, scores: Scores, said: GeneratedTokens) -> None:
        place = said.length.clamp(max=said.forced.shape[1] - 1)[:, None]
        token = said.forced.gather(1, place).masked_fill(said.length[:, None] >= said.forced.shape[1], -1)  # (B, 1)
        self.now = (token >= 0)[..., None]
        self.tokens = token.clamp(min=0)[..., None].expand(-1, scores.shape[1], -1)
        self.kept = scores.gather(2, self.tokens)

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        scores.masked_fill_(self.now, -torch.inf)
        scores.scatter_(2, self.tokens, torch.where(self.now, self.kept, scores.gather(2, self.tokens)))


@dataclass(frozen=True)
class NoRepeatNgram:
    """No run of `size` tokens comes twice."""

    size: int

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        if said.tokens.shape[2] < self.size:
            return
        runs = said.tokens.unfold(2, self.size, 1)  # (B, K, R, size)
        again = (runs[..., :-1] == said.last(self.size - 1)[:, :, None]).all(-1)  # (B, K, R)
        ends = torch.arange(self.size, said.tokens.shape[2] + 1, device=again.device)
        again &= (ends <= said.length[:, None])[:, None]  # (B, 1, R): runs of what was really said
        forbid(scores, runs[..., -1], again)


@dataclass(frozen=True)
class RepetitionPenalty:
    """What was said already is less likely (https://arxiv.org/abs/1909.05858)."""

    factor: float

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        place = torch.arange(said.tokens.shape[2], device=scores.device)
        there = (place < said.length[:, None])[:, None].expand_as(said.tokens)
        before = scores.gather(2, said.tokens)
        scores.scatter_(2, said.tokens, torch.where(there, before * self.factor, before))


@dataclass(frozen=True)
class BannedTokens:
    """Words and phrases, as their tokens, that no output may hold."""

    phrases: Sequence[Sequence[int]]

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        for *before, token in self.phrases:
            if not before:
                scores[..., token] = -torch.inf
                continue
            wanted = _numbers(tuple(before), scores.device)
            begun = (said.last(len(before)) == wanted).all(-1)  # (B, K)
            scores[..., token].masked_fill_(begun, -torch.inf)


@dataclass(frozen=True)
class AllowedTokens:
    """The only tokens that an output may hold, beside its end."""

    mask: Bool[Tensor, " V"]

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        allowed = self.mask.clone()
        allowed[END] = True
        scores.masked_fill_(~allowed, -torch.inf)


def forbid(scores: Scores, tokens: Int[Tensor, "B K N"], where: Bool[Tensor, "B K N"]) -> None:
    """Make these tokens impossible where it says so; without asking a GPU how many they are."""
    cost = torch.zeros_like(where, dtype=scores.dtype).masked_fill_(where, -torch.inf)
    scores.scatter_add_(2, tokens, cost)


@lru_cache(maxsize=256)
def _numbers(tokens: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    return torch.tensor(tokens, device=device)
