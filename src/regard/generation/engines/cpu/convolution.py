"""A convolutional decoder's step in compiled C++ (convolution.h)."""

import ctypes
from dataclasses import dataclass, replace
from weakref import ref

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.generation.engines.cpu.compiled_decoder import (
    CompiledDecoder,
    StepCall,
    check_rows,
    scratch,
)
from regard.generation.engines.cpu.weight_layout import (
    Count,
    LinearTable,
    NormTable,
    Pointer,
    address,
    addresses,
    apply_linear,
    fields,
)
from regard.generation.engines.plain_transformer import is_plain_attention
from regard.generation.engines.published_attention import publish
from regard.generation.engines.transformer_weights import LinearWeights
from regard.model.convolution import ConvDecoder
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots, beam_rows, sequence_rows, write_rows
from regard.model.memory import Memory


class _LayerTable(ctypes.Structure):
    _fields_ = [
        ("norm", NormTable),
        *fields(LinearTable, "conv query out"),
        *fields(Count, "dilation span"),
    ]


class _DecoderTable(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_LayerTable)),
        ("project", LinearTable),
        ("final_norm", NormTable),
        ("embed_tokens", Pointer),
        *fields(Count, "vocab_size layer_count width taps heads has_cross_attn"),
        ("embed_scale", ctypes.c_float),
    ]


class _StepArguments(ctypes.Structure):
    _fields_ = [
        *fields(Pointer, "tokens seen sources mask"),
        *fields(Count, "batch beams source_length"),
        *fields(Pointer, "x taps gated query context scores normed logits queries slots"),
        ("places", Count),
    ]


@dataclass(frozen=True)
class NativeConvState(DecoderState):
    """The state of a convolutional decoder, whose tensors each step overwrites."""

    seen: list[
        Float[Tensor, "rows _ W"]
    ]  # the last inputs of each convolution, as many as it spans
    sources: list[Float[Tensor, "B S E"]]  # of each layer: keys and values of the memory
    mask: Tensor  # (B, S), uint8
    beams: int = 1

    def reorder(self, index: Int[Tensor, " n"]) -> "NativeConvState":
        rows = sequence_rows(index, self.beams, index.device)
        seen = [seen[rows] for seen in self.seen]
        sources = [source[index] for source in self.sources]
        return replace(self, seen=seen, sources=sources, mask=self.mask[index])

    def follow(self, parents: Int[Tensor, "B K"]) -> "NativeConvState":
        if self.beams == 1:
            return self
        rows = beam_rows(parents)
        return replace(self, seen=[seen.index_select(0, rows) for seen in self.seen])

    def admit(self, slots: Slots, fresh: "NativeConvState") -> "NativeConvState":
        rows = sequence_rows(slots, self.beams, self.mask.device)
        seen = [
            mine.index_copy(0, rows, new) for mine, new in zip(self.seen, fresh.seen, strict=True)
        ]
        sources = [
            write_rows(mine, slots, new)
            for mine, new in zip(self.sources, fresh.sources, strict=True)
        ]
        return replace(
            self, seen=seen, sources=sources, mask=write_rows(self.mask, slots, fresh.mask)
        )


def is_supported(decoder: ConvDecoder) -> bool:
    return all(is_plain_attention(attention) for attention in decoder.cross_attn)


class NativeConvDecoder(CompiledDecoder[NativeConvState]):
    """The compiled form of a convolutional decoder."""

    state_type = NativeConvState
    step_name = "regard_convolution_step"
    search_name = "regard_convolution_search"

    def __init__(self, decoder: ConvDecoder, library: ctypes.CDLL, *, int8: bool = False) -> None:
        super().__init__(decoder, library, int8=int8)
        layout = self.weights
        embedding = decoder.embed_tokens
        crosses = list(decoder.cross_attn)
        layers = []
        for number, layer in enumerate(decoder.layers):
            conv = LinearWeights(
                layer.conv.weight.mT.flatten(1), layer.conv.bias
            )  # (2 · W, taps · W)
            pair = [LinearTable(), LinearTable()]
            if crosses:
                pair = [
                    layout.linear(crosses[number].q_proj),
                    layout.linear(crosses[number].out_proj),
                ]
            sizes = layer.conv.dilation[0], layer.span
            layers.append(_LayerTable(layout.norm(layer.norm), layout.linear(conv), *pair, *sizes))
        taps = decoder.layers[0].conv.kernel_size[0]
        self.table = _DecoderTable(
            (_LayerTable * len(layers))(*layers), layout.linear(decoder.project), layout.norm(decoder.norm),
            layout.copy(embedding.weight), len(embedding.weight), len(layers), decoder.dim, taps,
            crosses[0].heads if crosses else 1, bool(crosses), embedding.scale,
        )  # fmt: skip
        self.spans = [layer.span for layer in decoder.layers]
        self.source_projections = [layout.linear(cross.k_proj, cross.v_proj) for cross in crosses]
        self.attentions = [ref(cross) for cross in crosses]

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int = 0, beams: int = 1
    ) -> NativeConvState:
        sources = list[Tensor]()
        mask = torch.zeros(batch, 0, dtype=torch.uint8)
        if memory is not None:
            sources = [
                apply_linear(self.library, layer, memory.states)
                for layer in self.source_projections
            ]
            mask = memory.mask.to(torch.uint8)
        seen = [torch.zeros(batch * beams, span, self.table.width) for span in self.spans]
        return NativeConvState(seen, sources, mask, beams)

    def prepare(self, state: NativeConvState) -> NativeConvState:
        seen = [each.contiguous() for each in state.seen]
        sources = [each.contiguous() for each in state.sources]
        return replace(state, seen=seen, sources=sources, mask=state.mask.contiguous())

    def queries(self, tokens: Int[Tensor, " rows"], state: NativeConvState) -> Tensor | None:
        if not state.sources:
            return None
        return torch.empty(len(self.attentions), len(tokens), self.table.width)

    def publish(self, queries: Float[Tensor, "layers rows W"], state: NativeConvState) -> None:
        visible = state.mask.bool()[:, None]
        for attention, query, source in zip(self.attentions, queries, state.sources, strict=True):
            key_value = source.view(*state.mask.shape, 2, -1)
            rows = query.view(len(state.mask), state.beams, -1)
            publish(attention(), rows, key_value, visible, self.table.heads)

    def step_call(
        self,
        tokens: Int[Tensor, " rows"],
        state: NativeConvState,
        steps: int,
        queries: Tensor | None,
    ) -> StepCall:
        table = self.table
        rows = len(tokens)
        width = table.width
        length = state.mask.shape[1]
        check_rows(rows, len(state.seen[0]))
        tokens = tokens.contiguous()
        parts = scratch(rows, [width, table.taps * width, 2 * width, width, width, length, width])
        logits = torch.empty(rows, self.vocab_size)
        pointers = (addresses(state.seen), addresses(state.sources))
        arguments = _StepArguments(
            tokens.data_ptr(), *(ctypes.cast(each, Pointer) for each in pointers), state.mask.data_ptr(),
            rows // state.beams, state.beams,
            length, *(part.data_ptr() for part in parts), logits.data_ptr(),
            address(queries), None, rows // state.beams,
        )  # fmt: skip
        return StepCall(arguments, logits, [tokens, pointers, *parts])
