"""Graphs from sources: the encoder of a sequence model, classifiers and masked language models."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from regard.core.sequence import MultiSource, Tokens, Vectors
from regard.core.shapes import Tensor
from regard.interop.onnx.graph import Graph, GraphInput, Tensors, attention_outputs
from regard.model.interfaces import AttentionModule, CarriedState, Encoder, Source
from regard.model.memory import Memory
from regard.model.seq2seq import Model, Seq2Seq

SourceKind = Literal["text", "label", "image", "vectors"]


class VectorSizes(NamedTuple):
    """The sizes of a source of vectors: of each vector, and how many there are, where all inputs have as many."""

    dimension: int
    length: int | None = None


class SourceInputs:
    """The inputs of one or several sources, and the batch that an encoder takes, made from them.

    image_sizes    of each source, the pixels of a side; None for one that is no image
    vector_sizes   of each source of vectors, by the number of the source from 0
    """

    def __init__(
        self,
        kinds: Sequence[SourceKind],
        image_sizes: Sequence[int | None],
        vector_sizes: Mapping[int, VectorSizes] | None = None,
    ) -> None:
        self.kinds = list(kinds)
        self.suffixes = ["" if i == 0 else f"_{i + 1}" for i in range(len(self.kinds))]
        self.inputs: list[GraphInput] = []
        vectors = vector_sizes or {}
        # One input does not show what the mask of the states depends on: a vector may be missing, or there are
        # several sources.
        self.gives_mask = len(self.kinds) > 1 or bool(vectors)
        # Sequences of vectors have no lengths among the inputs: one without padding is read at a time.
        batch: int | str = 1 if vectors else "batch_size"
        parts = zip(self.kinds, self.suffixes, image_sizes, strict=True)
        for number, (kind, suffix, size) in enumerate(parts):
            axes = (batch, f"encoder_sequence{suffix}")
            if number in vectors:
                dimension, length = vectors[number]
                vector_axes = (batch, axes[1] if length is None else length, dimension)
                self.inputs.append(GraphInput(f"input_values{suffix}", vector_axes))
            elif kind == "text":
                self.inputs.append(GraphInput(f"input_ids{suffix}", axes, torch.int64))
                self.inputs.append(GraphInput(f"attention_mask{suffix}", axes, torch.int64))
            elif kind == "label":
                self.inputs.append(GraphInput(f"label_ids{suffix}", axes[:1], torch.int64))
            else:
                assert size is not None
                image_axes = (batch, 3, size, size)
                self.inputs.append(GraphInput(f"pixel_values{suffix}", image_axes))

    def batch(self, given: Tensors) -> Source:
        parts: list[Tokens | Vectors | Tensor] = []
        for kind, suffix in zip(self.kinds, self.suffixes, strict=True):
            if kind == "text":
                # Padding is on the right, so the mask gives the lengths.
                lengths = given[f"attention_mask{suffix}"].sum(1)
                parts.append(Tokens(given[f"input_ids{suffix}"], lengths))
            elif kind == "label":
                parts.append(given[f"label_ids{suffix}"])
            elif f"input_values{suffix}" in given:
                values = given[f"input_values{suffix}"]
                parts.append(Vectors(values, torch.full((1,), values.shape[1])))
            else:
                parts.append(given[f"pixel_values{suffix}"])
        if len(parts) == 1:
            return parts[0]
        return MultiSource(tuple(parts))


def encoder_attentions(model: Model) -> dict[AttentionModule, str]:
    """The attention modules of a model's encoder and pool, with the names of their outputs."""
    found: dict[AttentionModule, str] = {}
    for part in ("encoder", "pool"):
        module = getattr(model, part, None)
        if module is None:
            continue
        attentions = [each for each in module.modules() if isinstance(each, AttentionModule)]
        for i, each in enumerate(attentions):
            found[each] = f"{part}_attentions.{i}"
    return found


class EncoderGraph(Graph):
    """A source to the states that the decoder reads: last_hidden_state, and the first state of a recurrent decoder."""

    name = "encoder_model"

    def __init__(self, model: Seq2Seq, sources: SourceInputs, *, attention: bool) -> None:
        super().__init__()
        assert model.encoder is not None
        self.encoder: Encoder = model.encoder
        self.decoder = model.decoder
        self.sources = sources
        self.inputs = sources.inputs
        self.attentions = encoder_attentions(model) if attention else None

    def run(self, given: Tensors) -> Tensors:
        with attention_outputs(self.attentions) as weights:
            memory: Memory = self.encoder(self.sources.batch(given))
        out = {"last_hidden_state": memory.states}
        if self.sources.gives_mask:
            out["encoder_attention_mask"] = memory.mask.long()
        state = self.decoder.start(memory, batch=memory.states.shape[0], capacity=0)
        if isinstance(state, CarriedState):
            for name, tensor in state.tensors().items():
                if tensor.shape[-1]:
                    out[f"present.{name}"] = tensor
        return out | weights


class SourceGraph(Graph):
    """A source to logits: of labels (B, labels), or of the token at each position (B, S, V)."""

    name = "model"

    def __init__(self, model: Model, sources: SourceInputs, *, attention: bool) -> None:
        super().__init__()
        self.model = model
        self.sources = sources
        self.inputs = sources.inputs
        self.attentions = encoder_attentions(model) if attention else None

    def run(self, given: Tensors) -> Tensors:
        with attention_outputs(self.attentions) as weights:
            logits: Tensor = self.model(self.sources.batch(given))
        return {"logits": logits, **weights}
