"""What prepared data are known by: what their files and pictures hold, wherever they lie, and how that is read."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from regard.data import huggingface_datasets, text
from regard.data.examples import DataConfig, Split, examples
from regard.data.image_store import is_zip
from regard.data.synthetic import tasks

FORMAT = 1  # of the arrays on disk
SOME = 4096  # pictures between two words of progress
Files = Mapping[Split, list[dict[str, str]]]  # what was found of each file of a split


def fingerprints(config: DataConfig, progress: Callable[[str, int], None]) -> Files:
    files = {split: [_of_file(path, config.columns) for path in config.files(split)] for split in config.splits}
    if config.reads_images:
        packed = config.images if config.images is not None and is_zip(config.images) else None
        whole = None if packed is None else _of_file(packed)["sha256"]
        for split, found in files.items():
            found[0]["pictures"] = _of_pictures(config, split, progress) if whole is None else whole
    return files


def stamps(config: DataConfig) -> dict[str, tuple[int, ...]]:
    """By which one sees that a file has changed: its size, its time and its number on disk."""
    paths = {
        path for split in config.splits for path in config.files(split) if not huggingface_datasets.is_dataset(path)
    }
    paths |= {config.images} if config.images is not None and is_zip(config.images) else set()
    found = {path: os.stat(path) for path in sorted(paths) if os.path.exists(path)}
    return {path: (stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in found.items()}


def key_of(config: DataConfig, files: Files, vocabularies: Sequence[str | None] | None) -> str:
    """Of what is read, and of the vocabularies' hashes; without them, of what will be learned."""
    held = {
        split: [(file["form"], file["sha256"], file.get("pictures")) for file in found]
        for split, found in files.items()
    }
    places = ("train", "valid", "test", "images")
    settings = {key: value for key, value in asdict(config).items() if key not in places}
    for side in ("source", "target"):
        if settings[side] is not None:
            del settings[side]["augment"]  # nothing on disk
    version = tasks.version(config.synthetic) if config.synthetic else None
    content = {"format": FORMAT, "data": settings, "files": held, "given": vocabularies, "generated": version}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _of_file(path: str, columns: Sequence[str] = ()) -> dict[str, str]:
    if huggingface_datasets.is_dataset(path):
        return {"path": path, "form": "hf", "sha256": huggingface_datasets.fingerprint(path, columns)}
    with text.readable(path), open(path, "rb") as file:
        return {"path": path, "form": text.form(path), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _of_pictures(config: DataConfig, split: Split, progress: Callable[[str, int], None]) -> str:
    """Of the content of all pictures, in the order in which a split first shows them."""
    together, seen = hashlib.sha256(), set()
    for example in examples(config, split):
        path = str(example.source)
        if path not in seen:
            seen.add(path)
            together.update(bytes.fromhex(_of_file(path)["sha256"]))
            if len(seen) % SOME == 0:
                progress("pictures", len(seen))
    return together.hexdigest()
