"""Exported pages in a real browser, from a file and without a network: their outputs are those of Python."""

import base64
import json
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument
from regard.data.synthetic.shapes import shapes
from regard.generation.choose.trace import BeamTrace
from regard.interop.page.document import document
from regard.interop.page.program import quantized_rows
from regard.interop.page.target import PageTarget
from regard.interpret.sites import attention_sites
from support import page_members, predictors
from support.browsers import HOSTILE, browser, settled, strict_pages, violations
from support.page_members import DATES, PAGES
from support.page_values import check_look

pytestmark = pytest.mark.slow

INPUTS = [each.source for each in DATES]
EDITS = {
    "switch a head off": [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 1}],
    "scale all heads of all layers": [{"edit": "scale_head", "map": "encoder", "factor": 1.7}],
    "paint and renormalize": [
        {
            "edit": "paint_row",
            "map": "decoder 1 cross",
            "head": 0,
            "row": 1,
            "keys": [0, 3],
            "weights": [0.6, 0.3],
        }
    ],
    "paint every head, as it is": [
        {
            "edit": "paint_row",
            "map": "decoder 1 self",
            "row": 2,
            "keys": [1],
            "weights": [0.9],
            "renormalize": False,
        }
    ],
    "mask a token": [{"edit": "mask_source", "token": 2}],
    "replace a token of the source": [{"edit": "replace_token", "position": 1, "token": "9"}],
    "replace a token of the output": [
        {"edit": "replace_token", "position": 2, "token": "7", "side": "output"}
    ],
    "paint, mask, paint again and scale": [
        {
            "edit": "paint_row",
            "map": "decoder 1 cross",
            "row": 0,
            "keys": [2, 4],
            "weights": [0.5, 0.4],
        },
        {"edit": "mask_source", "token": 2},
        {
            "edit": "paint_row",
            "map": "decoder 1 cross",
            "head": 1,
            "row": 0,
            "keys": [5],
            "weights": [0.8],
        },
        {"edit": "scale_head", "map": "decoder 1 cross", "head": 1, "factor": -0.5},
    ],
}


@pytest.fixture(scope="module")
def dates(exports) -> Path:
    """The page of `page_members.date_model`."""
    return exports.page("dates")


@pytest.fixture(scope="module")
def chromium():
    with browser() as launched:
        yield launched


@pytest.fixture
def opened(chromium):
    """Opens a page without a network; whatever it reports or requests fails the test."""
    with strict_pages(chromium) as open_address:

        def open_page(path: Path, address: str = "", **options):
            page = open_address(path.as_uri() + address, offline=True, **options)
            page.wait_for_function("globalThis.regard", timeout=120_000)
            return page

        yield open_page


def outputs(page, inputs, edits=()) -> list[dict]:
    """What the page computes for each input: a text, or a list with a value for each source."""
    program = """async ([inputs, edits]) => {
        const found = [];
        for (const each of inputs) {
            const { text, ids, scores, ended, probabilities, look } = await regard.run(each, { edits });
            found.push({ text, ids, scores, ended, probabilities, look });
        }
        return found;
    }"""
    return page.evaluate(
        program, [[each if isinstance(each, list) else [each] for each in inputs], list(edits)]
    )


def test_greedy_outputs_are_those_of_python_on_200_inputs(dates, opened):
    model = page_members.date_model()
    wanted = model.outputs(INPUTS, beam_size=1, scores=True)
    assert len({each[0].text for each in wanted}) > 50
    assert {each[0].finish_reason for each in wanted} >= {"end", "length"}
    found = outputs(opened(dates), INPUTS)
    assert [each["text"] for each in found] == [each[0].text for each in wanted]
    assert [tuple(each["ids"]) for each in found] == [each[0].token_ids for each in wanted]
    for ours, (theirs,) in zip(found, wanted, strict=True):
        assert ours["scores"] == pytest.approx(theirs.log_probabilities, abs=1e-3)


def test_a_look_has_the_weights_of_regard_look(dates, opened):
    model = page_members.date_model()
    for got, text in zip(outputs(opened(dates), INPUTS[:3]), INPUTS, strict=False):
        check_look({**got["look"], "title": text}, regard.look(model, text, beam_size=1))


@pytest.mark.parametrize("name", EDITS)
def test_edits_act_as_in_python(dates, opened, name):
    model, edits, page = page_members.date_model(), EDITS[name], opened(dates)
    plain = model.predict(INPUTS[:12], beam_size=1)
    wanted = model.outputs(INPUTS[:12], beam_size=1, scores=True, edits=edits)
    assert [each[0].text for each in wanted] != plain
    found = outputs(page, INPUTS[:12], edits)
    assert [tuple(each["ids"]) for each in found] == [each[0].token_ids for each in wanted]
    for ours, (theirs,) in zip(found, wanted, strict=True):
        assert ours["scores"] == pytest.approx(theirs.log_probabilities, abs=1e-3)
    for got, text in zip(found[:2], INPUTS, strict=False):
        look = got["look"]
        assert look.pop("edits") == edits
        wanted_look = regard.look(model, text, beam_size=1, edits=edits)
        check_look(look, wanted_look)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([{"edit": "mask_source", "token": 200}], "edit 1: the source has no token 200"),
        ([{"edit": "switch_head_off", "map": "decoder 9 cross"}], "no attention decoder 9 cross"),
        ([{"edit": "scale_head", "map": "encoder 1", "head": 7, "factor": 2}], "encoder 1 has 2 heads"),
        ([{"edit": "paint_row", "map": "encoder 1", "row": 900, "keys": [0], "weights": [1.0]}], "has no row 900"),
        ([{"edit": "paint_row", "map": "decoder 1 self", "row": 0, "keys": [1], "weights": [1.0]}], "may not attend"),
        ([{"edit": "replace_token", "position": 0, "token": "12345"}], "is not one token"),
        ([{"edit": "unknown"}], "one of switch_head_off"),
    ],
)  # fmt: skip
def test_edits_of_what_is_not_there_are_refused(dates, opened, edits, message):
    page, model = opened(dates), page_members.date_model()
    refused = page.evaluate(
        "edits => regard.run(['4 May 1999'], { edits }).catch((error) => error.message)", edits
    )
    assert message in refused
    with pytest.raises(regard.RegardError):
        regard.look(model, "4 May 1999", beam_size=1, edits=edits)


def test_the_policy_allows_one_script_and_no_request(dates):
    content = dates.read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', content)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("script-src").split(" ")[1:] == ["'wasm-unsafe-eval'"]
    assert rules.pop("style-src").startswith("'sha256-")
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def edits_of_address(page) -> list[dict]:
    return json.loads(
        page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('edits') ?? '[]'")
    )


def test_typing_shows_output_and_attention_and_edits_change_them(dates, opened):
    model, text = page_members.date_model(), INPUTS[0]
    page = opened(dates)
    page.locator("#input-0").fill(text)
    (plain,) = model.predict([text], beam_size=1)
    said = settled(page).locator("#said")
    assert said.text_content() == plain
    assert page.locator("#map option").all_text_contents() == [
        "encoder 1",
        "decoder 1 self",
        "decoder 1 cross",
    ]
    page.locator("#map").select_option(label="decoder 1 cross")
    page.locator("#head").select_option(label="head 1")

    page.get_by_role("button", name="Switch off").click()
    edits = [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 1}]
    (edited,) = model.predict([text], beam_size=1, edits=edits)
    assert edited != plain
    assert settled(page).locator("#said").text_content() == edited
    assert plain in page.locator("#unedited").text_content()
    difference = [
        each.change
        for each in regard.look(model, text).difference(regard.look(model, text, edits=edits))
    ]
    assert page.locator("#output-tokens .new").count() == sum(
        each in ("insert", "replace") for each in difference
    )
    page.get_by_role("button", name="Source token 0").click()
    page.get_by_role("button", name="Mask", exact=True).click()
    edits.append({"edit": "mask_source", "token": 0})
    both = model.predict([text], beam_size=1, edits=edits)[0]
    assert settled(page).locator("#said").text_content() == both
    assert edits_of_address(page) == edits
    address = page.evaluate("location.hash")

    page.get_by_role("button", name="Undo").click()
    assert settled(page).locator("#said").text_content() == edited
    page.get_by_role("button", name="Redo").click()
    assert settled(page).locator("#said").text_content() == both
    page.get_by_role("button", name="Clear").click()
    assert settled(page).locator("#said").text_content() == plain

    again = settled(opened(dates, address))
    assert again.locator("#said").text_content() == both
    assert again.locator("#input-0").input_value() == text
    wrong = urlencode({"input": text, "edits": json.dumps([{"edit": "mask_source", "token": 900}])})
    refused = settled(opened(dates, f"#/type?{wrong}"))
    assert refused.get_by_role("alert").text_content() == "edit 1: the source has no token 900"


def test_a_token_is_swapped_for_an_alternative_of_the_model(dates, opened):
    model, text = page_members.date_model(), INPUTS[1]
    page = settled(opened(dates, f"#/type?{urlencode({'input': text})}"))
    page.locator("#output-tokens button").nth(2).click()
    page.wait_for_selector("#alternatives:not([aria-busy])")
    tokens = model.outputs([text], beam_size=1)[0][0].token_ids
    logits = model.model(
        model.encode(text)[1], torch.tensor([[model.target.special_tokens.start, *tokens[:2]]])
    )[0, -1]
    best = logits.log_softmax(-1).topk(8)
    shown = page.locator("#alternatives .number").all_text_contents()
    assert [float(each.removesuffix(" %")) for each in shown] == pytest.approx(
        (100 * best.values.exp()).tolist(), abs=0.51
    )
    page.locator("#alternatives button").nth(3).click()
    edits = [
        {"edit": "replace_token", "side": "output", "position": 2, "token": int(best.indices[3])}
    ]
    assert edits_of_address(settled(page)) == edits
    assert (
        page.locator("#said").text_content() == model.predict([text], beam_size=1, edits=edits)[0]
    )


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_beams_are_those_of_python_on_50_inputs(dates, opened, tmp_path, length_penalty):
    """All outputs of the beam, their scores, and every node of the tree."""
    model = page_members.date_model()
    path = remade(
        dates, tmp_path / "beam.html", lambda it: it["decode"].update(length_penalty=length_penalty)
    )
    program = """async (inputs) => {
        const found = [];
        for (const each of inputs) found.push((await regard.run([each], { search: { beam_size: 4 } })).beam);
        return found;
    }"""
    found = opened(path).evaluate(program, INPUTS[:50])
    options = {"beam_size": 4, "num_hypotheses": 4, "length_penalty": length_penalty}
    wanted = model.outputs(INPUTS[:50], **options)
    assert [[each["text"] for each in beam["outputs"]] for beam in found] == [
        [x.text for x in each] for each in wanted
    ]
    assert any(
        each[0].text != greedy
        for each, greedy in zip(wanted, model.predict(INPUTS[:50]), strict=True)
    )
    for beam, outputs_ in zip(found, wanted, strict=True):
        assert [each["score"] for each in beam["outputs"]] == pytest.approx(
            [x.score for x in outputs_], abs=1e-3
        )
    trace = BeamTrace()
    model.outputs(INPUTS[:1], trace=trace, **options)
    nodes = found[0]["nodes"]
    keys = ("parent", "id", "kept")
    assert [tuple(each[key] for key in keys) for each in nodes] == [
        (x.parent, x.token, x.kept) for x in trace.nodes
    ]
    assert [x["total"] for x in nodes] == pytest.approx([x.total for x in trace.nodes], abs=1e-3)


def test_the_beams_of_a_language_model_have_the_scores_of_python(exports, opened):
    """The prompt is free of charge: the length that a score is divided by is that of what was generated."""
    model = PAGES["language model"][0]()
    prompts = inputs_of("language model")[:6]
    program = """async (inputs) => {
        const found = [];
        for (const each of inputs) found.push((await regard.run([each], { search: { beam_size: 3 } })).beam);
        return found;
    }"""
    found = opened(exports.page("language model")).evaluate(program, prompts)
    wanted = model.outputs(prompts, beam_size=3, num_hypotheses=3)
    assert model.recipe.decode.length_penalty > 0
    for beam, outputs_ in zip(found, wanted, strict=True):
        assert [each["text"] for each in beam["outputs"]] == [each.text for each in outputs_]
        assert [each["score"] for each in beam["outputs"]] == pytest.approx(
            [each.score for each in outputs_], abs=1e-3
        )


@pytest.mark.parametrize(
    "options", [{"seed": 3}, {"temperature": 1.4, "top_k": 12, "seed": 8}, {"top_p": 0.7}]
)
def test_samples_are_those_of_python_with_the_same_seed(dates, opened, options):
    model = page_members.date_model()
    search = {"sample": True, **options}
    program = """async ([inputs, search]) => {
        const found = [];
        for (const each of inputs) found.push((await regard.run([each], { search })).text);
        return found;
    }"""
    found = opened(dates).evaluate(program, [INPUTS[:50], search])
    assert found == [model.predict([text], **search)[0] for text in INPUTS[:50]]
    assert found != model.predict(INPUTS[:50])


def test_the_search_is_chosen_and_the_beam_shown_as_a_tree(dates, opened):
    model, text = page_members.date_model(), INPUTS[2]
    page = settled(opened(dates, f"#/type?{urlencode({'input': text})}"))
    page.get_by_label("Search").select_option("beam")
    settled(page).locator("#beam").fill("3")
    page.locator("#beam").press("Enter")
    assert settled(page).locator("#said").text_content() == model.predict([text], beam_size=3)[0]
    assert "beam=3" in page.evaluate("location.hash")
    page.get_by_label("Search").select_option("sample")
    settled(page).locator("#seed").fill("5")
    page.locator("#seed").press("Enter")
    assert (
        settled(page).locator("#said").text_content()
        == model.predict([text], sample=True, seed=5)[0]
    )
    assert (
        "--set sample=true --set temperature=1 --set seed=5"
        in page.locator("#shell").text_content()
    )
    page.get_by_role("link", name="Beam tree").click()
    outputs_ = model.outputs([text], beam_size=4, num_hypotheses=4)[0]
    assert settled(page).locator("#hypotheses tbody th").all_text_contents() == [
        each.text for each in outputs_
    ]
    page.get_by_role("link", name="Compare").click()
    assert settled(page).locator("#maps canvas").count() == 3


def remade(path: Path, to: Path, change) -> Path:
    """The page with other settings."""
    content = path.read_text(encoding="utf-8")
    texts = {
        name: re.search(f'id="{name}">(.*?)</script>', content, re.DOTALL)[1]
        for name in ("settings", "weights")
    }
    settings = json.loads(texts["settings"])
    change(settings)
    to.write_text(document(settings, base64.b64decode(texts["weights"])), encoding="utf-8")
    return to


def test_names_tokens_and_labels_are_text_only(dates, opened, tmp_path):
    def change(settings: dict) -> None:
        settings["title"] = "".join(HOSTILE)
        for table in settings["tokenizers"]:  # every token but the bytes and the special ones
            table["tokens"] = [
                HOSTILE[i % len(HOSTILE)] + str(i) if i > 261 else x
                for i, x in enumerate(table["tokens"])
            ]
        settings["sites"][0]["name"] = HOSTILE[0]
        settings["programs"]["encoder"] = json.loads(
            json.dumps(settings["programs"]["encoder"]).replace(
                '"encoder 1"', json.dumps(HOSTILE[0])
            )
        )

    page = opened(remade(dates, tmp_path / "hostile.html", change))
    page.locator("#input-0").fill("".join(HOSTILE)[:900])
    settled(page).locator("#map").select_option(label=HOSTILE[0])
    page.locator("#output-tokens button").first.click()
    page.wait_for_selector("#alternatives:not([aria-busy])")
    assert page.locator("h1").text_content().startswith(HOSTILE[0])
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main iframe, main form[action], main svg").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(dates, opened, scheme):
    options = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}}
    page = settled(
        opened(dates, f"#/type?{urlencode({'input': INPUTS[0], 'sample': 1})}", **options)
    )
    page.get_by_role("button", name="Switch off").click()
    settled(page).locator("#output-tokens button").first.click()
    page.wait_for_selector("#alternatives:not([aria-busy])")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("link", name="Beam tree").click()
    assert violations(settled(page)) == []


def test_what_a_page_cannot_run_is_said(tmp_path):
    target = PageTarget()
    assert [
        *target.obstacles(page_members.date_model()),
        *target.obstacles(predictors.classifier()),
    ] == []
    (obstacle,) = target.obstacles(predictors.masked_model())
    assert obstacle.startswith("task predict_masked: ")
    assert obstacle.endswith("; not masked tokens")
    with pytest.raises(InvalidArgument, match=r"out: wanted a new \.html file; got '.*folder'"):
        regard.export(predictors.classifier(), "page", tmp_path / "folder")
    (tmp_path / "there.html").touch()
    with pytest.raises(
        InvalidArgument, match=r"out: wanted a new \.html file; got '.*there\.html'"
    ):
        regard.export(predictors.classifier(), "page", tmp_path / "there.html")
    with pytest.raises(
        InvalidArgument, match="attention: wanted nothing here: a page does not take it"
    ):
        regard.export(predictors.classifier(), "page", tmp_path / "new.html", attention=True)
    assert [path.name for path in tmp_path.iterdir()] == ["there.html"]


def inputs_of(name: str) -> list:
    if name.startswith("dates"):
        return INPUTS
    texts = [
        " ".join(text.split(" ")[i % 3 : i % 7 + 3]) for i, text in enumerate(predictors.TEXT)
    ] + ["", "é 漢字"]
    if name == "several sources":
        return [["good", text, texts[0]] for text in texts]
    return (
        [scene.source for scene in shapes("test", 0, 12)]
        if "image" in name or "captioner" in name
        else texts
    )


def given_to(page_input: object) -> object:
    """An input as the page takes it: an image as pixels."""
    if isinstance(page_input, list | str):
        return page_input
    pixels = page_input.draw()
    return [
        {"pixels": pixels.flatten().tolist(), "width": pixels.shape[1], "height": pixels.shape[0]}
    ]


def dequantized(model):
    """The model with the weights that its page in int8 has."""
    with torch.no_grad():
        for weight in model.model.parameters():
            if weight.dim() >= 2 and weight.numel() >= 1024:
                values, scales = quantized_rows(weight.numpy())
                weight.copy_(
                    torch.from_numpy(values.reshape(len(weight), -1) * scales[:, None]).view_as(
                        weight
                    )
                )
    return model


@pytest.mark.parametrize("name", [name for name in PAGES if name != "dates"])
def test_pages_of_the_family(exports, opened, name):
    """Greedy outputs, or labels, and a look, for every kind of model."""
    model, inputs = PAGES[name][0](), inputs_of(name)
    model = dequantized(model) if name == "dates int8" else model
    options = {} if model.task.name == "classify" else {"beam_size": 1}
    wanted = model.outputs(
        [tuple(each) if isinstance(each, list) else each for each in inputs], **options
    )
    page = opened(exports.page(name))
    found = [outputs(page, [given_to(each)])[0] for each in inputs]
    assert [each["text"] for each in found] == [each[0].text for each in wanted]
    if model.task.name == "classify":
        for ours, (theirs,) in zip(found, wanted, strict=True):
            assert ours["probabilities"] == pytest.approx(theirs.probabilities, abs=1e-4)
    if name != "running text":  # its window slid
        one = tuple(inputs[1]) if isinstance(inputs[1], list) else inputs[1]
        for each in found[1]["look"]["sources"]:
            each.pop("pixels", None)
        look = regard.look(model, one.draw() if hasattr(one, "draw") else one, **options)
        check_look({**found[1]["look"], "title": look.title}, look)


OTHER_EDITS = ("several sources", "running text")  # without those of `edits_of`


def edits_of(model) -> list[dict]:
    """Edits of the first and of the last attention module of a model."""
    sites = list(attention_sites(model.model).values())
    if not sites:
        return []
    last = {
        "edit": "paint_row",
        "map": sites[-1].name,
        "row": 0,
        "keys": [0],
        "weights": [0.7],
        "renormalize": False,
    }
    mask = (
        [{"edit": "mask_source", "token": 1}]
        if any(each.key_side == "source" for each in sites)
        else []
    )
    return [{"edit": "scale_head", "map": sites[0].name, "head": 0, "factor": -2.0}, last, *mask]


@pytest.mark.parametrize(
    "name", [name for name in PAGES if name not in OTHER_EDITS and not name.startswith("dates")]
)
def test_edits_of_the_family(exports, opened, name):
    model, inputs = PAGES[name][0](), inputs_of(name)[:4]
    edits, options = edits_of(model), {} if model.task.name == "classify" else {"beam_size": 1}
    wanted = model.outputs(inputs, edits=edits, scores=True, **options)
    page = opened(exports.page(name))
    found = [outputs(page, [given_to(each)], edits)[0] for each in inputs]
    assert [each["text"] for each in found] == [each[0].text for each in wanted]
    for ours, (theirs,) in zip(found, wanted, strict=True):
        ours = ours["scores"] or [ours["look"]["output"]["score"]]
        assert ours == pytest.approx(theirs.log_probabilities, abs=1e-3)


def test_edits_of_several_sources(exports, opened):
    model, inputs = PAGES["several sources"][0](), inputs_of("several sources")[:4]
    edits = [
        {"edit": "mask_source", "token": 1, "source": 2},
        {
            "edit": "paint_row",
            "map": "decoder 1 cross source 2",
            "row": 0,
            "keys": [2],
            "weights": [0.5],
        },
        {"edit": "replace_token", "position": 0, "token": "x", "source": 1},
        {"edit": "scale_head", "map": "source 3 encoder 1", "factor": 0.5},
    ]
    wanted = model.outputs([tuple(each) for each in inputs], edits=edits, beam_size=1, scores=True)
    found = outputs(opened(exports.page("several sources")), inputs, edits)
    assert [tuple(each["ids"]) for each in found] == [each[0].token_ids for each in wanted]
    for ours, (theirs,) in zip(found, wanted, strict=True):
        assert ours["scores"] == pytest.approx(theirs.log_probabilities, abs=1e-3)


def test_a_picture_is_read_from_a_file(exports, opened, tmp_path):
    """Decoded by the browser, resized as by Pillow, and shown with the regions that each word attends to."""
    image = pytest.importorskip("PIL.Image")
    model = PAGES["captioner"][0]()
    scene = next(shapes("test", 0, 1)).source
    image.fromarray(scene.draw()).resize((150, 97)).save(tmp_path / "scene.png")
    page = settled(opened(exports.page("captioner")))
    page.get_by_label("Picture").set_input_files(tmp_path / "scene.png")
    page.wait_for_url(re.compile("data%3Aimage%2Fpng"))  # the file is read
    assert (
        settled(page).locator("#said").text_content()
        == model.predict([tmp_path / "scene.png"], beam_size=1)[0]
    )
    assert page.locator("#picture img").first.is_visible()
    look = regard.look(model, tmp_path / "scene.png", beam_size=1)
    assert page.locator("#map option").all_text_contents() == [each.name for each in look.maps]
    assert page.locator("#asking > span").count() == len(look.output.tokens)
