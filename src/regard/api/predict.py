"""`regard predict`: outputs for lines as they arrive, in order,
each as soon as all before it are done.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from regard.checkpoint.format import find_checkpoint
from regard.core.errors import InvalidArgument, InvalidData
from regard.data import text
from regard.data.prefetch import arriving
from regard.inference import ray_data
from regard.inference.line_chunks import chunk_outputs, chunked
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.inference.score import pairs, score_lines
from regard.tasks.pipeline import Output, SequenceScore

Line = TypeVar("Line")  # a text, a path, a member of a zip file, or an array
CHUNK = 1024  # lines at once: enough to batch those of similar length
GPU_CHUNK = 16_384  # on a GPU, whose batches are larger; at the end of a chunk they run empty
TIMEOUT = 0.02  # seconds without a new line after which the lines so far are processed


def predict(
    model: str | Path | Predictor,
    lines: Iterable[Line],
    *,
    beside: dict[str, Iterator[Any]] | None = None,
    engine: str = "local",
    replicas: int | None = None,
    device: str = "auto",
    **options: Any,
) -> Iterator[tuple[Line, list[Output]]]:
    """Each line with its outputs, best first; one after the other, as the lines arrive.

    An empty line has an empty one.

    model      a run, a checkpoint, or a loaded model
    lines      inputs, read as they are needed
    beside     arguments of `Predictor.outputs` with one value for each line: prefixes, required,
               banned_in
    engine     "local": in this process; "ray": with Ray Data, on a cluster. All lines are read
               first, the outputs are the same. Ray's cluster is that of $RAY_ADDRESS or of this
               machine, else one is started for the call
    replicas   of the model, with the engine "ray" [default: one for each GPU, or for each processor
               without any]
    device     "cpu", "cuda", or "auto": a GPU where there is one
    options    other arguments of `Predictor.outputs`
    """
    if engine == "ray":
        if isinstance(model, Predictor):
            wanted = "a run or a checkpoint, which every replica loads, with the engine ray"
            got = "a loaded model"
            raise InvalidArgument("model", wanted=wanted, got=got, remedy="Give its folder.")
        if replicas is not None and replicas < 1:
            raise InvalidArgument(
                "replicas", wanted="1 or more", got=str(replicas), remedy="Leave it out."
            )
        folder = find_checkpoint(Path(model)).resolve()
        chunks = chunked(_lists(lines), beside or {})
        yield from ray_data.predict_chunks(
            folder, chunks, options, device=device, replicas=replicas
        )
        return
    if engine != "local":
        raise InvalidArgument(
            "engine", wanted="local or ray", got=repr(engine), remedy="Choose one."
        )
    if replicas is not None:
        raise InvalidArgument(
            "replicas", wanted="the engine ray", got=repr(engine), remedy="Leave one of them out."
        )
    predictor = load(model, device=device)
    size = GPU_CHUNK if next(predictor.model.parameters()).is_cuda else CHUNK
    for chunk in chunked(arriving(lines, size, TIMEOUT), beside or {}):
        yield from zip(chunk.lines, chunk_outputs(predictor, chunk, options), strict=True)


def _lists(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines in lists, in the sizes in which those of a file arrive."""
    remaining = iter(lines)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk


def score(
    model: str | Path | Predictor, files: Sequence[Path] = (), *, columns: Sequence[str] = ()
) -> Iterator[SequenceScore]:
    """The log-probabilities of given outputs, one `SequenceScore` for each line.

    model     a run, a checkpoint, or a loaded model
    files     parallel files of sources and targets, or one file of texts for a language model;
              none: stdin
    columns   of a file that is a table: those of the sources, then of the target; default: the
              recipe's
    """
    predictor = load(model)
    return score_lines(predictor, pairs(predictor, files, columns))


def read_constraints(path: Path) -> dict[str, Iterator[Any]]:
    """Phrases that each line's output must and must not hold: {"required": ["…"], "banned": ["…"]},
    or an empty line.

    For the argument `beside` of `predict`.
    """
    return {"required": _phrases(path, "required"), "banned_in": _phrases(path, "banned")}


def _phrases(path: Path, name: str) -> Iterator[list[str]]:
    for number, line in enumerate(text.lines(path), 1):
        try:
            given: Any = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            given = None
        known = isinstance(given, dict) and given.keys() <= {"required", "banned"}
        if not known or not all(_is_list_of_texts(each) for each in given.values()):
            raise InvalidData(
                path,
                number,
                wanted='{"required": ["a phrase"], "banned": ["another"]}, or nothing',
                got=line[:60],
                remedy="One line for each line of the input.",
            )
        yield given.get(name, [])


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
