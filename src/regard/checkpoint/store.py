"""A checkpoint is a folder that says itself whether it is whole.

    config.json           what the model is and how it was made: the resolved recipe and the sizes that data gave it
    model.safetensors     its weights
    tokenizer.json        its vocabulary (source_tokenizer.json too, where the source has one of its own)
    training.json         where training stood, and training.safetensors what it needs to go on
    README.md             a card for people
    manifest.json         the size and SHA-256 of each of these

It appears under its name complete and on disk, or not at all. Reading checks every byte against the manifest before
anything is used. Nothing in it is ever run: weights are safetensors, all else is JSON or text.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save_file

from regard.core.atomic_io import atomic_folder, sync_folder
from regard.core.errors import CheckpointRefused
from regard.core.shapes import Tensor

MANIFEST = "manifest.json"
FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_STEP = re.compile(r"step-(\d{8})")


def write(folder: Path, texts: Mapping[str, str], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Make a checkpoint of these files, in the place of any other; `texts` as they are, `tensors` as safetensors."""
    with atomic_folder(folder) as beside:
        for name, text in texts.items():
            (beside / name).write_bytes(text.encode())
        for name, named in tensors.items():
            held = {key: tensor.detach().cpu().contiguous() for key, tensor in named.items()}
            save_file(held, beside / name, {"format": "pt"})
        files = {path.name: _entry(path.read_bytes()) for path in sorted(beside.iterdir())}
        (beside / MANIFEST).write_bytes(_manifest(files))
        remove(folder)


def read(folder: Path) -> dict[str, bytes]:
    """The files of a checkpoint by name, every byte checked; or a refusal that says what is wrong."""
    files = _listed(folder)
    return {name: _checked(folder, name, entry) for name, entry in files.items()}


def verify(folder: Path) -> int:
    """Check a checkpoint without keeping it in memory; how many files it has."""
    files = _listed(folder)
    for name, entry in files.items():
        _checked(folder, name, entry)
    return len(files)


def tensors(content: Mapping[str, bytes], name: str, folder: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file of a checkpoint that `read` has checked."""
    try:
        return tensors_from(content[name])
    except (KeyError, SafetensorError) as error:
        raise CheckpointRefused(
            f"{folder / name}: wanted tensors in safetensors' format; got {error}. The folder is no checkpoint of ours."
        ) from None


def document(content: Mapping[str, bytes], name: str, folder: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint that `read` has checked."""
    try:
        found = json.loads(content[name])
    except (KeyError, ValueError) as error:
        raise CheckpointRefused(
            f"{folder / name}: wanted a JSON document; got {error}. The folder is no checkpoint of ours."
        ) from None
    if not isinstance(found, dict):
        raise CheckpointRefused(f"{folder / name}: wanted a JSON object; got {type(found).__name__}. It was changed.")
    return found


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def step_folder(run: Path, step: int) -> Path:
    return run / f"step-{step:08d}"


def steps(run: Path) -> list[int]:
    """The steps at which this run has checkpoints, in order."""
    found = (_STEP.fullmatch(path.name) for path in run.iterdir()) if run.is_dir() else ()
    return sorted(int(match[1]) for match in found if match)


def regular(run: Path) -> list[int]:
    """Those of them that were saved when it was their time, not because somebody or something stopped the run."""
    return [step for step in steps(run) if _regular(step_folder(run, step))]


def _regular(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "training.json").read_bytes())["checked"])
    except (OSError, ValueError, KeyError, TypeError):  # damaged, or from before it was noted
        return True


def newest(run: Path) -> tuple[int, dict[str, bytes], list[str]] | None:
    """The newest checkpoint of a run that is whole: its step, its files, and what is wrong with those after it."""
    wrong: list[str] = []
    for step in reversed(steps(run)):
        try:
            return step, read(step_folder(run, step)), wrong
        except CheckpointRefused as error:
            wrong.append(str(error))
    if wrong:
        raise CheckpointRefused("\n".join(wrong))
    return None


def prune(run: Path, keep: int, also: set[int]) -> None:
    """Leave the newest checkpoint, the last `keep` regular ones and those named."""
    found = steps(run)
    for step in set(found[:-1]) - set(regular(run)[-keep:]) - also:
        remove(step_folder(run, step))


def remove(folder: Path) -> None:
    """It first loses its name, then its files."""
    doomed = folder.with_name(f".{folder.name}.tmp")
    with suppress(FileNotFoundError):
        folder.rename(doomed)
        sync_folder(folder.parent)
        shutil.rmtree(doomed, ignore_errors=True)


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights by name, each once: tied ones under the first of their names."""
    buffers = {name for name, _ in model.named_buffers()}
    state = model.state_dict()
    kept = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return kept | {name: state[name] for name in buffers & state.keys()}


def put_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], where: Path | str) -> None:
    """Copy weights into a model; the names and shapes must be its own."""
    own = weights_of(model)
    if wrong := mismatch(own, weights):
        raise CheckpointRefused(
            f"{where}: wanted the weights of this model; got {wrong}. They belong to a model of another recipe."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def mismatch(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """What is missing, unknown or of another shape among weights, the first few by name; nothing if all fit."""
    wrong = [f"no {name}" for name in own.keys() - weights.keys()]
    wrong += [f"an unknown {name}" for name in weights.keys() - own.keys()]
    wrong += [
        f"{name} of shape {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    return "; ".join(sorted(wrong)[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _manifest(files: Mapping[str, Any]) -> bytes:
    """Written one way only, with a hash of itself, so that no byte of it can change unnoticed."""
    body = {"files": files, "format": FORMAT}
    digest = hashlib.sha256(as_json(body).encode()).hexdigest()
    return as_json({**body, "sha256": digest}).encode()


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    """What the manifest lists, once it is clear that it lists just what is there."""

    def refuse(wanted: str, got: str) -> CheckpointRefused:
        return CheckpointRefused(f"{folder}: wanted {wanted}; got {got}. Use another checkpoint.")

    try:
        raw = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise refuse(f"a checkpoint with its {MANIFEST}", error.strerror or str(error)) from None
    try:
        found = json.loads(raw)
        files: dict[str, dict[str, Any]] = found["files"]
        whole = _manifest(files) == raw
        plain = all(
            _NAME.fullmatch(name) and name != MANIFEST and set(e) == {"bytes", "sha256"} for name, e in files.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole, plain, files = False, False, {}
    if not (whole and plain):
        raise refuse(f"a {MANIFEST} as it was written", "one that was changed or is of another format")
    there = {path.name for path in folder.iterdir()} - {MANIFEST}
    if there != files.keys():
        missing, extra = sorted(files.keys() - there), sorted(there - files.keys())
        raise refuse(f"the files of its {MANIFEST}", f"{missing or 'none'} missing and {extra or 'none'} too many")
    return files


def _checked(folder: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise CheckpointRefused(f"{path}: wanted a plain file; got something else. Use another checkpoint.")
    content = path.read_bytes()
    if _entry(content) != entry:
        raise CheckpointRefused(
            f"{path}: wanted {entry['bytes']} bytes as they were saved; got {len(content)} bytes that differ. "
            "The file is damaged: use another checkpoint."
        )
    return content
