"""Files and folders written atomically: complete on disk, or not there; and locks between processes."""

import errno
import logging
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from regard.core.errors import InvalidArgument, Locked, TrainingFailed

POLL = 0.1  # seconds between two attempts to take a lock
# Waiting for a lock ends when its holder has shown no sign of life for this many seconds.
PATIENCE = 3600.0
logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The folder of cached files: $REGARD_CACHE, or `regard` in the user's cache folder.

    An empty or relative $XDG_CACHE_HOME is not used, as its specification says (https://specifications.freedesktop.org).
    """
    if given := os.environ.get("REGARD_CACHE"):
        return Path(given).absolute()
    user = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not user.is_absolute():
        user = Path.home() / ".cache"
    return user / "regard"


def private_folder(folder: Path) -> None:
    """Make a folder for compiled code. Anybody who can write there could replace that code.

    The path must be absolute. The folder and all folders above it must belong to this user or to root, and others must
    not be able to write to them (in a sticky folder such as /tmp, others cannot rename what is not theirs).
    """
    wanted = "a folder for compiled code that others cannot write to"
    if not folder.is_absolute():
        raise InvalidArgument(
            str(folder), wanted=wanted, got="a relative path", remedy="Give an absolute one."
        )
    with named_os_errors(folder, wanted):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise InvalidArgument(str(folder), wanted=wanted, got="a link", remedy="Remove it.")
        check_private(folder)


def check_private(path: Path) -> None:
    """Refuse compiled code, or a folder of it, that anybody except this user and root can replace."""
    wanted = "a folder for compiled code that others cannot write to"
    with named_os_errors(path, wanted):
        for each in (path, *path.resolve().parents):
            info = each.lstat()
            if info.st_uid not in (0, os.geteuid()):
                got = f"one of the user with id {info.st_uid}"
                raise InvalidArgument(
                    str(each), wanted=wanted, got=got, remedy="Set REGARD_CACHE to another folder."
                )
            others_can_write = info.st_mode & 0o022
            is_sticky = info.st_mode & stat.S_ISVTX
            if others_can_write and not is_sticky:
                got = f"mode {info.st_mode & 0o7777:o}"
                remedy = f"Run chmod go-w {each}, or set REGARD_CACHE to another folder."
                raise InvalidArgument(str(each), wanted=wanted, got=got, remedy=remedy)


@contextmanager
def named_os_errors(path: Path, wanted: str) -> Iterator[None]:
    """Turn an OSError into an InvalidArgument that names the path and the reason."""
    try:
        yield
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidArgument(str(path), wanted=wanted, got=got, remedy="Choose another.") from None


@contextmanager
def saving(path: Path, wanted: str) -> Iterator[None]:
    """Turn an OSError while a run writes into a TrainingFailed that names the path, the reason and the remedy."""
    try:
        yield
    except OSError as error:
        raise TrainingFailed(
            f"{path}: wanted to {wanted}; got {error.strerror or error}. "
            "Earlier checkpoints are intact: make room, and resume."
        ) from error


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is renamed to the path once it is complete and synced, and removed if writing fails.

    A symbolic link is kept and its target replaced. A device or a pipe is written directly.
    """
    with named_os_errors(path, "a file to write to"):
        is_stream = path.exists() and not path.is_file() and not path.is_dir()
        if path.is_symlink() and not is_stream:
            path = path.resolve()
        stream = None
        if is_stream:
            stream = path.open("wb")
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
    """Refuse a path that cannot be written, before the work that will write its result there."""
    with _temporary_file(path):
        pass


@contextmanager
def _temporary_file(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A temporary file in the path's folder, removed in the end if it still exists."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    with named_os_errors(path, "a file to write to"):
        if not path.parent.is_dir() or path.is_dir():
            raise InvalidArgument(
                "path",
                wanted="a file's name in a folder that is there",
                got=str(path),
                remedy="Make the folder first.",
            )
        file = temporary.open("wb")
    try:
        with file:
            yield file, temporary
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder that is renamed to the path once all its files are synced.

    replace   a folder that is there already. It is whole at any moment, under its own name or as `displaced(path)`
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for inside in temporary.rglob("*"):
            _sync(inside)
        _sync(temporary)
        previous_moved = _making_way(path) if replace else nullcontext()
        with previous_moved:
            os.rename(temporary, path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def displaced(path: Path) -> Path:
    """The name of a folder that is being replaced or removed."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def _making_way(path: Path) -> Iterator[None]:
    """Move the folder at a path aside; remove it in the end, or move it back if the block fails."""
    aside = displaced(path)
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
    try:
        yield
    except BaseException:
        if aside.exists() and not path.exists():
            os.rename(aside, path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def with_usual_mode(path: Path) -> Iterator[None]:
    """Give a file that a library writes in this block the mode of other new files, which the umask decides.

    Safetensors writes files that only their owner can read.
    """
    # A file made for this purpose shows the mode. The path itself cannot: the library replaces a file there.
    probe = path.with_name(f"{path.name}.mode")
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    yield
    path.chmod(mode)


def sync_folder(folder: Path) -> None:
    """Sync a folder: a rename is on disk only after this."""
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: Path, *, wait: bool, keep: bool = False) -> Iterator[Callable[[], None]]:
    """An exclusive lock between processes, in a file that names its holder. Yields a function to show signs of life.

    wait   for the holder to release it, as long as it shows signs of life; otherwise, and then, raise Locked
    keep   the file after the lock is released

    The system releases the lock of a process that ends in any way.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield lambda: None
        return
    began = time.monotonic()
    reported = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_open_file(handle, path):
                break
            os.close(handle)  # its last holder removed the file
            continue
        except BlockingIOError:
            holder, silent = _holder(handle)
            os.close(handle)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
            logger.warning(
                "%s: this file system has no locks; let no other process work there", path
            )
            yield lambda: None
            return
        if not wait or silent > PATIENCE:
            raise Locked(path, holder)
        if not reported and time.monotonic() - began > 1:
            logger.info("waiting for %s, which holds %s", holder, path)
            reported = True
        time.sleep(POLL)
    try:
        os.truncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield lambda: os.utime(handle)
    finally:
        if not keep:
            path.unlink(missing_ok=True)
        os.close(handle)


def _holder(handle: int) -> tuple[str, float]:
    """The process that holds a lock, and the seconds since its last sign of life."""
    name = os.pread(handle, 200, 0).decode(errors="replace")
    silent = time.time() - os.fstat(handle).st_mtime
    return name or "another process", silent


def is_open_file(handle: int, path: Path) -> bool:
    """Whether the file at this path is still the one that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
