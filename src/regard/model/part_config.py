"""What the configuration of an encoder, a decoder or a pool declares about it: the checks of a recipe ask here.

A user's own part has a configuration that derives from one of these classes:

    @dataclass(frozen=True)
    class MyConfig(EncoderConfig):
        dim: Count = 256
        layers: Count = 2
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from regard.core.config import Config
from regard.core.errors import Problem
from regard.model.scores import SCORES

Reads = Literal["tokens", "label", "image"]
# What a state of an encoder's memory has seen: the whole source, what precedes it, or its own token alone.
Sees = Literal["all", "earlier", "itself"]
UnusedKeys = Iterator[tuple[str, str]]  # keys without effect here, each with the reason
NO_SOURCE = "without an encoder there is no source"


@dataclass(frozen=True)
class PartConfig(Config):
    """Base of the configurations of encoders and decoders."""

    packable: ClassVar[bool] = False  # takes packed sequences: `forward_packed`, `hidden_packed`
    packed_memory: ClassVar[bool] = (
        True  # with packed sequences, the memory is a PackedMemory, else a padded one
    )
    shardable: ClassVar[bool] = False  # may be part of a model that FSDP shards
    has_blocks: ClassVar[bool] = False  # holds Transformer blocks, the units that FSDP shards

    @property
    def states_dim(self) -> int:
        """The dimension of its states and of the token embeddings it reads: the field `dim` unless overridden."""
        dim: int = self.dim  # type: ignore[attr-defined]
        return dim

    def block_dims(self) -> dict[str, int]:
        """The dimensions of the linear layers of its Transformer blocks, by the keys that give them."""
        return {}

    def not_packable(self) -> str | None:
        """The setting, as "positions = 'alibi'", with which a packable part takes no packed sequences."""
        return None


@dataclass(frozen=True)
class EncoderConfig(PartConfig):
    """Base of the configurations of encoders."""

    reads: ClassVar[Reads] = "tokens"  # what a source is made of

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
        """What prevents a masked-language-model head: states must depend on both sides of a token."""
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

    carries_state: ClassVar[bool] = False  # its decoder is a `StatefulDecoder`

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

    reads: ClassVar[Literal["all", "first", "last"]] = "all"  # which states it reads

    def memory_conflicts(self, memory_dim: int) -> Iterator[Problem]:
        """What prevents reading a memory of this dimension."""
        return iter(())

    def encoder_conflicts(self, cls_tokens: int) -> Iterator[Problem]:
        """What prevents reading a memory that begins with the states of so many learned tokens."""
        return iter(())


def not_packable_score(score: str) -> str | None:
    """The setting of a score that packed attention does not support."""
    return None if SCORES[score].packable else f"score = {score!r}"
