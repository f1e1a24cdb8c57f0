"""Where in a model modules attend, and what these places are called."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from regard.model.multihead import MultiHead
from regard.model.pooling import AttentionPool
from regard.model.vision import SelfAttention2d

Kind = Literal["self", "cross", "pool", "grid"]
Part = Literal["encoder", "decoder", "pool"]
Side = Literal["source", "output", "pool"]


@dataclass(frozen=True)
class Place:
    """Where in a model a module attends."""

    name: str  # as people say it: "encoder 2", "decoder 1 cross", "pool"; "encoder pool" makes the summary
    kind: Kind
    part: Part
    layer: int  # from 1, among those of its kind and part

    @property
    def asks(self) -> Side:
        return "pool" if self.kind == "pool" else "output" if self.part == "decoder" else "source"

    @property
    def asked(self) -> Side:
        return "output" if (self.part, self.kind) == ("decoder", "self") else "source"


def places(model: nn.Module) -> dict[nn.Module, Place]:
    """All modules of a model that attend, in the order in which they stand."""
    lookers = set(getattr(getattr(model, "decoder", None), "lookers", ()))
    in_grids = {module.attend for module in model.modules() if isinstance(module, SelfAttention2d)}
    in_pools = {module.attend for module in model.modules() if isinstance(module, AttentionPool)}
    counts: dict[tuple[Part, Kind], int] = {}
    found: dict[nn.Module, Place] = {}
    for path, module in model.named_modules():
        if not isinstance(module, MultiHead) and module not in lookers:
            continue
        part: Part = "decoder" if path.startswith("decoder") else "pool" if path.startswith("pool") else "encoder"
        kind: Kind = "cross" if module in lookers else "pool" if module in in_pools else "self"
        kind = "grid" if module in in_grids else kind
        layer = counts[part, kind] = counts.get((part, kind), 0) + 1
        pool = "pool" if part == "pool" else f"{part} pool"
        name = {"pool": pool, "grid": f"grid {layer}"}.get(kind, f"{part} {layer}")
        found[module] = Place(f"{name} {kind}" if part == "decoder" else name, kind, part, layer)
    return found
