"""Measured properties of attention heads over inputs: what each head attends to, and how alike heads are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.sequence import MultiSource, Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.interpret.head_similarity import HeadDistances, grouped
from regard.interpret.look import Look
from regard.interpret.maps import AttentionMap
from regard.interpret.sites import AttentionSite
from regard.interpret.summaries import MEASURES, Head, HeadMeans, HeadName, finite
from regard.kernels.attention.spec import repeat_heads, widened
from regard.model.interfaces import AttentionModule, Decoder
from regard.model.multi_source import source_encoders

# Of all inputs: positions whose values are projected to the whole vocabulary, and of one of them at most.
COPIED, COPIED_OF_ONE = 512, 128
PROPERTIES = ("positional", "offset", "induction", "copying", "alignment", "ablation", "group")
COLUMNS = (*MEASURES, *PROPERTIES)


@dataclass(frozen=True)
class HeadProperties:
    """What was measured of one head. A property that does not apply, or that was not measured, is None.

    means       entropy, distance, the weight of the previous token, of punctuation and others: the mean over inputs
    positional  the share of the variance of weights that relative positions explain (η² of a one-way analysis of
                variance over all pairs that may attend): 1 where a weight depends on key − query alone. Voita et al.
                (https://arxiv.org/abs/1905.09418) call heads positional that attend to one relative position
    offset      the relative position, key − query, of the largest mean weight: −1 for the previous token
    induction   the weight of keys that follow an earlier occurrence of the row's token, in rows whose token occurred
                before: prefix matching (Olsson et al., https://arxiv.org/abs/2209.11895)
    copying     the rank of a token among all tokens by how much attending to it raises their logits, from −1 (the
                least) through 0 (the mean of a random head) to 1 (always the most): the OV circuit (Elhage et al.,
                https://transformer-circuits.pub/2021/framework), W_U · W_O · value, without the norms that follow
    alignment   1 − the alignment error rate of the head's links with reference links, at its better step
    ablation    the change of the loss where the head's output is zero
    group       a number that heads with similar rows share (`regard.interpret.head_similarity`)
    """

    site: AttentionSite
    means: Head
    positional: float | None
    offset: int | None
    induction: float | None
    copying: float | None
    alignment: float | None
    ablation: float | None
    group: int

    @property
    def name(self) -> HeadName:
        return self.site.name, self.means.head

    def value(self, column: str) -> float | int | None:
        """One of `COLUMNS`."""
        number = getattr(self.means if column in MEASURES else self, column)
        return number if number is None or isinstance(number, int) else finite(number)

    def as_dict(self) -> dict[str, Any]:
        values = {name: self.value(name) for name in COLUMNS}
        return {"map": self.site.name, "head": self.means.head, **values}


@dataclass(frozen=True)
class HeadReport:
    """The properties of every head of a model, and the mean distances between heads, in the same order."""

    inputs: int
    heads: tuple[HeadProperties, ...]
    distances: tuple[
        tuple[float | None, ...], ...
    ]  # Jensen-Shannon, 0 to 1; None where positions differ

    def sorted(self, column: str | None) -> "HeadReport":
        """By one of `COLUMNS`, in descending order; by "group", in ascending order; None: in the model's order."""
        if column is None:
            return self
        check_column(column)
        values = [each.value(column) for each in self.heads]
        sign = 1 if column == "group" else -1
        keys = [float("inf") if value is None else sign * value for value in values]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        distances = tuple(tuple(self.distances[i][j] for j in order) for i in order)
        return HeadReport(self.inputs, tuple(self.heads[i] for i in order), distances)

    def as_dict(self) -> dict[str, Any]:
        heads = [each.as_dict() for each in self.heads]
        return {
            "inputs": self.inputs,
            "heads": heads,
            "distances": [list(row) for row in self.distances],
        }


def check_column(column: str) -> None:
    """Refuse a name that no column has."""
    if column not in COLUMNS:
        wanted = f"one of {', '.join(COLUMNS)}"
        remedy = nearest(str(column), COLUMNS, listed=True)
        raise InvalidArgument("sort", wanted=wanted, got=repr(column), remedy=remedy)


class HeadMeter:
    """Measures heads, one look after another; weights are streamed in blocks of rows, exact, and none are kept.

    shared_vocabulary   whether the tokens of the sources have the ids of the output's tokens: copying from a source
    """

    def __init__(self, *, shared_vocabulary: bool = False) -> None:
        self.shared_vocabulary, self.inputs = shared_vocabulary, 0
        self._means = HeadMeans()
        self._maps: dict[str, _MapMeter] = {}
        self._distances = HeadDistances()

    @torch.no_grad()
    def add(self, look: Look) -> None:
        """Add the attention of one input."""
        self.inputs += 1
        self._means.add((each.name, head) for each, head in look.heads())
        for each in look.maps:
            meter = self._maps.setdefault(each.name, _MapMeter(_site(each), each.heads))
            rows, keys = look.names(each)
            tokens = _numbered(rows) if each.kind == "self" and rows == keys else None
            meter.add_weights(each, tokens)
            meter.add_copies(each, _output_ids(look, each, self.shared_vocabulary), look)
        self._distances.add(look.maps)

    def report(
        self,
        *,
        alignment: Mapping[HeadName, float] | None = None,
        ablation: Mapping[HeadName, float] | None = None,
    ) -> HeadReport:
        """The properties of all heads; `ablation` by the name of the module, which several sources share."""
        means = self._means.means()
        distances = self._distances.matrix(list(means))
        heads = []
        for (name, mean), group in zip(means.items(), grouped(distances), strict=True):
            meter, head = self._maps[name[0]], name[1]
            positional, offset = meter.positional(head)
            heads.append(
                HeadProperties(
                    site=meter.site,
                    means=mean,
                    positional=positional,
                    offset=offset,
                    induction=meter.induction(head),
                    copying=meter.copying(head),
                    alignment=(alignment or {}).get(name),
                    ablation=(ablation or {}).get((meter.module, head)),
                    group=group,
                )
            )
        return HeadReport(self.inputs, tuple(heads), tuple(map(tuple, distances)))


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@dataclass
class _MapMeter:
    """Sums over the weights of one map, of all inputs. Memory grows with the length of the longest."""

    site: AttentionSite
    heads: int
    module: str = ""
    first: int = 0  # the relative position, key − query, that the first element of the sums by offset belongs to
    by_offset: Float[Tensor, "H offsets"] = field(default_factory=lambda: _zeros(0))
    pairs: Float[Tensor, "H offsets"] = field(default_factory=lambda: _zeros(0))
    squares: Float[Tensor, " H"] = field(default_factory=lambda: _zeros(0))
    induced: Float[Tensor, " H"] = field(default_factory=lambda: _zeros(0))
    repeats: int = 0  # rows whose token occurred before
    ranks: Float[Tensor, " H"] = field(default_factory=lambda: _zeros(0))
    copied: int = 0  # positions whose values were projected to the vocabulary

    def __post_init__(self) -> None:
        self.by_offset, self.pairs = _zeros(self.heads, 0), _zeros(self.heads, 0)
        self.squares, self.induced, self.ranks = (_zeros(self.heads) for _ in range(3))

    def add_weights(self, each: AttentionMap, tokens: Int[Tensor, " N"] | None) -> None:
        """Add all weights of a map; `tokens` are those of its rows and keys, of self-attention."""
        self.module = each.part_of[0] if each.part_of else each.name
        (n, m), repeats = each.size, torch.zeros(each.size[0], dtype=torch.bool)
        self._widen(-(m - 1), n + m)
        for rows, low, weights, mask in each.tiles():
            block = weights.cpu().double()
            visible = (
                torch.ones(1, *block.shape[1:], dtype=torch.float64)
                if mask is None
                else mask.cpu().double()
            )
            across = low - (rows.stop - 1) - (m - n) - self.first  # of the tile's first diagonal
            for sums, values in ((self.by_offset, block), (self.pairs, visible)):
                found = _diagonal_sums(values)
                sums[:, across : across + found.shape[-1]] += found
            self.squares += block.square().sum((1, 2))
            if tokens is not None:
                follows = _follows_same(tokens, rows, low, low + block.shape[-1])
                self.induced += (block * follows).sum((1, 2))
                repeats[rows] |= follows.any(-1)
        self.repeats += int(repeats.sum())

    def add_copies(self, each: AttentionMap, tokens: Int[Tensor, " M"] | None, look: Look) -> None:
        """Add the ranks of some keys' tokens by how much their values raise each token's logit."""
        budget = min(COPIED - self.copied, COPIED_OF_ONE)
        call, decoder = each.call, None if look.forward is None else _decoder(look.forward.model)
        if tokens is None or call is None or decoder is None or budget < 1 or call.value is None:
            return
        assert isinstance(call.source, AttentionModule)
        weight, project = call.source.output_weight, decoder.project
        if weight.shape[0] != project.weight.shape[1]:
            return
        chosen = torch.linspace(0, len(tokens) - 1, min(len(tokens), budget)).round().long()
        own = tokens[chosen].to(weight.device)  # (P,)
        value = widened(repeat_heads(call.value, self.heads))[0][
            :, chosen.to(weight.device)
        ]  # (H, P, E)
        by_head = weight.view(weight.shape[0], self.heads, -1).to(value.dtype)  # (W, H, E)
        for head in range(self.heads):
            logits = (value[head] @ by_head[:, head].mT) @ project.weight.mT.to(
                value.dtype
            )  # (P, V)
            raised = logits.gather(1, own[:, None])
            below, above = (logits < raised).sum(1), (logits > raised).sum(1)
            self.ranks[head] += float(
                ((below - above).double() / max(1, logits.shape[1] - 1)).sum()
            )
        self.copied += len(chosen)

    def positional(self, head: int) -> tuple[float | None, int | None]:
        """η² of the weights by relative position, and the relative position of the largest mean weight."""
        pairs, sums = self.pairs[head], self.by_offset[head]
        count, total = pairs.sum(), sums.sum()
        if not count:
            return None, None
        means = sums / pairs.clamp(min=1)
        within_all = float(self.squares[head] - total**2 / count)
        between = float((sums * means).sum() - total**2 / count)
        explained = 0.0 if within_all <= 1e-9 * float(self.squares[head]) else between / within_all
        return max(0.0, min(1.0, explained)), int(means.argmax()) + self.first

    def induction(self, head: int) -> float | None:
        return float(self.induced[head]) / self.repeats if self.repeats else None

    def copying(self, head: int) -> float | None:
        return float(self.ranks[head]) / self.copied if self.copied else None

    def _widen(self, first: int, count: int) -> None:
        """Make room for so many relative positions from this one."""
        if not self.by_offset.shape[1]:
            self.first = first
        before = max(0, self.first - first)
        after = max(0, first + count - self.first - self.by_offset.shape[1])
        self.first -= before
        pad = torch.nn.functional.pad
        self.by_offset, self.pairs = (
            pad(self.by_offset, (before, after)),
            pad(self.pairs, (before, after)),
        )


def _diagonal_sums(values: Float[Tensor, "H R C"]) -> Float[Tensor, "H diagonals"]:
    """Sums along the diagonals, from the bottom left (the last row's first key) to the top right one.

    Each row is shifted one to the right of the row below it by a change of shape, so that diagonals become columns.

    >>> _diagonal_sums(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[3., 5., 2.]])
    """
    _, high, wide = values.shape
    padded = torch.nn.functional.pad(values.flip(1), (0, high)).flatten(1)[
        :, : high * (high + wide - 1)
    ]
    return padded.unflatten(1, (high, high + wide - 1)).sum(1)  # type: ignore[no-untyped-call, no-any-return]


def _follows_same(tokens: Int[Tensor, " N"], rows: slice, low: int, high: int) -> Tensor:
    """Which keys low..high-1 follow an earlier occurrence of a row's token: (R, C)."""
    keys = torch.arange(low, high)
    before = tokens[(keys - 1).clamp(min=0)]
    own = torch.arange(rows.start, rows.stop)[:, None]
    return (tokens[rows, None] == before) & (keys > 0) & (keys <= own)


def _numbered(names: Sequence[str]) -> Int[Tensor, " N"]:
    """A number for each name, equal for equal names."""
    numbers: dict[str, int] = {}
    return torch.tensor(
        [numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64
    )


def _output_ids(
    look: Look, each: AttentionMap, shared_vocabulary: bool
) -> Int[Tensor, " M"] | None:
    """Ids in the output's vocabulary of the tokens that a decoder's map attends to; None where there are none."""
    forward = look.forward
    if forward is None or each.part != "decoder" or each.key_words is not None:
        return None
    if each.key_side == "output":
        return None if forward.targets is None else forward.targets[0].cpu()
    if not shared_vocabulary or forward.source is None:
        return None
    parts = forward.source.parts if isinstance(forward.source, MultiSource) else (forward.source,)
    part, before = (
        parts[each.source],
        source_encoders(forward.model.encoder)[each.source].cls_tokens,
    )
    if not isinstance(part, Tokens) or before or part.ids.shape[1] != each.size[1]:
        return None
    return part.ids[0].cpu()


def _decoder(model: torch.nn.Module) -> Decoder[Any] | None:
    return next((module for module in model.modules() if isinstance(module, Decoder)), None)


def _site(each: AttentionMap) -> AttentionSite:
    return AttentionSite(
        each.name,
        each.kind,
        each.part,
        each.layer,
        source=each.source,
        over_queries=each.over_queries,
        query_sources=each.query_sources,
    )
