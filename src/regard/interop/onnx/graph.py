"""A graph: a module of named tensors in and named tensors out, and its translation to ONNX."""

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from regard.core.errors import InvalidArgument, MissingExtra
from regard.core.shapes import Tensor
from regard.kernels.attention import reference
from regard.kernels.attention.spec import repeat_heads
from regard.model import capture
from regard.model.capture import AttentionResult

OPSET = 18
# Bytes of weights in a file. More are written to a second file, because a protobuf message ends at 2 GiB.
LARGEST = 1_900_000_000
EXAMPLE = {"batch_size": 2, "sequence": 3, "past": 4, "encoder_sequence": 9, "encoder_past": 5}
EXAMPLE |= {f"encoder_sequence_{i}": 9 + 2 * i for i in range(2, 100)}  # of further sources
Tensors = dict[str, Tensor]
ModuleType = TypeVar("ModuleType", bound=nn.Module)


@dataclass(frozen=True)
class GraphInput:
    """An input: for each axis its size, or the name of an axis of any size; "past + sequence" is a sum of two."""

    name: str
    axes: tuple[int | str, ...]
    dtype: torch.dtype = torch.float32

    def example(self) -> Tensor:
        # All sizes differ: PyTorch takes axes that are equal in the example for one and the same.
        sizes = [axis if isinstance(axis, int) else _sum(axis, EXAMPLE) for axis in self.axes]
        return torch.ones(sizes, dtype=self.dtype)

    @property
    def dynamic_axes(self) -> dict[int, str]:
        named = [(i, axis) for i, axis in enumerate(self.axes) if isinstance(axis, str)]
        return {i: axis.replace(" ", "") for i, axis in named}


def _sum(axis: str, sizes: Mapping[str, int]) -> int:
    return sum(int(part) if part.isdigit() else sizes[part] for part in axis.split(" + "))


class Graph(nn.Module, ABC):
    """A module that takes the tensors of `inputs`, in that order, and returns tensors by name."""

    name: str  # of its file, without .onnx
    inputs: list[GraphInput]

    @abstractmethod
    def run(self, given: Tensors) -> Tensors:
        """The outputs by name."""

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        self._unify_axes(given)
        names = [each.name for each in self.inputs]
        outputs = self.run(dict(zip(names, given, strict=True)))
        return tuple(outputs.values())

    def _unify_axes(self, given: tuple[Tensor, ...]) -> None:
        """State that axes of one name are equal, so that PyTorch reasons about a few sizes instead of dozens."""
        sizes = dict[str, int]()
        for each, tensor in zip(self.inputs, given, strict=True):
            for axis, size in zip(each.axes, tensor.shape, strict=True):
                if not isinstance(axis, str):
                    continue
                if " + " in axis:
                    expected = _sum(axis, sizes)
                else:
                    expected = sizes.setdefault(axis, size)
                torch._check(size == expected)  # type: ignore[no-untyped-call]


def write_graph(graph: Graph, path: Path) -> None:
    """Translate a graph to ONNX and write it to a file."""
    try:
        import onnx  # noqa: F401  PyTorch translates with these
        import onnx_ir
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "onnx", "onnx", "Export to ONNX") from None
    graph = graph.eval()
    examples = tuple(each.example() for each in graph.inputs)
    input_names = [each.name for each in graph.inputs]
    with quiet(), torch.no_grad(), _named_errors(graph):
        outputs = graph.run(dict(zip(input_names, examples, strict=True)))
        # Else the loop of a recurrent layer is checked against the guards of an earlier export.
        torch._dynamo.reset()
        program = torch.onnx.export(
            graph,
            examples,
            input_names=[each.name for each in graph.inputs],
            output_names=list(outputs),
            dynamic_shapes=(tuple(each.dynamic_axes for each in graph.inputs),),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        _strip(program.model)
        external_data = None
        if _bytes(graph) > LARGEST:
            external_data = f"{path.name}_data"
        onnx_ir.save(program.model, path, external_data=external_data)


@contextmanager
def _named_errors(graph: Graph) -> Iterator[None]:
    """Turn a failure of the exporter, whose message is a page, into an error with its cause."""
    try:
        yield
    except torch.onnx.OnnxExporterError as error:
        cause = error.__cause__ or error
        got = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"[:300]
        remedy = "A part of your own must not depend on the values of tensors in Python."
        raise InvalidArgument(
            graph.name, wanted="a graph that PyTorch can export", got=got, remedy=remedy
        ) from error


def _strip(model: Any) -> None:
    """Remove the files and lines of source code that the exporter notes for each node."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in graph:
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
    for holder in (model, model.graph, *model.graph.initializers.values(), *model.graph.inputs):
        holder.metadata_props.clear()


def _bytes(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the notes of the exporter and the quantizer, and let no earlier export decide which sizes vary."""
    import torch._dynamo

    root = logging.getLogger()
    logger = logging.getLogger("torch.onnx")
    level = logger.level

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    root.addFilter(is_error)  # of what is logged under no name
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch._dynamo.config.patch(automatic_dynamic_shapes=False):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        root.removeFilter(is_error)


@contextmanager
def attention_outputs(names: Mapping[ModuleType, str] | None) -> Iterator[Tensors]:
    """Gives the weights (B, H, N, M) of the attention modules in `names`, by name, for calls within the block.

    Without names, nothing is done.
    """
    weights: Tensors = {}
    if names is None:
        yield weights
        return

    def keep(source: nn.Module | None, result: AttentionResult) -> AttentionResult:
        if source is None or source not in names:
            return result
        kept = reference.softmax(reference.scores(result.spec))  # (B, H, N, M)
        weights[names[cast(ModuleType, source)]] = kept
        # The kernel's own weights are then unused, and dropped from the graph.
        out = kept @ repeat_heads(result.value, kept.shape[1])  # (B, H, N, E)
        return result._replace(out=out)

    with capture.intercepting(keep):
        yield weights
