"""One map for each module that attended: which side asked which, and any of its weights on request.

A map keeps what was heard, queries, keys and log-sum-exps, and computes from them what it is asked for. So its memory
grows with N + M, and that of an answer with what was asked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Int, Tensor
from regard.interpret.sites import AttentionSite, places
from regard.interpret.summaries import RowSummaries, summarise
from regard.kernels.attention import weights as exact
from regard.kernels.attention.blockwise import BLOCK
from regard.kernels.attention.spec import spread, widened
from regard.model.capture import AttentionCall, Pick, picked
from regard.model.interfaces import AttentionModule


@dataclass(frozen=True)
class TokenGroups:
    """Which word each token belongs to; a word is a run of tokens."""

    of: Int[Tensor, " tokens"]

    def tokens(self, words: Int[Tensor, " words"]) -> tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]:
        """The tokens of these words, and the place of each one's word among them."""
        sizes = self.of.bincount()
        first, each = (sizes.cumsum(0) - sizes)[words], sizes[words]
        places = torch.arange(len(words), device=words.device).repeat_interleave(each)
        within = torch.arange(len(places), device=words.device) - (each.cumsum(0) - each)[places]
        return first[places] + within, places


@dataclass(frozen=True, repr=False, eq=False)
class AttentionMap(AttentionSite):
    """What one module attended to, for one input: heads × rows that ask × keys that are asked."""

    heads: int
    size: tuple[int, int]  # rows and keys: tokens, words or regions
    causal: bool
    heard: AttentionCall | None = None  # None: only the summary was kept
    kept: RowSummaries | None = None
    row_words: TokenGroups | None = None  # where rows are words and not tokens
    key_words: TokenGroups | None = None
    signs: Tensor | None = None  # which keys are signs: neither letter nor digit in them
    chosen: tuple[Int[Tensor, " rows"] | None, Int[Tensor, " heads"] | None] = (None, None)  # unless told otherwise

    def __repr__(self) -> str:
        return f"Map({self.name!r}, {self.heads} heads, {self.size[0]:,} × {self.size[1]:,})"

    @torch.no_grad()
    def weights(self, rows: Pick = None, heads: Pick = None) -> Float[Tensor, "H R M"]:
        """Exact weights of these rows and heads; without any, of those that the look was asked for, or of all.

        Words ask with the mean of their tokens' weights, and are asked with the sum of theirs.
        """
        which, chosen = self._picked(rows, heads)
        found = self._of(self._spec(chosen), self.size[0] if which is None else len(which), which)
        return found.float()

    @torch.no_grad()
    def tile(self, rows: slice, keys: slice, heads: Pick = None) -> Float[Tensor, "H R C"]:
        """The weights of a run of rows with a run of keys, and nothing more is computed."""
        first, last = _run("rows", rows, self.size[0])
        low, high = _run("keys", keys, self.size[1])
        if self.row_words is not None or self.key_words is not None:
            return self.weights(range(first, last), heads)[..., low:high]
        heard = self._spec(self._picked(None, heads)[1])
        scores = heard.spec.scores(slice(first, last), low, high)
        return scores.sub_(heard.lse[:, :, first:last, None]).exp_()[0].float()

    def summary(self, top: int = 16) -> RowSummaries:
        """What every row of every head comes to, with its `top` largest weights; streamed, never rows × keys."""
        if type(top) is not int or top < 0:
            raise InvalidArgument("top", wanted="a count", got=repr(top), remedy="Use 0 for none.")
        if self.kept is not None:
            if min(top, self.size[1]) > self.kept.top_weights.shape[-1]:
                self._heard()
            return self.kept.with_top(top)
        return summarise(self.heads, self.size, self.tiles(), top, self.signs)

    @torch.no_grad()
    def weighted(self, rows: Pick = None, heads: Pick = None) -> Float[Tensor, "H R M"]:
        """How long the vector is that each key adds to what a row sees: ‖weight · value · W_out‖.

        A key may have all the weight and a value of nothing (https://arxiv.org/abs/2004.10102).
        """
        which, chosen = self._picked(rows, heads)
        heard = self._spec(chosen)
        norms = _norms(self._heard(), self.heads)  # (H, M)
        norms = norms if chosen is None else norms[chosen]
        return self._of(heard, self.size[0] if which is None else len(which), which, norms).float()

    def _heard(self) -> AttentionCall:
        if self.heard is None:
            raise InvalidArgument(
                f"map {self.name!r}",
                wanted="a map whose queries and keys were kept",
                got="its summary alone",
                remedy=f"Look again without top=, or at this layer alone: layers=[{self.layer}].",
            )
        return self.heard

    def _spec(self, heads: Tensor | None) -> AttentionCall:
        heard = self._heard()
        if heads is None:
            return heard
        return replace(heard, spec=heard.spec.for_heads(heads), lse=heard.lse[:, heads], lead=(1, len(heads)))

    def _picked(self, rows: Pick, heads: Pick) -> tuple[Tensor | None, Tensor | None]:
        which, chosen = self.chosen
        device = torch.device("cpu") if self.heard is None else self.heard.lse.device
        if rows is not None:
            which = picked("rows", rows, self.size[0], device)
        if heads is not None:
            chosen = picked("heads", heads, self.heads, device)
        return which, chosen

    def _of(self, heard: AttentionCall, count: int, rows: Tensor | None, norms: Tensor | None = None) -> Tensor:
        """Weights of these rows, times the norm of each key's value where there is one; tokens made words."""
        if self.row_words is not None:
            every = torch.arange(self.size[0], device=heard.lse.device) if rows is None else rows
            tokens, words = self.row_words.tokens(every)
            found = exact.weights(heard.spec, tokens, heard.lse)[0]
        else:
            found = exact.weights(heard.spec, slice(0, heard.spec.n) if rows is None else rows, heard.lse)[0]
        if norms is not None:
            found = found * norms[:, None]
        return self._in_words(found, None if self.row_words is None else words, count)

    def _in_words(self, found: Float[Tensor, "H _ _"], words: Tensor | None, count: int) -> Tensor:
        if self.key_words is not None:
            keys = found.new_zeros(*found.shape[:2], self.size[1])
            found = keys.index_add_(2, self.key_words.of, found)
        if words is not None:
            mean = found.new_zeros(found.shape[0], count, found.shape[2]).index_add_(1, words, found)
            found = mean / words.bincount(minlength=count)[:, None]
        return found

    def merged(self, of_tokens: Float[Tensor, "H n m"]) -> Float[Tensor, "H N M"]:
        """Anything that is known for each pair of tokens, as this map has it."""
        if self.row_words is None and self.key_words is None:
            return of_tokens
        return self._in_words(of_tokens, None if self.row_words is None else self.row_words.of, self.size[0])

    @torch.no_grad()
    def tiles(self) -> Iterator[tuple[slice, int, Float[Tensor, "H R C"], Int[Tensor, "_ _"]]]:
        """All weights, a block at a time: which rows, from which key on, their weights, and how many keys each may see.

        Words may see those that they give any weight.
        """
        heard = self._heard()
        spec, (n, m) = heard.spec, self.size
        if self.row_words is None and self.key_words is None:
            for _, rows, low, seen in exact.tiles(spec, heard.lse):
                visible = spec.visible.tile(rows, low, low + seen.shape[-1], n, m, seen.device)
                count = torch.full((1, 1), seen.shape[-1]) if visible is None else visible.expand_as(seen)[0].sum(-1)
                yield rows, low, seen[0], count
            return
        step = max(1, BLOCK // (8 * self.heads * max(1, spec.m)))  # a word has some tokens, each a row of weights
        for first in range(0, n, step):
            rows = slice(first, min(first + step, n))
            seen = self._of(heard, rows.stop - first, torch.arange(first, rows.stop, device=heard.lse.device))
            yield rows, 0, seen, (seen > 0).sum(-1)


class MapRecorder:
    """Listens to one forward pass, and makes a map of all that each module asked in it.

    What a module asks of the same keys step by step, as recurrent decoders do, becomes one map. With `top`, a map is
    summarised as soon as its module is done, and what was heard of it is let go.
    """

    def __init__(
        self, model: nn.Module, wanted: Callable[[AttentionSite], bool], dress: Callable[[AttentionMap], AttentionMap]
    ) -> None:
        self.places, self.wanted, self.dress = places(model), wanted, dress
        self.maps: list[AttentionMap] = []
        self._steps: list[AttentionCall] = []

    def __call__(self, heard: AttentionCall) -> None:
        if self._steps and not _goes_on(self._steps[-1], heard):
            self.close()
        if heard.source in self.places and self.wanted(self.places[heard.source]):
            self._steps.append(heard)

    def close(self) -> None:
        """What was heard last is whole."""
        if self._steps:
            heard = joined(self._steps)
            assert heard.source is not None
            spec, self._steps = heard.spec, []
            place, causal = self.places[heard.source], spec.visible.ahead == 0
            found = AttentionMap(**vars(place), heads=heard.lead[1], size=(spec.n, spec.m), causal=causal, heard=heard)
            self.maps.append(self.dress(found))


def _goes_on(last: AttentionCall, heard: AttentionCall) -> bool:
    mine, its = last.spec, heard.spec
    same = last.source is heard.source and mine.key.data_ptr() == its.key.data_ptr() and mine.key.shape == its.key.shape
    return same and mine.bias is None and not mine.visible.banded


def joined(steps: list[AttentionCall]) -> AttentionCall:
    """What was asked of the same keys, one step after another, as if it had been asked at once."""
    first = steps[0]
    spec, lse = first.spec, first.lse
    if len(steps) > 1:
        spec = replace(spec, query=torch.cat([each.spec.query for each in steps], 2))
        lse = torch.cat([each.lse for each in steps], 2)
    return replace(first, spec=spec, lse=lse, lead=tuple(spec.query.shape[:2]))


def _norms(heard: AttentionCall, heads: int) -> Float[Tensor, "H M"]:
    """Of each key's value, as it arrives after the projection behind the heads."""
    assert heard.value is not None
    value = widened(spread(heard.value, heads))[0]  # (H, M, E)
    assert isinstance(heard.source, AttentionModule)
    each = heard.source.output_weight.view(-1, heads, value.shape[-1]).to(value.dtype)  # (W, H, E)
    return torch.stack([(value[head] @ each[:, head].mT).norm(dim=-1) for head in range(heads)])


def _run(argument: str, run: slice, size: int) -> tuple[int, int]:
    if not isinstance(run, slice) or run.step not in (None, 1):
        raise InvalidArgument(argument, wanted="a run, as slice(0, 64)", got=repr(run), remedy="Give first and last.")
    first, last, _ = run.indices(size)
    return first, max(first, last)
