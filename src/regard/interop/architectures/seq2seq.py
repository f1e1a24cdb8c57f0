"""Encoder-decoders of one family: Marian, Pegasus, BART and mBART."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from regard.core.config import Count, Probability, Range, doc
from regard.core.shapes import Tensor
from regard.interop.architectures.base import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Activation,
    Architecture,
    SharedKeys,
    tied,
    transformer,
)
from regard.interop.rules import Copies, Rule, Unsqueeze
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig

SHARED = "model.shared.weight"
ENCODER = "model.encoder.embed_tokens.weight"
DECODER = "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


@dataclass(frozen=True)
class Seq2SeqKeys(SharedKeys):
    d_model: Count = doc(1024, "dimension of the hidden states")
    encoder_layers: Count = doc(12, "blocks of the encoder")
    decoder_layers: Count = doc(12, "blocks of the decoder")
    encoder_attention_heads: Count = doc(16, "heads of the encoder")
    decoder_attention_heads: Count = doc(16, "heads of the decoder")
    encoder_ffn_dim: Count = doc(4096, "hidden dimension of the encoder's feed-forward networks")
    decoder_ffn_dim: Count = doc(4096, "hidden dimension of the decoder's feed-forward networks")
    activation_function: Activation = doc("gelu", "of the feed-forward networks")
    dropout: Probability = doc(0.1, "of embeddings and sublayers")
    attention_dropout: Probability = doc(0.0, "of attention weights")
    activation_dropout: Probability = doc(0.0, "in feed-forward networks")
    scale_embedding: bool = doc(False, "multiply embeddings by the square root of their dimension")
    max_position_embeddings: Annotated[int, Range(1.0, 1e7)] = doc(1024, "positions")
    vocab_size: Count = doc(50265, "rows of the embedding")
    decoder_vocab_size: Count | None = doc(
        None, "rows of the decoder's embedding, where it is another one"
    )
    share_encoder_decoder_embeddings: bool = doc(True, "one embedding for encoder and decoder")
    force_bos_token_to_be_generated: bool = doc(
        False, "forced_bos_token_id = bos_token_id, in old files"
    )


@dataclass(frozen=True)
class BartKeys(Seq2SeqKeys):
    pad_token_id: int | None = doc(1, "padding")
    bos_token_id: int | None = doc(0, "the first token of a text")
    eos_token_id: int | tuple[int, ...] | None = doc(2, "the end of a text")
    decoder_start_token_id: int | None = doc(2, "the token before an output's first")


@dataclass(frozen=True)
class MBartKeys(BartKeys):
    decoder_start_token_id: int | None = doc(None, "the token before an output's first")


@dataclass(frozen=True)
class SinusoidalKeys(Seq2SeqKeys):
    # transformers takes the table of a file, whatever it holds, and the sinusoids where a file has none.
    static_position_embeddings: bool = doc(True, "whether positions are sinusoids; if not, a table")


@dataclass(frozen=True)
class PegasusKeys(SinusoidalKeys):
    pad_token_id: int | None = doc(0, "padding")
    eos_token_id: int | tuple[int, ...] | None = doc(1, "the end of a text")
    decoder_start_token_id: int | None = doc(0, "the token before an output's first")


@dataclass(frozen=True)
class MarianKeys(SinusoidalKeys):
    pad_token_id: int | None = doc(58100, "padding")
    eos_token_id: int | tuple[int, ...] | None = doc(0, "the end of a text")
    decoder_start_token_id: int | None = doc(58100, "the token before an output's first")
    vocab_size: Count = doc(58101, "rows of the embedding")


class Seq2SeqArchitecture(Architecture[Seq2SeqKeys]):
    """Transformer encoder and decoder with biases everywhere and a bias of the logits."""

    keys: type[Seq2SeqKeys] = Seq2SeqKeys
    options: ClassVar[dict[str, Any]]  # of both sides
    learned: ClassVar[bool] = False  # positions with two unused rows; otherwise sinusoidal
    separates: ClassVar[bool] = False  # whether encoder and decoder may have an embedding each
    # The first row of positions depends on the class alone: files of opus-mt say extra_pos_embeddings = 58101.
    aliases = {"num_hidden_layers": "encoder_layers"}
    unused = frozenset({"forced_eos_token_id", "num_labels", "extra_pos_embeddings"})
    fixed = {"is_decoder": False, "add_cross_attention": False, "add_bias_logits": False,
             "do_blenderbot_90_layernorm": False}  # fmt: skip

    def max_source_length(self, keys: Seq2SeqKeys) -> int | None:
        return keys.max_position_embeddings

    def table(self, keys: Seq2SeqKeys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        shares = keys.share_encoder_decoder_embeddings or not self.separates
        embeddings = [SHARED, DECODER, ENCODER] if shares else [DECODER]
        ties = tied(tensors, HEAD, embeddings, keys_say=keys.tie_word_embeddings)
        both = {
            "kind": "transformer",
            "dim": keys.d_model,
            "activation": ACTIVATIONS[keys.activation_function],
            "dropout": keys.dropout,
            "attention_dropout": keys.attention_dropout,
            "ffn_dropout": keys.activation_dropout,
            **self.options,
        }
        if self.learned or _has_own_positions(keys, tensors):
            both |= {"positions": "learned", "max_positions": keys.max_position_embeddings}
        if self.learned:
            both["position_offset"] = 2
        table: dict[str, Any] = {}
        for side in ("encoder", "decoder"):
            table[side] = {
                "layers": getattr(keys, f"{side}_layers"),
                "heads": getattr(keys, f"{side}_attention_heads"),
                "ffn_dim": getattr(keys, f"{side}_ffn_dim"),
                **both,
            }
        tied_embeddings = "none"
        if ties:
            tied_embeddings = "all" if shares else "target"
        vocab_size = keys.vocab_size
        if not shares:
            vocab_size = keys.decoder_vocab_size or keys.vocab_size
        return table | {
            "vocab_size": vocab_size,
            "source_vocab_size": keys.vocab_size,
            "tie_embeddings": tied_embeddings,
            "scale_embeddings": keys.scale_embedding,
        }

    def rules(self, keys: Seq2SeqKeys, model: ModelConfig) -> list[Rule]:
        rules = [
            Rule("final_logits_bias", "decoder.project.bias", (Unsqueeze(),)),
            *self._embeddings(model, keys),
        ]
        for side in ("encoder", "decoder"):
            ours = f"{side}.stack.layers.{{i}}."
            theirs = f"model.{side}.layers.{{i}}."
            last_norm = "norm2" if side == "encoder" else "norm3"
            block = [
                *_attention("self_attn", "self_attn"),
                Rule("self_attn_layer_norm.{p}", "norm1.{p}"),
            ]
            if side == "decoder":
                block += [
                    *_attention("encoder_attn", "cross_attn"),
                    Rule("encoder_attn_layer_norm.{p}", "norm2.{p}"),
                ]
            block += [
                Rule("fc1.{p}", "ffn.up.{p}"),
                Rule("fc2.{p}", "ffn.down.{p}"),
                Rule("final_layer_norm.{p}", f"{last_norm}.{{p}}"),
            ]
            rules += [rule.under(theirs, ours) for rule in block]
            outer = [
                Rule("layer_norm.{p}", "stack.norm.{p}"),
                Rule("layernorm_embedding.{p}", "input_layer.norm.{p}"),
                Rule("embed_positions.weight", "input_layer.position_encoding.positions.table"),
            ]
            rules += [rule.under(f"model.{side}.", f"{side}.") for rule in outer]
        return rules

    def _embeddings(self, model: ModelConfig, keys: Seq2SeqKeys) -> list[Rule]:
        encoder = "encoder.embed_tokens.weight"
        decoder = "decoder.embed_tokens.weight"
        if model.options.tie_embeddings == "all":
            return [Rule(SHARED, encoder)]
        separate = [Rule(ENCODER, encoder), Rule(DECODER, decoder)]
        if model.options.tie_embeddings == "target":
            return separate
        shared = keys.share_encoder_decoder_embeddings or not self.separates
        head = Rule(HEAD, "decoder.project.weight")
        if shared:
            return [Rule(SHARED, (encoder, decoder), (Copies(),)), head]
        return [*separate, head]

    def copies(self, keys: Seq2SeqKeys, model: ModelConfig) -> dict[str, tuple[str, ...]]:
        # The output layer may be a copy of the matrix that it is tied to.
        tie = model.options.tie_embeddings
        if tie == "all":
            return {SHARED: (ENCODER, DECODER, HEAD), DECODER: ()}
        if tie == "target":
            return {SHARED: (ENCODER, DECODER), DECODER: (HEAD,)}
        return {SHARED: (ENCODER, DECODER), DECODER: ()}

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        if len(model.encoders) != 1:
            return {}
        encoder = transformer(model.encoders[0])
        decoder = transformer(model.decoder)
        if encoder is None or decoder is None:
            return {}
        tie = model.options.tie_embeddings
        learned = decoder.positions == "learned"
        keys: dict[str, Any] = {
            "d_model": decoder.dim,
            "activation_function": THEIR_ACTIVATIONS.get(decoder.activation, "relu"),
            "dropout": decoder.dropout,
            "attention_dropout": decoder.attention_dropout,
            "activation_dropout": decoder.ffn_dropout,
            "scale_embedding": model.options.scale_embeddings,
            "max_position_embeddings": decoder.max_positions if learned else 1024,
            "tie_word_embeddings": tie != "none",
            "is_encoder_decoder": True,
        }
        if not self.learned:
            keys["static_position_embeddings"] = not learned
        for side, part in (("encoder", encoder), ("decoder", decoder)):
            keys[f"{side}_layers"] = part.layers
            keys[f"{side}_attention_heads"] = part.heads
            keys[f"{side}_ffn_dim"] = part.ffn_dim
        keys["vocab_size"] = model.source_sizes()[0]
        if self.separates:
            keys["share_encoder_decoder_embeddings"] = tie == "all"
            keys["decoder_vocab_size"] = model.options.vocab_size
        return keys


def _has_own_positions(keys: Seq2SeqKeys, tensors: TensorFolder | None) -> bool:
    """Whether the positions of an architecture with sinusoids are a table with other numbers."""
    if not isinstance(keys, SinusoidalKeys):
        return False
    if not keys.static_position_embeddings:
        return True
    if tensors is None:
        return False
    found = [name for name in POSITIONS if name in tensors]
    if not found:
        return False
    sinusoids = _sinusoids(keys)
    for name in found:
        table = tensors[name].float()
        # Versions of transformers differ in the last bits. In half precision, a table is another one.
        if table.shape != sinusoids.shape or not torch.allclose(table, sinusoids, 0.0, 1e-6):
            return True
    return False


def _sinusoids(keys: Seq2SeqKeys) -> Tensor:
    """The table of positions with which transformers begins: computed in float64, as it does."""
    dim = keys.d_model
    position = torch.arange(keys.max_position_embeddings, dtype=torch.float64)[:, None]
    angle = position / 10_000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.cat((angle.sin(), angle.cos()), 1).float()


def _attention(theirs: str, ours: str) -> list[Rule]:
    names = [f"{projection}_proj.{{p}}" for projection in ("q", "k", "v", "out")]
    return [Rule(f"{theirs}.{name}", f"{ours}.{name}") for name in names]


class Marian(Seq2SeqArchitecture):
    """Marian NMT, as in opus-mt (https://aclanthology.org/P18-4020): post-norm, sinusoidal positions."""

    model_type = "marian"
    keys = MarianKeys
    classes = {"MarianMTModel": "generation"}
    options = {"norm_first": False, "positions": "sinusoidal"}
    separates = True
    ignored = (r"model\.(encoder|decoder)\.embed_positions\.weight",)  # where they are sinusoids
    fixed = Seq2SeqArchitecture.fixed | {
        "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
    }  # fmt: skip


class Pegasus(Seq2SeqArchitecture):
    """Pegasus (https://arxiv.org/abs/1912.08777): pre-norm, sinusoidal positions."""

    model_type = "pegasus"
    keys = PegasusKeys
    classes = {"PegasusForConditionalGeneration": "generation"}
    options = {"norm_first": True, "positions": "sinusoidal"}
    ignored = Marian.ignored

    fixed = Seq2SeqArchitecture.fixed | {
        "normalize_before": True, "normalize_embedding": False, "add_final_layer_norm": True,
    }  # fmt: skip

    def computed(self, keys: Seq2SeqKeys, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if _has_own_positions(keys, None):
            return {}
        return {name: _sinusoids(keys) for name in POSITIONS}


class Bart(Seq2SeqArchitecture):
    """BART (https://arxiv.org/abs/1910.13461): post-norm, learned positions, normalized embeddings."""

    model_type = "bart"
    keys = BartKeys
    classes = {"BartForConditionalGeneration": "generation"}
    options = {"norm_first": False, "norm_input": True}
    learned = True
    fixed = Seq2SeqArchitecture.fixed | {
        "normalize_before": False, "normalize_embedding": True, "add_final_layer_norm": False,
        "static_position_embeddings": False,
    }  # fmt: skip


class MBart(Seq2SeqArchitecture):
    """mBART (https://arxiv.org/abs/2001.08210): as BART, pre-norm."""

    model_type = "mbart"
    keys = MBartKeys
    classes = {"MBartForConditionalGeneration": "generation"}
    options = {"norm_first": True, "norm_input": True}
    learned = True
    fixed = Bart.fixed | {"normalize_before": True, "add_final_layer_norm": True}
