"""The content of a .npy file as an array: of files that somebody else sends, whose headers may say anything."""

from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.core.sanitize import one_line

MAGIC = b"\x93NUMPY"
MOST_NUMBERS = 1 << 22  # of one array
MOST_HEADER = 1 << 12  # bytes
NUMBER_KINDS = "fiu"  # of NumPy's types: floats, and integers with and without a sign
WIDEST = 8  # bytes of a number
HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


def is_npy(content: bytes) -> bool:
    """Whether this begins as a .npy file does."""
    return content.startswith(MAGIC)


def array_of_npy(name: str, content: bytes, dimension: int | None = None) -> NDArray[Any]:
    """The array (length, dimension) of a .npy file, as a view of its content: nothing is copied or unpickled.

    name        of the file, for messages
    dimension   that the array must have; None: any

    What the header claims is checked against the size of the content before an array is made.
    """
    shape, fortran_order, dtype, start = _header(name, content)
    if dtype.kind not in NUMBER_KINDS or dtype.itemsize > WIDEST or dtype.shape:
        raise _refused(
            name,
            "an array of floats or integers of at most 64 bits",
            f"one of {one_line(str(dtype))[:60]}",
            "Save array.astype('float32').",
        )
    if fortran_order:
        raise _refused(
            name,
            "an array in C order, vector after vector",
            "one in Fortran order",
            "Save numpy.ascontiguousarray(array).",
        )
    if len(shape) != 2 or not all(type(size) is int and size > 0 for size in shape):
        raise _refused(
            name,
            "an array of shape (length, dimension)",
            f"one of shape {one_line(str(shape))[:60]}",
            "Save one sequence of vectors.",
        )
    if dimension is not None and shape[1] != dimension:
        raise _refused(
            name,
            f"vectors of {dimension} numbers, as in the training data",
            f"{shape[1]:,}"[:60],
            "Give vectors of one dimension.",
        )
    count = prod(shape)
    if count > MOST_NUMBERS:
        raise _refused(
            name, f"at most {MOST_NUMBERS:,} numbers", f"{count:,}"[:60], "Send a part of it."
        )
    expected = count * dtype.itemsize
    if len(content) - start != expected:
        raise _refused(
            name,
            f"{expected:,} bytes of numbers, as its header says",
            f"{len(content) - start:,}",
            "Send the whole file, and nothing after it.",
        )
    return np.frombuffer(content, dtype, count, start).reshape(shape)


def _header(name: str, content: bytes) -> tuple[Any, Any, np.dtype[Any], int]:
    """Shape, order and type of the array, and where its numbers begin."""
    file = BytesIO(content[: MOST_HEADER + 16])
    try:
        version = npy_format.read_magic(file)
        shape, fortran_order, dtype = HEADERS[version](file, max_header_size=MOST_HEADER)
    except Exception:
        # NumPy raises errors of many kinds for what is no header: also of its parser and of types.
        raise _refused(
            name,
            "the content of a .npy file of version 1 or 2",
            f"one that begins with {content[:12]!r}",
            "Write it with numpy.save.",
        ) from None
    return shape, fortran_order, dtype, file.tell()


def _refused(name: str, wanted: str, got: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(name, wanted=wanted, got=got, remedy=remedy)
