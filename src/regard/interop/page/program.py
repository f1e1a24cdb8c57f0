"""Programs: ONNX graphs as JSON that the browser's interpreter runs, and their weights as bytes.

A program lists operators with the numbers of the values they read and write. Products with weights become the operator
`Linear`, whose weight is stored by output row, as PyTorch does: one kernel serves all of them, a tied embedding is
stored once, and int8 has a scale for each row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.interop.page.marked_attention import DOMAIN

Array = NDArray[Any]
# Integers have 32 bits in the page. "To the end" in a slice is the largest integer of 64 bits here.
LARGEST = 2**31 - 1
INLINE = 64  # elements of a constant that is written as JSON; more are bytes among the weights
QUANTIZED = 1024  # least elements of a matrix in int8
ALIGNMENT = 16  # bytes

OPERATORS = frozenset(  # that program.js runs; a test compares both lists
    """Abs Add And ArgMax Attention AveragePool BatchNormalization Cast Ceil Clip Concat ConstantOfShape Conv Cos CumSum
    Div Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater
    GreaterOrEqual Identity InstanceNormalization IsInf IsNaN LayerNormalization Less LessOrEqual Linear Log LogSoftmax
    MatMul Max MaxPool Min Mod Mul Neg Not Or Pad Pow RMSNormalization Range Reciprocal ReduceL2 ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Scan ScatterElements ScatterND Shape Sigmoid Sign Sin
    Size Slice Softmax Softplus Split Sqrt Squeeze Sub Swish Tanh Tile Transpose Trilu Unsqueeze Where""".split()  # noqa: SIM905  a table
)


@dataclass
class WeightBytes:
    """The bytes of all weights of a page; equal ones are stored once."""

    quantization: str | None
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, weight: Array, *, rows: bool) -> dict[str, Any]:
        """Store a weight, and return where. `rows`: it is only read by rows, so that it may be int8."""
        shape = list(weight.shape)
        if self.quantization is None or not rows or weight.size < QUANTIZED:
            return {"shape": shape, "offset": self._stored(np.ascontiguousarray(weight, "<f4"))}
        values, scales = quantized_rows(weight)
        return {"shape": shape, "offset": self._stored(values), "scales": self._stored(scales)}

    def _stored(self, array: Array) -> int:
        """The offset of an array's bytes, which are added unless the same bytes are there already."""
        content = array.tobytes()
        key = sha256(content).digest()
        if key not in self._places:
            padding = -len(content) % ALIGNMENT
            self._places[key] = self.size
            self.parts += [content, bytes(padding)]
            self.size += len(content) + padding
        return self._places[key]


def quantized_rows(weight: Array) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Int8, and the scale of each row of the first axis: the largest absolute value of a row becomes 127."""
    rows = weight.reshape(len(weight), -1).astype(np.float32)
    tiny = np.finfo(np.float32).tiny * 127  # keeps the scale of a row of zeros above zero
    largest = np.maximum(np.abs(rows).max(1, initial=0.0), tiny).astype(np.float32)
    scales = largest / 127
    rounded = np.rint(rows / scales[:, None])
    values = np.clip(rounded, -127, 127).astype(np.int8)
    return values.reshape(weight.shape), scales.astype("<f4")


def program(path: Path, weights: WeightBytes) -> dict[str, Any]:
    """The program of an ONNX file that `write_graph` wrote; its weights are added to `weights`."""
    import onnx

    return _Translation(onnx.load(path).graph, weights).result()


@dataclass
class _Node:
    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    body: "_Body | None" = None


@dataclass
class _Body:
    inputs: list[str]
    outputs: list[str]
    nodes: list[_Node]


class _Translation:
    def __init__(self, graph: Any, weights: WeightBytes) -> None:
        from onnx import numpy_helper

        self.graph = graph
        self.weights = weights
        self.constants: dict[str, Array] = {
            each.name: numpy_helper.to_array(each) for each in graph.initializer
        }
        self.nodes = [*self._nodes(graph)]
        self.numbers: dict[str, int] = {}

    def result(self) -> dict[str, Any]:
        nodes = _fused(self.nodes, self.constants, [each.name for each in self.graph.output])
        read = [name for node in _all_nodes(nodes) for name in node.inputs]
        by_row = {name for name in read if _read_by_row(name, nodes)}
        constants = list[dict[str, Any]]()
        stored = list[dict[str, Any]]()
        for name in dict.fromkeys(read):
            if name not in self.constants:
                continue
            array = self.constants[name]
            value = self._number(name)
            if name not in by_row and (array.size <= INLINE or array.dtype != np.float32):
                constants.append({"value": value, **_as_json(array)})
            else:
                stored.append({"value": value, **self.weights.add(array, rows=name in by_row)})
        # Values get their numbers in the order in which they are written.
        inputs = [self._input(each) for each in self.graph.input]
        outputs = [
            {"name": each.name, "value": self._number(each.name)} for each in self.graph.output
        ]
        return {
            "inputs": inputs,
            "outputs": outputs,
            "constants": constants,
            "weights": stored,
            "nodes": [self._as_json(node) for node in nodes],
            "values": len(self.numbers),
        }

    def _input(self, given: Any) -> dict[str, Any]:
        return {
            "name": given.name,
            "value": self._number(given.name),
            "shape": _shape(given),
            "type": _type(given),
        }

    def _nodes(self, graph: Any) -> Iterator[_Node]:
        from onnx import helper, numpy_helper

        for each in graph.node:
            attributes = {one.name: helper.get_attribute_value(one) for one in each.attribute}
            body = attributes.pop("body", None)
            if each.op_type == "Constant":
                self.constants[each.output[0]] = numpy_helper.to_array(attributes["value"])
                continue
            if each.op_type not in OPERATORS or each.domain not in ("", DOMAIN):
                wanted = "a graph of operators that the page runs"
                got = f"{each.domain or 'ONNX'} {each.op_type}"
                raise InvalidArgument(
                    "model", wanted=wanted, got=got, remedy="Export it to onnx instead."
                )
            if "value" in attributes:
                attributes["value"] = _as_json(numpy_helper.to_array(attributes["value"]))
            inner = None
            if body is not None:
                self.constants |= {one.name: numpy_helper.to_array(one) for one in body.initializer}
                inputs = [one.name for one in body.input]
                outputs = [one.name for one in body.output]
                inner = _Body(inputs, outputs, [*self._nodes(body)])
            yield _Node(each.op_type, list(each.input), list(each.output), attributes, inner)

    def _number(self, name: str) -> int | None:
        if name:
            return self.numbers.setdefault(name, len(self.numbers))
        return None

    def _as_json(self, node: _Node) -> dict[str, Any]:
        table: dict[str, Any] = {
            "op": node.op,
            "inputs": [self._number(name) for name in node.inputs],
            "outputs": [self._number(name) for name in node.outputs],
        }
        if node.attributes:
            table["attributes"] = {key: _plain(value) for key, value in node.attributes.items()}
        if node.body is not None:
            table["body"] = {
                "inputs": [self._number(name) for name in node.body.inputs],
                "outputs": [self._number(name) for name in node.body.outputs],
                "nodes": [self._as_json(each) for each in node.body.nodes],
            }
        return table


def _fused(nodes: list[_Node], constants: dict[str, Array], outputs: list[str]) -> list[_Node]:
    """Write products with weights as `Linear`, with their bias, and transposed operands of others as an attribute."""
    nodes = _with_linear(_folded(nodes, constants), constants)
    uses = [name for node in _all_nodes(nodes) for name in node.inputs] + outputs
    uses += [name for node in _all_nodes(nodes) if node.body for name in node.body.outputs]
    _fuse_transposes(nodes)
    kept = list[_Node]()
    skipped = set[int]()
    for node in nodes:
        if id(node) in skipped:
            continue
        # An addition to a product that nothing else reads becomes its bias.
        if node.op == "Linear" and len(node.inputs) == 2 and uses.count(node.outputs[0]) == 1:
            after = next((each for each in nodes if node.outputs[0] in each.inputs), None)
            if after is not None and after.op == "Add":
                bias = _other(after.inputs, node.outputs[0])
                outputs_of_weight = constants[node.inputs[1]].shape[:1]
                if bias in constants and constants[bias].shape == outputs_of_weight:
                    node = _Node("Linear", [*node.inputs, bias], after.outputs, {})
                    skipped.add(id(after))
        kept.append(node)
    return _used(kept, outputs)


def _fuse_transposes(nodes: list[_Node]) -> None:
    """Let products read operands before they were transposed, and transpose them on the way."""
    made = {output: node for node in nodes for output in node.outputs}
    for node in nodes:
        if node.op != "MatMul":
            continue
        before = made.get(node.inputs[1])
        if before is None or before.op != "Transpose":
            continue
        if _swaps_last(before.attributes.get("perm")):
            node.inputs[1] = before.inputs[0]
            node.attributes = {"transposed": 1}


FOLDED: dict[str, Callable[[list[Array], dict[str, Any]], Array]] = {
    "Add": lambda given, attributes: given[0] + given[1],
    "Concat": lambda given, attributes: np.concatenate(given, attributes["axis"]),
    "Mul": lambda given, attributes: given[0] * given[1],
    "Transpose": lambda given, attributes: np.transpose(given[0], attributes.get("perm")),
}


def _folded(nodes: list[_Node], constants: dict[str, Array]) -> list[_Node]:
    """Compute operators that read constants alone, which PyTorch keeps where the constants are large."""
    kept = list[_Node]()
    for node in nodes:
        given = [constants[name] for name in node.inputs if name in constants]
        if node.op in FOLDED and len(given) == len(node.inputs):
            constants[node.outputs[0]] = FOLDED[node.op](given, node.attributes)
        else:
            kept.append(node)
    return kept


def _with_linear(nodes: list[_Node], constants: dict[str, Array]) -> list[_Node]:
    found = []
    for node in nodes:
        if node.body is not None:
            node.body.nodes = _with_linear(node.body.nodes, constants)
        weight = None
        if node.op in ("MatMul", "Gemm"):
            weight = constants.get(node.inputs[1])
        if weight is not None and weight.ndim == 2 and _is_plain(node):
            name = node.inputs[1]
            if not node.attributes.get("transB"):
                name = f"{name} transposed"
                constants[name] = np.ascontiguousarray(weight.T)
            node = _Node("Linear", [node.inputs[0], name, *node.inputs[2:]], node.outputs, {})
        found.append(node)
    return found


def _is_plain(node: _Node) -> bool:
    """Whether a product neither scales its result nor transposes its first operand."""
    table = node.attributes
    has_scale = table.get("alpha", 1.0) != 1.0 or table.get("beta", 1.0) != 1.0
    return not has_scale and not table.get("transA")


def _used(nodes: list[_Node], outputs: Sequence[str]) -> list[_Node]:
    """Drop nodes that nothing reads."""
    needed = set(outputs)
    kept = list[_Node]()
    for node in reversed(nodes):
        if needed & set(node.outputs):
            kept.append(node)
            needed |= {name for each in _all_nodes([node]) for name in each.inputs}
            if node.body is not None:
                needed |= set(node.body.outputs)
    return kept[::-1]


def _all_nodes(nodes: Sequence[_Node]) -> Iterator[_Node]:
    for node in nodes:
        yield node
        if node.body is not None:
            yield from _all_nodes(node.body.nodes)


def _read_by_row(name: str, nodes: Sequence[_Node]) -> bool:
    """Whether a weight is only multiplied with, convolved with, or gathered by rows."""
    # The place of the weight among the inputs of each operator that reads it by rows.
    places = {"Linear": 1, "Conv": 1, "Gather": 0}
    for node in _all_nodes(nodes):
        for i, each in enumerate(node.inputs):
            if each == name and (places.get(node.op) != i or node.attributes.get("axis")):
                return False
    return True


def _swaps_last(perm: Sequence[int] | None) -> bool:
    """Whether a permutation swaps the last two axes and keeps all others."""
    if perm is None:
        return False
    count = len(perm)
    return list(perm) == [*range(count - 2), count - 1, count - 2]


def _other(pair: Sequence[str], one: str) -> str:
    return pair[1] if pair[0] == one else pair[0]


def _as_json(array: Array) -> dict[str, Any]:
    """A constant as JSON. Numbers that are not finite are written as texts."""
    values = array.ravel().tolist()
    if array.dtype == np.bool_:
        kind = "b"
        values = [int(value) for value in values]
    elif np.issubdtype(array.dtype, np.integer):
        kind = "i"
        values = [max(-LARGEST, min(LARGEST, value)) for value in values]
    else:
        kind = "f"
        infinities = {"inf": "Infinity", "-inf": "-Infinity"}
        values = [
            value if isfinite(value) else infinities.get(str(value), "NaN") for value in values
        ]
    return {"type": kind, "shape": list(array.shape), "values": values}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, tuple):
        return list(value)
    return value


def _shape(value: Any) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def _type(value: Any) -> str:
    return {1: "f", 7: "i", 9: "b"}[value.type.tensor_type.elem_type]
