"""Arrays in .npy files: written in chunks, memory-mapped, and checked for damage."""

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidData


def damaged(path: Path, got: str) -> InvalidData:
    remedy = f"Delete {path.parent} and prepare again."
    return InvalidData(path, wanted="a whole prepared corpus", got=got, remedy=remedy)


class GrowingArray:
    """A .npy file whose length is known only at the end; NumPy's header has space for it."""

    def __init__(self, path: Path, dtype: np.dtype[Any], each: tuple[int, ...] = ()) -> None:
        self.path = path
        self.dtype = dtype
        self.each = each
        self.count = 0
        path.touch()
        self.write_header()

    def add(self, values: NDArray[Any]) -> None:
        with self.path.open("ab") as file:
            file.write(values.astype(self.dtype, copy=False).tobytes())
        self.count += len(values)

    def write_header(self) -> None:
        header = {
            "descr": self.dtype.str,
            "fortran_order": False,
            "shape": (self.count, *self.each),
        }
        with self.path.open("r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            os.fsync(file.fileno())


class MappedArray(np.memmap[Any, Any]):
    """A memory-mapped array that checks its file's size before it is indexed:
    reading beyond its end is a SIGBUS.
    """

    bytes_on_disk = 0

    def __array_finalize__(self, obj: object) -> None:
        super().__array_finalize__(obj)
        self.bytes_on_disk = getattr(obj, "bytes_on_disk", 0)

    def __getitem__(self, index: Any) -> Any:
        if self._mmap is not None:  # type: ignore[attr-defined]
            present = self._mmap.size()  # type: ignore[attr-defined]
            if present < self.bytes_on_disk:
                got = f"{present:,} bytes of {self.bytes_on_disk:,}, cut off while in use"
                raise damaged(Path(str(self.filename)), got)
        items = super().__getitem__(index)
        if isinstance(items, MappedArray) and items._mmap is None:  # type: ignore[attr-defined]
            # A copy is in memory: nothing can cut it off.
            return items.view(np.ndarray)
        return items


def memory_map(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False).view(MappedArray)
        array.bytes_on_disk = path.stat().st_size
        return cast(NDArray[Any], array)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, str(error)) from None


def digest_of(path: Path) -> str:
    """The SHA-256 of a file; of an unchanged one, computed once per process."""
    try:
        stat = path.stat()
        return _digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None


@cache
def _digest(path: Path, *state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
