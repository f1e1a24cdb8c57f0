"""Dilated 1-D convolutions as encoder and decoder:
the receptive field grows exponentially with depth.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.config import Count, Probability, doc
from regard.core.errors import Problem
from regard.core.sequence import PackedSequences, Packing
from regard.core.shapes import Bool, Float, Int, Shaped, Tensor
from regard.kernels.layers.conv_unfold import Neighbors, unfold
from regard.kernels.layers.dropout import Dropout
from regard.kernels.layers.linear import linear
from regard.kernels.layers.residual_norm import PendingResidual, add_norm
from regard.model.inputs import InputModule, InputVectors
from regard.model.interfaces import Decoder, DecoderState, SequenceEncoder
from regard.model.kv_cache import LayerMemories, Slots, beam_rows, sequence_rows
from regard.model.memory import Memory, PackedMemory, last_state, masked_mean
from regard.model.module_list import TypedModuleList
from regard.model.multihead import MultiHead
from regard.model.part_config import (
    NO_SOURCE,
    DecoderConfig,
    EncoderConfig,
    UnusedKeys,
    not_packable_score,
)
from regard.model.scores import ScoreName
from regard.model.vector_embedding import TargetEmbedding, TargetProjection
from regard.model.word_vector_keys import WordVectorKeys

NO_DROPOUT = Dropout(0.0)


@dataclass(frozen=True)
class ConvConfig(WordVectorKeys, EncoderConfig, DecoderConfig):
    dim: Count = doc(256, "dimension of the hidden states")
    kernel_size: Count = doc(3, "kernel size of the convolutions")
    dilations: tuple[Count, ...] = doc((1, 2, 4, 8), "dilation of each layer")
    dropout: Probability = doc(0.1, "dropout of embeddings and of each layer's output")
    causal: bool = doc(False, "encoders: see earlier positions only; decoders always do")
    score: ScoreName = doc("scaled_dot", "attention score function of a decoder")
    heads: Count = doc(1, "attention heads of a decoder")

    def conflicts(self) -> Iterator[Problem]:
        if self.dim % self.heads:
            yield Problem(
                "heads", f"a divisor of dim = {self.dim}", str(self.heads), "Change one of the two."
            )

    def not_packable(self) -> str | None:
        return not_packable_score(self.score)

    def unused_as_encoder(self, decoder: DecoderConfig | None) -> UnusedKeys:
        return ((key, "this encoder has no attention") for key in ("score", "heads"))

    def unused_as_decoder(self, *, has_memory: bool) -> UnusedKeys:
        yield "causal", "a decoder is always causal"
        if not has_memory:
            yield from ((key, NO_SOURCE) for key in ("score", "heads"))


class ConvLayer(nn.Module):
    """x + GLU(conv(norm(x))) (https://arxiv.org/abs/1705.03122),
    padded on the left only where causal.
    """

    def __init__(self, config: ConvConfig, dilation: int, *, causal: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.conv = nn.Conv1d(config.dim, 2 * config.dim, config.kernel_size, dilation=dilation)
        self.dropout = Dropout(config.dropout)
        # Positions between the first and the last tap.
        self.span = (config.kernel_size - 1) * dilation
        self.right_padding = 0 if causal else self.span // 2

    def forward(
        self, x: Float[Tensor, "B S W"], mask: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B S W"]:
        h = self.norm(x)
        if mask is not None:
            # Padding must equal what the convolution pads with.
            h = h.masked_fill(~mask[..., None], 0.0)
        h = F.pad(h.mT, (self.span - self.right_padding, self.right_padding))  # (B, W, S + span)
        return x + self._gated(h)

    def forward_packed(
        self, given: PendingResidual, dropout: Dropout, sides: Neighbors
    ) -> PendingResidual:
        """As `forward`, for packed sequences;
        `dropout` is applied to the pending residual of `given`.
        """
        x, h = add_norm(given, dropout, self.norm)  # (N, W)
        offsets = range(self.right_padding - self.span, self.right_padding + 1, *self.conv.dilation)
        seen = unfold(h, sides, offsets)  # (N, K · W)
        out = linear(seen, self.conv.weight.mT.flatten(1), self.conv.bias)  # (N, 2 · W)
        return PendingResidual(x, F.glu(out, -1))

    def step(
        self, x: Float[Tensor, "B N W"], seen: Float[Tensor, "B span W"]
    ) -> tuple[Float[Tensor, "B N W"], Float[Tensor, "B span W"]]:
        """N more positions, given the last `span` inputs of the convolution; and those inputs,
        shifted by N.
        """
        window = torch.cat((seen, self.norm(x)), 1)
        return x + self._gated(window.mT), window[:, x.shape[1] :]

    def _gated(self, h: Float[Tensor, "B W S"]) -> Tensor:
        out: Tensor = self.dropout(F.glu(self.conv(h), dim=1)).mT
        return out


class ConvEncoder(SequenceEncoder):
    """A convolutional encoder."""

    packable = True

    def __init__(self, config: ConvConfig, input_module: InputModule) -> None:
        super().__init__(input_module)
        self.dim = config.dim
        self.causal = config.causal
        self.layers = TypedModuleList[ConvLayer](
            ConvLayer(config, d, causal=config.causal) for d in config.dilations
        )
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)

    def encode(self, vectors: InputVectors) -> Memory:
        x = self.dropout(vectors.states())  # (B, S, W)
        mask = vectors.mask
        for layer in self.layers:
            x = layer(x, mask)
        states = self.norm(x)
        summary = last_state(states, mask) if self.causal else masked_mean(states, mask)
        return Memory(states, mask, summary)

    def forward_packed(self, source: PackedSequences) -> PackedMemory:
        given = PendingResidual(self.dropout(self.input_module.read_packed(source)))
        sides = Neighbors.of(source.offsets)
        for layer in self.layers:
            given = layer.forward_packed(given, self.dropout, sides)
        return PackedMemory(add_norm(given, self.dropout, self.norm)[1], source.offsets)


@dataclass(frozen=True)
class ConvState(DecoderState):
    """The state of a convolutional decoder, of K hypotheses for each of B sequences."""

    # The last inputs of each convolution, as many as it spans.
    seen: list[Float[Tensor, "rows _ W"]]
    memory: LayerMemories | None
    beams: int = 1

    def reorder(self, index: Int[Tensor, " n"]) -> "ConvState":
        rows = sequence_rows(index, self.beams, index.device)
        memory = self.memory
        if memory is not None:
            memory = memory.reorder(index)
        return replace(self, seen=[seen[rows] for seen in self.seen], memory=memory)

    def follow(self, parents: Int[Tensor, "B K"]) -> "ConvState":
        if self.beams == 1:
            return self
        rows = beam_rows(parents)
        return replace(self, seen=[seen[rows] for seen in self.seen])

    def admit(self, slots: Slots, fresh: "ConvState") -> "ConvState":
        rows = sequence_rows(slots, self.beams, self.seen[0].device)
        memory = self.memory
        seen = [
            mine.index_copy(0, rows, new) for mine, new in zip(self.seen, fresh.seen, strict=True)
        ]
        if memory is not None and fresh.memory is not None:
            memory = memory.write(slots, fresh.memory)
        return replace(self, seen=seen, memory=memory)


class ConvDecoder(Decoder[ConvState]):
    """A convolutional decoder with cross-attention after every layer."""

    extrapolates = True
    packable = True

    def __init__(
        self,
        config: ConvConfig,
        embedding: TargetEmbedding,
        project: TargetProjection,
        memory_dim: int | None,
    ) -> None:
        super().__init__()
        self.embed_tokens = embedding
        self.project = project
        self.dim = config.dim
        self.layers = TypedModuleList[ConvLayer](
            ConvLayer(config, d, causal=True) for d in config.dilations
        )
        layers = 0 if memory_dim is None else len(config.dilations)
        self.cross_attn = TypedModuleList[MultiHead](
            MultiHead(config.dim, config.heads, source_dim=memory_dim, score=config.score)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)

    @property
    def cross_attentions(self) -> list[MultiHead]:
        return list(self.cross_attn)

    def hidden(
        self,
        targets: Shaped[Tensor, "B T *each"],
        memory: Memory | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "*lead W"]:
        x = self.dropout(self.embed_tokens(targets))
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if memory is not None:
                x = x + self.cross_attn[i](x, memory.states, mask=memory.mask[:, None])
        if packing is not None:
            x = packing.pack(x)
        normed: Tensor = self.norm(x)
        return normed

    def hidden_packed(
        self, targets: PackedSequences, memory: Memory | PackedMemory | None
    ) -> Float[Tensor, "N W"]:
        assert not isinstance(memory, Memory)
        given = PendingResidual(self.dropout(self.embed_tokens(targets.items)))
        sides = Neighbors.of(targets.offsets)
        # Cross-attention is added without dropout.
        dropout = self.dropout if memory is None else NO_DROPOUT
        for i, layer in enumerate(self.layers):
            given = layer.forward_packed(given, dropout, sides)
            if memory is not None:
                x, out = given
                assert out is not None
                x = layer.dropout.onto(x, out)
                given = PendingResidual(
                    x,
                    self.cross_attn[i].forward_packed(
                        x, targets.offsets, memory.states, memory.offsets
                    ),
                )
        return add_norm(given, dropout, self.norm)[1]

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int = 0, beams: int = 1
    ) -> ConvState:
        """The state before the first token. Its size does not depend on `capacity`."""
        new = self.project.weight.new_zeros
        projected = None
        if memory is not None:
            layers = [cross_attn.project_memory(memory.states) for cross_attn in self.cross_attn]
            projected = LayerMemories(layers, memory.mask[:, None])
        return ConvState(
            [new(batch * beams, layer.span, self.dim) for layer in self.layers], projected, beams
        )

    def step(
        self, tokens: Shaped[Tensor, "B *each"], state: ConvState
    ) -> tuple[Float[Tensor, "B V"], ConvState]:
        x = self.dropout(self.embed_tokens(tokens[:, None]))
        shifted = []
        for i, layer in enumerate(self.layers):
            x, seen = layer.step(x, state.seen[i])
            shifted.append(seen)
            if state.memory is not None:
                queries = x.view(-1, state.beams, self.dim)
                memory = state.memory.layers[i]
                mask = state.memory.mask
                x = x + self.cross_attn[i].attend_memory(queries, memory, mask=mask).view_as(x)
        logits: Tensor = self.project(self.norm(x))[:, 0]
        return logits, replace(state, seen=shifted)
