"""`regard.view`: attention captured from any module, as a look: text, a drawing, a page;
`regard.page`: of several.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from regard.core.errors import InvalidArgument
from regard.interpret.look import GeneratedText, Look, Text
from regard.interpret.maps import AttentionMap
from regard.model.capture import AttentionCall
from regard.views.figures import write_page


def view(
    calls: AttentionCall | Sequence[AttentionCall],
    tokens: Sequence[str],
    *,
    queries: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    batch: int = 0,
    title: str = "",
) -> Look:
    """The calls that `regard.capture_attention` yielded, of any module, with a map for each.

    tokens    names of the keys; also of the queries of a call with as many queries as keys
    queries   names of the queries of the other calls, as of cross-attention
    names     of the maps; "attention 1", "attention 2", … by default
    batch     which sequence of the batch
    title     shown above drawings and pages

    >>> import regard, torch
    >>> x = torch.randn(1, 3, 8)
    >>> with regard.capture_attention() as calls:
    ...     y = regard.attend(x, x, x, causal=True)
    >>> regard.view(calls, ["a", "b", "c"])["attention 1"].weights().shape
    torch.Size([1, 3, 3])
    """
    listed = [calls] if isinstance(calls, AttentionCall) else list(calls)
    if not listed or (names is not None and len(names) != len(listed)):
        wanted = "at least one call"
        if names is not None:
            wanted = f"{len(names)} calls, as names"
        raise InvalidArgument("calls", wanted=wanted, got=str(len(listed)), remedy="Capture some.")
    maps = []
    row_count = None if queries is None else len(queries)
    for number, call in enumerate(listed, start=1):
        name = f"attention {number}" if names is None else names[number - 1]
        maps.append(_map(name, number, call, batch, len(tokens), row_count))
    rows = tuple(queries or ())
    output = None
    if rows:
        output = GeneratedText(" ".join(rows), rows, rows, None)
    return Look(title, (Text(tuple(tokens)),), output, tuple(maps), None)


def page(looks: Look | Sequence[Look], path: str | Path) -> None:
    """Write the looks of `regard.view` and `regard.look`, at several inputs,
    as one HTML page to choose from.

    looks   one or several
    path    the file to write

    The page keeps the layer and head that are shown when another input is chosen.
    """
    if isinstance(looks, Look):
        looks = [looks]
    write_page(looks, path)


def _map(
    name: str, number: int, call: AttentionCall, batch: int, keys: int, rows: int | None
) -> AttentionMap:
    count = len(call.spec.query)
    heads = call.spec.query.shape[1]
    n = call.spec.n
    m = call.spec.m
    if not 0 <= batch < count:
        raise InvalidArgument(
            "batch", wanted=f"from 0 to {count - 1}", got=str(batch), remedy="Choose one of these."
        )
    cross = n != m or (rows is not None and rows == n and rows != keys)
    row_names = rows if cross else n
    for argument, given, size in (("tokens", keys, m), ("queries", row_names, n)):
        if given != size:
            wanted = f"{size} names for the {argument} of {name!r}"
            raise InvalidArgument(
                argument, wanted=wanted, got=str(given or 0), remedy="Name each position."
            )
    part = slice(batch, batch + 1)
    value = None if call.value is None else call.value[part]
    one = replace(
        call, spec=call.spec.for_batch(part), lse=call.lse[part], lead=(1, heads), value=value
    )
    causal = call.spec.visible.ahead == 0
    if cross:
        return AttentionMap(name, "cross", "decoder", number, heads, (n, m), causal, one)
    return AttentionMap(name, "self", "encoder", number, heads, (n, m), causal, one)
