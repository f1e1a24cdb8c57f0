"""`regard predict` and `regard caption`."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    Beam,
    DecodeChanges,
    Device,
    Json,
    MaxLength,
    ModelFolder,
    Scores,
    Truncate,
    decode_options,
    one_line,
    read_lines,
)

if TYPE_CHECKING:
    from regard.inference.pipelines import Output
    from regard.inference.predictor import Predictor


def predict(
    model: ModelFolder,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Texts, one per line [default: stdin].")
    ] = None,
    beam: Beam = None,
    n_best: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Outputs for each line, best first, one per line.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens instead of searching.")] = False,
    max_length: MaxLength = None,
    prefix: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The beginning of each output, line by line.")
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='For each line {"required": ["…"], "banned": ["…"]}, or an empty line.'),
    ] = None,
    scores: Scores = False,
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the cross-attention of each output to this file, as JSON lines."),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write each output token by token as it is generated, without a beam.")
    ] = False,
    markup: Annotated[
        bool,
        typer.Option("--markup", help="Transfer inline tags, as <b>these</b>, to the aligned words of the output."),
    ] = False,
    truncate: Truncate = False,
    set_: DecodeChanges = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Print an output for every line of stdin or of files, line by line.

    Examples: echo "3 March 1999" | regard predict runs/dates

    regard predict runs/translation source.txt --beam 5 --n-best 3 --scores

    echo "Once upon a time" | regard predict runs/tales --sample --stream
    """
    from regard.api import predict
    from regard.core.atomic_io import atomic_file
    from regard.inference.load import load

    predictor, lines = load(model, device=device), read_lines(files or [])
    options = decode_options(set_, beam_size=beam, num_hypotheses=n_best, sample=sample or None, max_length=max_length)
    others: dict[str, Any] = {"--scores": scores, "--attention": attention, "--json": as_json}
    if stream:
        _check_none(others | {"--prefix": prefix, "--constraints": constraints, "--markup": markup}, "in a stream")
        _stream(predictor, lines, truncate, options)
        return
    beside: dict[str, Iterator[Any]] = {} if prefix is None else {"prefixes": read_lines([prefix])}
    if constraints is not None:
        beside |= predict.constraints(constraints)
    if markup:
        from regard.api.align import with_markup

        _check_none(others | {"--n-best": n_best}, "beside --markup")
        for line in with_markup(predictor, lines, beside=beside, truncate=truncate, **options):
            print(one_line(line), flush=True)
        return
    outputs_of = predict.predict_lines(
        predictor,
        lines,
        beside=beside,
        scores=scores or as_json,
        attention=attention is not None,
        truncate=truncate,
        **options,
    )
    truncated, count = 0, predictor.with_decode(**options).recipe.decode.num_hypotheses
    with nullcontext() if attention is None else atomic_file(attention) as file:
        for line, outputs in outputs_of:
            truncated += outputs[0].truncated if outputs else 0
            if file is not None:
                file.write(json.dumps(_attention_as_json(line, outputs), ensure_ascii=False).encode() + b"\n")
            if as_json:
                print(json.dumps(_as_json(line, outputs), ensure_ascii=False))
            for output in () if as_json else outputs:
                known = scores and output.log_probability is not None  # an empty line has none
                print(f"{output.log_probability:.4f}\t{one_line(output.text)}" if known else one_line(output.text))
            print(end="\n" * (0 if as_json else count - len(outputs)))  # the same number of lines for every input
            sys.stdout.flush()
    if truncated:
        print(f"regard: {truncated} lines were too long and were truncated", file=sys.stderr)


def _check_none(options: dict[str, Any], where: str) -> None:
    from regard.core.errors import InvalidArgument

    for name, given in options.items():
        if given:
            raise InvalidArgument(name, wanted=f"nothing {where}", got=str(given), remedy="Leave one of the two out.")


def _stream(predictor: "Predictor", lines: Iterator[str], truncate: bool, options: dict[str, Any]) -> None:
    options = {key: value for key, value in options.items() if value is not None}
    reads = bool(predictor.recipe.data.source_fields)
    for number, line in enumerate(lines, start=1):
        for piece in predictor.stream(line, truncate=truncate, line=number, **options) if line or not reads else ():
            print(one_line(piece), end="", flush=True)
        print(flush=True)


def _attention_as_json(line: str, outputs: "list[Output]") -> dict[str, Any]:
    """The tokens of every output and, by layer and head, a row of weights for each token."""
    each = [
        {"tokens": output.tokens, "attention": None if output.attention is None else output.attention.tolist()}
        for output in outputs
    ]
    return {"input": line, "outputs": each}


def _as_json(line: str, outputs: "list[Output]") -> dict[str, Any]:
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
        list[Path], typer.Argument(metavar="IMAGE", help="Images, or folders and .zip files of images.")
    ],
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Draw the attention of each word: PNG and SVG of each image, index.html of all."
        ),
    ] = None,
    beam: Beam = None,
    max_length: MaxLength = None,
    scores: Scores = False,
    set_: DecodeChanges = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Print a caption for every image: its path, a tab and the caption.

    An image that cannot be read is reported on stderr, the others are captioned, and the exit code is 1. Drawings show
    the mean over the heads of the decoder's last layer.

    Examples: regard caption runs/captions photos/*.jpg

    regard caption runs/captions photos.zip --beam 5 --draw attention
    """
    from regard.api import caption
    from regard.inference.load import load

    options = decode_options(set_, beam_size=beam, max_length=max_length)
    broken = 0
    for each in caption.caption(load(model, device=device), pictures, draw=draw, scores=scores or as_json, **options):
        if each.problem is not None:
            broken += 1
            print(f"regard: {each.problem}", file=sys.stderr)
            continue
        name = one_line(str(each.picture)).replace("\t", "\\t")
        if as_json:
            print(json.dumps(_as_json(str(each.picture), list(each.outputs)), ensure_ascii=False))
        for output in () if as_json else each.outputs:
            known = f"{output.log_probability:.4f}\t" if scores and output.log_probability is not None else ""
            print(f"{name}\t{known}{one_line(output.text)}")
        sys.stdout.flush()
    if broken:
        print(f"regard: {broken} images could not be captioned", file=sys.stderr)
        raise typer.Exit(1)
