"""What a power loss after any call of a save leaves of a folder, from the recorded calls (`file_faults.py`).

The model is that of a journaling file system: changes of directories reach the disk in order, and all of them up to the
last one at which a directory was synced; of a file that was not synced, its name may be there without its content, or
with the first half of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

Tree = dict[str, bytes | None]  # the content of each file by its path; None for a folder


@dataclass
class File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


Entry = File | None  # None: a folder
Change = tuple[str, str, str]  # create, mkdir, rename or remove, with its paths


@dataclass
class Disk:
    """The folder as processes see it, and what of it is on disk."""

    root: str
    names: dict[str, Entry]
    before: dict[str, Entry]  # before the first change
    changes: list[tuple[Change, Entry]] = field(default_factory=list)
    synced: int = 0  # so many changes are on disk

    @staticmethod
    def of(folder: Path, root: str) -> "Disk":
        names: dict[str, Entry] = {root: None}
        for path in folder.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            place = f"{root}/{path.relative_to(folder)}"
            names[place] = File(bytearray(content), content) if path.is_file() else None
        return Disk(root, names, dict(names))

    def call(self, line: str) -> None:
        name, one, other, number, data = line.rstrip("\n").split("\t")
        if name == "create":
            if one not in self.names:
                self._change("create", one, "", File())
            elif number == "1":
                self._file(one).content.clear()
        elif name in ("mkdir", "rename", "remove"):
            self._change(name, one, other, None)
        elif name == "write":
            content, raw = self._file(one).content, bytes.fromhex(data)
            content[int(number) : int(number) + len(raw)] = raw
        elif name == "truncate":
            content, size = self._file(one).content, int(number)
            content[:] = content[:size].ljust(size, b"\0")
        elif name == "sync":
            self._sync(one)

    def _file(self, path: str) -> File:
        found = self.names[path]
        assert found is not None
        return found

    def _change(self, name: str, one: str, other: str, entry: Entry) -> None:
        self.changes.append(((name, one, other), entry))
        _apply(self.names, (name, one, other), entry)

    def _sync(self, path: str) -> None:
        if (
            path not in self.names
        ):  # safetensors renames its temporary file by a system call that is not recorded
            (temporary,) = [
                each for each in self.names if each.startswith(f"{PurePosixPath(path).parent}/.tmp")
            ]
            self._change("rename", temporary, path, None)
        entry = self.names[path]
        if entry is not None:
            entry.durable = bytes(entry.content)
            return
        touched = [_touches(change, path) for change, _ in self.changes]
        self.synced = max(
            self.synced, len(touched) - touched[::-1].index(True) if True in touched else 0
        )

    def after_power_loss(self) -> Iterator[Tree]:
        """Every folder that may be found."""
        for count in range(self.synced, len(self.changes) + 1):
            names = dict(self.before)
            for change, entry in self.changes[:count]:
                _apply(names, change, entry)
            for half in (False, True):
                yield {
                    path.removeprefix(f"{self.root}/"): None
                    if entry is None
                    else _left(entry, half)
                    for path, entry in names.items()
                    if path != self.root
                }


def _apply(names: dict[str, Entry], change: Change, entry: Entry) -> None:
    name, one, other = change
    if name == "rename":
        for path in [each for each in names if each == one or each.startswith(f"{one}/")]:
            names[other + path.removeprefix(one)] = names.pop(path)
    elif name == "remove":
        del names[one]
    else:
        names[one] = entry


def _touches(change: Change, folder: str) -> bool:
    return any(path and str(PurePosixPath(path).parent) == folder for path in change[1:])


def _left(file: File, half: bool) -> bytes:
    if bytes(file.content) == file.durable or not half:
        return file.durable
    return bytes(file.content[: len(file.content) // 2])


def write_tree(tree: Tree, folder: Path) -> None:
    for path, content in sorted(tree.items()):
        if content is None:
            (folder / path).mkdir(parents=True)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
