"""The verb that looks inside."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer


def look(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run, or of a checkpoint.")],
    text: Annotated[
        str | None, typer.Argument(help="A text, or the path of a picture; lines of stdin if there is none.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Look at how the model would give this output.")] = None,
    file: Annotated[Path | None, typer.Option(help="Look at each line of this file.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Look at a split of the run's data, or at a table, or two files, of inputs and outputs. "
            "A .tsv or .csv begins with a line of names."
        ),
    ] = None,
    layer: Annotated[list[int] | None, typer.Option(min=1, help="Only this layer; may be repeated.")] = None,
    head: Annotated[list[int] | None, typer.Option(min=0, help="Only this head, from 0; may be repeated.")] = None,
    map_: Annotated[
        str | None, typer.Option("--map", help="Show or draw this one, by its name: 'encoder 2', 'decoder 1 cross'.")
    ] = None,
    rows: Annotated[str | None, typer.Option(metavar="A:B", help="Only these rows, from 0: 3, or 0:8.")] = None,
    words: Annotated[bool, typer.Option("--words", help="Words in place of the tokens they are cut into.")] = False,
    numbers: Annotated[bool, typer.Option("--numbers", help="Tell weights in hundredths, too.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="A line for every head, means over all inputs.")] = False,
    sort: Annotated[str | None, typer.Option(help="Sort it by a column, the largest first.")] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="How much worse each prediction of the data is without a head.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the look to this file; its ending says as what.")] = None,
    view: Annotated[str | None, typer.Option(help="In an SVG or PNG: heat, heads, lines or picture.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses that are followed at once.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key of the recipe's [decode]: longest=20.")
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Drop the end of lines that are too long.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Where a model looks as it reads an input and gives its output, exactly.

    Without --map or --layer, the last look at the source is shown, its heads together; --json and pages have all.

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
        raise InvalidArgument(
            "text", wanted="one of TEXT, --file and --data", got="several", remedy="Leave the others out."
        )
    if ablate and not data:
        raise InvalidArgument("ablate", wanted="data to lose on", got="none", remedy="Add --data test.")
    if sort is not None and not summary:
        raise InvalidArgument("sort", wanted="--summary, whose lines to sort", got="none", remedy="Add it.")
    if map_ is not None and (summary or ablate or as_json):
        raise InvalidArgument("map", wanted="one look to show", got="a table or JSON", remedy="Leave it out.")
    if out is not None and (summary or ablate):
        raise InvalidArgument("out", wanted="one look to write", got="a table", remedy="Send stdout to a file.")
    write = _writer(out, view, map_)
    predictor = load(model, device=device)
    if ablate:
        _ablate(predictor, data or [], as_json)
        return
    options: dict[str, Any] = {
        "layers": layer,
        "heads": head,
        "rows": _rows(rows),
        "words": words,
        "truncate": truncate,
    }
    options |= search_options(beam, set_ or [])
    pairs = _pairs(predictor, text, output, file, data)
    if summary:
        _summarise(predictor, pairs, options, sort, as_json)
        return
    from regard.api import look
    from regard.views.terminal import told

    width, colour = shutil.get_terminal_size().columns, sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if write is not None:
        inputs = list(islice(pairs, 2))
        if len(inputs) != 1:
            got, remedy = "several" if inputs else "none", "Give TEXT, or use --json for several."
            raise InvalidArgument("out", wanted="one input", got=got, remedy=remedy)
        pairs = iter(inputs)
    for number, (each, given) in enumerate(pairs):
        found = look.look(predictor, each, output=given, **options)
        if write is not None:
            write(found)
        elif as_json:
            print(found.to_json())
        else:
            shown = told(found, map=map_, every=bool(layer), width=width, colour=colour, numbers=numbers)
            print("\n" * bool(number) + shown)
        sys.stdout.flush()


def search_options(beam: int | None, changes: list[str]) -> dict[str, Any]:
    """How an output is to be searched."""
    from regard.core.config import nearest
    from regard.core.errors import InvalidArgument
    from regard.decoding.config import DecodeConfig
    from regard.recipe.recipe import with_setting

    options: dict[str, Any] = {"beam_size": beam}
    for change in changes:
        options = with_setting(options, change)
    for key in options.keys() - DecodeConfig.__dataclass_fields__:
        known = nearest(key, DecodeConfig.__dataclass_fields__)
        raise InvalidArgument("set", wanted="a key of [decode]", got=key, remedy=known)
    return options


def _pairs(
    predictor: Any, text: str | None, output: str | None, file: Path | None, data: list[str] | None
) -> Iterator[tuple[Any, str | None]]:
    """Inputs, each with its output where one is given."""
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


def _rows(told: str | None) -> Any:
    from regard.core.errors import InvalidArgument

    if told is None:
        return None
    first, colon, last = told.partition(":")
    try:
        return slice(int(first or 0), int(last) if last else None) if colon else [int(first)]
    except ValueError:
        raise InvalidArgument("rows", wanted="a number, or two around a colon", got=told, remedy="0:8, say.") from None


def _summarise(predictor: Any, pairs: Iterable[Any], options: dict[str, Any], sort: str | None, as_json: bool) -> None:
    from regard.api import look
    from regard.interpret.look import told_head
    from regard.interpret.summaries import sorted_by
    from regard.views.terminal import head_table

    sorted_by([], sort)  # refuse before the work, and not after it
    lines = sorted_by(look.look_over(predictor, pairs, **options), sort)
    if as_json:
        print(json.dumps([{"map": place.name, **told_head(head)} for place, head in lines]))
    else:
        print(head_table(lines))


def _ablate(predictor: Any, data: list[str], as_json: bool) -> None:
    from regard.api.ablate import ablate
    from regard.views.terminal import table

    whole, found = ablate(predictor, data, tell=lambda line: print(line, file=sys.stderr))
    found.sort(key=lambda each: -each.change)
    if as_json:
        lines = [
            {"map": each.place.name, "head": each.head, "loss": each.loss, "change": each.change} for each in found
        ]
        print(json.dumps({"loss": whole, "heads": lines}))
        return
    told = [(each.place.name, str(each.head), f"{each.loss:.4f}", f"{each.change:+.4f}") for each in found]
    print(table([("map", "head", "loss without", "change"), ("all heads", "", f"{whole:.4f}", ""), *told]))


def _writer(out: Path | None, view: str | None, map: str | None) -> Any:
    """What writes a look into a file of this kind; refused before any work where nothing does."""
    from regard.core.errors import InvalidArgument
    from regard.views.figures import SHEETS, check_view
    from regard.views.files import WRITERS

    check_view(view)
    if view is not None and (out is None or out.suffix not in SHEETS):
        wanted, remedy = f"--out with a name in {', '.join(SHEETS)}", "Add it, or leave --view out."
        raise InvalidArgument("view", wanted=wanted, got=str(out) if out else "none", remedy=remedy)
    if out is None:
        return None
    if out.suffix not in WRITERS:
        wanted = f"a name in {', '.join(WRITERS)}"
        raise InvalidArgument("out", wanted=wanted, got=str(out), remedy="Choose one of these.")
    if map is not None and out.suffix not in SHEETS:
        wanted, remedy = f"--out with a name in {', '.join(SHEETS)}, or none", "Leave --map out: it has every map."
        raise InvalidArgument("map", wanted=wanted, got=str(out), remedy=remedy)
    options = {key: value for key, value in (("view", view), ("map", map)) if value is not None}
    return lambda found: WRITERS[out.suffix](found, out, **options)
