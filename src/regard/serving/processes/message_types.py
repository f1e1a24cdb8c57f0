"""Works, results and errors as MessagePack (https://msgpack.org): types by name, from a list that is fixed here."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.msgpack import Ext

from regard.core import errors
from regard.core.errors import EngineFailed, RegardError
from regard.serving.http.errors import RequestRefused
from regard.serving.scheduler.attention_ranges import InspectedAttention, InspectedMap
from regard.serving.scheduler.jobs import (
    AttentionPart,
    Embedding,
    Generation,
    Inspection,
    Scoring,
    Usage,
)
from regard.studio.data import HeadsOfInput
from regard.studio.jobs import Alternatives, BeamTree, LiveLook, LookPage
from regard.studio.long_inputs import OpenLongInput, OverviewStep, RowOfMap, TileOfMap
from regard.tasks.pipeline import Output, SequenceScore, TaggedSpan, TokenLogprob

TYPES: dict[str, type] = {
    each.__name__: each
    for each in (
        Generation, AttentionPart, Scoring, Embedding, Inspection, LiveLook, LookPage, Alternatives,
        BeamTree,
        HeadsOfInput, OpenLongInput, OverviewStep, RowOfMap, TileOfMap,
        Output, TaggedSpan, TokenLogprob, SequenceScore, InspectedAttention, InspectedMap, Usage,
    )
}  # fmt: skip
ERRORS: dict[str, type[RegardError]] = {
    each.__name__: each
    for each in (*vars(errors).values(), RequestRefused)
    if isinstance(each, type) and issubclass(each, RegardError)
}
OBJECT, ARRAY, TENSOR, ERROR = 1, 2, 3, 4  # extension types
PLAIN = (str, bytes, int, float, bool, type(None))
PLAIN_TYPES = frozenset(PLAIN)


def packed(value: Any) -> Any:
    """A value with its dataclasses, arrays and errors as extensions of MessagePack."""
    if type(value) in PLAIN_TYPES or isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [packed(each) for each in value]
    if isinstance(value, Mapping):
        return {name: packed(each) for name, each in value.items()}
    if is_dataclass(value):
        kind: type = type(value)
        name, content = kind.__name__, {}
        for field, default in _defaults(kind):
            each = getattr(value, field)
            if each is not default:  # most fields of most values are
                content[field] = each if type(each) in PLAIN_TYPES else packed(each)
        return Ext(OBJECT, msgspec.msgpack.encode((name, content)))
    if isinstance(value, np.ndarray):
        return Ext(ARRAY, msgspec.msgpack.encode((value.dtype.str, value.shape, value.tobytes())))
    if isinstance(value, torch.Tensor):
        array = value.detach().to("cpu", torch.float32).contiguous().numpy()
        return Ext(TENSOR, msgspec.msgpack.encode((array.dtype.str, array.shape, array.tobytes())))
    assert isinstance(value, BaseException), f"{type(value).__name__} has no format"
    return _packed_error(value)


@lru_cache(maxsize=64)
def _defaults(kind: type) -> list[tuple[str, Any]]:
    """The fields of a dataclass, each with its default value."""
    assert TYPES.get(kind.__name__) is kind, f"{kind.__name__} is not listed in TYPES"
    return [(each.name, each.default) for each in fields(kind)]


def unpacked(code: int, content: memoryview) -> Any:
    """The hook of a decoder for extensions."""
    parts = msgspec.msgpack.decode(content, ext_hook=unpacked)
    if code == OBJECT:
        name, found = parts
        for key, each in found.items():
            if type(each) is list:  # fields of dataclasses hold tuples
                found[key] = _as_tuple(each)
        return TYPES[name](**found)
    if code == ERROR:
        return _unpacked_error(*parts)
    dtype, shape, data = parts
    array = np.frombuffer(data, dtype).reshape(shape).copy()  # writable, as PyTorch wants it
    return torch.from_numpy(array) if code == TENSOR else array


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _packed_error(error: BaseException) -> Ext:
    """By the nearest class of ours: another process may not have the class of a plug-in."""
    if not isinstance(error, RegardError):
        error = EngineFailed(error)
    name = next(each.__name__ for each in type(error).__mro__ if ERRORS.get(each.__name__) is each)
    content = {key: each for key, each in vars(error).items() if isinstance(each, (*PLAIN, dict))}
    return Ext(ERROR, msgspec.msgpack.encode((name, str(error), content)))


def _unpacked_error(name: str, message: str, content: dict[str, Any]) -> RegardError:
    """As it was raised: not made anew from arguments, which its class may have formatted into the message."""
    error: RegardError = ERRORS[name].__new__(ERRORS[name], message)
    if "status" in content:
        content["status"] = HTTPStatus(content["status"])
    vars(error).update(content)
    return error
