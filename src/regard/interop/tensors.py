"""The weights of a model folder in Hugging Face's layout, read one tensor at a time.

    model.safetensors   or model.safetensors.index.json and the shards that it names
    pytorch_model.bin   or pytorch_model.bin.index.json; unpickled with `weights_only`, which runs no code

Only the tensor that is read is in memory, so that the weights are never held twice.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.core.errors import InvalidData
from regard.core.shapes import Tensor

LARGEST_JSON = 1 << 26  # bytes
FILES = ("model.safetensors", "pytorch_model.bin")
CHECKED = 1 << 20  # numbers that are checked at once for NaN and infinity


class _Entry(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0  # of the first byte in the file


class TensorFolder(Mapping[str, Tensor]):
    """The tensors of a model folder by name; `folder[name]` reads one of them.

    Damaged files, shards outside of the folder, and NaN or infinity raise InvalidData, which names file and tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, _Entry] = {}
        self._file: dict[str, Path] = {}
        for path, names in _shards(folder):
            for name in self._open(path, names):
                self._file[name] = path

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)

    def __contains__(self, name: object) -> bool:
        return name in self._file

    def __getitem__(self, name: str) -> Tensor:
        """Read a tensor. The memory of a tensor of a .bin file is mapped from the file."""
        path = self._file[name]
        if path.suffix == ".bin":
            tensor = _content(path)[name]
        else:
            tensor = _tensor(path, name, self._entries[name])
        if not tensor.is_floating_point():
            return tensor
        for part in torch.split(tensor.flatten(), CHECKED):
            if not bool(part.isfinite().all()):
                remedy = "The checkpoint is damaged: use another one."
                raise InvalidData(
                    self.where(name), wanted="finite numbers", got="NaN or infinity", remedy=remedy
                )
        return tensor

    def where(self, name: str) -> str:
        """The file of a tensor and its name, for messages."""
        if name in self._file:
            return f"{self._file[name]}: {name}"
        return f"{self.folder}: {name}"

    @property
    def listing(self) -> Path:
        """The file that lists the tensors: the only file of weights, or the index of the shards."""
        candidates = []
        for name in FILES:
            candidates += [self.folder / name, self.folder / f"{name}.index.json"]
        return next(path for path in candidates if path.is_file())

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entries[name].dtype

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors are the same in every bit."""
        return self.shape(first) == self.shape(second) and torch.equal(self[first], self[second])

    def _open(self, path: Path, wanted: set[str] | None) -> list[str]:
        """The names of a file's tensors. It must have all that an index promises."""
        if path.suffix == ".bin":
            content = _content(path)
            found = {name: _Entry(tuple(x.shape), x.dtype) for name, x in content.items()}
        else:
            found = _header(path)
        if missing := sorted((wanted or set()) - found.keys()):
            got = f"none of this name among {len(found)}"
            raise InvalidData(
                f"{path}: {missing[0]}",
                wanted="a tensor",
                got=got,
                remedy="Download the file again.",
            )
        names = [name for name in found if wanted is None or name in wanted]
        self._entries |= {name: found[name] for name in names}
        return names


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a model folder."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(f"more than {LARGEST_JSON:,} bytes")
        value = json.loads(path.read_bytes())
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidData(
            path, wanted="a JSON file", got=got, remedy="Download the model again."
        ) from None
    except (ValueError, RecursionError) as error:
        remedy = "Download the file again."
        raise InvalidData(path, wanted="a JSON file", got=str(error)[:200], remedy=remedy) from None
    if not isinstance(value, dict):
        raise InvalidData(
            path,
            wanted="a JSON object",
            got=type(value).__name__,
            remedy="Download the file again.",
        )
    return value


def _shards(folder: Path) -> Iterator[tuple[Path, set[str] | None]]:
    """The files of weights, each with the tensors that an index promises; None: all that it holds."""
    for name in FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            yield folder / name, None
            return
        if index.is_file():
            names: dict[str, set[str]] = {}
            for tensor, file in _weight_map(index).items():
                names.setdefault(file, set()).add(tensor)
            for file, tensors in names.items():
                yield folder / file, tensors
            return
    got = "none" if folder.is_dir() else "no folder"
    remedy = "Give the folder of a model as transformers saves it."
    raise InvalidData(folder, wanted=f"{' or '.join(FILES)}, or its index", got=got, remedy=remedy)


def _weight_map(index: Path) -> dict[str, str]:
    files = read_json(index).get("weight_map")
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    if not isinstance(files, dict) or not files:
        raise InvalidData(
            f"{index}: weight_map",
            wanted="the file of each tensor",
            got=repr(files)[:80],
            remedy="Download it again.",
        )
    for tensor, file in files.items():
        if not isinstance(file, str) or Path(file).name != file or Path(file).suffix != suffix:
            wanted = f"a {suffix} file in the folder of the index"
            remedy = "Do not use this model: its index is forged."
            raise InvalidData(
                f"{index}: weight_map.{tensor}", wanted=wanted, got=repr(file)[:80], remedy=remedy
            )
    return files


def _header(path: Path) -> dict[str, _Entry]:
    """Shape, dtype and offset of each tensor of a safetensors file, whose layout the library checks."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt"):
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(size))
        entries.pop("__metadata__", None)
        found = {}
        for name, each in entries.items():
            # Offsets count from the end of the header.
            offset = 8 + size + each["data_offsets"][0]
            found[name] = _Entry(tuple(each["shape"]), _DTYPES[each["dtype"]], offset)
        return found
    except (SafetensorError, OSError) as error:
        got = str(error)[:200]
        remedy = "Download it again."
        raise InvalidData(path, wanted="a safetensors file", got=got, remedy=remedy) from None
    except KeyError as error:
        wanted = f"tensors of {', '.join(_DTYPES)}"
        remedy = "Quantized checkpoints are not read: use the original one."
        raise InvalidData(path, wanted=wanted, got=str(error), remedy=remedy) from None


def _tensor(path: Path, name: str, entry: _Entry) -> Tensor:
    """Read a tensor into memory of its own. A mapping of the file would count as much memory again."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    content = tensor.flatten().view(torch.uint8).numpy().data
    try:
        with path.open("rb") as file:
            file.seek(entry.offset)
            complete = file.readinto(content) == len(content)
    except OSError as error:
        got = error.strerror or str(error)
        where = f"{path}: {name}"
        raise InvalidData(where, wanted="a tensor", got=got, remedy="Check the file.") from None
    if not complete:
        where = f"{path}: {name}"
        got = "the end of the file"
        remedy = "Download the file again."
        raise InvalidData(where, wanted="a tensor", got=got, remedy=remedy)
    return tensor


_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "U8": torch.uint8, "I8": torch.int8, "BOOL": torch.bool,
}  # fmt: skip


def _content(path: Path) -> dict[str, Tensor]:
    """The tensors of a PyTorch state dict, mapped from the file where its format allows it."""
    try:
        # Files of PyTorch before 1.6 are not zip files, and cannot be mapped.
        mapped = zipfile.is_zipfile(path)
        content = torch.load(path, "cpu", weights_only=True, mmap=mapped)
        got = type(content).__name__
    except Exception as error:
        # The reader raises all kinds of errors for damaged files.
        content = None
        got = f"{type(error).__name__}: {error}"[:200]
    if not isinstance(content, dict) or not all(
        isinstance(tensor, Tensor) for tensor in content.values()
    ):
        remedy = "Download it again, or use safetensors."
        raise InvalidData(path, wanted="a file of tensors by name", got=got, remedy=remedy)
    return content
