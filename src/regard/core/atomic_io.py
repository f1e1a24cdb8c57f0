"""Files and folders written atomically: complete on disk, or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from regard.core.errors import InvalidArgument


def cache_folder() -> Path:
    """The folder of cached files: $REGARD_CACHE, or `regard` in the user's cache folder."""
    given = os.environ.get("REGARD_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "regard"


@contextmanager
def named_os_errors(path: Path, wanted: str) -> Iterator[None]:
    """Turn an OSError into an InvalidArgument that names the path and the reason."""
    try:
        yield
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidArgument(str(path), wanted=wanted, got=got, remedy="Choose another.") from None


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is renamed to the path once it is complete and synced, and removed if writing fails.

    A symbolic link is kept and its target replaced. A device or a pipe is written directly.
    """
    with named_os_errors(path, "a file to write to"):
        is_stream = path.exists() and not path.is_file() and not path.is_dir()
        path = path.resolve() if path.is_symlink() and not is_stream else path
        stream = path.open("wb") if is_stream else None
    if stream is not None:
        with stream:
            yield stream
        return
    with _temporary_file(path) as (file, temporary):
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        with named_os_errors(path, "a file to write to"):
            os.replace(temporary, path)
        sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the work whose result goes there."""
    with _temporary_file(path):
        pass


@contextmanager
def _temporary_file(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A temporary file in the path's folder, removed in the end if it still exists."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with named_os_errors(path, "a file to write to"):
        if not path.parent.is_dir() or path.is_dir():
            raise InvalidArgument(
                "path", wanted="a file's name in a folder that is there", got=str(path), remedy="Make the folder first."
            )
        file = temporary.open("wb")
    try:
        with file:
            yield file, temporary
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder that is renamed to the path once all its files are synced. The path must not exist."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        sync_folder(temporary)
        os.rename(temporary, path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder: a rename is on disk only after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders of interrupted writes."""
    for leftover in folder.glob(".*.tmp"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                leftover.unlink()
