"""The verb that tells which words belong together."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.look import search_options
from regard.cli.options import Device, Json, ModelFolder


def align(
    model: ModelFolder,
    sources: Annotated[Path | None, typer.Option(help="Texts, one a line; stdin if there are none.")] = None,
    targets: Annotated[
        Path | None, typer.Option(help="Their translations, line for line; the model's own if there are none.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="LAYER[.HEAD]", help="The weights of this layer, or head, alone [default: all]."),
    ] = None,
    step: Annotated[str, typer.Option(help="says or reads: at which step of a word its weights count.")] = "says",
    choose: Annotated[
        tuple[Path, Path, Path] | None,
        typer.Option(
            metavar="SOURCES TARGETS LINKS", help="Take the head, or layer, and step that find these links best."
        ),
    ] = None,
    references: Annotated[
        Path | None, typer.Option(help="What is right, line for line: sure links 0-0, possible ones 1?2.")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses that are followed at once.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key of the recipe's [decode]: longest=20.")
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Drop the end of lines that are too long.")] = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Which words of texts and translations belong together, line for line, as the model's attention tells.

    In Pharaoh's format: 1-2 is the second word of the source and the third of the target. With --references, the
    alignment error rate follows on stderr, or as the last line of --json.

    Examples: regard align runs/translation --sources test.en --targets test.de

    regard align runs/translation --sources test.en --choose dev.en dev.de dev.links --json
    """
    from regard.api import align
    from regard.core.errors import InvalidArgument
    from regard.data.text import lines
    from regard.evaluation.alignment_error import Agreement
    from regard.inference.load import load

    if choose is not None and (head is not None or step != "says"):
        remedy = "Leave it out, or --choose."
        raise InvalidArgument("head", wanted="none beside --choose, which finds it", got="both", remedy=remedy)
    options = search_options(beam, set_ or [])
    heads = align.AlignmentHeads.of(head, step)
    predictor = load(model, device=device)
    align.check(predictor, heads)
    if choose is not None:
        heads, best = align.choose(predictor, choose)
        print(f"regard: {heads}: {best} on {choose[2]}", file=sys.stderr)
    given = None if targets is None else lines(targets)
    found = align.align(predictor, lines(sources or "/dev/stdin"), given, heads=heads, truncate=truncate, **options)
    agreement = Agreement()
    if references is not None:
        found = align.beside(found, references, agreement)
    for each in found:
        print(json.dumps(_as_json(each), ensure_ascii=False) if as_json else each)
        sys.stdout.flush()
    if references is not None and as_json:
        print(json.dumps(agreement.as_dict()))
    elif references is not None:
        print(f"regard: {agreement}", file=sys.stderr)


def _as_json(aligned: Any) -> dict[str, Any]:
    words = {"source_words": aligned.source_words, "output_words": aligned.output_words}
    return {"source": aligned.source, "output": aligned.output, **words, "links": aligned.links}
