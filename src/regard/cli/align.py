"""`regard align`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.look import search_options
from regard.cli.options import Beam, DecodeChanges, Device, Json, ModelFolder, Truncate


def align(
    model: ModelFolder,
    sources: Annotated[Path | None, typer.Option(metavar="FILE", help="Texts, one per line [default: stdin].")] = None,
    targets: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Their translations, line by line [default: the model's own outputs]."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="LAYER[.HEAD]", help="Only the weights of this layer, or head [default: all]."),
    ] = None,
    step: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Whose weights align a word: output, the step that predicts it, or input, the next."
        ),
    ] = "output",
    choose: Annotated[
        tuple[Path, Path, Path] | None,
        typer.Option(
            metavar="SOURCES TARGETS LINKS", help="Use the head, or layer, and step with the lowest error on these."
        ),
    ] = None,
    references: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Reference links, line by line: sure ones 0-0, possible ones 1?2."),
    ] = None,
    beam: Beam = None,
    set_: DecodeChanges = None,
    truncate: Truncate = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Align the words of texts and translations, line by line, from the model's cross-attention.

    Links are in Pharaoh format: 1-2 links the second word of the source and the third of the target. With --references,
    the alignment error rate follows on stderr, or as the last line of --json.

    Examples: regard align runs/translation --sources test.en --targets test.de

    regard align runs/translation --sources test.en --choose dev.en dev.de dev.links --json
    """
    from regard.api import align
    from regard.core.errors import InvalidArgument
    from regard.data.text import lines
    from regard.evaluation.alignment_error import Agreement
    from regard.inference.load import load
    from regard.interpret.alignment import AlignmentHeads

    if choose is not None and (head is not None or step != "output"):
        remedy = "Leave it out, or --choose."
        raise InvalidArgument("head", wanted="none beside --choose, which finds it", got="both", remedy=remedy)
    options = search_options(beam, set_)
    heads = AlignmentHeads.of(head, step)
    predictor = load(model, device=device)
    align.check(predictor, heads)
    if choose is not None:
        heads, best = align.choose(predictor, choose)
        print(f"regard: {heads}: {best} on {choose[2]}", file=sys.stderr)
    given = None if targets is None else lines(targets)
    alignments = align.align(
        predictor, lines(sources or "/dev/stdin"), given, heads=heads, truncate=truncate, **options
    )
    agreement = Agreement()
    if references is not None:
        alignments = align.with_references(alignments, references, agreement)
    for each in alignments:
        print(json.dumps(_as_json(each), ensure_ascii=False) if as_json else each)
        sys.stdout.flush()
    if references is not None and as_json:
        print(json.dumps(agreement.as_dict()))
    elif references is not None:
        print(f"regard: {agreement}", file=sys.stderr)


def _as_json(aligned: Any) -> dict[str, Any]:
    words = {"source_words": aligned.source_words, "output_words": aligned.output_words}
    return {"source": aligned.source, "output": aligned.output, **words, "links": aligned.links}
