"""Exported pages of models that read sequences of vectors, in Node.js: the numbers are those of `regard predict`."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.core.config import read
from regard.core.errors import InvalidData
from regard.data.fields.base import make_field
from regard.data.fields.vectors import array_text
from regard.generation.choose.logits_processors import LOGITS_PROCESSORS, NoRepeatNgram
from regard.generation.config import DecodeConfig
from regard.inference.example_inputs import examples_of_file
from regard.inference.predictor import Predictor
from regard.interop.onnx.target import OnnxTarget
from regard.interop.page.target import PageTarget
from regard.interpret.look import PredictedVectors
from support.browsers import browser, settled, strict_pages, until, violations
from support.node import node
from support.page_series import SCALE, SERIES, WINDOW, series
from support.page_values import check_look

FORECASTERS = [name for name in SERIES if name.startswith("forecaster")]
CLASSIFIERS = [name for name in SERIES if name.startswith("series classifier")]
RUN = """import { Model } from './model.js';
    const text = fs.readFileSync(given.page, 'utf8');
    const part = (id) => text.match(new RegExp(`id="${id}">([^<]*)<`))[1];
    const bytes = (id) => Uint8Array.from(Buffer.from(part(id), 'base64'));
    const model = await Model.load(JSON.parse(part('settings')), bytes('kernels'), bytes('weights'));
    const found = [];
    for (const [value, options] of given.runs) {
        try {
            found.push(await model.run([value], options));
        } catch (error) {
            found.push({ error: error.message });
        }
    }
    console.log(JSON.stringify(found));"""


def ran(page: Path, runs: Sequence[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """What a page computes for values, each with options."""
    return node(RUN, {"page": str(page), "runs": [list(each) for each in runs]})


def table_of(values: np.ndarray) -> str:
    cells = [["" if math.isnan(x) else repr(float(x)) for x in row] for row in values]
    return "\n".join(",".join(row) for row in cells)


def check(found: dict[str, Any], wanted: Predictor, values: np.ndarray) -> None:
    ((output,),) = wanted.outputs([values])
    scale = np.array(wanted.target.scale)
    differences = (np.array(found["vectors"]) - output.array) / scale
    assert np.abs(differences).max() < 2e-5
    written = np.array(json.loads(found["text"]))
    assert np.abs((written - np.array(json.loads(output.text))) / scale).max() < 2e-5
    assert len(found["text"]) == pytest.approx(len(output.text), abs=0.05 * len(output.text))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORECASTERS)
def test_forecasts_are_those_of_python(exports, name):
    model = SERIES[name]()
    missing = 0.2 if not model.recipe.data.source.refuses_missing else 0.0
    inputs = [series(WINDOW, seed, missing) for seed in range(3)]
    longer = series(WINDOW + 7, 9, missing)
    runs = [*((array_text(each), {}) for each in inputs), (table_of(longer), {})]
    found = ran(exports.page(name), runs)
    for ours, values in zip(found, [*inputs, longer], strict=True):
        check(ours, model, values)
        # The forecast is drawn against the channels that it continues, as the model read them.
        channels = model.target.size
        past = [[math.nan if x is None else x for x in row] for row in ours["past"]]
        np.testing.assert_allclose(past, values[-WINDOW:, :channels], rtol=1e-6)
    look = regard.look(model, inputs[0])
    check_look(found[0]["look"], look)
    assert [len(each["look"]["maps"]) for each in found] == [len(look.maps)] * 4
    searched = (array_text(inputs[0]), {"search": {"beam_size": 2}})
    refused = ran(exports.page(name), [(array_text(inputs[0][1:]), {}), searched])
    assert f"has {WINDOW - 1} vectors; the model reads {WINDOW}" in refused[0]["error"]
    assert "beam_size" in refused[1]["error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_and_probabilities_are_those_of_python(exports, name):
    model = SERIES[name]()
    inputs = [series(length, length) for length in (1, 2, 3, 9, 40)]
    found = ran(exports.page(name), [(array_text(each), {}) for each in inputs])
    outputs = model.outputs(inputs, scores=True)
    for ours, (theirs,), values in zip(found, outputs, inputs, strict=True):
        assert ours["text"] == theirs.text
        assert ours["probabilities"] == pytest.approx(theirs.probabilities, abs=1e-5)
        check_look(ours["look"], regard.look(model, values))


@pytest.mark.slow
def test_vectors_of_a_series_with_missing_numbers_are_those_of_python(exports):
    model = SERIES["vectors to vectors"]()
    inputs = [series(length, length, missing=0.2) for length in (2, 7, 30)]
    found = ran(exports.page("vectors to vectors"), [(array_text(each), {}) for each in inputs])
    for ours, values in zip(found, inputs, strict=True):
        check(ours, model, values)
        assert len(ours["vectors"]) == len(values)
        assert ours["past"] is None
        _, batch = model.encode(values)
        present = model.model.encode(batch).mask[0].tolist()
        check_look(ours["look"], regard.look(model, values), present)


@pytest.mark.slow
def test_texts_of_a_series_are_those_of_python(exports):
    model = SERIES["vectors to text"]()
    inputs = [series(length, length, 0.1 * (length > 6)) for length in (2, 5, 6, 15, 15)]
    found = ran(exports.page("vectors to text"), [(array_text(each), {}) for each in inputs])
    outputs = model.outputs(inputs, scores=True)
    assert len({each[0].text for each in outputs}) > 1
    for ours, (theirs,), values in zip(found, outputs, inputs, strict=True):
        assert tuple(ours["ids"]) == theirs.token_ids
        assert ours["scores"] == pytest.approx(theirs.log_probabilities, abs=1e-3)
        if not np.isnan(values).any():
            check_look(ours["look"], regard.look(model, values))


@pytest.mark.slow
def test_edits_of_a_forecast_act_on_all_channels_as_in_python(exports):
    name = "forecaster, patches"
    model = SERIES[name]()
    values = series(WINDOW, 4)
    edits = [
        [{"edit": "switch_head_off", "map": "encoder 1", "head": 1}],
        [{"edit": "mask_source", "token": 2}],
        [{"edit": "paint_row", "map": "encoder 1", "row": 0, "keys": [1], "weights": [0.9]}],
    ]
    found = ran(exports.page(name), [(array_text(values), {"edits": each}) for each in edits])
    plain = model.outputs([values])[0][0].array
    for ours, each in zip(found, edits, strict=True):
        wanted = regard.look(model, values, edits=each)
        assert isinstance(wanted.output, PredictedVectors)
        np.testing.assert_allclose(ours["vectors"], wanted.output.vectors, rtol=1e-5, atol=1e-4)
        # Every channel of the forecast has changed.
        assert (np.abs(np.array(ours["vectors"]) - plain).max(0) > 1e-3 * np.array(SCALE)).all()
    tokens = [{"edit": "replace_token", "position": 0, "token": "a"}]
    (refused,) = ran(exports.page(name), [(array_text(values), {"edits": tokens})])
    assert "has no tokens that could be replaced" in refused["error"]


# Options that mean something, or nothing at all, where the output follows from one pass.
IN_ONE_PASS = {
    "max_source_length": 700,
    "batch_tokens": 100,
    "precision": "bfloat16",
    "quantization": "int8",
}
REFUSED = {
    "max_length": 9,
    "max_length_ratio": 0.6,
    "min_length": 5,
    "min_length_ratio": 0.5,
    "length_penalty": 0.3,
    "early_stopping": True,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.4,
    "coverage_penalty": 0.2,
    "beam_groups": 2,
    "diversity_penalty": 0.9,
    "exponential_decay_length_penalty": [4.0, 1.2],
    "language_model": "runs/words",
    "language_model_weight": 0.5,
    "length_bonus": 0.5,
    "threshold": 0.4,
    "thresholds": {"fast": 0.4},
    "horizon": 9,
    "sample": True,
    "temperature": 0.7,
    "top_k": 4,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.5,
    "seed": 5,
    "logits_processors": ["no pair again"],  # registered below
    "shortlist": True,
    "stop": ["a"],
    "top_logprobs": 2,
}
# What else an option needs.
BESIDE = {
    "beam_groups": {"beam_size": 2},
    "language_model": {"beam_size": 2},
    "language_model_weight": {"beam_size": 2, "language_model": "runs/words"},
    "length_bonus": {"beam_size": 2},
    "top_k": {"sample": True},
    "top_p": {"sample": True},
    "min_p": {"sample": True},
    "typical_p": {"sample": True},
}
# Honoured by classifiers, all of whose labels are shown.
OUTPUTS = {"beam_size": 2, "num_hypotheses": 2}


def test_every_option_is_in_one_of_the_tables_of_one_pass():
    listed = [*IN_ONE_PASS, *REFUSED, *OUTPUTS]
    assert sorted(listed) == sorted(DecodeConfig.__dataclass_fields__)


@pytest.fixture(scope="module")
def built() -> dict[str, Predictor]:
    return {name: SERIES[name]() for name in ("forecaster, linear", "series classifier, conv")}


@pytest.mark.parametrize("name", ["forecaster, linear", "series classifier, conv"])
def test_options_of_a_search_are_refused_where_there_is_none(built, name):
    model = built[name]

    def obstacles(**options: Any) -> Sequence[str]:
        config = read(DecodeConfig, options, "decode")
        assert isinstance(config, DecodeConfig), config
        return PageTarget().obstacles(replace(model, recipe=replace(model.recipe, decode=config)))

    assert obstacles(**IN_ONE_PASS) == []
    regard.register.logits_processor("no pair again", lambda: NoRepeatNgram(2))
    try:
        for option, value in REFUSED.items():
            if option == "thresholds" and not model.task.has_probabilities:
                continue  # refused where the model is loaded: it has no labels
            reasons = obstacles(**{option: value}, **BESIDE.get(option, {}))
            assert any(each.startswith(f"decode.{option}") for each in reasons), option
    finally:
        LOGITS_PROCESSORS.unregister("no pair again")
    several = obstacles(**OUTPUTS)
    if model.task.has_probabilities:
        assert several == []
    else:
        assert [each.partition(" = ")[0] for each in several] == ["decode.num_hypotheses"]


def test_what_a_page_cannot_compute_is_refused(built):
    model = built["series classifier, conv"]
    features = make_field("vectors", column="x", features={"kind": "log-mel"})
    data = replace(model.recipe.data, source=features)
    recordings = replace(model, recipe=replace(model.recipe, data=data))
    (reason,) = PageTarget().obstacles(recordings)
    assert "source 1" in reason
    assert "data.source.features" in reason
    # Other formats have no input for vectors.
    assert "and not a sequence of vectors" in OnnxTarget().obstacles(model)[0]
    assert PageTarget().obstacles(model) == []


def test_tasks_that_a_page_does_not_have_are_refused():
    field = {"kind": "vectors", "column": "x"}
    made = SERIES["vectors to text"]()
    table = made.recipe.as_dict()["model"]
    target = {"kind": "number", "column": "y"}
    data = {"train": "x.jsonl", "source": field, "target": target}
    parts = {"encoder": table["encoder"], "pool": {"kind": "mean"}, "task": "regress"}
    model = regard.build({**parts, "num_labels": 1, "source_dim": 3}).eval()
    recipe = replace(made.recipe, data=type(made.recipe).of({"data": data, "model": parts}).data)
    (reason, *_) = PageTarget().obstacles(
        replace(made, model=model, recipe=recipe, target=made.sources[0])
    )
    assert reason.startswith("task regress: a page gives texts, labels, forecasts")


HOURS = 20


def weather() -> str:
    """Two stations, whose columns are in another order than the model's channels."""
    lines = ["time,station,last,rain,wind"]
    for station, seed in (("north", 1), ("south", 2)):
        for hour, (wind, rain, last) in enumerate(series(HOURS, seed).tolist()):
            lines.append(f"2024-01-01 {hour:02}:00,{station},{last},{rain},{wind}")
    return "\n".join(lines) + "\n"


def test_examples_of_a_file_are_the_inputs_that_predict_reads(tmp_path):
    model = SERIES["forecaster, two of three channels"]()
    (tmp_path / "x.csv").write_text(weather())
    found = examples_of_file(model, str(tmp_path / "x.csv"))
    assert len(found) == 2
    for seed, (text,) in enumerate(found, start=1):
        order = series(HOURS, seed)[-WINDOW:]
        np.testing.assert_allclose(json.loads(text), order, rtol=1e-6)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InvalidData, match="at least one input"):
        examples_of_file(SERIES["series classifier, conv"](), str(tmp_path / "empty.jsonl"))


@pytest.mark.slow
def test_a_table_is_forecast_in_the_page_and_wrong_numbers_are_told(exports, tmp_path):
    name = "forecaster, two of three channels"
    model = SERIES[name]()
    (tmp_path / "x.csv").write_text(weather())
    (tmp_path / "short.csv").write_text("\n".join(weather().splitlines()[:6]))
    wanted = model.outputs([series(HOURS, seed)[-WINDOW:] for seed in (1, 2)])
    with browser() as chromium, strict_pages(chromium) as open_address:
        page = open_address(exports.page(name).as_uri(), offline=True)
        page.wait_for_function("globalThis.regard", timeout=120_000)

        def shown() -> np.ndarray:
            page.wait_for_timeout(300)
            lines = settled(page).locator("#output-numbers").text_content().splitlines()
            return np.array([[float(number) for number in line.split(",")] for line in lines])

        page.set_input_files("#input-0", tmp_path / "x.csv")
        assert shown() == pytest.approx(wanted[0][0].array, rel=1e-4)
        page.select_option("#group-0", "south")
        assert shown() == pytest.approx(wanted[1][0].array, rel=1e-4)
        label = page.locator(".series-output").get_attribute("aria-label")
        assert label.startswith(f"Forecast of 5 vectors after {WINDOW}: channel 1 from ")
        assert page.locator("#series canvas").first.is_visible()
        page.fill("#numbers-0", "wind,rain,last\n1,2,3\n4,,6")
        problem = page.locator(".field-problem")
        wanted_number = 'wanted a number in line 3, column "rain"; got none: it is missing'
        assert wanted_number in problem.text_content()
        page.set_input_files("#input-0", tmp_path / "short.csv")
        until(page, "() => !document.querySelector('#problem').hidden")
        told = page.locator("#problem").text_content()
        assert told == f"The series has 5 vectors; the model reads {WINDOW}. Give more of the past."
        assert problem.is_hidden()
        assert violations(page) == []


@pytest.mark.slow
def test_the_page_of_a_classifier_shows_the_probabilities_of_all_labels(exports):
    name = "series classifier, conv"
    model = SERIES[name]()
    values = series(9, 5)
    ((wanted,),) = model.outputs([values])
    with browser() as chromium, strict_pages(chromium) as open_address:
        page = open_address(exports.page(name).as_uri(), offline=True)
        page.wait_for_function("globalThis.regard", timeout=120_000)
        page.fill("#numbers-0", array_text(values))
        page.wait_for_timeout(300)
        rows = settled(page).locator("#probabilities tr")
        assert rows.locator("th").all_text_contents() == list(wanted.probabilities)
        shares = [
            text.removesuffix(" %") for text in rows.locator("td:nth-child(2)").all_text_contents()
        ]
        assert [float(each) for each in shares] == pytest.approx(
            [100 * each for each in wanted.probabilities.values()], abs=0.51
        )
        assert violations(page) == []
