"""Log-probabilities of given targets, by teacher forcing."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import conll
from regard.data.text import is_table, line_of, lines, parallel, rows as table_rows
from regard.inference.file_inputs import files_beside, value_of
from regard.tasks.pipeline import SequenceScore

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor

CHUNK = 1024  # lines at once: enough to batch those of similar length


def score_lines(
    predictor: "Predictor", examples: Iterable[tuple[Any, ...]], batch_tokens: int | None = None
) -> Iterator[SequenceScore]:
    """Scores of (source, target) pairs, or of (text,) for a language model,
    in order and in chunks of lines.
    """
    examples = iter(examples)
    while chunk := list(islice(examples, CHUNK)):
        columns = list(zip(*chunk, strict=True))
        targets = columns[1] if len(columns) > 1 else None
        yield from predictor.score(columns[0], targets, batch_tokens=batch_tokens)


def pairs(
    predictor: "Predictor", files: Sequence[Path], chosen: Sequence[str] = ()
) -> Iterator[tuple[Any, ...]]:
    """Sources (several with tabs between them) and targets: of parallel files, of a table,
    or of the columns of stdin.

    The columns of stdin are separated by tabs. A language model has texts alone. `chosen` are
    columns of tables.
    """
    config = predictor.recipe.data
    vocabularies = (*predictor.sources, predictor.target)
    names = list(config.fields)
    columns = config.table_columns(chosen)
    tokens = len(files) == 1 and config.is_token_file(files[0])
    if tokens:
        columns = config.token_columns(files[0], chosen)
        rows = conll.cells(files[0], columns)
    elif len(files) == 1 and is_table(files[0]):
        rows = table_rows(files[0], columns)
    elif files and len(files) != len(names):
        wanted = "a file of texts"
        if len(names) > 1:
            wanted = f"{len(names)} files, of {' and '.join(names)}, or a table"
        raise InvalidArgument(
            "files", wanted=wanted, got=str(len(files)), remedy="Or none, for stdin."
        )
    elif files:
        rows = parallel(files, columns=[[column] for column in columns])
    else:
        rows = map(_columns if len(names) > 1 else _only_column, lines("/dev/stdin"))
    # What a cell of a table names is relative to it,
    # and what a line names to the working directory.
    in_table = len(files) == 1 and not tokens and is_table(files[0])
    stores = files_beside(config, files[0]) if in_table else None
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            wanted = f"{' and '.join(names)}, separated by tabs"
            remedy = f"Or give {len(names)} files."
            raise InvalidArgument(
                f"line {number}", wanted=wanted, got=f"{len(row)} columns", remedy=remedy
            )
        values: list[Any] = []
        parts = zip(config.fields.values(), row, vocabularies, strict=True)
        for i, (field, cell, vocabulary) in enumerate(parts):
            try:
                found = value_of(field, cell) if stores is None else stores.find(field, cell)
                field.check_cell(vocabulary, found)
                values.append(found)
            except InvalidData:
                raise
            except InvalidArgument as error:
                file: str | Path = "stdin"
                if files:
                    file = files[i] if len(files) > 1 else files[0]
                line: int | None = number
                if tokens:
                    line = conll.line_of(file, number, columns, "strict")
                elif files:
                    line = line_of(file, number)
                raise InvalidData(
                    file, line, wanted=error.wanted, got=error.got, remedy=error.remedy
                ) from None
        *given, target = values
        if given:
            yield _joined(given), target
        else:
            yield (target,)


def _columns(line: str) -> tuple[str, ...]:
    return tuple(line.split("\t"))


def _only_column(line: str) -> tuple[str, ...]:
    return (line,)


def _joined(sources: Sequence[Any]) -> Any:
    """One source as it is; several texts with tabs between them, and others as a tuple."""
    if len(sources) == 1:
        return sources[0]
    are_texts = all(isinstance(each, str) for each in sources)
    if are_texts:
        return "\t".join(sources)
    return tuple(sources)
