"""T5, T5 1.1 and Flan-T5 (https://arxiv.org/abs/1910.10683)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from regard.core.config import Count, Probability, Range, doc
from regard.core.errors import Problem
from regard.interop.architectures.base import (
    Architecture,
    SharedKeys,
    contradiction,
    tied,
    transformer,
)
from regard.interop.rules import Copies, Rule, Transpose
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig

SHARED = "shared.weight"
ENCODER = "encoder.embed_tokens.weight"
DECODER = "decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}


@dataclass(frozen=True)
class T5Keys(SharedKeys):
    d_model: Count = doc(512, "dimension of the hidden states")
    d_kv: Count = doc(64, "dimension of a head")
    d_ff: Count = doc(2048, "hidden dimension of the feed-forward networks")
    num_layers: Count = doc(6, "blocks of the encoder")
    num_decoder_layers: Count | None = doc(None, "blocks of the decoder; left out: num_layers")
    num_heads: Count = doc(8, "attention heads")
    relative_attention_num_buckets: Annotated[int, Range(4.0, 1e6)] = doc(
        32, "distances that are distinguished"
    )
    relative_attention_max_distance: Count = doc(128, "largest distance that is distinguished")
    dropout_rate: Probability = doc(0.1, "of embeddings, sublayers and attention weights")
    layer_norm_epsilon: Annotated[float, Range(0.0)] = doc(1e-6, "of the norms")
    feed_forward_proj: Literal["relu", "gelu", "gated-gelu", "gated-silu"] = doc(
        "relu", "feed-forward networks"
    )
    scale_decoder_outputs: bool = doc(
        True, "whether logits are scaled; left out: tie_word_embeddings"
    )
    vocab_size: Count = doc(32128, "rows of the embedding")
    pad_token_id: int | None = doc(0, "padding")
    eos_token_id: int | tuple[int, ...] | None = doc(1, "the end of a text")


class T5(Architecture[T5Keys]):
    """T5: pre-norm with RMSNorm, no biases, attention without scaling, relative positions that all blocks share."""

    model_type = "t5"
    keys = T5Keys
    classes = {"T5ForConditionalGeneration": "generation", "T5WithLMHeadModel": "generation"}
    # An old file has the relative positions of the first block, which cross-attention does not use.
    ignored = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
    aliases = {"num_hidden_layers": "num_layers"}
    unused = frozenset({"n_positions", "dense_act_fn", "is_gated_act"})
    fixed = {"is_decoder": False}

    def read(self, config: Mapping[str, Any], head: str, where: Path) -> T5Keys:
        # The first T5 scales its logits. Later files turn this off by the key of tied embeddings.
        scaled = {"scale_decoder_outputs": config.get("tie_word_embeddings", True)}
        return super().read(scaled | dict(config), head, where)

    def contradictions(self, config: Mapping[str, Any], keys: T5Keys) -> Iterator[Problem]:
        yield from super().contradictions(config, keys)
        *gated, activation = keys.feed_forward_proj.split("-")
        if gated and activation == "gelu":
            activation = "gelu_new"
        for key, value in (("dense_act_fn", activation), ("is_gated_act", bool(gated))):
            if key in config and config[key] != value:
                wanted = f"{value!r}, as feed_forward_proj = {keys.feed_forward_proj!r}"
                yield contradiction(key, wanted, config[key])

    def decoder_start(self, keys: T5Keys) -> int | None:
        if keys.decoder_start_token_id is None:
            return keys.pad_token_id
        return keys.decoder_start_token_id

    def table(self, keys: T5Keys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        # Newer versions of transformers tie the output layer of a file that has none, whatever the keys say.
        keys_say = keys.tie_word_embeddings or tensors is not None
        ties = tied(tensors, HEAD, (SHARED, DECODER, ENCODER), keys_say=keys_say)
        both = {
            "kind": "transformer",
            "dim": keys.d_model,
            "heads": keys.num_heads,
            "head_dim": keys.d_kv,
            "ffn_dim": keys.d_ff,
            "activation": ACTIVATIONS[keys.feed_forward_proj],
            "dropout": keys.dropout_rate,
            "attention_dropout": keys.dropout_rate,
            "ffn_dropout": keys.dropout_rate,
            "norm": "rms",
            "norm_eps": keys.layer_norm_epsilon,
            "score": "dot",
            "attention_bias": "none",
            "ffn_bias": False,
            "positions": "relative",
            "relative_buckets": keys.relative_attention_num_buckets,
            "relative_max_distance": keys.relative_attention_max_distance,
        }
        return {
            "encoder": both | {"layers": keys.num_layers},
            "decoder": both | {"layers": keys.num_decoder_layers or keys.num_layers},
            "vocab_size": keys.vocab_size,
            "tie_embeddings": "all" if ties else "none",
            "scale_embeddings": False,
            "output_bias": False,
            "scale_logits": keys.scale_decoder_outputs,
        }

    def rules(self, keys: T5Keys, model: ModelConfig) -> list[Rule]:
        ours = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        rules = [Rule(SHARED, ours[0])]
        if model.options.tie_embeddings == "none":
            rules = [Rule(SHARED, ours, (Copies(),)), Rule(HEAD, "decoder.project.weight")]
        gated = keys.feed_forward_proj.startswith("gated")
        for side in ("encoder", "decoder"):
            block = _block_rules(cross_attention=side == "decoder", gated=gated)
            theirs = f"{side}.block.{{i}}.layer."
            rules += [rule.under(theirs, f"{side}.stack.layers.{{i}}.") for rule in block]
            # The first block has the relative positions that all blocks share.
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            rules += [
                Rule(bias, f"{side}.input_layer.relative_bias.table", (Transpose(),)),
                Rule(f"{side}.final_layer_norm.weight", f"{side}.stack.norm.weight"),
            ]
        return rules

    def copies(self, keys: T5Keys, model: ModelConfig) -> dict[str, tuple[str, ...]]:
        if model.options.tie_embeddings == "none":
            return {SHARED: (ENCODER, DECODER)}
        return {SHARED: (ENCODER, DECODER, HEAD)}

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        if len(model.encoders) != 1:
            return {}
        encoder = transformer(model.encoders[0])
        decoder = transformer(model.decoder)
        if encoder is None or decoder is None:
            return {}
        theirs = {ours: name for name, ours in ACTIVATIONS.items()}
        tied_head = model.options.tie_embeddings != "none"
        keys: dict[str, Any] = {
            "d_model": decoder.dim,
            "d_kv": decoder.dim_per_head,
            "d_ff": decoder.ffn_dim,
            "num_layers": encoder.layers,
            "num_decoder_layers": decoder.layers,
            "num_heads": decoder.heads,
            "relative_attention_num_buckets": decoder.relative_buckets,
            "relative_attention_max_distance": decoder.relative_max_distance,
            "dropout_rate": decoder.dropout,
            "layer_norm_epsilon": decoder.norm_eps,
            "feed_forward_proj": theirs.get(decoder.activation, "relu"),
            "vocab_size": model.options.vocab_size,
            "tie_word_embeddings": tied_head,
            "is_encoder_decoder": True,
        }
        # By default, transformers scales the logits of tied embeddings alone; older versions know no other way.
        if model.options.scale_logits != tied_head:
            keys["scale_decoder_outputs"] = model.options.scale_logits
        return keys


def _block_rules(*, cross_attention: bool, gated: bool) -> list[Rule]:
    """The rules of a block. T5 numbers the sublayers of a block, and each has its norm."""
    sublayers = [("SelfAttention", "self_attn")]
    if cross_attention:
        sublayers.append(("EncDecAttention", "cross_attn"))
    projections = {"q": "q", "k": "k", "v": "v", "o": "out"}
    block = []
    for number, (theirs, attention) in enumerate(sublayers):
        for x, y in projections.items():
            block.append(Rule(f"{number}.{theirs}.{x}.weight", f"{attention}.{y}_proj.weight"))
        block.append(Rule(f"{number}.layer_norm.weight", f"norm{number + 1}.weight"))
    last = len(sublayers)
    inner = {"wi": "up", "wo": "down"}
    if gated:
        inner = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    for x, y in inner.items():
        block.append(Rule(f"{last}.DenseReluDense.{x}.weight", f"ffn.{y}.weight"))
    block.append(Rule(f"{last}.layer_norm.weight", f"norm{last + 1}.weight"))
    return block
