"""GPT-2 (https://openai.com/index/better-language-models)."""

from dataclasses import dataclass
from typing import Annotated, Any

from regard.core.config import Count, Probability, Range, doc
from regard.interop.architectures.base import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Activation,
    Architecture,
    SharedKeys,
    tied,
    transformer,
)
from regard.interop.rules import Rule, Split, Transpose
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig
from regard.model.transformer_config import TransformerConfig

EMBEDDING = "transformer.wte.weight"
HEAD = "lm_head.weight"
NORMS = {"ln_1": "norm1", "ln_2": "norm2"}
CROSS_NORMS = {"ln_1": "norm1", "ln_cross_attn": "norm2", "ln_2": "norm3"}


@dataclass(frozen=True)
class Gpt2Keys(SharedKeys):
    n_positions: Annotated[int, Range(1.0, 1e7)] = doc(1024, "positions")
    n_embd: Count = doc(768, "dimension of the hidden states")
    n_layer: Count = doc(12, "blocks")
    n_head: Count = doc(12, "attention heads")
    n_inner: Count | None = doc(
        None, "hidden dimension of the feed-forward networks; left out: 4 n_embd"
    )
    activation_function: Activation = doc("gelu_new", "of the feed-forward networks")
    resid_pdrop: Probability = doc(0.1, "of sublayers")
    embd_pdrop: Probability = doc(0.1, "of embeddings")
    attn_pdrop: Probability = doc(0.1, "of attention weights")
    layer_norm_epsilon: Annotated[float, Range(0.0)] = doc(1e-5, "of the norms")
    vocab_size: Count = doc(50257, "rows of the embedding")
    bos_token_id: int | None = doc(50256, "the first token of a text")
    eos_token_id: int | tuple[int, ...] | None = doc(50256, "the end of a text")


class Gpt2(Architecture[Gpt2Keys]):
    """GPT-2: pre-norm, learned positions. Matrices are written for x @ W, and q, k and v share one matrix."""

    model_type = "gpt2"
    keys = Gpt2Keys
    classes = {"GPT2LMHeadModel": "generation"}
    aliases = {"num_hidden_layers": "n_layer"}
    base_prefix = "transformer."
    ignored = (r"transformer\.h\.\d+\.(attn|crossattention)\.(bias|masked_bias)",)  # causal masks
    unused = frozenset({"n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                        "summary_first_dropout", "reorder_and_upcast_attn"})  # fmt: skip
    fixed = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
             "is_decoder": False}  # fmt: skip

    def max_source_length(self, keys: Gpt2Keys) -> int | None:
        return keys.n_positions

    def table(self, keys: Gpt2Keys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        names = (EMBEDDING, EMBEDDING.removeprefix(self.base_prefix))
        ties = tied(tensors, HEAD, names, keys_say=keys.tie_word_embeddings)
        return {
            "decoder": decoder_table(keys),
            "vocab_size": keys.vocab_size,
            "tie_embeddings": "target" if ties else "none",
            "scale_embeddings": False,
            "output_bias": False,
        }

    def rules(self, keys: Gpt2Keys, model: ModelConfig) -> list[Rule]:
        return decoder_rules(tied=model.options.tie_embeddings != "none", cross_attention=False)

    def copies(self, keys: Gpt2Keys, model: ModelConfig) -> dict[str, tuple[str, ...]]:
        return {EMBEDDING: () if model.options.tie_embeddings == "none" else (HEAD,)}

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        decoder = transformer(model.decoder)
        if decoder is None or model.encoders:
            return {}
        return export_decoder_keys(model, decoder)


def decoder_table(keys: Gpt2Keys) -> dict[str, Any]:
    return {
        "kind": "transformer",
        "dim": keys.n_embd,
        "layers": keys.n_layer,
        "heads": keys.n_head,
        "ffn_dim": 4 * keys.n_embd if keys.n_inner is None else keys.n_inner,
        "dropout": keys.resid_pdrop,
        "attention_dropout": keys.attn_pdrop,
        "positions": "learned",
        "max_positions": keys.n_positions,
        "activation": ACTIVATIONS[keys.activation_function],
        "norm_eps": keys.layer_norm_epsilon,
    }


def decoder_rules(*, tied: bool, cross_attention: bool) -> list[Rule]:

    def attention(theirs: str, ours: str, *parts: str) -> Rule:
        names = tuple(f"{ours}.{part}_proj.{{p}}" for part in parts)
        return Rule(theirs, names, (Transpose(), Split(len(parts))))

    norms = CROSS_NORMS if cross_attention else NORMS
    norm_rules = [Rule(f"{theirs}.{{p}}", f"{ours}.{{p}}") for theirs, ours in norms.items()]
    block = [
        *norm_rules,
        attention("attn.c_attn.{p}", "self_attn", "q", "k", "v"),
        attention("attn.c_proj.{p}", "self_attn", "out"),
        attention("crossattention.q_attn.{p}", "cross_attn", "q"),
        attention("crossattention.c_attn.{p}", "cross_attn", "k", "v"),
        attention("crossattention.c_proj.{p}", "cross_attn", "out"),
        Rule("mlp.c_fc.{p}", "ffn.up.{p}", (Transpose(),)),
        Rule("mlp.c_proj.{p}", "ffn.down.{p}", (Transpose(),)),
    ]
    rules = [
        Rule(EMBEDDING, "decoder.embed_tokens.weight"),
        Rule("transformer.wpe.weight", "decoder.input_layer.position_encoding.positions.table"),
        Rule("transformer.ln_f.{p}", "decoder.stack.norm.{p}"),
        *(rule.under("transformer.h.{i}.", "decoder.stack.layers.{i}.") for rule in block),
    ]
    if tied:
        return rules
    return [*rules, Rule(HEAD, "decoder.project.weight")]


def export_decoder_keys(model: ModelConfig, decoder: TransformerConfig) -> dict[str, Any]:
    return {
        "n_positions": decoder.max_positions,
        "n_embd": decoder.dim,
        "n_layer": decoder.layers,
        "n_head": decoder.heads,
        "n_inner": decoder.ffn_dim,
        "activation_function": THEIR_ACTIVATIONS.get(decoder.activation, "relu"),
        "resid_pdrop": decoder.dropout,
        "embd_pdrop": decoder.dropout,
        "attn_pdrop": decoder.attention_dropout,
        "layer_norm_epsilon": decoder.norm_eps,
        "vocab_size": model.options.vocab_size,
        "tie_word_embeddings": model.options.tie_embeddings != "none",
    }
