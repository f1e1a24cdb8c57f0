"""Stores of the files that examples name, such as images: a folder,
or a zip file that is read in place.

An image listed as name.jpg may be stored as name.webp or photos/name.webp: it is searched by its
listed path, then by its file name, then by its file name with another extension of its kind.
"""

import os
import threading
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.text import open_regular, readable

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
# Bytes of an image file, also in a zip file, where a few bytes may unpack to terabytes.
LARGEST = 1 << 28


@dataclass(frozen=True)
class FileKind:
    """A kind of files that examples name.

    noun         one of them, for messages: "an image"
    plural       several: "images"
    extensions   of their names
    """

    noun: str
    plural: str
    extensions: tuple[str, ...]

    def names(self, name: str) -> bool:
        """Whether a file of this name is one."""
        return name.lower().endswith(self.extensions)

    def stem(self, name: str) -> str:
        """A file name without its extension, if it has one of this kind."""
        start, dot, extension = name.rpartition(".")
        return start if start and dot + extension.lower() in self.extensions else name


IMAGES = FileKind("an image", "images", EXTENSIONS)
ARRAYS = FileKind("an array or a recording", "arrays", (".npy", ".npz", ".wav"))


@dataclass(frozen=True)
class Member:
    """A file in a zip file."""

    path: Path  # of the zip file
    name: str
    archive: "ZipStore" = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.path}/{self.name}"

    def read(self) -> bytes:
        return self.archive.read(self)


class FolderStore:
    """Files of a kind in a folder."""

    def __init__(self, path: Path, kind: FileKind = IMAGES) -> None:
        self.path = path
        self.kind = kind

    def find(self, listed: str) -> Path:
        """The file's path; where there is none, the listed path, which reading then refuses."""
        plain = self.path / listed
        for path in (plain, self.path / plain.name):
            for candidate in (
                path,
                *(
                    path.with_name(self.kind.stem(path.name) + extension)
                    for extension in self.kind.extensions
                ),
            ):
                if os.path.exists(candidate):
                    return candidate
        return plain


class ZipStore:
    """Files of a kind in a zip file; safe to read from several threads."""

    def __init__(self, path: Path, kind: FileKind = IMAGES) -> None:
        self.path = path
        self.kind = kind
        self.lock = threading.Lock()
        with _intact(path, path):
            open_regular(path).close()
            self.file = zipfile.ZipFile(path)
        self.members: dict[str, list[str]] = {}  # by file name without an extension of the kind
        for info in self.file.infolist():
            if not info.is_dir():
                bare = kind.stem(PurePosixPath(info.filename).name)
                self.members.setdefault(bare, []).append(info.filename)

    def find(self, listed: str) -> Member:
        """The only member that fits the listed path best; none or several raise InvalidData."""
        last = PurePosixPath(listed).name
        same_stem = self.members.get(self.kind.stem(last), [])
        for candidates in (
            [name for name in same_stem if name == listed],
            [name for name in same_stem if name.endswith(f"/{listed}")],
            [name for name in same_stem if PurePosixPath(name).name == last],
            same_stem,
        ):
            if len(candidates) == 1:
                return Member(self.path, candidates[0], self)
            if candidates:
                got = ", ".join(candidates[:3])
                if len(candidates) > 3:
                    got += ", …"
                raise InvalidData(
                    self.path,
                    wanted=f"{self._one} {listed!r}",
                    got=got,
                    remedy="Give its whole path.",
                )
        got = f"none among {sum(map(len, self.members.values())):,} files"
        raise InvalidData(
            self.path, wanted=f"{self.kind.noun} {listed!r}", got=got, remedy="Check its name."
        )

    @property
    def _one(self) -> str:
        return f"one {self.kind.noun.partition(' ')[2]}"

    def read(self, member: Member) -> bytes:
        info = self.file.getinfo(member.name)
        if info.flag_bits & 1:
            raise InvalidData(
                member,
                wanted=self.kind.noun,
                got="an encrypted one",
                remedy="Pack it without a password.",
            )
        check_size(member, info.file_size)
        with _intact(self.path, member), self.lock, self.file.open(info) as file:
            content = file.read(info.file_size + 1)  # an entry may unpack to more than it claims
            if len(content) != info.file_size:
                raise ValueError("an entry of another size than it claims")
            return content


def check_size(file: str | Path | Member, size: int) -> None:
    """Refuse a file of so many bytes, if they are too many."""
    if size > LARGEST:
        remedy = "Make it smaller."
        raise InvalidData(
            file, wanted=f"a file of at most {LARGEST:,} bytes", got=f"{size:,}", remedy=remedy
        )


FileStore = FolderStore | ZipStore


def find_files(paths: Iterable[str | Path], kind: FileKind = IMAGES) -> Iterator[Path | Member]:
    """Files as given; of folders and zip files, all entries with an ending of this kind,
    sorted by name.
    """
    for path in map(Path, paths):
        found: Sequence[Path | Member] = [path]
        if os.path.isdir(path):  # unlike Path.is_dir, it never raises
            found = sorted(
                each for each in path.rglob("*") if kind.names(each.name) and each.is_file()
            )
        elif is_zip(path) and os.path.isfile(path):
            archive = ZipStore(path, kind)
            names = sorted(
                info.filename for info in archive.file.infolist() if kind.names(info.filename)
            )
            found = [Member(path, name, archive) for name in names]
        if not found:
            wanted = f"at least one {kind.noun.partition(' ')[2]}"
            remedy = f"Their names end in {', '.join(kind.extensions)}."
            raise InvalidArgument(str(path), wanted=wanted, got="none", remedy=remedy)
        yield from found


def find_images(paths: Iterable[str | Path]) -> Iterator[Path | Member]:
    """Images as given; of folders and zip files, all images in them, sorted by name."""
    return find_files(paths, IMAGES)


def holds_images(path: Path) -> bool:
    """Whether it is an image by its name, a folder or a .zip file."""
    return holds_files(path, IMAGES)


def holds_files(path: Path, kind: FileKind) -> bool:
    """Whether it is a file of this kind by its name, a folder or a .zip file."""
    return kind.names(path.name) or is_zip(path) or os.path.isdir(path)


def is_image(name: str) -> bool:
    return IMAGES.names(name)


def open_store(path: str | Path, kind: FileKind = IMAGES) -> FileStore:
    """The store of a folder, or of a file whose name ends in .zip."""
    path = Path(path)
    if is_zip(path):
        return ZipStore(path, kind)
    if not path.is_dir():
        raise InvalidData(
            path,
            wanted=f"a folder of {kind.plural}, or a .zip file",
            got="neither",
            remedy="Check the path.",
        )
    return FolderStore(path, kind)


def open_image_store(path: str | Path) -> FileStore:
    """The images of a folder, or of a file whose name ends in .zip."""
    return open_store(path, IMAGES)


def is_zip(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".zip"


def stem(name: str) -> str:
    """A file name without its image extension, if it has one."""
    return IMAGES.stem(name)


@contextmanager
def _intact(path: Path, where: Path | Member) -> Iterator[None]:
    """Any error of reading a zip file becomes an InvalidData that names it and the image."""
    with readable(path):
        try:
            yield
        except OSError:
            raise
        except Exception as error:  # a damaged file raises many types
            got = (str(error) or type(error).__name__)[:200]
            remedy = "Download or pack it again."
            raise InvalidData(where, wanted="a whole zip file", got=got, remedy=remedy) from None
