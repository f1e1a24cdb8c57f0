"""The export target "onnx": graphs in onnx/, and around that folder the files that transformers.js reads."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from regard.core.errors import MissingExtra
from regard.generation.ensemble import ClassifierEnsemble
from regard.inference.predictor import Predictor
from regard.interop.interfaces import ExportOptions, FolderTarget
from regard.interop.onnx.decoder_graphs import DECODER_GRAPHS, MemoryInputs
from regard.interop.onnx.encoder_graphs import (
    EncoderGraph,
    SourceGraph,
    SourceInputs,
    VectorSizes,
)
from regard.interop.onnx.files import source_kinds, write_files
from regard.interop.onnx.graph import Graph, quiet, write_graph
from regard.model.seq2seq import Model


class OnnxTarget(FolderTarget):
    """ONNX: a graph each for encoder and decoder. A language model has the decoder's only, other models have one."""

    name = "onnx"
    title = "ONNX"
    options = frozenset({"attention", "quantization"})

    def obstacles(self, model: Predictor) -> Sequence[str]:
        seq2seq = model.model.generator
        if seq2seq is not None and type(seq2seq.decoder) not in DECODER_GRAPHS:
            return [f"decoder: {type(seq2seq.decoder).__name__} has no graph in terms of ONNX"]
        if model.recipe.data.join_sources:
            return ["data.join_sources: a graph reads no pairs of texts as one sequence"]
        if isinstance(model.model, ClassifierEnsemble):
            return ["model: an ensemble is several models, each of which can be exported"]
        unread = unread_sources(model)
        if unread:
            return unread
        if model.task.tags_words:
            return ["model.head: tags of words are not written as ONNX"]
        if model.task.has_beam:
            return ["model.head: the texts of a CTC head are not written as ONNX"]
        return []

    def write(self, model: Predictor, folder: Path, options: ExportOptions) -> None:
        model = replace(model, model=model.task.exported(model.model, model.target))
        graphs = predictor_graphs(model, attention=options.attention)
        (folder / "onnx").mkdir()
        for graph in graphs:
            path = folder / "onnx" / f"{graph.name}.onnx"
            write_graph(graph, path)
            if options.quantization is not None:
                _quantize(path)
        write_files(model, graphs, folder)


def unread_sources(model: Predictor) -> list[str]:
    """The sources that a graph does not read, for refusals."""
    fields = enumerate(model.recipe.data.source_fields, start=1)
    return [
        f"source {number}: a graph reads texts, labels and images, and not {field.noun}"
        for number, field in fields
        if not field.in_graphs
    ]


def predictor_graphs(model: Predictor, *, attention: bool) -> list[Graph]:
    """The graphs of a loaded model."""
    kinds = source_kinds(model)
    resizings = [field.resizing for field in model.recipe.data.source_fields]
    sizes: list[int | None] = [None if each is None else each[0] for each in resizings]
    sources = SourceInputs(kinds, sizes or [None] * len(kinds), _vector_sizes(model))
    return model_graphs(model.model, sources, attention=attention)


def _vector_sizes(model: Predictor) -> dict[int, VectorSizes]:
    """The sizes of each source of vectors, by its number from 0."""
    # Given by a task whose sources all have one length.
    length = model.task.source_sizes(model.sources).get("source_length")
    pairs = zip(model.recipe.data.source_fields, model.sources, strict=False)
    return {
        number: VectorSizes(vocabulary.size, length)
        for number, (field, vocabulary) in enumerate(pairs)
        if vocabulary is not None and field.usual_ranges(vocabulary) is not None
    }


def model_graphs(model: Model, sources: SourceInputs, *, attention: bool) -> list[Graph]:
    """The graphs of a model, the decoder's last. Weights are converted to float32, on the CPU."""
    model = in_float32(model)
    seq2seq = model.generator
    if seq2seq is None:
        return [SourceGraph(model, sources, attention=attention)]
    make = DECODER_GRAPHS[type(seq2seq.decoder)]
    encoder = seq2seq.encoder
    if encoder is None:
        return [make(seq2seq.decoder, None, attention=attention)]
    # All states of learned queries are attended to, whatever the mask of the source is.
    is_text = sources.kinds == ["text"] and encoder.keeps_positions
    masked = sources.gives_mask or is_text
    cls_tokens = 0 if sources.gives_mask else encoder.cls_tokens
    memory = MemoryInputs(encoder.dim, masked, cls_tokens)
    return [
        EncoderGraph(seq2seq, sources, attention=attention),
        make(seq2seq.decoder, memory, attention=attention),
    ]


def in_float32(model: Model) -> Model:
    """The model with its weights in float32 on the CPU: itself, or a copy."""
    if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in model.parameters()):
        return copy.deepcopy(model).float().cpu()
    return model


def _quantize(path: Path) -> None:
    """Write matrices of weights as int8, each with a scale. The file gets the suffix that transformers.js calls q8."""
    try:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError:
        raise MissingExtra("onnxruntime", "onnx", "Quantization") from None
    data = path.with_name(f"{path.name}_data")
    target = path.with_stem(f"{path.stem}_quantized")
    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes of matrices that quantization transposes
    with quiet():
        quantize_dynamic(
            model, target, weight_type=QuantType.QInt8, use_external_data_format=data.exists()
        )
    path.unlink()
    data.unlink(missing_ok=True)
