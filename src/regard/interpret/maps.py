"""Attention maps: one for each attention module of a forward pass, its weights computed on request.

A map keeps the captured call (queries, keys, log-sum-exp), so its memory grows with N + M; what a request allocates
grows with the weights that were asked for.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Int, Shaped, Tensor
from regard.interpret.sites import AttentionSite, attention_sites
from regard.interpret.summaries import RowSummaries, Tile, summarize
from regard.interpret.tokens_to_words import TokenGroups
from regard.kernels.attention import weights as exact
from regard.kernels.attention.blockwise import BLOCK
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec, FixedRows, repeat_heads, widened
from regard.model.capture import AttentionCall, Pick, capture_attention, picked
from regard.model.eval_mode import evaluating
from regard.model.interfaces import AttentionModule, Source
from regard.model.seq2seq import Model

CHUNK = 1024  # rows of logits whose log-softmax is in memory at once
TOP = 16  # largest weights of each row in the JSON of a map that is too large to be written whole


@dataclass(frozen=True, repr=False, eq=False)
class AttentionMap(AttentionSite):
    """The attention of one module for one input: heads × rows (queries) × keys.

    name            "encoder 2", "decoder 1 cross", "pool"
    kind            "self", "cross", "pool", or "grid" for self-attention over image regions
    part, layer     the part of the model, and the layer in it, from 1
    heads           number of heads
    size            rows and keys: tokens, words or image regions
    causal          whether a row attends to no later key
    over_queries    whether its keys, and in an encoder its queries, are the states of learned queries
    query_sources   if it attends to several sources: the ones that learned queries have summarized
    call            the captured call that weights are computed from; None: only `row_summaries` were kept
    row_summaries   entropy, distance and largest weights of each row, where they were computed
    row_words, key_words   the tokens of each word, where rows or keys are words
    punctuation     which keys have neither a letter nor a digit
    default_rows, default_heads   what `weights` returns if it is called without rows or heads
    part_of         if it is the map of one source of several: its module, and the range of its keys there
    source          the index of the source that the keys belong to
    """

    heads: int
    size: tuple[int, int]
    causal: bool
    call: AttentionCall | None = None
    row_summaries: RowSummaries | None = None
    row_words: TokenGroups | None = None
    key_words: TokenGroups | None = None
    punctuation: Tensor | None = None
    default_rows: Int[Tensor, " rows"] | None = None
    default_heads: Int[Tensor, " heads"] | None = None
    part_of: tuple[str, int, int] | None = None

    def __repr__(self) -> str:
        rows, keys = self.size
        return f"AttentionMap({self.name!r}, {self.heads} heads, {rows:,} × {keys:,})"

    @property
    def shown_rows(self) -> list[int]:
        """The rows that `weights` returns if none are named."""
        if self.default_rows is None:
            return list(range(self.size[0]))
        return self.default_rows.tolist()

    @property
    def shown_heads(self) -> list[int]:
        """The heads that `weights` returns if none are named."""
        if self.default_heads is None:
            return list(range(self.heads))
        return self.default_heads.tolist()

    @property
    def is_of_module(self) -> bool:
        """Whether a module attended; not where the weights follow from the output (`given_weights`)."""
        return self.call is None or self.call.source is not None

    def by_source(self, lengths: Sequence[int]) -> list["AttentionMap"]:
        """A map for each source, which has `lengths[i]` keys. The weights of a row sum to one over all these maps."""
        call = self._captured()
        maps = []
        first = 0
        assert call.value is not None
        for source, length in enumerate(lengths):
            last = first + length
            value = call.value[:, :, first:last]
            part = replace(call, spec=call.spec.for_keys(first, last), value=value)
            of_source = replace(
                self,
                name=f"{self.name} source {source + 1}",
                source=source,
                over_queries=source in self.query_sources,
                size=(self.size[0], length),
                call=part,
                part_of=(self.name, first, last),
            )
            maps.append(of_source)
            first = last
        return maps

    @torch.no_grad()
    def weights(self, rows: Pick = None, heads: Pick = None) -> Float[Tensor, "H R M"]:
        """Exact weights of these rows and heads; by default the ones chosen in `regard.look`, or all.

        A word's row is the mean over its tokens' rows; a word's key is the sum over its tokens' keys.
        """
        row_index, head_index = self._picked(rows, heads)
        return self._weights(self._call_of(head_index), row_index).float()

    @torch.no_grad()
    def tile(self, rows: slice, keys: slice, heads: Pick = None) -> Float[Tensor, "H R C"]:
        """The weights of a range of rows and a range of keys; nothing else is computed."""
        first, last = _range("rows", rows, self.size[0])
        low, high = _range("keys", keys, self.size[1])
        if self.row_words is not None or self.key_words is not None:
            return self.weights(range(first, last), heads)[..., low:high]
        _, head_index = self._picked(None, heads)
        call = self._call_of(head_index)
        scores = call.spec.scores(slice(first, last), low, high)  # (1, H, R, C)
        lse = call.lse[:, :, first:last, None]  # (1, H, R, 1)
        return scores.sub_(lse).exp_()[0].float()

    def summary(self, top: int = 16) -> RowSummaries:
        """Measures of every row of every head with its `top` largest weights; rows × keys are never in memory."""
        if type(top) is not int or top < 0:
            raise InvalidArgument("top", wanted="a count", got=repr(top), remedy="Use 0 for none.")
        if self.row_summaries is not None:
            if min(top, self.size[1]) > self.row_summaries.top_weights.shape[-1]:
                self._captured()
            return self.row_summaries.with_top(top)
        return summarize(self.heads, self.size, self.tiles(), top, self.punctuation)

    @torch.no_grad()
    def weighted(self, rows: Pick = None, heads: Pick = None) -> Float[Tensor, "H R M"]:
        """Norms of the vectors that are summed: ‖weight · value · W_out‖ (https://arxiv.org/abs/2004.10102)."""
        row_index, head_index = self._picked(rows, heads)
        norms = _value_norms(self._captured(), self.heads)  # (H, M)
        if head_index is not None:
            norms = norms[head_index]
        return self._weights(self._call_of(head_index), row_index, norms).float()

    def merged(self, of_tokens: Float[Tensor, "H n m"]) -> Float[Tensor, "H N M"]:
        """Values of pairs of tokens, merged into words as this map's weights are.

        of_tokens   (heads, tokens of the rows, tokens of the keys); the result is (heads, rows, keys)
        """
        return self._merged(of_tokens, self.row_words)

    @torch.no_grad()
    def tiles(
        self,
    ) -> Iterator[tuple[slice, int, Float[Tensor, "H R C"], Bool[Tensor, "_ R C"] | None]]:
        """All weights in tiles: rows, the first key, weights, and which keys each row may attend to (None: all).

        A word may attend to the words to which it gives a weight above zero.
        """
        call = self._captured()
        spec = call.spec
        (n, m) = self.size
        if self.row_words is None and self.key_words is None:
            for _, rows, low, weights in exact.weight_blocks(spec, call.lse):
                high = low + weights.shape[-1]
                mask = spec.visible.tile(rows, low, high, n, m, weights.device)
                if mask is not None:
                    mask = mask.expand_as(weights)[0]
                yield rows, low, weights[0], mask
            return
        # A word has several tokens, each a row of weights: eight are taken to be enough for most.
        step = max(1, BLOCK // (8 * self.heads * max(1, spec.m)))
        for first in range(0, n, step):
            rows = slice(first, min(first + step, n))
            index = torch.arange(first, rows.stop, device=call.lse.device)
            weights = self._weights(call, index)  # (H, R, M)
            yield rows, 0, weights, weights > 0

    def as_dict(self, limit: int) -> dict[str, Any]:
        """The map in the format of `Look.to_json`. Of more than `limit` weights, only the largest of each row."""
        if self.call is not None and prod(self._shape) <= limit:
            # A copy, so that what its owner changes is not in the next one. Texts in it are not copied.
            return deepcopy(self._with_weights)
        count = TOP
        if self.row_summaries is not None:
            count = min(TOP, self.row_summaries.top_weights.shape[-1])
        summary = self.summary(count)
        weights = summary.top_weights  # (H, N, top)
        keys = summary.top_keys  # (H, N, top)
        for axis, index in enumerate((self.default_heads, self.default_rows)):
            if index is not None:
                weights = weights.index_select(axis, index.cpu())
                keys = keys.index_select(axis, index.cpu())
        k = weights.shape[-1]
        unsigned_keys = keys.clamp(min=0).numpy().astype("<u4")
        top = {
            "k": k,
            "shape": [*self._shape[:2], k],
            "keys": _in_base64(unsigned_keys),
            "weights": _as_uint16(weights),
        }
        return self._described(None, top, summary)

    @cached_property
    def _with_weights(self) -> dict[str, Any]:
        """The map in the form of JSON, with every weight. Looks that share a map compute this once."""
        weights = self.weights()  # (H, N, M)
        if self.default_rows is None and self.default_heads is None:
            # All weights are there already: they need not be computed again for the summary.
            tiles = [self._tile_of(weights)]
            summary = summarize(self.heads, self.size, tiles, 0, self.punctuation)
        else:
            summary = self.summary(0)
        described = {"shape": self._shape, "data": _as_uint16(weights)}
        return self._described(described, None, summary)

    def _tile_of(self, weights: Float[Tensor, "H N M"]) -> Tile:
        """All weights as one tile."""
        (n, m) = self.size
        rows = slice(0, self.size[0])
        if self.row_words is not None or self.key_words is not None:
            return rows, 0, weights, weights > 0
        spec = self._captured().spec
        mask = spec.visible.tile(rows, 0, m, n, m, weights.device)
        if mask is not None:
            # The map is that of the first sequence, also where each channel of a series is one.
            mask = mask.expand(spec.query.shape[0], self.heads, n, m)[0]
        return rows, 0, weights, mask

    @property
    def _shape(self) -> list[int]:
        """Heads, rows and keys that are shown."""
        return [len(self.shown_heads), len(self.shown_rows), self.size[1]]

    def _described(
        self, weights: dict[str, Any] | None, top: dict[str, Any] | None, summary: RowSummaries
    ) -> dict[str, Any]:
        heads = summary.heads()
        return {
            "name": self.name,
            "kind": self.kind,
            "part": self.part,
            "layer": self.layer,
            "source": self.source,
            "heads": self._shape[0],
            "query_side": self.query_side,
            "key_side": self.key_side,
            "causal": self.causal,
            "rows": None if self.default_rows is None else self.shown_rows,
            "weights": weights,
            "top": top,
            "summary": [heads[head].as_dict() for head in self.shown_heads],
        }

    def _captured(self) -> AttentionCall:
        if self.call is None:
            wanted = "a map whose queries and keys were kept"
            remedy = f"Look again without top=, or at this layer alone: layers=[{self.layer}]."
            raise InvalidArgument(
                f"map {self.name!r}", wanted=wanted, got="its summary alone", remedy=remedy
            )
        return self.call

    def _call_of(self, heads: Tensor | None) -> AttentionCall:
        call = self._captured()
        if heads is None:
            return call
        spec = call.spec.for_heads(heads)
        return replace(call, spec=spec, lse=call.lse[:, heads], lead=(1, len(heads)))

    def _picked(self, rows: Pick, heads: Pick) -> tuple[Tensor | None, Tensor | None]:
        """The indices of rows and heads, or the default ones where none are named."""
        device = torch.device("cpu")
        if self.call is not None:
            device = self.call.lse.device
        row_index = self.default_rows
        if rows is not None:
            row_index = picked("rows", rows, self.size[0], device)
        head_index = self.default_heads
        if heads is not None:
            head_index = picked("heads", heads, self.heads, device)
        return row_index, head_index

    def _weights(
        self, call: AttentionCall, rows: Tensor | None, norms: Tensor | None = None
    ) -> Tensor:
        """Weights of these rows, multiplied by the norm of each key's value if given; tokens merged into words."""
        groups = None
        if self.row_words is not None:
            # Rows are words: their tokens are computed, and merged below.
            if rows is None:
                rows = torch.arange(self.size[0], device=call.lse.device)
            rows, groups = self.row_words.select(rows)
        chosen = slice(0, call.spec.n) if rows is None else rows
        weights = exact.weights(call.spec, chosen, call.lse)[0]  # (H, R, M)
        if norms is not None:
            weights = weights * norms[:, None]
        return self._merged(weights, groups)

    def _merged(self, values: Float[Tensor, "H _ _"], row_words: TokenGroups | None) -> Tensor:
        if self.key_words is not None:
            values = self.key_words.sum(values, 2)
        if row_words is None:
            return values
        return row_words.mean(values, 1)


@dataclass(frozen=True)
class ForwardPass:
    """A model, and a batch of one input with its output (teacher forcing). It can be run again."""

    model: Model
    source: Source | None  # None for a language model
    # The decoder's input, tokens or vectors, for a model with a decoder.
    targets: Shaped[Tensor, "1 T *each"] | None
    # The token predicted after each target, the tag of each word, the label, or the place of each number of an
    # output; None if there is no output.
    labels: Int[Tensor, " places"] | None
    # Computes the log-probability of each label where it is not a softmax of its own logits, as with a CRF.
    score: Callable[[Tensor, Tensor], Tensor] | None = None
    # Chooses the labels of the output from the logits, where none are given; None: the most likely.
    choose: Callable[[Tensor], Tensor] | None = None
    # Of a model that reads each channel of its input as a sequence: the one whose attention is shown.
    sequence: int = 0

    def __call__(self) -> Tensor:
        """Logits: (T, V), (words, tags), or (1, labels)."""
        if self.targets is not None:
            generated: Tensor = self.model(self.source, self.targets)[0]
            return generated
        logits: Tensor = self.model(self.source)
        return logits[0] if logits.dim() == 3 else logits

    def chosen(self, logits: Tensor) -> Int[Tensor, " T"]:
        """The labels that were given, or else those of the output."""
        if self.labels is not None:
            return self.labels
        if self.choose is None:
            return logits.argmax(-1)
        return self.choose(logits)

    def log_probabilities(self, logits: Tensor, labels: Tensor) -> Float[Tensor, " T"]:
        """The log-probability of each of these labels."""
        score = log_probabilities if self.score is None else self.score
        return score(logits, labels)

    def output_maps(self, logits: Tensor, labels: Tensor) -> list[AttentionMap]:
        """Maps that follow from the output and not from a module that attends, such as an alignment."""
        return []


class MapRecorder:
    """A capture callback that collects one map for each attention module of a forward pass.

    select   which sites to record
    finish   the maps to keep of each map, called as soon as its module is done; may reduce it to a summary, so that the
             call's tensors are released before the next module runs
    sequence   the one of a batch whose attention is recorded

    The steps of a recurrent decoder, which attend to the same keys, become one map.
    """

    def __init__(
        self,
        model: nn.Module,
        select: Callable[[AttentionSite], bool] = lambda site: True,
        finish: Callable[[AttentionMap], Sequence[AttentionMap]] = lambda recorded: [recorded],
        sequence: int = 0,
    ) -> None:
        self.sequence = sequence
        self.sites = attention_sites(model)
        self.select = select
        self.finish = finish
        self.maps: list[AttentionMap] = []
        self._steps: list[AttentionCall] = []

    def record(self, forward: ForwardPass) -> Tensor:
        """Run a forward pass under capture; its logits."""
        with torch.no_grad(), evaluating(forward.model), capture_attention(self):
            logits = forward()
            self.close()
        return logits

    def __call__(self, call: AttentionCall) -> None:
        if self._steps and not _continues(self._steps[-1], call):
            self.close()
        source = call.source
        if not isinstance(source, AttentionModule) or source not in self.sites:
            return
        if self.select(self.sites[source]):
            self._steps.append(call)

    def close(self) -> None:
        """Complete the last map."""
        if not self._steps:
            return
        call = concatenated(self._steps)
        self._steps = []
        if call.lead[0] > 1:
            call = call.of_sequence(self.sequence)
        assert isinstance(call.source, AttentionModule)
        spec = call.spec
        site = self.sites[call.source]
        recorded = AttentionMap(
            **vars(site),
            heads=call.lead[1],
            size=(spec.n, spec.m),
            causal=spec.visible.ahead == 0,
            call=call,
        )
        self.maps += self.finish(recorded)


def given_weights(name: str, weights: Float[Tensor, "N M"]) -> AttentionMap:
    """A map of weights that no module computes, from positions of the output to those of the source."""
    rows, keys = weights.shape
    query = weights.new_zeros(1, 1, rows, 1)
    key = weights.new_zeros(1, 1, keys, 1)
    fixed = FixedRows(torch.arange(rows, device=weights.device), weights[None, None])
    spec = AttentionSpec(DotScoreFunction(1.0), query, key, AttentionMask(), fixed=fixed)
    call = AttentionCall(None, spec, weights.new_zeros(1, 1, rows), (1, 1))
    return AttentionMap(
        name, "cross", "decoder", 1, heads=1, size=(rows, keys), causal=False, call=call
    )


def log_probabilities(
    logits: Float[Tensor, "T V"], labels: Int[Tensor, " T"]
) -> Float[Tensor, " T"]:
    """The log-probability of each label, computed a chunk of rows at a time to bound memory."""
    chunks = zip(torch.split(logits, CHUNK), torch.split(labels, CHUNK), strict=True)
    found = []
    for rows, wanted in chunks:
        scores = rows.float().log_softmax(-1)  # (CHUNK, V)
        found.append(scores.gather(-1, wanted[:, None])[:, 0])
    return torch.cat(found)


def _continues(last: AttentionCall, call: AttentionCall) -> bool:
    """Whether a call is the next step of a recurrent decoder: of the same module, over the same keys."""
    a = last.spec
    b = call.spec
    if last.source is not call.source:
        return False
    same_keys = a.key.data_ptr() == b.key.data_ptr() and a.key.shape == b.key.shape
    return same_keys and a.bias is None and not a.visible.banded


def concatenated(steps: Sequence[AttentionCall]) -> AttentionCall:
    """Calls with the same keys, one step after another, as one call with all queries."""
    first = steps[0]
    spec = first.spec
    lse = first.lse
    if len(steps) > 1:
        query = torch.cat([each.spec.query for each in steps], 2)
        fixed = FixedRows.concatenated([each.spec for each in steps])
        spec = replace(spec, query=query, fixed=fixed)
        lse = torch.cat([each.lse for each in steps], 2)
    return replace(first, spec=spec, lse=lse, lead=tuple(spec.query.shape[:2]))


def _value_norms(call: AttentionCall, heads: int) -> Float[Tensor, "H M"]:
    """Norms of each key's value after the module's output projection."""
    assert call.value is not None
    value = widened(repeat_heads(call.value, heads))[0]  # (H, M, E)
    assert isinstance(call.source, AttentionModule)
    weight = call.source.output_weight
    by_head = weight.view(-1, heads, value.shape[-1]).to(value.dtype)  # (W, H, E)
    norms = []
    for head in range(heads):
        projected = value[head] @ by_head[:, head].mT  # (M, W)
        norms.append(projected.norm(dim=-1))
    return torch.stack(norms)


def _as_uint16(weights: Tensor) -> str:
    scaled = weights.cpu().double().nan_to_num(0.0).clamp(0, 1).mul(65535).round()
    return _in_base64(scaled.numpy().astype("<u2"))


def _in_base64(numbers: NDArray[np.generic]) -> str:
    return base64.b64encode(numbers.tobytes()).decode()


def _range(argument: str, given: slice, size: int) -> tuple[int, int]:
    if not isinstance(given, slice) or given.step not in (None, 1):
        remedy = "Give first and last."
        raise InvalidArgument(
            argument, wanted="a range, as slice(0, 64)", got=repr(given), remedy=remedy
        )
    first, last, _ = given.indices(size)
    return first, max(first, last)
