"""Which data paths of a checkpoint's recipe may be read: only paths that this user has trained with on this machine.

A checkpoint names the files and Hugging Face datasets of its training. An untrusted checkpoint could name any file of
the user's, or any dataset to fetch. So training records its paths in the user's cache, outside of the checkpoint.
Commands that read the data which a checkpoint names refuse paths without a record, unless the user trusts them.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from regard.core.atomic_io import cache_folder
from regard.core.errors import InvalidArgument
from regard.data import huggingface_datasets
from regard.data.config import DataConfig
from regard.data.example import Split

log = logging.getLogger(__name__)


def record_paths(data: DataConfig) -> None:
    """Record the paths of data that the user trains with."""
    try:
        for path in chain.from_iterable(_paths(data, split) for split in data.splits):
            record = _record(path)
            record.parent.mkdir(parents=True, exist_ok=True)
            record.touch()
    except OSError as error:
        # The cache cannot be written. Training goes on: it needs no record.
        log.warning(
            "the data paths are not recorded: %s. `regard evaluate` will ask for --trust-data-paths.",
            error,
        )


def check_paths(
    data: DataConfig,
    split: Split,
    *,
    trusted: bool,
    named: Sequence[str] = (),
    checkpoint: Path | None = None,
) -> None:
    """Refuse to read a split of a checkpoint's recipe whose paths were not recorded.

    trusted   read them, with a message
    named     files that the user named, which may be read
    """
    known = [_absolute(file) for file in named]
    unknown = []
    for path in _paths(data, split):
        if path in known or _record(path).exists():
            continue
        if huggingface_datasets.is_dataset(path) or Path(path).exists():
            unknown.append(path)
    if not unknown:
        return
    names = ", ".join(unknown)
    if not trusted:
        raise InvalidArgument(
            str(checkpoint or "model"),
            wanted="data that you name, or that you have trained with on this machine",
            got=f"a checkpoint that names {names}",
            remedy="Read these only if you trust it: add --trust-data-paths. Or name files of your own.",
        )
    log.info("reading data that the checkpoint names: %s", names)


def _paths(data: DataConfig, split: Split) -> list[str]:
    """The files of a split, and the folders of the files that they name."""
    folders = (data.images, data.files_from)
    return [_absolute(file) for file in (*data.files(split), *folders) if file]


def _absolute(file: str) -> str:
    if huggingface_datasets.is_dataset(file):
        return file
    return os.path.abspath(file)


def _record(path: str) -> Path:
    digest = hashlib.sha256(path.encode()).hexdigest()
    return cache_folder() / "trained-paths" / digest
