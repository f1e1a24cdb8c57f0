"""Files beside ONNX graphs: tokenizers that give the ids of the model, image processors, options of the search."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tokenizers

from regard.data.fields.base import make_field
from regard.data.images import load_image, normalize
from regard.data.special_tokens import SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.interop.onnx import target
from regard.interop.onnx.files import generation_config, preprocessor_config, write_tokenizers
from support.captioners import captioner
from support.onnx_members import masked_language_model, two_sources
from support.predictors import language_model, translator

TEXT = "the red dog sat"


def read(path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(path.read_text("utf-8"))


def test_tokenizers_give_the_ids_that_a_model_reads(tmp_path):
    """With the special tokens around a text; a target of its own has none around it."""

    def around(words: Tokenizer) -> list[int]:
        special = words.special_tokens
        return [*special.source_prefix, *words.encode(TEXT), *special.source_suffix]

    def files(name, model):
        folder = tmp_path / name
        folder.mkdir()
        write_tokenizers(model, folder)
        return {path.name: path for path in folder.iterdir()}

    shared = translator()
    found = files("shared", shared)
    assert sorted(found) == ["tokenizer.json", "tokenizer_config.json"]
    assert (
        read(found["tokenizer.json"]).encode(TEXT).ids
        == around(shared.source)
        != shared.target.encode(TEXT)
    )

    other = train_tokenizer("characters", ["other words, the red dogs"], 300)
    own = replace(shared, target=other)
    found = files("own", own)
    assert sorted(found) == ["target_tokenizer.json", "tokenizer.json", "tokenizer_config.json"]
    assert read(found["target_tokenizer.json"]).encode(TEXT).ids == list(other.encode(TEXT))
    assert read(found["tokenizer.json"]).encode(TEXT).ids == around(shared.source)

    masked = masked_language_model()
    found = files("masked", masked)
    assert sorted(found) == ["tokenizer.json", "tokenizer_config.json"]
    special = masked.target.special_tokens
    assert read(found["tokenizer.json"]).encode(TEXT).ids == around(masked.target)
    config = json.loads(found["tokenizer_config.json"].read_text())
    assert config["mask_token"] == masked.target.tokens()[special.mask]
    assert "add_bos_token" not in config

    lines = language_model()
    found = files("lines", lines)
    assert read(found["tokenizer.json"]).encode(TEXT).ids == [
        lines.target.special_tokens.end
        if lines.running_text
        else lines.target.special_tokens.start,
        *lines.target.encode(TEXT),
    ]
    assert json.loads(found["tokenizer_config.json"].read_text())["add_bos_token"] is True

    captions = captioner("transformer")
    found = files("captions", captions)
    assert read(found["tokenizer.json"]).encode(TEXT).ids[1:] == list(captions.target.encode(TEXT))

    several = two_sources()
    found = files("several", several)
    assert sorted(found) == [
        "labels.json", "tokenizer.json", "tokenizer_2.json", "tokenizer_3.json", "tokenizer_config.json"
    ]  # fmt: skip
    assert read(found["tokenizer_3.json"]).encode(TEXT).ids == around(several.sources[2])
    assert json.loads(found["labels.json"].read_text()) == json.loads(several.sources[0].to_json())


@pytest.mark.parametrize(
    "changes", [{}, {"image_crop_from": 48}, {"image_resize": "nearest", "image_size": 40}]
)
def test_image_processors_make_the_pixels_that_a_model_reads(changes):
    transformers = pytest.importorskip("transformers")
    field = make_field(**{"kind": "image", "image_size": 32} | changes)
    settings = preprocessor_config(field)
    name = settings.pop("image_processor_type")
    picture = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    size, resize, crop_from = field.resizing
    square = np.asarray(load_image(picture, crop_from or size, resize))
    wanted = normalize(square[None], field.image_mean, field.image_std)[0]
    if crop_from:
        edge = (crop_from - size) // 2
        wanted = wanted[:, edge : edge + size, edge : edge + size]
    if not hasattr(transformers, f"{name}Pil") and not hasattr(transformers, name):
        pytest.skip("no image processor here")
    made = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    found = np.asarray(made(**settings)(picture, return_tensors="np")["pixel_values"][0])
    assert found.shape == wanted.shape == (3, field.image_size, field.image_size)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


def test_options_of_the_search_are_those_of_the_recipe():
    model = translator().with_decode(
        max_length=9, beam_size=3, length_penalty=0.5, no_repeat_ngram_size=2
    )
    found = generation_config(model)
    assert (found["max_new_tokens"], found["num_beams"], found["do_sample"]) == (9, 3, False)
    assert (found["length_penalty"], found["no_repeat_ngram_size"]) == (0.5, 2)
    assert (
        not {"temperature", "top_k", "top_p", "forced_bos_token_id", "forced_decoder_ids"}
        & found.keys()
    )
    sampled = generation_config(
        model.with_decode(beam_size=1, length_penalty=1.0, sample=True, temperature=0.7)
    )
    assert (sampled["num_beams"], sampled["temperature"], sampled["top_k"], sampled["top_p"]) == (
        1,
        0.7,
        0,
        1.0,
    )
    some = model.with_decode(beam_size=1, length_penalty=1.0, sample=True, top_k=5, top_p=0.9)
    assert (generation_config(some)["top_k"], generation_config(some)["top_p"]) == (5, 0.9)


@pytest.mark.parametrize(
    ("prefix", "key", "wanted"),
    [((7,), "forced_bos_token_id", 7), ((7, 8), "forced_decoder_ids", [[1, 7], [2, 8]])],
)
def test_tokens_that_begin_every_output_are_forced(prefix, key, wanted):
    model = translator()
    words = model.target
    special = replace(words.special_tokens, target_prefix=prefix)
    assert isinstance(special, SpecialTokens)
    began = replace(
        model, target=Tokenizer(tokenizers.Tokenizer.from_str(words.to_json()), special, words.size)
    )
    found = generation_config(began)
    assert found[key] == wanted
    assert len({"forced_bos_token_id", "forced_decoder_ids"} & found.keys()) == 1


@pytest.mark.parametrize("beside", [False, True], ids=["in the file", "beside it"])
def test_a_quantized_graph_takes_the_place_of_the_other(tmp_path, beside):
    """With the file of its weights, where they are beside it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, weight = onnx.helper, np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    shapes = {"x": [None, 64], "y": [None, 32]}
    sides = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name])] for name in "xy"
    ]
    graph = helper.make_graph(nodes, "graph", *sides, [onnx.numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    path = tmp_path / "model.onnx"
    onnx.save(
        model, path, save_as_external_data=beside, location="model.onnx_data", size_threshold=0
    )
    assert (tmp_path / "model.onnx_data").exists() is beside
    target._quantize(path)
    found = sorted(each.name for each in tmp_path.iterdir())
    assert found[0] == "model_quantized.onnx"
    assert not {"model.onnx", "model.onnx_data"} & {*found}
    assert onnx.load(tmp_path / "model_quantized.onnx").graph.initializer
