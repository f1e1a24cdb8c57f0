"""Fingerprints of a data configuration: a hash of its settings and of the content of its files,
not of their paths.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from regard.data import huggingface_datasets, text
from regard.data.config import DataConfig
from regard.data.example import Split
from regard.data.image_store import Member, is_zip
from regard.data.sources import examples, labeled_files
from regard.data.synthetic import tasks

FORMAT = 2  # of the arrays on disk
PROGRESS_EVERY = 4096  # files that examples name
Files = Mapping[Split, list[dict[str, str]]]  # path, format and hash of each file of a split


def fingerprints(
    config: DataConfig, progress: Callable[[str, int], None], splits: Sequence[Split]
) -> Files:
    """The files of these splits with a hash of their content.

    `progress` is called with a stage and a count.
    """
    if config.reader is not None:
        return {split: [_of_examples(config, split)] for split in splits}
    files = {}
    for split in splits:
        paths = config.files(split)
        if config.is_class_folder(paths):
            files[split] = [_of_classes(config, split)]
        else:
            files[split] = [_of_file(path, config.columns) for path in paths]
    if config.reads_named_files:
        archive_hash = _of_archives(config)
        for split, hashes in files.items():
            # Of classes: the hash of the file is that of its images too.
            if is_zip(hashes[0]["path"]):
                continue
            content = archive_hash or _of_named_files(config, split, progress)
            if content is not None:
                hashes[0]["pictures"] = content
    return files


def _archives(config: DataConfig) -> list[str]:
    """The .zip files in which the files that examples name are."""
    folders = [config.images, config.files_from]
    return [folder for folder in folders if folder is not None and is_zip(folder)]


def _of_archives(config: DataConfig) -> str | None:
    """A hash of the .zip files, where all files that examples name are in them."""
    keys = {field.folder_key for field in config.fields.values() if field.stored is not None}
    archives = _archives(config)
    if len(archives) < len(keys):
        return None
    hashes = [_of_file(archive)["sha256"] for archive in archives]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def stamps(config: DataConfig, splits: Sequence[Split]) -> dict[str, tuple[int, ...]]:
    """Size, modification time and inode of every file of these splits,
    to detect a change while it is read.
    """
    paths = {
        path
        for split in splits
        for path in config.files(split)
        if not huggingface_datasets.is_dataset(path)
    }
    paths |= set(_archives(config))
    stats = {path: os.stat(path) for path in sorted(paths) if os.path.exists(path)}
    return {path: (stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in stats.items()}


def key_of(config: DataConfig, files: Files, vocabularies: Sequence[str | None] | None) -> str:
    """A hash of the configuration,
    the files' content and the hashes of given vocabularies (None: learned).
    """
    contents = {
        split: [(file["form"], file["sha256"], file.get("pictures")) for file in hashes]
        for split, hashes in files.items()
    }
    locations = ("train", "valid", "test", "images", "files_from", "reader")
    settings = {key: value for key, value in asdict(config).items() if key not in locations}
    if config.format is None:
        # Data that were prepared before there was this key.
        settings.pop("format")
    if config.series is None:
        settings.pop("series")
    if not config.join_sources:
        settings.pop("join_sources")
    if config.shares:
        settings["shares"] = config.shares
    settings["target"] = config.target.arrays_settings
    if config.source is not None:
        settings["source"] = config.source.arrays_settings
    if config.sources is not None:
        settings["sources"] = [field.arrays_settings for field in config.sources]
    version = tasks.version(config.synthetic) if config.synthetic else None
    content = {
        "format": FORMAT,
        "data": settings,
        "files": contents,
        "given": vocabularies,
        "generated": version,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _of_file(path: str, columns: Sequence[str] = ()) -> dict[str, str]:
    if huggingface_datasets.is_dataset(path):
        return {
            "path": path,
            "form": "hf",
            "sha256": huggingface_datasets.fingerprint(path, columns),
        }
    with text.readable(path), text.open_regular(path) as file:
        return {
            "path": path,
            "form": text.form(path),
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def _of_classes(config: DataConfig, split: Split) -> dict[str, str]:
    """A hash of a .zip file, or of the classes of the files of a folder, in their order."""
    path = config.files(split)[0]
    if is_zip(path):
        return _of_file(path)
    labels = "\n".join(each.target for each in labeled_files(config, path))
    return {"path": path, "form": "classes", "sha256": hashlib.sha256(labels.encode()).hexdigest()}


def _of_examples(config: DataConfig, split: Split) -> dict[str, str]:
    """A hash of what a registered data source yields."""
    digest = hashlib.sha256()
    for example in examples(config, split):
        digest.update(json.dumps([*map(str, example.sources), example.target]).encode())
    return {
        "path": " ".join(config.files(split)),
        "form": str(config.reader),
        "sha256": digest.hexdigest(),
    }


def _of_named_files(
    config: DataConfig, split: Split, progress: Callable[[str, int], None]
) -> str | None:
    """A hash of the content of all files that examples name,
    in the order of their first use in a split.

    None where there are none, of a field whose cells may hold their values themselves.
    """
    digest = hashlib.sha256()
    seen: set[str] = set()
    archives: set[str] = set()
    for example in examples(config, split):
        for value in (*example.sources, example.target):
            if isinstance(value, Member):
                archives.add(str(value.path))
            if not isinstance(value, Path) or str(value) in seen:
                continue
            seen.add(str(value))
            digest.update(bytes.fromhex(_of_file(str(value))["sha256"]))
            if len(seen) % PROGRESS_EVERY == 0:
                progress("images", len(seen))
    for archive in sorted(archives):
        digest.update(bytes.fromhex(_of_file(archive)["sha256"]))
    return digest.hexdigest() if seen or archives else None
