"""The studio in a real browser: its frame, and what it shows held to `regard.look`."""

import base64
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
import torch

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.data.images import load_image, webp
from regard.data.synthetic.shapes import questions, shapes
from regard.data.vocabulary import Labels
from regard.studio.jobs import LiveLook
from regard.studio.routes import studio
from support.browsers import (
    HOSTILE,
    browser as launched,
    number,
    settled,
    strict_pages,
    until as shown_until,
    violations,
)
from support.captioners import DECODERS, captioner, questioner
from support.predictors import classifier, language_model, masked_model, translator
from support.servers import Running, served, slowed

SHORT = {"max_length": 8}
MODELS = {
    "en-de": translator().with_decode(**SHORT),
    "rnn": translator(decoder="rnn").with_decode(**SHORT),
    "conv": translator(decoder="conv").with_decode(**SHORT),
    "labels": classifier(),
    "lines": language_model().with_decode(**SHORT),
    "captions": captioner("transformer"),
    "questions": questioner(DECODERS["rnn"]),
}
TEXTS = [name for name in MODELS if name not in ("captions", "questions")]
TEXT = "the red dog sat"


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


@pytest.fixture
def opened(browser, server) -> Iterator[Callable]:
    with strict_pages(browser) as open_page:
        yield lambda address="", **options: settled(
            open_page(f"http://127.0.0.1:{server.port}/{address}", **options)
        )


@pytest.fixture(scope="module")
def expect():
    found = pytest.importorskip("playwright.sync_api").expect
    found.set_options(timeout=30_000)
    return found


def address(route: str = "type", **parameters: object) -> str:
    return f"#/{route}?{urlencode(parameters)}"


def test_the_page_has_a_strict_policy_and_nothing_from_elsewhere(server):
    for path in (
        "/",
        "/studio/main.js",
        "/studio/views.js",
        "/studio/page/studio.css",
        "/studio/page/look.js",
    ):
        status, headers, answer = server.ask(path)
        assert status == 200, path
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "innerHTML" not in answer["text"]
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer["text"]), path
    for path in (
        "/studio/..%2fapp.py",
        "/studio/app.py",
        "/studio/page/..%2fhtml.py",
        "/studio/page/html.py",
    ):
        assert server.ask(path)[0] == 404


def test_models_are_listed_with_what_they_read(server):
    models = {each["name"]: each for each in server.ask("/studio/models")[2]["models"]}
    assert [models["en-de"][key] for key in ("reads", "labels", "generates")] == [
        ["text"],
        [],
        True,
    ]
    assert [models["labels"][key] for key in ("labels", "generates")] == [
        ["bad", "fine", "good"],
        False,
    ]
    assert models["lines"]["reads"] == []
    assert len(models["en-de"]["examples"]) == 6  # of its synthetic data
    assert all(isinstance(text, str) for (text,) in models["en-de"]["examples"])


def test_the_state_is_the_address(opened, expect):
    page = opened(address(model="en-de", input=TEXT))
    expect(page.locator("#input-0")).to_have_value(TEXT)
    wanted = regard.look(MODELS["en-de"], TEXT)
    expect(page.locator("#said")).to_have_text(wanted.output.text)
    page.locator("#input-0").fill("a cat")
    assert "input=a+cat" in settled(page).url
    assert page.locator("#said").text_content() == regard.look(MODELS["en-de"], "a cat").output.text
    page.locator("#model").select_option("lines")
    assert (
        settled(page).url.split("#")[1].startswith("/type?model=lines")
    )  # and the layer that is shown
    page.go_back()
    expect(page.locator("#input-0")).to_have_value("a cat")
    page.evaluate(
        "location.hash = '#/nowhere?model=nobody'"
    )  # an address that leads nowhere shows the first view
    expect(page.locator("#views-nav [aria-current]")).to_have_text("Type and watch")
    expect(page.locator("#model")).to_have_value("en-de")


def test_a_layer_chosen_while_a_link_is_followed_does_not_hold_it_up(opened, expect):
    """A page that writes its own state into the address must not overwrite that of a link: "hashchange" comes later."""
    page = opened(address(model="en-de", input=TEXT))
    expect(page.locator("#map option")).to_have_count(len(regard.look(MODELS["en-de"], TEXT).maps))
    page.evaluate("""() => {
        location.hash = "#/beam?model=rnn";
        const layers = document.getElementById("map");
        layers.selectedIndex = 0;
        layers.dispatchEvent(new Event("change", { bubbles: true }));
    }""")
    expect(page).to_have_url(re.compile(r"#/beam\?model=rnn$"))
    expect(page.locator("#model")).to_have_value("rnn")


def test_an_error_is_shown_as_the_server_tells_it(browser, server, expect):
    with strict_pages(browser, lambda text: "400" in text) as open_page:
        page = open_page(
            f"http://127.0.0.1:{server.port}/{address(model='en-de', input=TEXT * 4000)}"
        )
        expect(page.get_by_role("alert")).to_contain_text("wanted")
        page.locator("#input-0").fill("a cat")
        expect(page.get_by_role("alert")).to_be_hidden()


def test_a_key_is_asked_for(browser, expect):
    with (
        served({"en-de": MODELS["en-de"]}, keys=["secret"]) as server,
        strict_pages(browser, lambda text: "401" in text) as open_page,
    ):
        page = open_page(f"http://127.0.0.1:{server.port}/{address(input=TEXT)}")
        page.get_by_label("This server needs an API key").fill("secret")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#said")).to_have_text(regard.look(MODELS["en-de"], TEXT).output.text)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 390),
        ("dark", 1400),
        pytest.param("dark", 390, marks=SLOW),
        pytest.param("light", 1400, marks=SLOW),
    ],
)
def test_the_page_is_accessible(opened, expect, scheme, width):
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 844}}
    page = opened(address(model="en-de", input=TEXT), **options)
    expect(page.locator("#heads tbody tr").first).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert len(violations(page)) == 1  # it does complain where there is cause


def test_hostile_names_and_inputs_stay_inert(browser, expect):
    name = HOSTILE[0] + HOSTILE[4]
    with (
        served({name: MODELS["en-de"], "other": MODELS["labels"]}) as server,
        strict_pages(browser) as open_page,
    ):
        page = open_page(f"http://127.0.0.1:{server.port}/{address(input=' '.join(HOSTILE))}")
        assert settled(page).locator("#model option").first.text_content() == name
        for route in ("beam", "compare", "type"):
            page.locator(f"#views-nav a[href^='#/{route}']").click()
            expect(settled(page).locator("main tbody tr").first).to_be_visible()
        assert page.evaluate("window.hacked") is None
        assert page.locator("main :is(img, iframe, base, script, a[href^=javascript])").count() == 0
        assert json.loads(
            page.evaluate("JSON.stringify(document.querySelector('#input-0').value)")
        ).startswith("<script")


def test_hostile_labels_and_tokens_stay_inert(browser, expect):
    labels = replace(MODELS["labels"], target=Labels(HOSTILE[:3]))
    edits = [{"edit": "replace_token", "position": 0, "token": HOSTILE[4]}]
    refused = lambda text: "400" in text  # noqa: E731  the token is none of the vocabulary: the answer names it
    with (
        served({"labels": labels, "en-de": MODELS["en-de"]}) as server,
        strict_pages(browser, refused) as open_page,
    ):
        page = open_page(f"http://127.0.0.1:{server.port}/{address(model='labels', input=TEXT)}")
        expect(page.locator("#said")).to_contain_text(regard.look(labels, TEXT).output.label)
        page.goto(
            f"http://127.0.0.1:{server.port}/{address(model='en-de', input=TEXT, edits=json.dumps(edits))}"
        )
        expect(page.get_by_role("alert")).to_contain_text("onerror")
        wrong = {"model": HOSTILE[0], "map": HOSTILE[5], "edits": HOSTILE[6], "input": TEXT}
        page.goto(f"http://127.0.0.1:{server.port}/{address(HOSTILE[4], **wrong)}")
        expect(page.locator("#said")).to_be_visible()
        assert page.evaluate("window.hacked") is None
        assert page.locator("main :is(img, iframe, base, script, a[href^=javascript])").count() == 0


# ---- type and watch, edit


@pytest.mark.parametrize("name", TEXTS)
def test_every_member_shows_its_output_and_exact_weights(opened, expect, name):
    page = opened(address(model=name, input=TEXT))
    look = regard.look(MODELS[name], TEXT, **({} if name == "labels" else {"beam_size": 1}))
    wanted = look.output.label if name == "labels" else look.output.text
    expect(page.locator("#said")).to_contain_text(wanted or "", use_inner_text=False)
    if not look.maps:
        expect(page.get_by_text("This model has no attention.")).to_be_visible()
        return
    expect(page.locator("#asking > span")).to_have_count(look.maps[-1].size[0])
    last = next(
        each for kind in ("cross", "self") for each in reversed(look.maps) if each.kind == kind
    )
    assert page.locator("#map option:checked").text_content() == last.name
    shown = [
        float(text.removesuffix(" %")) / 100
        for text in page.locator("#asked small").all_text_contents()
    ]
    assert shown == pytest.approx(last.weights().mean(0)[0].tolist(), abs=0.0052)
    scores = page.locator("#score").text_content()
    assert number(scores.split()[1]) == pytest.approx(sum(look.output.scores), abs=6e-4)


EDITS = [
    {"edit": "switch_head_off", "map": "decoder 1 cross", "head": 1},
    {"edit": "mask_source", "token": 2},
    {
        "edit": "paint_row",
        "map": "decoder 2 cross",
        "head": 0,
        "row": 0,
        "keys": [1],
        "weights": [0.9],
    },
]


def test_edits_of_the_address_are_those_of_a_look(opened, expect):
    page = opened(
        address(
            model="en-de", input=TEXT, edits=json.dumps(EDITS), map="decoder 2 cross", head=0, row=0
        )
    )
    look = regard.look(MODELS["en-de"], TEXT, edits=EDITS, beam_size=1)
    plain = regard.look(MODELS["en-de"], TEXT, beam_size=1)
    expect(page.locator("#edits li")).to_have_count(3)
    expect(page.locator("#said")).to_have_text(look.output.text)
    expect(page.locator("#unedited")).to_contain_text(plain.output.text)
    shown = shares(page.locator("#asked small"))
    weights = look["decoder 2 cross"].weights()[0, 0].tolist()
    assert shown == pytest.approx(weights, abs=0.0052)
    assert weights[1] == pytest.approx(0.9)
    assert weights[2] == 0
    gain = re.search(
        r"log-probability (\S+) \((\S+) by", page.locator("#score").text_content().replace("−", "-")
    )
    assert float(gain[1]) == pytest.approx(sum(look.output.scores), abs=6e-4)
    assert float(gain[2]) == pytest.approx(
        sum(look.output.scores) - sum(plain.output.scores), abs=1.1e-3
    )
    changes = [each.change for each in plain.difference(look)]
    assert page.locator("#output-tokens .gone").count() == sum(
        each in ("delete", "replace") for each in changes
    )
    assert page.locator("#output-tokens .new").count() == sum(
        each in ("insert", "replace") for each in changes
    )
    assert json.dumps(EDITS, separators=(",", ":")) in page.locator("#shell").text_content()
    scope: dict = {}
    program = (
        page.locator("#python").text_content().replace('"en-de"', "model").replace("print(", "(")
    )
    exec(program, {"model": MODELS["en-de"]}, scope)  # the snippet of the page
    assert scope["look"].output == look.output


def test_numbers_of_heads_below_the_fold_follow_an_edit(opened, expect):
    """After the frame that shows the edit's result: until then the table says that it is busy."""
    low = {"width": 1200, "height": 300}
    page = opened(address(model="en-de", input=TEXT, map="decoder 1 self", head=0), viewport=low)
    plain = regard.look(MODELS["en-de"], TEXT, beam_size=1)
    page.get_by_role("button", name="Switch off").click()
    look = regard.look(MODELS["en-de"], TEXT, edits=edits_of_address(settled(page)), beam_size=1)
    expect(page.locator("#heads:not([aria-busy])")).to_have_count(1)
    entropies = [head.entropy for _, head in look.heads()]
    assert entropies != pytest.approx([head.entropy for _, head in plain.heads()], abs=1e-3)
    shown = page.locator("#heads tbody td:nth-child(2)").all_text_contents()
    assert [number(text) for text in shown] == pytest.approx(entropies, abs=6e-4)


def shares(numbers: object) -> list[float]:
    """Percentages of the page."""
    return [float(text.removesuffix(" %")) / 100 for text in numbers.all_text_contents()]


def test_the_output_and_the_shown_map_are_drawn_before_the_other_maps(opened, expect):
    """Until those have arrived the page is busy, and one that is chosen in the meantime follows."""
    edit = [{"edit": "mask_source", "token": 3}]
    page, model = (
        opened(address(model="en-de", input=TEXT, map="decoder 1 cross", head=0, row=0)),
        MODELS["en-de"],
    )
    look, plain = (regard.look(model, TEXT, edits=edits, beam_size=1) for edits in (edit, None))
    rows = {
        name: look[name].weights()[0, 0].tolist() for name in ("decoder 1 cross", "decoder 2 cross")
    }
    assert all(row[3] == 0 != plain[name].weights()[0, 0, 3] for name, row in rows.items())
    held: list = []

    def hold(route: object) -> None:
        others = "decoder 2 self" in route.request.post_data_json.get("maps", [])
        held.append(route) if others else route.continue_()

    page.route("**/studio/look", hold)
    page.get_by_role("button", name="Source token 3:").click()
    page.get_by_role("button", name="Mask").click()
    expect(page.locator("#unedited")).to_have_count(1)
    shown = page.locator("#asked small")
    expect(page.locator("#said")).to_have_text(look.output.text)
    assert shares(shown) == pytest.approx(rows["decoder 1 cross"], abs=0.0052)
    assert page.locator("main[aria-busy] #heads[aria-busy]").count() == 1
    page.locator("#map").select_option("decoder 2 cross")
    for _ in range(100):
        page.wait_for_timeout(
            0 if held else 50
        )  # the other maps are asked for after the next frame
    (route,) = held
    route.continue_()
    settled(page)
    assert shares(shown) == pytest.approx(rows["decoder 2 cross"], abs=0.0052)


def test_a_likely_edit_is_computed_before_it_is_made(browser, expect, monkeypatch):
    """While a button is pointed at or has the focus, a slider moves, a token is typed or a row is painted."""
    model, computed = MODELS["en-de"], []
    compute = LiveLook._computed
    monkeypatch.setattr(
        LiveLook,
        "_computed",
        lambda *given: computed.append(list(given[0].edits)) or compute(*given),
    )
    off = {"edit": "switch_head_off", "map": "decoder 1 cross", "head": 0}
    with served({"en-de": model}) as running, strict_pages(browser) as open_page:
        place = address(model="en-de", input=TEXT, map="decoder 1 cross", head=0)
        page = settled(open_page(f"http://127.0.0.1:{running.port}/{place}"))
        button, plain = (
            page.get_by_role("button", name="Switch off"),
            page.locator("#said").text_content(),
        )

        def made(act: Callable) -> list:
            """The edits of the looks that were computed for an action, after the page's next request has its answer."""
            computed.clear()
            with page.expect_response(re.compile("/studio/(look|prepare)$")):
                act()
            return [*computed]

        assert made(button.hover) == [[off]]
        assert edits_of_address(page) == []
        assert page.locator("#said").text_content() == plain
        assert made(button.click) == []  # nor for the other maps
        look = regard.look(model, TEXT, edits=[off], beam_size=1)
        expect(settled(page).locator("#said")).to_have_text(look.output.text)
        assert edits_of_address(page) == [off]
        page.get_by_role("button", name="Undo").click()
        settled(page)
        asked: list = []
        page.on("request", lambda request: asked.append(request.url))
        page.locator("#heads-title").hover()
        button.hover()  # the look is known
        page.wait_for_timeout(200)
        assert asked == []
        page.locator("#edit-factor").focus()
        half = {"edit": "scale_head", "map": "decoder 1 cross", "head": 0, "factor": 0.5}
        move = "e => { e.value = 0.5; e.dispatchEvent(new Event('input')); }"
        assert made(lambda: page.locator("#edit-factor").evaluate(move)) == [[half]]
        assert made(lambda: page.locator("#edit-factor").dispatch_event("change")) == []
        assert edits_of_address(settled(page)) == [half]
        chosen = page.get_by_role("button", name="Source token 1")
        assert made(chosen.click) == [
            [half, {"edit": "mask_source", "token": 1}]
        ]  # the tool for it gets the focus
        field = page.locator("#token-text")
        typed = {"edit": "replace_token", "position": 1, "token": "the"}
        assert made(lambda: field.fill("the")) == [[half, typed]]
        assert made(lambda: field.press("Enter")) == []
        assert edits_of_address(settled(page)) == [half, typed]
        bar = page.locator("#painter [data-key='0']").bounding_box()
        page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] - 1)
        (first,) = made(page.mouse.down)
        assert (first[:2], first[2]["keys"]) == ([half, typed], [0])
        (last,) = made(
            lambda: page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
        )
        assert last[2] == {**first[2], "weights": [pytest.approx(0.5, abs=0.02)]}
        assert made(page.mouse.up) == []
        assert edits_of_address(settled(page)) == last


def test_what_was_kept_of_a_replaced_model_is_not_compared_with_its_successor(browser, expect):
    first, second = MODELS["en-de"], translator(seed=2).with_decode(**SHORT)
    unedited = regard.look(second, TEXT, beam_size=1).output.text
    assert unedited != regard.look(first, TEXT, beam_size=1).output.text
    with served({"en-de": first}) as running, strict_pages(browser) as open_page:
        place = address(model="en-de", input=TEXT, map="decoder 1 cross", head=0)
        page = settled(open_page(f"http://127.0.0.1:{running.port}/{place}"))
        expect(page.locator("#said")).to_have_text(
            regard.look(first, TEXT, beam_size=1).output.text
        )
        running.engine.load("en-de", "8", second)
        page.get_by_role("button", name="Switch off").click()
        expect(page.locator("#unedited")).to_contain_text(unedited)
        edited = regard.look(second, TEXT, edits=edits_of_address(settled(page)), beam_size=1)
        expect(page.locator("#said")).to_have_text(edited.output.text)
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#said")).to_have_text(unedited)


def edits_of_address(page) -> list:
    return json.loads(
        page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('edits') ?? '[]'")
    )


def test_heads_rows_and_tokens_are_edited_by_keys_and_undone(opened, expect):
    page = opened(address(model="en-de", input=TEXT, map="decoder 2 cross", head=1, row=0))
    expect(page.locator("#edit-target")).to_contain_text("decoder 2 cross, head 1, row 0")

    def edits() -> list:
        return edits_of_address(settled(page))

    page.get_by_role("button", name="Switch off").click()
    expect(settled(page).locator("#edits li")).to_have_text(["decoder 2 cross, head 1: off×"])
    page.locator("#edit-factor").focus()
    page.keyboard.press("End")
    expect(page.locator("#edits li")).to_have_text(["decoder 2 cross, head 1: × 2.00×"])
    page.locator("#painter [data-key='2']").focus()
    page.keyboard.press("End")
    expect(page.locator("#edits li")).to_have_count(2)
    paint = {
        "edit": "paint_row",
        "map": "decoder 2 cross",
        "head": 1,
        "row": 0,
        "keys": [2],
        "weights": [1],
    }
    scale = {"edit": "scale_head", "map": "decoder 2 cross", "head": 1, "factor": 2}
    assert edits() == [scale, paint]
    page.get_by_role("button", name="Source token 1").click()
    page.get_by_role("button", name="Mask", exact=True).click()
    expect(page.locator("#edits li")).to_have_count(3)
    page.locator("#output-tokens button").first.click()
    page.locator("#token-text").fill("the")
    page.get_by_role("button", name="Replace", exact=True).click()
    expect(page.locator("#edits li")).to_have_count(4)
    forced = {"edit": "replace_token", "side": "output", "position": 0, "token": "the"}
    assert edits() == [scale, paint, {"edit": "mask_source", "token": 1}, forced]
    look = regard.look(MODELS["en-de"], TEXT, edits=edits(), beam_size=1)
    expect(page.locator("#said")).to_have_text(look.output.text)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#edits li")).to_have_count(3)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#edits li")).to_have_count(2)
    page.locator("#painter [data-key='0']").focus()
    page.keyboard.press("Control+y")
    expect(page.locator("#edits li")).to_have_count(3)
    page.get_by_role("button", name=re.compile("^Remove: decoder 2 cross, head 1: × 2")).click()
    expect(page.locator("#edits li")).to_have_count(2)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#edits li")).to_have_count(0)


def test_a_row_is_painted_with_the_pointer(opened, expect):
    page = opened(address(model="en-de", input=TEXT, map="decoder 1 cross", head=0, row=1))
    expect(page.locator("#asking [aria-selected=true]")).to_have_attribute("data-row", "1")
    bar = page.locator("#painter [data-key='3']")
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.2)
    page.mouse.up()
    expect(settled(page).locator("#edits li")).to_have_count(1)
    edit = edits_of_address(settled(page))[0]
    assert (edit["row"], edit["keys"]) == (1, [3])
    assert edit["weights"][0] == pytest.approx(0.8, abs=0.02)
    expect(page.locator("#asked small").nth(3)).to_have_text(f"{round(100 * edit['weights'][0])} %")


def test_the_output_is_watched_token_by_token(server, monkeypatch):
    """Every look of the stream is one at the beginning of the output, with the same rows."""
    monkeypatch.setattr(studio, "WATCH_SECONDS", 0.0)
    gate, _ = slowed(monkeypatch, MODELS["en-de"])
    connection = server.connect()
    body = json.dumps({"model": "en-de", "input": [TEXT]})
    connection.request("POST", "/studio/watch", body, {"content-type": "application/json"})
    seen = threading.Event()

    def release() -> None:
        """Let the search go on step by step until a look has been seen, and then to its end."""
        while not seen.wait(0.2):
            gate.release()
        gate.release(1_000)

    releasing = threading.Thread(target=release)
    releasing.start()
    answer = connection.getresponse()
    events = []
    while line := answer.readline():
        if line.startswith(b"data: "):
            events.append(json.loads(line[6:]))
            seen.set()
    releasing.join()
    connection.close()
    whole = regard.look(MODELS["en-de"], TEXT, beam_size=1)
    assert [each["last"] for each in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["look"] == json.loads(whole.to_json())
    assert len(events) > 1
    cross = whole["decoder 2 cross"].weights()
    for each in events[:-1]:
        tokens = each["look"]["output"]["tokens"]
        assert 0 < len(tokens) <= len(whole.output.tokens)
        assert tokens == list(whole.output.tokens[: len(tokens)])
        found = next(one for one in each["look"]["maps"] if one["name"] == "decoder 2 cross")[
            "weights"
        ]
        weights = (
            np.frombuffer(base64.b64decode(found["data"]), "<u2").reshape(found["shape"]) / 65535
        )
        assert weights == pytest.approx(cross[:, : len(tokens)].numpy(), abs=1e-4)
    assert server.ask("/studio/watch", {"model": "labels", "input": [TEXT]})[0] == 400


@contextmanager
def threads_of_the_server() -> Iterator[None]:
    """One, as it computes models this small: the order of additions, and so the last bits, depend on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_the_state_is_saved_and_opened(opened, expect, tmp_path):
    page = opened(address(model="en-de", input=TEXT, edits=json.dumps(EDITS)))
    expect(page.locator("#edits li")).to_have_count(3)
    saved = {}
    for name in ("State", "Edits", "Look as JSON", "Page in one file"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).click()
        saved[name] = download.value.path().read_text()
    with threads_of_the_server():
        look = regard.look(MODELS["en-de"], TEXT, edits=EDITS, beam_size=1)
    assert json.loads(saved["Edits"]) == EDITS
    assert json.loads(saved["Look as JSON"]) == json.loads(look.to_json())
    assert saved["Page in one file"] == look.to_html()
    (tmp_path / "state.json").write_text(saved["State"])
    other = opened(address(model="lines", input="a", sample=1, temperature=2, seed=3))
    expect(other.locator("#said")).to_be_visible()
    other.set_input_files("#state-file", tmp_path / "state.json")
    expect(other.locator("#edits li")).to_have_count(3)
    expect(other.locator("#said")).to_have_text(look.output.text)
    # Nothing is left of the state before: the search is greedy again, as in the saved one.
    shown = dict(parse_qsl(settled(other).url.partition("?")[2]))
    assert not {"sample", "temperature", "seed"} & shown.keys()


def test_a_model_without_an_output_is_looked_at_all_the_same(browser, expect):
    with served({"masked": masked_model()}) as server, strict_pages(browser) as open_page:
        page = open_page(f"http://127.0.0.1:{server.port}/{address(input=TEXT)}")
        expect(page.locator("main")).to_contain_text("This model gives no output of its own.")
        expect(page.locator("#map")).to_be_visible()


def test_an_output_without_a_token_is_shown(opened, expect):
    page = opened(address(model="en-de", input=TEXT))
    page.evaluate("""async () => {
        const { showOutput } = await import("/studio/page/output.js");
        const box = document.createElement("div");
        box.id = "own";
        document.body.append(box);
        showOutput(box, { output: { text: "", tokens: [], scores: [] } });
    }""")
    expect(page.locator("#own #score")).to_have_text("log-probability 0.000 · 0 tokens")


def test_a_view_that_is_left_is_closed(opened, expect):
    """Once, before the next view is shown; another address of the same view closes nothing."""
    own = """
        export const view = { route: "data", title: "Data", show };
        function show(box) {
          box.append("A view of its own");
          window.log = [...(window.log ?? []), "shown"];
          return { update: () => window.log.push("updated"), close: () => window.log.push("closed") };
        }
    """
    page = opened(address(model="en-de", input="a"))
    script = {"body": own, "content_type": "text/javascript"}
    page.route("**/data_view.js", lambda route: route.fulfill(**script))
    page.goto(page.url.split("#")[0] + address("data", model="en-de"))
    page.reload()
    expect(page.locator("main")).to_contain_text("A view of its own")
    assert page.evaluate("window.log") == ["shown"]
    page.evaluate("location.hash += '&sort=entropy'")
    shown_until(page, "() => window.log.length === 2")
    page.get_by_role("link", name="Type and watch").click()
    expect(page.locator("#input-0")).to_be_visible()
    assert page.evaluate("window.log") == ["shown", "updated", "closed"]


def test_a_picture_is_dropped(opened, expect, tmp_path):
    """What the model reads are its pixels: the server never reads a file for a request."""
    scene = next(shapes("valid", 0, 1)).sources[0]
    pixels = load_image(scene, 64)
    (tmp_path / "picture.webp").write_bytes(webp(pixels, lossless=True))
    page = opened(address(model="captions", map="decoder 2 cross"))
    expect(page.locator("#said")).to_be_visible()
    page.set_input_files("#input-0", tmp_path / "picture.webp")
    look = regard.look(MODELS["captions"], pixels, beam_size=1)
    expect(page.locator("#said")).to_have_text(look.output.text)
    expect(page.locator("#asking > span")).to_have_count(len(look.output.tokens))
    best = int(look["decoder 2 cross"].weights().mean(0)[0].argmax())
    columns = look.source.grid[1]
    place = f"row {best // columns + 1}, column {best % columns + 1},"
    expect(page.locator("#picture canvas").first).to_have_attribute("aria-label", re.compile(place))
    page.get_by_role("button", name="Example 2").click()
    other = load_image(list(shapes("test", 0, 2))[1].sources[0], 64)
    expect(page.locator("#said")).to_have_text(
        regard.look(MODELS["captions"], other, beam_size=1).output.text
    )


def test_several_sources_are_typed_and_shown(opened, expect):
    page = opened(address(model="questions"))
    scene, question = next(questions("test")).sources
    look = regard.look(MODELS["questions"], (scene.draw(), question), beam_size=1)
    expect(page.locator("#said")).to_have_text(look.output.text)
    page.get_by_label("Source 2: text").fill("the cats")
    other = regard.look(MODELS["questions"], (scene.draw(), "the cats"), beam_size=1)
    expect(page.locator("#said")).to_have_text(other.output.text)
    expect(page.locator("#source-tokens .chips button")).to_have_text(list(other.sources[1].tokens))
    settled(page).get_by_role("button", name="Source token 0").click()
    page.get_by_role("button", name="Mask", exact=True).click()
    edits = [{"edit": "mask_source", "source": 1, "token": 0}]
    edited = regard.look(MODELS["questions"], (scene.draw(), "the cats"), beam_size=1, edits=edits)
    expect(page.locator("#edits li")).to_have_count(1)
    score = settled(page).locator("#score").text_content().split()[1]
    assert number(score) == pytest.approx(sum(edited.output.scores), abs=6e-4)


def test_no_file_is_read_for_a_request(server, tmp_path):
    (tmp_path / "picture.webp").write_bytes(
        webp(load_image(next(shapes("valid", 0, 1)).sources[0], 64))
    )
    for given in (
        str(tmp_path / "picture.webp"),
        (tmp_path / "picture.webp").as_uri(),
        "data:image/png;base64,AAAA",
    ):
        status, _, answer = server.ask("/studio/look", {"model": "captions", "input": [given]})
        assert (status, "input 1" in answer["argument"]) == (400, True)


def test_a_token_is_swapped_for_an_alternative_of_the_model(opened, server, expect):
    model = MODELS["en-de"]
    page = opened(address(model="en-de", input=TEXT))
    page.locator("#output-tokens button").nth(2).click()
    page.wait_for_selector("#alternatives:not([aria-busy])")
    look = regard.look(model, TEXT, beam_size=1)
    with torch.inference_mode():
        best = look.forward()[2].log_softmax(-1).topk(8)
    names = model.target.pieces(best.indices.tolist())
    expect(page.locator("#alternatives .name")).to_have_text(
        [name.replace(" ", "␣") or "␣" for name in names]
    )
    shown = [
        float(text.removesuffix(" %"))
        for text in page.locator("#alternatives .number").all_text_contents()
    ]
    assert shown == pytest.approx((100 * best.values.exp()).tolist(), abs=0.51)
    expect(page.locator("#alternatives [aria-pressed=true]")).to_have_count(1)
    page.locator("#alternatives button").nth(4).click()
    edits = [
        {"edit": "replace_token", "side": "output", "position": 2, "token": int(best.indices[4])}
    ]
    assert edits_of_address(settled(page)) == edits
    edited = regard.look(model, TEXT, edits=edits, beam_size=1)
    assert page.locator("#said").text_content() == edited.output.text
    for position, wanted in ((99, 400), (-1, 400), (2, 200)):
        body = {"model": "en-de", "input": [TEXT], "beam_size": 1, "position": position}
        assert server.ask("/studio/alternatives", body)[0] == wanted
    assert (
        server.ask("/studio/alternatives", {"model": "labels", "input": [TEXT], "position": 0})[0]
        == 400
    )


def test_the_search_is_chosen(opened):
    page, model = opened(address(model="en-de", input=TEXT)), MODELS["en-de"]
    page.get_by_label("Search").select_option("beam")
    assert settled(page).locator("#said").text_content() == model.predict([TEXT], beam_size=4)[0]
    page.get_by_label("Search").select_option("sample")
    for key, value in (("temperature", "2"), ("top_k", "30"), ("top_p", "0.9"), ("seed", "5")):
        settled(page).locator(f"#{key}").fill(value)
        page.locator(f"#{key}").press("Enter")
    options = {"sample": True, "temperature": 2.0, "top_k": 30, "top_p": 0.9, "seed": 5}
    look = regard.look(model, TEXT, **options)
    assert (
        settled(page).locator("#said").text_content()
        == look.output.text
        != model.predict([TEXT], beam_size=1)[0]
    )
    flags = (
        "--beam 1 --set sample=true --set temperature=2 --set top_k=30 --set top_p=0.9 --set seed=5"
    )
    assert flags in page.locator("#shell").text_content()
    edits = [{"edit": "mask_source", "token": 2}]
    page.get_by_role("button", name="Source token 2").click()
    page.get_by_role("button", name="Mask", exact=True).click()
    edited = regard.look(model, TEXT, edits=edits, **options)
    assert settled(page).locator("#said").text_content() == edited.output.text


# ---- the beam tree

CUT = """() => [...document.querySelectorAll(".node")].filter((node) => {
  const [name, number] = [...node.children].map((each) => each.getBoundingClientRect());
  const { left, right } = node.getBoundingClientRect();
  return name.left < left || number.right > right;
}).map((node) => node.textContent)"""  # nodes whose token or probability is not inside


def test_the_beam_is_a_tree_whose_nodes_force_their_prefix(opened, expect):
    model = MODELS["en-de"]
    page = opened(address("beam", model="en-de", input=TEXT, beam=3))
    outputs = model.outputs([TEXT], beam_size=3, num_hypotheses=3)[0]
    expect(page.locator("#hypotheses tbody th")).to_have_text([each.text for each in outputs])
    scores = [
        number(text)
        for text in page.locator("#hypotheses tbody td:nth-child(2)").all_text_contents()
    ]
    assert scores == pytest.approx([each.score for each in outputs], abs=6e-4)
    assert page.locator(".node.alive.ended").count() == 3
    assert page.locator(".node.dead").count() > 0
    assert page.evaluate(CUT) == []
    second = page.locator(".node[aria-label$='depth 2']")
    token = second.last.locator("span").text_content()
    second.last.click()
    expect(page.locator("#forced")).to_have_text("The first 2 tokens are forced.")
    edits = edits_of_address(settled(page))
    assert [(each["edit"], each["side"], each["position"]) for each in edits] == [
        ("replace_token", "output", i) for i in (0, 1)
    ]
    forced = model.outputs([TEXT], beam_size=3, num_hypotheses=3, edits=edits)[0]
    expect(page.locator("#hypotheses tbody th").first).to_have_text(forced[0].text)
    assert forced[0].tokens[1] == token
    expect(page.locator(".node[aria-label$='depth 2']")).to_have_count(1)
    page.locator(".node").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.ariaLabel").endswith("depth 2")
    assert violations(page) == []
    page.get_by_role("button", name="Search freely again").click()
    expect(page.locator("#hypotheses tbody th")).to_have_text([each.text for each in outputs])
    before = page.locator(".node").count()
    page.get_by_label("Candidates that were pruned").check()
    assert page.locator(".node").count() > before


# ---- compare


def test_edits_are_compared_with_the_model_as_it_is(opened, expect):
    edits = [{"edit": "switch_head_off", "map": "decoder 1 cross"}]
    page = opened(
        address(
            "compare",
            model="en-de",
            input=TEXT,
            edits=json.dumps(edits),
            map="decoder 1 cross",
            head=1,
        )
    )
    first = regard.look(MODELS["en-de"], TEXT, edits=edits, beam_size=1)
    second = regard.look(MODELS["en-de"], TEXT, beam_size=1)
    aligned = first.difference(second)
    rows = page.locator("#aligned tbody tr")
    expect(rows).to_have_count(len(aligned))
    for row, each in zip(rows.all(), aligned, strict=True):
        cells = row.locator("td").all_text_contents()
        assert (cells[0], cells[2]) == (each.first or "", each.second or "")
        assert cells[4] == ("" if each.gain is None else f"{each.gain:+.3f}".replace("-", "−"))
    page.locator("#head-b").select_option("0")
    assert "head_b=0" in settled(page).url
    both = [
        i for i, each in enumerate(aligned) if each.first is not None and each.second is not None
    ]
    count = lambda side, end: sum(getattr(each, side) is not None for each in aligned[:end])  # noqa: E731
    pairs = [(count("first", i), count("second", i)) for i in both]
    weights = [look["decoder 1 cross"].weights()[head] for look, head in ((first, 1), (second, 0))]
    change = max(
        (weights[0][a, key] - weights[1][b, key]).item()
        for a, b in pairs
        for key in range(weights[0].shape[1])
    )
    least = min(
        (weights[0][a, key] - weights[1][b, key]).item()
        for a, b in pairs
        for key in range(weights[0].shape[1])
    )
    most = max(change, least, key=abs)
    wanted = f"{100 * most:+.1f} %".replace("-", "−")
    expect(page.locator("#cells tbody tr").first.locator("td").last).to_have_text(wanted)
    assert settled(page).locator("#maps canvas").count() == 3
    assert violations(page) == []


def test_two_models_and_layers_are_compared(opened, expect):
    page = opened(address("compare", model="en-de", input=TEXT, model_b="rnn"))
    looks = [regard.look(MODELS[name], TEXT, beam_size=1) for name in ("en-de", "rnn")]
    expect(page.locator("#aligned tbody tr")).to_have_count(len(looks[0].difference(looks[1])))
    assert page.locator("#model-b").input_value() == "rnn"
    page.locator("#model-b").select_option("en-de")
    page.locator("#map-b").select_option("decoder 1 cross")
    expect(page.locator("#maps h3").nth(1)).to_contain_text("B: decoder 1 cross")
    found = [looks[0][name].weights().mean(0) for name in ("decoder 2 cross", "decoder 1 cross")]
    largest = (found[0] - found[1]).abs().max().item()
    expect(page.locator("#maps h3").nth(2)).to_contain_text(f"at most {100 * largest:.0f} %")
    page.locator("#maps .weights").first.focus()
    page.keyboard.press("ArrowDown")
    assert violations(page) == []


@pytest.mark.parametrize(
    ("route", "scheme"),
    [("beam", "dark"), ("compare", "light"), pytest.param("beam", "light", marks=SLOW),
     pytest.param("compare", "dark", marks=SLOW)],
)  # fmt: skip
def test_every_view_is_accessible_on_a_phone(opened, expect, route, scheme):
    options = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}}
    page = opened(address(route, model="en-de", input=TEXT), **options)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# ---- the package's own model


def test_the_model_of_the_package_is_the_one_that_its_recipe_made():
    """Written by tests/support/write_studio_model.py; the hash is that of its manifest."""
    folder = files("regard.studio") / "example_model" / "dates"
    regard.verify(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["sha256"] == "f242d08f9f6da417039dcaadf6e74253853bcc4fe975854b2e0df6ea600bee9b"
    assert sum(each["bytes"] for each in manifest["files"].values()) < 1_000_000
    model = regard.load(folder, device="cpu")
    assert model.predict(["March 3, 1999", "le 14 juillet 1937"]) == ["1999-03-03", "1937-07-14"]


def test_the_verb_serves_the_model_of_the_package():
    with process_of("studio", "--port", "0", "--no-open") as process:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        connection = http.client.HTTPConnection(address[7:-1], timeout=60)
        connection.request("GET", "/studio/models")
        assert json.loads(connection.getresponse().read())["models"][0]["name"] == "dates"
        connection.request("GET", "/")
        assert b"Regard studio" in connection.getresponse().read()
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@contextmanager
def process_of(*arguments: str) -> Iterator[subprocess.Popen]:
    started = subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments], stdout=subprocess.PIPE, text=True
    )
    timer = threading.Timer(120, started.kill)
    timer.start()
    try:
        yield started
    finally:
        timer.cancel()
        started.kill()
        started.wait()
        started.stdout.close()
