"""Regard trains, looks inside and serves attention models.

Importing this package is light: PyTorch is loaded when the first name that needs it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard import register
    from regard.api.ablate import ablate, prune
    from regard.api.align import align, with_markup
    from regard.api.compare import compare
    from regard.api.evaluate import evaluate
    from regard.api.look import look
    from regard.api.train import train
    from regard.api.word_vectors import train_word_vectors
    from regard.core.errors import (
        CheckpointRefused,
        Diverged,
        InvalidArgument,
        InvalidRecipe,
        RegardError,
        TrainingFailed,
    )
    from regard.core.sequence import Tokens
    from regard.inference.load import load
    from regard.inference.predictor import Predictor
    from regard.interpret.alignment import Alignment, AlignmentHeads
    from regard.interpret.look import Look
    from regard.interpret.maps import AttentionMap
    from regard.kernels.attention.bias import DistanceBias
    from regard.kernels.attention.score_function import ScoreFunction
    from regard.kernels.attention.weights import Summary
    from regard.model.attention import attend, attention_summary, attention_weights, self_attend
    from regard.model.build import build
    from regard.model.capture import AttentionCall, capture_attention
    from regard.model.kv_cache import KeyValue, KeyValueCache
    from regard.model.memory import Memory
    from regard.model.multihead import MultiHead
    from regard.model.positions import (
        Add,
        Alibi,
        Concatenate,
        Learned,
        PositionBias,
        PositionEncoding,
        RelativeBias,
        Rotary,
        Sinusoidal,
    )
    from regard.model.scores import (
        SCORES,
        Additive,
        Bilinear,
        Dot,
        ProjectedKeys,
        ReducedRank,
        ScaledDot,
        Score,
        Uniform,
    )
    from regard.model.vision import SelfAttention2d
    from regard.word_vectors.vectors import WordVectors
    from regard.word_vectors.word2vec import Word2VecConfig

__version__ = "0.1.0"

# Where each public name lives.
_HOMES = {
    "regard.core.errors": (
        "CheckpointRefused", "Diverged", "InvalidArgument", "InvalidRecipe", "RegardError", "TrainingFailed",
    ),
    "regard.api.ablate": ("ablate", "prune"),
    "regard.api.align": ("align", "with_markup"),
    "regard.api.compare": ("compare",),
    "regard.api.evaluate": ("evaluate",),
    "regard.api.look": ("look",),
    "regard.api.train": ("train",),
    "regard.kernels.attention.bias": ("DistanceBias",),
    "regard.kernels.attention.score_function": ("ScoreFunction",),
    "regard.kernels.attention.weights": ("Summary",),
    "regard.interpret.alignment": ("Alignment", "AlignmentHeads"),
    "regard.interpret.look": ("Look",),
    "regard.interpret.maps": ("AttentionMap",),
    "regard.model.attention": ("attend", "attention_summary", "attention_weights", "self_attend"),
    "regard.model.build": ("build",),
    "regard.model.capture": ("AttentionCall", "capture_attention"),
    "regard.model.multihead": ("MultiHead",),
    "regard.model.positions": (
        "Add", "Alibi", "Concatenate", "Learned", "PositionBias", "PositionEncoding", "RelativeBias", "Rotary",
        "Sinusoidal",
    ),
    "regard.model.scores": (
        "SCORES", "Additive", "Bilinear", "Dot", "ProjectedKeys", "ReducedRank", "ScaledDot", "Score", "Uniform",
    ),
    "regard.model.kv_cache": ("KeyValue", "KeyValueCache"),
    "regard.model.memory": ("Memory",),
    "regard.model.vision": ("SelfAttention2d",),
    "regard.word_vectors.vectors": ("WordVectors",),
    "regard.core.sequence": ("Tokens",),
    "regard.inference.load": ("load",),
    "regard.inference.predictor": ("Predictor",),
    "regard.word_vectors.word2vec": ("Word2VecConfig",),
    "regard.api.word_vectors": ("train_word_vectors",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SCORES",
    "Add",
    "Additive",
    "Alibi",
    "Alignment",
    "AlignmentHeads",
    "AttentionCall",
    "AttentionMap",
    "Bilinear",
    "CheckpointRefused",
    "Concatenate",
    "DistanceBias",
    "Diverged",
    "Dot",
    "InvalidArgument",
    "InvalidRecipe",
    "KeyValue",
    "KeyValueCache",
    "Learned",
    "Look",
    "Memory",
    "MultiHead",
    "PositionBias",
    "PositionEncoding",
    "Predictor",
    "ProjectedKeys",
    "ReducedRank",
    "RegardError",
    "RelativeBias",
    "Rotary",
    "ScaledDot",
    "Score",
    "ScoreFunction",
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
    "capture_attention",
    "compare",
    "evaluate",
    "load",
    "look",
    "prune",
    "register",
    "self_attend",
    "train",
    "train_word_vectors",
    "with_markup",
]


def __getattr__(name: str) -> Any:
    if name == "register":
        return import_module("regard.register")
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
