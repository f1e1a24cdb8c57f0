"""A model's summary: its parts and their parameters."""

from torch import nn


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
