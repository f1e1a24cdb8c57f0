"""The attention modules of a model and their names: "encoder 2", "decoder 1 cross", "pool"."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from regard.model.interfaces import AttentionKind, AttentionModule, Decoder

ModelPart = Literal["encoder", "decoder", "pool"]
SequenceSide = Literal["source", "output", "pool"]


@dataclass(frozen=True)
class AttentionSite:
    """One attention module of a model."""

    name: str  # "encoder 2", "decoder 1 cross", "pool"; "encoder pool" computes the memory's summary
    kind: AttentionKind
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


def attention_sites(model: nn.Module) -> dict[AttentionModule, AttentionSite]:
    """All attention modules of a model, in the order of its `named_modules`."""
    decoders = [module for module in model.modules() if isinstance(module, Decoder)]
    cross_attentions = {module for decoder in decoders for module in decoder.cross_attentions}
    counts: dict[tuple[ModelPart, AttentionKind], int] = {}
    sites: dict[AttentionModule, AttentionSite] = {}
    for path, module in model.named_modules():
        if not isinstance(module, AttentionModule):
            continue
        if isinstance(module, Decoder) and module not in cross_attentions:  # a recurrent one without attention
            continue
        part: ModelPart = "decoder" if path.startswith("decoder") else "pool" if path.startswith("pool") else "encoder"
        kind: AttentionKind = "cross" if module in cross_attentions else module.attention_kind
        layer = counts[part, kind] = counts.get((part, kind), 0) + 1
        pool = "pool" if part == "pool" else f"{part} pool"
        name = {"pool": pool, "grid": f"grid {layer}"}.get(kind, f"{part} {layer}")
        sites[module] = AttentionSite(f"{name} {kind}" if part == "decoder" else name, kind, part, layer)
    return sites
