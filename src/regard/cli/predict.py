"""`regard predict`."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import regard
from regard.cli.losses import Losses
from regard.cli.options import (
    Beam,
    DecodeChanges,
    Device,
    InputColumn,
    Json,
    MaxLength,
    ModelFolder,
    Scores,
    StopStrings,
    Truncate,
    argument,
    decode_options,
    flag,
    model_inputs,
    option,
    show,
)
from regard.cli.predict_outputs import (
    OutputPrinter,
    attention_line,
    conll_columns,
    outputs_to,
    write_arrays,
)
from regard.core.atomic_io import atomic_file
from regard.core.errors import InputTooLong, InvalidArgument
from regard.core.sanitize import one_line
from regard.views.progress import tracked

ARRAY_ENDINGS = (".npy", ".npz")  # of files that outputs of numbers are written to

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor
    from regard.tasks.base import Task


def predict(
    model: ModelFolder,
    files: Annotated[
        list[Path] | None,
        argument(
            "FILE",
            "Texts, lists of vectors or paths of files, one per line, or tables [default: stdin]; "
            "or images and .npy files themselves, and folders and .zip files of them.",
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
    stop: StopStrings = None,
    top_logprobs: Annotated[
        int | None,
        option(
            "N",
            "With --json: the N most likely tokens at each position, with log-probabilities.",
            least=0,
        ),
    ] = None,
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
            "Print all labels of a classifier with their probabilities, "
            "best first, separated by tabs.",
        ),
    ] = False,
    conll: Annotated[
        bool,
        flag(
            "--conll",
            "Print each word and its tag on a line, and a blank line after each sentence; of "
            "CoNLL-U files, in all ten columns.",
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
            "Write the outputs to this file instead, which appears when it is complete; vectors "
            "and numbers also as .npy or .npz.",
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

    The outputs of a language model of running text have line breaks of their own; --json has each
    on one line.

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
        of_one_process = {"--stream": stream, "--markup": markup, "--ensemble": ensemble}
        _check_none(of_one_process, f"with --engine {engine}")
    models = [model, *ensemble] if ensemble else model
    predictor = _loaded(models, device if engine == "local" else "cpu")
    losses = Losses(predictor)
    lines = losses.read(_inputs(predictor, files or (), column or (), errors))
    options = decode_options(
        set_,
        beam_size=beam,
        num_hypotheses=n_best,
        sample=sample or None,
        max_length=max_length,
        stop=stop,
        top_logprobs=top_logprobs,
    )
    if options.get("top_logprobs") and not as_json:
        raise InvalidArgument(
            "--top-logprobs", wanted="--json, which prints them", got="none", remedy="Add --json."
        )
    # Running text has several lines; other outputs are one line each, as the inputs are.
    shown = str if predictor.running_text else one_line
    task = predictor.task
    of_searches = {"--beam": beam, "--sample": sample, "--max-length": max_length}
    _check_meaning(task, of_searches, scores, options)
    # Each way of writing outputs excludes these.
    others: dict[str, Any] = {
        "--scores": scores,
        "--probabilities": probabilities,
        "--attention": attention,
        "--json": as_json,
    }
    if probabilities:
        _check_none({"--n-best": n_best, "--scores": scores}, "beside --probabilities")
        if not task.has_probabilities:
            raise _without("--probabilities", "labels", task, remedy="Use --json.")
    if conll:
        _check_none(others | {"--n-best": n_best}, "beside --conll")
        if not task.tags_words:
            raise _without("--conll", "tags", task, remedy="Leave it out.")
        others["--conll"] = conll
    of_lines = {"--prefix": prefix, "--constraints": constraints}
    if stream:
        refused = {"--markup": markup, "--out": out, "--workers": workers}
        _check_none(others | of_lines | refused, "in a stream")
        _print_stream(predictor, lines, losses, shown, truncate=truncate, **options)
        _end(losses)
        return
    of_inputs: dict[str, Any] = {"truncate": truncate, "skip_too_long": True}
    if markup:
        _check_none(others | {"--n-best": n_best, "--workers": workers}, "beside --markup")
        beside = _beside(prefix, constraints)
        _print_marked(predictor, lines, losses, out, beside=beside, **of_inputs, **options)
        _end(losses)
        return
    if workers is not None:
        of_inputs["workers"] = workers
    given_model = predictor if engine == "local" else model
    predict_lines = partial(
        regard.predict, given_model, lines, engine=engine, replicas=replicas, device=device
    )
    if out is not None and out.suffix in ARRAY_ENDINGS:
        _check_none(others | {"--n-best": n_best} | of_lines, f"with --out {out.name}")
        predicted = predict_lines(**of_inputs, **options)
        write_arrays(tracked(predicted, "lines"), out, task.gives, losses)
        _end(losses)
        return
    count = predictor.with_decode(**options).recipe.decode.num_hypotheses
    options |= of_inputs
    options |= {
        "scores": scores or as_json,
        "attention": attention is not None,
        "tokens": as_json or attention is not None or losses.needs_tokens,
    }
    printer = OutputPrinter(
        shown=shown,
        count=count,
        scores=scores,
        as_json=as_json,
        probabilities=probabilities,
        conll=conll_columns(predictor, files or ()) if conll else None,
        flush=out is None,
    )
    attention_to = nullcontext() if attention is None else atomic_file(attention)
    with outputs_to(out) as printed, attention_to as attention_file:
        predicted = predict_lines(beside=_beside(prefix, constraints), **options)
        for line, outputs in tracked(predicted, "lines", printing=printed.isatty()):
            losses.add(outputs)
            if attention_file is not None:
                attention_file.write(attention_line(str(line), outputs))
            printer.print(line, outputs, printed)
    _end(losses)


def _check_meaning(
    task: "Task", of_searches: dict[str, Any], scores: bool, options: dict[str, Any]
) -> None:
    """Refuse options that mean nothing for outputs of this task."""
    from regard.tasks.pipeline import check_direct_keys, check_meaning

    if not task.searches:
        # Its output follows from one forward pass.
        if task.has_beam:
            del of_searches["--beam"]
        check_meaning(of_searches, task.gives)
        check_direct_keys(options, task.gives, has_beam=task.has_beam)
    if not task.has_scores:
        check_meaning({"--scores": scores}, task.gives)


def _without(option: str, outputs: str, task: "Task", *, remedy: str) -> InvalidArgument:
    """The error of an option whose outputs this model does not give."""
    return InvalidArgument(
        option,
        wanted=f"a model that gives {outputs}",
        got=f"one that gives {task.gives}",
        remedy=remedy,
    )


def _print_stream(
    predictor: "Predictor",
    lines: Iterator[Any],
    losses: Losses,
    shown: Callable[[str], str],
    *,
    truncate: bool,
    **options: Any,
) -> None:
    """Print each output as it is generated."""
    has_source = bool(predictor.recipe.data.source_fields)
    for number, line in enumerate(tracked(lines, "lines", printing=True), start=1):
        try:
            if line or not has_source:
                for piece in predictor.stream(line, line=number, truncate=truncate, **options):
                    show(shown(piece), end="")
        except InputTooLong as error:
            losses.refuse(InputTooLong(f"line {number}", error.tokens, error.limit))
        print(flush=True)


def _print_marked(
    predictor: "Predictor", lines: Iterator[Any], losses: Losses, out: Path | None, **options: Any
) -> None:
    """Print outputs with the tags of their inputs."""
    from regard.api.align import with_markup_or_reason

    marked = with_markup_or_reason(predictor, lines, **options)
    with outputs_to(out) as printed:
        for text, refused in tracked(marked, "lines", printing=printed.isatty()):
            if refused is not None:
                losses.refuse(refused)
            show(one_line(text), file=printed)


def _beside(prefix: Path | None, constraints: Path | None) -> dict[str, Iterator[Any]]:
    """What belongs to each line of the input: the beginning of its output, and phrases in it."""
    from regard.api.predict import read_constraints
    from regard.data.text import lines

    beside: dict[str, Iterator[Any]] = {}
    if prefix is not None:
        beside["prefixes"] = lines(prefix)
    if constraints is not None:
        beside |= read_constraints(constraints)
    return beside


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
    """The inputs in files, on stdin without any; also files that are inputs, as images are,
    and folders of them.
    """
    given: Sequence[Path | None] = files or [None]
    for file in given:
        yield from model_inputs(file, predictor, columns, errors)


def _end(losses: Losses) -> None:
    """Say what was lost, and end with the exit code of bad input where lines were refused."""
    losses.say()
    if losses.refused:
        raise typer.Exit(InputTooLong.exit_code)


def _check_none(options: dict[str, Any], where: str) -> None:
    for name, given in options.items():
        if given:
            raise InvalidArgument(
                name, wanted=f"nothing {where}", got=str(given), remedy="Leave one of the two out."
            )
