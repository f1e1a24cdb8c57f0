"""The keys of a Transformer encoder or decoder in a recipe,
and which of them exclude each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Count, Probability, Range, doc
from regard.core.errors import Problem
from regard.model.part_config import DecoderConfig, EncoderConfig, UnusedKeys, not_packable_score
from regard.model.positions import (
    POSITIONS,
    PositionEncoding,
    PositionName,
    PositionOptions,
    RelativeBias,
    Rotary,
)
from regard.model.scores import SCORES, ScoreName
from regard.model.word_vector_keys import WordVectorKeys


@dataclass(frozen=True)
class TransformerConfig(WordVectorKeys, EncoderConfig, DecoderConfig):
    dim: Count = doc(256, "dimension of the hidden states")
    layers: Count = doc(3, "number of blocks")
    heads: Count = doc(4, "attention heads")
    ffn_dim: Count = doc(1024, "hidden dimension of the feed-forward network")
    dropout: Probability = doc(0.1, "dropout of embeddings and of each sublayer's output")
    attention_dropout: Probability = doc(0.0, "dropout of attention weights")
    ffn_dropout: Probability = doc(0.0, "dropout inside the feed-forward network")
    norm: Literal["layer", "rms", "rms_offset"] = doc(
        "layer", "LayerNorm, RMSNorm, or RMSNorm whose gain is 1 + weight", arxiv="1910.07467"
    )
    norm_first: bool = doc(True, "pre-norm instead of post-norm", arxiv="2002.04745")
    norm_input: bool = doc(False, "normalize the embeddings too")
    norm_eps: Annotated[float, Range(0.0)] = doc(1e-5, "added to the variance in norms")
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = doc(
        "relu",
        "activation of the feed-forward network; swiglu and geglu are gated, by silu and gelu_tanh",
        arxiv="2002.05202",
    )
    ffn_bias: bool = doc(True, "biases in the feed-forward network")
    positions: PositionName = doc("sinusoidal", "position encoding")
    position_mode: Literal["add", "concatenate"] = doc(
        "add", "how position encodings join the embeddings"
    )
    max_positions: Count = doc(512, "largest sequence length of learned positions")
    position_offset: Annotated[int, Range(0.0)] = doc(
        0, "unused rows before the first learned position"
    )
    rotary_base: Annotated[float, Range(1.0)] = doc(
        10_000.0, "base of the wavelengths of rotary positions"
    )
    relative_buckets: Annotated[int, Range(4.0)] = doc(
        32, "distances that relative positions tell apart"
    )
    relative_max_distance: Count = doc(
        128, "distance beyond which relative positions tell none apart"
    )
    score: ScoreName = doc("scaled_dot", "attention score function")
    attention_bias: Literal["all", "qkv", "none"] = doc(
        "all",
        "projections of attention that have a bias: all, those of "
        "queries, keys and values, or none",
    )
    head_dim: Count | None = doc(None, "dimension of an attention head; left out: dim / heads")
    value_dim: Count | None = doc(
        None,
        "dimension of the values of an attention head, where it is another than that of its "
        "queries and keys; left out: as head_dim",
        arxiv="1706.03762",
    )
    kv_heads: Count | None = doc(
        None, "key and value heads, shared by query heads; left out: heads", arxiv="2305.13245"
    )
    qk_norm: bool = doc(False, "normalize queries and keys", arxiv="2010.04245")
    sliding_window: Count | None = doc(
        None,
        "causal attention: positions that each attends to, its own included; left out: all",
        arxiv="2310.06825",
    )
    causal: bool = doc(False, "an encoder whose positions attend to earlier positions only")
    cls_token: bool = doc(False, 'encoders: prepend a learned [CLS] state, for the pool "first"')
    token_types: Annotated[int, Range(0.0)] = doc(
        0,
        "encoders: learned vectors of segments, the first of which is added to every embedding",
        arxiv="1810.04805",
    )
    activation_checkpointing: bool = doc(
        False, "recompute a block's activations in the backward pass", arxiv="1604.06174"
    )

    def conflicts(self) -> Iterator[Problem]:
        positions = POSITIONS[self.positions]
        rotary = issubclass(positions, Rotary)
        encoded = issubclass(positions, PositionEncoding)
        if self.head_dim is None and self.dim % self.heads:
            remedy = "Change one of the two, or give head_dim."
            yield Problem("heads", f"a divisor of dim = {self.dim}", str(self.heads), remedy)
        elif rotary and self.dim_per_head % positions.multiple_of:
            wanted = (
                f"heads of a dim that is a multiple of {positions.multiple_of}, "
                f"for {self.positions} positions"
            )
            yield Problem(
                "heads", wanted, f"a dim of {self.dim_per_head}", "Change heads, dim or head_dim."
            )
        half = self.relative_buckets // 2
        if issubclass(positions, RelativeBias) and self.relative_max_distance <= half:
            wanted = f"more than {half}, half of relative_buckets"
            yield Problem(
                "relative_max_distance",
                wanted,
                str(self.relative_max_distance),
                "Change one of the two.",
            )
        if encoded and self.dim % positions.multiple_of:
            wanted = f"a multiple of {positions.multiple_of}, for {self.positions} positions"
            yield Problem("dim", wanted, str(self.dim), "Change one of the two.")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            yield Problem(
                "kv_heads",
                f"a divisor of heads = {self.heads}",
                str(self.kv_heads),
                "1 always is one.",
            )
        if not SCORES[self.score].content_based and (self.qk_norm or rotary):
            wanted = "a score that depends on queries and keys, for rotary positions or qk_norm"
            yield Problem("score", wanted, repr(self.score), "Change one of the two.")
        if self.position_mode == "concatenate" and not encoded:
            got = f"'concatenate' with positions = {self.positions!r}"
            yield Problem(
                "position_mode",
                "'add' unless positions are sinusoidal or learned",
                got,
                "Leave it out.",
            )
        if self.cls_token and self.causal:
            yield Problem(
                "cls_token",
                "false in a causal encoder",
                "true",
                "The first position would see nothing.",
            )

    @property
    def dim_per_head(self) -> int:
        if self.head_dim is None:
            return self.dim // self.heads
        return self.head_dim

    @property
    def value_dim_per_head(self) -> int:
        if self.value_dim is None:
            return self.dim_per_head
        return self.value_dim

    def position_options(self, *, bidirectional: bool) -> PositionOptions:
        return PositionOptions(
            self.dim,
            self.heads,
            self.dim_per_head,
            bidirectional,
            self.max_positions,
            self.position_offset,
            self.rotary_base,
            self.relative_buckets,
            self.relative_max_distance,
        )

    def block_dims(self) -> dict[str, int]:
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        attention = {
            "heads": self.heads * self.dim_per_head,
            "kv_heads": kv_heads * self.dim_per_head,
        }
        if self.value_dim is not None:
            # Those of all query heads are a multiple of this.
            attention |= {"value_dim": kv_heads * self.value_dim}
        return {"dim": self.dim, "ffn_dim": self.ffn_dim, **attention}

    def not_packable(self) -> str | None:
        if not POSITIONS[self.positions].packable:
            return f"positions = {self.positions!r}"
        if self.value_dim_per_head != self.dim_per_head:
            return f"value_dim = {self.value_dim}"
        return not_packable_score(self.score) or ("cls_token = True" if self.cls_token else None)

    @property
    def window(self) -> int | None:
        """Keys before the query's position that a causal attention attends to."""
        if self.sliding_window is None:
            return None
        return self.sliding_window - 1

    def unused_as_encoder(self, decoder: DecoderConfig | None) -> UnusedKeys:
        yield from self._unused_positions()
        if not self.causal:
            yield "sliding_window", "only causal attention has one"

    def unused_as_decoder(self, *, has_memory: bool) -> UnusedKeys:
        yield from self._unused_positions()
        yield "causal", "a decoder is always causal"
        yield "cls_token", "no pool reads a decoder"
        yield "token_types", "only the input of an encoder has segments"

    def _unused_positions(self) -> UnusedKeys:
        positions = POSITIONS[self.positions]
        if not positions.limited:
            yield "max_positions", "only learned positions have a longest sequence"
            yield "position_offset", "only learned positions are rows of a table"
        if not issubclass(positions, Rotary):
            yield "rotary_base", "positions are not rotary"
        if not issubclass(positions, RelativeBias):
            yield from (
                (key, "positions are not relative")
                for key in ("relative_buckets", "relative_max_distance")
            )
