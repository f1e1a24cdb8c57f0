"""Encoders with a head for masked tokens, for classes or for tags: BERT, RoBERTa and DistilBERT."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from regard.core.config import Count, Probability, Range, doc
from regard.core.errors import Problem
from regard.core.shapes import Tensor
from regard.interop.architectures.base import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Activation,
    Architecture,
    Keys,
    SharedKeys,
    tied,
    transformer,
)
from regard.interop.architectures.tagging import gives_tags, tagging_head
from regard.interop.rules import Rule
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig
from regard.model.transformer_config import TransformerConfig

TABLE = "encoder.input_layer.position_encoding.positions.table"


class EncoderArchitecture(Architecture[Keys]):
    """A post-norm encoder with learned positions and normalized embeddings."""

    words: ClassVar[str]  # the embedding
    # The head for masked tokens: dense layer, norm, and the bias and matrix of the output.
    mlm: ClassVar[dict[str, str]]
    # The key of the activation of the head for masked tokens, unless it is gelu.
    head_activation: ClassVar[str] = ""
    projection: ClassVar[str]  # the activation of the dense layer before the classifier

    def encoder(self, keys: Keys) -> dict[str, Any]:
        """The table of the encoder."""
        raise NotImplementedError

    def table(self, keys: Keys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        options = {
            "kind": "transformer",
            "positions": "learned",
            "norm_first": False,
            "norm_input": True,
        }
        table: dict[str, Any] = {"encoder": options | self.encoder(keys), "scale_embeddings": False}
        if head == "classification":
            table["pool"] = {"kind": "first", "projection": self.projection}
            table["source_vocab_size"] = keys.vocab_size
            return table
        if head == "tags":
            return table | tagging_head(table["encoder"]["dropout"], keys.vocab_size)
        names = (self.words, self.words.removeprefix(self.base_prefix))
        ties = tied(tensors, self.mlm["matrix"], names, keys_say=keys.tie_word_embeddings)
        tie = "target" if ties else "none"
        return table | {"vocab_size": keys.vocab_size, "head": "mlm", "tie_embeddings": tie}

    def problems(self, keys: Keys, head: str) -> Iterator[Problem]:
        activation = self.encoder(keys)["activation"]
        if head == "mlm" and self.head_activation and activation != "gelu":
            got = repr(getattr(keys, self.head_activation))
            remedy = "Heads for masked tokens with another activation are not imported."
            yield Problem(self.head_activation, "'gelu'", got, remedy)

    def head_rules(self, model: ModelConfig) -> list[Rule]:
        if gives_tags(model):
            return [Rule("classifier.{p}", "head.proj.{p}")]
        if model.pool is not None:
            return []
        tied = model.options.tie_embeddings != "none"
        rules = [
            Rule(f"{self.mlm['dense']}.{{p}}", "transform.0.{p}"),
            Rule(f"{self.mlm['norm']}.{{p}}", "transform.2.{p}"),
            Rule(self.mlm["bias"] if tied else self._own_bias, "project.bias"),
        ]
        if tied:
            return rules
        return [*rules, Rule(self.mlm["matrix"], "project.weight")]

    @property
    def _own_bias(self) -> str:
        """The bias of the output layer. `mlm["bias"]` is a copy of it where embeddings are tied, and else unused."""
        return self.mlm["matrix"].removesuffix("weight") + "bias"

    def copies(self, keys: Keys, model: ModelConfig) -> dict[str, tuple[str, ...]]:
        if model.pool is not None or gives_tags(model) or model.options.tie_embeddings == "none":
            return {}
        others: tuple[str, ...] = ()
        if self._own_bias != self.mlm["bias"]:
            others = (self._own_bias,)
        return {self.mlm["bias"]: others, self.words: (self.mlm["matrix"],)}

    def computed(self, keys: Keys, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # Without tied embeddings, transformers has this bias twice and uses the output layer's.
        own = self._own_bias
        if own in tensors:
            return {self.mlm["bias"]: tensors[own].clone()}
        return {}

    def export_head(self, model: ModelConfig) -> TransformerConfig | None:
        """The encoder of a model with one of the heads."""
        if len(model.encoders) != 1 or model.decoder is not None:
            return None
        return transformer(model.encoders[0])


@dataclass(frozen=True)
class BertKeys(SharedKeys):
    pad_token_id: int | None = doc(0, "padding")
    hidden_size: Count = doc(768, "dimension of the hidden states")
    num_hidden_layers: Count = doc(12, "blocks")
    num_attention_heads: Count = doc(12, "attention heads")
    intermediate_size: Count = doc(3072, "hidden dimension of the feed-forward networks")
    hidden_act: Activation = doc("gelu", "of the feed-forward networks")
    hidden_dropout_prob: Probability = doc(0.1, "of embeddings and sublayers")
    attention_probs_dropout_prob: Probability = doc(0.1, "of attention weights")
    max_position_embeddings: Annotated[int, Range(1.0, 1e7)] = doc(512, "positions")
    type_vocab_size: Count = doc(2, "segments")
    layer_norm_eps: Annotated[float, Range(0.0)] = doc(1e-12, "of the norms")
    vocab_size: Count = doc(30522, "rows of the embedding")


class Bert(EncoderArchitecture[BertKeys]):
    """BERT (https://arxiv.org/abs/1810.04805)."""

    model_type = "bert"
    keys: type[BertKeys] = BertKeys
    classes = {
        "BertForMaskedLM": "mlm",
        "BertForPreTraining": "mlm",
        "BertForSequenceClassification": "classification",
        "BertForTokenClassification": "tags",
    }
    base_prefix = "bert."
    words = "bert.embeddings.word_embeddings.weight"
    mlm = {
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
        "matrix": "cls.predictions.decoder.weight",
    }
    head_activation = "hidden_act"
    projection = "tanh"
    # The pooler of a file with a head for masked tokens, and that for the next sentence.
    ignored: ClassVar[Sequence[str]] = (
        r"bert\.embeddings\.position_ids",
        r"bert\.pooler\..*",
        r"cls\.seq_relationship\.(weight|bias)",
        r"cls\.predictions\.bias",
    )
    fixed = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
             "chunk_size_feed_forward": 0}  # fmt: skip
    unused = frozenset({"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                        "pooler_size_per_head", "pooler_type"})  # fmt: skip

    def max_source_length(self, keys: BertKeys) -> int | None:
        return keys.max_position_embeddings

    def offset(self, keys: BertKeys) -> int:
        """Rows of the position table before the first that is used."""
        return 0

    def encoder(self, keys: BertKeys) -> dict[str, Any]:
        offset = self.offset(keys)
        table: dict[str, Any] = {
            "dim": keys.hidden_size,
            "layers": keys.num_hidden_layers,
            "heads": keys.num_attention_heads,
            "ffn_dim": keys.intermediate_size,
            "activation": ACTIVATIONS[keys.hidden_act],
            "dropout": keys.hidden_dropout_prob,
            "attention_dropout": keys.attention_probs_dropout_prob,
            "max_positions": keys.max_position_embeddings - offset,
            "token_types": keys.type_vocab_size,
            "norm_eps": keys.layer_norm_eps,
        }
        if offset:
            table["position_offset"] = offset
        return table

    def rules(self, keys: BertKeys, model: ModelConfig) -> list[Rule]:
        block = [
            *(Rule(f"attention.self.{theirs}.{{p}}", f"self_attn.{ours}_proj.{{p}}")
              for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"))),
            Rule("attention.output.dense.{p}", "self_attn.out_proj.{p}"),
            Rule("attention.output.LayerNorm.{p}", "norm1.{p}"),
            Rule("intermediate.dense.{p}", "ffn.up.{p}"),
            Rule("output.dense.{p}", "ffn.down.{p}"),
            Rule("output.LayerNorm.{p}", "norm2.{p}"),
        ]  # fmt: skip
        base = [
            Rule("embeddings.word_embeddings.weight", "encoder.embed_tokens.weight"),
            Rule("embeddings.position_embeddings.weight", TABLE),
            Rule("embeddings.token_type_embeddings.weight", "encoder.input_layer.token_types"),
            Rule("embeddings.LayerNorm.{p}", "encoder.input_layer.norm.{p}"),
            *(rule.under("encoder.layer.{i}.", "encoder.stack.layers.{i}.") for rule in block),
        ]
        return [
            *(rule.under(self.base_prefix) for rule in base),
            *self.head_rules(model),
            *self.classifier(model),
        ]

    def classifier(self, model: ModelConfig) -> list[Rule]:
        if model.pool is None:
            return []
        return [
            Rule("bert.pooler.dense.{p}", "pool.proj.{p}"),
            Rule("classifier.{p}", "classifier.{p}"),
        ]

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        encoder = self.export_head(model)
        if encoder is None:
            return {}
        return {
            "hidden_size": encoder.dim,
            "num_hidden_layers": encoder.layers,
            "num_attention_heads": encoder.heads,
            "intermediate_size": encoder.ffn_dim,
            "hidden_act": THEIR_ACTIVATIONS.get(encoder.activation, "gelu"),
            "hidden_dropout_prob": encoder.dropout,
            "attention_probs_dropout_prob": encoder.attention_dropout,
            "max_position_embeddings": encoder.max_positions + encoder.position_offset,
            "type_vocab_size": max(1, encoder.token_types),
            "layer_norm_eps": encoder.norm_eps,
            "vocab_size": model.source_sizes()[0],
            "tie_word_embeddings": model.options.tie_embeddings != "none",
        }


@dataclass(frozen=True)
class RobertaKeys(BertKeys):
    bos_token_id: int | None = doc(0, "the first token of a text")
    eos_token_id: int | tuple[int, ...] | None = doc(2, "the end of a text")
    pad_token_id: Annotated[int, Range(0.0, 1e6)] = doc(
        1, "padding, whose position comes before all others"
    )
    vocab_size: Count = doc(50265, "rows of the embedding")


class Roberta(Bert):
    """RoBERTa (https://arxiv.org/abs/1907.11692): as BERT, with positions counted from after the padding position."""

    model_type = "roberta"
    classes = {
        "RobertaForMaskedLM": "mlm",
        "RobertaForSequenceClassification": "classification",
        "RobertaForTokenClassification": "tags",
    }
    base_prefix = "roberta."
    words = "roberta.embeddings.word_embeddings.weight"
    mlm = {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias",
           "matrix": "lm_head.decoder.weight"}  # fmt: skip
    ignored = (r"roberta\.embeddings\.position_ids", r"roberta\.pooler\..*", r"lm_head\.bias")
    keys = RobertaKeys
    head_activation = ""
    doubles_separator = True

    def offset(self, keys: BertKeys) -> int:
        assert keys.pad_token_id is not None
        return keys.pad_token_id + 1

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        encoder = self.export_head(model)
        keys = super().export_keys(model)
        if encoder is None:
            return keys
        return keys | {"pad_token_id": max(0, encoder.position_offset - 1)}

    def classifier(self, model: ModelConfig) -> list[Rule]:
        if model.pool is None:
            return []
        return [
            Rule("classifier.dense.{p}", "pool.proj.{p}"),
            Rule("classifier.out_proj.{p}", "classifier.{p}"),
        ]


@dataclass(frozen=True)
class DistilBertKeys(SharedKeys):
    pad_token_id: int | None = doc(0, "padding")
    dim: Count = doc(768, "dimension of the hidden states")
    n_layers: Count = doc(6, "blocks")
    n_heads: Count = doc(12, "attention heads")
    hidden_dim: Count = doc(3072, "hidden dimension of the feed-forward networks")
    activation: Activation = doc("gelu", "of the feed-forward networks")
    dropout: Probability = doc(0.1, "of embeddings and sublayers")
    attention_dropout: Probability = doc(0.1, "of attention weights")
    max_position_embeddings: Annotated[int, Range(1.0, 1e7)] = doc(512, "positions")
    vocab_size: Count = doc(30522, "rows of the embedding")


class DistilBert(EncoderArchitecture[DistilBertKeys]):
    """DistilBERT (https://arxiv.org/abs/1910.01108)."""

    model_type = "distilbert"
    keys = DistilBertKeys
    classes = {
        "DistilBertForMaskedLM": "mlm",
        "DistilBertForSequenceClassification": "classification",
        "DistilBertForTokenClassification": "tags",
    }
    aliases = {"num_hidden_layers": "n_layers"}
    base_prefix = "distilbert."
    words = "distilbert.embeddings.word_embeddings.weight"
    mlm = {"dense": "vocab_transform", "norm": "vocab_layer_norm", "bias": "vocab_projector.bias",
           "matrix": "vocab_projector.weight"}  # fmt: skip
    head_activation = "activation"
    projection = "relu"
    ignored = (r"distilbert\.embeddings\.position_ids",)
    # Sinusoidal tables are in the file like learned ones.
    unused = frozenset({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"})
    fixed = {"tie_weights_": True}

    def max_source_length(self, keys: DistilBertKeys) -> int | None:
        return keys.max_position_embeddings

    def encoder(self, keys: DistilBertKeys) -> dict[str, Any]:
        return {
            "dim": keys.dim,
            "layers": keys.n_layers,
            "heads": keys.n_heads,
            "ffn_dim": keys.hidden_dim,
            "activation": ACTIVATIONS[keys.activation],
            "dropout": keys.dropout,
            "attention_dropout": keys.attention_dropout,
            "max_positions": keys.max_position_embeddings,
            "norm_eps": 1e-12,
        }

    def rules(self, keys: DistilBertKeys, model: ModelConfig) -> list[Rule]:
        block = [
            *(
                Rule(f"attention.{x}_lin.{{p}}", f"self_attn.{x}_proj.{{p}}")
                for x in ("q", "k", "v", "out")
            ),
            Rule("sa_layer_norm.{p}", "norm1.{p}"),
            Rule("ffn.lin1.{p}", "ffn.up.{p}"),
            Rule("ffn.lin2.{p}", "ffn.down.{p}"),
            Rule("output_layer_norm.{p}", "norm2.{p}"),
        ]
        base = [
            Rule("embeddings.word_embeddings.weight", "encoder.embed_tokens.weight"),
            Rule("embeddings.position_embeddings.weight", TABLE),
            Rule("embeddings.LayerNorm.{p}", "encoder.input_layer.norm.{p}"),
            *(rule.under("transformer.layer.{i}.", "encoder.stack.layers.{i}.") for rule in block),
        ]
        rules = [*(rule.under(self.base_prefix) for rule in base), *self.head_rules(model)]
        if model.pool is not None:
            rules += [
                Rule("pre_classifier.{p}", "pool.proj.{p}"),
                Rule("classifier.{p}", "classifier.{p}"),
            ]
        return rules

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        encoder = self.export_head(model)
        if encoder is None:
            return {}
        return {
            "dim": encoder.dim,
            "n_layers": encoder.layers,
            "n_heads": encoder.heads,
            "hidden_dim": encoder.ffn_dim,
            "activation": THEIR_ACTIVATIONS.get(encoder.activation, "gelu"),
            "dropout": encoder.dropout,
            "attention_dropout": encoder.attention_dropout,
            "seq_classif_dropout": encoder.dropout,
            "max_position_embeddings": encoder.max_positions,
            "vocab_size": model.source_sizes()[0],
            "tie_word_embeddings": model.options.tie_embeddings != "none",
        }
