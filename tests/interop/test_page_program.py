"""Programs of an exported page: how the nodes of a graph are joined."""

import numpy as np

from regard.interop.page.program import _fused, _Node


def test_biases_are_part_of_the_products_before_them():
    """An addition of its own reads and writes every row once more."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    constants = {"w": weight, "bias": weight[:, 0], "other": weight[:1, :1]}
    nodes = [
        _Node("Linear", ["x", "w"], ["product"], {}),
        _Node("Add", ["product", "bias"], ["y"], {}),
        _Node("Linear", ["x", "w"], ["second"], {}),
        _Node("Add", ["second", "other"], ["z"], {}),
    ]
    fused = _fused(nodes, constants, ["y", "z"])
    assert [(node.op, node.inputs, node.outputs) for node in fused] == [
        ("Linear", ["x", "w", "bias"], ["y"]),
        ("Linear", ["x", "w"], ["second"]),
        ("Add", ["second", "other"], ["z"]),
    ]
