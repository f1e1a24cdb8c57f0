"""`regard.from_pretrained`: a model of Hugging Face's transformers as ours; `regard.import_model`:
as a checkpoint.
"""

from pathlib import Path
from typing import Any

from regard.core.atomic_io import named_os_errors
from regard.core.errors import InvalidArgument
from regard.core.version import __version__
from regard.inference.load import pick_device
from regard.inference.predictor import Predictor
from regard.interop.hub import local_folder


def from_pretrained(
    source: str | Path, *, device: str = "auto", dtype: str = "float32", pairs: bool = False
) -> Predictor:
    """A model of Hugging Face's transformers, ready to predict.

    source   a folder as transformers saves it, or "hf:owner/name", which huggingface_hub downloads
    device   "cpu", "cuda", or "auto": a GPU where there is one
    dtype    of the weights in memory: float32, float16 or bfloat16
    pairs    of a classifier: whether it reads pairs of texts, as one sequence

    Refused where the architecture, or one of its options, is not known here. docs/interop.md lists
    them.
    """
    from regard.interop.importing import ImportedModel

    device = pick_device(device)
    wanted = _dtype(dtype)
    return ImportedModel(local_folder(source), pairs=pairs).predictor(device, wanted)


def import_model(
    source: str | Path, out: str | Path, *, dtype: str | None = None, pairs: bool = False
) -> Path:
    """Write a model of Hugging Face's transformers as a checkpoint,
    which all of Regard takes like one it trained.

    source   as in `from_pretrained`
    out      a folder that does not exist yet
    dtype    of the weights in the file: float32, float16 or bfloat16; default: as they are
    pairs    as in `from_pretrained`
    """
    from regard.interop.importing import ImportedModel

    folder = Path(out)
    wanted = None if dtype is None else _dtype(dtype)
    with named_os_errors(folder, "a folder to write to"):
        if folder.exists() or str(out) in ("", "."):
            raise InvalidArgument(
                "out",
                wanted="a folder that does not exist yet",
                got=repr(str(out)),
                remedy="Choose another.",
            )
        model = ImportedModel(local_folder(source), pairs=pairs)
        folder.parent.mkdir(parents=True, exist_ok=True)
        model.write(folder, wanted, __version__)
    return folder


def _dtype(name: str) -> Any:
    import torch

    names = ("float32", "float16", "bfloat16")
    if name not in names:
        raise InvalidArgument(
            "dtype", wanted=f"one of {', '.join(names)}", got=repr(name), remedy="Use float32."
        )
    return getattr(torch, name)
