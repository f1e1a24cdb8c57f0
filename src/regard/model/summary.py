"""A model's summary: parts, parameters, and floating-point operations of a forward pass."""

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def _attention(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *_: Any, **__: Any) -> int:
    """Operations of the scores and of the weighted values, for every query of every head."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


# PyTorch counts its CUDA attention kernels, but not this one.
_UNCOUNTED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}


def describe(model: nn.Module) -> str:
    """A line per part: role, class, number of parameters; shared parameters count in the first part."""
    seen: set[int] = set()
    lines = []
    for role, part in model.named_children():
        new = {id(p): p.numel() for p in part.parameters() if id(p) not in seen}
        seen |= new.keys()
        lines.append((role, type(part).__name__, sum(new.values())))
    total = sum(p.numel() for p in model.parameters())
    return "\n".join(
        [f"{type(model).__name__}, {total:,} parameters"]
        + [f"  {role:<8} {kind:<20} {count:>12,}" for role, kind, count in lines if count]
    )


@torch.no_grad()
def flops(model: nn.Module, *inputs: Any) -> int:
    """Floating-point operations of one forward pass; a multiply-add counts as two."""
    with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
        model(*inputs)
    return int(counter.get_total_flops())
