"""Prepared corpora: examples as arrays of ids on disk, made once per configuration and file content, memory-mapped."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from regard.core.atomic_io import atomic_file, file_lock, named_os_errors
from regard.core.errors import InvalidArgument, InvalidData, Locked
from regard.data.arrays import (
    Column,
    ColumnWriter,
    Ids,
    ImageColumn,
    ImageWriter,
    Indices,
    LabelWriter,
    MultiSourceColumn,
    SourceColumn,
    TextWriter,
    damaged,
    digest_of,
    open_column,
)  # fmt: skip
from regard.data.config import DataConfig, FieldConfig
from regard.data.example import Split
from regard.data.fingerprint import FORMAT, Files, fingerprints, key_of, stamps
from regard.data.label_check import target_labels
from regard.data.sources import at_example, examples
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.data.vocabulary import Labels

CHUNK = 4096  # examples tokenized at once
SETTINGS = ("special_tokens", "size", "spare")  # of a vocabulary, beside its file
VocabularyType = Tokenizer | Labels
SourceVocabularies = tuple[
    VocabularyType | None, ...
]  # of each source, None for images; empty without a source
Vocabularies = tuple[SourceVocabularies, VocabularyType]  # of the sources and of the target
PrepareProgress = Callable[[str, int], None]


@dataclass(frozen=True)
class Corpus:
    """The examples of a split, as ids: texts with the special tokens of their vocabulary around them."""

    source: SourceColumn | None
    target: Column

    def __len__(self) -> int:
        return len(self.target)

    def source_lengths(self, indices: Indices) -> Indices:
        """Lengths in tokens, of all sources together: 1 for a label, `image_token_cost` for an image."""
        return (
            np.zeros(len(indices), dtype=np.int64)
            if self.source is None
            else self.source.lengths(indices)
        )

    def row(self, i: int) -> tuple[Ids | int | tuple[Ids | int, ...] | None, Ids | int]:
        """One example: its source (ids, a label or pixels; several as a tuple; or None) and its target."""
        return None if self.source is None else self.source.row(i), self.target.row(i)


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
        corpora = {split: _open(folder, split, record) for split in record["splits"]}
        fields = record["fields"].values()
        named = {
            field["vocabulary"]: field for field in fields if field["vocabulary"] is not None
        }  # shared: once
        opened = {file: _open_vocabulary(folder / file, field) for file, field in named.items()}
        *sources, target = (opened.get(field["vocabulary"]) for field in fields)
        assert target is not None
        target = as_running_text(target, record["config"]["context_length"])
        train, valid, test = (corpora.get(split) for split in ("train", "valid", "test"))
        return Prepared(folder, record["key"], record, tuple(sources), target, train, valid, test)

    @property
    def source(self) -> VocabularyType | None:
        """The vocabulary of the one source; None without a source, for images and for several sources."""
        return self.sources[0] if len(self.sources) == 1 else None

    @property
    def vocabularies(self) -> Vocabularies:
        return self.sources, self.target

    @property
    def special_tokens(self) -> SpecialTokens:
        """Those of the targets; labels have none, and the default stands for them."""
        return self.target.special_tokens if isinstance(self.target, Tokenizer) else DEFAULT_TOKENS


def prepare(
    config: DataConfig,
    folder: str | Path,
    *,
    vocabularies: tuple[SourceVocabularies, VocabularyType | None] | None = None,
    splits: Sequence[Split] | None = None,
    progress: PrepareProgress | None = None,
) -> Prepared:
    """Learn vocabularies from the training split, or use those given (sources, target), and encode all examples.

    With given vocabularies, only the files of these `splits` need to be there; by default all.

    A target vocabulary of None beside given source vocabularies is learned. A corpus in this folder of the same
    configuration and content is reused. A run that is killed leaves only a partial folder, which the next one removes.
    """
    progress = progress or (lambda stage, n: None)
    given = None
    if vocabularies is not None:
        sources, target = vocabularies
        if target is None:
            target = _train(
                config, config.target, _training_texts(config, [len(sources)], progress)
            )
        given = sources, target
        _check_vocabularies(config, given)
    splits = config.splits if splits is None else splits
    before, files = stamps(config, splits), fingerprints(config, progress, splits)
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
                wanted, got = "a file that does not change while it is read", "one that changed"
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
            fields[name]["vocabulary"] = saved = (
                "vocabulary.json" if shared else f"{name}.vocabulary.json"
            )
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
    shared = (
        [i for i, field in enumerate(fields) if field.kind == "text"]
        if config.has_shared_vocab
        else []
    )
    learned: dict[int, VocabularyType] = {}
    for i, field in enumerate(fields):
        if field.kind != "image" and i not in learned:
            columns = shared if i in shared else [i]
            learned |= dict.fromkeys(
                columns, _train(config, field, _training_texts(config, columns, progress))
            )
    return tuple(learned.get(i) for i in range(len(fields) - 1)), learned[len(fields) - 1]


def _train(config: DataConfig, field: FieldConfig, texts: Iterator[str]) -> VocabularyType:
    if field.kind == "label":
        return target_labels(texts) if field is config.target else Labels(texts)
    return train_tokenizer(field.tokenizer, texts, field.vocab_size, field.lowercase)


def _training_texts(
    config: DataConfig, columns: Sequence[int], progress: PrepareProgress
) -> Iterator[str]:
    """The texts of these columns of the training examples: the sources, and the target after them."""
    for number, example in enumerate(examples(config, "train"), start=1):
        values = (*example.sources, example.target)
        for column in columns:
            yield cast(str, values[column])
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
        name: _writer(folder / f"{split}.{name}", vocabularies[name], field, running)
        for name, field in config.fields.items()
    }
    if running:
        assert isinstance(vocabularies["target"], Tokenizer)
        writers["target"].add(
            [[vocabularies["target"].special_tokens.end]]
        )  # the context of the first token
    read = kept = 0
    limits = {
        name: field.max_tokens
        for name, field in config.fields.items()
        if field.max_tokens is not None
    }
    left_out = dict.fromkeys(limits if split == "train" else (), 0)
    remaining = examples(config, split)
    while chunk := list(islice(remaining, CHUNK)):
        columns = zip(*((*example.sources, example.target) for example in chunk), strict=True)
        encoded = {
            name: _encode(vocabularies[name], list(column), config, split, read)
            for name, column in zip(config.fields, columns, strict=True)
        }
        keep = [True] * len(chunk)
        for name in left_out:
            for i, row in enumerate(encoded[name]):
                if keep[i] and len(row) > limits[name]:
                    keep[i] = False
                    left_out[name] += 1
        for name, rows in encoded.items():
            rows = [row for row, stays in zip(rows, keep, strict=True) if stays]
            if isinstance(vocabulary := vocabularies[name], Tokenizer):
                special = vocabulary.special_tokens
                around = (
                    special.source
                    if name != "target"
                    else special.output
                    if running
                    else special.target
                )
                rows = [around(row) for row in rows]
            writers[name].add(rows)
        read, kept = read + len(chunk), kept + sum(keep)
        progress(split, read)
    for writer in writers.values():
        writer.close()
    if not kept:
        wanted, got = "an example that is short enough", f"none of {read:,}"
        raise InvalidArgument(
            "max_tokens", wanted=wanted, got=got, remedy="Raise data.*.max_tokens."
        )
    tokens = {
        name: writer.ids.count for name, writer in writers.items() if isinstance(writer, TextWriter)
    }
    return {
        "examples": kept,
        "tokens": tokens,
        "left_out": {f"{name}.max_tokens": n for name, n in left_out.items()},
    }


def _encode(
    vocabulary: VocabularyType | None,
    texts: list[Any],
    config: DataConfig,
    split: Split,
    before: int,
) -> list[Any]:
    """Token ids or label ids; images unchanged."""
    if vocabulary is None:
        return texts
    if isinstance(vocabulary, Tokenizer):
        return vocabulary.encode_batch(texts)
    labels = []
    for number, name in enumerate(texts, start=before + 1):
        try:
            labels.append(vocabulary.encode(name))
        except InvalidArgument as error:
            raise at_example(config, split, number, error) from None
    return labels


def _writer(
    stem: Path, vocabulary: VocabularyType | None, field: FieldConfig, running: bool
) -> ColumnWriter:
    if vocabulary is None:
        return ImageWriter(stem, field)
    return (
        LabelWriter(stem)
        if isinstance(vocabulary, Labels)
        else TextWriter(stem, vocabulary.size, running=running)
    )


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


def _open_vocabulary(path: Path, field: Mapping[str, Any]) -> VocabularyType:
    kind = Labels if field["kind"] == "label" else Tokenizer
    return kind.load(path, {key: field[key] for key in SETTINGS if key in field})


def _open(folder: Path, split: str, record: dict[str, Any]) -> Corpus:
    config = record["config"]
    target = open_column(folder / f"{split}.target", config["context_length"])
    names = [name for name in record["fields"] if name != "target"]
    sources = tuple(
        replace(column, mean=tuple(field["image_mean"]), std=tuple(field["image_std"]))
        if isinstance(column := open_column(folder / f"{split}.{name}", None), ImageColumn)
        else column
        for name, field in zip(
            names, config["sources"] or [config["source"]] * len(names), strict=True
        )
    )
    for name, source in zip(names, sources, strict=True):
        if len(source) != len(target):
            raise damaged(
                folder / f"{split}.{name}", f"{len(source):,} sources and {len(target):,} targets"
            )
    if len(sources) < 2:
        return Corpus(sources[0] if sources else None, target)
    return Corpus(MultiSourceColumn(sources), target)


def as_running_text(target: VocabularyType, context_length: int | None) -> VocabularyType:
    """The target vocabulary of data with this context_length: with one, the end token is a line break."""
    return (
        target
        if context_length is None or isinstance(target, Labels)
        else target.for_running_text()
    )


def _hashes(vocabularies: Vocabularies) -> list[str | None]:
    sources, target = vocabularies
    return [None if vocabulary is None else vocabulary.hash for vocabulary in (*sources, target)]


def _check_vocabularies(config: DataConfig, vocabularies: Vocabularies) -> None:
    sources, target = vocabularies
    classes: dict[str, type] = {"image": type(None), "label": Labels, "text": Tokenizer}
    wanted = {name: classes[field.kind] for name, field in config.fields.items()}
    got = [type(vocabulary) for vocabulary in (*sources, target)]
    if got != list(wanted.values()):
        described = ", ".join(f"{each.__name__} for {name}" for name, each in wanted.items())
        names, remedy = (
            ", ".join(each.__name__ for each in got),
            "Give those that the model was trained with.",
        )
        raise InvalidArgument("vocabularies", wanted=described, got=names, remedy=remedy)
