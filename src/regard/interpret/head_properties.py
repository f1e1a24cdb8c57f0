"""Measured properties of attention heads over inputs: what each head attends to, and which heads are similar."""

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

# How many positions have their values projected to the whole vocabulary: of all inputs, and of one input at most.
COPIED = 512
COPIED_OF_ONE = 128
PROPERTIES = ("positional", "offset", "induction", "copying", "alignment", "ablation", "group")
COLUMNS = (*MEASURES, *PROPERTIES)


@dataclass(frozen=True)
class HeadProperties:
    """The measured properties of one head. A property that does not apply, or was not measured, is None.

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
        owner = self.means if column in MEASURES else self
        number = getattr(owner, column)
        if number is None or isinstance(number, int):
            return number
        return finite(number)

    def as_dict(self) -> dict[str, Any]:
        values = {name: self.value(name) for name in COLUMNS}
        return {"map": self.site.name, "head": self.means.head, **values}


@dataclass(frozen=True)
class HeadReport:
    """The properties of every head of a model, and the mean distances between heads, in the same order."""

    inputs: int
    heads: tuple[HeadProperties, ...]
    # Jensen-Shannon distances, from 0 to 1; None where positions differ.
    distances: tuple[tuple[float | None, ...], ...]

    def sorted(self, column: str | None) -> "HeadReport":
        """Sort by one of `COLUMNS`, in descending order ("group" in ascending order). None keeps the model's order."""
        if column is None:
            return self
        check_column(column)
        values = [each.value(column) for each in self.heads]
        sign = 1 if column == "group" else -1
        keys = [float("inf") if value is None else sign * value for value in values]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        heads = tuple(self.heads[i] for i in order)
        distances = tuple(tuple(self.distances[i][j] for j in order) for i in order)
        return HeadReport(self.inputs, heads, distances)

    def as_dict(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "heads": [each.as_dict() for each in self.heads],
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
        self.shared_vocabulary = shared_vocabulary
        self.inputs = 0
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
            tokens = None
            if each.kind == "self" and rows == keys:
                tokens = _numbered(rows)
            meter.add_weights(each, tokens)
            output_ids = _output_ids(look, each, self.shared_vocabulary)
            meter.add_copies(each, output_ids, look)
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
            meter = self._maps[name[0]]
            head = name[1]
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
    """Sums over the weights of one map, over all inputs. Memory grows with the length of the longest."""

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
        self.by_offset = _zeros(self.heads, 0)
        self.pairs = _zeros(self.heads, 0)
        self.squares = _zeros(self.heads)
        self.induced = _zeros(self.heads)
        self.ranks = _zeros(self.heads)

    def add_weights(self, each: AttentionMap, tokens: Int[Tensor, " N"] | None) -> None:
        """Add all weights of a map. In self-attention, `tokens` are its rows and its keys; else it is None."""
        self.module = each.part_of[0] if each.part_of else each.name
        (n, m) = each.size
        repeats = torch.zeros(n, dtype=torch.bool)
        self._widen(-(m - 1), n + m)
        for rows, low, weights, mask in each.tiles():
            block = weights.cpu().double()  # (H, R, C)
            visible = torch.ones(1, *block.shape[1:], dtype=torch.float64)  # (1, R, C)
            if mask is not None:
                visible = mask.cpu().double()  # (H, R, C)
            # The place of the tile's first diagonal, which has the smallest key − query.
            start = low - (rows.stop - 1) - (m - n) - self.first
            for sums, values in ((self.by_offset, block), (self.pairs, visible)):
                found = _diagonal_sums(values)
                sums[:, start : start + found.shape[-1]] += found
            self.squares += block.square().sum((1, 2))
            if tokens is not None:
                follows = _follows_same(tokens, rows, low, low + block.shape[-1])
                self.induced += (block * follows).sum((1, 2))
                repeats[rows] |= follows.any(-1)
        self.repeats += int(repeats.sum())

    def add_copies(self, each: AttentionMap, tokens: Int[Tensor, " M"] | None, look: Look) -> None:
        """For some keys, rank all tokens by how much the key's value raises their logit; add its own token's rank."""
        budget = min(COPIED - self.copied, COPIED_OF_ONE)
        call = each.call
        decoder = None
        if look.forward is not None:
            decoder = _decoder(look.forward.model)
        if tokens is None or call is None or decoder is None or budget < 1 or call.value is None:
            return
        assert isinstance(call.source, AttentionModule)
        weight = call.source.output_weight
        project = decoder.project
        if weight.shape[0] != project.weight.shape[1]:
            return
        chosen = torch.linspace(0, len(tokens) - 1, min(len(tokens), budget)).round().long()
        own = tokens[chosen].to(weight.device)  # (P,)
        values = widened(repeat_heads(call.value, self.heads))[0]  # (H, M, E)
        value = values[:, chosen.to(weight.device)]  # (H, P, E)
        by_head = weight.view(weight.shape[0], self.heads, -1).to(value.dtype)  # (W, H, E)
        unembedding = project.weight.mT.to(value.dtype)  # (W, V)
        for head in range(self.heads):
            written = value[head] @ by_head[:, head].mT  # (P, W)
            logits = written @ unembedding  # (P, V)
            raised = logits.gather(1, own[:, None])  # (P, 1)
            below = (logits < raised).sum(1)
            above = (logits > raised).sum(1)
            others = max(1, logits.shape[1] - 1)
            ranks = (below - above).double() / others  # (P,), from -1 to 1
            self.ranks[head] += float(ranks.sum())
        self.copied += len(chosen)

    def positional(self, head: int) -> tuple[float | None, int | None]:
        """η² of the weights by relative position, and the relative position of the largest mean weight."""
        pairs = self.pairs[head]
        sums = self.by_offset[head]
        count = pairs.sum()
        total = sums.sum()
        if not count:
            return None, None
        means = sums / pairs.clamp(min=1)
        within_all = float(self.squares[head] - total**2 / count)
        between = float((sums * means).sum() - total**2 / count)
        # Weights that hardly vary have no variance to explain.
        explained = 0.0
        if not within_all <= 1e-9 * float(self.squares[head]):
            explained = between / within_all
        return max(0.0, min(1.0, explained)), int(means.argmax()) + self.first

    def induction(self, head: int) -> float | None:
        if self.repeats:
            return float(self.induced[head]) / self.repeats
        return None

    def copying(self, head: int) -> float | None:
        if self.copied:
            return float(self.ranks[head]) / self.copied
        return None

    def _widen(self, first: int, count: int) -> None:
        """Make room for `count` relative positions from `first` on."""
        if not self.by_offset.shape[1]:
            self.first = first
        before = max(0, self.first - first)
        after = max(0, first + count - self.first - self.by_offset.shape[1])
        self.first -= before
        pad = torch.nn.functional.pad
        self.by_offset = pad(self.by_offset, (before, after))
        self.pairs = pad(self.pairs, (before, after))


def _diagonal_sums(values: Float[Tensor, "H R C"]) -> Float[Tensor, "H diagonals"]:
    """Sums along the diagonals, from the bottom left (the last row's first key) to the top right one.

    Each row is shifted one to the right of the row below it by a change of shape, so that diagonals become columns.

    >>> _diagonal_sums(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[3., 5., 2.]])
    """
    _, high, wide = values.shape
    diagonals = high + wide - 1
    padded = torch.nn.functional.pad(values.flip(1), (0, high))  # (H, R, C + R)
    shifted = padded.flatten(1)[:, : high * diagonals]
    return shifted.unflatten(1, (high, diagonals)).sum(1)  # type: ignore[no-untyped-call, no-any-return]


def _follows_same(tokens: Int[Tensor, " N"], rows: slice, low: int, high: int) -> Tensor:
    """Which keys low..high-1 follow an earlier occurrence of a row's token: (R, C)."""
    keys = torch.arange(low, high)  # (C,)
    before = tokens[(keys - 1).clamp(min=0)]  # (C,)
    own = torch.arange(rows.start, rows.stop)[:, None]  # (R, 1)
    same = tokens[rows, None] == before  # (R, C)
    return same & (keys > 0) & (keys <= own)


def _numbered(names: Sequence[str]) -> Int[Tensor, " N"]:
    """A number for each name, equal for equal names."""
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(name, len(numbers)) for name in names]
    return torch.tensor(found, dtype=torch.int64)


def _output_ids(
    look: Look, each: AttentionMap, shared_vocabulary: bool
) -> Int[Tensor, " M"] | None:
    """The ids of the tokens that a decoder's map attends to, in the output's vocabulary; None where there are none."""
    forward = look.forward
    if forward is None or each.part != "decoder" or each.key_words is not None:
        return None
    if each.key_side == "output":
        if forward.targets is None:
            return None
        return forward.targets[0].cpu()
    if not shared_vocabulary or forward.source is None:
        return None
    part = forward.source
    if isinstance(forward.source, MultiSource):
        part = forward.source.parts[each.source]
    before = source_encoders(forward.model.encoder)[each.source].cls_tokens
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
