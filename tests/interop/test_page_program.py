"""Programs of an exported page: how the nodes of a graph are joined."""

import numpy as np
import pytest
import torch

from regard.interop.onnx.target import predictor_graphs
from regard.interop.page.program import _fused, _Node
from regard.interop.page.target import marked
from regard.interpret.sites import attention_sites
from support.onnx_members import PREDICTORS


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


@pytest.mark.parametrize("name", [name for name in PREDICTORS if name != "int8"])
@torch.inference_mode()
def test_the_sites_without_later_keys_are_those_of_a_decoder_over_its_own_output(name):
    """Whose maps a page draws as triangles."""
    model = PREDICTORS[name][0]()
    sites = attention_sites(model.model)
    graphs = [marked(graph, sites) for graph in predictor_graphs(model, attention=False)]
    for graph in graphs:
        graph.run({each.name: each.example() for each in graph.inputs})
    found = {name for graph in graphs for name in graph.causal}
    assert found == {each.name for each in sites.values() if each.part == "decoder" and each.kind == "self"}
