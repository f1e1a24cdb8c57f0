"""generation_config.json and preprocessor_config.json as [decode] and [data.source]."""

import json
import logging
import random

import pytest
import torch

from regard.core.errors import RegardError
from regard.generation.choose.sampling import filtered
from regard.generation.config import DecodeConfig
from regard.interop.generation import read_generation
from regard.interop.huggingface import generation_config
from regard.interop.images import image_field, preprocessor_config
from regard.recipe.recipe import Recipe
from support.predictors import translator

READ = {
    "beam": ({"num_beams": 4, "length_penalty": 0.6, "max_length": 60, "min_length": 5},
             {"beam_size": 4, "length_penalty": 0.6, "max_length": 59, "min_length": 4}),
    "early": ({"num_beams": 4, "early_stopping": True}, {"beam_size": 4, "early_stopping": True}),
    "never": ({"num_beams": 4, "early_stopping": "never"}, {"beam_size": 4, "early_stopping": "never"}),
    "early without a beam": ({"early_stopping": True}, {"beam_size": 1}),
    "greedy": ({"max_new_tokens": 30}, {"beam_size": 1, "max_length": 30}),
    "sampling": ({"do_sample": True, "top_k": 50, "top_p": 1.0, "temperature": 0.7, "num_return_sequences": 3},
                 {"sample": True, "top_k": 50, "temperature": 0.7, "num_hypotheses": 3}),
    "groups": ({"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.2, "repetition_penalty": 1.3},
               {"beam_size": 6, "beam_groups": 3, "diversity_penalty": 0.2, "repetition_penalty": 1.3}),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_options_become_a_decode_table(name, tmp_path):
    given, wanted = READ[name]
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    decode = read_generation(tmp_path, {}, has_source=True).decode
    assert {
        key: value for key, value in decode.items() if value != getattr(DecodeConfig(), key)
    } == {key: value for key, value in wanted.items() if value != getattr(DecodeConfig(), key)}
    DecodeConfig(**decode)
    (tmp_path / "generation_config.json").unlink()
    assert (
        read_generation(tmp_path, given, has_source=True).decode == decode
    )  # old files have them in config.json


@pytest.mark.parametrize("name", READ)
def test_an_exported_decode_table_is_read_back_and_valid_for_them(name, tmp_path):
    wanted = {"max_length": 40, **READ[name][1]}
    written = generation_config(translator().with_decode(**wanted), {})
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    read = DecodeConfig(**read_generation(tmp_path, {}, has_source=True).decode)
    assert read == DecodeConfig(**wanted)
    theirs = pytest.importorskip("transformers").GenerationConfig
    theirs.from_dict(written).validate(strict=True)


@pytest.mark.parametrize(("given", "ends"), [([2, 7, 2], (2, 7)), (5, (5,)), (None, ())])
def test_several_tokens_may_end_an_output(given, ends, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
    assert read_generation(tmp_path, {}, has_source=True).ends == ends


def test_an_old_file_forces_its_first_token_by_another_key(tmp_path):
    """As distilbart's; generation_config.json overrules it."""
    config = {"force_bos_token_to_be_generated": True, "bos_token_id": 3}
    assert read_generation(tmp_path, config, has_source=True).target_prefix == (3,)
    off = config | {"force_bos_token_to_be_generated": False}
    assert read_generation(tmp_path, off, has_source=True).target_prefix == ()
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 2}))
    assert read_generation(tmp_path, config, has_source=True).target_prefix == ()


SAMPLING = {
    "temperature": [None, 0.5, 1.7],
    "top_k": [None, 0, 7],
    "top_p": [None, 1.0, 0.6],
    "min_p": [None, 0.05],
    "typical_p": [None, 1.0, 0.7],
}


def test_samples_are_drawn_from_the_tokens_that_transformers_draws_from(tmp_path):
    """Options with a value, with null, and left out: their defaults are those of transformers."""
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 80, "n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 4}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size))
    choose = random.Random(5)
    scores = torch.randn(1, 80, generator=torch.Generator().manual_seed(2))
    files = [{}, {"top_k": None}, {"top_p": 0.9}, {"typical_p": None, "temperature": 0.7}]
    for _ in range(40):
        chosen = choose.sample(list(SAMPLING), choose.randint(0, len(SAMPLING)))
        files.append({key: choose.choice(SAMPLING[key]) for key in chosen})
    for given in files:
        (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True} | given))
        decode = DecodeConfig(**read_generation(tmp_path, {}, has_source=False).decode)
        theirs.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path)
        effective, _ = theirs._prepare_generation_config(None)
        processors = theirs._get_logits_processor(effective, input_ids_seq_length=1)
        wanted = processors(torch.zeros(1, 1, dtype=torch.long), scores.clone())
        got = filtered(scores[None], decode)[0]
        assert torch.equal(got.isfinite(), wanted.isfinite()), given
        torch.testing.assert_close(got.softmax(-1), wanted.softmax(-1))


def test_options_of_config_json_count_only_in_a_folder_without_generation_config(tmp_path):
    old = {"num_beams": 3, "length_penalty": 0.5, "bad_words_ids": [[4]]}
    assert read_generation(tmp_path, old, has_source=True).decode["beam_size"] == 3
    assert read_generation(tmp_path, old, has_source=True).bad_words == (4,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"length_penalty": 0.8}))
    read = read_generation(tmp_path, old, has_source=True)
    assert (read.decode["beam_size"], read.decode["length_penalty"]) == (1, 0.8)
    assert read.bad_words == ()


@pytest.mark.parametrize("strings", ["stop", ["a", "</answer>"]])
def test_stop_strings_are_imported(strings, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"stop_strings": strings}))
    decode = DecodeConfig(**read_generation(tmp_path, {}, has_source=False).decode)
    assert list(decode.stop) == ([strings] if isinstance(strings, str) else strings)


def test_options_that_are_turned_off_are_not_reported(tmp_path, caplog):
    off = {"epsilon_cutoff": 0.0, "encoder_no_repeat_ngram_size": 0, "guidance_scale": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(off))
    with caplog.at_level(logging.WARNING, "regard"):
        read_generation(tmp_path, {}, has_source=True)
    assert not caplog.records


LEFT_OUT = {
    "an option of another library": ({"penalty_alpha": 0.6}, "penalty_alpha = 0.6 is not imported"),
    "a repetition penalty of greedy search": (
        {"repetition_penalty": 1.2},
        "repetition_penalty is not imported",
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_reported(name, tmp_path, caplog):
    given, message = LEFT_OUT[name]
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    with caplog.at_level(logging.WARNING, "regard"):
        read_generation(tmp_path, {}, has_source=True)
    assert message in caplog.text


WRONG = {
    "num_beams": "four", "max_length": -3, "length_penalty": [1.0], "do_sample": "yes", "top_p": 7.0,
    "max_new_tokens": 10**12, "bad_words_ids": [["x"]], "eos_token_id": {"id": 2}, "pad_token_id": -1,
    "early_stopping": "soon", "stop_strings": [3],
}  # fmt: skip


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_is_refused_with_file_and_key(key, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({key: WRONG[key]}))
    name = "max_new_tokens" if key == "max_length" else key
    with pytest.raises(RegardError, match=rf"generation_config\.json: ({key}|{name}): wanted"):
        read_generation(tmp_path, {}, has_source=True)


def test_image_preprocessing_is_read_and_written(tmp_path):
    given = {
        "do_resize": True,
        "size": {"height": 256, "width": 256},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.4],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    field = image_field(tmp_path, {"image_size": 224})
    assert field == {"kind": "image", "image_size": 224, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4],
                     "image_resize": "bicubic", "image_crop_from": 256}  # fmt: skip
    vit = {"kind": "vit", "patch_size": 16}
    model = {"encoder": vit, "pool": {"kind": "mean"}}
    recipe = Recipe.of({"data": {"source": field, "target": {"kind": "label"}}, "model": model})
    written = preprocessor_config(recipe.data.source_fields[0])
    assert {key: written[key] for key in given} == given


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("do_resize", False),
        ("do_rescale", "no"),
        ("resample", 9),
        ("size", {"height": 3, "width": 4}),
        ("size", "big"),
    ],
)
def test_preprocessing_that_we_do_not_do_is_refused(key, value, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(RegardError, match=rf"preprocessor_config\.json: {key}: wanted"):
        image_field(tmp_path, {"image_size": 224})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"size": {"height": 224, "width": 224}},
        {"size": 224},
        {"size": {"height": 64, "width": 64}},
    ],
)
def test_the_size_of_images_is_that_of_the_model_or_left_out(given, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    if "64" in str(given):
        with pytest.raises(RegardError, match="size: wanted 224"):
            image_field(tmp_path, {"image_size": 224})
    else:
        assert "image_crop_from" not in image_field(tmp_path, {"image_size": 224})
