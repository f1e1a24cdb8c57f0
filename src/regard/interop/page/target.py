"""The export target "page": one HTML file with the model, its tokenizers and the code that runs it."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regard.core.atomic_io import atomic_file, check_writable
from regard.core.errors import InvalidArgument
from regard.data.fields.text import tokenizer_of
from regard.generation.config import DecodeConfig
from regard.generation.ensemble import ClassifierEnsemble
from regard.inference.example_inputs import example_inputs, examples_of_file
from regard.inference.predictor import Predictor
from regard.interop.interfaces import ExportOptions, ExportTarget
from regard.interop.onnx.decoder_graphs import DECODER_GRAPHS, RnnGraph
from regard.interop.onnx.graph import Graph, write_graph
from regard.interop.onnx.target import in_float32, predictor_graphs
from regard.interop.page.document import document
from regard.interop.page.marked_attention import MarkedGraph
from regard.interop.page.program import WeightBytes, program
from regard.interop.page.settings import (
    CHOSEN,
    MISSING,
    MISSING_IN_ONE_PASS,
    ModelSettings,
    reads_vectors,
)
from regard.interop.page.tokenizer_tables import tokenizer_obstacle
from regard.interpret.sites import AttentionSite, attention_sites
from regard.model.interfaces import AttentionModule

# Parameters. A browser's strings end at 512 MiB, and all weights are one string, in base64.
LARGEST = 50_000_000
log = logging.getLogger(__name__)
PROGRAMS = {"encoder_model": "encoder", "decoder_model_merged": "decoder", "model": "model"}


EXPORTED_TASKS = ("generate", "classify", "forecast", "predict_vectors")


class PageTarget(ExportTarget):
    """A page: encoder and decoder become programs of its interpreter, and other models become one program."""

    name = "page"
    title = "a page"
    options = frozenset({"quantization", "examples"})

    def obstacles(self, model: Predictor) -> Sequence[str]:
        found = _unread_sources(model)
        inner = model.model
        seq2seq = inner.generator
        if seq2seq is not None and type(seq2seq.decoder) not in DECODER_GRAPHS:
            found.append(f"decoder: {type(seq2seq.decoder).__name__} has no graph of operators")
        if model.recipe.data.join_sources:
            found.append("data.join_sources: a page reads no pairs of texts as one sequence")
        if inner.task not in EXPORTED_TASKS:
            found.append(
                f"task {inner.task}: a page gives texts, labels, forecasts, and a vector for each "
                f"vector of the source; not {model.task.gives}"
            )
        if isinstance(inner, ClassifierEnsemble):
            found.append("model: an ensemble is several models, each of which can be exported")
        texts = {f"source {i}": each for i, each in enumerate(model.sources, start=1)}
        texts["target"] = model.target
        for side, vocabulary in texts.items():
            tokenizer = tokenizer_of(vocabulary)
            if tokenizer is None:
                continue
            obstacle = tokenizer_obstacle(tokenizer)
            if obstacle:
                found.append(f"tokenizer of {side}: {obstacle}")
        decode = model.recipe.decode
        if decode.logits_processors:
            found.append(
                f"decode.logits_processors: {', '.join(decode.logits_processors)}, in Python"
            )
        if seq2seq is not None:
            for name, value, default in _changed(decode, MISSING):
                found.append(
                    f"decode.{name} = {value!r}: a page's search does not have it; export "
                    f"regard.load(RUN).with_decode({name}={default!r}) for a page without"
                )
        else:
            missing = MISSING_IN_ONE_PASS
            if not model.task.has_probabilities:
                missing = (*missing, "num_hypotheses")
            for name, value, _ in _changed(decode, missing):
                found.append(
                    f"decode.{name} = {value!r}: it means nothing to a model that gives "
                    f"{model.task.gives}; remove it from the recipe"
                )
        parameters = sum(each.numel() for each in inner.parameters())
        if parameters > LARGEST:
            found.append(f"parameters: {parameters:,}, more than {LARGEST:,}")
        return found

    def check_destination(self, out: Path) -> None:
        if out.suffix.lower() not in (".html", ".htm") or out.exists():
            wanted = "a new .html file"
            got = repr(str(out))
            raise InvalidArgument("out", wanted=wanted, got=got, remedy="Choose another name.")
        check_writable(out)

    def save(self, model: Predictor, out: Path, options: ExportOptions) -> None:
        if options.examples is None:
            examples = example_inputs(model)
        else:
            examples = examples_of_file(model, options.examples)
        weights = WeightBytes(options.quantization)
        model = replace(model, model=in_float32(model.model))
        if model.model.generator is not None:
            _say_what_is_chosen(model.recipe.decode)
        sites = attention_sites(model.model)
        graphs = [marked(graph, sites) for graph in predictor_graphs(model, attention=False)]
        programs = _programs(graphs, weights)
        causal = [name for graph in graphs for name in graph.causal]
        settings = ModelSettings(model).as_dict(out.stem, causal, examples)
        settings |= {"programs": programs}
        page = document(settings, b"".join(weights.parts))
        with atomic_file(out) as file:
            file.write(page.encode())


def _unread_sources(model: Predictor) -> list[str]:
    """The sources that a page does not read."""
    found = []
    parts = zip(model.recipe.data.source_fields, model.sources, strict=False)
    for number, (field, vocabulary) in enumerate(parts, start=1):
        if reads_vectors(field, vocabulary):
            if getattr(field, "features", None) is not None:
                found.append(
                    f"source {number}: a page does not compute the features of recordings "
                    "(data.source.features)"
                )
        elif not field.in_graphs:
            found.append(
                f"source {number}: a page reads texts, labels, images and vectors, and not "
                f"{field.noun}"
            )
    return found


def _changed(config: DecodeConfig, names: Sequence[str]) -> Iterator[tuple[str, object, object]]:
    """The options that differ from their defaults: name, value and default."""
    defaults = DecodeConfig()
    for name in names:
        value = getattr(config, name)
        default = getattr(defaults, name)
        if value != default:
            yield name, value, default


def _say_what_is_chosen(config: DecodeConfig) -> None:
    """Say which options of the recipe a page does not begin with: it begins with greedy search."""
    chosen = [f"{name} = {value!r}" for name, value, _ in _changed(config, CHOSEN)]
    if chosen:
        log.warning(
            "The page begins with greedy search. Choose the recipe's %s in the page.",
            ", ".join(chosen),
        )


def marked(graph: Graph, sites: Mapping[AttentionModule, AttentionSite]) -> MarkedGraph:
    """The graph as a page runs it. A recurrent decoder takes one token, so that no loop encloses its attention."""
    if isinstance(graph, RnnGraph):
        tokens = graph.inputs[0]
        graph.inputs[0] = replace(tokens, axes=(tokens.axes[0], 1))
    return MarkedGraph(graph, sites)


def _programs(graphs: Sequence[MarkedGraph], weights: WeightBytes) -> dict[str, Any]:
    programs = {}
    with TemporaryDirectory() as folder:
        for graph in graphs:
            path = Path(folder) / f"{graph.name}.onnx"
            write_graph(graph, path)
            programs[PROGRAMS[graph.name]] = program(path, weights)
    return programs
