"""Programs and settings of an exported page: values as the ONNX graph computes them, vocabularies as the model has."""

from dataclasses import replace

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs the extra `onnx`")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402  after the check
from onnx.reference import ReferenceEvaluator  # noqa: E402

import regard  # noqa: E402
from regard.core.errors import InvalidArgument  # noqa: E402
from regard.data.images import image_token_cost  # noqa: E402
from regard.interop.page.program import WeightBytes, program  # noqa: E402
from regard.interop.page.settings import ModelSettings  # noqa: E402
from regard.interpret.sites import attention_sites  # noqa: E402
from support.captioners import DECODERS, captioner, questioner  # noqa: E402
from support.predictors import PARTS, classifier, language_model, translator  # noqa: E402

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def written(tmp_path, nodes, weights, inputs, outputs):
    """An ONNX file of these nodes; sizes of 0 are any."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(name, kind, [size or "N" for size in shape])
            for name, kind, shape in inputs
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    path = tmp_path / "graph.onnx"
    onnx.save(model, path)
    return path


def values_of(table: dict, weights: WeightBytes) -> dict[int, np.ndarray]:
    """The constants and weights of a program, as the page reads them."""
    content, found = b"".join(weights.parts), {}
    assert len(content) == weights.size
    for each in table["constants"]:
        found[each["value"]] = np.array(
            each["values"], np.int64 if each["type"] == "i" else np.float32
        ).reshape(each["shape"])
    for each in table["weights"]:
        assert each["offset"] % 16 == 0
        count = int(np.prod(each["shape"]))
        if "scales" in each:
            assert each["scales"] % 16 == 0
            rows = np.frombuffer(content, np.int8, count, each["offset"]).reshape(each["shape"])
            scales = np.frombuffer(content, "<f4", each["shape"][0], each["scales"])
            found[each["value"]] = rows * scales.reshape(-1, *[1] * (rows.ndim - 1))
        else:
            found[each["value"]] = np.frombuffer(content, "<f4", count, each["offset"]).reshape(
                each["shape"]
            )
    return found


def run(table: dict, weights: WeightBytes, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the program computes, by NumPy."""
    values = values_of(table, weights)
    values |= {each["value"]: given[each["name"]] for each in table["inputs"]}
    assert {*values} <= {*range(table["values"])}
    for node in table["nodes"]:
        read = [values[number] for number in node["inputs"]]
        attributes = node.get("attributes", {})
        match node["op"]:
            case "Linear":
                result = read[0] @ read[1].T + (read[2] if len(read) > 2 else 0)
            case "MatMul":
                result = read[0] @ (
                    np.swapaxes(read[1], -1, -2) if attributes.get("transposed") else read[1]
                )
            case "Add":
                result = read[0] + read[1]
            case "Transpose":
                result = np.transpose(read[0], attributes["perm"])
            case "Gather":
                result = np.take(read[0], read[1], attributes.get("axis", 0))
            case other:
                raise AssertionError(other)
        values[node["outputs"][0]] = result
    return [values[each["value"]] for each in table["outputs"]]


def node(op: str, inputs: str, output: str, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741
GRAPHS = {
    "products and their bias": (
        [node("MatMul", "x w", "a"), node("Add", "a b", "y"), node("Gemm", "y v c", "z", transB=1)],
        {"w": numbers(8, 6), "b": numbers(6), "v": numbers(5, 6), "c": numbers(5)},
        [("x", F, [0, 8])], ["z"],
    ),
    "a bias that stands first, and one of another shape": (
        [node("MatMul", "x w", "a"), node("Add", "b a", "y"), node("MatMul", "y v", "c"), node("Add", "c d", "z")],
        {"w": numbers(8, 6), "b": numbers(6), "v": numbers(6, 4), "d": numbers(1)},
        [("x", F, [0, 8])], ["z"],
    ),
    "a product that is read twice": (
        [node("MatMul", "x w", "a"), node("Add", "a b", "y"), node("Add", "a y", "z")],
        {"w": numbers(8, 6), "b": numbers(6)}, [("x", F, [0, 8])], ["z"],
    ),
    "a product that is an output": (
        [node("MatMul", "x w", "a"), node("Add", "a b", "y")],
        {"w": numbers(8, 6), "b": numbers(6)}, [("x", F, [0, 8])], ["a", "y"],
    ),
    "transposed operands": (
        [node("Transpose", "k", "t", perm=[0, 2, 1]), node("MatMul", "q t", "s"),
         node("Transpose", "k", "u", perm=[0, 1, 2]), node("MatMul", "s u", "z")],
        {}, [("q", F, [2, 0, 4]), ("k", F, [2, 0, 4])], ["z"],
    ),
    "a transposed operand that is used besides": (
        [node("Transpose", "k", "t", perm=[0, 2, 1]), node("MatMul", "q t", "s")],
        {}, [("q", F, [2, 3, 4]), ("k", F, [2, 5, 4])], ["s", "t"],
    ),
    "a tied embedding": (
        [node("Gather", "e ids", "x"), node("Transpose", "e", "t", perm=[1, 0]), node("MatMul", "x t", "z")],
        {"e": numbers(40, 32)}, [("ids", I, [0])], ["z"],
    ),
    "constants are joined": (
        [node("Concat", "a b", "w", axis=1), node("Mul", "w s", "v"), node("MatMul", "x v", "y"),
         node("Add", "c d", "e"), node("Add", "y e", "z")],
        {"a": numbers(8, 3), "b": numbers(8, 4), "s": numbers(7), "c": numbers(7), "d": numbers(7)},
        [("x", F, [0, 8])], ["z"],
    ),
    "gathered by columns": (
        [node("Gather", "e ids", "x", axis=1)], {"e": numbers(40, 32)}, [("ids", I, [0])], ["x"],
    ),
    "gathered and added": (
        [node("Gather", "e ids", "x"), node("Add", "e e", "y"), node("Gather", "y ids", "u"), node("Add", "x u", "v"),
         node("Add", "t e", "z")],
        {"e": numbers(32, 32)}, [("ids", I, [0]), ("t", F, [32, 32])], ["v", "z"],
    ),
    "multiplied and added": (
        [node("MatMul", "x w", "a"), node("Add", "a u", "z")], {"w": numbers(32, 40), "u": numbers(1, 40)},
        [("x", F, [0, 32])], ["z"],
    ),
    "Gemm with factors": (
        [node("Gemm", "x v c", "z", transB=1, alpha=0.5, beta=2.0)], {"v": numbers(5, 6), "c": numbers(5)},
        [("x", F, [0, 6])], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "Gemm with factors"])
def test_a_program_computes_what_its_graph_does(tmp_path, name, quantization):
    nodes, weights, inputs, outputs = GRAPHS[name]
    path, stored = written(tmp_path, nodes, weights, inputs, outputs), WeightBytes(quantization)
    table = program(path, stored)
    assert [(each["name"], each["type"]) for each in table["inputs"]] == [
        (name, "f" if kind == F else "i") for name, kind, _ in inputs
    ]
    assert [each["shape"] for each in table["inputs"]] == [
        [size or "N" for size in shape] for _, _, shape in inputs
    ]
    given = {
        name: numbers(*(size or 3 for size in shape))
        if kind == F
        else np.array([0, 7, 31, 7][: shape[0] or 4])
        for name, kind, shape in inputs
    }
    wanted = ReferenceEvaluator(str(path)).run(None, given)
    precision = 1e-5 if quantization is None else 0.15
    for found, right in zip(run(table, stored, given), wanted, strict=True):
        np.testing.assert_allclose(found, right, atol=precision, rtol=precision)


def test_products_with_weights_are_one_operator_each(tmp_path):
    ops = {}
    for name in GRAPHS:
        nodes, weights, inputs, outputs = GRAPHS[name]
        path = written(tmp_path, nodes, weights, inputs, outputs or ["z"])
        ops[name] = [each["op"] for each in program(path, WeightBytes(None))["nodes"]]
    assert ops == {
        "products and their bias": ["Linear", "Linear"],
        "a bias that stands first, and one of another shape": ["Linear", "Linear", "Add"],
        "a product that is read twice": ["Linear", "Add", "Add"],
        "a product that is an output": ["Linear", "Add"],
        "transposed operands": ["MatMul", "Transpose", "MatMul"],
        "a transposed operand that is used besides": ["Transpose", "MatMul"],
        "a tied embedding": ["Gather", "Linear"],
        "constants are joined": ["Linear"],
        "gathered by columns": ["Gather"],
        "gathered and added": ["Gather", "Gather", "Add", "Add"],
        "multiplied and added": ["Linear", "Add"],
        "Gemm with factors": ["Gemm"],
    }


def test_equal_weights_are_stored_once_and_large_ones_by_rows_in_int8(tmp_path):
    nodes, weights, inputs, outputs = GRAPHS["a tied embedding"]
    path, sizes = written(tmp_path, nodes, weights, inputs, outputs), {}
    for quantization in (None, "int8"):
        stored = WeightBytes(quantization)
        table = program(path, stored)
        assert len({each["offset"] for each in table["weights"]}) == 1
        assert all(("scales" in each) == (quantization == "int8") for each in table["weights"])
        sizes[quantization] = stored.size
    assert sizes == {None: 4 * 40 * 32, "int8": 40 * 32 + 4 * 40}
    stored = WeightBytes("int8")
    for shape, rows, is_int8 in (
        ((32, 32), True, True),
        ((31, 33), True, False),
        ((32, 32), False, False),
    ):
        assert ("scales" in stored.add(np.ones(shape, np.float32), rows=rows)) == is_int8, shape
    for name, are_int8 in {
        "gathered by columns": [False],
        "multiplied and added": [True],
        "gathered and added": [False, True],  # one of them is read by rows and otherwise
    }.items():
        nodes, weights, inputs, outputs = GRAPHS[name]
        table = program(written(tmp_path, nodes, weights, inputs, outputs), WeightBytes("int8"))
        assert ["scales" in each for each in table["weights"]] == are_int8, name


def test_few_numbers_that_are_no_rows_are_written_as_json(tmp_path):
    for size, inline in ((64, True), (65, False)):
        path = written(
            tmp_path, [node("Add", "x c", "z")], {"c": numbers(size)}, [("x", F, [0])], ["z"]
        )
        table = program(path, WeightBytes(None))
        assert (len(table["constants"]), len(table["weights"])) == ((1, 0) if inline else (0, 1))
    ids = np.arange(100)
    path = written(tmp_path, [node("Gather", "x c", "z")], {"c": ids}, [("x", F, [0])], ["z"])
    (constant,) = program(path, WeightBytes(None))["constants"]
    assert (constant["type"], constant["values"]) == ("i", ids.tolist())


def test_operators_that_the_page_does_not_run_are_refused(tmp_path):
    for op, domain, got in (("Det", "", "ONNX Det"), ("Add", "other", "other Add")):
        nodes = [helper.make_node(op, ["x"], ["z"], domain=domain)]
        path = written(tmp_path, nodes, {}, [("x", F, [3, 3])], ["z"])
        with pytest.raises(
            InvalidArgument, match=f"wanted a graph of operators that the page runs; got {got}"
        ):
            program(path, WeightBytes(None))


def test_a_loop_has_its_body(tmp_path):
    body = helper.make_graph(
        [
            node("MatMul", "state w", "after"),
            node("Add", "after item", "next"),
            node("Transpose", "next", "out", perm=[1, 0]),
        ],
        "body",
        [helper.make_tensor_value_info(name, F, None) for name in ("state", "item")],
        [helper.make_tensor_value_info(name, F, None) for name in ("next", "out")],
        [numpy_helper.from_array(numbers(4, 4), "w")],
    )
    scan = helper.make_node(
        "Scan", ["first", "items"], ["last", "all"], body=body, num_scan_inputs=1
    )
    unused = node("Add", "first first", "unread")
    path = written(
        tmp_path,
        [scan, unused],
        {},
        [("first", F, [1, 4]), ("items", F, [0, 1, 4])],
        ["last", "all"],
    )
    table = program(path, WeightBytes(None))
    (found,) = table["nodes"]
    assert (found["op"], found["attributes"]) == ("Scan", {"num_scan_inputs": 1})
    inner = found["body"]
    assert [each["op"] for each in inner["nodes"]] == ["Linear", "Add", "Transpose"]
    numbered = {each["name"]: each["value"] for each in (*table["inputs"], *table["outputs"])}
    assert found["inputs"] == [numbered["first"], numbered["items"]]
    assert found["outputs"] == [numbered["last"], numbered["all"]]
    product, addition, turned = inner["nodes"]
    assert product["inputs"][0] == inner["inputs"][0]
    assert addition["inputs"] == [product["outputs"][0], inner["inputs"][1]]
    assert inner["outputs"] == [addition["outputs"][0], turned["outputs"][0]]
    assert product["inputs"][1] == table["weights"][0]["value"]


def test_inputs_that_are_left_out_have_no_number(tmp_path):
    clip = helper.make_node("Clip", ["x", "", "most"], ["z"])
    path = written(tmp_path, [clip], {"most": np.array(1.0, np.float32)}, [("x", F, [0])], ["z"])
    (found,) = program(path, WeightBytes(None))["nodes"]
    assert found["inputs"][1] is None
    assert None not in (found["inputs"][0], found["inputs"][2])


# --- settings ---

MODELS = {
    "text": translator,
    "running text": lambda: language_model(context_length=8),
    "labels": classifier,
    "image": lambda: captioner("transformer"),
    "several": lambda: questioner(DECODERS["rnn"]),
}


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_settings_are_those_of_the_model(name):
    model = MODELS[name]()
    sites = attention_sites(model.model)
    causal = [site.name for site in sites.values()][:1]
    found = ModelSettings(model).as_dict("A title", causal)
    assert (found["version"], found["title"]) == (1, "A title")
    for source, field in zip(found["sources"], model.recipe.data.source_fields, strict=True):
        assert source["kind"] == field.kind
        if field.kind == "image":
            assert (source["size"], source["resize"]) == (field.image_size, field.image_resize)
            assert (source["mean"], source["std"]) == (field.image_mean, field.image_std)
            assert source["cost"] == image_token_cost(field.image_size)
            assert source["crop_from"] == field.image_crop_from
            rows, columns = source["grid"]
            assert rows == columns > 1
        else:
            assert source["limit"] == model.recipe.decode.max_source_length
    if name in ("text", "running text"):
        assert len(found["tokenizers"]) == 1  # source and target share it
        assert found["target"] == {"kind": "text", "tokenizer": 0}
    if name == "labels":
        assert found["target"] == {"kind": "label", "labels": ["bad", "fine", "good"]}
        assert not {"decode", "special"} & found.keys()
    else:
        special, decode = model.target.special_tokens, found["decode"]
        running = name == "running text"
        assert decode["first"] == (special.end if running else special.start)
        assert decode["ends"] is not running
        assert decode["window"] == (8 if running else None)
        assert decode["positions"] is None
        assert decode["prompt_limit"] == model.recipe.decode.max_source_length
        assert decode["max_length"] == model.recipe.decode.max_length
        assert found["special"] == {"end": special.end, "suppressed": special.suppressed}
    for each, (module, site) in zip(found["sites"], sites.items(), strict=True):
        assert (each["name"], each["kind"], each["part"]) == (site.name, site.kind, site.part)
        assert (each["layer"], each["source"], each["heads"]) == (
            site.layer,
            site.source,
            module.heads,
        )
        assert each["causal"] is (site.name in causal)
    if name == "several":
        assert [each["kind"] for each in found["sources"]] == ["image", "text"]


@pytest.mark.parametrize(
    ("window", "positions", "limit"), [(None, 20, 18), (None, None, 1000), (8, None, 1000)]
)
def test_a_page_continues_prompts_as_long_as_the_decoder_reads(window, positions, limit):
    if window is not None:
        model = language_model(context_length=window)
    else:
        model = translator()
        if positions is not None:
            decoder = {
                "kind": "transformer",
                "dim": 16,
                "heads": 2,
                "layers": 1,
                "positions": "learned",
            }
            parts = {"encoder": PARTS["rnn"], "decoder": decoder | {"max_positions": positions}}
            model = replace(
                model, model=regard.build({**parts, "vocab_size": model.target.size}).eval()
            )
    decode = ModelSettings(model).as_dict("", [])["decode"]
    assert (decode["window"], decode["positions"], decode["prompt_limit"]) == (
        window,
        positions,
        limit,
    )
