"""`regard.export`: write a model in the format of another library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.core.atomic_io import atomic_folder, named_os_errors
from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interop import hub
from regard.interop.interfaces import TARGETS, ExportOptions, export_target


def export(model: str | Path | Predictor, to: str, out: str | Path, **options: Any) -> Path:
    """Write a model in the format of another library, into a folder that does not exist yet or is empty.

    model     a run, a checkpoint, or a loaded model
    to        "huggingface", "ctranslate2" or "onnx"
    options   those of `regard.interop.interfaces.ExportOptions`: dtype, quantization, attention, report, push

    A model that the format cannot express is refused, with the reasons. The folder is complete or not there.
    """
    target, folder = export_target(to), Path(out)
    chosen = read(ExportOptions, options, "export")
    if isinstance(chosen, list):
        raise InvalidRecipe(chosen)
    target.check_options(chosen)
    if chosen.push is not None:
        hub.check_name(chosen.push, "push")
    with named_os_errors(folder, "a folder to write to"):
        if str(out) in ("", ".") or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            wanted, got = "a folder that does not exist yet", repr(str(out))
            raise InvalidArgument("out", wanted=wanted, got=got, remedy="Choose another, or remove it.")
    predictor = load(model, device="cpu")
    if obstacles := target.obstacles(predictor):
        wanted = f"a model that {target.title} can express"
        raise InvalidArgument("model", wanted=wanted, got="; ".join(obstacles), remedy=_remedy(predictor, to))
    with named_os_errors(folder, "a folder to write to"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():
            folder.rmdir()
        with atomic_folder(folder) as temporary:
            target.write(predictor, temporary, chosen)
    if chosen.push is not None:
        hub.push(folder, chosen.push)
    return folder


def export_obstacles(model: str | Path | Predictor) -> dict[str, Sequence[str]]:
    """For each format, why it cannot express the model; empty where it can."""
    predictor = load(model, device="cpu")
    return {name: export_target(name).obstacles(predictor) for name in TARGETS}


def _remedy(model: Predictor, refused: str) -> str:
    """The formats that can express a model that one cannot."""
    able = [name for name in TARGETS if name != refused and not export_target(name).obstacles(model)]
    return f"Possible: {', '.join(able)}." if able else "Train a model without these parts."
