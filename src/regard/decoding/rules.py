"""Rules of a search: small callables that compose. Each changes log-probabilities of the next token in place.

A rule gets log-probabilities (B, K, V), of K hypotheses for each of B inputs, and what was said so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regard.data.tokens import END
from regard.shapes import Bool, Float, Int, Tensor

Scores = Float[Tensor, "B K V"]


@dataclass
class Said:
    """What each hypothesis has said, and what its input asks for."""

    tokens: Int[Tensor, "B K T"]  # padded
    length: Int[Tensor, " B"]  # how many tokens so far
    least: Int[Tensor, " B"]  # and at least
    forced: Int[Tensor, "B P"]  # what an output begins with; −1 after it

    def last(self, count: int) -> Int[Tensor, "B K count"]:
        """The last tokens; those before the first are −1."""
        where = self.length[:, None] - count + torch.arange(count, device=self.length.device)  # (B, count)
        found = self.tokens.gather(2, where.clamp(min=0)[:, None].expand(-1, self.tokens.shape[1], -1))
        return found.masked_fill((where < 0)[:, None], -1)


Rule = Callable[[Scores, Said], None]


@dataclass(frozen=True)
class Never:
    """Tokens that are part of no text."""

    tokens: Sequence[int]

    def __call__(self, scores: Scores, said: Said) -> None:
        for token in self.tokens:
            scores[..., token] = -torch.inf  # one by one is faster than by a list


class LongEnough:
    """No end before the least length."""

    def __call__(self, scores: Scores, said: Said) -> None:
        scores[..., END].masked_fill_((said.length < said.least)[:, None], -torch.inf)


class Forced:
    """What an output must begin with, whatever other rules say: it notes its scores before them, and comes last."""

    rows: Int[Tensor, " n"]
    tokens: Int[Tensor, " n"]
    kept: Float[Tensor, "n K"]

    def note(self, scores: Scores, said: Said) -> None:
        place = said.length.clamp(max=said.forced.shape[1] - 1)[:, None]
        token = said.forced.gather(1, place)[:, 0].masked_fill(said.length >= said.forced.shape[1], -1)  # (B,)
        self.rows = (token >= 0).nonzero()[:, 0]
        self.tokens = token[self.rows]
        self.kept = scores[self.rows, :, self.tokens]

    def __call__(self, scores: Scores, said: Said) -> None:
        if len(self.rows):
            scores[self.rows] = -torch.inf
            scores[self.rows, :, self.tokens] = self.kept


@dataclass(frozen=True)
class NoRepeat:
    """No run of `size` tokens comes twice."""

    size: int

    def __call__(self, scores: Scores, said: Said) -> None:
        longest = int(said.length.max())
        if longest < self.size:
            return
        runs = said.tokens[:, :, :longest].unfold(2, self.size, 1)  # (B, K, R, size)
        again = (runs[..., :-1] == said.last(self.size - 1)[:, :, None]).all(-1)  # (B, K, R)
        ends = torch.arange(self.size, longest + 1, device=again.device)
        again &= (ends <= said.length[:, None])[:, None]  # (B, 1, R): runs of what was really said
        sentence, beam, run = again.nonzero(as_tuple=True)
        scores[sentence, beam, runs[sentence, beam, run, -1]] = -torch.inf


@dataclass(frozen=True)
class Repetition:
    """What was said already is less likely (https://arxiv.org/abs/1909.05858)."""

    factor: float

    def __call__(self, scores: Scores, said: Said) -> None:
        place = torch.arange(said.tokens.shape[2], device=scores.device)
        there = (place < said.length[:, None])[:, None].expand_as(said.tokens)
        before = scores.gather(2, said.tokens)
        scores.scatter_(2, said.tokens, torch.where(there, before * self.factor, before))


@dataclass(frozen=True)
class Banned:
    """Words and phrases, as their tokens, that no output may hold."""

    phrases: Sequence[Sequence[int]]

    def __call__(self, scores: Scores, said: Said) -> None:
        for *before, token in self.phrases:
            if not before:
                scores[..., token] = -torch.inf
                continue
            wanted = torch.tensor(before, device=scores.device)
            begun = (said.last(len(before)) == wanted).all(-1)  # (B, K)
            scores[..., token].masked_fill_(begun, -torch.inf)


@dataclass(frozen=True)
class Allowed:
    """The only tokens that an output may hold, beside its end."""

    mask: Bool[Tensor, " V"]

    def __call__(self, scores: Scores, said: Said) -> None:
        allowed = self.mask.clone()
        allowed[END] = True
        scores.masked_fill_(~allowed, -torch.inf)
