"""The attention modules of a model and their names: "encoder 2", "decoder 1 cross", "pool"."""

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
    """One attention module of a model."""

    name: str  # "encoder 2", "decoder 1 cross", "pool"; "encoder pool" computes the memory's summary
    kind: SiteKind
    part: ModelPart
    layer: int  # from 1, among the modules of the same kind and part

    @property
    def query_side(self) -> SequenceSide:
        """The sequence whose positions are the queries."""
        return "pool" if self.kind == "pool" else "output" if self.part == "decoder" else "source"

    @property
    def key_side(self) -> SequenceSide:
        """The sequence whose positions are the keys."""
        return "output" if (self.part, self.kind) == ("decoder", "self") else "source"


def attention_sites(model: nn.Module) -> dict[nn.Module, AttentionSite]:
    """All attention modules of a model, in the order of its `named_modules`."""
    cross_attentions = set(getattr(getattr(model, "decoder", None), "cross_attentions", ()))
    in_grids = {module.attn for module in model.modules() if isinstance(module, SelfAttention2d)}
    in_pools = {module.attn for module in model.modules() if isinstance(module, AttentionPool)}
    counts: dict[tuple[ModelPart, SiteKind], int] = {}
    sites: dict[nn.Module, AttentionSite] = {}
    for path, module in model.named_modules():
        if not isinstance(module, MultiHead) and module not in cross_attentions:
            continue
        part: ModelPart = "decoder" if path.startswith("decoder") else "pool" if path.startswith("pool") else "encoder"
        kind: SiteKind = "cross" if module in cross_attentions else "pool" if module in in_pools else "self"
        kind = "grid" if module in in_grids else kind
        layer = counts[part, kind] = counts.get((part, kind), 0) + 1
        pool = "pool" if part == "pool" else f"{part} pool"
        name = {"pool": pool, "grid": f"grid {layer}"}.get(kind, f"{part} {layer}")
        sites[module] = AttentionSite(f"{name} {kind}" if part == "decoder" else name, kind, part, layer)
    return sites
