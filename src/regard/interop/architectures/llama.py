"""Decoders in the style of Llama: Llama, Mistral, Qwen2, Qwen3 and Gemma."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from regard.core.config import Config, Count, Probability, Range, doc
from regard.core.errors import InvalidRecipe, Problem
from regard.interop.architectures.base import (
    Architecture,
    SharedKeys,
    contradiction,
    tied,
    transformer,
)
from regard.interop.rules import Rule
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
LayerKind = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True)
class RopeKeys(Config):
    """Rotary positions; scaled ones are refused."""

    rope_type: Literal["default"] = doc("default", "kind of scaling")
    type: Literal["default"] = doc("default", "the same in older files")
    rope_theta: Annotated[float, Range(1.0)] | None = doc(None, "base of the wavelengths")


@dataclass(frozen=True)
class LlamaKeys(SharedKeys):
    bos_token_id: int | None = doc(1, "the first token of a text")
    eos_token_id: int | tuple[int, ...] | None = doc(2, "the end of a text")
    hidden_size: Count = doc(4096, "dimension of the hidden states")
    intermediate_size: Count = doc(11008, "hidden dimension of the feed-forward networks")
    num_hidden_layers: Count = doc(32, "blocks")
    num_attention_heads: Count = doc(32, "query heads")
    num_key_value_heads: Count | None = doc(
        None, "heads of keys and values; left out: num_attention_heads"
    )
    head_dim: Count | None = doc(
        None, "dimension of a head; left out: hidden_size / num_attention_heads"
    )
    hidden_act: Literal["silu", "swish", "gelu", "gelu_pytorch_tanh"] = doc("silu", "of the gate")
    rms_norm_eps: Annotated[float, Range(0.0)] = doc(1e-6, "of the norms")
    rope_theta: Annotated[float, Range(1.0)] = doc(
        10_000.0, "base of the wavelengths of rotary positions"
    )
    rope_scaling: RopeKeys | None = doc(None, "scaling of rotary positions")
    rope_parameters: RopeKeys | None = doc(None, "rotary positions, in newer files")
    attention_bias: bool = doc(False, "biases in attention")
    mlp_bias: bool = doc(False, "biases in feed-forward networks")
    attention_dropout: Probability = doc(0.0, "of attention weights")
    max_position_embeddings: Annotated[int, Range(1.0, 1e7)] | None = doc(
        None, "longest text it was made for"
    )
    sliding_window: Count | None = doc(None, "positions that a position attends to")
    use_sliding_window: bool = doc(False, "whether there is a sliding window (Qwen)")
    max_window_layers: Annotated[int, Range(0.0)] = doc(
        28, "blocks before those with a window (Qwen)"
    )
    layer_types: tuple[LayerKind, ...] | None = doc(None, "whether each block has a window")
    vocab_size: Count = doc(32000, "rows of the embedding")
    tie_word_embeddings: bool = doc(False, "whether embedding and output layer share a matrix")


@dataclass(frozen=True)
class MistralKeys(LlamaKeys):
    intermediate_size: Count = doc(14336, "hidden dimension of the feed-forward networks")
    num_key_value_heads: Count | None = doc(8, "heads of keys and values")
    sliding_window: Count | None = doc(4096, "positions that a position attends to")


@dataclass(frozen=True)
class Qwen2Keys(LlamaKeys):
    bos_token_id: int | None = doc(None, "the first token of a text")
    eos_token_id: int | tuple[int, ...] | None = doc(None, "the end of a text")
    intermediate_size: Count = doc(22016, "hidden dimension of the feed-forward networks")
    num_key_value_heads: Count | None = doc(32, "heads of keys and values")
    sliding_window: Count | None = doc(4096, "positions that a position attends to")
    vocab_size: Count = doc(151936, "rows of the embedding")


@dataclass(frozen=True)
class Qwen3Keys(Qwen2Keys):
    head_dim: Count = doc(128, "dimension of a head")


@dataclass(frozen=True)
class GemmaKeys(LlamaKeys):
    pad_token_id: int | None = doc(0, "padding")
    bos_token_id: int | None = doc(2, "the first token of a text")
    eos_token_id: int | tuple[int, ...] | None = doc(1, "the end of a text")
    num_key_value_heads: Count = doc(16, "heads of keys and values")
    hidden_activation: str | None = doc(
        None, "of the gate, in some files in addition to hidden_act, with which it must agree"
    )
    hidden_size: Count = doc(3072, "dimension of the hidden states")
    num_hidden_layers: Count = doc(28, "blocks")
    num_attention_heads: Count = doc(16, "attention heads")
    intermediate_size: Count = doc(24576, "hidden dimension of the feed-forward networks")
    head_dim: Count = doc(256, "dimension of a head")
    hidden_act: Literal["silu", "swish", "gelu", "gelu_pytorch_tanh"] = doc(
        "gelu_pytorch_tanh", "of the gate"
    )
    vocab_size: Count = doc(256_000, "rows of the embedding")
    tie_word_embeddings: bool = doc(True, "whether embedding and output layer share a matrix")


class Llama(Architecture[LlamaKeys]):
    """Llama (https://arxiv.org/abs/2302.13971): pre-norm with RMSNorm, rotary positions, gated networks."""

    model_type = "llama"
    keys: type[LlamaKeys] = LlamaKeys
    classes = {"LlamaForCausalLM": "generation"}
    ignored = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
    unused = frozenset({"max_sequence_length", "pretraining_tp"})
    fixed = {"rope_interleaved": False, "use_mrope": False}
    norm: ClassVar[str] = "rms"
    scaled: ClassVar[bool] = False  # embeddings by the square root of their dimension
    qk_norm: ClassVar[bool] = False
    qkv_bias: ClassVar[bool] = False  # biases in the projections of queries, keys and values alone
    # The keys of biases that have an effect.
    takes: ClassVar[frozenset[str]] = frozenset({"attention_bias", "mlp_bias"})

    def read(self, config: Mapping[str, Any], head: str, where: Path) -> LlamaKeys:
        for key in ("rope_scaling", "rope_parameters"):
            given = config.get(key)
            kind = None
            if isinstance(given, dict):
                kind = given.get("rope_type", given.get("type"))
            # One refusal instead of one for each number of the scaling.
            if isinstance(kind, str) and kind != "default":
                wanted = "'default': scaled rotary positions are not imported"
                got = repr(kind)[:80]
                problem = Problem(f"{where}: {key}.rope_type", wanted, got, "Use another model.")
                raise InvalidRecipe([problem])
        return super().read(config, head, where)

    def problems(self, keys: LlamaKeys, head: str) -> Iterator[Problem]:
        window = self._window(keys)
        if isinstance(window, str):
            wanted = "a sliding window in all blocks, or in none"
            yield Problem("layer_types", wanted, window, "Use another model.")
        elif keys.layer_types is not None:
            kind = "full_attention" if window is None else "sliding_attention"
            if set(keys.layer_types) != {kind} or len(keys.layer_types) != keys.num_hidden_layers:
                wanted = f"{kind!r} for each of the {keys.num_hidden_layers} blocks"
                got = str(keys.layer_types)[:80]
                yield Problem("layer_types", wanted, got, "Use another model.")
        if self._activation(keys) not in ("swiglu", "geglu"):
            wanted = "'silu' or 'gelu_pytorch_tanh'"
            yield Problem("hidden_act", wanted, repr(keys.hidden_act), "Use another model.")

    def max_source_length(self, keys: LlamaKeys) -> int | None:
        return keys.max_position_embeddings

    def _activation(self, keys: LlamaKeys) -> str:
        gates = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu"}
        return gates.get(keys.hidden_act, keys.hidden_act)

    def _window(self, keys: LlamaKeys) -> int | str | None:
        """The sliding window of all blocks; None without one; the kinds as a text where only some blocks have it."""
        return None

    def table(self, keys: LlamaKeys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        ties = tied(tensors, HEAD, (EMBEDDING,), keys_say=keys.tie_word_embeddings)
        # Newer files have the base in a table, older ones as a key of its own.
        base = keys.rope_theta
        for rope in (keys.rope_scaling, keys.rope_parameters):
            if rope is not None and rope.rope_theta:
                base = rope.rope_theta
        attention_bias = "qkv" if self.qkv_bias else "none"
        if keys.attention_bias and "attention_bias" in self.takes:
            attention_bias = "all"
        decoder: dict[str, Any] = {
            "kind": "transformer",
            "dim": keys.hidden_size,
            "layers": keys.num_hidden_layers,
            "heads": keys.num_attention_heads,
            "head_dim": keys.head_dim or keys.hidden_size // keys.num_attention_heads,
            "kv_heads": keys.num_key_value_heads or keys.num_attention_heads,
            "ffn_dim": keys.intermediate_size,
            "activation": self._activation(keys),
            "dropout": 0.0,
            "attention_dropout": keys.attention_dropout,
            "norm": self.norm,
            "norm_eps": keys.rms_norm_eps,
            "positions": "rotary",
            "rotary_base": base,
            "attention_bias": attention_bias,
            "ffn_bias": keys.mlp_bias and "mlp_bias" in self.takes,
            "qk_norm": self.qk_norm,
        }
        window = self._window(keys)
        if window:
            decoder["sliding_window"] = window
        return {
            "decoder": decoder,
            "vocab_size": keys.vocab_size,
            "tie_embeddings": "target" if ties else "none",
            "scale_embeddings": self.scaled,
            "output_bias": False,
        }

    def rules(self, keys: LlamaKeys, model: ModelConfig) -> list[Rule]:
        block = [
            Rule("self_attn.q_proj.{p}", "self_attn.q_proj.{p}"),
            Rule("self_attn.k_proj.{p}", "self_attn.k_proj.{p}"),
            Rule("self_attn.v_proj.{p}", "self_attn.v_proj.{p}"),
            Rule("self_attn.o_proj.{p}", "self_attn.out_proj.{p}"),
            Rule("self_attn.q_norm.weight", "self_attn.q_norm.weight"),
            Rule("self_attn.k_norm.weight", "self_attn.k_norm.weight"),
            Rule("mlp.gate_proj.{p}", "ffn.gate.{p}"),
            Rule("mlp.up_proj.{p}", "ffn.up.{p}"),
            Rule("mlp.down_proj.{p}", "ffn.down.{p}"),
            Rule("input_layernorm.weight", "norm1.weight"),
            Rule("post_attention_layernorm.weight", "norm2.weight"),
        ]
        rules = [
            Rule(EMBEDDING, "decoder.embed_tokens.weight"),
            Rule("model.norm.weight", "decoder.stack.norm.weight"),
            *(rule.under("model.layers.{i}.", "decoder.stack.layers.{i}.") for rule in block),
        ]
        if model.options.tie_embeddings == "none":
            rules.append(Rule(HEAD, "decoder.project.weight"))
        return rules

    def copies(self, keys: LlamaKeys, model: ModelConfig) -> dict[str, tuple[str, ...]]:
        return {EMBEDDING: () if model.options.tie_embeddings == "none" else (HEAD,)}

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        decoder = transformer(model.decoder)
        if decoder is None or model.encoders:
            return {}
        keys = {
            "hidden_size": decoder.dim,
            "intermediate_size": decoder.ffn_dim,
            "num_hidden_layers": decoder.layers,
            "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.kv_heads or decoder.heads,
            "head_dim": decoder.dim_per_head,
            "hidden_act": "gelu_pytorch_tanh" if decoder.activation == "geglu" else "silu",
            "rms_norm_eps": decoder.norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": decoder.rotary_base},
            "rope_theta": decoder.rotary_base,  # for older versions of transformers
            "attention_bias": decoder.attention_bias == "all",
            "mlp_bias": decoder.ffn_bias,
            "attention_dropout": decoder.attention_dropout,
            "vocab_size": model.options.vocab_size,
            "tie_word_embeddings": model.options.tie_embeddings != "none",
        }
        for key in ("attention_bias", "mlp_bias"):
            if key not in self.takes:
                del keys[key]
        return keys


class Mistral(Llama):
    """Mistral (https://arxiv.org/abs/2310.06825): as Llama, with a sliding window."""

    model_type = "mistral"
    keys = MistralKeys
    classes = {"MistralForCausalLM": "generation"}
    takes = frozenset()

    def _window(self, keys: LlamaKeys) -> int | str | None:
        return keys.sliding_window

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        decoder = transformer(model.decoder)
        keys = super().export_keys(model)
        if decoder is not None and keys:
            return keys | {"sliding_window": decoder.sliding_window}
        return {}


class Qwen2(Llama):
    """Qwen2 (https://arxiv.org/abs/2407.10671): as Llama, with biases of queries, keys and values."""

    model_type = "qwen2"
    keys: type[LlamaKeys] = Qwen2Keys
    classes = {"Qwen2ForCausalLM": "generation"}
    qkv_bias = True
    takes = frozenset()

    def _window(self, keys: LlamaKeys) -> int | str | None:
        if not keys.use_sliding_window or keys.sliding_window is None:
            return None
        # The first blocks have no window.
        before = min(keys.max_window_layers, keys.num_hidden_layers)
        after = keys.num_hidden_layers - before
        kinds = keys.layer_types or ("full_attention",) * before + ("sliding_attention",) * after
        if len(set(kinds)) > 1:
            return ", ".join(dict.fromkeys(kinds))
        return keys.sliding_window if kinds[0] == "sliding_attention" else None

    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        decoder = transformer(model.decoder)
        keys = super().export_keys(model)
        if decoder is None or not keys or decoder.sliding_window is None:
            return keys
        return keys | {
            "use_sliding_window": True,
            "sliding_window": decoder.sliding_window,
            "max_window_layers": 0,
            "layer_types": ["sliding_attention"] * decoder.layers,
        }


class Qwen3(Qwen2):
    """Qwen3 (https://arxiv.org/abs/2505.09388): as Llama, with normalized queries and keys."""

    model_type = "qwen3"
    keys = Qwen3Keys
    classes = {"Qwen3ForCausalLM": "generation"}
    qkv_bias = False
    qk_norm = True
    takes = frozenset({"attention_bias"})


class Gemma(Llama):
    """Gemma (https://arxiv.org/abs/2403.08295): as Llama, with norms of gain 1 + weight and scaled embeddings."""

    model_type = "gemma"
    keys = GemmaKeys
    classes = {"GemmaForCausalLM": "generation"}
    norm = "rms_offset"
    scaled = True
    takes = frozenset({"attention_bias"})
    fixed = {**Llama.fixed, "use_bidirectional_attention": False}

    def contradictions(self, config: Mapping[str, Any], keys: LlamaKeys) -> Iterator[Problem]:
        yield from super().contradictions(config, keys)
        given = config.get("hidden_activation")
        if given is None:
            return
        same = {"gelu": "gelu_pytorch_tanh", "swish": "silu"}
        used = same.get(keys.hidden_act, keys.hidden_act)
        if same.get(given, given) != used:
            wanted = f"{keys.hidden_act!r}, as hidden_act"
            yield contradiction("hidden_activation", wanted, given)

    def _activation(self, keys: LlamaKeys) -> str:
        activation = super()._activation(keys)
        # Old files say gelu and mean its tanh form.
        return "geglu" if activation == "gelu" else activation
