"""Regard trains, looks inside and serves attention models.

Importing this package is light: PyTorch is loaded when the first name that needs it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.errors import InvalidArgument, InvalidRecipe, RegardError
    from regard.kernels.bias import DistanceBias
    from regard.kernels.rows import Summary
    from regard.model.attention import attend, attention_summary, attention_weights, self_attend
    from regard.model.build import build
    from regard.model.listening import Heard, listen
    from regard.model.memory import Memory
    from regard.model.multihead import MultiHead
    from regard.model.positions import Add, Alibi, Concatenate, Learned, RelativeBias, Rotary, Sinusoidal
    from regard.model.scores import (
        SCORES,
        Additive,
        Bilinear,
        Dot,
        KeysReady,
        ReducedRank,
        ScaledDot,
        Score,
        Uniform,
    )
    from regard.model.state import KeyValue, KeyValueCache
    from regard.model.vision import SelfAttention2d
    from regard.sequence import Tokens

__version__ = "0.1.0"

# Where each public name lives.
_HOMES = {
    "regard.errors": ("InvalidArgument", "InvalidRecipe", "RegardError"),
    "regard.kernels.bias": ("DistanceBias",),
    "regard.kernels.rows": ("Summary",),
    "regard.model.attention": ("attend", "attention_summary", "attention_weights", "self_attend"),
    "regard.model.build": ("build",),
    "regard.model.listening": ("Heard", "listen"),
    "regard.model.multihead": ("MultiHead",),
    "regard.model.positions": ("Add", "Alibi", "Concatenate", "Learned", "RelativeBias", "Rotary", "Sinusoidal"),
    "regard.model.scores": (
        "SCORES", "Additive", "Bilinear", "Dot", "KeysReady", "ReducedRank", "ScaledDot", "Score", "Uniform",
    ),
    "regard.model.state": ("KeyValue", "KeyValueCache"),
    "regard.model.memory": ("Memory",),
    "regard.model.vision": ("SelfAttention2d",),
    "regard.sequence": ("Tokens",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SCORES",
    "Add",
    "Additive",
    "Alibi",
    "Bilinear",
    "Concatenate",
    "DistanceBias",
    "Dot",
    "Heard",
    "InvalidArgument",
    "InvalidRecipe",
    "KeyValue",
    "KeyValueCache",
    "KeysReady",
    "Learned",
    "Memory",
    "MultiHead",
    "ReducedRank",
    "RegardError",
    "RelativeBias",
    "Rotary",
    "ScaledDot",
    "Score",
    "SelfAttention2d",
    "Sinusoidal",
    "Summary",
    "Tokens",
    "Uniform",
    "attend",
    "attention_summary",
    "attention_weights",
    "build",
    "listen",
    "self_attend",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
