"""Vision Transformers that classify images: ViT and DeiT."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from regard.core.config import Count, Probability, Range, doc
from regard.interop.architectures.base import (
    ACTIVATIONS,
    THEIR_ACTIVATIONS,
    Activation,
    Architecture,
    SharedKeys,
)
from regard.interop.rules import Rule, Unsqueeze
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig
from regard.model.vision import VitConfig


@dataclass(frozen=True)
class VitKeys(SharedKeys):
    hidden_size: Count = doc(768, "dimension of the hidden states")
    num_hidden_layers: Count = doc(12, "blocks")
    num_attention_heads: Count = doc(12, "attention heads")
    intermediate_size: Count = doc(3072, "hidden dimension of the feed-forward networks")
    hidden_act: Activation = doc("gelu", "of the feed-forward networks")
    hidden_dropout_prob: Probability = doc(0.0, "of embeddings and sublayers")
    attention_probs_dropout_prob: Probability = doc(0.0, "of attention weights")
    layer_norm_eps: Annotated[float, Range(0.0)] = doc(1e-12, "of the norms")
    image_size: Annotated[int, Range(1.0, 1e5)] = doc(224, "pixels a side of an image")
    patch_size: Count = doc(16, "pixels a side of a patch")
    pooler_output_size: Count | None = doc(None, "outputs of the pooler; null: the hidden size")


class Vit(Architecture[VitKeys]):
    """ViT (https://arxiv.org/abs/2010.11929): the state of a [CLS] token is classified."""

    model_type = "vit"
    keys = VitKeys
    classes = {"ViTForImageClassification": "classification"}
    prefix: ClassVar[str] = "vit."
    tokens: ClassVar[int] = 1  # before the patches
    ignored = (r"(vit|deit)\.pooler\..*",)
    unused = frozenset({"encoder_stride", "pooler_act", "tie_word_embeddings"})
    fixed = {"qkv_bias": True, "num_channels": 3, "add_cross_attention": False, "is_decoder": False,
             "chunk_size_feed_forward": 0}  # fmt: skip

    def table(self, keys: VitKeys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        return {"encoder": self.encoder(keys), "pool": {"kind": "first"}}

    def encoder(self, keys: VitKeys) -> dict[str, Any]:
        blocks = {
            "dim": keys.hidden_size,
            "layers": keys.num_hidden_layers,
            "heads": keys.num_attention_heads,
            "ffn_dim": keys.intermediate_size,
            "activation": ACTIVATIONS[keys.hidden_act],
            "dropout": keys.hidden_dropout_prob,
            "attention_dropout": keys.attention_probs_dropout_prob,
            "norm_eps": keys.layer_norm_eps,
            "positions": "learned",
            "max_positions": (keys.image_size // keys.patch_size) ** 2 + self.tokens,
            "cls_token": True,
        }
        return {"kind": "vit", "patch_size": keys.patch_size, "transformer": blocks}

    def rules(self, keys: VitKeys, model: ModelConfig) -> list[Rule]:
        return [
            *(rule.under(self.prefix) for rule in encoder_rules()),
            Rule("classifier.{p}", "classifier.{p}"),
        ]

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        if len(model.encoders) != 1 or model.pool is None:
            return {}
        encoder = model.encoders[0].config
        if isinstance(encoder, VitConfig):
            return export_encoder_keys(encoder)
        return {}


class Deit(Vit):
    """DeiT (https://arxiv.org/abs/2012.12877): as ViT, with a second token, which was trained by distillation."""

    model_type = "deit"
    classes = {
        "DeiTForImageClassification": "classification",
        "DeiTForImageClassificationWithTeacher": "distilled classification",
    }
    prefix = "deit."
    tokens = 2

    def table(self, keys: VitKeys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        pool: dict[str, Any] = {"kind": "first"}
        if head == "distilled classification":
            pool["distillation_head"] = True
        return {"encoder": self.encoder(keys), "pool": pool}

    def encoder(self, keys: VitKeys) -> dict[str, Any]:
        return super().encoder(keys) | {"distillation_token": True}

    def rules(self, keys: VitKeys, model: ModelConfig) -> list[Rule]:
        return [
            *super().rules(keys, model),
            Rule("cls_classifier.{p}", "classifier.heads.0.{p}"),
            Rule("distillation_classifier.{p}", "classifier.heads.1.{p}"),
        ]


def encoder_rules() -> list[Rule]:
    block = [
        *(Rule(f"attention.attention.{theirs}.{{p}}", f"self_attn.{ours}_proj.{{p}}")
          for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"))),
        Rule("attention.output.dense.{p}", "self_attn.out_proj.{p}"),
        Rule("layernorm_before.{p}", "norm1.{p}"),
        Rule("layernorm_after.{p}", "norm2.{p}"),
        Rule("intermediate.dense.{p}", "ffn.up.{p}"),
        Rule("output.dense.{p}", "ffn.down.{p}"),
    ]  # fmt: skip
    return [
        Rule("embeddings.cls_token", "encoder.cls_token.embedding", (Unsqueeze(2),)),
        Rule(
            "embeddings.distillation_token", "encoder.distillation_token.embedding", (Unsqueeze(2),)
        ),
        Rule(
            "embeddings.position_embeddings",
            "encoder.input_layer.position_encoding.positions.table",
            (Unsqueeze(),),
        ),
        Rule("embeddings.patch_embeddings.projection.{p}", "encoder.patch_embed.proj.{p}"),
        Rule("layernorm.{p}", "encoder.stack.norm.{p}"),
        *(rule.under("encoder.layer.{i}.", "encoder.stack.layers.{i}.") for rule in block),
    ]


def export_encoder_keys(encoder: VitConfig) -> dict[str, Any]:
    blocks = encoder.transformer
    patches = blocks.max_positions - 1 - encoder.distillation_token
    patches_per_side = max(1, round(max(1, patches) ** 0.5))
    return {
        "hidden_size": blocks.dim,
        "num_hidden_layers": blocks.layers,
        "num_attention_heads": blocks.heads,
        "intermediate_size": blocks.ffn_dim,
        "hidden_act": THEIR_ACTIVATIONS.get(blocks.activation, "gelu"),
        "hidden_dropout_prob": blocks.dropout,
        "attention_probs_dropout_prob": blocks.attention_dropout,
        "layer_norm_eps": blocks.norm_eps,
        "image_size": patches_per_side * encoder.patch_size,
        "patch_size": encoder.patch_size,
        "qkv_bias": True,
        "num_channels": 3,
    }
