"""Transformers as models of CTranslate2 (https://opennmt.net/CTranslate2): translators, and language models."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.core.config import Config
from regard.core.errors import MissingExtra
from regard.core.shapes import Tensor
from regard.data.fields.text import require_tokenizer, tokenizer_of
from regard.data.tokenizer import Tokenizer
from regard.inference.predictor import Predictor
from regard.interop.interfaces import ExportOptions, FolderTarget
from regard.kernels.layers.residual_norm import norm_gain
from regard.model.embedding import token_embedding
from regard.model.interfaces import AnyDecoder, Encoder
from regard.model.model_config import ModelConfig
from regard.model.multihead import MultiHead
from regard.model.positions import Learned, RelativeBias
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from regard.model.transformer_block import GATED, TransformerBlock
from regard.model.transformer_config import TransformerConfig

# The values of each key of a Transformer that CTranslate2 can express; ANY: all of them. A key that is missing here is
# refused, so that no new option is left out silently.
ANY: tuple[Any, ...] = ()
EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    # Settings of training.
    "dropout": ANY,
    "attention_dropout": ANY,
    "ffn_dropout": ANY,
    "activation_checkpointing": ANY,
    "word_vectors": ANY,
    "freeze_word_vectors": ANY,
    # Sizes.
    "dim": ANY,
    "layers": ANY,
    "heads": ANY,
    "head_dim": ANY,
    "kv_heads": ANY,
    "ffn_dim": ANY,
    "max_positions": ANY,
    # Norms, biases and positions.
    "norm_first": ANY,
    "norm_input": ANY,
    "norm_eps": ANY,
    "qk_norm": ANY,
    "attention_bias": ANY,
    "ffn_bias": ANY,
    "rotary_base": ANY,
    "relative_buckets": ANY,
    "relative_max_distance": ANY,
    "position_offset": ANY,
    "token_types": ANY,
    "norm": ("layer", "rms", "rms_offset"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"),
    "positions": ("sinusoidal", "learned", "rotary", "relative", "alibi", "none"),
    "position_mode": ("add",),
    "score": ("scaled_dot", "dot"),
    "value_dim": (None,),
    # Its own window is wrong for prompts longer than the window, and crashes encoder-decoders.
    "sliding_window": (None,),
    "causal": (False,),
    "cls_token": (False,),
}
EXPRESSIBLE_OPTIONS: dict[str, tuple[Any, ...]] = {
    "vocab_size": ANY,
    "source_vocab_size": ANY,
    "num_labels": ANY,
    "tie_embeddings": ANY,
    "scale_embeddings": ANY,
    "embedding_dropout": ANY,
    "output_bias": ANY,
    "scale_logits": ANY,
    # Of models of vectors, which it does not have.
    "source_dim": (None,),
    "target_dim": (None,),
    "horizon": (None,),
    "source_length": (None,),
    "task": (None, "generate"),
}
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
MIN_POSITIONS = 2048  # rows of a table of positions that are not learned
NEVER = -1e4  # the logit of a token that is never generated; float16 holds it
logger = logging.getLogger(__name__)


class CTranslate2Target(FolderTarget):
    """Encoder-decoders for `ctranslate2.Translator`, and language models for `ctranslate2.Generator`."""

    name = "ctranslate2"
    title = "CTranslate2"
    options = frozenset({"dtype", "quantization"})

    def obstacles(self, model: Predictor) -> list[str]:
        seq2seq = model.model.generator
        config = model.recipe.model
        if seq2seq is None:
            return [f"{type(model.model).__name__}: it has models that generate sequences only"]
        if obstacles := list(_part_obstacles(config)):
            return obstacles
        if not isinstance(seq2seq.decoder, TransformerDecoder):
            return [f"{type(seq2seq.decoder).__name__}: it has no ensembles"]
        return [*_position_obstacles(config), *_vocabulary_obstacles(model)]

    def write(self, model: Predictor, folder: Path, options: ExportOptions) -> None:
        try:
            from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec
        except ImportError:
            raise MissingExtra("ctranslate2", "ctranslate2", "exporting to CTranslate2") from None
        seq2seq = model.model.generator
        assert seq2seq is not None
        source = tokenizer_of(model.source)
        target = require_tokenizer(model.target, "model")
        *encoders, config = [_transformer(part.config) for _, part in model.recipe.model.parts()]
        rows = _position_rows(model)
        forced = target.special_tokens.target_prefix
        decoder = _decoder_spec(seq2seq.decoder, config, rows, target.special_tokens.suppressed)
        if encoders:
            assert source is not None
            spec = TransformerSpec(_encoder_spec(seq2seq.encoder, encoders[0], rows), decoder)
            spec.register_source_vocabulary(source.tokens())
            spec.register_target_vocabulary(target.tokens())
            source.save(folder / "source_tokenizer.json")
            target.save(folder / "target_tokenizer.json")
        else:
            spec = TransformerDecoderModelSpec(decoder)
            spec.register_vocabulary(target.tokens())
            target.save(folder / "tokenizer.json")
        for key, value in _roles(source, target, running_text=model.running_text).items():
            setattr(spec.config, key, value)
        spec.config.layer_norm_epsilon = config.norm_eps
        spec.validate()
        spec.optimize(quantization=_quantization(options))
        spec.save(str(folder))
        if forced:
            names = [target.tokens()[i] for i in forced]
            logger.warning(
                "give translate_batch target_prefix=[%s, …]: every output begins with it", names
            )
        if target.special_tokens.other_ends:
            names = [target.tokens()[i] for i in target.special_tokens.ends]
            call = "translate_batch" if encoders else "generate_batch"
            logger.warning("give %s end_token=%s: each of these ends an output", call, names)


def _part_obstacles(model: ModelConfig) -> Iterator[str]:
    """Parts and options that CTranslate2 does not have."""
    if len(model.encoders) > 1:
        yield "model.encoders: it has one source"
    for role, part in model.parts():
        if part.kind != "transformer" or type(part.config) is not TransformerConfig:
            yield f"model.{role}.kind = {part.kind!r}: it has Transformers of tokens only"
        else:
            yield from _option_obstacles(part.config, EXPRESSIBLE, f"model.{role}.")
    yield from _option_obstacles(model.options, EXPRESSIBLE_OPTIONS, "model.")


def _option_obstacles(
    config: Config, expressible: Mapping[str, Sequence[Any]], before: str
) -> Iterator[str]:
    for field in fields(config):
        value = getattr(config, field.name)
        values = expressible.get(field.name)
        if values is None:
            yield f"{before}{field.name} = {value!r}: an option that the export does not know"
        elif values is not ANY and value not in values:
            yield f"{before}{field.name} = {value!r}: it has {' and '.join(map(repr, values))} only"


def _position_obstacles(model: ModelConfig) -> Iterator[str]:
    """Options that CTranslate2 has in some models only."""
    *encoders, decoder = [_transformer(part.config) for _, part in model.parts()]
    if not encoders and decoder.positions == "relative":
        yield "model.decoder.positions = 'relative': it computes them wrongly in language models"
    for encoder in encoders:
        if encoder.positions == "alibi":
            yield "model.encoder.positions = 'alibi': it has them in decoders only"
        for role, part in (("encoder", encoder), ("decoder", decoder)):
            if part.qk_norm:
                yield f"model.{role}.qk_norm = True: it computes it wrongly in encoder-decoders"
        if encoder.norm_eps != decoder.norm_eps:
            yield f"model.encoder.norm_eps = {encoder.norm_eps!r}: it has one; the decoder's is {decoder.norm_eps!r}"


def _vocabulary_obstacles(model: Predictor) -> Iterator[str]:
    """Roles of tokens that CTranslate2 does not have."""
    source = tokenizer_of(model.source)
    target = require_tokenizer(model.target, "model")
    special = target.special_tokens
    end = target.tokens()[target.special_tokens.end]
    if model.running_text and not special.suppressed:
        yield f"data.context_length: it ends outputs at {end!r}, which running text goes on after"
    if source is not None:
        before, after = _around(source)
        if len(before) > 1 or after not in ([], [end]):
            yield f"special tokens {before} before and {after} after a source: it adds one before, and {end!r} after"
    for role, vocabulary in (("source", source), ("target", target)):
        if vocabulary is None:
            continue
        name, count = Counter(vocabulary.tokens()).most_common(1)[0]
        if count > 1:
            yield f"{role} vocabulary: {name!r} stands for {count} tokens, which it cannot tell apart"


def _around(source: Tokenizer) -> tuple[list[str], list[str]]:
    """The names of the special tokens before and after every source."""
    names = source.tokens()
    special = source.special_tokens
    before = [names[i] for i in special.source_prefix]
    after = [names[i] for i in special.source_suffix]
    return before, after


def _roles(source: Tokenizer | None, target: Tokenizer, *, running_text: bool) -> dict[str, Any]:
    """The special tokens, as a model's config.json has them.

    Running text begins after a line break, which is its end token, and nothing ends it.
    """
    names = target.tokens()
    special = target.special_tokens
    start = special.end if running_text or special.start is None else special.start
    end = special.suppressed[0] if running_text else special.end
    unknown = special.end if special.unknown is None else special.unknown
    roles: dict[str, Any] = {
        "bos_token": names[start],
        "eos_token": names[end],
        "unk_token": names[unknown],
    }
    if source is not None:
        before, after = _around(source)
        roles["decoder_start_token"] = names[start]
        roles["add_source_bos"] = bool(before)
        roles["add_source_eos"] = bool(after)
        if before:
            roles["bos_token"] = before[0]
    return roles


def _transformer(config: Config) -> TransformerConfig:
    assert isinstance(config, TransformerConfig)
    return config


def _position_rows(model: Predictor) -> int:
    """Rows of a table of positions that are not learned: enough for what the recipe allows."""
    decode = model.recipe.decode
    context_length = model.recipe.data.context_length or 0
    return max(MIN_POSITIONS, decode.max_source_length + 1, decode.max_length, context_length)


def _quantization(options: ExportOptions) -> str:
    """CTranslate2's name of the types of matrices and of everything else."""
    dtype = options.dtype or "float32"
    if options.quantization is None:
        return dtype
    return f"{options.quantization}_{dtype}"


def _encoder_spec(encoder: Encoder | None, config: TransformerConfig, rows: int) -> Any:
    from ctranslate2.specs.transformer_spec import TransformerEncoderSpec

    assert isinstance(encoder, TransformerEncoder)
    spec = TransformerEncoderSpec(**_stack_options(config))
    _fill_stack(spec, spec.embeddings[0], encoder, config, rows)
    return spec


def _decoder_spec(
    decoder: AnyDecoder, config: TransformerConfig, rows: int, suppressed: Sequence[int]
) -> Any:
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec

    assert isinstance(decoder, TransformerDecoder)
    spec = TransformerDecoderSpec(
        **_stack_options(config),
        with_encoder_attention=bool(decoder.cross_attentions),
        alibi=config.positions == "alibi",
    )
    _fill_stack(spec, spec.embeddings, decoder, config, rows)
    spec.projection.weight = spec.embeddings.weight
    if decoder.project.weight is not decoder.embed_tokens.weight:
        spec.projection.weight = _array(decoder.project.weight)
    bias = decoder.project.bias
    if bias is None:
        spec.projection.bias = np.zeros(len(spec.projection.weight), np.float32)
    else:
        spec.projection.bias = _array(bias)
    spec.projection.bias[list(suppressed)] = NEVER
    spec.scale_outputs = decoder.project.scale
    return spec


def _stack_options(config: TransformerConfig) -> dict[str, Any]:
    """The arguments that encoders and decoders of CTranslate2 share."""
    from ctranslate2.specs.common_spec import Activation

    options: dict[str, Any] = {
        "num_layers": config.layers,
        "num_heads": config.heads,
        "num_heads_kv": config.kv_heads,
        "head_dim": config.head_dim,
        "pre_norm": config.norm_first,
        "layernorm_embedding": config.norm_input,
        "rms_norm": config.norm != "layer",
        "activation": Activation[ACTIVATIONS[GATED.get(config.activation, config.activation)]],
        "ffn_glu": config.activation in GATED,
        "relative_attention_bias": config.positions == "relative",
        "qk_norm": config.qk_norm,
    }
    if config.positions == "rotary":
        options["rotary_dim"] = 0
        options["rotary_interleave"] = False
        options["rotary_base"] = config.rotary_base
    return options


def _fill_stack(
    spec: Any,
    embeddings: Any,
    part: TransformerEncoder | TransformerDecoder,
    config: TransformerConfig,
    rows: int,
) -> None:
    embedding = token_embedding(part)
    embeddings.weight = _array(embedding.weight)
    scale = embedding.scale
    if part.input_layer.token_types is not None:
        embeddings.weight += _array(part.input_layer.token_types[0] / scale)
    spec.scale_embeddings = scale != 1.0
    if config.positions in ("sinusoidal", "learned", "none"):
        spec.position_encodings.encodings = _position_table(part, config.dim, rows)
    if config.norm_input:
        _fill_norm(spec.layernorm_embedding, part.input_layer.norm)
    if config.norm_first:
        _fill_norm(spec.layer_norm, part.stack.norm)
    for layer, block in zip(spec.layer, part.stack.layers, strict=True):
        _fill_layer(layer, block, config)
        bias = part.input_layer.relative_bias
        if isinstance(bias, RelativeBias):
            layer.self_attention.relative_attention_bias = _array(bias.table.T)
            layer.self_attention.relative_attention_max_distance = np.int32(bias.max_distance)


def _position_table(
    part: TransformerEncoder | TransformerDecoder, dim: int, rows: int
) -> np.ndarray:
    """The vector of each position. CTranslate2's own sinusoids count from one, with other wavelengths."""
    encoding = part.input_layer.position_encoding
    if encoding is None:
        return np.zeros((rows, dim), np.float32)
    positions = encoding.positions
    if isinstance(positions, Learned):
        rows = positions.limit
    device = token_embedding(part).weight.device
    return _array(positions(torch.arange(rows, device=device)))


def _fill_layer(spec: Any, block: TransformerBlock, config: TransformerConfig) -> None:
    _fill_attention(spec.self_attention, block.self_attn, block.norm1, config, joined=3)
    if block.cross_attn is not None:
        _fill_attention(spec.attention, block.cross_attn, block.norm2, config, joined=1)
    _fill_norm(spec.ffn.layer_norm, block.ffn_norm)
    if block.ffn.gate is None:
        _fill_linear(spec.ffn.linear_0, block.ffn.up)
    else:
        _fill_linear(spec.ffn.linear_0, block.ffn.gate)
        _fill_linear(spec.ffn.linear_0_noact, block.ffn.up)
    _fill_linear(spec.ffn.linear_1, block.ffn.down)


def _fill_attention(
    spec: Any, attention: MultiHead, norm: nn.Module, config: TransformerConfig, *, joined: int
) -> None:
    """Fill in the weights of one attention. The first `joined` of q, k and v are one matrix, the rest another."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    _fill_linear(spec.linear[0], *projections[:joined])
    if joined < len(projections):
        _fill_linear(spec.linear[1], *projections[joined:])
    _fill_linear(spec.linear[-1], attention.out_proj)
    _fill_norm(spec.layer_norm, norm)
    if attention.q_norm is not None and attention.k_norm is not None:
        _fill_norm(spec.q_norm, attention.q_norm)
        _fill_norm(spec.k_norm, attention.k_norm)
    if config.score == "dot":
        spec.queries_scale = 1.0


def _fill_linear(spec: Any, *layers: nn.Linear) -> None:
    spec.weight = np.concatenate([_array(layer.weight) for layer in layers])
    if any(layer.bias is not None for layer in layers):
        spec.bias = np.concatenate([_array(layer.bias) for layer in layers])


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _array(norm_gain(norm))
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    """A copy, because CTranslate2 quantizes in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
