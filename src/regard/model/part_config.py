"""Configurations of encoders, decoders, pools and heads:
what the checks of a recipe ask before a model is built.

What a configuration says depends on its keys; what a part supports whatever its keys say stands on
its class, in `model/interfaces.py`. A user's own part has a configuration that derives from one of
these classes:

    @dataclass(frozen=True)
    class MyConfig(EncoderConfig):
        dim: Count = 256
        layers: Count = 2
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from regard.core.config import Config
from regard.core.errors import Problem
from regard.model.scores import SCORES

# What a state of an encoder's memory has seen: the whole source, what precedes it,
# or its own token alone.
Sees = Literal["all", "earlier", "itself"]
UnusedKeys = Iterator[tuple[str, str]]  # keys without effect here, each with the reason
NO_SOURCE = "without an encoder there is no source"
ConfigType = TypeVar("ConfigType", bound=Config)


@dataclass(frozen=True)
class Part(Generic[ConfigType]):
    """An encoder, input module, decoder, pool or head of a model that is not built yet.

    kind     its registered name
    config   what its table says
    module   its class, whose attributes say what it supports
    """

    kind: str
    config: ConfigType
    module: Any


@dataclass(frozen=True)
class PartConfig(Config):
    """Base of the configurations of encoders and decoders."""

    @property
    def states_dim(self) -> int:
        """The dimension of its states and of the token embeddings it reads:
        the field `dim` unless overridden.
        """
        dim: int = self.dim  # type: ignore[attr-defined]
        return dim

    def block_dims(self) -> dict[str, int]:
        """The dimensions of the linear layers of its Transformer blocks,
        by the keys that give them.
        """
        return {}

    def not_packable(self) -> str | None:
        """The setting, as "positions = 'alibi'",
        with which a packable part takes no packed sequences.
        """
        return None


@dataclass(frozen=True)
class EncoderConfig(PartConfig):
    """Base of the configurations of encoders."""

    @property
    def cls_tokens(self) -> int:
        """Learned tokens before those of the source: as many as its encoder says."""
        return int(getattr(self, "cls_token", False))

    @property
    def sees(self) -> Sees:
        """What a state has seen of the source, its own token included."""
        return "earlier" if getattr(self, "causal", False) else "all"

    @property
    def normalizes_colors(self) -> bool:
        """Whether it expects images in [-1, 1], because it normalizes their colors itself."""
        return False

    @property
    def output_dropout(self) -> float:
        """Dropout before a classifier."""
        return float(getattr(self, "dropout", 0.0))

    @property
    def head_norm_eps(self) -> float:
        """Added to the variance in the norm of a masked-language-model head."""
        return float(getattr(self, "norm_eps", 1e-5))

    def mlm_conflicts(self) -> Iterator[Problem]:
        """What prevents a masked-language-model head: a state for each token,
        which depends on both sides of it.
        """
        if getattr(self, "causal", False):
            yield Problem(
                "causal", "false for a masked-token head", "true", "A state must see both sides."
            )

    def image_conflicts(self, size: int) -> Iterator[Problem]:
        """What prevents reading images of this height and width."""
        return iter(())

    def unused_as_encoder(self, decoder: "DecoderConfig | None") -> UnusedKeys:
        """Keys that have no effect in an encoder before this decoder."""
        return iter(())


@dataclass(frozen=True)
class DecoderConfig(PartConfig):
    """Base of the configurations of decoders."""

    @property
    def attends(self) -> bool:
        """Whether it has cross-attention, given a memory."""
        return True

    @property
    def reads_summary(self) -> bool:
        """Whether it reads the memory's summary."""
        return False

    def memory_conflicts(self, memory_dim: int) -> Iterator[Problem]:
        """What prevents reading a memory of this dimension."""
        return iter(())

    def unused_as_decoder(self, *, has_memory: bool) -> UnusedKeys:
        """Keys that have no effect in a decoder with, or without, a memory."""
        return iter(())


@dataclass(frozen=True)
class PoolConfig(Config):
    """Base of the configurations of pools; by itself that of a pool without options."""

    def memory_conflicts(self, memory_dim: int) -> Iterator[Problem]:
        """What prevents reading a memory of this dimension."""
        return iter(())

    def encoder_conflicts(self, cls_tokens: int) -> Iterator[Problem]:
        """What prevents reading a memory that begins with the states of so many learned tokens."""
        return iter(())


@dataclass(frozen=True)
class HeadConfig(Config):
    """Base of the configurations of heads: what turns a memory into the outputs of a task."""

    def encoder_conflicts(self, encoder: "Part[EncoderConfig]") -> Iterator[Problem]:
        """What prevents reading the memory of this encoder."""
        return iter(())


@dataclass(frozen=True)
class MaskedTokensConfig(HeadConfig):
    """Masked language modeling, by an encoder alone (https://arxiv.org/abs/1810.04805)."""

    def encoder_conflicts(self, encoder: "Part[EncoderConfig]") -> Iterator[Problem]:
        if not encoder.module.keeps_positions:
            yield Problem(
                "kind",
                "an encoder with a state for each token, for a masked-token head",
                "one whose states are those of learned queries",
                "Choose another encoder, or a decoder or pool, which reads any states.",
            )
        yield from encoder.config.mlm_conflicts()


def not_packable_score(score: str) -> str | None:
    """The setting of a score that packed attention does not support."""
    return None if SCORES[score].packable else f"score = {score!r}"
