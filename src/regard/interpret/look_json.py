"""Maps and heads as plain values, for the JSON that `Look.to_json` documents."""

import base64
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.shapes import Tensor
from regard.interpret.maps import AttentionMap
from regard.interpret.summaries import MEASURES, Head

VERSION = 1
LIMIT = 2_000_000  # weights of a map that is written whole
TOP = 16  # largest weights of each row of a larger map


def head_as_dict(head: Head) -> dict[str, Any]:
    return {"head": head.head} | {name: finite(getattr(head, name)) for name in MEASURES}


def map_as_dict(each: AttentionMap, limit: int) -> dict[str, Any]:
    """A map with all its weights; of more than `limit` weights, with the largest of each row."""
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


def finite(number: float) -> float | None:
    return number if isfinite(number) else None
