"""A look as plain values, for JSON: pages and other programs read this format (`Look.to_json` documents it)."""

import base64
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.core.shapes import Tensor
from regard.data.images import webp
from regard.interpret.maps import AttentionMap
from regard.interpret.summaries import MEASURES, Head

if TYPE_CHECKING:
    from regard.interpret.look import GeneratedText, Image, Label, Look, Text

VERSION = 1
LIMIT = 2_000_000  # weights of a map that is written whole
TOP = 16  # largest weights of each row of a larger map


def look_as_dict(look: "Look", limit: int) -> dict[str, Any]:
    return {
        "version": VERSION,
        "title": look.title,
        "source": None if look.source is None else _source_as_dict(look.source),
        "output": None if look.output is None else _output_as_dict(look.output),
        "maps": [_map_as_dict(each, limit) for each in look.maps],
    }


def head_as_dict(head: Head) -> dict[str, Any]:
    return {"head": head.head} | {name: _finite(getattr(head, name)) for name in MEASURES}


def _source_as_dict(source: "Text | Image") -> dict[str, Any]:
    if source.kind == "text":
        return {"kind": "text", "tokens": source.tokens}
    height, width, _ = source.pixels.shape
    data = f"data:image/webp;base64,{base64.b64encode(webp(source.pixels)).decode()}"
    shape = {"width": width, "height": height, "grid": list(source.grid), "units": source.units}
    return {"kind": "image", **shape, "data": data}


def _output_as_dict(output: "GeneratedText | Label") -> dict[str, Any]:
    if output.kind == "label":
        return {"label": output.label, "score": _finite(output.score)}
    scores = None if output.scores is None else [_finite(score) for score in output.scores]
    return {"text": output.text, "tokens": output.tokens, "scores": scores, "read": output.read}


def _map_as_dict(each: AttentionMap, limit: int) -> dict[str, Any]:
    rows, heads = each.default_rows, each.default_heads
    shape = [len(each.shown_heads), len(each.shown_rows), each.size[1]]
    weights = top = None
    if each.call is not None and shape[0] * shape[1] * shape[2] <= limit:
        weights = {"shape": shape, "data": _as_uint16(each.weights())}
        summary = each.summary(0)
    else:
        kept = each.row_summaries
        summary = each.summary(TOP if kept is None else min(TOP, kept.top_weights.shape[-1]))
        largest = [summary.top_weights, summary.top_keys]
        for axis, index in enumerate((heads, rows)):
            largest = largest if index is None else [x.index_select(axis, index.cpu()) for x in largest]
        k = largest[0].shape[-1]
        keys = largest[1].clamp(min=0).numpy().astype("<u4")
        top = {"k": k, "shape": [*shape[:2], k], "keys": _in_base64(keys), "weights": _as_uint16(largest[0])}
    lines = summary.heads()
    return {
        "name": each.name,
        "kind": each.kind,
        "part": each.part,
        "layer": each.layer,
        "heads": shape[0],
        "query_side": each.query_side,
        "key_side": each.key_side,
        "causal": each.causal,
        "rows": None if rows is None else rows.tolist(),
        "weights": weights,
        "top": top,
        "summary": [head_as_dict(lines[head]) for head in each.shown_heads],
    }


def _as_uint16(weights: Tensor) -> str:
    scaled = weights.cpu().double().nan_to_num(0.0).clamp(0, 1).mul(65535).round()
    return _in_base64(scaled.numpy().astype("<u2"))


def _in_base64(numbers: NDArray[np.generic]) -> str:
    return base64.b64encode(numbers.tobytes()).decode()


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None
