"""`regard look` and `regard align`."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import regard
from regard.cli import completion
from regard.cli.options import (
    Beam,
    DecodeChanges,
    Device,
    Json,
    ModelFolder,
    Truncate,
    TrustDataPaths,
    argument,
    decode_options,
    flag,
    model_inputs,
    option,
    read_inputs,
    typed_input,
)
from regard.core.errors import InputTooLong, InvalidArgument, InvalidData
from regard.core.text_table import counted
from regard.views.progress import Status, status_line, tracked

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor
    from regard.interpret.edits import Edit


def look(
    model: ModelFolder,
    text: Annotated[
        str | None,
        argument(
            "TEXT",
            "A text, a list of vectors in JSON, or the path of an image or of a .npy file "
            "[default: lines of stdin].",
        ),
    ] = None,
    output: Annotated[
        str | None, option("TEXT", "Look at this output instead of the model's own.")
    ] = None,
    file: Annotated[
        Path | None, option("FILE", "Look at each line of this file, or each row of a table.")
    ] = None,
    data: Annotated[
        list[str] | None,
        option(
            "NAME|FILE",
            "Look at a split of the run's data, or at a table, or two files, of inputs and "
            "outputs. A .tsv or .csv begins with a line of names.",
            complete=completion.splits,
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Column of a table: of --data, inputs and outputs; of --file, "
            "inputs [default: the recipe's].",
        ),
    ] = None,
    layer: Annotated[
        list[int] | None, option("N", "Only this layer; may be repeated.", least=1)
    ] = None,
    head: Annotated[
        list[int] | None, option("N", "Only this head, from 0; may be repeated.", least=0)
    ] = None,
    map_: Annotated[
        str | None,
        option("NAME", "Show or draw this map: 'encoder 2', 'decoder 1 cross'.", "--map"),
    ] = None,
    channel: Annotated[
        str | None,
        option(
            "NAME|N",
            "Of a model that reads each channel apart: whose attention to show [default: the first].",
        ),
    ] = None,
    rows: Annotated[str | None, option("A:B", "Only these rows, from 0: 3, or 0:8.")] = None,
    words: Annotated[bool, flag("--words", "Merge tokens into words.")] = False,
    edit: Annotated[
        Path | None,
        option(
            "FILE", "Edit attention and tokens: a JSON list of edits (docs/interpret.md), in order."
        ),
    ] = None,
    numbers: Annotated[bool, flag("--numbers", "Also print weights in hundredths.")] = False,
    summary: Annotated[
        bool,
        flag(
            "--summary",
            "A line for every head with its measured properties over "
            "all inputs (docs/interpret.md).",
        ),
    ] = False,
    sort: Annotated[
        str | None, option("COLUMN", "Sort the summary by this column, in descending order.")
    ] = None,
    ablate: Annotated[
        bool,
        flag(
            "--ablate",
            "The loss on the data without each head, and its change; of --summary, a column.",
        ),
    ] = False,
    alignment: Annotated[
        tuple[Path, Path, Path] | None,
        option(
            "SOURCES TARGETS LINKS",
            "Of --summary: add each head's agreement with these reference links.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the look to this file: .json, .html (also of several inputs), .svg or .png.",
        ),
    ] = None,
    view: Annotated[
        str | None,
        option(
            "NAME",
            "Of an SVG or PNG: heat, heads, lines, image or series.",
            complete=completion.views,
        ),
    ] = None,
    beam: Beam = None,
    set_: DecodeChanges = None,
    truncate: Truncate = False,
    device: Device = "auto",
    trust_data_paths: TrustDataPaths = False,
    as_json: Json = False,
) -> None:
    """Show what a model attends to while it reads an input and generates its output.
    Weights are exact.

    Without --map or --layer, the mean head of the last cross-attention is shown; --json and pages
    have all maps.

    Examples: regard look runs/translation "A dog runs."

    regard look runs/captions dog.jpg --words

    regard look runs/translation "A dog runs." --output "Ein Hund rennt." --layer 2 --head 0
    --numbers

    regard look runs/translation "A dog runs." --out page.html

    regard look runs/translation --file sentences.txt --out page.html

    regard look runs/translation "A dog runs." --map "encoder 2"

    regard look runs/translation "A dog runs." --out heads.svg --view heads

    regard look runs/translation --data test --summary --sort confidence

    regard look runs/translation "A dog runs." --edit edits.json
    """
    from regard.interpret.look import check_map_name
    from regard.interpret.record import map_names
    from regard.views.figures import MOST_LOOKS, check_file, write_look, write_page
    from regard.views.terminal import look_text

    if sum(given is not None for given in (text, file, data)) > 1:
        wanted = "one of TEXT, --file and --data"
        remedy = "Leave the others out."
        raise InvalidArgument("text", wanted=wanted, got="several", remedy=remedy)
    if data and output is not None:
        raise InvalidArgument(
            "output", wanted="none beside --data, which has them", got=output, remedy="Leave it."
        )
    if ablate and not data:
        raise InvalidArgument(
            "ablate", wanted="data to compute a loss on", got="none", remedy="Add --data test."
        )
    if sort is not None and not summary:
        raise InvalidArgument(
            "sort", wanted="--summary, whose lines to sort", got="none", remedy="Add it."
        )
    if alignment is not None and not summary:
        raise InvalidArgument(
            "alignment", wanted="--summary, of which it is a column", got="none", remedy="Add it."
        )
    if map_ is not None and (summary or ablate or as_json):
        raise InvalidArgument(
            "map", wanted="one look to show", got="a table or JSON", remedy="Leave it out."
        )
    if out is not None and (summary or ablate):
        raise InvalidArgument(
            "out", wanted="one look to write", got="a table", remedy="Redirect stdout to a file."
        )
    if edit is not None and ablate:
        raise InvalidArgument(
            "edit", wanted="none beside --ablate", got=str(edit), remedy="Leave one out."
        )
    check_file(out, view, map_)
    edits = None if edit is None else _edits(edit)
    predictor = regard.load(model, device=device)
    if map_ is not None:
        check_map_name(map_, map_names(predictor.model, layer))  # before the work
    if ablate and not summary:
        _ablate(predictor, data or [], column or (), trust_data_paths, as_json)
        return
    options: dict[str, Any] = {"layers": layer, "heads": head, "rows": _rows(rows), "words": words}
    options |= {"truncate": truncate, "edits": edits, **decode_options(set_, beam_size=beam)}
    if channel is not None:
        options["channel"] = channel
    pairs = _pairs(predictor, text, output, file, data, column or (), trust_data_paths)
    if summary:
        options |= {"columns": column or (), "ablate": ablate, "alignment": alignment}
        options |= {"trust_data_paths": trust_data_paths, "inputs": tracked(pairs, "inputs")}
        _summarize(predictor, data or [], options, sort, as_json)
        return
    if out is not None:
        page = out.suffix == ".html"
        inputs = list(islice(pairs, MOST_LOOKS + 1 if page else 2))
        if not 1 <= len(inputs) <= (MOST_LOOKS if page else 1):
            wanted = f"one input, or up to {MOST_LOOKS} for a page" if page else "one input"
            got = "several" if inputs else "none"
            remedy = "Give fewer, or use --json."
            raise InvalidArgument("out", wanted=wanted, got=got, remedy=remedy)
        looks = [
            regard.look(predictor, each, output=given, **options)
            for each, given in tracked(inputs, "inputs")
        ]
        if len(looks) > 1:
            write_page(looks, out)
        else:
            write_look(looks[0], out, view=view, map=map_)
        return
    width = shutil.get_terminal_size().columns
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for number, (each, given) in enumerate(tracked(pairs, "inputs", printing=True)):
        result = regard.look(predictor, each, output=given, **options)
        if as_json:
            print(result.to_json())
        else:
            shown = look_text(
                result, map=map_, every=bool(layer), width=width, color=color, numbers=numbers
            )
            print("\n" * bool(number) + shown)
        sys.stdout.flush()


def _pairs(
    predictor: "Predictor",
    text: str | None,
    output: str | None,
    file: Path | None,
    data: list[str] | None,
    columns: Sequence[str],
    trust: bool,
) -> Iterator[tuple[Any, str | None]]:
    """Inputs, each with its output if one is given."""
    from regard.api.look import pairs_of

    if data:
        return pairs_of(predictor.recipe, data, columns, trust_data_paths=trust)
    if text is not None:
        return iter([(typed_input(predictor, text), output)])
    lines = model_inputs(file, predictor, columns)
    return ((line, output) for line in lines if line)


def _edits(file: Path) -> "tuple[Edit, ...]":
    from regard.interpret.edits import read_edits

    try:
        return read_edits(json.loads(file.read_text("utf-8")))
    except OSError as error:
        got = error.strerror or type(error).__name__
        raise InvalidArgument(
            "edit", wanted="a file", got=f"{file}: {got}", remedy="Check the path."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        wanted = "a JSON list of edits"
        remedy = 'For example [{"edit": "mask_source", "token": 2}].'
        raise InvalidData(file, wanted=wanted, got=str(error)[:100], remedy=remedy) from None


def _rows(text: str | None) -> slice | list[int] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        if not colon:
            return [int(first)]
        end = int(last) if last else None
        return slice(int(first or 0), end)
    except ValueError:
        wanted = "a number, or two around a colon"
        raise InvalidArgument("rows", wanted=wanted, got=text, remedy="For example 0:8.") from None


def _summarize(
    predictor: "Predictor",
    data: list[str],
    options: dict[str, Any],
    sort: str | None,
    as_json: bool,
) -> None:
    from regard.interpret.head_properties import check_column
    from regard.views.terminal import head_table

    if sort is not None:
        check_column(sort)  # before the work
    report = regard.heads(predictor, data, **options).sorted(sort)
    print(json.dumps(report.as_dict()) if as_json else head_table(report.heads))


def _ablate(
    predictor: "Predictor", data: list[str], columns: Sequence[str], trust: bool, as_json: bool
) -> None:
    from regard.core.text_table import text_table

    with status_line(lambda: Status("loss without each head")):
        whole, ablated = regard.ablate(predictor, data, columns=columns, trust_data_paths=trust)
    ablated.sort(key=lambda each: -each.change)
    if as_json:
        lines = [
            {"map": one.site.name, "head": one.head, "loss": one.loss, "change": one.change}
            for one in ablated
        ]
        print(json.dumps({"loss": whole, "heads": lines}))
        return
    rows = [
        (each.site.name, str(each.head), f"{each.loss:.4f}", f"{each.change:+.4f}")
        for each in ablated
    ]
    print(
        text_table(
            [
                ("map", "head", "loss without", "change"),
                ("all heads", "", f"{whole:.4f}", ""),
                *rows,
            ]
        )
    )


def align(
    model: ModelFolder,
    sources: Annotated[Path | None, option("FILE", "Texts, one per line [default: stdin].")] = None,
    targets: Annotated[
        Path | None,
        option("FILE", "Their translations, line by line [default: the model's own outputs]."),
    ] = None,
    head: Annotated[
        str | None,
        option("LAYER[.HEAD]", "Only the weights of this layer, or head [default: all]."),
    ] = None,
    step: Annotated[
        str,
        option(
            "NAME",
            "Whose weights align a word: output, the step that predicts it, or input, the next.",
        ),
    ] = "output",
    choose: Annotated[
        tuple[Path, Path, Path] | None,
        option(
            "SOURCES TARGETS LINKS",
            "Use the head, or layer, and step with the lowest error on these.",
        ),
    ] = None,
    references: Annotated[
        Path | None,
        option("FILE", "Reference links, line by line: sure ones 0-0, possible ones 1?2."),
    ] = None,
    beam: Beam = None,
    set_: DecodeChanges = None,
    truncate: Truncate = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Align the words of texts and translations, line by line, from the model's cross-attention.

    Links are in Pharaoh format: 1-2 links the second word of the source and the third of the
    target. With --references, the alignment error rate follows on stderr, or as the last line of
    --json.

    Examples: regard align runs/translation --sources test.en --targets test.de

    regard align runs/translation --sources test.en --choose dev.en dev.de dev.links --json
    """
    from regard.api import align
    from regard.evaluation.alignment_error import Agreement

    if choose is not None and (head is not None or step != "output"):
        remedy = "Leave it out, or --choose."
        raise InvalidArgument(
            "head", wanted="none beside --choose, which finds it", got="both", remedy=remedy
        )
    options = decode_options(set_, beam_size=beam)
    heads = regard.AlignmentHeads.of(head, step)
    predictor = regard.load(model, device=device)
    align.check(predictor, heads)
    if choose is not None:
        heads, best = align.choose(predictor, choose)
        print(f"regard: {heads}: {best} on {choose[2]}", file=sys.stderr)
    *columns, target = predictor.recipe.data.table_columns()
    texts = read_inputs([sources], columns)
    given = None if targets is None else read_inputs([targets], [target])
    options |= {"truncate": truncate, "skip_too_long": True}
    alignments = regard.align(predictor, texts, given, heads=heads, **options)
    agreement = Agreement()
    if references is not None:
        alignments = align.with_references(alignments, references, agreement)
    names = ("source", "output", "source_words", "output_words", "links")
    refused = 0
    for each in tracked(alignments, "lines", printing=True):
        table = {name: getattr(each, name) for name in names}
        if each.refused is not None:
            refused += 1
            print(f"regard: {each.refused}", file=sys.stderr)
            table["error"] = each.refused
        line = json.dumps(table, ensure_ascii=False) if as_json else each
        print(line, flush=True)
    if references is not None and as_json:
        print(json.dumps(agreement.as_dict()))
    elif references is not None:
        print(f"regard: {agreement}", file=sys.stderr)
    if refused:
        verb = "was too long and has" if refused == 1 else "were too long and have"
        print(f"regard: {counted(refused, 'line')} {verb} no links", file=sys.stderr)
        raise typer.Exit(InputTooLong.exit_code)
