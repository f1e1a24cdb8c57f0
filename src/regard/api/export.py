"""`regard.export`: write a model in the format of another library, or as a page that runs it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interop import hub
from regard.interop.interfaces import TARGETS, ExportOptions, export_target


def export(model: str | Path | Predictor, to: str, out: str | Path, **options: Any) -> Path:
    """Write a model in the format of another library, or as an HTML page that runs it.

    model     a run, a checkpoint, or a loaded model
    to        "huggingface", "ctranslate2", "onnx" or "page"
    out       a folder that does not exist yet or is empty; for "page", an .html file
    options   those of `regard.interop.interfaces.ExportOptions`: dtype, quantization, attention,
              report, examples, push

    A model that the format cannot express is refused, with the reasons. What is written is complete
    or not there.
    """
    target = export_target(to)
    path = Path(out)
    chosen = read(ExportOptions, options, "export")
    if isinstance(chosen, list):
        raise InvalidRecipe(chosen)
    target.check_options(chosen)
    if chosen.push is not None:
        hub.check_name(chosen.push, "push")
        hub.check_login()
    target.check_destination(path)
    predictor = load(model, device="cpu")
    if obstacles := target.obstacles(predictor):
        wanted = f"a model that {target.title} can express"
        raise InvalidArgument(
            "model", wanted=wanted, got="; ".join(obstacles), remedy=_remedy(predictor, to)
        )
    target.save(predictor, path, chosen)
    if chosen.push is not None:
        hub.push(path, chosen.push)
    return path


def export_obstacles(model: str | Path | Predictor) -> dict[str, Sequence[str]]:
    """For each format, why it cannot express the model; empty where it can."""
    predictor = load(model, device="cpu")
    return {name: export_target(name).obstacles(predictor) for name in TARGETS}


def _remedy(model: Predictor, refused: str) -> str:
    """The formats that can express a model that one cannot."""
    able = [
        name for name in TARGETS if name != refused and not export_target(name).obstacles(model)
    ]
    return f"Possible: {', '.join(able)}." if able else "Train a model without these parts."
