"""T5, T5 1.1 and Flan-T5 (https://arxiv.org/abs/1910.10683)."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from regard.core.config import Count, Probability, Range, doc
from regard.interop.architectures.base import Architecture, SharedKeys, tied, transformer
from regard.interop.rules import Copies, Rule, Transpose
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig

SHARED, ENCODER, DECODER = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
)
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
        32, "distances that are told apart"
    )
    relative_attention_max_distance: Count = doc(128, "distance beyond which none are told apart")
    dropout_rate: Probability = doc(0.1, "of embeddings, sublayers and attention weights")
    layer_norm_epsilon: Annotated[float, Range(0.0)] = doc(1e-6, "of the norms")
    feed_forward_proj: Literal["relu", "gelu", "gated-gelu", "gated-silu"] = doc(
        "relu", "feed-forward networks"
    )
    scale_decoder_outputs: bool | None = doc(
        None, "whether logits are scaled; left out: tie_word_embeddings"
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
    unused = frozenset({"n_positions", "dense_act_fn", "is_gated_act"})
    fixed = {"is_decoder": False}

    def decoder_start(self, keys: T5Keys) -> int | None:
        return (
            keys.pad_token_id
            if keys.decoder_start_token_id is None
            else keys.decoder_start_token_id
        )

    def table(self, keys: T5Keys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        # In files, newer versions of transformers tie the output layer unless it is there.
        ties = tied(
            tensors,
            HEAD,
            (SHARED, DECODER, ENCODER),
            keys_say=keys.tie_word_embeddings or tensors is not None,
        )
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
        scaled = (
            keys.tie_word_embeddings
            if keys.scale_decoder_outputs is None
            else keys.scale_decoder_outputs
        )
        return {
            "encoder": both | {"layers": keys.num_layers},
            "decoder": both | {"layers": keys.num_decoder_layers or keys.num_layers},
            "vocab_size": keys.vocab_size,
            "tie_embeddings": "all" if ties else "none",
            "scale_embeddings": False,
            "output_bias": False,
            "scale_logits": scaled,
        }

    def rules(self, keys: T5Keys, model: ModelConfig) -> list[Rule]:
        ours = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
        rules = [Rule(SHARED, ours[0])]
        if model.options.tie_embeddings == "none":
            rules = [Rule(SHARED, ours, (Copies(),)), Rule(HEAD, "decoder.project.weight")]
        for side in ("encoder", "decoder"):
            sublayers: list[tuple[str, str]] = [("SelfAttention", "self_attn")]
            sublayers += [("EncDecAttention", "cross_attn")] * (side == "decoder")
            block = []
            for number, (theirs, attention) in enumerate(sublayers):
                names = (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out"))
                block += [
                    Rule(f"{number}.{theirs}.{x}.weight", f"{attention}.{y}_proj.weight")
                    for x, y in names
                ]
                block.append(Rule(f"{number}.layer_norm.weight", f"norm{number + 1}.weight"))
            last = len(sublayers)
            gated = keys.feed_forward_proj.startswith("gated")
            inner = (
                {"wi_0": "gate", "wi_1": "up", "wo": "down"}
                if gated
                else {"wi": "up", "wo": "down"}
            )
            block += [
                Rule(f"{last}.DenseReluDense.{x}.weight", f"ffn.{y}.weight")
                for x, y in inner.items()
            ]
            block.append(Rule(f"{last}.layer_norm.weight", f"norm{last + 1}.weight"))
            rules += [
                rule.under(f"{side}.block.{{i}}.layer.", f"{side}.stack.layers.{{i}}.")
                for rule in block
            ]
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            rules += [
                Rule(bias, f"{side}.input_layer.relative_bias.table", (Transpose(),)),
                Rule(f"{side}.final_layer_norm.weight", f"{side}.stack.norm.weight"),
            ]
        return rules

    def copies(self, keys: T5Keys, model: ModelConfig) -> dict[str, tuple[str, ...]]:
        return {
            SHARED: (ENCODER, DECODER, *(() if model.options.tie_embeddings == "none" else (HEAD,)))
        }

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        encoder = transformer(model.encoders[0] if len(model.encoders) == 1 else None)
        decoder = transformer(model.decoder)
        if encoder is None or decoder is None:
            return {}
        theirs = {ours: name for name, ours in ACTIVATIONS.items()}
        return {
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
            # Older versions decide by this key whether logits are scaled, and whether there is an output layer.
            "tie_word_embeddings": model.options.scale_logits,
            "is_encoder_decoder": True,
        }
