"""The page of a look in a real browser: Debian's chromium, through Playwright, from a file and without a network."""

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import regard
from regard.core.sequence import MultiSource, Tokens
from regard.interpret.look import Look
from regard.model.seq2seq import Seq2Seq
from regard.views.html import page as made
from support.browsers import HOSTILE, browser as launched, until
from support.models import decoder, encoder, one, source
from support.predictors import language_model, translator

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs Playwright: pip install playwright"
)
TEXT, SAID = "the cat sat on the mat, and the red dog ran.", "the dogma of the category words"


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with launched() as started:
        yield started


@pytest.fixture
def show(browser, tmp_path) -> Iterator[Callable]:
    """Opens a page. In the end there must have been no complaint, and nothing asked for from elsewhere."""
    contexts, told, asked = [], [], []

    def opened(html: str, **options):
        context = browser.new_context(viewport={"width": 1100, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints = told
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: told.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        (tmp_path / "page.html").write_text(html, encoding="utf-8")
        page.goto((tmp_path / "page.html").as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert told == []
    assert [
        url for url in asked if not re.match("data:|blob:|about:|file:.*/page.html$", url)
    ] == []


@pytest.fixture(scope="module")
def text() -> Look:
    return regard.look(translator(), TEXT, output=SAID)


@pytest.fixture(scope="module")
def picture() -> Look:
    return regard.look(
        Seq2Seq(encoder("vit"), decoder("transformer")), one(source("vit"), 0), output=[5, 6, 7, 3]
    )


def value(told: str) -> float:
    return float(told.removesuffix(" %").replace("−", "-")) / 100


def same(weight: float) -> object:
    """As it is told: in hundredths, or if it is small in thousandths."""
    return pytest.approx(weight, abs=0.0052 if abs(weight) > 0.099 else 0.00053)


def numbers(page) -> list[float]:
    return [value(told) for told in page.locator("#asked small").all_text_contents()]


def test_each_of_several_sources_is_shown_with_its_own_maps(show):
    """The image is shown for maps of its regions only, the tokens for those of the text."""
    text = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16}
    encoders = [{"kind": "cnn", "dim": 16, "channels": [4, 8, 8]}, text]
    model = regard.build(
        {"encoders": encoders, "decoder": text, "vocab_size": 9, "source_vocab_size": [9]}
    ).eval()
    sources = MultiSource((torch.rand(1, 3, 64, 64), Tokens.of([[4, 5, 6]])))
    look = regard.look(model, sources, output=[7, 8])
    page = show(look.to_html())
    assert page.locator("#picture").is_hidden()  # the last map is of the text
    of_text = look["decoder 1 cross source 2"].weights().mean(0)[0]
    assert page.locator("#asked > span > span").all_text_contents() == ["4", "5", "6"]
    assert numbers(page) == [same(float(weight)) for weight in of_text]
    page.select_option("#map", label="decoder 1 cross source 1")
    assert page.locator("#picture img").first.get_attribute("src").startswith("data:image/webp")
    assert page.locator("#picture").is_visible()
    best = int(look["decoder 1 cross source 1"].weights().mean(0)[0].argmax())
    label = page.locator("#picture canvas").first.get_attribute("aria-label")
    assert f"row {best // 8 + 1}, column {best % 8 + 1}," in label


def test_a_page_of_several_inputs_shows_the_one_that_is_chosen(show, text, picture):
    other = regard.look(translator(), "the red dog ran", output="the dogma")
    page = show(made([text.as_dict(), other.as_dict(), picture.as_dict()]))
    options = page.locator("#input option").all_text_contents()
    assert options == [f"1. {text.title}", f"2. {other.title}", f"3. {picture.title or 'A look'}"]
    assert page.locator("#title").text_content() == text.title
    page.select_option("#map", label="decoder 1 cross")
    page.select_option("#head", index=1)
    page.select_option("#input", index=1)
    assert page.locator("#title").text_content() == "the red dog ran"
    assert page.locator("#map option:checked").text_content() == "decoder 1 cross"  # as before
    assert numbers(page) == [
        same(float(weight)) for weight in other["decoder 1 cross"].weights()[0, 0]
    ]
    page.locator("#asking > span").nth(1).hover()
    assert numbers(page) == [
        same(float(weight)) for weight in other["decoder 1 cross"].weights()[0, 1]
    ]
    page.select_option("#input", index=2)
    assert page.locator("#picture").is_visible()
    page.select_option("#input", index=0)
    page.select_option("#map", label="decoder 2 cross")
    assert page.locator("#asking > span").all_text_contents() == list(text.output.tokens)
    assert show(text.to_html()).locator("#inputs").is_hidden()


def test_a_word_that_is_pointed_at_shows_where_it_looks(show, text):
    page = show(text.to_html())
    cross = text["decoder 2 cross"].weights()
    assert page.locator("#asking > span").all_text_contents() == list(text.output.tokens)
    assert page.locator("#asked > span > span").all_text_contents() == list(text.source.tokens)
    page.hover("[data-row='3']")
    assert numbers(page) == list(map(same, cross.mean(0)[3].tolist()))
    page.select_option("#head", label="head 1")
    assert numbers(page) == list(map(same, cross[1, 3].tolist()))
    best = int(cross[1, 3].argmax())
    shades = page.locator("#asked > span").evaluate_all(
        "all => all.map(each => each.style.backgroundColor)"
    )
    assert [i for i, shade in enumerate(shades) if shade == "rgb(0, 34, 78)"] == [best]
    assert (
        page.locator("#told")
        .text_content()
        .startswith(f"{text.output.tokens[3]} attends to {text.source.tokens[best]}")
    )
    page.select_option("#map", label="decoder 1 self")
    assert page.locator("#asking > span").all_text_contents() == list(text.output.read)
    assert numbers(page) == list(map(same, text["decoder 1 self"].weights()[1, 3].tolist()))
    page.uncheck("#numbers")
    assert set(page.locator("#asked small").all_text_contents()) == {""}


def test_rows_and_heads_that_were_asked_for_are_shown(show, text):
    page = show(regard.look(translator(), TEXT, output=SAID, rows=[4, 1], heads=[1]).to_html())
    assert page.locator("#asking > span").all_text_contents() == [
        text.output.tokens[row] for row in (4, 1)
    ]
    assert page.locator("#head option").all_text_contents() == ["head 1"]
    page.hover("[data-row='1']")
    assert numbers(page) == list(map(same, text["decoder 2 cross"].weights(1, 1)[0, 0].tolist()))


def test_a_pinned_row_is_compared(show, text):
    page = show(text.to_html())
    page.click("[data-row='1']")
    page.hover("[data-row='4']")
    cross = text["decoder 2 cross"].weights().mean(0)
    lines = [
        row.locator("th, td").all_text_contents() for row in page.locator("#largest tbody tr").all()
    ]
    for name, now, pinned, change in lines:
        place = int(name.split()[-1])
        assert (value(now), value(pinned)) == (
            same(cross[4, place].item()),
            same(cross[1, place].item()),
        )
        assert value(change) == same((cross[4, place] - cross[1, place]).item())
    assert "pinned: " in page.locator("#largest thead").text_content()
    page.press("[data-row='4']", "Escape")
    assert "pinned: " not in page.locator("#largest thead").text_content()


def test_everything_is_reached_by_keys(show, text):
    page = show(text.to_html())
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outline, beyond = page.evaluate(
            """() => {
                const now = document.activeElement;
                return [now.id || now.textContent, getComputedStyle(now).outlineStyle, now === document.body];
            }"""
        )
        reached.append(name)
        assert beyond or outline == "solid", f"{name!r} shows no focus ring"
    first = text.output.tokens[0]
    wanted = [
        "map",
        "head",
        "numbers",
        "by-row",
        "SVG",
        first,
        "nearer",
        "weights",
        "entropy",
        "decoder 1 self, head 0",
    ]
    places = [reached.index(name) for name in wanted]
    assert sorted(places[:4]) == places[:4]
    page.focus("[data-row='0']")
    for key, row in (
        ("ArrowRight", 1),
        ("End", len(text.output.tokens) - 1),
        ("ArrowLeft", 5),
        ("Home", 0),
        ("ArrowUp", 0),
    ):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.row") == str(row)
    page.keyboard.press("Enter")
    assert page.locator(".pinned").count() == 1
    page.keyboard.press("l")
    assert page.locator("#head").input_value() == "0"
    page.keyboard.press("k")
    assert page.locator("#map option:checked").text_content() == "decoder 2 self"
    page.keyboard.press("j")
    page.focus("#weights")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    weight = text["decoder 2 cross"].weights()[0, 1, 1].item()
    told = re.search(f", to {text.source.tokens[1]} (.*?);", page.locator("#told").text_content())
    assert value(told[1]) == same(weight)
    playwright.expect(page.get_by_role("status")).to_have_text(page.locator("#told").text_content())


def test_heads_are_sorted_and_chosen(show, text):
    page = show(text.to_html())
    wanted = [f"{each.name}, head {head.head}" for each, head in text.heads("confidence")]
    names = page.locator("#heads tbody button")
    page.get_by_role("button", name="confidence").click()
    assert names.all_text_contents() == wanted
    assert page.locator("#heads th[aria-sort='descending']").text_content() == "confidence"
    page.get_by_role("button", name="confidence").click()
    assert names.all_text_contents() == wanted[::-1]
    page.get_by_role("button", name="decoder 1 cross, head 1").click()
    assert page.locator("#map option:checked").text_content() == "decoder 1 cross"
    assert page.locator("#head option:checked").text_content() == "head 1"
    assert page.locator("[aria-pressed='true']").all_text_contents() == ["decoder 1 cross, head 1"]


# The number of colors in each thumbnail; read from a copy, since a canvas that is read often is kept elsewhere.
COLORS = """() => [...document.querySelectorAll("#heads canvas")].map((canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    return new Set(new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
})"""


def test_thumbnails_of_heads_are_painted_where_they_are_seen_and_for_print(show, text):
    page = show(text.to_html(), color_scheme="light")
    page.set_viewport_size({"width": 1100, "height": 200})
    page.reload()
    page.locator("#told").wait_for()
    assert set(page.evaluate(COLORS)) == {1}  # far below: nothing but transparent points
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert min(page.evaluate(COLORS)) > 3
    page.reload()
    page.locator("#heads").scroll_into_view_if_needed()
    until(page, f"() => Math.min(...({COLORS})()) > 3")
    before = page.evaluate("document.querySelector('#heads canvas').toDataURL()")
    page.emulate_media(color_scheme="dark")
    until(
        page, "(before) => document.querySelector('#heads canvas').toDataURL() !== before", before
    )


def test_a_long_map_is_drawn_in_tiles(show):
    ids = torch.randint(5, 300, (2000,)).tolist()
    look = regard.look(language_model().model, Tokens.of([ids]), output=[5])
    page = show(look.to_html())
    assert page.locator("#asking > span").count() == 600
    page.hover("[data-row='500']")
    summary = look["decoder 2 self"].summary(1)
    page.select_option("#head", label="head 1")
    assert value(page.locator("#largest td").first.text_content()) == same(
        summary.top_weights[1, 500, 0].item()
    )
    assert page.locator("#largest tbody small").first.text_content().strip() == str(
        summary.top_keys[1, 500, 0].item()
    )
    page.focus("[data-row='500']")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.row") == "2000"
    page.focus("#weights")
    page.keyboard.press("End")
    drawn_width = """() => new Promise((done) => {
        requestAnimationFrame(() => done(document.querySelector("#weights canvas").width)); // drawn in the next frame
    })"""
    size = page.evaluate(drawn_width)
    for _ in range(12):
        page.keyboard.press("+")
    assert f"to {ids[-1]} " in page.locator("#told").text_content()
    page.keyboard.press("0")
    assert page.evaluate(drawn_width) == size
    with page.expect_download() as saved:
        page.click("[data-save='map.svg']")
    assert "<image" in saved.value.path().read_text()


def test_regions_of_a_picture_are_lit(show, picture):
    page = show(picture.to_html())
    cross = picture["decoder 2 cross"].weights().mean(0)
    page.hover("[data-row='2']")
    rows, columns = picture.source.grid
    alphas = page.evaluate(
        """([rows, columns]) => {
        const {width, height} = document.querySelector("#picture canvas");
        const all = document.querySelector("#picture canvas").getContext("2d").getImageData(0, 0, width, height).data;
        const at = (y, x) => all[4 * (Math.floor(y * height / rows) * width + Math.floor(x * width / columns)) + 3];
        return Array.from({length: rows * columns}, (_, i) => at(Math.floor(i / columns) + 0.1, i % columns + 0.1));
        }""",
        [rows, columns],
    )
    shares = cross[2] / cross[2].max()
    assert alphas == pytest.approx([255 * 0.75 * (1 - share) for share in shares.tolist()], abs=2)
    assert (
        page.locator("#picture canvas")
        .first.get_attribute("aria-label")
        .startswith("7, decoder 2 cross, mean of 2")
    )
    page.click("[data-row='1']")
    assert page.locator("figure:visible").count() == 2
    page.select_option("#map", label="encoder 1")
    box = page.locator("#picture canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.9)
    assert page.locator("#asking [aria-selected='true']").text_content() == f"{rows},{columns}"
    page.select_option("#map", label="decoder 1 self")
    assert not page.locator("#picture").is_visible()
    assert page.locator("#asked > span").count() == 4


@pytest.mark.parametrize("what", ["map", "row"])
def test_the_view_is_saved(show, text, picture, what):
    for look, needle in (
        (text, "rect" if what == "map" else "line"),
        (picture, "rect" if what == "map" else "image"),
    ):
        page = show(look.to_html())
        with page.expect_download() as saved:
            page.click(f"[data-save='{what}.svg']")
        drawn = ElementTree.fromstring(saved.value.path().read_bytes())
        assert saved.value.suggested_filename == f"decoder-2-cross-{what}.svg"
        assert drawn.findall(f".//{{http://www.w3.org/2000/svg}}{needle}")
        with page.expect_download() as saved:
            page.click(f"[data-save='{what}.png']")
        content = saved.value.path().read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", content[16:24]) == (
            2 * int(drawn.get("width")),
            2 * int(drawn.get("height")),
        )


def test_hostile_tokens_stay_inert(show, text):
    """As tokens of every list, as labels of every drawing, as the title and the name of a map."""
    told = text.as_dict()
    many = HOSTILE * 2
    told["title"] = " ".join(HOSTILE)
    told["sources"][0]["tokens"] = many[: len(told["sources"][0]["tokens"])]
    told["output"] |= {"tokens": many[-len(told["output"]["tokens"]) :], "text": HOSTILE[0]}
    told["output"]["read"] = many[5 : 5 + len(told["output"]["read"])]
    for each in told["maps"]:
        each["name"] += HOSTILE[4]
    page = show(made(told))
    for row in range(len(told["output"]["tokens"])):
        page.hover(f"[data-row='{row}']")
        page.click(f"[data-row='{row}']")
    for what in ("row", "map"):
        with page.expect_download() as saved:
            page.click(f"[data-save='{what}.svg']")
        drawn = ElementTree.fromstring(saved.value.path().read_bytes())
        kinds = {each.tag.split("}")[1] for each in drawn.iter()}
        assert kinds <= {"svg", "title", "rect", "text", "line", "image"}
    assert page.locator("h1").text_content() == told["title"]
    assert page.locator("#asking > span").first.text_content() == told["output"]["tokens"][0]
    assert page.evaluate("window.hacked") is None
    assert (
        page.locator(
            "img, iframe, base, svg, script:not(#look):not([type=module]), a, meta[http-equiv=refresh]"
        ).count()
        == 0
    )
    assert page.locator("style").count() == 1


@pytest.mark.slow
def test_each_hostile_string_stays_inert_as_token_file_name_and_caption(show, text, picture):
    """One page of many inputs: a text of this token, and a picture whose file and caption have this name."""
    inputs = []
    for string in HOSTILE:
        told, shown = text.as_dict(), picture.as_dict()
        told["sources"][0]["tokens"] = [string] * len(told["sources"][0]["tokens"])
        shown |= {"title": string, "output": shown["output"] | {"text": string}}
        for output in (told["output"], shown["output"]):
            output["tokens"] = [string] * len(output["tokens"])
        inputs += [told, shown]
    page = show(made(inputs))
    assert len(HOSTILE) == 20
    for number, string in enumerate(HOSTILE):
        token = string.replace("\0", "\ufffd").replace(
            "\u2028", "⏎"
        )  # as control characters are shown
        page.select_option("#input", index=2 * number)
        assert page.locator("#asked > span > span").first.text_content() == token
        page.select_option("#input", index=2 * number + 1)
        assert page.locator("#title").text_content() == string
        assert page.locator("#asking > span").first.text_content() == token
        page.hover("[data-row='1']")
    assert page.evaluate("window.hacked") is None
    assert (
        page.locator(
            "iframe, base, script:not(#look):not([type=module]), a, meta[http-equiv=refresh]"
        ).count()
        == 0
    )
    assert page.locator("style").count() == 1
    sources = page.locator("img").evaluate_all("each => each.map(image => image.src)")
    assert {source.partition(",")[0] for source in sources} <= {"", "data:image/webp;base64"}


def test_nothing_else_may_run(show, text):
    page = show(text.to_html())
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {text: 'hacked = 1'}))"
        )
    assert page.evaluate("window.hacked") is None
    page.complaints.clear()
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert "unsafe" not in policy


def test_it_follows_light_and_dark(show, text):
    for scheme, ground in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 19, 24)")):
        page = show(text.to_html(), color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
        shades = page.locator("#asked > span").evaluate_all(
            "all => all.map(each => each.style.backgroundColor)"
        )
        assert ("rgb(0, 34, 78)" if scheme == "light" else "rgb(255, 234, 70)") in shades


def test_everything_has_a_role_and_a_name(show, text, picture):
    for look in (text, picture):
        page = show(look.to_html())
        for role, name in (
            ("combobox", "Layer"), ("combobox", "Head"), ("checkbox", "Numbers"),
            ("checkbox", "Color each row by itself"), ("listbox", "Queries: output"), ("button", "Save the row as SVG"),
            ("button", "Save the map as PNG"),
            ("button", "Nearer"), ("button", "Farther"), ("application", "Map of weights, rows by keys"),
            ("table", "Every head of every layer"), ("table", "Largest weights"), ("region", "Heads"),
        ):  # fmt: skip
            assert page.get_by_role(role, name=name, exact=True).count() == 1, name
        assert page.locator("#asking [role=option][aria-selected=true]").count() == 1
        named = (
            "each.textContent.trim() || each.ariaLabel || each.labels?.length"
            " || each.ariaLabelledByElements?.length"
        )
        nameless = f"all => all.filter(each => !({named})).length"
        assert page.locator("button, select, input, [tabindex='0']").evaluate_all(nameless) == 0
        assert page.locator("h1, h2, h3").evaluate_all("all => all.map(each => each.tagName)")[
            :3
        ] == ["H1", "H2", "H3"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_complaint(show, text, picture, scheme):
    """The rules of https://github.com/dequelabs/axe-core; which do complain where there is cause."""
    package = pytest.importorskip(
        "axe_playwright_python", reason="needs axe: pip install axe-playwright-python"
    )
    axe = Path(package.__path__[0], "axe.min.js").read_text(encoding="utf-8")
    for look in (text, picture):
        page = show(look.to_html(), color_scheme=scheme)
        page.evaluate(axe)
        complaints = "async () => (await axe.run()).violations.map(each => each.id)"
        assert page.evaluate(complaints) == []
        page.evaluate("document.querySelector('main').append(document.createElement('button'))")
        assert page.evaluate(complaints) == ["button-name"]


def test_a_notebook_shows_it(show, text):
    page = show(f"<!doctype html><body>{text._repr_html_()}</body>")
    inside = page.frame_locator("iframe")
    inside.locator("[data-row='2']").hover()
    wanted = list(map(same, text["decoder 2 cross"].weights().mean(0)[2].tolist()))
    assert [value(told) for told in inside.locator("#asked small").all_text_contents()] == wanted


def test_a_model_that_attends_to_nothing_says_so(show):
    model = Seq2Seq(encoder("bag"), decoder("rnn"))
    page = show(regard.look(model, one(source("bag"), 0), output=[5, 6]).to_html())
    assert page.locator("#nothing").is_visible()
    assert not page.locator("#views").is_visible()
