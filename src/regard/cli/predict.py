"""The verbs that put a model to work."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import DecodeChanges, Device, Json, ModelFolder, one_line, options_of, read_lines


def predict(
    model: ModelFolder,
    files: Annotated[list[Path] | None, typer.Argument(help="Texts, one a line; stdin if there are none.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses that are followed at once.")] = None,
    nbest: Annotated[int | None, typer.Option(min=1, help="Outputs for each line, best first, a line each.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens by their probability.")] = False,
    longest: Annotated[int | None, typer.Option(min=1, help="Tokens of an output, at most.")] = None,
    prefix: Annotated[Path | None, typer.Option(help="A file: what each output begins with, line for line.")] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(help='A file: {"required": ["…"], "banned": ["…"]} for each line, or an empty line.'),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Each output's log-probability before it.")] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Write where each output looked to this file, as JSON, a line each.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write each output as it comes, token for token, without a beam.")
    ] = False,
    markup: Annotated[
        bool,
        typer.Option("--markup", help="Carry tags, <b>so</b>, over to the words of the output that come from theirs."),
    ] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Drop the end of lines that are too long.")] = False,
    set_: DecodeChanges = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """An output for every line of stdin or of files, line for line, to stdout.

    Examples: echo "3 March 1999" | regard predict runs/dates

    regard predict runs/translation source.txt --beam 5 --nbest 3 --scores

    echo "Once upon a time" | regard predict runs/tales --sample --stream
    """
    from regard.api import predict
    from regard.inference.load import load

    predictor = load(model, device=device)
    options = options_of(set_, beam_size=beam, num_hypotheses=nbest, sample=sample or None, max_length=longest)
    if stream:
        other: dict[str, Any] = {"--prefix": prefix, "--constraints": constraints, "--attention": attention}
        other |= {"--scores": scores, "--markup": markup, "--json": as_json}
        _stream(predictor, read_lines(files or []), other, truncate, options)
        return
    beside: dict[str, Iterator[Any]] = {} if prefix is None else {"prefixes": read_lines([prefix])}
    if constraints is not None:
        beside |= predict.constraints(constraints)
    if markup:
        others = {"nbest": nbest is not None, "scores": scores, "attention": attention is not None, "json": as_json}
        _print_marked(predictor, read_lines(files or []), others, beside=beside, truncate=truncate, **options)
        return
    found = predict.predict_lines(
        predictor,
        read_lines(files or []),
        beside=beside,
        scores=scores or as_json,
        attention=attention is not None,
        truncate=truncate,
        **options,
    )
    shortened, count = 0, predictor.with_decode(**options).recipe.decode.num_hypotheses
    with nullcontext() if attention is None else _written(attention) as looks:
        for line, outputs in found:
            shortened += outputs[0].truncated if outputs else 0
            if looks is not None:
                looks.write(json.dumps(_looks(line, outputs), ensure_ascii=False).encode() + b"\n")
            if as_json:
                print(json.dumps(_as_json(line, outputs), ensure_ascii=False))
            for output in () if as_json else outputs:
                known = scores and output.log_probability is not None  # an empty line stays empty
                print(f"{output.log_probability:.4f}\t{one_line(output.text)}" if known else one_line(output.text))
            print(end="\n" * (0 if as_json else count - len(outputs)))  # as many lines for every input
            sys.stdout.flush()
    if shortened:
        print(f"regard: {shortened} lines were too long, and only their beginning was read", file=sys.stderr)


def _stream(
    predictor: Any, lines: Iterator[str], others: dict[str, Any], truncate: bool, options: dict[str, Any]
) -> None:
    from regard.core.errors import InvalidArgument

    for name, given in others.items():
        if given:
            wanted, remedy = "nothing in a stream", "Leave one of the two out."
            raise InvalidArgument(name, wanted=wanted, got=str(given), remedy=remedy)
    options = {key: value for key, value in options.items() if value is not None}
    reads = predictor.recipe.data.source is not None
    for number, line in enumerate(lines, start=1):
        for piece in predictor.stream(line, truncate=truncate, line=number, **options) if line or not reads else ():
            print(one_line(piece), end="", flush=True)
        print(flush=True)


def _print_marked(predictor: Any, lines: Iterator[str], others: dict[str, bool], **options: Any) -> None:
    from regard.api.align import with_markup
    from regard.core.errors import InvalidArgument

    for name, given in others.items():
        if given:
            raise InvalidArgument(name, wanted="nothing beside --markup", got="both", remedy="Leave one out.")
    for line in with_markup(predictor, lines, **options):
        print(one_line(line))
        sys.stdout.flush()


def _written(path: Path) -> Any:
    from regard.core.atomic_io import atomic_file

    return atomic_file(path)


def _looks(line: str, outputs: list[Any]) -> dict[str, Any]:
    """For every output its tokens and, by layer and head, a row of weights for each."""
    told = [
        {"tokens": each.tokens, "attention": None if each.attention is None else each.attention.tolist()}
        for each in outputs
    ]
    return {"input": line, "outputs": told}


def _as_json(line: str, outputs: list[Any]) -> dict[str, Any]:
    return {
        "input": line,
        "output": outputs[0].text,
        "outputs": [
            {
                "text": each.text,
                "log_probability": each.log_probability,
                "score": each.score,
                "tokens": each.tokens,
                "log_probabilities": each.log_probabilities,
            }
            for each in outputs
        ],
    }


def caption(
    model: ModelFolder,
    pictures: Annotated[
        list[Path], typer.Argument(metavar="PICTURE", help="Pictures, or folders and .zip files of them.")
    ],
    draw: Annotated[
        Path | None,
        typer.Option(help="A folder: where each word looked, as PNG and SVG of each picture, and index.html of all."),
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses that are followed at once.")] = None,
    longest: Annotated[int | None, typer.Option(min=1, help="Tokens of a caption, at most.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Each caption's log-probability before it.")] = False,
    set_: DecodeChanges = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """A caption for every picture: its path, a tab and the caption, in order, to stdout.

    A picture that cannot be read is named on stderr, the others are captioned, and the exit code is 1. Drawings show
    the mean over the heads of the decoder's last block.

    Examples: regard caption runs/captions photos/*.jpg

    regard caption runs/captions photos.zip --beam 5 --draw looks
    """
    from regard.api import caption
    from regard.inference.load import load

    options = options_of(set_, beam_size=beam, max_length=longest)
    broken = 0
    for found in caption.caption(load(model, device=device), pictures, draw=draw, scores=scores or as_json, **options):
        if found.problem is not None:
            broken += 1
            print(f"regard: {found.problem}", file=sys.stderr)
            continue
        name = one_line(str(found.picture)).replace("\t", "\\t")
        if as_json:
            print(json.dumps(_as_json(str(found.picture), list(found.outputs)), ensure_ascii=False))
        for output in () if as_json else found.outputs:
            known = f"{output.log_probability:.4f}\t" if scores and output.log_probability is not None else ""
            print(f"{name}\t{known}{one_line(output.text)}")
        sys.stdout.flush()
    if broken:
        print(f"regard: {broken} pictures could not be captioned", file=sys.stderr)
        raise typer.Exit(1)
