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

    # "encoder 2", "decoder 1 cross", "pool"; "encoder pool" computes the memory's summary.
    name: str
    kind: AttentionKind
    part: ModelPart
    layer: int  # from 1, among the modules of the same kind and part, and in encoders of the same source
    # The source, from 0, whose positions are keys or queries.
    source: int = field(default=0, kw_only=True)
    # Whether its keys, and in an encoder its queries, are the states of learned queries and not
    # positions of a source.
    over_queries: bool = field(default=False, kw_only=True)
    # If it attends to several sources: the ones that learned queries have summarized.
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
    # Modules inside encoders that replace the positions of their source by learned queries.
    latents: set[nn.Module] = set()
    for _, module in modules:
        if isinstance(module, Encoder) and not module.keeps_positions:
            latents.update(module.modules())
    # The sources that have no state for each of their positions.
    sources = source_encoders(getattr(model, "encoder", None))
    query_sources = tuple(i for i, each in enumerate(sources) if not each.keeps_positions)
    counts: dict[tuple[ModelPart, AttentionKind, int], int] = {}
    sites: dict[AttentionModule, AttentionSite] = {}
    for path, module in modules:
        if not isinstance(module, AttentionModule):
            continue
        # A recurrent decoder is an attention module itself, even if it was built without attention.
        if isinstance(module, Decoder) and module not in cross_attentions:
            continue
        part: ModelPart = "encoder"
        if path.startswith("decoder"):
            part = "decoder"
        elif path.startswith("pool"):
            part = "pool"
        kind: AttentionKind = module.attention_kind
        if module in cross_attentions:
            kind = "cross"
        of_source = re.match(r"encoder\.encoders\.(\d+)\.", path)
        source = 0
        if of_source:
            source = int(of_source[1])
        layer = counts.get((part, kind, source), 0) + 1
        counts[part, kind, source] = layer
        name = _site_name(part, kind, layer)
        if of_source and part != "decoder":
            name = f"source {source + 1} {name}"
        # What is attended to: the memory, or the states of learned queries among themselves.
        attends_to_memory = part != "encoder" and (part, kind) != ("decoder", "self")
        among_latents = module in latents and kind == "self"
        memory_of_latents = attends_to_memory and len(sources) == 1 and bool(query_sources)
        has_query_sources = attends_to_memory and len(sources) > 1
        sites[module] = AttentionSite(
            name,
            kind,
            part,
            layer,
            source=source,
            over_queries=among_latents or memory_of_latents,
            query_sources=query_sources if has_query_sources else (),
        )
    return sites


def _site_name(part: ModelPart, kind: AttentionKind, layer: int) -> str:
    """The name of a site, without its source."""
    name = f"{part} {layer}"
    if kind == "pool":
        name = "pool" if part == "pool" else f"{part} pool"
        # An encoder of learned queries may attend to its source several times.
        if layer > 1:
            name = f"{name} {layer}"
    elif kind == "grid":
        name = f"grid {layer}"
    if part == "decoder":
        name = f"{name} {kind}"
    return name
