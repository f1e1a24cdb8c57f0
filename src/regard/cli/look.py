"""`regard look`."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Beam, DecodeChanges, Device, Json, ModelFolder, Truncate

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor
    from regard.interpret.look import Look


def look(
    model: ModelFolder,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="A text, or the path of an image [default: lines of stdin].")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Look at this output instead of the model's own.")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Look at each line of this file.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Look at a split of the run's data, or at a table, or two files, of inputs and outputs. "
            "A .tsv or .csv begins with a line of names.",
        ),
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="Only this layer; may be repeated.")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Only this head, from 0; may be repeated.")
    ] = None,
    map_: Annotated[
        str | None,
        typer.Option("--map", metavar="NAME", help="Show or draw this map: 'encoder 2', 'decoder 1 cross'."),
    ] = None,
    rows: Annotated[str | None, typer.Option(metavar="A:B", help="Only these rows, from 0: 3, or 0:8.")] = None,
    words: Annotated[bool, typer.Option("--words", help="Merge tokens into words.")] = False,
    numbers: Annotated[bool, typer.Option("--numbers", help="Also print weights in hundredths.")] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="A line for every head, averaged over all inputs.")
    ] = False,
    sort: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Sort the summary by this column, in descending order.")
    ] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="The loss on the data without each head, and its change.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the look to this file: .json, .html, .svg or .png.")
    ] = None,
    view: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of an SVG or PNG: heat, heads, lines or picture.")
    ] = None,
    beam: Beam = None,
    set_: DecodeChanges = None,
    truncate: Truncate = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show what a model attends to while it reads an input and generates its output. Weights are exact.

    Without --map or --layer, the mean head of the last cross-attention is shown; --json and pages have all maps.

    Examples: regard look runs/translation "A dog runs."

    regard look runs/captions dog.jpg --words

    regard look runs/translation "A dog runs." --output "Ein Hund rennt." --layer 2 --head 0 --numbers

    regard look runs/translation "A dog runs." --out page.html

    regard look runs/translation "A dog runs." --map "encoder 2"

    regard look runs/translation "A dog runs." --out heads.svg --view heads

    regard look runs/translation --data test --summary --sort confidence
    """
    from regard.core.errors import InvalidArgument
    from regard.inference.load import load

    if sum(given is not None for given in (text, file, data)) > 1:
        wanted, remedy = "one of TEXT, --file and --data", "Leave the others out."
        raise InvalidArgument("text", wanted=wanted, got="several", remedy=remedy)
    if ablate and not data:
        raise InvalidArgument("ablate", wanted="data to compute a loss on", got="none", remedy="Add --data test.")
    if sort is not None and not summary:
        raise InvalidArgument("sort", wanted="--summary, whose lines to sort", got="none", remedy="Add it.")
    if map_ is not None and (summary or ablate or as_json):
        raise InvalidArgument("map", wanted="one look to show", got="a table or JSON", remedy="Leave it out.")
    if out is not None and (summary or ablate):
        raise InvalidArgument("out", wanted="one look to write", got="a table", remedy="Redirect stdout to a file.")
    write = _writer(out, view, map_)
    predictor = load(model, device=device)
    if ablate:
        _ablate(predictor, data or [], as_json)
        return
    options: dict[str, Any] = {"layers": layer, "heads": head, "rows": _rows(rows), "words": words}
    options |= {"truncate": truncate, **search_options(beam, set_)}
    pairs = _pairs(predictor, text, output, file, data)
    if summary:
        _summarize(predictor, pairs, options, sort, as_json)
        return
    from regard.api import look
    from regard.views.terminal import look_text

    width, color = shutil.get_terminal_size().columns, sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if write is not None:
        inputs = list(islice(pairs, 2))
        if len(inputs) != 1:
            got, remedy = "several" if inputs else "none", "Give TEXT, or use --json for several."
            raise InvalidArgument("out", wanted="one input", got=got, remedy=remedy)
        pairs = iter(inputs)
    for number, (each, given) in enumerate(pairs):
        result = look.look(predictor, each, output=given, **options)
        if write is not None:
            write(result)
        elif as_json:
            print(result.to_json())
        else:
            shown = look_text(result, map=map_, every=bool(layer), width=width, color=color, numbers=numbers)
            print("\n" * bool(number) + shown)
        sys.stdout.flush()


def search_options(beam: int | None, changes: list[str] | None) -> dict[str, Any]:
    """Options of the search for an output; only keys of [decode]."""
    from regard.cli.options import decode_options
    from regard.core.config import nearest
    from regard.core.errors import InvalidArgument
    from regard.decoding.config import DecodeConfig

    options = decode_options(changes, beam_size=beam)
    for key in options.keys() - DecodeConfig.__dataclass_fields__:
        known = nearest(key, DecodeConfig.__dataclass_fields__)
        raise InvalidArgument("set", wanted="a key of [decode]", got=key, remedy=known)
    return options


def _pairs(
    predictor: "Predictor", text: str | None, output: str | None, file: Path | None, data: list[str] | None
) -> Iterator[tuple[Any, str | None]]:
    """Inputs, each with its output if one is given."""
    from regard.api import look
    from regard.core.errors import InvalidArgument
    from regard.data.text import lines

    if data:
        if output is not None:
            raise InvalidArgument("output", wanted="none beside --data, which has them", got=output, remedy="Leave it.")
        return look.pairs_of(predictor.recipe, data)
    if text is not None:
        return iter([(text, output)])
    return ((line, output) for line in lines(file or "/dev/stdin") if line)


def _rows(text: str | None) -> slice | list[int] | None:
    from regard.core.errors import InvalidArgument

    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        return slice(int(first or 0), int(last) if last else None) if colon else [int(first)]
    except ValueError:
        wanted = "a number, or two around a colon"
        raise InvalidArgument("rows", wanted=wanted, got=text, remedy="For example 0:8.") from None


def _summarize(
    predictor: "Predictor", pairs: Iterable[Any], options: dict[str, Any], sort: str | None, as_json: bool
) -> None:
    from regard.api import look
    from regard.interpret.summaries import sorted_by
    from regard.views.terminal import head_table

    sorted_by([], sort)  # refuse an unknown column before the work
    lines = sorted_by(look.summarize_heads(predictor, pairs, **options), sort)
    if as_json:
        print(json.dumps([{"map": site.name, **head.as_dict()} for site, head in lines]))
    else:
        print(head_table(lines))


def _ablate(predictor: "Predictor", data: list[str], as_json: bool) -> None:
    from regard.api.ablate import ablate
    from regard.core.text_table import text_table

    whole, ablated = ablate(predictor, data)
    ablated.sort(key=lambda each: -each.change)
    if as_json:
        lines = [
            {"map": each.site.name, "head": each.head, "loss": each.loss, "change": each.change} for each in ablated
        ]
        print(json.dumps({"loss": whole, "heads": lines}))
        return
    rows = [(each.site.name, str(each.head), f"{each.loss:.4f}", f"{each.change:+.4f}") for each in ablated]
    print(text_table([("map", "head", "loss without", "change"), ("all heads", "", f"{whole:.4f}", ""), *rows]))


def _writer(out: Path | None, view: str | None, map: str | None) -> "Callable[[Look], object] | None":
    """Writes a look to a file in the format of its ending; refuses unknown ones before any work is done."""
    from regard.core.errors import InvalidArgument
    from regard.views.canvas import CANVASES
    from regard.views.figures import check_view
    from regard.views.files import WRITERS

    check_view(view)
    if view is not None and (out is None or out.suffix not in CANVASES):
        wanted, remedy = f"--out with a name in {', '.join(CANVASES)}", "Add it, or leave --view out."
        raise InvalidArgument("view", wanted=wanted, got=str(out) if out else "none", remedy=remedy)
    if out is None:
        return None
    if out.suffix not in WRITERS:
        wanted = f"a name in {', '.join(WRITERS)}"
        raise InvalidArgument("out", wanted=wanted, got=str(out), remedy="Choose one of these.")
    if map is not None and out.suffix not in CANVASES:
        wanted, remedy = f"--out with a name in {', '.join(CANVASES)}, or none", "Leave --map out: it has every map."
        raise InvalidArgument("map", wanted=wanted, got=str(out), remedy=remedy)
    options = {key: value for key, value in (("view", view), ("map", map)) if value is not None}
    return lambda result: WRITERS[out.suffix](result, out, **options)
