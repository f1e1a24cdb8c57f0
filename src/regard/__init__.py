"""Regard trains, looks inside and serves attention models.

Importing this package is light: PyTorch is loaded when the first name that needs it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.errors import (
        CheckpointRefused,
        Diverged,
        InvalidArgument,
        InvalidRecipe,
        RegardError,
        TrainingFailed,
    )
    from regard.jobs.ablating import ablate, prune
    from regard.jobs.aligning import Aligned, Heads, align, with_markup
    from regard.jobs.evaluating import compare, evaluate
    from regard.jobs.looking import look
    from regard.jobs.training import train
    from regard.kernels.bias import DistanceBias
    from regard.kernels.rows import Summary
    from regard.looks.look import Look
    from regard.looks.maps import Map
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
    from regard.model.words import WordVectors
    from regard.sequence import Tokens
    from regard.serving.loading import load
    from regard.serving.predictor import Predictor
    from regard.training.word2vec import Word2VecConfig, learn_words

__version__ = "0.1.0"

# Where each public name lives.
_HOMES = {
    "regard.errors": (
        "CheckpointRefused", "Diverged", "InvalidArgument", "InvalidRecipe", "RegardError", "TrainingFailed",
    ),
    "regard.jobs.ablating": ("ablate", "prune"),
    "regard.jobs.aligning": ("Aligned", "Heads", "align", "with_markup"),
    "regard.jobs.evaluating": ("compare", "evaluate"),
    "regard.jobs.looking": ("look",),
    "regard.jobs.training": ("train",),
    "regard.kernels.bias": ("DistanceBias",),
    "regard.kernels.rows": ("Summary",),
    "regard.looks.look": ("Look",),
    "regard.looks.maps": ("Map",),
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
    "regard.model.words": ("WordVectors",),
    "regard.sequence": ("Tokens",),
    "regard.serving.loading": ("load",),
    "regard.serving.predictor": ("Predictor",),
    "regard.training.word2vec": ("Word2VecConfig", "learn_words"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SCORES",
    "Add",
    "Additive",
    "Alibi",
    "Aligned",
    "Bilinear",
    "CheckpointRefused",
    "Concatenate",
    "DistanceBias",
    "Diverged",
    "Dot",
    "Heads",
    "Heard",
    "InvalidArgument",
    "InvalidRecipe",
    "KeyValue",
    "KeyValueCache",
    "KeysReady",
    "Learned",
    "Look",
    "Map",
    "Memory",
    "MultiHead",
    "Predictor",
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
    "TrainingFailed",
    "Uniform",
    "Word2VecConfig",
    "WordVectors",
    "ablate",
    "align",
    "attend",
    "attention_summary",
    "attention_weights",
    "build",
    "compare",
    "evaluate",
    "learn_words",
    "listen",
    "load",
    "look",
    "prune",
    "self_attend",
    "train",
    "with_markup",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
