"""Where in a model modules attend, and what these places are called."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from regard.model.multihead import MultiHead
from regard.model.pooling import AttentionPool
from regard.model.vision import SelfAttention2d

SiteKind = Literal["self", "cross", "pool", "grid"]
ModelPart = Literal["encoder", "decoder", "pool"]
SequenceSide = Literal["source", "output", "pool"]


@dataclass(frozen=True)
class AttentionSite:
    """Where in a model a module attends."""

    name: str  # as people say it: "encoder 2", "decoder 1 cross", "pool"; "encoder pool" makes the summary
    kind: SiteKind
    part: ModelPart
    layer: int  # from 1, among those of its kind and part

    @property
    def asks(self) -> SequenceSide:
        return "pool" if self.kind == "pool" else "output" if self.part == "decoder" else "source"

    @property
    def asked(self) -> SequenceSide:
        return "output" if (self.part, self.kind) == ("decoder", "self") else "source"


def places(model: nn.Module) -> dict[nn.Module, AttentionSite]:
    """All modules of a model that attend, in the order in which they stand."""
    cross_attentions = set(getattr(getattr(model, "decoder", None), "cross_attentions", ()))
    in_grids = {module.attn for module in model.modules() if isinstance(module, SelfAttention2d)}
    in_pools = {module.attn for module in model.modules() if isinstance(module, AttentionPool)}
    counts: dict[tuple[ModelPart, SiteKind], int] = {}
    found: dict[nn.Module, AttentionSite] = {}
    for path, module in model.named_modules():
        if not isinstance(module, MultiHead) and module not in cross_attentions:
            continue
        part: ModelPart = "decoder" if path.startswith("decoder") else "pool" if path.startswith("pool") else "encoder"
        kind: SiteKind = "cross" if module in cross_attentions else "pool" if module in in_pools else "self"
        kind = "grid" if module in in_grids else kind
        layer = counts[part, kind] = counts.get((part, kind), 0) + 1
        pool = "pool" if part == "pool" else f"{part} pool"
        name = {"pool": pool, "grid": f"grid {layer}"}.get(kind, f"{part} {layer}")
        found[module] = AttentionSite(f"{name} {kind}" if part == "decoder" else name, kind, part, layer)
    return found
