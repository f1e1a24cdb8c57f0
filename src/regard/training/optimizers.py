"""AdamW, a running mean of the weights, and what of them a checkpoint keeps."""

import fnmatch
from collections.abc import Mapping
from math import isfinite

import torch
from torch import nn

from regard.core.config import nearest
from regard.core.errors import InvalidRecipe, Problem
from regard.core.shapes import Float, Tensor
from regard.model.embedding import Embedding
from regard.runtime.cuda.host_future import HostFuture
from regard.training.config import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> int:
    """Stop training of all weights whose names fit; how many numbers that is. A pattern that fits none is refused."""
    names = dict(model.named_parameters())
    problems = []
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            problems.append(
                Problem("train.freeze", "patterns that fit names of weights", repr(pattern), nearest(pattern, names))
            )
        for name in fitting:
            names[name].requires_grad_(False)
    if not any(p.requires_grad for p in names.values()):
        problems.append(Problem("train.freeze", "some weights left to train", repr(patterns), "Freeze fewer."))
    if problems:
        raise InvalidRecipe(problems)
    return sum(p.numel() for p in names.values() if not p.requires_grad)


def make_optimiser(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Weight decay is for matrices that multiply; biases, norms and embeddings go without."""
    rows = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    # What is frozen for a while has no gradient until then, and the optimiser passes over it.
    trained = [p for p in model.parameters() if p.requires_grad or config.unfreeze_after is not None]
    decayed = [p for p in trained if p.dim() > 1 and id(p) not in rows]
    kept = {id(p) for p in decayed}
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": [p for p in trained if id(p) not in kept], "weight_decay": 0.0},
    ]
    betas = (config.betas[0], config.betas[1])
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=betas, eps=config.eps, fused=True)


def step_if_finite(optimiser: torch.optim.AdamW, loss: Float[Tensor, ""], norm: Float[Tensor, ""]) -> HostFuture:
    """Change the weights by their gradients if loss and norm are finite; what these are, for who asks.

    A GPU decides this itself, so that nobody waits for it.
    """
    found = torch.stack((loss, norm.to(loss)))
    told = HostFuture(found)
    if norm.is_cuda:
        optimiser.found_inf = (~found.isfinite().all()).float()  # type: ignore[attr-defined]
        optimiser.step()
    elif all(map(isfinite, told())):
        optimiser.step()
    return told


def moments(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimiser knows of each weight, by name."""
    return {
        f"{moment}.{name}": optimiser.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimiser.state
        for moment in MOMENTS
    }


def put_moments(model: nn.Module, optimiser: torch.optim.Optimizer, saved: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if f"step.{name}" in saved:
            optimiser.state[parameter] = {
                moment: saved[f"{moment}.{name}"].to(parameter.device, copy=True) for moment in MOMENTS
            }


class WeightAverage:
    """The exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.means = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Early on the mean follows faster, or the first weights would weigh on it for long."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.means, list(model.parameters()), 1 - decay)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the model's weights and their means."""
        for mean, parameter in zip(self.means, model.parameters(), strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(kept)
