"""Graphs of decoders: the next tokens of each sequence and the state before them to logits and the state after them.

One graph serves the first call, with a whole prompt, and single steps. Each input `past_key_values.X` is the output
`present.X` of the call before; in the first call it is the `present.X` of the encoder's graph, or else zeros, whose
axes named past have length 0. So no branch is needed for the first call: keys and values of the encoder's states are
projected for those states that have none in the past, all of them or none.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.interop.onnx.graph import Graph, GraphInput, Tensors, attention_outputs
from regard.model.convolution import ConvDecoder
from regard.model.interfaces import AnyDecoder
from regard.model.kv_cache import KeyValue, KeyValueCache
from regard.model.multihead import MultiHead
from regard.model.rnn_decoder import RnnDecoder
from regard.model.rnn_state import RnnMemory
from regard.model.transformer import TransformerDecoder
from regard.model.transformer_block import StepInputs

PAST, PRESENT = "past_key_values", "present"


@dataclass(frozen=True)
class MemoryInputs:
    """The states of an encoder, as the decoder's graph reads them."""

    dim: int
    masked: bool  # whether they come with a mask: not those of images or labels
    cls_tokens: int = 0  # learned states before those that the mask counts

    def inputs(self) -> list[GraphInput]:
        mask = GraphInput("encoder_attention_mask", ("batch_size", "encoder_sequence"), torch.int64)
        length = (
            f"encoder_sequence + {self.cls_tokens}"
            if self.masked and self.cls_tokens
            else "encoder_sequence"
        )
        states = GraphInput("encoder_hidden_states", ("batch_size", length, self.dim))
        return [mask, states] if self.masked else [states]

    def mask(self, given: Tensors) -> Bool[Tensor, "B S"]:
        if self.masked:
            return F.pad(given["encoder_attention_mask"], (self.cls_tokens, 0), value=1) != 0
        return torch.ones_like(given["encoder_hidden_states"][:, :, 0], dtype=torch.bool)


DecoderType = TypeVar("DecoderType", bound=AnyDecoder)


class DecoderGraph(Graph, Generic[DecoderType]):
    """What the graphs of all decoders share: tokens and the encoder's states in, logits out."""

    decoder: DecoderType

    def __init__(
        self, decoder: DecoderType, memory: MemoryInputs | None, *, attention: bool
    ) -> None:
        super().__init__()
        self.name = "model" if memory is None else "decoder_model_merged"
        self.decoder, self.attention = decoder, attention
        self.memory = memory if decoder.cross_attentions else None
        tokens = GraphInput("input_ids", ("batch_size", "sequence"), torch.int64)
        self.inputs = [
            tokens,
            *([] if self.memory is None else self.memory.inputs()),
            *self.state_inputs(),
        ]

    @abstractmethod
    def state_inputs(self) -> list[GraphInput]:
        """The state before the tokens: names that begin with PAST, and masks."""

    @abstractmethod
    def advance(
        self, tokens: Int[Tensor, "B T"], given: Tensors
    ) -> tuple[Float[Tensor, "B T W"], Tensors]:
        """Hidden states of the tokens, and other outputs: the state after them and attention weights."""

    def run(self, given: Tensors) -> Tensors:
        hidden, outputs = self.advance(given["input_ids"], given)
        return {"logits": self.decoder.project(hidden), **outputs}

    def memory_mask(self, given: Tensors) -> Bool[Tensor, "B 1 S"] | None:
        return None if self.memory is None else self.memory.mask(given)[:, None]


class GrowingCache(KeyValueCache):
    """A cache of given keys and values, to which more are concatenated."""

    def __init__(self, past: KeyValue) -> None:
        self._filled, self.length = past, past.key.shape[2]

    @property
    def filled(self) -> KeyValue:
        return self._filled

    def append(self, new: KeyValue) -> None:
        self._filled = _concatenated(self._filled, new)


class TransformerGraph(DecoderGraph[TransformerDecoder]):
    """A Transformer decoder. Without an encoder, prompts may be padded on the left, with an attention_mask."""

    def state_inputs(self) -> list[GraphInput]:
        own, inputs = "" if self.memory is None else "decoder.", list[GraphInput]()
        for i, block in enumerate(self.decoder.stack.layers):
            inputs += _key_value_inputs(f"{i}.{own}", block.self_attn, "past")
            if block.cross_attn is not None:
                inputs += _key_value_inputs(f"{i}.encoder.", block.cross_attn, "encoder_past")
        if self.memory is None:
            inputs.append(
                GraphInput("attention_mask", ("batch_size", "past + sequence"), torch.int64)
            )
        return inputs

    def advance(
        self, tokens: Int[Tensor, "B T"], given: Tensors
    ) -> tuple[Float[Tensor, "B T W"], Tensors]:
        decoder, own = self.decoder, "" if self.memory is None else "decoder."
        before, new = given[f"{PAST}.0.{own}key"].shape[2], tokens.shape[1]
        positions, visible = (
            (torch.arange(new, device=tokens.device) + before)[None],
            None,
        )  # (1, T)
        if self.memory is None:
            mask = given["attention_mask"]  # (B, past + T)
            visible, positions = (
                (mask != 0)[:, None],
                (mask.cumsum(1) - 1).clamp(min=0)[:, before:],
            )  # of padding: any that exists
        bias, memory_mask = decoder.input_layer.bias(new, before + new), self.memory_mask(given)
        inputs, outputs, names = list[StepInputs](), Tensors(), dict[nn.Module, str]()
        for i, block in enumerate(decoder.stack.layers):
            cache, memory = GrowingCache(_past(given, f"{i}.{own}")), None
            names[block.self_attn] = f"decoder_attentions.{i}"
            if block.cross_attn is not None:
                memory = _memory(block.cross_attn, given, f"{i}.encoder.")
                names[block.cross_attn] = f"cross_attentions.{i}"
            inputs.append(
                StepInputs(cache, bias, (decoder.window, 0), visible, None, memory, memory_mask)
            )
        with attention_outputs(names if self.attention else None) as weights:
            hidden = decoder.stack(
                decoder.input_layer(decoder.embed_tokens(tokens), positions), inputs
            )
        for i, each in enumerate(inputs):
            outputs |= _present(each.cache.filled, f"{i}.{own}")
            outputs |= {} if each.memory is None else _present(each.memory, f"{i}.encoder.")
        return hidden, outputs | weights


class ConvGraph(DecoderGraph[ConvDecoder]):
    """A convolutional decoder. Its state are the last inputs of each convolution."""

    def state_inputs(self) -> list[GraphInput]:
        inputs = list[GraphInput]()
        for i, layer in enumerate(self.decoder.layers):
            inputs.append(
                GraphInput(f"{PAST}.{i}.decoder.conv", ("batch_size", layer.span, self.decoder.dim))
            )
            if self.memory is not None:
                inputs += _key_value_inputs(
                    f"{i}.encoder.", self.decoder.cross_attn[i], "encoder_past"
                )
        return inputs

    def advance(
        self, tokens: Int[Tensor, "B T"], given: Tensors
    ) -> tuple[Float[Tensor, "B T W"], Tensors]:
        decoder, mask, outputs = self.decoder, self.memory_mask(given), Tensors()
        names = {each: f"cross_attentions.{i}" for i, each in enumerate(decoder.cross_attn)}
        x = decoder.embed_tokens(tokens)
        with attention_outputs(names if self.attention else None) as weights:
            for i, layer in enumerate(decoder.layers):
                x, outputs[f"{PRESENT}.{i}.decoder.conv"] = layer.step(
                    x, given[f"{PAST}.{i}.decoder.conv"]
                )
                if mask is not None:
                    memory = _memory(decoder.cross_attn[i], given, f"{i}.encoder.")
                    outputs |= _present(memory, f"{i}.encoder.")
                    x = x + decoder.cross_attn[i].attend_memory(x, memory, mask=mask)
        return decoder.norm(x), outputs | weights


class RnnGraph(DecoderGraph[RnnDecoder]):
    """A recurrent decoder. The encoder's graph gives its first state."""

    def state_inputs(self) -> list[GraphInput]:
        state = self.decoder.start(None, batch=1).tensors()
        state["context"] = state["context"].new_zeros(
            1, self.decoder.feed_dim if self.decoder.attention != "bahdanau" else 0
        )
        inputs = [
            GraphInput(f"{PAST}.{name}", ("batch_size", *x.shape[1:]))
            for name, x in state.items()
            if x.shape[-1]
        ]
        if self.memory is not None and self.decoder.score is not None:
            dim = self.decoder.score.keys(torch.zeros(1, 1, self.memory.dim)).shape[-1]
            inputs.append(GraphInput(f"{PAST}.encoder.key", ("batch_size", "encoder_past", dim)))
        return inputs

    def advance(
        self, tokens: Int[Tensor, "B T"], given: Tensors
    ) -> tuple[Float[Tensor, "B T W"], Tensors]:
        decoder, mask, outputs = self.decoder, self.memory_mask(given), Tensors()
        state = decoder.start(None, batch=tokens.shape[0])
        state = state.with_tensors(
            {name: given.get(f"{PAST}.{name}", x) for name, x in state.tensors().items()}
        )
        if mask is not None and decoder.score is not None:
            states, keys = given["encoder_hidden_states"], given[f"{PAST}.encoder.key"]
            keys = torch.cat((keys, decoder.score.keys(_states_after(given, keys.shape[1]))), 1)
            state = replace(state, memory=RnnMemory(keys, states, mask))
            outputs[f"{PRESENT}.encoder.key"] = keys
        weights = list[Tensor]()
        hidden, state = decoder.carry(tokens, state, weights)
        outputs |= {
            f"{PRESENT}.{name}": x
            for name, x in state.tensors().items()
            if f"{PAST}.{name}" in given
        }
        if self.attention and weights:
            outputs["cross_attentions.0"] = torch.cat(weights, 1)[:, None]
        return hidden, outputs


# The graph of each kind of decoder.
DECODER_GRAPHS: dict[type[AnyDecoder], type[DecoderGraph[Any]]] = {
    TransformerDecoder: TransformerGraph,
    ConvDecoder: ConvGraph,
    RnnDecoder: RnnGraph,
}


def _key_value_inputs(prefix: str, attention: MultiHead, past: str) -> list[GraphInput]:
    empty = attention.project_memory(torch.zeros(1, 0, attention.source_dim))
    both = (("key", empty.key), ("value", empty.value))
    return [
        GraphInput(f"{PAST}.{prefix}{name}", ("batch_size", x.shape[1], past, x.shape[3]))
        for name, x in both
    ]


def _past(given: Tensors, prefix: str) -> KeyValue:
    return KeyValue(given[f"{PAST}.{prefix}key"], given[f"{PAST}.{prefix}value"])


def _present(filled: KeyValue, prefix: str) -> Tensors:
    return {f"{PRESENT}.{prefix}key": filled.key, f"{PRESENT}.{prefix}value": filled.value}


def _memory(attention: MultiHead, given: Tensors, prefix: str) -> KeyValue:
    """Keys and values of the encoder's states: those of the past, and projections of the states after these."""
    past = _past(given, prefix)
    return _concatenated(past, attention.project_memory(_states_after(given, past.key.shape[2])))


def _states_after(given: Tensors, past: int) -> Float[Tensor, "B S W"]:
    """The encoder's states after those that have keys and values in the past."""
    states = given["encoder_hidden_states"]
    torch._check(past <= states.shape[1])  # type: ignore[no-untyped-call]
    return states[:, past:]


def _concatenated(first: KeyValue, second: KeyValue) -> KeyValue:
    return KeyValue(
        torch.cat((first.key, second.key), 2), torch.cat((first.value, second.value), 2)
    )
