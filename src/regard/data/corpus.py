"""Prepared corpora: examples as arrays of ids on disk,
made once per configuration and file content, memory-mapped.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from regard.core.atomic_io import atomic_file, file_lock, named_os_errors
from regard.core.errors import InvalidArgument, InvalidData, Locked
from regard.data.column_files import TextWriter
from regard.data.columns import Column, Ids, Indices, JoinedColumn, MultiSourceColumn
from regard.data.config import DataConfig
from regard.data.example import Split
from regard.data.fields.base import FIELDS, Field, make_field
from regard.data.fingerprint import FORMAT, Files, fingerprints, key_of, stamps
from regard.data.mapped_arrays import damaged, digest_of
from regard.data.sources import at_example, examples
from regard.data.special_tokens import SpecialTokens
from regard.data.vocabulary import Vocabulary

CHUNK = 4096  # examples tokenized at once
SETTINGS = ("special_tokens", "size", "spare")  # of a vocabulary, beside its file
VocabularyType = Vocabulary
# Of each source, None for images; empty without a source.
SourceVocabularies = tuple[VocabularyType | None, ...]
Vocabularies = tuple[SourceVocabularies, VocabularyType]  # of the sources and of the target
PrepareProgress = Callable[[str, int], None]


@dataclass(frozen=True)
class Corpus:
    """The examples of a split, as ids:
    texts with the special tokens of their vocabulary around them.
    """

    source: Column | None
    target: Column

    def __len__(self) -> int:
        return len(self.target)

    def source_lengths(self, indices: Indices) -> Indices:
        """Lengths in tokens, of all sources together: 1 for a label,
        `image_token_cost` for an image.
        """
        if self.source is None:
            return np.zeros(len(indices), dtype=np.int64)
        return self.source.lengths(indices)

    def row(self, i: int) -> tuple[Ids | int | tuple[Ids | int, ...] | None, Ids | int]:
        """One example: its source (ids, a label or pixels; several as a tuple; or None)
        and its target.
        """
        source = None if self.source is None else self.source.row(i)
        return source, self.target.row(i)


@dataclass(frozen=True)
class Prepared:
    """All splits of a data configuration with their vocabularies."""

    folder: Path
    key: str  # a hash of the configuration, the files' content and the vocabularies
    record: Mapping[str, Any]  # configuration, files, counts, and numbers of examples left out
    sources: SourceVocabularies
    target: VocabularyType
    train: Corpus | None
    valid: Corpus | None
    test: Corpus | None

    @staticmethod
    def open(folder: str | Path) -> "Prepared":
        """Open a folder that `prepare` made; a file whose content has changed is refused."""
        folder = Path(folder)
        record = _record(folder)
        for name, digest in record["hashes"].items():
            if digest_of(folder / name) != digest:
                raise damaged(folder / name, "other bytes than were written")
        fields = record["fields"].values()
        # A shared vocabulary is opened once.
        named = {field["vocabulary"]: field for field in fields if field["vocabulary"] is not None}
        opened = {file: _open_vocabulary(folder / file, field) for file, field in named.items()}
        vocabularies = [opened.get(field["vocabulary"]) for field in fields]
        corpora = {split: _open(folder, split, record, vocabularies) for split in record["splits"]}
        *sources, target = vocabularies
        assert target is not None
        target = as_running_text(target, record["config"]["context_length"])
        train, valid, test = (corpora.get(split) for split in ("train", "valid", "test"))
        return Prepared(folder, record["key"], record, tuple(sources), target, train, valid, test)

    @property
    def source(self) -> VocabularyType | None:
        """The vocabulary of the one source; None without a source,
        for images and for several sources.
        """
        if len(self.sources) != 1:
            return None
        return self.sources[0]

    @property
    def vocabularies(self) -> Vocabularies:
        return self.sources, self.target

    @property
    def special_tokens(self) -> SpecialTokens:
        """Those of the targets; labels have none, and the default stands for them."""
        return self.target.special_tokens


def prepare(
    config: DataConfig,
    folder: str | Path,
    *,
    vocabularies: tuple[SourceVocabularies, VocabularyType | None] | None = None,
    splits: Sequence[Split] | None = None,
    progress: PrepareProgress | None = None,
) -> Prepared:
    """Learn vocabularies from the training split, or use those given (sources, target),
    and encode all examples.

    With given vocabularies, only the files of these `splits` need to be there; by default all.

    A target vocabulary of None beside given source vocabularies is learned. A corpus in this folder
    of the same configuration and content is reused. A run that is killed leaves only a partial
    folder, which the next one removes.
    """
    progress = progress or (lambda stage, n: None)
    given = None
    if vocabularies is not None:
        sources, target = vocabularies
        if target is None:
            target = _learn_target(config, len(sources), progress)
        given = sources, target
        _check_vocabularies(config, given)
    if splits is None:
        splits = config.splits
    before = stamps(config, splits)
    files = fingerprints(config, progress, splits)
    folder = Path(folder)
    with named_os_errors(folder, "a folder to write to"):
        folder.mkdir(parents=True, exist_ok=True)
    destination = folder / f"corpus-{key_of(config, files, None)[:16]}"
    if given is not None:  # which may equal those learned from these data
        key = key_of(config, files, _hashes(given))
        if not (destination.exists() and _record(destination)["key"] == key):
            destination = folder / f"corpus-{key[:16]}"
    _remove_leftovers(folder)
    if not destination.exists():
        with (
            named_os_errors(folder, "a folder to write to"),
            file_lock(_lock(destination), wait=True) as alive,
        ):

            def shown(stage: str, count: int) -> None:
                alive()
                progress(stage, count)

            if not destination.exists():  # another process may have made it meanwhile
                _make(config, destination, files, given, before, shown)
    return Prepared.open(destination)


def _make(
    config: DataConfig,
    destination: Path,
    files: Files,
    vocabularies: Vocabularies | None,
    before: Mapping[str, tuple[int, ...]],
    progress: PrepareProgress,
) -> None:
    """Write a corpus; files that have changed since they had the stamps `before` are refused."""
    partial = destination.with_name(f".{destination.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir()
    try:
        _write(config, partial, files, vocabularies or _learn(config, progress), progress)
        after = stamps(config, list(files))
        for path in before:
            if before[path] != after.get(path):
                wanted = "a file that does not change while it is read"
                got = "one that changed"
                raise InvalidData(
                    path, wanted=wanted, got=got, remedy="Begin again when it is complete."
                )
        os.replace(partial, destination)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _lock(corpus: Path) -> Path:
    return corpus.with_name(f".{corpus.name}.lock")


def _remove_leftovers(folder: Path) -> None:
    """Remove partial corpora that no process works on."""
    for leftover in folder.glob(".corpus-*.partial"):
        with suppress(Locked, OSError), file_lock(leftover.with_suffix(".lock"), wait=False):
            shutil.rmtree(leftover, ignore_errors=True)


def _write(
    config: DataConfig,
    folder: Path,
    files: Files,
    vocabularies: Vocabularies,
    progress: PrepareProgress,
) -> None:
    sources, target = vocabularies
    target = as_running_text(target, config.context_length)
    named = dict(zip(config.fields, (*sources, target), strict=True))
    fields: dict[str, dict[str, Any]] = {}
    for name, vocabulary in named.items():
        fields[name] = {"kind": config.fields[name].kind, "vocabulary": None}
        if vocabulary is not None:
            shared = config.has_shared_vocab and vocabulary.hash == target.hash
            saved = "vocabulary.json" if shared else f"{name}.vocabulary.json"
            fields[name]["vocabulary"] = saved
            vocabulary.save(folder / saved)
            fields[name] |= vocabulary.settings
    splits = {split: _write_split(config, split, folder, named, progress) for split in files}
    hashes = {path.name: digest_of(path) for path in sorted(folder.iterdir())}
    about = {"files": files, "config": asdict(config), "fields": fields}
    about["key"] = key_of(config, files, _hashes((sources, target)))
    record = {"format": FORMAT, **about, "splits": splits, "hashes": hashes}
    with atomic_file(folder / "prepared.json") as file:
        file.write(_as_json(record | {"sha256": _record_hash(record)}))


def _learn(config: DataConfig, progress: PrepareProgress) -> Vocabularies:
    fields = list(config.fields.values())
    shared: list[int] = []
    if config.join_sources:
        shared = list(range(len(fields) - 1))
    elif config.has_shared_vocab:
        shared = [i for i, field in enumerate(fields) if field.tokenization is not None]
    learned: dict[int, VocabularyType | None] = {}
    for i, field in enumerate(fields):
        if field.vocabulary_class is None or i in learned:
            continue
        columns = shared if i in shared else [i]
        values = _training_values(config, columns, progress)
        is_target = i == len(fields) - 1
        learned |= dict.fromkeys(columns, field.learn(values, is_target=is_target))
    target = learned[len(fields) - 1]
    assert target is not None
    return tuple(learned.get(i) for i in range(len(fields) - 1)), target


def _learn_target(config: DataConfig, column: int, progress: PrepareProgress) -> VocabularyType:
    learned = config.target.learn(_training_values(config, [column], progress), is_target=True)
    assert learned is not None
    return learned


def _training_values(
    config: DataConfig, columns: Sequence[int], progress: PrepareProgress
) -> Iterator[Any]:
    """The values of these columns of the training examples: the sources,
    and the target after them.
    """
    fields = list(config.fields.values())
    firsts: dict[int, Any] = {}
    for number, example in enumerate(examples(config, "train"), start=1):
        values = (*example.sources, example.target)
        for column in columns:
            try:
                value = fields[column].parse(values[column])
                fields[column].check_together(firsts.setdefault(column, value), value)
            except InvalidArgument as error:
                raise at_example(config, "train", number, error) from None
            yield value
        if number % CHUNK == 0:
            progress("vocabulary", number)


def _write_split(
    config: DataConfig,
    split: Split,
    folder: Path,
    vocabularies: Mapping[str, VocabularyType | None],
    progress: PrepareProgress,
) -> dict[str, Any]:
    """Write the arrays of one split, with the vocabulary of each field; returns its counts."""
    running = config.context_length is not None
    writers = {
        name: field.writer(
            folder / f"{split}.{name}", vocabularies[name], running=running and name == "target"
        )
        for name, field in config.fields.items()
    }
    read = 0
    kept = 0
    limited = [name for name, field in config.fields.items() if field.limit_key is not None]
    reported = limited if split == "train" else ()
    left_out = dict.fromkeys(reported, 0)
    remaining = examples(config, split)
    while chunk := list(islice(remaining, CHUNK)):
        columns = zip(*((*example.sources, example.target) for example in chunk), strict=True)
        encoded = {
            name: _encode(config, name, vocabularies[name], list(column), split, read)
            for name, column in zip(config.fields, columns, strict=True)
        }
        _check_targets(config, encoded, split, read)
        keep = [True] * len(chunk)
        for name in left_out:
            field = config.fields[name]
            for i, row in enumerate(encoded[name]):
                if keep[i] and field.exceeds_limit(row):
                    keep[i] = False
                    left_out[name] += 1
        for name, rows in encoded.items():
            field = config.fields[name]
            is_target = name == "target"
            vocabulary = vocabularies[name]
            kept_rows = [
                field.complete(vocabulary, row, is_target=is_target, running=running)
                for row, stays in zip(rows, keep, strict=True)
                if stays
            ]
            writers[name].add(kept_rows)
        read += len(chunk)
        kept += sum(keep)
        progress(split, read)
    for writer in writers.values():
        writer.close()
    if not kept:
        key = next((config.fields[name].limit_key for name in limited), None) or "max_tokens"
        wanted = "an example that is short enough"
        got = f"none of {read:,}"
        raise InvalidArgument(key, wanted=wanted, got=got, remedy=f"Raise data.*.{key}.")
    tokens = {
        name: writer.ids.count for name, writer in writers.items() if isinstance(writer, TextWriter)
    }
    return {
        "examples": kept,
        "tokens": tokens,
        "left_out": {f"{name}.{config.fields[name].limit_key}": n for name, n in left_out.items()},
    }


def _check_targets(
    config: DataConfig, encoded: Mapping[str, Sequence[Any]], split: Split, before: int
) -> None:
    """Refuse a target that does not fit its sources, such as more tags than words."""
    sources = [(field, encoded[name]) for name, field in config.fields.items() if name != "target"]
    for row, target in enumerate(encoded["target"]):
        positions = [field.positions(rows[row]) for field, rows in sources]
        try:
            config.target.check_beside(target, positions)
        except InvalidArgument as error:
            raise at_example(config, split, before + row + 1, error) from None


def _encode(
    config: DataConfig,
    name: str,
    vocabulary: VocabularyType | None,
    cells: list[Any],
    split: Split,
    before: int,
) -> list[Any]:
    """The encoded values of a column of some examples,
    of which the first has `before` examples before it.
    """
    field = config.fields[name]
    try:
        return field.encode(vocabulary, [field.parse(cell) for cell in cells])
    except InvalidArgument:
        # One value is wrong: find it, to name its example.
        for number, cell in enumerate(cells, start=before + 1):
            try:
                field.encode(vocabulary, [field.parse(cell)])
            except InvalidArgument as error:
                raise at_example(config, split, number, error) from None
        raise


def _record(folder: Path) -> dict[str, Any]:
    path = folder / "prepared.json"
    try:
        record = json.loads(path.read_text("utf-8"))
        if record["format"] != FORMAT:
            raise damaged(
                path, f"format {record['format']} (this version of Regard reads {FORMAT})"
            )
        if record.pop("sha256") != _record_hash(record):
            raise damaged(path, "other content than was written")
        return cast(dict[str, Any], record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidData):
            raise
        raise damaged(path, str(error)) from None


def _as_json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, ensure_ascii=False).encode()


def _record_hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(_as_json(record)).hexdigest()


def _open_vocabulary(path: Path, stored: Mapping[str, Any]) -> VocabularyType:
    kind = FIELDS[stored["kind"]].vocabulary_class
    assert kind is not None
    return kind.load(path, {key: stored[key] for key in SETTINGS if key in stored})


def _fields(config: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of the configuration in a record, by name."""
    tables = {"target": config["target"]}
    if config["sources"] is not None:
        several = {f"sources.{i}": each for i, each in enumerate(config["sources"], start=1)}
        tables = several | tables
    elif config["source"] is not None:
        tables = {"source": config["source"]} | tables
    return {name: make_field(**table) for name, table in tables.items()}


def _open(
    folder: Path,
    split: str,
    record: dict[str, Any],
    vocabularies: Sequence[VocabularyType | None],
) -> Corpus:
    config = record["config"]
    columns: dict[str, Column] = {}
    for (name, field), vocabulary in zip(_fields(config).items(), vocabularies, strict=True):
        context_length = config["context_length"] if name == "target" else None
        columns[name] = field.open(folder / f"{split}.{name}", vocabulary, context_length)
    target = columns.pop("target")
    for name, source in columns.items():
        if len(source) != len(target):
            raise damaged(
                folder / f"{split}.{name}", f"{len(source):,} sources and {len(target):,} targets"
            )
    sources = tuple(columns.values())
    if len(sources) < 2:
        only = sources[0] if sources else None
        return Corpus(only, target)
    several = JoinedColumn if config.get("join_sources") else MultiSourceColumn
    return Corpus(several(sources), target)


def as_running_text(target: VocabularyType, context_length: int | None) -> VocabularyType:
    """The target vocabulary of data with this context_length: with one,
    the end token is a line break.
    """
    if context_length is None:
        return target
    return target.for_running_text()


def _hashes(vocabularies: Vocabularies) -> list[str | None]:
    sources, target = vocabularies
    return [None if vocabulary is None else vocabulary.hash for vocabulary in (*sources, target)]


def _check_vocabularies(config: DataConfig, vocabularies: Vocabularies) -> None:
    sources, target = vocabularies
    wanted = {name: field.vocabulary_class or type(None) for name, field in config.fields.items()}
    got = [type(vocabulary) for vocabulary in (*sources, target)]
    if got != list(wanted.values()):
        described = ", ".join(f"{each.__name__} for {name}" for name, each in wanted.items())
        names = ", ".join(each.__name__ for each in got)
        remedy = "Give those that the model was trained with."
        raise InvalidArgument("vocabularies", wanted=described, got=names, remedy=remedy)
