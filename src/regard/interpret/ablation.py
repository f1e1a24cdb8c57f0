"""Head ablation: the loss without each head, and weights without the least useful ones."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Tensor
from regard.interpret.editing import editing
from regard.interpret.edits import SwitchHeadOff
from regard.interpret.sites import AttentionSite, attention_sites
from regard.model.eval_mode import evaluating
from regard.model.seq2seq import Model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AblatedHead:
    """The effect of one head whose output is zero."""

    site: AttentionSite
    head: int
    loss: float  # mean per token, in nats
    change: float  # from the loss with all heads


def ablate_heads(model: Model, loss: Callable[[], float]) -> tuple[float, list[AblatedHead]]:
    """The loss with all heads, and with the output of each head in turn set to zero; no weight changes."""
    ablated = []
    with evaluating(model):
        whole = loss()
        for module, site in attention_sites(model).items():
            for head in range(module.heads):
                with editing(model, [SwitchHeadOff(map=site.name, head=head)]):
                    without = loss()
                ablated.append(AblatedHead(site, head, without, without - whole))
                log.info("%s, head %d: %+.4f", site.name, head, without - whole)
    return whole, ablated


def prune_heads(
    model: nn.Module, weights: dict[str, Tensor], heads: Sequence[tuple[str, int]]
) -> None:
    """Set the columns of the output projections that read these heads to zero, in a model's state dict.

    heads   each the name of a site and a number
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    # A recurrent decoder's output weight is part of a parameter: its only head cannot be pruned.
    modules = {
        site.name: module
        for module, site in attention_sites(model).items()
        if module.output_weight in names
    }
    for name, head in heads:
        if name not in modules or not 0 <= head < modules[name].heads:
            known = [f"{site} (heads 0 to {each.heads - 1})" for site, each in modules.items()]
            wanted = ", ".join(known) or "none: this model has no heads"
            got = f"{name!r}, {head}"
            raise InvalidArgument("heads", wanted=wanted, got=got, remedy="Name these.")
        weight = weights[names[modules[name].output_weight]]  # (W, H E)
        size = weight.shape[1] // modules[name].heads
        weight[:, head * size : (head + 1) * size] = 0.0
