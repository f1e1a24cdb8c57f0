"""Arrays of numbers from .npy and .npz files, in a folder or in a zip file.

What a file claims is checked before anything is allocated: a header of a hundred bytes may claim
terabytes. Nothing is ever unpickled.
"""

import os
import zipfile
from io import BufferedIOBase, BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidData
from regard.data.image_store import LARGEST, Member, check_size
from regard.data.text import open_regular, readable

NUMBERS = "fiub"  # the kinds of dtype that are numbers: floats, integers and truth values
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_array(file: str | Path | Member) -> NDArray[Any]:
    """The array of a .npy file, or of a .npz file that holds one."""
    if isinstance(file, Member):
        content = file.read()
        return _read(file, file.name, BytesIO(content), len(content))
    with readable(file), open_regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        check_size(file, size)
        return _read(file, str(file), opened, size)


def array_of_content(name: str, content: bytes) -> NDArray[Any]:
    """The array of the content of a .npy file; `name` is that of the file, for messages."""
    check_size(name, len(content))
    return _read(name, ".npy", BytesIO(content), len(content))


def _read(where: str | Path | Member, name: str, file: BufferedIOBase, size: int) -> NDArray[Any]:
    is_archive = name.lower().endswith(".npz")
    try:
        if is_archive:
            return _only_array(where, file)
        return _array(where, file, size)
    except InvalidData:
        raise
    except Exception as error:  # a damaged file raises many types
        got = " ".join(str(error).split())[:200] or type(error).__name__
        wanted = "a .npz file of one array" if is_archive else "a .npy file"
        raise InvalidData(
            where, wanted=wanted, got=got, remedy="Write it with numpy.save."
        ) from None


def _only_array(where: str | Path | Member, file: BufferedIOBase) -> NDArray[Any]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) != 1:
            names = ", ".join(entry.filename.removesuffix(".npy") for entry in entries[:5])
            raise InvalidData(
                where,
                wanted="one array in a .npz file",
                got=f"{len(entries)}: {names}" if names else "none",
                remedy="Write each array to a .npy file of its own.",
            )
        (entry,) = entries
        check_size(where, entry.file_size)
        with archive.open(entry) as packed:
            # An entry may unpack to more than it claims.
            content = packed.read(entry.file_size + 1)
    if len(content) != entry.file_size:
        raise ValueError("an entry of another size than it claims")
    return _array(where, BytesIO(content), len(content))


def _array(where: str | Path | Member, file: BufferedIOBase, size: int) -> NDArray[Any]:
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"version {version[0]}.{version[1]} of the format")
    shape, is_fortran, dtype = HEADERS[version](file)
    if dtype.kind not in NUMBERS or dtype.hasobject:
        raise InvalidData(
            where,
            wanted="an array of integers or floating-point numbers",
            got=f"dtype {dtype}",
            remedy="Convert it: array.astype('float32').",
        )
    remaining = size - file.tell()
    claimed = prod(shape) * dtype.itemsize
    if claimed != remaining or claimed > LARGEST:
        raise ValueError(f"{remaining:,} bytes of numbers where the header claims {claimed:,}")
    flat = np.frombuffer(file.read(claimed), dtype=dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")
