"""The attention modules of a model and their names: "encoder 2", "decoder 1 cross", "pool", "source 2 encoder 1"."""

import re
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from regard.model.interfaces import AttentionKind, AttentionModule, Decoder, Encoder
from regard.model.multi_source import source_encoders

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
    # Whether its keys, and in an encoder its queries, are the states of learned queries and not
    # positions of a source.
    over_queries: bool = field(default=False, kw_only=True)
    # Of attention to several sources: those whose states are those of learned queries.
    query_sources: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def query_side(self) -> SequenceSide:
        """The sequence whose positions are the queries."""
        if self.part == "decoder" and self.kind != "pool":
            return "output"
        of_queries = self.kind == "pool" or (self.part == "encoder" and self.over_queries)
        return "pool" if of_queries else "source"

    @property
    def key_side(self) -> SequenceSide:
        """The sequence whose positions are the keys."""
        if (self.part, self.kind) == ("decoder", "self"):
            return "output"
        return "pool" if self.over_queries else "source"


def attention_sites(model: nn.Module) -> dict[AttentionModule, AttentionSite]:
    """All attention modules of a model, in the order of its `named_modules`."""
    modules = list(model.named_modules())
    decoders = [module for _, module in modules if isinstance(module, Decoder)]
    cross_attentions = {module for decoder in decoders for module in decoder.cross_attentions}
    own_encoders = [module for _, module in modules if isinstance(module, Encoder)]
    latents = {
        module
        for encoder in own_encoders
        if not encoder.keeps_positions
        for module in encoder.modules()
    }
    # Which sources have no state for each of their positions.
    sources = source_encoders(getattr(model, "encoder", None))
    query_sources = tuple(i for i, each in enumerate(sources) if not each.keeps_positions)
    counts: dict[tuple[ModelPart, AttentionKind, int], int] = {}
    sites: dict[AttentionModule, AttentionSite] = {}
    for path, module in modules:
        if not isinstance(module, AttentionModule):
            continue
        if (
            isinstance(module, Decoder) and module not in cross_attentions
        ):  # a recurrent one without attention
            continue
        part: ModelPart = "encoder"
        if path.startswith("decoder"):
            part = "decoder"
        elif path.startswith("pool"):
            part = "pool"
        kind: AttentionKind = "cross" if module in cross_attentions else module.attention_kind
        of_source = re.match(r"encoder\.encoders\.(\d+)\.", path)
        source = int(of_source[1]) if of_source else 0
        layer = counts[part, kind, source] = counts.get((part, kind, source), 0) + 1
        pool = "pool" if part == "pool" else f"{part} pool"
        # An encoder of learned queries may attend to its source several times.
        pool = pool if layer == 1 else f"{pool} {layer}"
        name = {"pool": pool, "grid": f"grid {layer}"}.get(kind, f"{part} {layer}")
        if part == "decoder":
            name = f"{name} {kind}"
        elif of_source:
            name = f"source {source + 1} {name}"
        of_memory = part != "encoder" and (part, kind) != ("decoder", "self")
        among_latents = module in latents and kind == "self"
        of_latents = of_memory and len(sources) == 1 and bool(query_sources)
        sites[module] = AttentionSite(
            name,
            kind,
            part,
            layer,
            source=source,
            over_queries=among_latents or of_latents,
            query_sources=query_sources if of_memory and len(sources) > 1 else (),
        )
    return sites
