"""A look written to a file: JSON, HTML, or a drawing as SVG or PNG.

Drawings are a heat map, all heads, lines between words, a copy of the image for each word, or a
series over time.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from regard.core.atomic_io import atomic_file
from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.interpret.look import Image, Look
from regard.interpret.maps import AttentionMap
from regard.interpret.series import Series
from regard.views import caption_overlay, html
from regard.views.canvas import CANVASES, SIZE, mixed, shortened
from regard.views.charts import EDGE, LETTERS, RAMP, color, heat_map, text_width
from regard.views.series_drawing import draw_series
from regard.views.terminal import main_map

WHITE = (255, 255, 255)
MOST = 64  # rows or keys of a map that are drawn
MOST_LOOKS = 100  # of one page
# Pixels of a head among others, and points in it.
SMALL = 112
POINTS = 28
ACROSS = 8  # heads in a row
# Pixels from one word to the next, and from side to side.
LINE = 24
REACH = 220
FAINT = 0.1  # the least share of the largest weight that gets a line
ENDINGS = (".json", ".html", *CANVASES)


def check_file(path: Path | None, view: str | None, map: str | None) -> None:
    """Refuse what `write_look` would, before any work is done. None: the look is not written."""
    check_view(view)
    drawn = f"--out with a name in {', '.join(CANVASES)}"
    if path is not None and path.suffix not in ENDINGS:
        wanted = f"a name in {', '.join(ENDINGS)}"
        raise InvalidArgument("out", wanted=wanted, got=str(path), remedy="Choose one of these.")
    if view is not None and (path is None or path.suffix not in CANVASES):
        remedy = "Add it, or leave --view out."
        raise InvalidArgument("view", wanted=drawn, got=str(path or "none"), remedy=remedy)
    if map is not None and path is not None and path.suffix not in CANVASES:
        remedy = "Leave --map out: it has every map."
        raise InvalidArgument("map", wanted=f"{drawn}, or none", got=str(path), remedy=remedy)


def write_page(looks: Sequence[Look], path: Path | str) -> None:
    """Write looks of several inputs as one HTML page, to choose from."""
    if not looks or len(looks) > MOST_LOOKS:
        remedy = "Write several pages." if looks else "Give some."
        wanted = f"from 1 to {MOST_LOOKS}"
        raise InvalidArgument("looks", wanted=wanted, got=str(len(looks)), remedy=remedy)
    with atomic_file(Path(path)) as file:
        file.write(html.page([look.as_dict() for look in looks]).encode(errors="replace"))


def write_look(look: Look, path: Path, *, view: str | None = None, map: str | None = None) -> None:
    """Write a look as .json, .html, .svg or .png; `view` and `map` as in `draw`."""
    if path.suffix in CANVASES:
        draw(look, path, view=view, map=map)
        return
    with atomic_file(path) as file:
        content = look.to_json() if path.suffix == ".json" else look.to_html()
        # An image's file name may hold bytes that are not valid UTF-8.
        file.write(content.encode(errors="replace"))


def draw(look: Look, path: Path | str, *, view: str | None = None, map: str | None = None) -> None:
    """Write a drawing to a file; its ending, .svg or .png, is the format.

    view   one of `VIEWS`: "heat", "heads", "lines", "image", "series". By default "image" for
           attention to an image, "series" for attention over time, else "heat"
    map    the name of one of the look's maps. By default the last cross-attention, or else the last
           map

    Heads chosen in `regard.look`, or all, are averaged; "heads" shows those of every map. At most
    64 rows and 64 keys are drawn, and the title says how many were left out; "series" draws all,
    the largest weight of each span of time.
    """
    path = Path(path)
    if path.suffix not in CANVASES:
        raise InvalidArgument(
            "path", wanted="a name in .svg or .png", got=str(path), remedy="Choose one of these."
        )
    check_view(view)
    if not look.maps:
        raise InvalidArgument(
            "look", wanted="at least one map", got="none", remedy="This model has no attention."
        )
    of = main_map(look.maps)[0] if map is None else look[map]
    own = _own_view(look, of)
    for name, wanted in OF_SOURCES.items():
        if view == name != own:
            remedy = "Draw 'heat' or 'lines'."
            raise InvalidArgument("view", wanted=wanted, got=f"{of.name!r}", remedy=remedy)
    content = VIEWS[view or own](look, of, path.suffix)
    with atomic_file(path) as file:
        file.write(content)


def _own_view(look: Look, of: AttentionMap) -> str:
    """The view that shows what the keys of a map are."""
    source = look.source_of(of)
    if isinstance(source, Image):
        return "image"
    return "series" if isinstance(source, Series) else "heat"


def check_view(view: str | None) -> None:
    if view is not None and view not in VIEWS:
        remedy = nearest(view, VIEWS, listed=True)
        raise InvalidArgument(
            "view", wanted=f"one of {', '.join(VIEWS)}", got=repr(view), remedy=remedy
        )


def heat(look: Look, of: AttentionMap, ending: str) -> bytes:
    weights, rows, keys, left_out = _first_weights(look, of)
    most = float(weights.max()) if weights.numel() else 0.0
    title = f"{_name(of)}; darkest: {most:.0%}{left_out}"
    return heat_map(title, rows, keys, weights.tolist(), CANVASES[ending]).content()


def heads(look: Look, of: AttentionMap, ending: str) -> bytes:
    """All heads of every map; each head's colors are relative to its own largest weight."""
    shown = [
        (f"{each.name}, {head}", points) for each in look.maps for head, points in _thumbnails(each)
    ]
    column = max(SMALL, round(text_width([name for name, _ in shown]))) + EDGE
    row = SMALL + 2 * SIZE + 2 * EDGE
    across = min(len(shown), ACROSS)
    canvas = CANVASES[ending](EDGE + across * column, EDGE + -(-len(shown) // across) * row)
    for i, (name, points) in enumerate(shown):
        left = EDGE + i % across * column
        top = EDGE + i // across * row
        canvas.text((left, top + SIZE / 2), name)
        top += 2 * SIZE
        canvas.box((left - 1, top - 1), (SMALL + 2, SMALL + 2), "#c9c7bd")
        canvas.box((left, top), (SMALL, SMALL), color(0.0))
        high = SMALL / points.shape[0]
        wide = SMALL / points.shape[1]
        for y, line in enumerate((points / points.max().clamp(min=1e-12)).tolist()):
            for x, share in enumerate(line):
                if share >= 0.01:
                    canvas.box((left + x * wide, top + y * high), (wide, high), color(share))
    return canvas.content()


def lines(look: Look, of: AttentionMap, ending: str) -> bytes:
    weights, rows, keys, left_out = _first_weights(look, of)
    title = f"{_name(of)}{left_out}"
    start = EDGE + text_width(rows) + 6
    end = start + REACH
    top = EDGE + 2 * SIZE + LINE / 2
    right = max(end + 6 + text_width(keys), EDGE + text_width([title])) + EDGE
    canvas = CANVASES[ending](right, top + LINE * max(len(rows), len(keys)) - LINE / 2 + EDGE)
    canvas.text((EDGE, EDGE + SIZE / 2), title)
    most = weights.max().clamp(min=1e-12) if weights.numel() else 1.0
    shares = [
        (share, y, x)
        for y, line in enumerate((weights / most).tolist())
        for x, share in enumerate(line)
    ]
    for share, y, x in sorted(shares):  # the largest on top
        if share >= FAINT:
            faded = mixed(WHITE, RAMP[-1], 0.1 + 0.9 * share)
            canvas.line((start, top + LINE * y), (end, top + LINE * x), 0.5 + 2.5 * share, faded)
    for y, row in enumerate(rows):
        canvas.text((start - 6, top + LINE * y), row, anchor="end")
    for x, key in enumerate(keys):
        canvas.text((end + 6, top + LINE * x), key)
    return canvas.content()


def image(look: Look, of: AttentionMap, ending: str) -> bytes:
    source = look.source_of(of)
    weights, rows, _, _ = _first_weights(look, of, most_keys=of.size[1])
    assert isinstance(source, Image)
    regions = weights[:, source.units :].reshape(-1, *source.grid)
    overlay = caption_overlay.Overlay(f"{look.title}, {_name(of)}", source.pixels, rows, regions)
    return caption_overlay.draw(overlay, ending)


def series(look: Look, of: AttentionMap, ending: str) -> bytes:
    source = look.source_of(of)
    assert isinstance(source, Series)
    return draw_series(look, of, source, f"{look.title}, {_name(of)}", ending)


VIEWS: dict[str, Callable[[Look, AttentionMap, str], bytes]] = {
    "heat": heat,
    "heads": heads,
    "lines": lines,
    "image": image,
    "series": series,
}
# What the keys of a map must be for these views.
OF_SOURCES = {
    "image": "a map whose keys are regions of an image",
    "series": "a map whose keys are positions of a series",
}


def _first_weights(
    look: Look, of: AttentionMap, most_keys: int = MOST
) -> tuple[Float[Tensor, "R M"], list[str], list[str], str]:
    """The first rows and keys of the mean over heads, their names,
    and a note on how many more there are.
    """
    row_index = of.shown_rows
    rows, keys = look.names(of)
    weights = of.weights(row_index[:MOST]).mean(0).cpu().nan_to_num(0.0)[:, :most_keys]
    more = {"rows": len(row_index) - MOST, "keys": len(keys) - most_keys}
    note = ", ".join(f"{count:,} {name}" for name, count in more.items() if count > 0)
    names = [shortened(rows[row], LETTERS) for row in row_index[:MOST]]
    shown_keys = [shortened(key, LETTERS) for key in keys[:most_keys]]
    if note:
        note = f"; {note} more"
    return weights, names, shown_keys, note


@torch.no_grad()
def _thumbnails(of: AttentionMap) -> list[tuple[int, Float[Tensor, "_ _"]]]:
    """Each head's weights on a coarse grid, the largest of each cell, in one pass over tiles."""
    n, m = of.size
    high = min(n, POINTS)
    wide = min(m, POINTS)
    points = torch.zeros(of.heads, high * wide)
    for rows, low, weights, _ in of.tiles():
        y = torch.arange(rows.start, rows.stop) * high // n
        x = torch.arange(low, low + weights.shape[-1]) * wide // m
        cells = (y[:, None] * wide + x).flatten().expand(of.heads, -1)
        points.scatter_reduce_(1, cells, weights.float().cpu().flatten(1), "amax")
    return [(head, points[head].view(high, wide)) for head in of.shown_heads]


def _name(of: AttentionMap) -> str:
    heads = of.shown_heads
    which = f"head {heads[0]}" if len(heads) == 1 else f"mean of {len(heads)} heads"
    return f"{of.name}, {which}"
