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

    The gradient is of the log-probability of the output, or of its token `of`. Every weight is materialised by the
    reference softmax, since fused kernels have no gradient with respect to it.
    """
    names = {module: site.name for module, site in attention_sites(forward.model).items()}
    steps: dict[str, list[Tensor]] = {}

    def materialize(module: nn.Module | None, result: AttentionResult) -> AttentionResult:
        weights = reference.softmax(reference.scores(result.spec))  # (1, H, N, M)
        if not weights.requires_grad:  # in a frozen model nothing before it requires a gradient
            weights.requires_grad_()
        if module in names:
            steps.setdefault(names[module], []).append(weights)
        out = weights @ widened(repeat_heads(result.value, weights.shape[1]))
        return result._replace(out=out.to(result.out.dtype))

    with torch.enable_grad(), evaluating(forward.model), intercepting(materialize):
        log_probability = _log_probability(forward, of)
        inputs = [weights for site_steps in steps.values() for weights in site_steps]
        gradients = iter(
            torch.autograd.grad(log_probability, inputs, materialize_grads=True) if inputs else ()
        )
    products = {
        name: [weights.detach()[0].float() * next(gradients)[0].float() for weights in each]
        for name, each in steps.items()
    }
    return {name: torch.cat(each, 1).cpu() for name, each in products.items()}


def _log_probability(forward: ForwardPass, of: int | None) -> Tensor:
    if forward.labels is None:
        wanted, remedy = "a look with an output", "A masked language model has none."
        raise InvalidArgument("attributions", wanted=wanted, got="one without", remedy=remedy)
    count = len(forward.labels)
    if of is not None and not (type(of) is int and -count <= of < count):
        wanted, remedy = (
            f"a token of the output, from 0 to {count - 1}",
            "Leave it out for the whole output.",
        )
        raise InvalidArgument("of", wanted=wanted, got=repr(of), remedy=remedy)
    each = forward.log_probabilities(forward(), forward.labels)
    return each.sum() if of is None else each[of]
