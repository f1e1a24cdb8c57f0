"""A linear-chain conditional random field: the distribution of the tags of a sequence,
given scores at each position.

    B   batch
    S   positions
    L   labels

A path y of tags has the score start[y_0] + Σ emission[t, y_t] + Σ transition[y_t-1, y_t] +
end[y_last], and its probability is the softmax of the scores of all paths
(https://repository.upenn.edu/handle/20.500.14332/6188). Everything is computed in logarithms and in
float32 (float64 if the emissions are), whatever the type of the emissions.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Int, Tensor

# The score of what a constraint forbids. It is finite, so that no gradient becomes NaN, and so low
# that exp() of it is exactly zero next to any score. The sum of some hundred million of them is
# still a float32.
FORBIDDEN = -1e30


@dataclass(frozen=True)
class TagConstraints:
    """Which tags may begin a sequence, follow each other, and end it; True where permitted.

    starts        (L,)
    transitions   (L, L), from the tag of the row to that of the column
    ends          (L,)
    """

    starts: Bool[Tensor, " L"]
    transitions: Bool[Tensor, "L L"]
    ends: Bool[Tensor, " L"]


class DecodedTags(NamedTuple):
    """The best path of each sequence, 0 at padding, and its score."""

    tags: Int[Tensor, "B S"]
    scores: Float[Tensor, " B"]


class _Scores(NamedTuple):
    """The scores of a path, in the type of the computation.

    The batch has size one where all rows share them.

    The tag that a transition leaves stands before the batch: a reduction over the first axis takes
    half the time.
    """

    starts: Float[Tensor, "_ L"]
    transitions: Float[Tensor, "L _ L"]
    ends: Float[Tensor, "_ L"]


class LinearChainCRF(nn.Module):
    """Scores of neighbouring tags, on top of the emissions of any per-position model.

    Masks are True at words and False at the padding on the right. Padding changes nothing. The
    sequence without words has one path, whose score is 0.

    Constraints hold in `decode` and `marginals`, and if `constrain_training` in `log_likelihood`
    too. A sequence for which they permit no path at all is decoded without them, and in training so
    is one whose tags they forbid: every result stays defined, and no example is lost. `allows` says
    which tags they permit.

    labels               their number
    constraints          what may begin, follow and end; None: anything
    constrain_training   whether the distribution in training is one over the permitted paths only
    """

    allowed_starts: Tensor
    allowed_transitions: Tensor
    allowed_ends: Tensor

    def __init__(
        self,
        labels: int,
        constraints: TagConstraints | None = None,
        *,
        constrain_training: bool = False,
    ) -> None:
        super().__init__()
        if labels < 1:
            raise InvalidArgument(
                "labels",
                wanted="at least one label",
                got=str(labels),
                remedy="Look at the tags of the training data.",
            )
        if constraints is not None and len(constraints.starts) != labels:
            raise InvalidArgument(
                "constraints",
                wanted=f"those of {labels} labels",
                got=f"those of {len(constraints.starts)}",
                remedy="Make them from the labels of this model.",
            )
        # With zeros, the model begins as an independent softmax at each position.
        self.start_transitions = nn.Parameter(torch.zeros(labels))
        self.transitions = nn.Parameter(torch.zeros(labels, labels))
        self.end_transitions = nn.Parameter(torch.zeros(labels))
        self.constraints = constraints
        self.constrain_training = constrain_training and constraints is not None
        if constraints is not None:
            # They follow from the labels, so that a checkpoint does not hold them.
            self.register_buffer("allowed_starts", constraints.starts, persistent=False)
            self.register_buffer("allowed_transitions", constraints.transitions, persistent=False)
            self.register_buffer("allowed_ends", constraints.ends, persistent=False)

    def log_likelihood(
        self, emissions: Float[Tensor, "B S L"], tags: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, " B"]:
        """The log-probability of the tags of each sequence; those at padding may be any number."""
        self._check(emissions, mask)
        emissions = _prepared(emissions, mask)
        # A shift of all scores of a position changes no probability,
        # and keeps the sums small and thus exact.
        emissions = emissions - emissions.detach().logsumexp(-1, keepdim=True)
        scores = self._scores(emissions.dtype)
        path = _path_scores(scores, emissions, tags, mask)
        if self.constrain_training:
            scores = self._constrained(scores, self.allows(tags, mask))
        return path - _log_partition(scores, emissions, mask)

    def path_scores(
        self, emissions: Float[Tensor, "B S L"], tags: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, " B"]:
        """The score of the tags of each sequence, permitted or not."""
        self._check(emissions, mask)
        emissions = _prepared(emissions, mask)
        return _path_scores(self._scores(emissions.dtype), emissions, tags, mask)

    def mean_path_scores(
        self, emissions: Float[Tensor, "B S L"], mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, " B"]:
        """The mean score of all paths, permitted or not."""
        self._check(emissions, mask)
        emissions = _prepared(emissions, mask)
        of_words = emissions.mean(-1).sum(1)
        scores = self._scores(emissions.dtype)
        lengths = mask.sum(1)
        of_steps = scores.transitions.mean() * (lengths - 1).clamp(min=0)
        of_ends = (scores.starts.mean() + scores.ends.mean()) * (lengths > 0)
        return of_words + of_steps + of_ends

    def log_partition(
        self, emissions: Float[Tensor, "B S L"], mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, " B"]:
        """The logarithm of the sum of exp(score) over the paths that `decode` chooses from.

        The score of a decoded path minus this is its log-probability.
        """
        self._check(emissions, mask)
        emissions = _prepared(emissions, mask)
        shift = emissions.detach().logsumexp(-1, keepdim=True)
        scores = self._decoding_scores(emissions.dtype, mask)
        shifts = shift.squeeze(-1).masked_fill(~mask, 0).sum(1)
        return _log_partition(scores, emissions - shift, mask) + shifts

    @torch.no_grad()
    def decode(self, emissions: Float[Tensor, "B S L"], mask: Bool[Tensor, "B S"]) -> DecodedTags:
        """The path with the highest score, by the Viterbi algorithm;
        the first of several equally high.
        """
        self._check(emissions, mask)
        emissions = _prepared(emissions, mask)
        scores = self._decoding_scores(emissions.dtype, mask)
        shift = emissions.amax(-1, keepdim=True) if emissions.numel() else 0
        tags = _best_paths(scores, emissions - shift, mask)
        path = _path_scores(self._scores(emissions.dtype), emissions, tags, mask)
        return DecodedTags(tags, path)

    @torch.no_grad()
    def marginals(
        self, emissions: Float[Tensor, "B S L"], mask: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B S L"]:
        """The probability of each tag at each position, over all paths that `decode` chooses from;
        0 at padding.
        """
        self._check(emissions, mask)
        emissions = _prepared(emissions, mask)
        emissions = emissions - emissions.logsumexp(-1, keepdim=True)
        if not emissions.shape[1]:
            return torch.zeros_like(emissions)
        scores = self._decoding_scores(emissions.dtype, mask)
        time_major = emissions.transpose(0, 1).contiguous()  # (S, B, L)
        incoming, alphas = _forward_algorithm(scores, time_major, mask.T)
        weights = mask.any(1).to(emissions.dtype)
        nodes, _, _ = _posterior(scores, incoming, alphas, mask.T, weights)
        return nodes.transpose(0, 1)

    def allows(self, tags: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Bool[Tensor, " B"]:
        """Whether the constraints permit the tags of each sequence."""
        if self.constraints is None or not tags.shape[1]:
            return tags.new_ones(len(tags), dtype=torch.bool)
        tags = tags.where(mask, 0)
        steps = self.allowed_transitions[tags[:, :-1], tags[:, 1:]]  # (B, S-1)
        steps = steps | ~mask[:, 1:]
        last = _last_tags(tags, mask)
        permitted = steps.all(1) & self.allowed_starts[tags[:, 0]] & self.allowed_ends[last]
        return permitted | ~mask.any(1)

    def extra_repr(self) -> str:
        constrained = "" if self.constraints is None else ", constrained"
        return f"labels={len(self.start_transitions)}{constrained}"

    def _check(self, emissions: Tensor, mask: Tensor) -> None:
        labels = len(self.start_transitions)
        if emissions.shape[-1] != labels:
            raise InvalidArgument(
                "emissions",
                wanted=f"{labels} scores at each position, one for each label",
                got=str(emissions.shape[-1]),
                remedy="Project the states to the number of labels.",
            )
        # On a GPU this check would wait for all queued work.
        if mask.device.type == "cpu" and (mask[:, 1:] & ~mask[:, :-1]).any():
            raise InvalidArgument(
                "mask",
                wanted="padding at the end of sequences",
                got="words after padding",
                remedy="Gather the words of each sequence first.",
            )

    def _scores(self, dtype: torch.dtype) -> _Scores:
        starts = self.start_transitions.to(dtype)
        transitions = self.transitions.to(dtype)
        ends = self.end_transitions.to(dtype)
        return _Scores(starts[None], transitions[:, None], ends[None])

    def _decoding_scores(self, dtype: torch.dtype, mask: Tensor) -> _Scores:
        scores = self._scores(dtype)
        if self.constraints is None:
            return scores
        satisfiable = _satisfiable_lengths(self.constraints, mask.shape[1])
        if all(satisfiable):
            return self._constrained(scores, None)
        by_length = torch.tensor(satisfiable, device=mask.device)
        return self._constrained(scores, by_length[mask.sum(1)])

    def _constrained(self, scores: _Scores, rows: Bool[Tensor, " B"] | None) -> _Scores:
        """Scores that rule out what the constraints forbid, in these rows; None: in all."""
        starts = self.allowed_starts[None]
        transitions = self.allowed_transitions[:, None]
        ends = self.allowed_ends[None]
        if rows is not None:
            free = ~rows[:, None]  # (B, 1)
            starts = starts | free  # (B, L)
            transitions = transitions | free  # (L, B, L)
            ends = ends | free  # (B, L)
        return _Scores(
            scores.starts.where(starts, FORBIDDEN),
            scores.transitions.where(transitions, FORBIDDEN),
            scores.ends.where(ends, FORBIDDEN),
        )


def _prepared(
    emissions: Float[Tensor, "B S L"], mask: Bool[Tensor, "B S"]
) -> Float[Tensor, "B S L"]:
    """Emissions in the type of the computation, 0 at padding, which may hold anything."""
    wide = emissions if emissions.dtype == torch.float64 else emissions.float()
    return wide.masked_fill(~mask[..., None], 0)


def _satisfiable_lengths(constraints: TagConstraints, longest: int) -> list[bool]:
    """Whether any path is permitted, for each length from 0 to the longest."""
    starts = constraints.starts.cpu().numpy()
    transitions = constraints.transitions.cpu().numpy()
    ends = constraints.ends.cpu().numpy()
    satisfiable = [True]
    reachable = starts
    while len(satisfiable) <= longest:
        satisfiable.append(bool((reachable & ends).any()))
        following = transitions[reachable].any(0)
        if (following == reachable).all():
            # Every longer sequence may end as this one:
            # with real tagging schemes after a few steps.
            satisfiable += [satisfiable[-1]] * (longest + 1 - len(satisfiable))
        reachable = following
    return satisfiable


def _last_tags(tags: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Int[Tensor, " B"]:
    last = (mask.sum(1) - 1).clamp(min=0)
    return tags.gather(1, last[:, None]).squeeze(1)


def _path_scores(
    scores: _Scores,
    emissions: Float[Tensor, "B S L"],
    tags: Int[Tensor, "B S"],
    mask: Bool[Tensor, "B S"],
) -> Float[Tensor, " B"]:
    if not emissions.shape[1]:
        # A sum of nothing, which still has a gradient of zero.
        return emissions.sum((1, 2))
    tags = tags.where(mask, 0)
    words = emissions.gather(2, tags[..., None]).squeeze(2)  # (B, S)
    steps = scores.transitions[:, 0][tags[:, :-1], tags[:, 1:]]  # (B, S-1)
    ends = scores.starts[0][tags[:, 0]] + scores.ends[0][_last_tags(tags, mask)]  # (B,)
    # A choice, as emissions are shifted at padding too.
    words = words.where(mask, 0).sum(1)
    steps = steps.where(mask[:, 1:], 0).sum(1)
    return words + steps + ends.where(mask.any(1), 0)


def _log_partition(
    scores: _Scores, emissions: Float[Tensor, "B S L"], mask: Bool[Tensor, "B S"]
) -> Float[Tensor, " B"]:
    if not emissions.shape[1]:
        return emissions.sum((1, 2))
    time_major = emissions.transpose(0, 1).contiguous()  # (S, B, L)
    partition: Tensor
    partition = _LogPartition.apply(*scores, time_major, mask.T)  # type: ignore[no-untyped-call]
    return partition


class _LogPartition(torch.autograd.Function):
    """The forward algorithm, whose gradient is the posterior of tags and of pairs of tags.

    Autograd would keep the (B, L, L) scores of every position. This keeps (B, L).
    """

    @staticmethod
    def forward(
        ctx: Any, starts: Tensor, transitions: Tensor, ends: Tensor, emissions: Tensor, mask: Tensor
    ) -> Tensor:
        scores = _Scores(starts, transitions, ends)
        incoming, alphas = _forward_algorithm(scores, emissions, mask)
        ctx.save_for_backward(starts, transitions, ends, mask, incoming, alphas)
        return torch.logsumexp(alphas[-1] + ends, 1).where(mask[0], 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        starts, transitions, ends, mask, incoming, alphas = ctx.saved_tensors
        scores = _Scores(starts, transitions, ends)
        weights = grad.where(mask[0], 0)
        nodes, pairs, final = _posterior(scores, incoming, alphas, mask, weights)
        return (
            nodes[0].sum_to_size(starts.shape),
            pairs,
            final.sum_to_size(ends.shape),
            nodes,
            None,
        )


def _forward_algorithm(
    scores: _Scores, emissions: Float[Tensor, "S B L"], mask: Bool[Tensor, "S B"]
) -> tuple[Float[Tensor, "S B L"], Float[Tensor, "S B L"]]:
    """For each position and tag, the log-sum of all ways to arrive there,
    without and with its own emission.

    At padding, the second is that of the last word.
    """
    incoming = torch.empty_like(emissions)
    incoming[0] = scores.starts
    alphas = torch.empty_like(emissions)
    alphas[0] = scores.starts + emissions[0]
    for t in range(1, len(emissions)):
        arrived = torch.logsumexp(_following(alphas[t - 1], scores), 0)  # (B, L)
        incoming[t] = arrived
        alphas[t] = (arrived + emissions[t]).where(mask[t, :, None], alphas[t - 1])
    return incoming, alphas


def _following(scores_here: Float[Tensor, "B L"], scores: _Scores) -> Float[Tensor, "L B L"]:
    """The score of each tag here followed by each tag,
    in a layout whose first axis is reduced fastest.
    """
    return scores_here.T.contiguous()[..., None] + scores.transitions


def _posterior(
    scores: _Scores,
    incoming: Float[Tensor, "S B L"],
    alphas: Float[Tensor, "S B L"],
    mask: Bool[Tensor, "S B"],
    weights: Float[Tensor, " B"],
) -> tuple[Float[Tensor, "S B L"], Float[Tensor, "L _ L"], Float[Tensor, "B L"]]:
    """Weighted posteriors of the tags at each position, of pairs of neighbours (summed),
    and of the last tag.

    It walks back from the last word: given the tag that follows, the distribution of a tag is a
    softmax of what arrived at it. So only scores of one position are ever compared, which stays
    exact in long sequences.
    """
    node = torch.softmax(alphas[-1] + scores.ends, 1) * weights[:, None]  # (B, L)
    final = node
    nodes = torch.zeros_like(alphas)
    pairs = torch.zeros_like(scores.transitions)
    for t in range(len(alphas) - 1, 0, -1):
        here = mask[t, :, None]  # (B, 1)
        nodes[t] = node.where(here, 0)
        pair = _following(alphas[t - 1], scores)  # (L, B, L)
        pair = pair.sub_(incoming[t]).exp_().mul_(nodes[t])
        pairs += pair.sum_to_size(pairs.shape)
        node = pair.sum(2).T.where(here, node)  # (B, L)
    nodes[0] = node
    return nodes, pairs, final


def _best_paths(
    scores: _Scores, emissions: Float[Tensor, "B S L"], mask: Bool[Tensor, "B S"]
) -> Int[Tensor, "B S"]:
    """The Viterbi algorithm; zeros at padding."""
    batch, length, labels = emissions.shape
    tags = torch.zeros(batch, length, dtype=torch.int64, device=emissions.device)
    if not length:
        return tags
    best = torch.empty(length, batch, labels, dtype=emissions.dtype, device=emissions.device)
    best[0] = scores.starts + emissions[:, 0]
    for t in range(1, length):
        arrived = _following(best[t - 1], scores).amax(0) + emissions[:, t]  # (B, L)
        best[t] = arrived.where(mask[:, t, None], best[t - 1])
    # Only the origin of tags on the path is ever looked for.
    tag = (best[-1] + scores.ends).argmax(1)  # (B,)
    tags[:, -1] = tag
    rows = torch.arange(batch, device=emissions.device)
    into = scores.transitions.permute(1, 2, 0)  # (_, L, L), from the second tag to the first
    shared = torch.zeros_like(rows) if len(into) == 1 else rows
    for t in range(length - 1, 0, -1):
        origin = (best[t - 1] + into[shared, tag]).argmax(1)
        tag = origin.where(mask[:, t], tag)
        tags[:, t - 1] = tag
    return tags.where(mask, 0)
