"""A look at one input: what was read, what was said, and a map of every module that attended on the way."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.images import Pixels, webp
from regard.interpret.attributions import RepeatableForward, slopes
from regard.interpret.maps import AttentionMap
from regard.interpret.summaries import MEASURES, Head, sorted_by
from regard.model.capture import Pick, picked

VERSION = 1
LIMIT = 2_000_000  # weights of a map that are told one by one
TOP = 16  # and of each row of a larger one


@dataclass(frozen=True)
class Text:
    """Tokens that were read, or the words they make up; a learned unit before them is one of them."""

    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Image:
    """A picture as the model read it, and how many rows and columns of regions it made of it."""

    pixels: Pixels  # (height, width, 3)
    grid: tuple[int, int]
    units: int  # learned states before the regions

    @property
    def tokens(self) -> tuple[str, ...]:
        """Names of the regions, row by row."""
        rows, columns = self.grid
        return ("<unit>",) * self.units + tuple(f"{y + 1},{x + 1}" for y in range(rows) for x in range(columns))


@dataclass(frozen=True)
class GeneratedText:
    """A sequence that was said, with its end where it came, and what was read before each of its tokens."""

    text: str
    tokens: tuple[str, ...]
    read: tuple[str, ...]  # places of a decoder's self-attention, as rows and as keys
    scores: tuple[float, ...] | None  # log-probabilities; of a word, the sum of its tokens'


@dataclass(frozen=True)
class Label:
    """A label that was chosen, and its log-probability."""

    label: str
    score: float


@dataclass(frozen=True)
class Look:
    """What a model attended to as it read one input and gave its output, or one that was given.

    Layers count from 1, as in the names of maps; rows, keys and heads from 0, as in tensors.
    """

    title: str
    source: Text | Image | None
    output: GeneratedText | Label | None
    maps: tuple[AttentionMap, ...]
    forced: RepeatableForward = field(repr=False)

    def __getitem__(self, name: str) -> AttentionMap:
        """The map of this name: "encoder 2", "decoder 1 cross", "pool"."""
        for each in self.maps:
            if each.name == name:
                return each
        names = [each.name for each in self.maps]
        remedy = nearest(name, names) if names else "This look has none."
        raise InvalidArgument("map", wanted=f"one of {', '.join(names)}", got=repr(name), remedy=remedy)

    def names(self, of: AttentionMap) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the rows and the keys of a map are."""
        return self._side(of, of.asks, of.size[0]), self._side(of, of.asked, of.size[1])

    def _side(self, of: AttentionMap, side: str, count: int) -> tuple[str, ...]:
        found: tuple[str, ...] = ()
        if side == "source" and self.source is not None:
            found = self.source.tokens
        elif side == "output" and isinstance(self.output, GeneratedText):
            found = self.output.read if of.kind == "self" else self.output.tokens
        return found if len(found) == count else tuple(map(str, range(1, count + 1)))

    def heads(self, sort: str | None = None) -> list[tuple[AttentionMap, Head]]:
        """A line for every head of every map; sorted by a measure, the largest first."""
        return sorted_by([(each, head) for each in self.maps for head in _shown(each)], sort)

    @torch.no_grad()
    def rollout(self, rows: Pick = None, part: str = "encoder") -> Float[Tensor, "R M"]:
        """How much of each place arrives at a row after all layers of self-attention, residual paths included.

        The mean over heads, and the place itself for the other half, layer upon layer
        (https://arxiv.org/abs/2005.00928). Memory grows with the rows that are asked for.
        """
        layers = [each for each in self.maps if each.kind == "self" and each.part == part]
        if not layers:
            raise InvalidArgument(
                "rollout", wanted=f"self-attention in the {part}", got="none", remedy="Try part='encoder' or 'decoder'."
            )
        n = layers[0].size[0]
        which = torch.arange(n) if rows is None else picked("rows", rows, n, torch.device("cpu"))
        found = torch.zeros(len(which), n)
        found[torch.arange(len(which)), which] = 1.0
        for layer in reversed(layers):
            through = torch.zeros_like(found)
            for part_rows, low, seen, _ in layer.tiles():
                mean = seen.mean(0).float().cpu()  # (R, C)
                through[:, low : low + mean.shape[1]] += found[:, part_rows] @ mean
            found = (found + through) / 2
        return found

    def attributions(self, of: int | None = None) -> dict[str, Float[Tensor, "H N M"]]:
        """Gradient × weight, by map: how much of the output's log-probability, or of one token's, each weight holds.

        To first order, all that follows from the weight taken into account. The model runs once more, with every
        weight in memory.
        """
        known = slopes(self.forced, of)
        return {each.name: each.merged(known[each.name].weights * known[each.name].gradients) for each in self.maps}

    def as_dict(self, *, limit: int = LIMIT) -> dict[str, Any]:
        """Everything as plain values, for `to_json`."""
        return {
            "version": VERSION,
            "title": self.title,
            "source": _told_source(self.source),
            "output": _told_output(self.output),
            "maps": [_told(each, limit) for each in self.maps],
        }

    def to_json(self, *, limit: int = LIMIT) -> str:
        """As JSON, for pages and other programs.

            {"version": 1, "title": str,
             "source": {"kind": "text", "tokens": [str]}
                     | {"kind": "image", "width": int, "height": int, "grid": [rows, columns], "units": int,
                        "data": "data:image/webp;base64,…"}
                     | null,
             "output": {"text": str, "tokens": [str], "scores": [float] | null, "read": [str]}
                     | {"label": str, "score": float}
                     | null,
             "maps": [{"name": str, "kind": "self" | "cross" | "pool" | "grid",
                       "part": "encoder" | "decoder" | "pool", "layer": int, "heads": int,
                       "asks": "source" | "output" | "pool", "asked": "source" | "output",
                       "causal": bool, "rows": [int] | null,
                       "weights": {"shape": [heads, rows, keys], "data": base64} | null,
                       "top": {"k": int, "shape": [heads, rows, k], "keys": base64, "weights": base64} | null,
                       "summary": [{"head": int, "entropy": float, "evenness": float, "distance": float,
                                    "confidence": float, "first": float, "last": float, "own": float,
                                    "previous": float, "signs": float}]}]}

        Weights are little-endian uint16, 65535 times the weight, rounded; keys are little-endian uint32. A map of more
        than `limit` weights has its largest few of each row, `top`, in their place. `rows` are those told where not all
        are. Scores are log-probabilities. Rows and keys of a decoder's self-attention stand for `read`: what was read
        there, before the token of the same place in `tokens` was said. A number that is not finite is null.
        """
        return json.dumps(self.as_dict(limit=limit), ensure_ascii=False, allow_nan=False)

    def to_html(self, *, limit: int = LIMIT) -> str:
        """As one page that needs nothing else: point at words, switch layers and heads, sort, pin, zoom, save."""
        from regard.views.html import page

        return page(self.as_dict(limit=limit))

    def _repr_html_(self) -> str:
        from regard.views.html import framed

        return framed(self.to_html())


def _told_source(source: Text | Image | None) -> dict[str, Any] | None:
    if source is None:
        return None
    if isinstance(source, Text):
        return {"kind": "text", "tokens": source.tokens}
    height, width, _ = source.pixels.shape
    data = f"data:image/webp;base64,{base64.b64encode(webp(source.pixels)).decode()}"
    whole = {"kind": "image", "width": width, "height": height}
    return {**whole, "grid": list(source.grid), "units": source.units, "data": data}


def _told_output(output: GeneratedText | Label | None) -> dict[str, Any] | None:
    if output is None:
        return None
    if isinstance(output, Label):
        return {"label": output.label, "score": _finite(output.score)}
    scores = None if output.scores is None else [_finite(score) for score in output.scores]
    return {"text": output.text, "tokens": output.tokens, "scores": scores, "read": output.read}


def _told(each: AttentionMap, limit: int) -> dict[str, Any]:
    rows, heads = each.chosen
    shape = [each.heads if heads is None else len(heads), each.size[0] if rows is None else len(rows), each.size[1]]
    weights = top = None
    if each.heard is not None and shape[0] * shape[1] * shape[2] <= limit:
        weights = {"shape": shape, "data": _packed(each.weights())}
        summary = each.summary(0)
    else:
        summary = each.summary(TOP if each.kept is None else min(TOP, each.kept.top_weights.shape[-1]))
        found = [summary.top_weights, summary.top_keys]
        for axis, pick in enumerate((heads, rows)):
            found = found if pick is None else [x.index_select(axis, pick.cpu()) for x in found]
        k = found[0].shape[-1]
        keys = found[1].clamp(min=0).numpy().astype("<u4")
        top = {"k": k, "shape": [*shape[:2], k], "keys": _in_base64(keys), "weights": _packed(found[0])}
    lines = summary.heads()
    return {
        "name": each.name,
        "kind": each.kind,
        "part": each.part,
        "layer": each.layer,
        "heads": shape[0],
        "asks": each.asks,
        "asked": each.asked,
        "causal": each.causal,
        "rows": None if rows is None else rows.tolist(),
        "weights": weights,
        "top": top,
        "summary": [told_head(lines[head]) for head in (range(each.heads) if heads is None else heads.tolist())],
    }


def told_head(head: Head) -> dict[str, Any]:
    return {"head": head.head} | {name: _finite(getattr(head, name)) for name in MEASURES}


def _shown(each: AttentionMap) -> Iterator[Head]:
    chosen = each.chosen[1]
    lines: Sequence[Head] = each.summary(0).heads()
    yield from lines if chosen is None else (lines[head] for head in chosen.tolist())


def _packed(weights: Tensor) -> str:
    scaled = weights.cpu().double().nan_to_num(0.0).clamp(0, 1).mul(65535).round()
    return _in_base64(scaled.numpy().astype("<u2"))


def _in_base64(numbers: NDArray[np.generic]) -> str:
    return base64.b64encode(numbers.tobytes()).decode()


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None
