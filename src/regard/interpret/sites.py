"""The attention modules of a model and their names: "encoder 2", "decoder 1 cross", "pool", "source 2 encoder 1"."""

import re
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from regard.model.interfaces import AttentionKind, AttentionModule, Decoder

ModelPart = Literal["encoder", "decoder", "pool"]
SequenceSide = Literal["source", "output", "pool"]


@dataclass(frozen=True)
class AttentionSite:
    """One attention module of a model."""

    name: (
        str  # "encoder 2", "decoder 1 cross", "pool"; "encoder pool" computes the memory's summary
    )
    kind: AttentionKind
    part: ModelPart
    layer: int  # from 1, among the modules of the same kind and part, and in encoders of the same source
    source: int = field(
        default=0, kw_only=True
    )  # the source, from 0, whose positions are keys or queries

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
    modules = list(model.named_modules())
    decoders = [module for _, module in modules if isinstance(module, Decoder)]
    cross_attentions = {module for decoder in decoders for module in decoder.cross_attentions}
    counts: dict[tuple[ModelPart, AttentionKind, int], int] = {}
    sites: dict[AttentionModule, AttentionSite] = {}
    for path, module in modules:
        if not isinstance(module, AttentionModule):
            continue
        if (
            isinstance(module, Decoder) and module not in cross_attentions
        ):  # a recurrent one without attention
            continue
        part: ModelPart = (
            "decoder"
            if path.startswith("decoder")
            else "pool"
            if path.startswith("pool")
            else "encoder"
        )
        kind: AttentionKind = "cross" if module in cross_attentions else module.attention_kind
        of_source = re.match(r"encoder\.encoders\.(\d+)\.", path)
        source = int(of_source[1]) if of_source else 0
        layer = counts[part, kind, source] = counts.get((part, kind, source), 0) + 1
        pool = "pool" if part == "pool" else f"{part} pool"
        name = {"pool": pool, "grid": f"grid {layer}"}.get(kind, f"{part} {layer}")
        name = (
            f"{name} {kind}"
            if part == "decoder"
            else f"source {source + 1} {name}"
            if of_source
            else name
        )
        sites[module] = AttentionSite(name, kind, part, layer, source=source)
    return sites
