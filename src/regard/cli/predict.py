"""`regard predict`, `regard caption` and `regard transcribe`."""

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TextIO

import typer

import regard
from regard.cli.losses import Losses, warn_of_ends
from regard.cli.options import (
    Beam,
    DecodeChanges,
    Device,
    InputColumn,
    Json,
    MaxLength,
    ModelFolder,
    Scores,
    Truncate,
    argument,
    decode_options,
    flag,
    model_inputs,
    option,
    show,
)
from regard.core.atomic_io import atomic_file
from regard.core.errors import InputTooLong, InvalidArgument, InvalidData
from regard.core.sanitize import one_line
from regard.core.text_table import counted
from regard.views.progress import tracked

STDIN = Path("-")
ARRAY_ENDINGS = (".npy", ".npz")  # of files that outputs of numbers are written to

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor
    from regard.tasks.pipeline import Output


def predict(
    model: ModelFolder,
    files: Annotated[
        list[Path] | None,
        argument(
            "FILE",
            "Texts, lists of vectors or paths of files, one per line, or tables [default: stdin]; or images and .npy "
            "files themselves, and folders and .zip files of them.",
        ),
    ] = None,
    column: InputColumn = None,
    ensemble: Annotated[
        list[Path] | None,
        option("MODEL", "Another model, to average probabilities with; may be repeated."),
    ] = None,
    beam: Beam = None,
    n_best: Annotated[
        int | None, option("N", "Outputs for each line, best first, one per line.", least=1)
    ] = None,
    sample: Annotated[bool, flag("--sample", "Sample tokens instead of searching.")] = False,
    max_length: MaxLength = None,
    prefix: Annotated[
        Path | None, option("FILE", "The beginning of each output, line by line.")
    ] = None,
    constraints: Annotated[
        Path | None,
        option("FILE", 'For each line {"required": ["…"], "banned": ["…"]}, or an empty line.'),
    ] = None,
    scores: Scores = False,
    probabilities: Annotated[
        bool,
        flag(
            "--probabilities",
            "Print all labels of a classifier with their probabilities, best first, separated by tabs.",
        ),
    ] = False,
    conll: Annotated[
        bool,
        flag(
            "--conll",
            "Print each word and its tag on a line, and a blank line after each sentence; of CoNLL-U files, in all "
            "ten columns.",
        ),
    ] = False,
    attention: Annotated[
        Path | None,
        option("FILE", "Write the cross-attention of each output to this file, as JSON lines."),
    ] = None,
    stream: Annotated[
        bool,
        flag("--stream", "Write each output token by token as it is generated, without a beam."),
    ] = False,
    markup: Annotated[
        bool,
        flag(
            "--markup", "Transfer inline tags, as <b>these</b>, to the aligned words of the output."
        ),
    ] = False,
    truncate: Truncate = False,
    out: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the outputs to this file instead, which appears when it is complete; vectors and numbers also as "
            ".npy or .npz.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        option("N", "Threads that search at once, on a CPU [default: one for each core].", least=1),
    ] = None,
    engine: Annotated[
        str,
        option("NAME", "local; or ray: replicas of the model on a Ray cluster, for many lines."),
    ] = "local",
    replicas: Annotated[
        int | None,
        option(
            "N", "Replicas on the Ray cluster [default: one for each GPU, else processor].", least=1
        ),
    ] = None,
    errors: Annotated[
        str,
        option(
            "MODE", "Bytes that are not UTF-8: strict refuses them, replace reads them as U+FFFD."
        ),
    ] = "strict",
    set_: DecodeChanges = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Print an output for every line of stdin or of files, line by line.

    The outputs of a language model of running text have line breaks of their own; --json has each on one line.

    Examples: echo "3 March 1999" | regard predict runs/dates

    regard predict runs/reviews reviews.csv --column text

    regard predict runs/translation source.txt --beam 5 --n-best 3 --scores

    regard predict runs/seed-1 --ensemble runs/seed-2 --ensemble runs/seed-3 source.txt

    regard predict runs/classification reviews.txt --probabilities

    regard predict runs/shapes-classification photos/*.png --probabilities

    regard predict runs/parts-of-speech sentences.txt --conll

    echo "Once upon a time" | regard predict runs/tales --sample --stream

    regard predict runs/translation source.txt --engine ray --replicas 8 --out target.txt
    """
    if engine == "local":
        _check_none({"--replicas": replicas}, "without --engine ray")
    else:
        _check_none(
            {"--stream": stream, "--markup": markup, "--ensemble": ensemble},
            f"with --engine {engine}",
        )
    predictor = _loaded(
        [model, *ensemble] if ensemble else model, device if engine == "local" else "cpu"
    )
    losses = Losses(predictor)
    lines = losses.read(_inputs(predictor, files or (), column or (), errors))
    options = decode_options(
        set_, beam_size=beam, num_hypotheses=n_best, sample=sample or None, max_length=max_length
    )
    # Running text has several lines; other outputs are one line each, as the inputs are.
    shown = str if predictor.running_text else one_line
    place: dict[str, Any]
    others: dict[str, Any] = {
        "--scores": scores,
        "--probabilities": probabilities,
        "--attention": attention,
        "--json": as_json,
    }
    task = predictor.task
    from regard.tasks.pipeline import check_direct_keys, check_meaning

    if not task.searches:
        # Its output follows from one forward pass.
        of_searches = {"--beam": beam, "--sample": sample, "--max-length": max_length}
        if task.has_beam:
            del of_searches["--beam"]
        check_meaning(of_searches, task.gives)
        check_direct_keys(options, task.gives, has_beam=task.has_beam)
    if not task.has_scores:
        check_meaning({"--scores": scores}, task.gives)
    if probabilities:
        _check_none({"--n-best": n_best, "--scores": scores}, "beside --probabilities")
        if not predictor.task.has_probabilities:
            raise InvalidArgument(
                "--probabilities",
                wanted="a model that gives labels",
                got=f"one that gives {predictor.task.gives}",
                remedy="Use --json.",
            )
    if conll:
        _check_none(others | {"--n-best": n_best}, "beside --conll")
        if not predictor.task.tags_words:
            raise InvalidArgument(
                "--conll",
                wanted="a model that gives tags",
                got=f"one that gives {predictor.task.gives}",
                remedy="Leave it out.",
            )
        others["--conll"] = conll
    has_source = bool(predictor.recipe.data.source_fields)
    if stream:
        others |= {
            "--prefix": prefix,
            "--constraints": constraints,
            "--markup": markup,
            "--out": out,
        }
        others |= {"--workers": workers}
        _check_none(others, "in a stream")
        for number, line in enumerate(tracked(lines, "lines", printing=True), start=1):
            try:
                for piece in (
                    predictor.stream(line, line=number, truncate=truncate, **options)
                    if line or not has_source
                    else ()
                ):
                    show(shown(piece), end="")
            except InputTooLong as error:
                losses.refuse(InputTooLong(f"line {number}", error.tokens, error.limit))
            print(flush=True)
        losses.say()
        _end(losses)
        return
    from regard.api.predict import read_constraints
    from regard.data.text import lines as lines_of

    beside: dict[str, Iterator[Any]] = {} if prefix is None else {"prefixes": lines_of(prefix)}
    if constraints is not None:
        beside |= read_constraints(constraints)
    if markup:
        _check_none(others | {"--n-best": n_best, "--workers": workers}, "beside --markup")
        from regard.api.align import with_markup_or_reason

        options |= {"beside": beside, "truncate": truncate, "skip_too_long": True}
        marked = with_markup_or_reason(predictor, lines, **options)
        with _outputs_to(out) as printed:
            for text, refused in tracked(marked, "lines", printing=printed.isatty()):
                if refused is not None:
                    losses.refuse(refused)
                show(one_line(text), file=printed)
        losses.say()
        _end(losses)
        return
    if out is not None and out.suffix in ARRAY_ENDINGS:
        of_texts = others | {"--n-best": n_best, "--prefix": prefix, "--constraints": constraints}
        _check_none(of_texts, f"with --out {out.name}")
        options |= {"truncate": truncate, "skip_too_long": True}
        options |= {} if workers is None else {"workers": workers}
        place = {"engine": engine, "replicas": replicas, "device": device}
        given_model = predictor if engine == "local" else model
        predicted = regard.predict(given_model, lines, **place, **options)
        _write_arrays(tracked(predicted, "lines"), out, task.gives, losses)
        losses.say()
        _end(losses)
        return
    count = predictor.with_decode(**options).recipe.decode.num_hypotheses
    options |= {
        "truncate": truncate,
        "skip_too_long": True,
        "scores": scores or as_json,
        "attention": attention is not None,
    }
    options |= {"tokens": as_json or attention is not None or losses.needs_tokens}
    options |= {} if workers is None else {"workers": workers}
    conllu = _conll_columns(predictor, files or ()) if conll else ()
    place = {"engine": engine, "replicas": replicas, "device": device}
    with (
        _outputs_to(out) as printed,
        nullcontext() if attention is None else atomic_file(attention) as file,
    ):
        predicted = regard.predict(
            predictor if engine == "local" else model, lines, beside=beside, **place, **options
        )
        for line, outputs in tracked(predicted, "lines", printing=printed.isatty()):
            losses.add(outputs)
            if file is not None:
                file.write(
                    json.dumps(_attention_as_json(str(line), outputs), ensure_ascii=False).encode()
                    + b"\n"
                )
            if conll:
                show(_as_conll(outputs[0], conllu), end="", file=printed, flush=out is None)
            elif probabilities and not as_json:
                each = (outputs[0].probabilities or {}).items()  # none for an empty line
                show(
                    "\t".join(f"{one_line(label)}\t{value:.4f}" for label, value in each),
                    file=printed,
                )
            else:
                _print_outputs(
                    str(line),
                    outputs,
                    "",
                    scores,
                    as_json,
                    shown,
                    printed,
                    flush=out is None,
                    times=_times_after(line, outputs) if as_json else None,
                )
                missing = 0 if as_json else count - len(outputs)
                # the same number of lines for every input
                print(end="\n" * missing, file=printed, flush=out is None)
    losses.say()
    _end(losses)


def _loaded(model: Path | Sequence[Path], device: str) -> "Predictor":
    """The model, or an ensemble.

    PyTorch's modules and the model live as long as this process: collections need not visit them.
    """
    gc.disable()
    try:
        return regard.load(model, device=device)
    finally:
        gc.freeze()
        gc.enable()


def _inputs(
    predictor: "Predictor", files: Sequence[Path], columns: Sequence[str], errors: str
) -> Iterator[Any]:
    """The inputs in files, on stdin without any; also files that are inputs, as images are, and folders of them."""
    given: Sequence[Path | None] = files or [None]
    for file in given:
        yield from model_inputs(file, predictor, columns, errors)


@contextmanager
def _outputs_to(path: Path | None) -> Iterator[TextIO]:
    """Where outputs are printed: a file, which is there when all are, or stdout. Libraries print to stderr, as Ray."""
    if path is None:
        stdout = sys.stdout
        with redirect_stdout(sys.stderr):
            yield stdout
        return
    with (
        atomic_file(path) as file,
        open(
            file.fileno(), "w", encoding="utf-8", errors="replace", newline="\n", closefd=False
        ) as text,
        redirect_stdout(sys.stderr),
    ):
        yield text


def _write_arrays(
    predicted: "Iterator[tuple[Any, list[Output]]]", out: Path, gives: str, losses: Losses
) -> None:
    """Write the outputs as one array, or in .npz as an array for each input, named by its number from 1."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for number, (_, outputs) in enumerate(predicted, start=1):
        losses.add(outputs)
        numbers = outputs[0].array
        if numbers is None and outputs[0].refused is None and outputs[0].text:
            wanted = "a model that gives vectors or numbers"
            remedy = "Name another file: its outputs are written line by line."
            raise InvalidArgument(
                "--out", wanted=wanted, got=f"one that gives {gives}", remedy=remedy
            )
        if numbers is not None:
            arrays[str(number)] = numbers
    whole = None
    if out.suffix == ".npy":
        shapes = {array.shape for array in arrays.values()}
        if len(shapes) != 1:
            shown = ", ".join(sorted(map(str, shapes))[:3]) or "no outputs"
            remedy = f"Write {out.with_suffix('.npz').name}, which has an array for each input."
            raise InvalidArgument(
                "--out", wanted="outputs of one shape in a .npy file", got=shown, remedy=remedy
            )
        values = list(arrays.values())
        whole = values[0] if len(values) == 1 else np.stack(values)
    with atomic_file(out) as file:
        if whole is None:
            np.savez(file, **arrays)
        else:
            np.save(file, whole)


def _conll_columns(predictor: "Predictor", files: Sequence[Path]) -> tuple[str, ...]:
    """The names of the columns of words and tags in CoNLL-U, if all inputs are; otherwise none."""
    from regard.data.conll import CONLLU_COLUMNS, is_conllu

    if not files or not all(map(is_conllu, files)):
        return ()
    column = predictor.recipe.data.target.column
    return "FORM", column if column in CONLLU_COLUMNS else "UPOS"


def _as_conll(output: "Output", columns: Sequence[str]) -> str:
    """The words and tags of a sentence in columns, and the blank line after it."""
    from regard.data.conll import formatted

    return formatted([output.words or (), output.tags or ()], columns)


def _end(losses: Losses) -> None:
    """End with the exit code of bad input where lines were refused, after the others were answered."""
    if losses.refused:
        raise typer.Exit(InputTooLong.exit_code)


def _check_none(options: dict[str, Any], where: str) -> None:
    for name, given in options.items():
        if given:
            raise InvalidArgument(
                name, wanted=f"nothing {where}", got=str(given), remedy="Leave one of the two out."
            )


def _attention_as_json(line: str, outputs: "Sequence[Output]") -> dict[str, Any]:
    """The tokens of every output and, by layer and head, a row of weights for each token."""
    each = [
        {
            "tokens": output.tokens,
            "attention": None if output.attention is None else output.attention.tolist(),
        }
        for output in outputs
    ]
    return {"input": line, "outputs": each}


def _times_after(line: Any, outputs: "Sequence[Output]") -> Sequence[str] | None:
    """The time stamps of the vectors that follow a window of a series; None of other inputs, and without times."""
    from regard.data.series_window import Window

    vectors = outputs[0].vectors
    if not isinstance(line, Window) or vectors is None:
        return None
    return line.stamps_after(len(vectors))


def _print_outputs(
    line: str,
    outputs: "Sequence[Output]",
    before: str,
    scores: bool,
    as_json: bool,
    shown: Callable[[str], str] = one_line,
    file: TextIO | None = None,
    *,
    flush: bool = True,
    times: Sequence[str] | None = None,
) -> None:
    """A line of JSON, or a line for each output: `before`, its score if requested, and the text.

    times   of the vectors of an output
    """
    if as_json:
        each = [output.as_json() for output in outputs]
        # Those of all labels are the same in every output.
        for values in each:
            values.pop("probabilities", None)
        probabilities = outputs[0].probabilities
        table: dict[str, Any] = {"input": line, "output": outputs[0].text, "outputs": each}
        if outputs[0].refused is not None:
            table["error"] = outputs[0].refused
        if times is not None:
            table["times"] = times
        if probabilities is not None:
            table["probabilities"] = probabilities
        show(json.dumps(table, ensure_ascii=False), file=file, flush=flush)
        return
    for output in outputs:
        score = (
            f"{output.score:.4f}\t" if scores and output.score is not None else ""
        )  # an empty line has none
        show(f"{before}{score}{shown(output.text)}", file=file, flush=flush)


def caption(
    model: ModelFolder,
    images: Annotated[
        list[Path], argument("IMAGE", "Images, or folders and .zip files of images.")
    ],
    draw: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Draw the attention of each word: PNG and SVG of each image, index.html of all.",
        ),
    ] = None,
    beam: Beam = None,
    max_length: MaxLength = None,
    scores: Scores = False,
    set_: DecodeChanges = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Print a caption for every image: its path, a tab and the caption.

    An image that cannot be read is reported on stderr, the others are captioned, and the exit code is 1. Drawings show
    the mean over the heads of the decoder's last layer.

    Examples: regard caption runs/captions photos/*.jpg

    regard caption runs/captions photos.zip --beam 5 --draw attention
    """
    options = decode_options(set_, beam_size=beam, max_length=max_length)
    broken = 0
    ends = Counter[str | None]()
    predictor = regard.load(model, device=device)
    captioned = regard.caption(predictor, images, draw=draw, scores=scores or as_json, **options)
    for each in tracked(captioned, "images", printing=True):
        if each.problem is not None:
            broken += 1
            print(f"regard: {each.problem}", file=sys.stderr)
            continue
        ends[each.outputs[0].finish_reason] += 1
        name = one_line(str(each.image)).replace("\t", "\\t")
        _print_outputs(str(each.image), each.outputs, f"{name}\t", scores, as_json)
        sys.stdout.flush()
    warn_of_ends(ends, has_source=True)
    if broken:
        print(f"regard: {counted(broken, 'image')} could not be captioned", file=sys.stderr)
        raise typer.Exit(1)


@contextmanager
def _audio(recording: Path) -> "Iterator[Path | BinaryIO]":
    """A recording as `regard.transcribe` takes it: its path, or standard input."""
    if recording != STDIN:
        yield recording
        return
    with open(0, "rb", closefd=False) as file:
        yield file


def transcribe(
    model: ModelFolder,
    recordings: Annotated[
        list[Path], argument("WAV", "Recordings of any length; -: audio on standard input.")
    ],
    window: Annotated[float, option("SECONDS", "Audio that is encoded at once.")] = 20.0,
    overlap: Annotated[
        float, option("SECONDS", "Audio that a window shares with the next one.")
    ] = 4.0,
    times: Annotated[
        bool,
        flag(
            "--times", "Print a line for each word: the second at which it begins, a tab, the word."
        ),
    ] = False,
    raw: Annotated[
        str | None,
        option(
            "FORMAT",
            "Samples without a header, little-endian: u8, s16le, s24le, s32le, f32le or f64le.",
        ),
    ] = None,
    rate: Annotated[int | None, option("N", "Of --raw: samples of a channel per second.")] = None,
    channels: Annotated[
        int, option("N", "Of --raw: channels, of which the mean is read.", least=1)
    ] = 1,
    device: Device = "auto",
) -> None:
    """Print the text of recordings of any length, a line for each, word by word as they are known.

    The model has a CTC head. A recording is read in windows that overlap, so that memory does not grow with its length.
    The words of a window are printed as soon as it has been read, also while audio is still arriving on standard input.
    A recording that cannot be read is reported on stderr, the others are transcribed, and the exit code is 1.

    Examples: regard transcribe runs/digit-strings recording.wav

    regard transcribe runs/digit-strings *.wav --times

    arecord -f S16_LE -r 16000 -t raw | regard transcribe runs/digit-strings - --raw s16le --rate 16000
    """
    if recordings.count(STDIN) > 1:
        raise InvalidArgument("WAV", wanted="- once", got="twice", remedy="Leave one out.")
    if STDIN in recordings and os.isatty(0):
        raise InvalidArgument(
            "WAV",
            wanted="audio on standard input",
            got="a terminal",
            remedy="Send it there: regard transcribe MODEL - < FILE.",
        )
    predictor = regard.load(model, device=device)
    broken = 0
    of_raw = {"raw": raw, "rate": rate, "channels": channels}
    for recording in recordings:
        before = ""
        try:
            with _audio(recording) as audio:
                options: dict[str, Any] = {"window": window, "overlap": overlap, **of_raw}
                for word in regard.transcribe(predictor, audio, **options):
                    text = one_line(word.text)
                    if times:
                        show(f"{word.seconds:.2f}\t{text}")
                    else:
                        show(f"{before}{text}", end="")
                    before = " "
        except InvalidData as error:
            broken += 1
            print(f"regard: {error}", file=sys.stderr)
            if not before:
                continue
        if not times:
            print(flush=True)
    if broken:
        print(f"regard: {counted(broken, 'recording')} could not be transcribed", file=sys.stderr)
        raise typer.Exit(1)
