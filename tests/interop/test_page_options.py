"""Every option of [decode] is honoured by an exported page, chosen in it, or refused by the export."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import regard
from regard.core.errors import InvalidArgument
from regard.generation.choose.logits_processors import LOGITS_PROCESSORS, NoRepeatNgram
from regard.generation.choose.trace import BeamTrace
from regard.generation.config import DecodeConfig
from regard.inference.predictor import Predictor
from regard.interop.page import settings as page_settings
from support import page_members
from support.browsers import browser, strict_pages
from support.page_members import DATES, HONOURED, SHIPPED
from support.servers import PATIENCE

INPUTS = [each.source for each in DATES]
# A value of each option that is not its default.
CHOSEN_IN_THE_PAGE = {  # in searches that are legal together
    "beam": {"beam_size": 3, "num_hypotheses": 2},
    "sampling": {"sample": True, "temperature": 0.7, "top_k": 4, "top_p": 0.9, "seed": 5},
}
REFUSED = {
    "coverage_penalty": {"coverage_penalty": 0.2, "beam_size": 2},
    "beam_groups": {"beam_groups": 2, "beam_size": 4},
    "min_p": {"sample": True, "min_p": 0.1},
    "typical_p": {"sample": True, "typical_p": 0.5},
    "logits_processors": {"logits_processors": ["no pair again"]},
    "quantization": {"quantization": "int8"},
    "shortlist": {"shortlist": True},
    "stop": {"stop": ("-",)},
    "top_logprobs": {"top_logprobs": 2},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (4.0, 1.2)},
}
WITHOUT_EFFECT = {
    "diversity_penalty": 0.9,  # of beam_groups, which are refused
    "precision": "bfloat16",  # of a GPU
    "batch_tokens": 100,
}
OF_OTHER_TASKS = (  # refused by a model that generates tokens one after the other
    "threshold",
    "thresholds",
    "horizon",
    "language_model",
    "language_model_weight",
    "length_bonus",
)


def test_every_option_is_in_one_of_the_tables():
    chosen = [name for options in CHOSEN_IN_THE_PAGE.values() for name in options]
    listed = [*HONOURED, *chosen, *REFUSED, *WITHOUT_EFFECT, *OF_OTHER_TASKS]
    assert sorted(listed) == sorted(each.name for each in fields(DecodeConfig))


def test_the_tables_are_what_the_declarations_say():
    """An option that is added without a word on pages is refused."""
    chosen = {name for options in CHOSEN_IN_THE_PAGE.values() for name in options}
    assert set(page_settings.WRITTEN) == set(HONOURED) - {"max_source_length"}
    assert set(page_settings.CHOSEN) == chosen
    assert {*page_settings.MISSING, "logits_processors"} >= set(REFUSED)


def test_the_script_of_a_page_knows_what_is_written(model):
    """And refuses what it does not know, in place of an output that ignores it."""
    from interop.test_page_modules import node

    decode = page_settings.ModelSettings(model).as_dict("dates", ())["decode"]
    program = """
import { OPTIONS, checkOptions } from './search.js';
const refused = [];
for (const decode of given) {
  try { checkOptions(decode); } catch (error) { refused.push(error.message); }
}
console.log(JSON.stringify({ options: [...OPTIONS], refused }));
"""
    found = node(program, [decode, {**decode, "top_a": 1}])
    assert set(found["options"]) == set(decode)
    assert found["refused"] == ["This page's search does not have top_a."]


@pytest.fixture(scope="module")
def model() -> Predictor:
    return page_members.date_model()


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_a_page_does_not_have_are_refused(name, model, tmp_path):
    if name == "logits_processors":
        regard.register.logits_processor("no pair again", lambda: NoRepeatNgram(2))
    try:
        with pytest.raises(InvalidArgument, match=rf"decode\.{name}"):
            regard.export(model.with_decode(**REFUSED[name]), "page", tmp_path / "page.html")
    finally:
        if name == "logits_processors":
            LOGITS_PROCESSORS.unregister("no pair again")
    assert not list(tmp_path.iterdir())


EXPORT = """
import json, sys, regard
from support.page_members import date_model

for name, decode in json.loads(sys.argv[1]).items():
    print(name, file=sys.stderr, flush=True)
    regard.export(date_model().with_decode(**decode), "page", f"{sys.argv[2]}/{name}.html")
"""


def test_options_that_are_chosen_in_the_page_are_told(tmp_path):
    cases = {**CHOSEN_IN_THE_PAGE, "nothing": WITHOUT_EFFECT}
    path = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    found = subprocess.run(
        [sys.executable, "-c", EXPORT, json.dumps(cases), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    beam, rest = found.stderr.partition("beam\n")[2].split("sampling\n")
    sampling, nothing = rest.split("nothing\n")
    for told, name in ((beam, "beam"), (sampling, "sampling")):
        assert "greedy" in told
        for option, value in CHOSEN_IN_THE_PAGE[name].items():
            assert f"{option} = {value}" in told
    assert "greedy" not in nothing
    assert len(list(tmp_path.glob("*.html"))) == 3


BEAMS = """async ([inputs, search]) => {
    const found = [];
    for (const each of inputs) found.push((await regard.run([each], { search })).beam);
    return found;
}"""


def equal(found: list, model: Predictor, inputs: list[str], **decode) -> list[int]:
    """The candidates of each search: they end at the same step as in Python, with the same outputs."""
    counts = []
    for beam, text in zip(found, inputs, strict=True):
        trace = BeamTrace()
        options = {"beam_size": 4, "num_hypotheses": 4, "trace": trace, **decode}
        (wanted,) = model.outputs([text], **options)
        assert [each["text"] for each in beam["outputs"]] == [each.text for each in wanted]
        scores = [each.score for each in wanted]
        assert [each["score"] for each in beam["outputs"]] == pytest.approx(scores, abs=1e-3)
        assert len(beam["nodes"]) == len(trace.nodes)
        counts.append(len(trace.nodes))
    return counts


@pytest.fixture(scope="module")
def open_page():
    with browser() as chromium, strict_pages(chromium) as open_address:

        def opened(path: Path):
            page = open_address(path.as_uri(), offline=True)
            page.wait_for_function("globalThis.regard", timeout=120_000)
            return page

        yield opened


@pytest.mark.parametrize("rule", [True, "never"])
def test_beams_stop_as_in_python(rule, model, exports, open_page):
    """Earlier than by the default rule, or later: each with a model of which that is so."""
    name, inputs = ("dates", INPUTS[:3]) if rule is True else ("dates, trained", INPUTS[:2])
    model = model if rule is True else regard.load(SHIPPED)
    page = open_page(exports.page(name))
    steps = []
    for stopping in (False, rule):
        decode = {"early_stopping": stopping, "length_penalty": 0.5}
        found = page.evaluate(BEAMS, [inputs, {"beam_size": 4, **decode}])
        steps.append(equal(found, model, inputs, **decode))
    assert steps[0] != steps[1]


def test_honoured_options_have_the_effect_that_they_have_in_python(model, exports, open_page):
    page = open_page(exports.page("dates honoured"))
    inputs = [each for each in INPUTS if len(each) < HONOURED["max_source_length"] - 2][:12]
    found = page.evaluate(BEAMS, [inputs, {"beam_size": 4}])
    equal(found, model, inputs, **HONOURED)
    plain = model.outputs(inputs, beam_size=4, num_hypotheses=4)
    texts = [[each.text for each in one] for one in plain]
    assert [[each["text"] for each in beam["outputs"]] for beam in found] != texts
    too_long = "1" * HONOURED["max_source_length"]
    program = "(text) => regard.run([text], {}).then(() => null, (error) => error.message)"
    assert str(HONOURED["max_source_length"]) in page.evaluate(program, too_long + "1")
