"""The weights of a model by name: read, compared, loaded, hashed."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from regard.core.errors import CheckpointRefused
from regard.core.shapes import Tensor


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each once:
    tied ones under the first of their names.
    """
    buffers = {name for name, _ in model.named_buffers()}
    state = model.state_dict()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return parameters | {name: state[name] for name in buffers & state.keys()}


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], where: Path | str, *, assign: bool = False
) -> None:
    """Copy weights into a model. They must be finite, and names and shapes those of the model.

    assign   the parameters, which may be on the meta device, are replaced by new ones of the given
             tensors themselves. Only for a model of `only_parameters`: nothing else then refers to
             them
    """
    own = weights_of(model)
    check_weights(own, weights, where)
    wrong = sorted(name for name, tensor in weights.items() if not _finite(tensor))
    if wrong:
        names = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise CheckpointRefused(
            f"{where}: wanted finite weights; got NaN or infinity in {names}. Use another one."
        )
    parameters = dict(model.named_parameters()) if assign else {}
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in parameters:
                tensor.copy_(weights[name])
    new = {
        id(old): nn.Parameter(weights[name].to(old.dtype), requires_grad=old.requires_grad)
        for name, old in parameters.items()
    }
    for module in model.modules() if assign else ():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = new[id(parameter)]


def _finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite. A finite sum says so in one pass, and in one thread."""
    if (
        type(tensor) is torch.Tensor
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
    ):
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(tensor.detach().numpy().sum()):
                return True
    return bool(tensor.isfinite().all())


def check_weights(
    own: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: Path | str
) -> None:
    """Refuse weights of other names, shapes or kinds of numbers than a model's own,
    which may be on the meta device.
    """
    if difference := mismatch(own, weights):
        raise CheckpointRefused(
            f"{where}: wanted the weights of this model; got {difference}. They belong "
            "to a model of another recipe."
        )


def mismatch(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """The first few names that are missing, unknown or of another shape; empty if all fit."""
    wrong = [f"no {name}" for name in own.keys() - weights.keys()]
    wrong += [f"an unknown {name}" for name in weights.keys() - own.keys()]
    other_shape = [
        name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape
    ]
    wrong += [
        f"{name} of shape {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in other_shape
    ]
    both = own.keys() & weights.keys()
    other_kind = [
        name for name in both if own[name].is_floating_point() != weights[name].is_floating_point()
    ]
    wrong += [f"{name} of {weights[name].dtype}" for name in other_kind]
    return "; ".join(sorted(wrong)[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")


class WeightSum:
    """The sum of weights of one model after the other, in float64;
    `mean` gives their mean in float32.
    """

    def __init__(self) -> None:
        self.total = dict[str, Tensor]()
        self.count = 0

    def add(self, weights: Mapping[str, Tensor]) -> None:
        self.count += 1
        for name, tensor in weights.items():
            sum_before = self.total.get(name)
            if sum_before is None:
                self.total[name] = tensor.double()
            else:
                self.total[name] = sum_before + tensor.double()

    def mean(self) -> dict[str, Tensor]:
        return {name: (tensor / self.count).float() for name, tensor in self.total.items()}


def fingerprint(network: nn.Module) -> str:
    """A hash of a network's structure and all its weights."""
    digest = hashlib.sha256(str(network).encode())
    for name, tensor in sorted(weights_of(network).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
