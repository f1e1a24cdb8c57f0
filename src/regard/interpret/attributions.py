"""Attributions: gradient × weight of every attention weight, for the log-probability of an output."""

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.interpret.maps import ForwardPass
from regard.interpret.sites import attention_sites
from regard.kernels.attention import reference
from regard.kernels.attention.spec import repeat_heads, widened
from regard.model.capture import AttentionResult, intercepting
from regard.model.eval_mode import evaluating


def attributions(forward: ForwardPass, of: int | None = None) -> dict[str, Float[Tensor, "H N M"]]:
    """For each attention site, by name: each weight times the gradient with respect to it.

    The gradient is taken of the log-probability of the output, or of its token `of`. The reference softmax
    materializes every weight, because fused kernels have no gradient with respect to weights.
    """
    names = {module: site.name for module, site in attention_sites(forward.model).items()}
    steps: dict[str, list[Tensor]] = {}

    def materialize(module: nn.Module | None, result: AttentionResult) -> AttentionResult:
        weights = reference.softmax(reference.scores(result.spec))  # (1, H, N, M)
        # In a frozen model nothing before the weights requires a gradient.
        if not weights.requires_grad:
            weights.requires_grad_()
        if module in names:
            steps.setdefault(names[module], []).append(weights)
        value = widened(repeat_heads(result.value, weights.shape[1]))  # (1, H, M, E)
        out = weights @ value  # (1, H, N, E)
        return result._replace(out=out.to(result.out.dtype))

    with torch.enable_grad(), evaluating(forward.model), intercepting(materialize):
        log_probability = _log_probability(forward, of)
        inputs = [weights for site_steps in steps.values() for weights in site_steps]
        gradients: tuple[Tensor, ...] = ()
        if inputs:
            gradients = torch.autograd.grad(log_probability, inputs, materialize_grads=True)
    remaining = iter(gradients)
    products = {}
    for name, site_steps in steps.items():
        # A recurrent decoder calls its attention once for each step: their rows follow each other.
        parts = []
        for weights in site_steps:
            place = forward.sequence if len(weights) > 1 else 0
            gradient = next(remaining)[place].float()  # (H, N, M)
            parts.append(weights.detach()[place].float() * gradient)
        products[name] = torch.cat(parts, 1).cpu()  # (H, N, M)
    return products


def _log_probability(forward: ForwardPass, of: int | None) -> Tensor:
    if forward.labels is None:
        wanted = "a look with an output"
        remedy = "A masked language model has none."
        raise InvalidArgument("attributions", wanted=wanted, got="one without", remedy=remedy)
    count = len(forward.labels)
    if of is not None and not (type(of) is int and -count <= of < count):
        wanted = f"a token of the output, from 0 to {count - 1}"
        remedy = "Leave it out for the whole output."
        raise InvalidArgument("of", wanted=wanted, got=repr(of), remedy=remedy)
    each = forward.log_probabilities(forward(), forward.labels)
    if of is None:
        return each.sum()
    return each[of]
