"""Files and folders that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from regard.core.errors import InvalidArgument


def cache_folder() -> Path:
    """Where what can be made again lies: $REGARD_CACHE, or a folder of the user's cache."""
    given = os.environ.get("REGARD_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "regard"


@contextmanager
def named_os_errors(path: Path, wanted: str) -> Iterator[None]:
    """Where the system refuses a place, say which and why."""
    try:
        yield
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidArgument(str(path), wanted=wanted, got=got, remedy="Choose another.") from None


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the path's place once it is complete and on disk, and leaves nothing behind if it never is.

    A link stays, and what it stands for is replaced. Into a device or a pipe it is written as it comes.
    """
    with named_os_errors(path, "a file to write to"):
        flows = path.exists() and not path.is_file() and not path.is_dir()
        path = path.resolve() if path.is_symlink() and not flows else path
        there = path.open("wb") if flows else None
    if there is not None:
        with there:
            yield there
        return
    with _beside(path) as (file, beside):
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        with named_os_errors(path, "a file to write to"):
            os.replace(beside, path)
        sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before the work that fills it."""
    with _beside(path):
        pass


@contextmanager
def _beside(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file in the path's folder, and its name, which is gone in the end."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with named_os_errors(path, "a file to write to"):
        if not path.parent.is_dir() or path.is_dir():
            raise InvalidArgument(
                "path", wanted="a file's name in a folder that is there", got=str(path), remedy="Make the folder first."
            )
        file = beside.open("wb")
    try:
        with file:
            yield file, beside
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes the path's place once all its files are on disk. The path must be free."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for file in beside.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        sync_folder(beside)
        os.rename(beside, path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """A rename is on disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Take away what writes that never ended left behind."""
    for left in folder.glob(".*.tmp"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                left.unlink()
