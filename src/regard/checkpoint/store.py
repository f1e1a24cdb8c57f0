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

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"  # optional: signature.py
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

    In place of tensors there may be a function that writes the file itself, for tensors that do not fit in memory
    together.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with atomic_folder(folder, replace=True) as temporary:
        for name, text in texts.items():
            (temporary / name).write_bytes(text.encode())
        for name, named in tensors.items():
            if callable(named):
                named(temporary / name)
                continue
            on_host = {key: tensor.detach().cpu().contiguous() for key, tensor in named.items()}
            try:
                with with_usual_mode(temporary / name):
                    save_file(on_host, temporary / name, {"format": "pt"})
            except SafetensorError as error:
                # The library reports a full disk, as everything else, only in this way.
                raise OSError(str(error)) from None
        files = {path.name: _file_entry(path) for path in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_bytes(_manifest(files))


def add(folder: Path, name: str, tensors: "Mapping[str, Tensor]") -> None:
    """Add a file of tensors to a checkpoint, or replace it, atomically. Its other files are checked and stay.

    A signature is removed, because it signed the previous manifest.
    """
    write(folder, {}, {**_others(folder, name), name: tensors})


def replace(folder: Path, name: str, text: str) -> None:
    """Replace a text file in a checkpoint atomically, as `add` replaces a file of tensors."""
    write(folder, {name: text}, _others(folder, name))


def _others(folder: Path, name: str) -> dict[str, Callable[[Path], object]]:
    """Check a checkpoint, and return functions that copy its files, except the file of this name."""
    verify(folder)
    others = [each for each in _listed(folder) if each != name]
    return {each: partial(shutil.copyfile, folder / each) for each in others}


def read(folder: Path, *, skip: Collection[str] = ()) -> dict[str, bytes]:
    """Read the files of a checkpoint by name. A byte that differs from the manifest raises CheckpointRefused.

    skip   names of files that must be there, but are not read
    """
    content = {}
    for name, entry in _listed(folder).items():
        if name not in skip:
            content[name] = _checked(folder, name, entry)
    return content


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
    if not run.is_dir():
        return []
    matches = [_STEP.fullmatch(path.name) for path in run.iterdir()]
    return sorted(int(match[1]) for match in matches if match)


def displaced_steps(run: Path) -> list[int]:
    """The steps whose checkpoint was whole and about to be replaced when the process ended."""
    matches = [_DISPLACED.fullmatch(path.name) for path in run.iterdir()]
    displaced_there = [int(match[1]) for match in matches if match]
    found = [step for step in displaced_there if not step_folder(run, step).exists()]
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
    # A manifest may be forged: check the names that it lists before they are used as paths.
    try:
        files: dict[str, dict[str, Any]] = json.loads(raw)["files"]
        valid = _manifest(files) == raw and all(
            _is_valid_entry(name, entry) for name, entry in files.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        valid = False
        files = {}
    if not valid:
        raise refuse(
            f"a {MANIFEST} as it was written", "one that was changed or is of another format"
        )
    present = {path.name for path in folder.iterdir()} - {MANIFEST, SIGNATURE}
    if present != files.keys():
        missing = sorted(files.keys() - present)
        extra = sorted(present - files.keys())
        raise refuse(
            f"the files of its {MANIFEST}",
            f"{missing or 'none'} missing and {extra or 'none'} too many",
        )
    return files


def _is_valid_entry(name: str, entry: Mapping[str, Any]) -> bool:
    """Whether the manifest may list a file of this name with this entry."""
    if not _NAME.fullmatch(name) or name in (MANIFEST, SIGNATURE):
        return False
    return set(entry) == {"bytes", "sha256"}


def _checked(folder: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """The content of a file, which must be what its entry in the manifest says."""
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
    match = _STEP.fullmatch(folder.name)
    if name == TRAINING_STATE and match:
        # A renamed folder would be taken for the checkpoint of another step.
        named_step = int(match[1])
        step = document({name: content}, name, folder).get("step")
        if step != named_step:
            wanted = f"the checkpoint of step {named_step}"
            got = f"that of step {step}"
            raise CheckpointRefused(
                f"{folder}: wanted {wanted}; got {got}. Give the folder its name back."
            )
    return content


def _plain_file(path: Path, largest: int | None = None) -> bytes:
    """Read a regular file. Links are refused, and so are devices and pipes, which may never end."""
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
