"""A forward pass that can be made once more, and what its output would gain from each weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Int, Tensor
from regard.interpret.sites import places
from regard.kernels.attention import reference
from regard.kernels.attention.spec import AttentionSpec, repeat_heads, widened
from regard.model.capture import intercepting
from regard.model.eval_mode import evaluating


@dataclass(frozen=True)
class RepeatableForward:
    """A model, and a batch of one that it reads and is made to say."""

    model: nn.Module
    source: Any  # as its encoder takes it; None for a language model
    targets: Int[Tensor, "1 T"] | None  # what its decoder reads, where it has one
    answers: Int[Tensor, " T"] | None  # what is said after each, or the label; None where nothing is

    def __call__(self) -> Tensor:
        """Logits: (T, V), or (1, labels)."""
        found: Tensor = self.model(self.source) if self.targets is None else self.model(self.source, self.targets)
        return found if self.targets is None else found[0]


@dataclass(frozen=True)
class WeightGradients:
    """The weights of a module, and the gradient of a log-probability by each, all that follows from it included."""

    weights: Float[Tensor, "H N M"]
    gradients: Float[Tensor, "H N M"]


def slopes(forced: RepeatableForward, of: int | None = None) -> dict[str, WeightGradients]:
    """By the name of each place that attends: of the log-probability of the output, or of one of its tokens.

    Every weight is in memory, as a plain softmax, since the fused kernels know no gradient by it.
    """
    names = {module: place.name for module, place in places(forced.model).items()}
    kept: dict[str, list[Tensor]] = {}

    def plainly(module: nn.Module | None, spec: AttentionSpec, value: Tensor, out: Tensor) -> Tensor:
        weights = reference.softmax(reference.scores(spec))  # (1, H, N, M)
        if not weights.requires_grad:  # nothing before it does, in a model that is frozen
            weights.requires_grad_()
        if module in names:
            kept.setdefault(names[module], []).append(weights)
        return (weights @ widened(repeat_heads(value, weights.shape[1]))).to(out.dtype)

    with torch.enable_grad(), evaluating(forced.model), intercepting(plainly):
        chosen = _log_probability(forced, of)
        steps = [weights for each in kept.values() for weights in each]
        found = iter(torch.autograd.grad(chosen, steps, allow_unused=True) if steps else ())
    zero = torch.zeros_like  # for a weight on which nothing that was said depends
    return {
        name: WeightGradients(
            _joined(each), _joined([zero(like) if (by := next(found)) is None else by for like in each])
        )
        for name, each in kept.items()
    }


def _log_probability(forced: RepeatableForward, of: int | None) -> Tensor:
    if forced.answers is None:
        wanted, remedy = "a look with an output", "A model that finds hidden tokens has none."
        raise InvalidArgument("attributions", wanted=wanted, got="one without", remedy=remedy)
    count = len(forced.answers)
    if of is not None and not (type(of) is int and -count <= of < count):
        wanted, remedy = f"a token of the output, from 0 to {count - 1}", "Leave it out for the whole output."
        raise InvalidArgument("of", wanted=wanted, got=repr(of), remedy=remedy)
    each = forced().float().log_softmax(-1).gather(-1, forced.answers[:, None])[:, 0]
    return each.sum() if of is None else each[of]


def _joined(steps: Sequence[Tensor]) -> Tensor:
    """The rows of one step after another."""
    return torch.cat([step.detach()[0] for step in steps], 1).float().cpu()
