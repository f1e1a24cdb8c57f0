"""AdamW and Muon, freezing, the moving average of the weights,
and the optimizer state in a checkpoint.
"""

import fnmatch
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

import torch
from torch import nn

from regard.core.config import nearest
from regard.core.errors import CheckpointRefused, InvalidRecipe, Problem
from regard.core.host_future import HostFuture
from regard.core.shapes import Float, Tensor
from regard.model.embedding import Embedding
from regard.model.seq2seq import Model
from regard.training.config import TrainConfig
from regard.training.muon import Muon


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Exclude the weights whose names match from training.

    A pattern that matches none is refused.
    """
    parameters = dict(model.named_parameters())
    problems = []
    for pattern in patterns:
        matches = fnmatch.filter(parameters, pattern)
        if not matches:
            hint = nearest(pattern, parameters)
            problems.append(
                Problem("train.freeze", "patterns that match names of weights", repr(pattern), hint)
            )
        for name in matches:
            parameters[name].requires_grad_(False)
    if not any(p.requires_grad for p in parameters.values()):
        problems.append(
            Problem("train.freeze", "some weights left to train", repr(patterns), "Freeze fewer.")
        )
    if problems:
        raise InvalidRecipe(problems)


class Optimizer:
    """AdamW for all weights, or Muon for hidden matrices and AdamW for the rest,
    behind one interface.

    AdamW: https://arxiv.org/abs/1711.05101. Weight decay applies to matrices, never to biases,
    norms and embeddings. Muon: https://kellerjordan.github.io/posts/muon, with the update scaled to
    AdamW's so that both share one learning rate (https://arxiv.org/abs/2502.16982).
    """

    def __init__(self, model: Model, config: TrainConfig) -> None:
        self.model = model
        # Weights that are frozen for the first epochs have no gradient until then:
        # optimizers skip them.
        trained = [
            p for p in model.parameters() if p.requires_grad or config.unfreeze_after is not None
        ]
        hidden = hidden_matrices(model) if config.optimizer == "muon" else set()
        embeddings = {module.weight for module in model.modules() if isinstance(module, Embedding)}
        matrices = [p for p in trained if p in hidden]
        decayed = [p for p in trained if p not in hidden and p.dim() > 1 and p not in embeddings]
        others = [p for p in trained if p not in hidden and (p.dim() <= 1 or p in embeddings)]
        groups = [
            {"params": parameters, "weight_decay": decay}
            for parameters, decay in ((decayed, config.weight_decay), (others, 0.0))
            if parameters
        ]
        betas = (config.betas[0], config.betas[1])
        decay = config.weight_decay
        self.adamw = None
        self.muon = None
        if groups:
            self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.eps, fused=True)
        if matrices:
            self.muon = Muon(matrices, lr=0.0, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        self.parts = [part for part in (self.adamw, self.muon) if part is not None]

    def set_learning_rate(self, rate: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def step_if_finite(self, losses: Float[Tensor, " N"], norm: Float[Tensor, ""]) -> HostFuture:
        """Update the weights if losses and gradient norm are finite; these,
        copied to the host asynchronously.

        On a GPU the optimizers make this decision on the device, so the host does not wait.
        """
        values = torch.cat((losses, norm.to(losses)[None]))
        future = HostFuture(values)
        if norm.is_cuda:
            found_inf = (~values.isfinite().all()).float()
            for part in self.parts:
                part.found_inf = found_inf  # type: ignore[union-attr]
            self.step()
        elif all(map(isfinite, future())):
            self.step()
        return future

    def state_tensors(self) -> dict[str, Tensor]:
        """The state of each weight: "exp_avg.NAME", "exp_avg_sq.NAME" and "step.NAME",
        or "momentum_buffer.NAME".
        """
        return {
            f"{key}.{name}": tensor
            for part in self.parts
            for name, parameter in self.model.named_parameters()
            if parameter in part.state
            for key, tensor in part.state[parameter].items()
        }

    def load_state_tensors(self, saved: Mapping[str, Tensor], where: Path) -> None:
        """Restore the state of each weight from a file named by `where`.

        One without gradients so far has none.
        """
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for part in self.parts:
            keys = ("momentum_buffer",) if part is self.muon else ("exp_avg", "exp_avg_sq", "step")
            for parameter in (p for group in part.param_groups for p in group["params"]):
                tensors = {key: saved.get(f"{key}.{names[parameter]}") for key in keys}
                if all(tensor is None for tensor in tensors.values()):
                    continue
                for key, tensor in tensors.items():
                    shape = () if key == "step" else parameter.shape
                    if tensor is None or tensor.shape != shape or not bool(tensor.isfinite().all()):
                        wanted = f"a finite {key} of shape {tuple(shape)} for {names[parameter]}"
                        got = "none"
                        if tensor is not None:
                            got = f"shape {tuple(tensor.shape)}, or numbers that are not"
                        raise CheckpointRefused(
                            f"{where}: wanted {wanted}; got {got}. Use another checkpoint."
                        )
                    part.state[parameter][key] = tensor.to(parameter.device, copy=True)


def hidden_matrices(model: Model) -> set[nn.Parameter]:
    """The 2-D weights of linear and recurrent layers,
    without embeddings and the projection to logits.
    """
    layers = (module for module in model.modules() if isinstance(module, nn.Linear | nn.RNNBase))
    return {p for layer in layers for p in layer.parameters(recurse=False) if p.dim() == 2} - set(
        model.output_weights
    )


class WeightAverage:
    """The exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.means = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Average in the weights after update `step`, counted from 0.
        The decay is lower early in the run.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.means, list(model.parameters()), 1 - decay)

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """The model with its averaged weights."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        for mean, parameter in zip(self.means, model.parameters(), strict=True):
            weight = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(weight)
