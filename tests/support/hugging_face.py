"""Hugging Face's models in our words: the table that builds the same model, and where each of its weights goes."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import regard

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}

Names = tuple[
    tuple[str, str], ...
]  # patterns of their names, and ours; a weight that no pattern fits is refused

_SEQ2SEQ: Names = (
    (r"model\.(encoder|decoder)\.embed_tokens\.(.*)", r"\1.embed_tokens.\2"),
    (r"model\.(encoder|decoder)\.embed_positions\.weight", r"\1.input_layer.position_encoding.positions.table"),
    (r"model\.(encoder|decoder)\.layernorm_embedding\.(.*)", r"\1.input_layer.norm.\2"),
    (r"model\.(encoder|decoder)\.layers\.(\d+)\.self_attn\.(.*)", r"\1.stack.layers.\2.self_attn.\3"),
    (r"model\.(encoder|decoder)\.layers\.(\d+)\.self_attn_layer_norm\.(.*)", r"\1.stack.layers.\2.norm1.\3"),
    (r"model\.decoder\.layers\.(\d+)\.encoder_attn\.(.*)", r"decoder.stack.layers.\1.cross_attn.\2"),
    (r"model\.decoder\.layers\.(\d+)\.encoder_attn_layer_norm\.(.*)", r"decoder.stack.layers.\1.norm2.\2"),
    (r"model\.(encoder|decoder)\.layers\.(\d+)\.fc1\.(.*)", r"\1.stack.layers.\2.ffn.up.\3"),
    (r"model\.(encoder|decoder)\.layers\.(\d+)\.fc2\.(.*)", r"\1.stack.layers.\2.ffn.down.\3"),
    (r"model\.encoder\.layers\.(\d+)\.final_layer_norm\.(.*)", r"encoder.stack.layers.\1.norm2.\2"),
    (r"model\.decoder\.layers\.(\d+)\.final_layer_norm\.(.*)", r"decoder.stack.layers.\1.norm3.\2"),
    (r"lm_head\.weight", r"decoder.project.weight"),
    (r"final_logits_bias", r"decoder.project.bias"),
)  # fmt: skip
_GPT2: Names = (
    (r"transformer\.wte\.weight", r"decoder.embed_tokens.weight"),
    (r"transformer\.wpe\.weight", r"decoder.input_layer.position_encoding.positions.table"),
    (r"transformer\.h\.(\d+)\.ln_1\.(.*)", r"decoder.stack.layers.\1.norm1.\2"),
    (r"transformer\.h\.(\d+)\.attn\.(.*)", r"decoder.stack.layers.\1.self_attn.\2"),
    (r"transformer\.h\.(\d+)\.ln_2\.(.*)", r"decoder.stack.layers.\1.norm2.\2"),
    (r"transformer\.h\.(\d+)\.mlp\.c_fc\.(.*)", r"decoder.stack.layers.\1.ffn.up.\2"),
    (r"transformer\.h\.(\d+)\.mlp\.c_proj\.(.*)", r"decoder.stack.layers.\1.ffn.down.\2"),
    (r"transformer\.ln_f\.(.*)", r"decoder.stack.norm.\1"),
    (r"lm_head\.weight", r"decoder.project.weight"),
)
_BERT: Names = (
    (r"bert\.embeddings\.word_embeddings\.weight", r"encoder.embed_tokens.weight"),
    (r"bert\.embeddings\.position_embeddings\.weight", r"encoder.input_layer.position_encoding.positions.table"),
    (r"bert\.embeddings\.LayerNorm\.(.*)", r"encoder.input_layer.norm.\1"),
    (r"bert\.encoder\.layer\.(\d+)\.attention\.self\.(.*)", r"encoder.stack.layers.\1.self_attn.\2"),
    (r"bert\.encoder\.layer\.(\d+)\.attention\.output\.dense\.(.*)", r"encoder.stack.layers.\1.self_attn.out_proj.\2"),
    (r"bert\.encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(.*)", r"encoder.stack.layers.\1.norm1.\2"),
    (r"bert\.encoder\.layer\.(\d+)\.intermediate\.dense\.(.*)", r"encoder.stack.layers.\1.ffn.up.\2"),
    (r"bert\.encoder\.layer\.(\d+)\.output\.dense\.(.*)", r"encoder.stack.layers.\1.ffn.down.\2"),
    (r"bert\.encoder\.layer\.(\d+)\.output\.LayerNorm\.(.*)", r"encoder.stack.layers.\1.norm2.\2"),
    (r"cls\.predictions\.transform\.dense\.(.*)", r"transform.0.\1"),
    (r"cls\.predictions\.transform\.LayerNorm\.(.*)", r"transform.2.\1"),
    (r"cls\.predictions\.decoder\.(.*)", r"project.\1"),
)  # fmt: skip
_VIT: Names = (
    (r"vit\.embeddings\.cls_token", r"encoder.cls_token.embedding"),
    (
        r"vit\.embeddings\.position_embeddings",
        r"encoder.input_layer.position_encoding.positions.table",
    ),
    (r"vit\.embeddings\.patch_embeddings\.projection\.(.*)", r"encoder.patch_embed.proj.\1"),
    (r"vit\.layers\.(\d+)\.attention\.(.*)", r"encoder.stack.layers.\1.self_attn.\2"),
    (r"vit\.layers\.(\d+)\.layernorm_before\.(.*)", r"encoder.stack.layers.\1.norm1.\2"),
    (r"vit\.layers\.(\d+)\.layernorm_after\.(.*)", r"encoder.stack.layers.\1.norm2.\2"),
    (r"vit\.layers\.(\d+)\.mlp\.fc1\.(.*)", r"encoder.stack.layers.\1.ffn.up.\2"),
    (r"vit\.layers\.(\d+)\.mlp\.fc2\.(.*)", r"encoder.stack.layers.\1.ffn.down.\2"),
    (r"vit\.layernorm\.(.*)", r"encoder.stack.norm.\1"),
    (r"classifier\.(.*)", r"classifier.\1"),
)
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "o_proj": "out_proj"}


def translate(
    kind: str, config: Any, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The table for `regard.build`, and the weights under our names."""
    return {"marian": marian, "bart": bart, "gpt2": gpt2, "bert": bert, "vit": vit}[kind](
        config, dict(weights)
    )


def marian(config: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for side in ("encoder", "decoder"):
        weights.pop(f"model.{side}.embed_positions.weight")  # waves, which are computed
    return _seq2seq(config, weights, positions="sinusoidal")


def bart(config: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        weights[name] = weights[name][2:]  # the first two rows are never used
    longest = config.max_position_embeddings
    return _seq2seq(config, weights, positions="learned", max_positions=longest, norm_input=True)


def _seq2seq(
    config: Any, weights: dict[str, Tensor], **both: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    both |= {
        "kind": "transformer",
        "dim": config.d_model,
        "norm_first": False,
        "activation": ACTIVATIONS[config.activation_function],
    }
    table = {
        side: {
            "layers": getattr(config, f"{side}_layers"),
            "heads": getattr(config, f"{side}_attention_heads"),
            "ffn_dim": getattr(config, f"{side}_ffn_dim"),
            **both,
        }
        for side in ("encoder", "decoder")
    }
    weights.pop("model.shared.weight")  # once more under each name it is used by
    weights["final_logits_bias"] = weights["final_logits_bias"][0]
    outline = {
        "vocab_size": config.vocab_size,
        "tie_embeddings": "all",
        "scale_embeddings": config.scale_embedding,
    }
    return table | outline, _renamed(weights, _SEQ2SEQ)


def gpt2(config: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for name in [name for name in weights if re.search(r"\.c_\w+\.weight$", name)]:
        weights[name] = weights[name].T  # written for x @ W
    for name in [name for name in weights if ".c_attn." in name]:
        thirds = weights.pop(name).chunk(3)
        for part, third in zip(("q_proj", "k_proj", "v_proj"), thirds, strict=True):
            weights[name.replace("c_attn", part)] = third
    for name in [name for name in weights if ".attn.c_proj." in name]:
        weights[name.replace("c_proj", "out_proj")] = weights.pop(name)
    ours = _renamed(weights, _GPT2)
    ours["decoder.project.bias"] = torch.zeros(config.vocab_size)
    table = {
        "decoder": {
            "kind": "transformer",
            "dim": config.n_embd,
            "layers": config.n_layer,
            "heads": config.n_head,
            "ffn_dim": config.n_inner or 4 * config.n_embd,
            "positions": "learned",
            "max_positions": config.n_positions,
            "activation": ACTIVATIONS[config.activation_function],
            "norm_eps": config.layer_norm_epsilon,
        },
        "vocab_size": config.vocab_size,
        "scale_embeddings": False,
    }
    return table, ours


def bert(config: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if config.hidden_act != "gelu":
        raise ValueError(
            f"the masked-token head turns with gelu, and this one with {config.hidden_act}"
        )
    weights.pop("cls.predictions.bias")  # the decoder's, a second time
    kinds = weights.pop("bert.embeddings.token_type_embeddings.weight")
    weights["bert.embeddings.position_embeddings.weight"] = (
        weights["bert.embeddings.position_embeddings.weight"]
        + kinds[0]  # one sentence: every token is of the first kind
    )
    table = {
        "encoder": _encoder(config)
        | {"max_positions": config.max_position_embeddings, "norm_input": True},
        "head": "mlm",
        "vocab_size": config.vocab_size,
        "scale_embeddings": False,
    }
    table["encoder"] |= {"kind": "transformer", "norm_first": False}
    return table, _renamed(weights, _BERT)


def vit(config: Any, weights: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    weights["vit.embeddings.cls_token"] = weights["vit.embeddings.cls_token"].flatten()
    weights["vit.embeddings.position_embeddings"] = weights["vit.embeddings.position_embeddings"][0]
    longest = (config.image_size // config.patch_size) ** 2 + 1
    table = {
        "encoder": {
            "kind": "vit",
            "patch_size": config.patch_size,
            "transformer": _encoder(config) | {"max_positions": longest, "cls_token": True},
        },
        "pool": {"kind": "first"},
        "num_labels": config.num_labels,
    }
    return table, _renamed(weights, _VIT)


def _encoder(config: Any) -> dict[str, Any]:
    return {
        "dim": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "ffn_dim": config.intermediate_size,
        "positions": "learned",
        "activation": ACTIVATIONS[config.hidden_act],
        "norm_eps": config.layer_norm_eps,
    }


def _renamed(weights: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        ours = [re.sub(pattern, to, name) for pattern, to in names if re.fullmatch(pattern, name)]
        if len(ours) != 1:
            raise ValueError(f"{name} has {len(ours)} places here, and must have one")
        parts = [_PROJECTIONS.get(part, part) for part in ours[0].split(".")]
        found[".".join(parts)] = weight
    return found


def twin(kind: str, theirs: Any) -> nn.Module:
    """Our model with the weights of theirs."""
    table, weights = translate(kind, theirs.config, theirs.state_dict())
    ours = regard.build(table).eval()
    ours.load_state_dict(weights, strict=True)
    return ours
