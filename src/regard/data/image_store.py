"""Where pictures lie: in a folder, or in a zip file, which is read as it is and never unpacked.

A list may say name.jpg of a picture that lies there as name.webp, or as photos/name.webp: what it says is looked for as
it stands, then by its last part, then by that with the ending of another format.
"""

import os
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from regard.core.errors import InvalidData
from regard.data.text import readable

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
LARGEST = 1 << 28  # bytes of a picture in a zip file; some kilobytes of it may unpack to terabytes


@dataclass(frozen=True)
class Member:
    """A picture in a zip file."""

    path: Path  # of the zip file
    name: str
    archive: "ZipStore" = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.path}/{self.name}"

    def read(self) -> bytes:
        return self.archive.read(self)


class FolderStore:
    """Pictures that are files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, told: str) -> Path:
        """The picture's path; where there is none, that which was told, for whoever reads it to refuse."""
        plain = self.path / told
        for place in (plain, self.path / plain.name):
            for candidate in (place, *(place.with_name(stem(place.name) + ending) for ending in EXTENSIONS)):
                if os.path.exists(candidate):
                    return candidate
        return plain


class ZipStore:
    """Pictures in a zip file. Threads may read from it at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        with _whole(path, path):
            self.file = zipfile.ZipFile(path)
        self.members: dict[str, list[zipfile.ZipInfo]] = {}  # by their last part without a picture's ending
        for info in self.file.infolist():
            if not info.is_dir():
                self.members.setdefault(stem(PurePosixPath(info.filename).name), []).append(info)

    def find(self, told: str) -> Member:
        last = PurePosixPath(told).name
        here = [info.filename for info in self.members.get(stem(last), ())]
        for found in (
            [name for name in here if name == told],
            [name for name in here if name.endswith(f"/{told}")],
            [name for name in here if PurePosixPath(name).name == last],
            here,
        ):
            if len(found) == 1:
                return Member(self.path, found[0], self)
            if found:
                got = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
                raise InvalidData(self.path, wanted=f"one picture {told!r}", got=got, remedy="Tell its whole name.")
        got = f"none among {sum(map(len, self.members.values())):,} files"
        raise InvalidData(self.path, wanted=f"a picture {told!r}", got=got, remedy="Look for it under another name.")

    def read(self, member: Member) -> bytes:
        info = self.file.getinfo(member.name)
        if info.flag_bits & 1:
            raise InvalidData(member, wanted="a picture", got="an encrypted one", remedy="Pack it without a password.")
        if info.file_size > LARGEST:
            got = f"{info.file_size:,}"
            raise InvalidData(member, wanted=f"at most {LARGEST:,} bytes", got=got, remedy="Make it smaller.")
        with _whole(self.path, member), self.lock:
            return self.file.read(info)


ImageStore = FolderStore | ZipStore


def open_image_store(path: str | Path) -> ImageStore:
    """What lies in a folder, or in a file whose name ends in .zip."""
    path = Path(path)
    if is_zip(path):
        return ZipStore(path)
    if not path.is_dir():
        raise InvalidData(path, wanted="a folder of pictures, or a .zip file", got="neither", remedy="Check the path.")
    return FolderStore(path)


def is_zip(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".zip"


def stem(name: str) -> str:
    """A name without the ending of a picture, where it has one."""
    start, dot, ending = name.rpartition(".")
    return start if start and dot + ending.lower() in EXTENSIONS else name


@contextmanager
def _whole(path: Path, where: Path | Member) -> Iterator[None]:
    """Whatever is wrong with a zip file is an error that names it, and the picture in it."""
    with readable(path):
        try:
            yield
        except OSError:
            raise
        except Exception as error:  # of many kinds, as damage may strike anywhere
            got = str(error) or type(error).__name__
            raise InvalidData(
                where, wanted="a whole zip file", got=got[:200], remedy="Fetch or pack it again."
            ) from None
