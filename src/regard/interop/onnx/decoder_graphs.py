"""Graphs of decoders, which turn tokens and the state before them into logits and the state after them.

One graph serves the first call, with a whole prompt, and single steps. Each input `past_key_values.X` is the output
`present.X` of the call before. In the first call it is the `present.X` of the encoder's graph, or else zeros, with
length 0 on the axes named past. So the first call needs no branch: keys and values of the encoder's states are
projected for the states that have none in the past, which are all of them or none.
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

PAST = "past_key_values"
PRESENT = "present"


@dataclass(frozen=True)
class MemoryInputs:
    """The states of an encoder, as the decoder's graph reads them."""

    dim: int
    masked: bool  # whether they come with a mask: not those of images or labels
    cls_tokens: int = 0  # learned states before those that the mask counts

    def inputs(self) -> list[GraphInput]:
        mask = GraphInput("encoder_attention_mask", ("batch_size", "encoder_sequence"), torch.int64)
        length = "encoder_sequence"
        if self.masked and self.cls_tokens:
            length = f"encoder_sequence + {self.cls_tokens}"
        states = GraphInput("encoder_hidden_states", ("batch_size", length, self.dim))
        if self.masked:
            return [mask, states]
        return [states]

    def mask(self, given: Tensors) -> Bool[Tensor, "B S"]:
        if self.masked:
            mask = given["encoder_attention_mask"]
            return F.pad(mask, (self.cls_tokens, 0), value=1) != 0
        states = given["encoder_hidden_states"]
        return torch.ones_like(states[:, :, 0], dtype=torch.bool)


DecoderType = TypeVar("DecoderType", bound=AnyDecoder)


class DecoderGraph(Graph, Generic[DecoderType]):
    """What the graphs of all decoders share: tokens and the encoder's states in, logits out."""

    decoder: DecoderType

    def __init__(
        self, decoder: DecoderType, memory: MemoryInputs | None, *, attention: bool
    ) -> None:
        super().__init__()
        self.name = "model" if memory is None else "decoder_model_merged"
        self.decoder = decoder
        self.attention = attention
        self.memory = memory if decoder.cross_attentions else None
        self.inputs = [GraphInput("input_ids", ("batch_size", "sequence"), torch.int64)]
        if self.memory is not None:
            self.inputs += self.memory.inputs()
        self.inputs += self.state_inputs()

    @abstractmethod
    def state_inputs(self) -> list[GraphInput]:
        """The state before the tokens: names that begin with PAST, and masks."""

    @abstractmethod
    def advance(
        self, tokens: Int[Tensor, "B T"], given: Tensors
    ) -> tuple[Float[Tensor, "B T W"], Tensors]:
        """Compute hidden states of the tokens, and other outputs: the state after them and attention weights."""

    def run(self, given: Tensors) -> Tensors:
        hidden, outputs = self.advance(given["input_ids"], given)
        return {"logits": self.decoder.project(hidden), **outputs}

    def memory_mask(self, given: Tensors) -> Bool[Tensor, "B 1 S"] | None:
        if self.memory is None:
            return None
        return self.memory.mask(given)[:, None]


class GrowingCache(KeyValueCache):
    """A cache of given keys and values, to which more are concatenated."""

    def __init__(self, past: KeyValue) -> None:
        self._filled = past
        self.length = past.key.shape[2]

    @property
    def filled(self) -> KeyValue:
        return self._filled

    def append(self, new: KeyValue) -> None:
        self._filled = _concatenated(self._filled, new)


class TransformerGraph(DecoderGraph[TransformerDecoder]):
    """A Transformer decoder. Without an encoder, prompts may be padded on the left, with an attention_mask."""

    def state_inputs(self) -> list[GraphInput]:
        own = "" if self.memory is None else "decoder."
        inputs = list[GraphInput]()
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
        decoder = self.decoder
        own = "" if self.memory is None else "decoder."
        before = given[f"{PAST}.0.{own}key"].shape[2]
        new = tokens.shape[1]
        positions = (torch.arange(new, device=tokens.device) + before)[None]  # (1, T)
        visible = None
        if self.memory is None:
            mask = given["attention_mask"]  # (B, past + T)
            visible = (mask != 0)[:, None]  # (B, 1, past + T)
            # Padding on the left has no position of its own: any that exists will do.
            every_position = (mask.cumsum(1) - 1).clamp(min=0)
            positions = every_position[:, before:]  # (B, T)
        bias = decoder.input_layer.bias(new, before + new)
        memory_mask = self.memory_mask(given)
        inputs = list[StepInputs]()
        outputs = Tensors()
        names = dict[nn.Module, str]()
        for i, block in enumerate(decoder.stack.layers):
            cache = GrowingCache(_past(given, f"{i}.{own}"))
            memory = None
            names[block.self_attn] = f"decoder_attentions.{i}"
            if block.cross_attn is not None:
                memory = _memory(block.cross_attn, given, f"{i}.encoder.")
                names[block.cross_attn] = f"cross_attentions.{i}"
            window = (decoder.window, 0)
            inputs.append(StepInputs(cache, bias, window, visible, None, memory, memory_mask))
        with attention_outputs(names if self.attention else None) as weights:
            embedded = decoder.embed_tokens(tokens)  # (B, T, W)
            hidden = decoder.stack(decoder.input_layer(embedded, positions), inputs)  # (B, T, W)
        for i, each in enumerate(inputs):
            outputs |= _present(each.cache.filled, f"{i}.{own}")
            if each.memory is not None:
                outputs |= _present(each.memory, f"{i}.encoder.")
        return hidden, outputs | weights


class ConvGraph(DecoderGraph[ConvDecoder]):
    """A convolutional decoder. Its state is the last inputs of each convolution."""

    def state_inputs(self) -> list[GraphInput]:
        inputs = list[GraphInput]()
        for i, layer in enumerate(self.decoder.layers):
            axes = ("batch_size", layer.span, self.decoder.dim)
            inputs.append(GraphInput(f"{PAST}.{i}.decoder.conv", axes))
            if self.memory is not None:
                attention = self.decoder.cross_attn[i]
                inputs += _key_value_inputs(f"{i}.encoder.", attention, "encoder_past")
        return inputs

    def advance(
        self, tokens: Int[Tensor, "B T"], given: Tensors
    ) -> tuple[Float[Tensor, "B T W"], Tensors]:
        decoder = self.decoder
        mask = self.memory_mask(given)
        outputs = Tensors()
        names = {each: f"cross_attentions.{i}" for i, each in enumerate(decoder.cross_attn)}
        x = decoder.embed_tokens(tokens)
        with attention_outputs(names if self.attention else None) as weights:
            for i, layer in enumerate(decoder.layers):
                x, after = layer.step(x, given[f"{PAST}.{i}.decoder.conv"])
                outputs[f"{PRESENT}.{i}.decoder.conv"] = after
                if mask is not None:
                    memory = _memory(decoder.cross_attn[i], given, f"{i}.encoder.")
                    outputs |= _present(memory, f"{i}.encoder.")
                    x = x + decoder.cross_attn[i].attend_memory(x, memory, mask=mask)
        return decoder.norm(x), outputs | weights


class RnnGraph(DecoderGraph[RnnDecoder]):
    """A recurrent decoder. The encoder's graph gives its first state."""

    def state_inputs(self) -> list[GraphInput]:
        state = self.decoder.start(None, batch=1).tensors()
        # Bahdanau attention reads no context of the step before.
        context_dim = self.decoder.feed_dim if self.decoder.attention != "bahdanau" else 0
        state["context"] = state["context"].new_zeros(1, context_dim)
        inputs = []
        for name, x in state.items():
            if x.shape[-1]:
                inputs.append(GraphInput(f"{PAST}.{name}", ("batch_size", *x.shape[1:])))
        if self.memory is not None and self.decoder.score is not None:
            example = torch.zeros(1, 1, self.memory.dim)
            dim = self.decoder.score.keys(example).shape[-1]
            inputs.append(GraphInput(f"{PAST}.encoder.key", ("batch_size", "encoder_past", dim)))
        return inputs

    def advance(
        self, tokens: Int[Tensor, "B T"], given: Tensors
    ) -> tuple[Float[Tensor, "B T W"], Tensors]:
        decoder = self.decoder
        mask = self.memory_mask(given)
        outputs = Tensors()
        state = decoder.start(None, batch=tokens.shape[0])
        past = {name: given.get(f"{PAST}.{name}", x) for name, x in state.tensors().items()}
        state = state.with_tensors(past)
        if mask is not None and decoder.score is not None:
            states = given["encoder_hidden_states"]  # (B, S, W)
            keys = given[f"{PAST}.encoder.key"]
            new_keys = decoder.score.keys(_states_after(given, keys.shape[1]))
            keys = torch.cat((keys, new_keys), 1)
            state = replace(state, memory=RnnMemory(keys, states, mask))
            outputs[f"{PRESENT}.encoder.key"] = keys
        weights = list[Tensor]()
        hidden, state = decoder.carry(tokens, state, weights)
        for name, x in state.tensors().items():
            if f"{PAST}.{name}" in given:
                outputs[f"{PRESENT}.{name}"] = x
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
    inputs = []
    for name, x in (("key", empty.key), ("value", empty.value)):
        axes = ("batch_size", x.shape[1], past, x.shape[3])
        inputs.append(GraphInput(f"{PAST}.{prefix}{name}", axes))
    return inputs


def _past(given: Tensors, prefix: str) -> KeyValue:
    return KeyValue(given[f"{PAST}.{prefix}key"], given[f"{PAST}.{prefix}value"])


def _present(filled: KeyValue, prefix: str) -> Tensors:
    return {f"{PRESENT}.{prefix}key": filled.key, f"{PRESENT}.{prefix}value": filled.value}


def _memory(attention: MultiHead, given: Tensors, prefix: str) -> KeyValue:
    """Keys and values of the encoder's states: the past ones, and projections of the states that have none yet."""
    past = _past(given, prefix)
    states = _states_after(given, past.key.shape[2])
    return _concatenated(past, attention.project_memory(states))


def _states_after(given: Tensors, past: int) -> Float[Tensor, "B S W"]:
    """The encoder's states after those that have keys and values in the past."""
    states = given["encoder_hidden_states"]
    torch._check(past <= states.shape[1])  # type: ignore[no-untyped-call]
    return states[:, past:]


def _concatenated(first: KeyValue, second: KeyValue) -> KeyValue:
    key = torch.cat((first.key, second.key), 2)
    value = torch.cat((first.value, second.value), 2)
    return KeyValue(key, value)
