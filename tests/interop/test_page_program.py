"""Programs of an exported page: how the nodes of a graph are joined."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import regard
from regard.interop.onnx.target import predictor_graphs
from regard.interop.page.program import _as_json, _fused, _Node, _plain
from regard.interop.page.settings import ModelSettings
from regard.interop.page.target import marked
from regard.interpret.sites import attention_sites
from support.onnx_members import PREDICTORS
from support.predictors import translator


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
    assert found == {
        each.name for each in sites.values() if each.part == "decoder" and each.kind == "self"
    }


def test_constants_are_json_that_javascript_reads_as_the_same_numbers():
    """Integers are 32 bits there: "to the end" in a slice is the largest of them. JSON has no infinities."""
    assert _as_json(np.array([[1, -2, 2**63 - 1, -(2**63)]])) == {
        "type": "i", "shape": [1, 4], "values": [1, -2, 2**31 - 1, 1 - 2**31]
    }  # fmt: skip
    numbers = _as_json(np.array([0.5, np.inf, -np.inf, np.nan], dtype=np.float32))
    assert numbers == {"type": "f", "shape": [4], "values": [0.5, "Infinity", "-Infinity", "NaN"]}
    assert _as_json(np.array([True, False])) == {"type": "b", "shape": [2], "values": [1, 0]}


def test_attributes_are_plain_values():
    assert [_plain(each) for each in (b"linear", (1, 2), [3], 4, 0.5)] == [
        "linear",
        [1, 2],
        [3],
        4,
        0.5,
    ]


def test_a_page_reads_sources_as_long_as_the_model_does():
    """Positions that are learned leave room for the special tokens and one more."""
    model = translator(encoder="transformer")
    encoder = {
        "kind": "transformer",
        "dim": 16,
        "heads": 2,
        "layers": 1,
        "positions": "learned",
        "max_positions": 20,
    }
    parts = model.recipe.as_dict()["model"] | {"encoder": encoder}
    built = regard.build(
        {"encoder": encoder, "decoder": parts["decoder"], "vocab_size": model.target.size}
    ).eval()
    limited = replace(model, model=built)
    (found,) = ModelSettings(limited)._sources()
    cut, _ = limited.inputs.truncate([[5] * 100], 50, truncate=True)
    assert found["limit"] == len(cut[0]) < 20
