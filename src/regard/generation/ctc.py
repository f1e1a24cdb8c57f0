"""Connectionist temporal classification: probabilities of token sequences, and the search for the most likely one.

A path has a token or a blank at each frame. The sequence that it stands for is what remains without repetitions, and
then without blanks. The probability of a sequence is the sum over its paths (https://doi.org/10.1145/1143844.1143891).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.shapes import Float, Int, Tensor

IMPOSSIBLE = -1e30  # a log-probability: no infinity, which has no gradient
Probabilities = NDArray[np.float64]
# Log-probabilities (n, V) of the token after each of n sequences, by a language model.
NextTokens = Callable[[Sequence[tuple[int, ...]]], Probabilities]


def frames_needed(tokens: Sequence[int]) -> int:
    """The fewest frames of a path: one for each token, and a blank between two that are equal."""
    return len(tokens) + sum(one == other for one, other in pairwise(tokens))


def collapse(path: Sequence[int], blank: int) -> tuple[int, ...]:
    """The sequence that a path stands for."""
    kept = [token for before, token in pairwise((blank, *path)) if token not in (before, blank)]
    return tuple(kept)


def greedy(log_probabilities: Float[Tensor, "S V1"], blank: int) -> tuple[int, ...]:
    """The sequence of the most likely path."""
    return collapse(log_probabilities.argmax(-1).tolist(), blank)


def token_log_probabilities(
    log_probabilities: Float[Tensor, "S V1"], tokens: Int[Tensor, " L"], blank: int
) -> Float[Tensor, " L1"]:
    """The log-probability of each token given those before it, and then that nothing follows; with gradients.

    The first tokens of all sequences that begin with them have a probability too: the sum over the paths by which they
    are complete at some frame. Ratios of these are the probabilities of single tokens, and the sum of all is the
    log-probability of the sequence.
    """
    count = len(tokens)
    frames = log_probabilities.double()
    blanks = frames[:, blank]  # (S,)
    of_tokens = frames[:, tokens]  # (S, L)
    is_new = torch.ones(count, dtype=torch.bool, device=frames.device)
    is_new[1:] = tokens[1:] != tokens[:-1]
    # Of the first k tokens: paths so far that end with a blank, and with the last of them.
    with_blank = frames.new_full((count + 1,), IMPOSSIBLE)
    with_blank[0] = 0.0
    with_token = frames.new_full((count + 1,), IMPOSSIBLE)
    completed: list[Tensor] = []
    for frame_blank, frame_tokens in zip(blanks, of_tokens, strict=True):
        # A token begins after a blank, or after another token.
        before = torch.where(is_new, torch.logaddexp(with_blank, with_token)[:-1], with_blank[:-1])
        begins = before + frame_tokens  # (L,)
        completed.append(begins)
        with_blank = torch.logaddexp(with_blank, with_token) + frame_blank
        with_token = torch.cat(
            (
                with_token[:1],
                torch.logaddexp(begins, with_token[1:] + frame_tokens),
            )
        )
    beginnings = torch.stack(completed).logsumexp(0)  # (L,)
    whole = torch.logaddexp(with_blank[-1], with_token[-1])
    chain = torch.cat((beginnings.new_zeros(1), beginnings, whole[None]))
    return chain.diff()


def alignment(
    log_probabilities: Float[Tensor, "S V1"], tokens: Int[Tensor, " L"], blank: int
) -> Float[Tensor, "L S"]:
    """How likely each token is at each frame, among the paths of the sequence; a row sums to 1."""
    scores = log_probabilities.detach().double().cpu()
    count = len(tokens)
    extended = torch.full((2 * count + 1,), blank)
    extended[1::2] = tokens.cpu()
    emitted = scores[:, extended]  # (S, 2 L + 1)
    forwards = _forward_paths(emitted, extended, blank)
    backwards = _forward_paths(emitted.flip(0, 1), extended.flip(0), blank).flip(0, 1)
    occupied = forwards + backwards - emitted
    return occupied[:, 1::2].softmax(0).mT.float()


def _forward_paths(
    emitted: Float[Tensor, "S E"], extended: Int[Tensor, " E"], blank: int
) -> Float[Tensor, "S E"]:
    """Log-probabilities of the paths that are at each place of the extended sequence, frame by frame."""
    skips = torch.zeros(len(extended), dtype=torch.bool)
    skips[2:] = (extended[2:] != blank) & (extended[2:] != extended[:-2])
    paths = emitted.new_full((len(extended),), IMPOSSIBLE)
    paths[:2] = 0.0
    found = []
    impossible = paths.new_full((2,), IMPOSSIBLE)
    for number, frame in enumerate(emitted):
        if number:
            padded = torch.cat((impossible, paths))
            from_before = torch.logaddexp(paths, padded[1:-1])
            from_two_before = torch.where(skips, padded[:-2], torch.full_like(paths, IMPOSSIBLE))
            paths = torch.logaddexp(from_before, from_two_before)
        paths = paths + frame
        found.append(paths)
    return torch.stack(found)


@dataclass(frozen=True)
class Transcript:
    """A sequence that a search found.

    log_probability   of the sequence, by the paths that the search kept
    score             by which sequences are ranked: with the language model and the bonus
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float


@dataclass(frozen=True)
class Fusion:
    """A language model beside CTC (shallow fusion), and a bonus for each token.

    next_tokens   of the language model; None: there is none
    end           its token for the end of a text
    """

    next_tokens: NextTokens | None = None
    end: int = 0
    weight: float = 0.0
    length_bonus: float = 0.0


@dataclass
class _Beams:
    """The sequences that a search keeps; the first axis of each array is theirs."""

    tokens: list[tuple[int, ...]]
    with_blank: Probabilities
    with_token: Probabilities
    model: Probabilities  # log-probability by the language model
    following: Probabilities | None = field(default=None)  # (K, V), of the next token

    @property
    def total(self) -> Probabilities:
        return np.logaddexp(self.with_blank, self.with_token)


def prefix_beam_search(
    log_probabilities: Float[Tensor, "S V1"],
    blank: int,
    beam_size: int,
    *,
    excluded: Sequence[int] = (),
    fusion: Fusion | None = None,
) -> list[Transcript]:
    """The most likely sequences, best first, at most `beam_size` (https://arxiv.org/abs/1408.2873).

    excluded   tokens that no sequence contains
    """
    fusion = Fusion() if fusion is None else fusion
    frames = log_probabilities.detach().double().cpu().numpy()
    beams = _Beams([()], np.zeros(1), np.full(1, -np.inf), np.zeros(1))
    _ask(beams, fusion)
    possible = np.zeros(blank)
    possible[list(excluded)] = -np.inf
    for frame in frames:
        beams = _advanced(beams, frame[:blank] + possible, frame[blank], beam_size, fusion)
    model = beams.model
    if beams.following is not None:
        model = model + beams.following[:, fusion.end]
    lengths = np.array([len(tokens) for tokens in beams.tokens])
    scores = beams.total + fusion.weight * model + fusion.length_bonus * lengths
    order = np.argsort(-scores, kind="stable")
    return [
        Transcript(beams.tokens[place], float(beams.total[place]), float(scores[place]))
        for place in order
    ]


def _advanced(
    beams: _Beams, of_tokens: Probabilities, of_blank: float, beam_size: int, fusion: Fusion
) -> _Beams:
    """The sequences after one more frame."""
    size = len(of_tokens)
    count = len(beams.tokens)
    total = beams.total
    last = np.array([tokens[-1] if tokens else -1 for tokens in beams.tokens])
    # What stays the same sequence: by a blank, or by its last token once more.
    with_blank = total + of_blank
    repeated = np.where(last >= 0, of_tokens[last], -np.inf)
    with_token = beams.with_token + repeated
    # What becomes longer by a token; the last token once more is a new one only after a blank.
    longer = total[:, None] + of_tokens  # (K, V)
    has_last = np.flatnonzero(last >= 0)
    longer[has_last, last[has_last]] = beams.with_blank[has_last] + of_tokens[last[has_last]]
    # A longer sequence may be among those that stay.
    places = {tokens: place for place, tokens in enumerate(beams.tokens)}
    for place, tokens in enumerate(beams.tokens):
        parent = places.get(tokens[:-1]) if tokens else None
        if parent is not None:
            with_token[place] = np.logaddexp(with_token[place], longer[parent, tokens[-1]])
            longer[parent, tokens[-1]] = -np.inf
    bonus = fusion.length_bonus * np.array([len(tokens) for tokens in beams.tokens])
    model = fusion.weight * beams.model
    ranks_same = np.logaddexp(with_blank, with_token) + model + bonus
    ranks_longer = longer + (model + bonus + fusion.length_bonus)[:, None]
    if beams.following is not None:
        ranks_longer = ranks_longer + fusion.weight * beams.following[:, :size]
    ranks = np.concatenate((ranks_same, ranks_longer.reshape(-1)))
    best = np.argsort(-ranks, kind="stable")[:beam_size]
    best = best[ranks[best] > -np.inf]
    return _chosen(beams, best, count, size, with_blank, with_token, longer, fusion)


def _chosen(
    beams: _Beams,
    best: NDArray[np.int64],
    count: int,
    size: int,
    with_blank: Probabilities,
    with_token: Probabilities,
    longer: Probabilities,
    fusion: Fusion,
) -> _Beams:
    """The best sequences: the numbers below `count` are those that stayed, the others a token longer."""
    stays = best < count
    parents = np.where(stays, best, (best - count) // size)
    added = (best - count) % size
    tokens = []
    for same, parent, token in zip(stays, parents, added, strict=True):
        before = beams.tokens[parent]
        tokens.append(before if same else (*before, int(token)))
    model = beams.model[parents]
    if beams.following is not None:
        model = model + np.where(stays, 0.0, beams.following[parents, added])
    made = _Beams(
        tokens,
        np.where(stays, with_blank[parents], -np.inf),
        np.where(stays, with_token[parents], longer[parents, added]),
        model,
    )
    _ask(made, fusion, beams, np.where(stays, parents, -1))
    return made


def _ask(
    beams: _Beams,
    fusion: Fusion,
    before: _Beams | None = None,
    same: NDArray[np.int64] | None = None,
) -> None:
    """Ask the language model for what follows the new sequences; `same` are the places of others in `before`."""
    if fusion.next_tokens is None:
        return
    if before is None or same is None or before.following is None:
        beams.following = fusion.next_tokens(beams.tokens)
        return
    following = before.following[same]
    new = np.flatnonzero(same < 0)
    if len(new):
        following[new] = fusion.next_tokens([beams.tokens[place] for place in new])
    beams.following = following
