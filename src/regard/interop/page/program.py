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
LARGEST = (
    2**31 - 1
)  # integers are 32 bits there; "to the end" in a slice is the largest of 64 bits here
INLINE = 64  # elements of a constant that is written as JSON; more are bytes among the weights
QUANTIZED = 1024  # least elements of a matrix in int8
ALIGNMENT = 16  # bytes

OPERATORS = frozenset(  # that program.js runs; a test compares both lists
    """Abs Add And ArgMax Attention AveragePool BatchNormalization Cast Ceil Clip Concat ConstantOfShape Conv Cos CumSum
    Div Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater
    GreaterOrEqual Identity InstanceNormalization IsNaN LayerNormalization Less LessOrEqual Linear Log LogSoftmax MatMul
    Max MaxPool Min Mod Mul Neg Not Or Pad Pow RMSNormalization Range Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Relu Reshape Scan ScatterElements ScatterND Shape Sigmoid Sign Sin Size Slice
    Softmax Softplus Split Sqrt Squeeze Sub Swish Tanh Tile Transpose Trilu Unsqueeze Where""".split()  # noqa: SIM905  a table
)


@dataclass
class WeightBytes:
    """The bytes of all weights of a page; equal ones are stored once."""

    quantization: str | None
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, weight: Array, *, rows: bool) -> dict[str, Any]:
        """Where a weight is stored; `rows`: it is only read by rows, so that it may be int8."""
        if self.quantization is None or not rows or weight.size < QUANTIZED:
            return {
                "shape": list(weight.shape),
                "offset": self._stored(np.ascontiguousarray(weight, "<f4")),
            }
        values, scales = quantized_rows(weight)
        return {
            "shape": list(weight.shape),
            "offset": self._stored(values),
            "scales": self._stored(scales),
        }

    def _stored(self, array: Array) -> int:
        content = array.tobytes()
        key = sha256(content).digest()
        if key not in self._places:
            self._places[key] = self.size
            self.parts += [content, bytes(-len(content) % ALIGNMENT)]
            self.size += len(content) + -len(content) % ALIGNMENT
        return self._places[key]


def quantized_rows(weight: Array) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Int8, and the scale of each row of the first axis: the largest absolute value of a row becomes 127."""
    rows = weight.reshape(len(weight), -1).astype(np.float32)
    scales = (
        np.maximum(np.abs(rows).max(1, initial=0.0), np.finfo(np.float32).tiny * 127).astype(
            np.float32
        )
        / 127
    )
    values = np.clip(np.rint(rows / scales[:, None]), -127, 127).astype(np.int8)
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

        self.graph, self.weights = graph, weights
        self.constants: dict[str, Array] = {
            each.name: numpy_helper.to_array(each) for each in graph.initializer
        }
        self.nodes = [*self._nodes(graph)]
        self.numbers: dict[str, int] = {}

    def result(self) -> dict[str, Any]:
        nodes = _fused(self.nodes, self.constants, [each.name for each in self.graph.output])
        read = [name for node in _all_nodes(nodes) for name in node.inputs]
        by_row = {name for name in read if _read_by_row(name, nodes)}
        constants, stored = list[dict[str, Any]](), list[dict[str, Any]]()
        for name in dict.fromkeys(read):
            if name not in self.constants:
                continue
            array = self.constants[name]
            if name not in by_row and (array.size <= INLINE or array.dtype != np.float32):
                constants.append({"value": self._number(name), **_as_json(array)})
            else:
                stored.append(
                    {"value": self._number(name), **self.weights.add(array, rows=name in by_row)}
                )
        return {
            "inputs": [{"name": each.name, "value": self._number(each.name), "shape": _shape(each), "type": _type(each)}
                       for each in self.graph.input],
            "outputs": [{"name": each.name, "value": self._number(each.name)} for each in self.graph.output],
            "constants": constants,
            "weights": stored,
            "nodes": [self._as_json(node) for node in nodes],
            "values": len(self.numbers),
        }  # fmt: skip

    def _nodes(self, graph: Any) -> Iterator[_Node]:
        from onnx import helper, numpy_helper

        for each in graph.node:
            attributes = {one.name: helper.get_attribute_value(one) for one in each.attribute}
            body = attributes.pop("body", None)
            if each.op_type == "Constant":
                self.constants[each.output[0]] = numpy_helper.to_array(attributes["value"])
                continue
            if each.op_type not in OPERATORS or each.domain not in ("", DOMAIN):
                wanted, got = (
                    "a graph of operators that the page runs",
                    f"{each.domain or 'ONNX'} {each.op_type}",
                )
                raise InvalidArgument(
                    "model", wanted=wanted, got=got, remedy="Export it to onnx instead."
                )
            if "value" in attributes:
                attributes["value"] = _as_json(numpy_helper.to_array(attributes["value"]))
            inner = None
            if body is not None:
                self.constants |= {one.name: numpy_helper.to_array(one) for one in body.initializer}
                names = [[one.name for one in side] for side in (body.input, body.output)]
                inner = _Body(names[0], names[1], [*self._nodes(body)])
            yield _Node(each.op_type, list(each.input), list(each.output), attributes, inner)

    def _number(self, name: str) -> int | None:
        return self.numbers.setdefault(name, len(self.numbers)) if name else None

    def _as_json(self, node: _Node) -> dict[str, Any]:
        table: dict[str, Any] = {"op": node.op}
        table |= {
            key: [self._number(name) for name in getattr(node, key)]
            for key in ("inputs", "outputs")
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
    """Products with weights as `Linear`, with their bias; transposed operands of other products as an attribute."""
    nodes = _with_linear(_folded(nodes, constants), constants)
    made = {output: node for node in nodes for output in node.outputs}
    uses = [name for node in _all_nodes(nodes) for name in node.inputs] + outputs
    uses += [name for node in _all_nodes(nodes) if node.body for name in node.body.outputs]
    for node in nodes:
        before = made.get(node.inputs[1]) if node.op == "MatMul" else None
        if (
            before is not None
            and before.op == "Transpose"
            and _swaps_last(before.attributes.get("perm"))
        ):
            node.inputs[1], node.attributes = before.inputs[0], {"transposed": 1}
    kept, skipped = list[_Node](), set[int]()
    for node in nodes:
        if id(node) in skipped:
            continue
        if node.op == "Linear" and len(node.inputs) == 2 and uses.count(node.outputs[0]) == 1:
            after = next((each for each in nodes if node.outputs[0] in each.inputs), None)
            bias = (
                None
                if after is None or after.op != "Add"
                else _other(after.inputs, node.outputs[0])
            )
            if (
                after is not None
                and bias in constants
                and constants[bias].shape == constants[node.inputs[1]].shape[:1]
            ):
                node = _Node("Linear", [*node.inputs, bias], after.outputs, {})
                skipped.add(id(after))
        kept.append(node)
    return _used(kept, outputs)


FOLDED: dict[str, Callable[[list[Array], dict[str, Any]], Array]] = {
    "Add": lambda given, attributes: given[0] + given[1],
    "Concat": lambda given, attributes: np.concatenate(given, attributes["axis"]),
    "Mul": lambda given, attributes: given[0] * given[1],
    "Transpose": lambda given, attributes: np.transpose(given[0], attributes.get("perm")),
}


def _folded(nodes: list[_Node], constants: dict[str, Array]) -> list[_Node]:
    """Without operators of constants alone, which PyTorch keeps where these are large."""
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
        weight = constants.get(node.inputs[1]) if node.op in ("MatMul", "Gemm") else None
        if weight is not None and weight.ndim == 2 and _is_plain(node):
            name = node.inputs[1]
            if not node.attributes.get("transB"):
                name = f"{name} transposed"
                constants[name] = np.ascontiguousarray(weight.T)
            node = _Node("Linear", [node.inputs[0], name, *node.inputs[2:]], node.outputs, {})
        found.append(node)
    return found


def _is_plain(node: _Node) -> bool:
    table = node.attributes
    return table.get("alpha", 1.0) == table.get("beta", 1.0) == 1.0 and not table.get("transA")


def _used(nodes: list[_Node], outputs: Sequence[str]) -> list[_Node]:
    """Without nodes that nothing reads."""
    needed, kept = set(outputs), list[_Node]()
    for node in reversed(nodes):
        if needed & set(node.outputs):
            kept.append(node)
            needed |= {name for each in _all_nodes([node]) for name in each.inputs}
            needed |= set() if node.body is None else set(node.body.outputs)
    return kept[::-1]


def _all_nodes(nodes: Sequence[_Node]) -> Iterator[_Node]:
    for node in nodes:
        yield node
        if node.body is not None:
            yield from _all_nodes(node.body.nodes)


def _read_by_row(name: str, nodes: Sequence[_Node]) -> bool:
    """Whether a weight is only multiplied with, convolved with, or gathered by rows."""
    uses = [
        (node, i)
        for node in _all_nodes(nodes)
        for i, each in enumerate(node.inputs)
        if each == name
    ]
    places = {"Linear": 1, "Conv": 1, "Gather": 0}
    return all(places.get(node.op) == i and not node.attributes.get("axis") for node, i in uses)


def _swaps_last(perm: Sequence[int] | None) -> bool:
    return perm is not None and list(perm) == [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]


def _other(pair: Sequence[str], one: str) -> str:
    return pair[1] if pair[0] == one else pair[0]


def _as_json(array: Array) -> dict[str, Any]:
    """A constant as JSON: numbers that are not finite as texts."""
    kind = "f"
    if array.dtype == np.bool_:
        kind = "b"
    elif np.issubdtype(array.dtype, np.integer):
        kind = "i"
    values = array.ravel().tolist()
    if kind == "i":
        values = [max(-LARGEST, min(LARGEST, value)) for value in values]
    elif kind == "f":
        values = [value if isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
                  for value in values]  # fmt: skip
    return {
        "type": kind,
        "shape": list(array.shape),
        "values": [int(v) if kind == "b" else v for v in values],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, tuple) else value


def _shape(value: Any) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def _type(value: Any) -> str:
    return {1: "f", 7: "i", 9: "b"}[value.type.tensor_type.elem_type]
