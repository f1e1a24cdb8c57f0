"""The outputs of `regard predict` and `regard caption`: printed line by line, as JSON,
as arrays.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from regard.cli.losses import Losses
from regard.cli.options import show
from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidArgument
from regard.core.sanitize import one_line

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor
    from regard.tasks.pipeline import Output


@dataclass(frozen=True)
class OutputPrinter:
    """Prints the outputs of an input.

    shown           what is shown of the text of an output
    count           outputs of each input: as many lines are printed, also where there are fewer
    scores          before each output its log-probability
    as_json         all outputs of an input as one line of JSON
    probabilities   all labels with their probabilities instead
    conll           words and tags in columns instead: their names in CoNLL-U, or none of other
                    files
    flush           after each input
    """

    shown: Callable[[str], str]
    count: int
    scores: bool
    as_json: bool
    probabilities: bool
    conll: Sequence[str] | None
    flush: bool

    def print(self, line: Any, outputs: "Sequence[Output]", file: TextIO) -> None:
        """Print the outputs of a line of the input: a text, or what such a line stands for."""
        if self.conll is not None:
            show(_as_conll(outputs[0], self.conll), end="", file=file, flush=self.flush)
        elif self.as_json:
            times = _times_after(line, outputs)
            print_json(str(line), outputs, file, times=times, flush=self.flush)
        elif self.probabilities:
            labels = (outputs[0].probabilities or {}).items()  # none for an empty line
            cells = [f"{one_line(label)}\t{value:.4f}" for label, value in labels]
            show("\t".join(cells), file=file)
        else:
            print_texts(outputs, self.scores, self.shown, file, flush=self.flush)
            # The same number of lines for every input.
            missing = self.count - len(outputs)
            print(end="\n" * missing, file=file, flush=self.flush)


def _times_after(line: Any, outputs: "Sequence[Output]") -> Sequence[str] | None:
    """The time stamps of the vectors that follow a window of a series;
    None of other inputs, and without times.
    """
    from regard.data.series_window import Window

    vectors = outputs[0].vectors
    if not isinstance(line, Window) or vectors is None:
        return None
    return line.stamps_after(len(vectors))


def print_json(
    line: str,
    outputs: "Sequence[Output]",
    file: TextIO | None = None,
    *,
    times: Sequence[str] | None = None,
    flush: bool = True,
) -> None:
    """A line of JSON with all outputs of an input.

    times   of the vectors of an output
    """
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


def print_texts(
    outputs: "Sequence[Output]",
    scores: bool,
    shown: Callable[[str], str] = one_line,
    file: TextIO | None = None,
    *,
    before: str = "",
    flush: bool = True,
) -> None:
    """A line for each output: `before`, its score if requested, and the text."""
    for output in outputs:
        score = ""
        if scores and output.score is not None:  # an empty line has none
            score = f"{output.score:.4f}\t"
        show(f"{before}{score}{shown(output.text)}", file=file, flush=flush)


def attention_line(line: str, outputs: "Sequence[Output]") -> bytes:
    """A line of JSON: of every output its tokens,
    and by layer and head a row of weights for each.
    """
    each = []
    for output in outputs:
        weights = None if output.attention is None else output.attention.tolist()
        each.append({"tokens": output.tokens, "attention": weights})
    table = {"input": line, "outputs": each}
    return json.dumps(table, ensure_ascii=False).encode() + b"\n"


def conll_columns(predictor: "Predictor", files: Sequence[Path]) -> tuple[str, ...]:
    """The names of the columns of words and tags in CoNLL-U, if all inputs are; otherwise none."""
    from regard.data.conll import CONLLU_COLUMNS, is_conllu

    if not files or not all(map(is_conllu, files)):
        return ()
    column = predictor.recipe.data.target.column
    if column not in CONLLU_COLUMNS:
        column = "UPOS"
    return "FORM", column


def _as_conll(output: "Output", columns: Sequence[str]) -> str:
    """The words and tags of a sentence in columns, and the blank line after it."""
    from regard.data.conll import formatted

    return formatted([output.words or (), output.tags or ()], columns)


@contextmanager
def outputs_to(path: Path | None) -> Iterator[TextIO]:
    """Where outputs are printed: a file, which is there when all are, or stdout.
    Libraries print to stderr, as Ray.
    """
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


def write_arrays(
    predicted: "Iterator[tuple[Any, list[Output]]]", out: Path, gives: str, losses: Losses
) -> None:
    """Write the outputs as one array, or in .npz as an array for each input,
    named by its number from 1.
    """
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
