"""Regard trains, looks inside and serves attention models.

Importing this package is light: PyTorch is loaded when the first name that needs it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.core.version import __version__ as __version__

if TYPE_CHECKING:
    from regard import register as register
    from regard.api.ablate import ablate as ablate, prune as prune
    from regard.api.align import align as align, with_markup as with_markup
    from regard.api.average import average as average
    from regard.api.caption import caption as caption
    from regard.api.compare import compare as compare
    from regard.api.convert import ConvertedRecipe as ConvertedRecipe, convert as convert
    from regard.api.demo import demo as demo
    from regard.api.evaluate import evaluate as evaluate
    from regard.api.export import export as export, export_obstacles as export_obstacles
    from regard.api.from_pretrained import (
        from_pretrained as from_pretrained,
        import_model as import_model,
    )
    from regard.api.heads import heads as heads
    from regard.api.look import look as look
    from regard.api.plot import plot as plot
    from regard.api.plot_forecast import plot_forecast as plot_forecast
    from regard.api.predict import predict as predict, score as score
    from regard.api.shortlist import shortlist as shortlist
    from regard.api.sweep import sweep as sweep
    from regard.api.thresholds import thresholds as thresholds
    from regard.api.train import prepare as prepare, train as train
    from regard.api.transcribe import transcribe as transcribe
    from regard.api.view import page as page, view as view
    from regard.api.word_vectors import train_word_vectors as train_word_vectors
    from regard.checkpoint.verify import sign as sign, verify as verify
    from regard.core.errors import (
        CheckpointRefused as CheckpointRefused,
        Diverged as Diverged,
        InvalidArgument as InvalidArgument,
        InvalidRecipe as InvalidRecipe,
        RegardError as RegardError,
        TrainingFailed as TrainingFailed,
    )
    from regard.core.sequence import Tokens as Tokens, Vectors as Vectors
    from regard.inference.load import load as load
    from regard.inference.predictor import Predictor as Predictor
    from regard.interpret.alignment import Alignment as Alignment, AlignmentHeads as AlignmentHeads
    from regard.interpret.look import Look as Look
    from regard.interpret.maps import AttentionMap as AttentionMap
    from regard.kernels.attention.bias import DistanceBias as DistanceBias
    from regard.kernels.attention.score_function import ScoreFunction as ScoreFunction
    from regard.kernels.attention.weights import Summary as Summary
    from regard.model.attention import (
        attend as attend,
        attention_summary as attention_summary,
        attention_weights as attention_weights,
        self_attend as self_attend,
    )
    from regard.model.build import build as build
    from regard.model.capture import (
        AttentionCall as AttentionCall,
        capture_attention as capture_attention,
    )
    from regard.model.kv_cache import KeyValue as KeyValue, KeyValueCache as KeyValueCache
    from regard.model.memory import Memory as Memory
    from regard.model.multihead import MultiHead as MultiHead
    from regard.model.positions import (
        Add as Add,
        Alibi as Alibi,
        Concatenate as Concatenate,
        Learned as Learned,
        PositionBias as PositionBias,
        PositionEncoding as PositionEncoding,
        RelativeBias as RelativeBias,
        Rotary as Rotary,
        Sinusoidal as Sinusoidal,
    )
    from regard.model.scores import (
        SCORES as SCORES,
        Additive as Additive,
        Bilinear as Bilinear,
        Dot as Dot,
        ProjectedKeys as ProjectedKeys,
        ReducedRank as ReducedRank,
        ScaledDot as ScaledDot,
        Score as Score,
        Uniform as Uniform,
    )
    from regard.model.vision import SelfAttention2d as SelfAttention2d
    from regard.serving.run import serve as serve
    from regard.studio.run import studio as studio
    from regard.word_vectors.config import Word2VecConfig as Word2VecConfig
    from regard.word_vectors.vectors import WordVectors as WordVectors

# Where each public name lives.
_HOMES = {
    "regard.core.errors": (
        "CheckpointRefused", "Diverged", "InvalidArgument", "InvalidRecipe", "RegardError", "TrainingFailed",
    ),
    "regard.api.ablate": ("ablate", "prune"),
    "regard.api.align": ("align", "with_markup"),
    "regard.api.average": ("average",),
    "regard.api.caption": ("caption",),
    "regard.api.compare": ("compare",),
    "regard.api.convert": ("ConvertedRecipe", "convert"),
    "regard.api.demo": ("demo",),
    "regard.api.evaluate": ("evaluate",),
    "regard.api.export": ("export", "export_obstacles"),
    "regard.api.from_pretrained": ("from_pretrained", "import_model"),
    "regard.api.heads": ("heads",),
    "regard.api.look": ("look",),
    "regard.api.plot": ("plot",),
    "regard.api.plot_forecast": ("plot_forecast",),
    "regard.api.predict": ("predict", "score"),
    "regard.api.shortlist": ("shortlist",),
    "regard.api.sweep": ("sweep",),
    "regard.api.thresholds": ("thresholds",),
    "regard.api.train": ("prepare", "train"),
    "regard.api.transcribe": ("transcribe",),
    "regard.api.view": ("page", "view"),
    "regard.checkpoint.verify": ("sign", "verify"),
    "regard.serving.run": ("serve",),
    "regard.studio.run": ("studio",),
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
    "regard.core.sequence": ("Tokens", "Vectors"),
    "regard.inference.load": ("load",),
    "regard.inference.predictor": ("Predictor",),
    "regard.word_vectors.config": ("Word2VecConfig",),
    "regard.api.word_vectors": ("train_word_vectors",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["register", *_HOME]

# `regard.studio` is a function for users, and also a package. The import of a package makes it an attribute of this
# module: here it is imported once, so that no later import does so, and the attribute is removed again.
import_module("regard.studio")
del globals()["studio"]


def __getattr__(name: str) -> Any:
    if name == "register":
        return import_module("regard.register")
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
