"""The studio by the keyboard alone, for every member of the family; axe finds nothing in any state, light or dark."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.data.images import load_image, webp
from regard.data.synthetic.shapes import shapes
from regard.data.vocabulary import Labels
from regard.inference.predictor import Predictor
from regard.interpret.look import Image, Look, Text
from regard.recipe.recipe import Recipe
from support.browsers import browser as launched, number, settled, strict_pages, violations
from support.captioners import DECODERS, captioner, questioner
from support.keyboard import Keyboard
from support.onnx_members import lively, seeded
from support.predictors import COPY, PARTS, language_model, tokenizer
from support.servers import Running, served

pytestmark = pytest.mark.slow

TEXT = "the red dog sat"


def classifier() -> Predictor:
    """One with attention in its encoder and its pool."""
    words, labels = tokenizer(), Labels(["bad", "fine", "good"])
    table = {"encoder": PARTS["transformer"], "pool": {"kind": "attention", "heads": 2}}
    torch.manual_seed(1)
    model = regard.build(
        {**table, "num_labels": labels.size, "source_vocab_size": words.size}
    ).eval()
    data = {"train": "x.tsv", "source": {"column": "1"}, "target": {"kind": "label", "column": "2"}}
    return Predictor(model, Recipe.of({"data": data, "model": table}), (words,), labels)


def translator(encoder: dict, decoder: dict) -> Predictor:
    """One whose outputs have several tokens."""
    words, table = tokenizer(), {"encoder": encoder, "decoder": decoder, "tie_embeddings": "none"}
    torch.manual_seed(1)
    model = lively(regard.build({**table, "vocab_size": words.size}).eval(), end=0.0)
    recipe = Recipe.of({"data": COPY, "model": table, "decode": {"max_length": 8}})
    return Predictor(model, recipe, (words,), words)


@dataclass(frozen=True)
class Member:
    """A model, what is typed or chosen for each source, and what `regard.look` is given for it."""

    model: Predictor
    typed: tuple[str | None, ...] = (TEXT,)  # None: a picture from a file

    @property
    def options(self) -> dict[str, Any]:
        return {"beam_size": 1} if self.model.model.generator else {}

    def look(self, given: Any, edits: list[dict] | None = None) -> Look:
        return regard.look(self.model, given, edits=edits, **self.options)


MEMBERS = {
    **{
        kind: Member(translator(PARTS[kind], PARTS[kind]))
        for kind in ("rnn", "conv", "transformer")
    },
    "classifier": Member(classifier()),
    "language model": Member(seeded(language_model).with_decode(max_length=8)),
    "captioner": Member(captioner("transformer"), (None,)),
    "several sources": Member(questioner(DECODERS["transformer"]), (None, "the cats")),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served({name: member.model for name, member in MEMBERS.items()}) as running:
        yield running


@pytest.fixture
def opened(browser, server) -> Iterator[Callable]:
    with strict_pages(browser) as open_page:
        yield lambda **given: settled(
            open_page(f"http://127.0.0.1:{server.port}/#/type?{urlencode(given)}")
        )


def problems(page: object) -> list[str]:
    """What axe finds in the light and in the dark page, which differ in their colors alone."""
    page.emulate_media(color_scheme="dark")
    dark = violations(settled(page), ["color-contrast"])
    page.emulate_media(color_scheme="light")
    return [*violations(page), *(f"dark: {each}" for each in dark)]


def edits_of_address(page: object) -> list[dict]:
    return json.loads(
        page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('edits') ?? '[]'")
    )


def check_output(page: object, member: Member, given: Any) -> None:
    """What is shown is what `regard.look` gives under the edits of the address."""
    look = member.look(given, edits_of_address(settled(page)))
    said = page.locator("#said").text_content()
    if member.options:
        assert said == look.output.text
        assert number(page.locator("#score").text_content().split()[1]) == pytest.approx(
            sum(look.output.scores), abs=1.1e-3
        )
    else:
        assert said.startswith(look.output.label)


@pytest.mark.parametrize("name", MEMBERS)
def test_everything_is_done_by_keys(opened, tmp_path, name):
    member = MEMBERS[name]
    page = opened(model=name)
    keys = Keyboard(page).press("Tab")
    keys.check_focus(".skip")
    keys.press("Enter")
    keys.check_focus("main")

    given = fill(keys, member, tmp_path)
    check_output(page, member, given)
    choose_what_is_shown(keys, member.look(given))
    edit_the_head_and_the_row(keys, member, given)
    if any(isinstance(source, Image) for source in member.look(given).sources):
        mask_a_region(keys, member, given)
    if any(isinstance(source, Text) for source in member.look(given).sources):
        edit_a_source_token(keys, member, given)
    if member.options:
        force_an_output_token(keys, member, given)
    assert problems(page) == []
    undo_and_save(keys, member, given)
    if member.options:
        walk_the_beam(keys, member, given)
    compare(keys)


def fill(keys: Keyboard, member: Member, folder: Path) -> Any:
    """Type the texts, and choose the pictures; what `regard.look` is given for the same."""
    values: list[Any] = []
    keys.page.on("filechooser", lambda chooser: chooser.set_files(folder / "picture.webp"))
    for place, text in enumerate(member.typed):
        keys.tab_to(f"#input-{place}")
        if text is not None:
            values.append(text)
            keys.enter(text)
            continue
        pixels = load_image(next(shapes("valid", 0, 1)).sources[0], 64)
        (folder / "picture.webp").write_bytes(webp(pixels, lossless=True))
        keys.press("Enter")
        keys.page.wait_for_url(re.compile("data%3Aimage%2Fwebp"))  # the file is read
        values.append(pixels)
    settled(keys.page)
    return values[0] if len(values) == 1 else tuple(values)


def choose_what_is_shown(keys: Keyboard, look: Look) -> None:
    """A layer, a head, a row, and a place of the map."""
    page, wanted = keys.page, look.maps[0]
    keys.tab_to("#map").choose(re.escape(wanted.name))
    assert f"map={wanted.name.replace(' ', '+')}" in page.url
    if wanted.heads > 1:
        keys.tab_to("#head").choose("head 1")
        assert "head=1" in page.url
    rows = keys.tab_to("#asking [role=option]")
    if wanted.size[0] > 1:
        rows.press("End")
        assert f"row={wanted.size[0] - 1}" in page.url
    keys.press("Home", "Enter")
    assert page.locator("#asking .pinned").count() == 1
    keys.press("Escape")
    assert page.locator("#asking .pinned").count() == 0
    assert save(keys, "[data-save='map.svg']").startswith("<svg")
    keys.tab_to("#weights").press("Home", "ArrowRight", "+", "0")
    told = page.locator("#told").text_content()
    names = look.names(wanted)
    assert told.startswith(shown(names[0][0]))
    assert f"to {shown(names[1][min(1, len(names[1]) - 1)])} " in told


def edit_the_head_and_the_row(keys: Keyboard, member: Member, given: Any) -> None:
    page, wanted = keys.page, member.look(given).maps[0]
    head = {"head": 1} if wanted.heads > 1 else {"head": 0}
    keys.tab_to("#edit-factor").press("ArrowRight")
    assert edits_of_address(settled(page)) == [
        {"edit": "scale_head", "map": wanted.name, **head, "factor": 1.05}
    ]
    keys.tab_to("#edit-factor ~ button").press("Enter")
    assert edits_of_address(settled(page)) == [
        {"edit": "switch_head_off", "map": wanted.name, **head}
    ]
    check_output(page, member, given)
    keys.check_focus("#edit-factor ~ button")
    keys.tab_to("#painter [role=slider]").press("ArrowUp", "ArrowUp")
    page.wait_for_url(lambda url: "paint_row" in url)
    (_, painted) = edits_of_address(settled(page))
    assert (painted["row"], painted["keys"]) == (0, [0])
    check_output(page, member, given)
    keys.check_focus("#painter [role=slider]")


def mask_a_region(keys: Keyboard, member: Member, given: Any) -> None:
    """The region in the second row and the third column."""
    page, source = keys.page, member.look(given).sources[0]
    keys.tab_to("#region-row-0").enter("2")
    keys.tab_to("#region-column-0").enter("3")
    keys.tab_to(".mask-region").press("Enter")
    edits = edits_of_address(settled(page))
    assert edits[-1] == {"edit": "mask_source", "token": source.units + source.grid[1] + 2}
    assert keys.focused(".mask-region")["name"].endswith("Unmask region")
    check_output(page, member, given)
    keys.press("Enter")
    assert edits_of_address(settled(page)) == edits[:-1]


def edit_a_source_token(keys: Keyboard, member: Member, given: Any) -> None:
    """A token is masked, and another one replaced; the focus stays with the tools of the token."""
    page = keys.page
    keys.tab_to("#source-tokens .chips button").press("Enter")
    keys.check_focus("#token-tools button")
    keys.press("Enter")
    assert edits_of_address(settled(page))[-1]["edit"] == "mask_source"
    assert keys.focused("#token-tools button")["name"].endswith("Unmask")
    check_output(page, member, given)
    keys.tab_to("#token-text").enter("a").press("Enter")
    assert edits_of_address(settled(page))[-1]["edit"] == "replace_token"
    keys.check_focus("#token-text")
    check_output(page, member, given)


def force_an_output_token(keys: Keyboard, member: Member, given: Any) -> None:
    """The third most likely token is forced at the second position."""
    page = keys.page
    keys.tab_to("#output-tokens button[aria-label^='Token 1:']", back=True).press("Enter")
    page.wait_for_selector("#alternatives:not([aria-busy]) button")
    keys.tab_to("#alternatives li:nth-child(3) button", back=True).press("Enter")
    page.wait_for_selector("#alternatives:not([aria-busy]) button")
    assert edits_of_address(settled(page))[-1]["side"] == "output"
    keys.check_focus("#alternatives li:nth-child(3) button")
    check_output(page, member, given)


def undo_and_save(keys: Keyboard, member: Member, given: Any) -> None:
    page, made = keys.page, edits_of_address(keys.page)
    keys.tab_to("button").press("Control+z")  # in a field it undoes what was typed
    assert edits_of_address(settled(page)) == made[:-1]
    keys.press("Control+y")
    assert edits_of_address(settled(page)) == made
    check_output(page, member, given)
    assert json.loads(save(keys, "#save button:nth-of-type(3)")) == made
    keys.tab_to("#commands summary").press("Enter")
    assert page.locator("#shell").is_visible()
    keys.tab_to("#edits li:first-child button", back=True).press("Enter")
    assert edits_of_address(settled(page)) == made[1:]
    keys.check_focus("#edits button, #edit button")
    keys.tab_to("#edit .line:has(+ p) button:last-of-type", back=True).press("Enter")
    assert edits_of_address(settled(page)) == []
    check_output(page, member, given)


def save(keys: Keyboard, selector: str) -> str:
    """What a button saves."""
    keys.tab_to(selector)
    with keys.page.expect_download() as download:
        keys.press("Enter")
    return download.value.path().read_text()


def walk_the_beam(keys: Keyboard, member: Member, given: Any) -> None:
    page = keys.page
    keys.tab_to("#views-nav a[href^='#/beam']").press("Enter")
    page.wait_for_selector(".node")
    assert problems(page) == []
    keys.tab_to(".node").press("ArrowRight", "Enter")
    edits = edits_of_address(settled(page))
    assert [each["position"] for each in edits] == [0, 1]
    best = member.model.outputs([given], beam_size=4, num_hypotheses=4, edits=edits)[0][0]
    assert page.locator("#hypotheses tbody th").first.text_content() == best.text
    assert keys.focused(".node")["name"].endswith("depth 2")
    keys.tab_to("#free", back=True).press("Enter")
    assert edits_of_address(settled(page)) == []
    keys.check_focus(".node")


def compare(keys: Keyboard) -> None:
    page = keys.page
    keys.tab_to("#views-nav a[href^='#/compare']", back=True).press("Enter")
    settled(page).wait_for_selector("#maps canvas")
    keys.tab_to("#map-b")
    if page.evaluate("document.activeElement.options.length") > 1:
        keys.press(
            "ArrowUp" if page.evaluate("document.activeElement.selectedIndex") else "ArrowDown"
        )
        assert "map_b=" in settled(page).url
        keys.check_focus("#map-b")
    keys.tab_to("#maps .weights").press("ArrowDown", "ArrowRight")
    assert problems(page) == []


def shown(name: str) -> str:
    """A token as the page shows it, where it is white space."""
    return name if name.strip() else "␣" * max(1, len(name))
