"""Atomic, hashed folders of files, and the numbered checkpoints of a run. `format.py` says which files a model needs.

A folder appears under its name complete and on disk, or not at all. manifest.json holds the size and SHA-256 of each
file; reading checks every byte against it before anything is used. No code is ever run from a checkpoint: tensors are
safetensors, everything else is JSON or text.
"""

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.core.atomic_io import atomic_folder, displaced, sync_folder, with_usual_mode
from regard.core.errors import CheckpointRefused

if TYPE_CHECKING:  # PyTorch is imported only where tensors are read or written
    from torch import Tensor

MANIFEST, SIGNATURE = "manifest.json", "manifest.json.sig"  # the latter is optional: signature.py
TRAINING_STATE = "training.json"  # names the step of a checkpoint
LARGEST_MANIFEST = 1 << 24  # bytes
FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_STEP = re.compile(r"step-(\d{8})")
_DISPLACED = re.compile(r"\.step-(\d{8})\.tmp")


def write(
    folder: Path,
    texts: Mapping[str, str],
    tensors: Mapping[str, "Mapping[str, Tensor] | Callable[[Path], object]"],
) -> None:
    """Write a checkpoint of these files, replacing any other there; `texts` as they are, `tensors` as safetensors.

    A function in place of tensors writes their file itself: of tensors that are not in memory together.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with atomic_folder(folder, replace=True) as beside:
        for name, text in texts.items():
            (beside / name).write_bytes(text.encode())
        for name, named in tensors.items():
            if callable(named):
                named(beside / name)
                continue
            on_host = {key: tensor.detach().cpu().contiguous() for key, tensor in named.items()}
            try:
                with with_usual_mode(beside / name):
                    save_file(on_host, beside / name, {"format": "pt"})
            except SafetensorError as error:  # its only form of a full disk and the like
                raise OSError(str(error)) from None
        files = {path.name: _file_entry(path) for path in sorted(beside.iterdir())}
        (beside / MANIFEST).write_bytes(_manifest(files))


def add(folder: Path, name: str, tensors: "Mapping[str, Tensor]") -> None:
    """Add a file of tensors to a checkpoint, or replace it, atomically; its other files are checked, and stay.

    A signature is removed: it was that of another manifest.
    """
    write(folder, {}, {**_others(folder, name), name: tensors})


def replace(folder: Path, name: str, text: str) -> None:
    """Replace a file of text in a checkpoint atomically, as `add` does with one of tensors."""
    write(folder, {name: text}, _others(folder, name))


def _others(folder: Path, name: str) -> dict[str, Callable[[Path], object]]:
    """Functions that copy the files of a checkpoint, which are checked, but not the one of this name."""
    verify(folder)
    return {
        each: partial(shutil.copyfile, folder / each) for each in _listed(folder) if each != name
    }


def read(folder: Path, *, skip: Collection[str] = ()) -> dict[str, bytes]:
    """The files of a checkpoint by name, every byte checked. A damaged checkpoint raises CheckpointRefused.

    skip   names of files that must be there, but are not read
    """
    files = _listed(folder)
    return {
        name: _checked(folder, name, entry) for name, entry in files.items() if name not in skip
    }


def verify(folder: Path) -> int:
    """Check a checkpoint without keeping it in memory. Returns the number of its files."""
    files = _listed(folder)
    for name, entry in files.items():
        _checked(folder, name, entry)
    return len(files)


def tensors(content: Mapping[str, bytes], name: str, folder: Path) -> "dict[str, Tensor]":
    """The tensors of a safetensors file of a checkpoint that `read` has checked."""
    from safetensors import SafetensorError
    from safetensors.torch import load as tensors_from

    try:
        return tensors_from(content[name])
    except (KeyError, SafetensorError) as error:
        raise CheckpointRefused(
            f"{folder / name}: wanted tensors in safetensors' format; got {error}. This is not a checkpoint of Regard."
        ) from None


def document(content: Mapping[str, bytes], name: str, folder: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint that `read` has checked."""
    try:
        value = json.loads(content[name])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointRefused(
            f"{folder / name}: wanted a JSON document; got {error}. This is not a checkpoint of Regard."
        ) from None
    if not isinstance(value, dict):
        raise CheckpointRefused(
            f"{folder / name}: wanted a JSON object; got {type(value).__name__}. It was changed."
        )
    return value


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def step_folder(run: Path, step: int) -> Path:
    return run / f"step-{step:08d}"


def steps(run: Path) -> list[int]:
    """The steps at which a run has checkpoints, in order."""
    matches = (_STEP.fullmatch(path.name) for path in run.iterdir()) if run.is_dir() else ()
    return sorted(int(match[1]) for match in matches if match)


def displaced_steps(run: Path) -> list[int]:
    """The steps whose checkpoint was whole and about to be replaced when the process ended."""
    matches = [_DISPLACED.fullmatch(path.name) for path in run.iterdir()]
    found = [
        int(match[1]) for match in matches if match and not step_folder(run, int(match[1])).exists()
    ]
    return [step for step in found if _is_intact(displaced(step_folder(run, step)))]


def _is_intact(folder: Path) -> bool:
    try:
        return verify(folder) > 0
    except CheckpointRefused:
        return False


def newest(
    run: Path, *, skip: Collection[str] = ()
) -> tuple[int, dict[str, bytes], list[str]] | None:
    """The newest intact checkpoint of a run: its step, its files, and the problems of damaged later ones.

    skip   names of files that are not read
    """
    problems: list[str] = []
    for step in reversed(steps(run)):
        try:
            return step, read(step_folder(run, step), skip=skip), problems
        except CheckpointRefused as error:
            problems.append(str(error))
    if problems:
        raise CheckpointRefused("\n".join(problems))
    return None


def prune(run: Path, keep: Collection[int]) -> None:
    """Remove all checkpoints of a run but the newest and those at the given steps."""
    for step in set(steps(run)[:-1]) - set(keep):
        remove(step_folder(run, step))


def remove(folder: Path) -> None:
    """Rename the folder first, so that no partly removed checkpoint is left under its name."""
    doomed = displaced(folder)
    with suppress(FileNotFoundError):
        folder.rename(doomed)
        sync_folder(folder.parent)
        shutil.rmtree(doomed, ignore_errors=True)


def _file_entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _manifest(files: Mapping[str, Any]) -> bytes:
    """The manifest's only encoding, with a hash of itself, so that any changed byte is detected."""
    body = {"files": files, "format": FORMAT}
    digest = hashlib.sha256(as_json(body).encode()).hexdigest()
    return as_json({**body, "sha256": digest}).encode()


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of the manifest, which must list exactly the files that are there."""

    def refuse(wanted: str, got: str) -> CheckpointRefused:
        return CheckpointRefused(f"{folder}: wanted {wanted}; got {got}. Use another checkpoint.")

    try:
        raw = _plain_file(folder / MANIFEST, LARGEST_MANIFEST)
    except OSError as error:
        raise refuse(f"a checkpoint with its {MANIFEST}", error.strerror or str(error)) from None
    try:
        files: dict[str, dict[str, Any]] = json.loads(raw)["files"]
        valid = _manifest(files) == raw and all(
            _NAME.fullmatch(name)
            and name not in (MANIFEST, SIGNATURE)
            and set(entry) == {"bytes", "sha256"}
            for name, entry in files.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        valid, files = False, {}
    if not valid:
        raise refuse(
            f"a {MANIFEST} as it was written", "one that was changed or is of another format"
        )
    present = {path.name for path in folder.iterdir()} - {MANIFEST, SIGNATURE}
    if present != files.keys():
        missing, extra = sorted(files.keys() - present), sorted(present - files.keys())
        raise refuse(
            f"the files of its {MANIFEST}",
            f"{missing or 'none'} missing and {extra or 'none'} too many",
        )
    return files


def _checked(folder: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    path = folder / name
    try:
        content = _plain_file(path)
    except OSError as error:
        raise CheckpointRefused(
            f"{path}: wanted a file to read; got {error.strerror}. Check its mode."
        ) from None
    if _entry(content) != entry:
        raise CheckpointRefused(
            f"{path}: wanted {entry['bytes']} bytes as they were saved; got {len(content)} bytes that differ. "
            "The file is damaged: use another checkpoint."
        )
    if name == TRAINING_STATE and (match := _STEP.fullmatch(folder.name)):
        step = document({name: content}, name, folder).get("step")
        if step != int(match[1]):
            wanted, got = f"the checkpoint of step {int(match[1])}", f"that of step {step}"
            raise CheckpointRefused(
                f"{folder}: wanted {wanted}; got {got}. Give the folder its name back."
            )
    return content


def _plain_file(path: Path, largest: int | None = None) -> bytes:
    """The content of a regular file: a link is refused, as are devices and pipes, which may never end."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointRefused(
            f"{path}: wanted a plain file; got something else. Use another checkpoint."
        )
    if largest is not None and status.st_size > largest:
        got = f"{status.st_size:,}"
        raise CheckpointRefused(
            f"{path}: wanted at most {largest:,} bytes; got {got}. Use another checkpoint."
        )
    return path.read_bytes()
