"""A look as a drawing, SVG or PNG: a heat map, heads side by side, lines from words to words, a picture per word."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.cells import cell_len

from regard.core.atomic_io import atomic_file
from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.interpret.look import Image, Look
from regard.interpret.maps import AttentionMap
from regard.views import caption_overlay
from regard.views.canvas import SIZE, Canvas, PngCanvas, SvgCanvas
from regard.views.terminal import telling

# From white to dark blue, ever darker: told apart by brightness alone, whatever colours an eye sees.
RAMP = ((255, 254, 248), (239, 227, 162), (181, 170, 116), (95, 100, 112), (0, 34, 78))
LIGHT = 0.69  # from this share on, letters on it are white
EDGE = 12  # pixels around all
CELL = 32  # of a weight
MOST = 64  # rows or keys of a map that are drawn one by one
SMALL, POINTS = 112, 28  # pixels of a head among others, and points in it
ACROSS = 8  # heads side by side
LINE, REACH = 24, 220  # from one word to the next, and from side to side
FAINT = 0.1  # the least share of the largest weight that gets a line

SHEETS: dict[str, type[Canvas]] = {".svg": SvgCanvas, ".png": PngCanvas}


def draw(look: Look, path: Path | str, *, view: str | None = None, map: str | None = None) -> None:
    """Into a file whose ending says as what.

    view   one of `VIEWS`: "heat", "heads", "lines", "picture". Without one, where words looked on a picture if there is
           one, and else a heat map
    map    which of the look's maps, by its name. Without one, the last look at the source, or else the last of all

    Heads that the look was asked for, or all, are drawn as their mean, but for "heads", which shows those of every map.
    At most 64 rows and 64 keys are drawn one by one, and those left out are told.
    """
    path = Path(path)
    if path.suffix not in SHEETS:
        raise InvalidArgument("path", wanted="a name in .svg or .png", got=str(path), remedy="Choose one of these.")
    check_view(view)
    if not look.maps:
        raise InvalidArgument("look", wanted="at least one map", got="none", remedy="This model attends to nothing.")
    of = telling(look.maps)[0] if map is None else look[map]
    regions = isinstance(look.source, Image) and of.asked == "source"
    if view == "picture" and not regions:
        wanted, remedy = "a map that asks a picture", "Draw 'heat' or 'lines'."
        raise InvalidArgument("view", wanted=wanted, got=f"{of.name!r}, which does not", remedy=remedy)
    content = VIEWS[view or ("picture" if regions else "heat")](look, of, path.suffix)
    with atomic_file(path) as file:
        file.write(content)


def check_view(view: str | None) -> None:
    if view is not None and view not in VIEWS:
        remedy = nearest(view, VIEWS)
        raise InvalidArgument("view", wanted=f"one of {', '.join(VIEWS)}", got=repr(view), remedy=remedy)


def heat(look: Look, of: AttentionMap, form: str) -> bytes:
    weights, rows, keys, left_out = _beginning(look, of)
    most = float(weights.max()) if weights.numel() else 0.0
    left, top = EDGE + _width(rows) + 6, EDGE + 2 * SIZE + 0.87 * _width(keys) + 8
    wide, high = CELL * len(keys), CELL * len(rows)
    title = f"{_name(of)}; darkest: {most:.0%}{left_out}"
    right = max(0.5 * _width(keys[-1:]) - CELL / 2, EDGE)
    sheet = SHEETS[form](max(left + wide + right, EDGE + _width([title])), top + high + EDGE)
    sheet.text((EDGE, EDGE + SIZE / 2), title)
    for x, key in enumerate(keys):
        sheet.slanted((left + CELL * (x + 0.6), top - 5), key)
    for y, (row, line) in enumerate(zip(rows, weights.tolist(), strict=True)):
        middle = top + CELL * (y + 0.5)
        sheet.text((left - 6, middle), row, anchor="end")
        for x, weight in enumerate(line):
            share = weight / most if most else 0.0
            sheet.box((left + CELL * x, top + CELL * y), (CELL, CELL), colour(share))
            if weight >= 0.005:
                ink = "#ffffff" if share > LIGHT else "#000000"
                sheet.text((left + CELL * (x + 0.5), middle), f"{100 * weight:.0f}", anchor="middle", fill=ink)
    return sheet.content()


def heads(look: Look, of: AttentionMap, form: str) -> bytes:
    """Of every map, each head's colours by its own largest weight."""
    shown = [(f"{each.name}, {head}", points) for each in look.maps for head, points in _small(each)]
    column, row = max(SMALL, round(_width([name for name, _ in shown]))) + EDGE, SMALL + 2 * SIZE + 2 * EDGE
    across = min(len(shown), ACROSS)
    sheet = SHEETS[form](EDGE + across * column, EDGE + -(-len(shown) // across) * row)
    for i, (name, points) in enumerate(shown):
        left, top = EDGE + i % across * column, EDGE + i // across * row
        sheet.text((left, top + SIZE / 2), name)
        top += 2 * SIZE
        sheet.box((left - 1, top - 1), (SMALL + 2, SMALL + 2), "#c9c7bd")
        sheet.box((left, top), (SMALL, SMALL), colour(0.0))
        high, wide = SMALL / points.shape[0], SMALL / points.shape[1]
        for y, line in enumerate((points / points.max().clamp(min=1e-12)).tolist()):
            for x, share in enumerate(line):
                if share >= 0.01:
                    sheet.box((left + x * wide, top + y * high), (wide, high), colour(share))
    return sheet.content()


def lines(look: Look, of: AttentionMap, form: str) -> bytes:
    weights, rows, keys, left_out = _beginning(look, of)
    title = f"{_name(of)}{left_out}"
    start = EDGE + _width(rows) + 6
    end, top = start + REACH, EDGE + 2 * SIZE + LINE / 2
    right = max(end + 6 + _width(keys), EDGE + _width([title])) + EDGE
    sheet = SHEETS[form](right, top + LINE * max(len(rows), len(keys)) - LINE / 2 + EDGE)
    sheet.text((EDGE, EDGE + SIZE / 2), title)
    most = weights.max().clamp(min=1e-12) if weights.numel() else 1.0
    shares = [(share, y, x) for y, line in enumerate((weights / most).tolist()) for x, share in enumerate(line)]
    for share, y, x in sorted(shares):  # the heaviest above
        if share >= FAINT:
            sheet.line((start, top + LINE * y), (end, top + LINE * x), 0.5 + 2.5 * share, _faded(share))
    for y, row in enumerate(rows):
        sheet.text((start - 6, top + LINE * y), row, anchor="end")
    for x, key in enumerate(keys):
        sheet.text((end + 6, top + LINE * x), key)
    return sheet.content()


def picture(look: Look, of: AttentionMap, form: str) -> bytes:
    assert isinstance(look.source, Image)
    source, (weights, rows, _, _) = look.source, _beginning(look, of, most_keys=of.size[1])
    regions = weights[:, source.units :].reshape(-1, *source.grid)
    drawing = caption_overlay.Drawing(f"{look.title}, {_name(of)}", source.pixels, rows, regions)
    return caption_overlay.svg(drawing).encode() if form == ".svg" else caption_overlay.png(drawing)


VIEWS: dict[str, Callable[[Look, AttentionMap, str], bytes]] = {
    "heat": heat,
    "heads": heads,
    "lines": lines,
    "picture": picture,
}


def colour(share: float) -> str:
    """The ramp's, from 0 to 1."""
    at = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    return _hex([a + (b - a) * (at - low) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True)])


def _faded(share: float) -> str:
    """The ramp's last colour, mixed with white."""
    part = 0.1 + 0.9 * share
    return _hex([255 + (value - 255) * part for value in RAMP[-1]])


def _hex(values: Sequence[float]) -> str:
    return "#" + "".join(f"{round(value):02x}" for value in values)


def _beginning(
    look: Look, of: AttentionMap, most_keys: int = MOST
) -> tuple[Float[Tensor, "R M"], list[str], list[str], str]:
    """The first rows and keys of the mean over heads, their names, and how many more there are."""
    chosen = of.chosen[0]
    which = list(range(of.size[0])) if chosen is None else chosen.tolist()
    rows, keys = look.names(of)
    weights = of.weights(which[:MOST]).mean(0).cpu().nan_to_num(0.0)[:, :most_keys]
    more = {"rows": len(which) - MOST, "keys": len(keys) - most_keys}
    told = ", ".join(f"{count:,} {name}" for name, count in more.items() if count > 0)
    names = [_short(rows[row]) for row in which[:MOST]]
    return weights, names, [_short(key) for key in keys[:most_keys]], f"; {told} more" if told else ""


@torch.no_grad()
def _small(of: AttentionMap) -> list[tuple[int, Float[Tensor, "_ _"]]]:
    """Each head's largest weights on a coarse grid, in one pass over all of them, none of which is kept."""
    (n, m), chosen = of.size, of.chosen[1]
    high, wide = min(n, POINTS), min(m, POINTS)
    points = torch.zeros(of.heads, high * wide)
    for rows, low, seen, _ in of.tiles():
        y = torch.arange(rows.start, rows.stop) * high // n
        x = torch.arange(low, low + seen.shape[-1]) * wide // m
        places = (y[:, None] * wide + x).flatten().expand(of.heads, -1)
        points.scatter_reduce_(1, places, seen.float().cpu().flatten(1), "amax")
    which = range(of.heads) if chosen is None else chosen.tolist()
    return [(head, points[head].view(high, wide)) for head in which]


def _name(of: AttentionMap) -> str:
    chosen = of.chosen[1]
    which = list(range(of.heads)) if chosen is None else chosen.tolist()
    return f"{of.name}, {f'head {which[0]}' if len(which) == 1 else f'mean of {len(which)} heads'}"


def _short(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"


def _width(names: Sequence[str]) -> float:
    """Of the widest, about."""
    return 0.62 * SIZE * max(map(cell_len, names), default=0)
