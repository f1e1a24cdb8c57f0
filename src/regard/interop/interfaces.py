"""What a format that models are exported to implements, and the table of these formats."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Literal

from regard.core.atomic_io import atomic_folder, named_os_errors
from regard.core.config import Config, doc, nearest
from regard.core.errors import InvalidArgument
from regard.inference.predictor import Predictor


@dataclass(frozen=True)
class ExportOptions(Config):
    """How a model is written. Each target takes some of these, and refuses the others."""

    dtype: Literal["float32", "float16", "bfloat16"] | None = doc(
        None, "of the weights; left out: as they are"
    )
    quantization: Literal["int8"] | None = doc(None, "of the weights")
    attention: bool = doc(False, "also give the attention weights as outputs")
    report: str | None = doc(
        None, "file of `regard evaluate --json`, whose figures go into the model card"
    )
    examples: str | None = doc(
        None, "file of inputs, as `regard predict` reads it, of which a page offers the first"
    )
    push: str | None = doc(
        None, "repository of the Hugging Face Hub, as owner/name, to which the folder is uploaded"
    )


class ExportTarget(ABC):
    """A format that models are exported to."""

    name: ClassVar[str]  # on the command line
    title: ClassVar[str]  # in messages
    options: ClassVar[frozenset[str]] = frozenset()  # the names in `ExportOptions` that it takes

    @abstractmethod
    def obstacles(self, model: Predictor) -> Sequence[str]:
        """Why the format cannot express the model, part by part; empty if it can. This needs no optional package."""

    @abstractmethod
    def check_destination(self, out: Path) -> None:
        """Refuse a path that the model cannot be written to."""

    @abstractmethod
    def save(self, model: Predictor, out: Path, options: ExportOptions) -> None:
        """Write a model without obstacles; it is there complete, or not at all."""

    def check_options(self, options: ExportOptions) -> None:
        """Refuse options that this target does not take."""
        for field in fields(options):
            value = getattr(options, field.name)
            if field.name not in self.options and value != field.default:
                wanted = f"nothing here: {self.title} does not take it"
                got = repr(value)
                raise InvalidArgument(field.name, wanted=wanted, got=got, remedy="Leave it out.")


class FolderTarget(ExportTarget):
    """A format of several files, in a folder that does not exist yet or is empty."""

    @abstractmethod
    def write(self, model: Predictor, folder: Path, options: ExportOptions) -> None:
        """Write the files of a model without obstacles into an empty folder."""

    def check_destination(self, out: Path) -> None:
        with named_os_errors(out, "a folder to write to"):
            is_taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
            if str(out) in ("", ".") or is_taken:
                wanted = "a folder that does not exist yet"
                got = repr(str(out))
                raise InvalidArgument(
                    "out", wanted=wanted, got=got, remedy="Choose another, or remove it."
                )

    def save(self, model: Predictor, out: Path, options: ExportOptions) -> None:
        with named_os_errors(out, "a folder to write to"):
            out.parent.mkdir(parents=True, exist_ok=True)
            if out.is_dir():
                out.rmdir()
            with atomic_folder(out) as temporary:
                self.write(model, temporary, options)


# The class of each target by its name, in the order in which they are listed.
TARGETS: dict[str, tuple[str, str]] = {
    "huggingface": ("regard.interop.huggingface", "HuggingFaceTarget"),
    "ctranslate2": ("regard.interop.ctranslate2", "CTranslate2Target"),
    "onnx": ("regard.interop.onnx.target", "OnnxTarget"),
    "page": ("regard.interop.page.target", "PageTarget"),
}


def export_target(name: str) -> ExportTarget:
    """The target of this name."""
    if name not in TARGETS:
        remedy = nearest(name, TARGETS, listed=True)
        raise InvalidArgument(
            "to", wanted=f"one of {', '.join(TARGETS)}", got=repr(name), remedy=remedy
        )
    module, class_name = TARGETS[name]
    target: ExportTarget = getattr(import_module(module), class_name)()
    return target
