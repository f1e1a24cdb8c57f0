"""The studio with models of series: a file or a drawn line, its attention over time, and what the model gives."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from support.browsers import browser, settled, strict_pages, until, violations
from support.series import DIM, channels_apart, series, trained
from support.servers import Running, served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio")
    return {
        "labels": trained(folder / "labels"),
        "numbers": trained(folder / "numbers", "number"),
        "vectors": trained(folder / "vectors", "vectors"),
        "strided": trained(folder / "strided", input={"kind": "vectors", "kernel": 2, "stride": 2}),
    }


@pytest.fixture(scope="module")
def server(models) -> Iterator[Running]:
    with served(models) as running:
        yield running


@pytest.fixture
def opened(server) -> Iterator[Callable]:
    with browser() as started, strict_pages(started) as open_page:

        def opened(model: str = "labels") -> object:
            page = settled(open_page(f"http://127.0.0.1:{server.port}/#/type?model={model}"))
            until(page, "() => document.querySelector('#series canvas')")
            return page

        yield opened


def given_to(page: object) -> np.ndarray:
    """The series of the page's address."""
    hash_of = page.evaluate("() => new URLSearchParams(location.hash.split('?')[1]).get('input')")
    return np.array(json.loads(hash_of), np.float32)


def said(page: object) -> str:
    return page.locator("#said").text_content()


def written(folder: Path, name: str, values: np.ndarray) -> Path:
    path = folder / name
    if name.endswith(".npy"):
        np.save(path, values)
    elif name.endswith(".json"):
        path.write_text(json.dumps(values.tolist()))
    else:
        lines = ["a,b,c", *(",".join(map(str, row)) for row in values.tolist())]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x.json"])
def test_a_file_is_read_and_its_output_shown(opened, models, tmp_path, name):
    page = opened("numbers")
    before = said(page)
    (values,) = series(1, seed=8)
    page.set_input_files("#input-0", written(tmp_path, name, values))
    until(page, "(before) => document.querySelector('#said').textContent !== before", before)
    settled(page)
    assert float(said(page)) == pytest.approx(
        float(models["numbers"].predict([values])[0]), rel=1e-3
    )
    label = page.locator("#series canvas").first.get_attribute("aria-label")
    assert f"{len(values)} vectors of {DIM} numbers over time" in label
    assert violations(page) == []


def test_a_series_is_drawn_with_the_pointer(opened, models):
    page = opened()
    box = page.locator("#pad-0").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] - 8)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 8, steps=3)
    page.mouse.up()
    until(page, "() => location.hash.includes('input=')")
    settled(page)
    values = given_to(page)
    assert values.shape == (24, DIM)
    # The line rises from the bottom to the top; the other numbers stay as they were.
    assert (np.diff(values[:, 0]) >= 0).all()
    assert np.ptp(values[:, 0]) > 2
    assert np.ptp(values[:, 1]) == 0
    assert models["labels"].predict([values])[0] in said(page)


def test_a_series_is_changed_with_keys_alone(opened, models):
    page = opened()
    page.focus("#pad-0")
    for key in ("ArrowRight", "ArrowRight", "PageUp", "ArrowUp"):
        page.keyboard.press(key)
    until(page, "() => location.hash.includes('input=')")
    settled(page)
    values = given_to(page)
    changed = np.argwhere(values != values[0])
    assert changed.tolist() == [[2, 0]]
    low, high = models["labels"].recipe.data.source.usual_ranges(models["labels"].sources[0])[0]
    assert values[2, 0] - values[0, 0] == pytest.approx(6 / 20 * (high - low), rel=1e-2)
    pad = page.locator("#pad-0")
    assert pad.get_attribute("role") == "slider"
    assert pad.get_attribute("aria-label") == "Number 1 of vector 3"
    assert float(pad.get_attribute("aria-valuenow")) == pytest.approx(values[2, 0], rel=1e-3)
    page.fill("#length-0", "7")
    page.keyboard.press("Tab")
    settled(page)
    until(page, "() => document.querySelector('#series canvas').ariaLabel.includes('7 vectors')")
    assert given_to(page).shape == (7, DIM)
    assert violations(page) == []


def test_wrong_numbers_are_told_and_the_page_stays(opened):
    page = opened()
    before = said(page)
    page.click(".numbers summary")
    page.fill("#numbers-0", "1, 2, 3\n4, 5")
    problem = page.locator(".field-problem")
    assert "wanted 3 numbers in vector 2" in problem.text_content()
    assert said(page) == before
    page.fill("#numbers-0", "1, 2, 3\n4, 5, 6")
    assert problem.is_hidden()
    until(page, "() => location.hash.includes('input=')")
    assert given_to(page).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert violations(page) == []


def test_a_file_that_the_server_refuses_is_told(server, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, DIM + 1), "f4"))
    with browser() as started, strict_pages(started, lambda text: "400" in text) as open_page:
        page = settled(open_page(f"http://127.0.0.1:{server.port}/#/type?model=labels"))
        page.set_input_files("#input-0", tmp_path / "x.npy")
        until(page, "() => !document.querySelector('#problem').hidden")
        told = page.locator("#problem").text_content()
        assert f"wanted vectors of {DIM} numbers" in told


def test_the_pointer_over_the_series_names_its_time(opened, tmp_path):
    page = opened("strided")
    (values,) = series(1, seed=9)
    page.set_input_files("#input-0", written(tmp_path, "x.csv", values))
    label = f"'{len(values)} vectors'"
    until(page, f"() => document.querySelector('#series canvas').ariaLabel.includes({label})")
    settled(page)
    canvas = page.locator("#series canvas").first
    count = -(-len(values) // 2)
    width = canvas.bounding_box()["width"]
    canvas.hover(position={"x": width * 1.5 / count, "y": 10})
    # The second position begins with the third vector.
    until(page, "() => document.querySelector('#told').textContent.includes(', to 3 ')")


def test_a_position_is_masked(opened):
    page = opened()
    page.fill("#region-position-0", "2")
    page.click(".mask-region")
    until(page, "() => location.hash.includes('mask_source')")
    settled(page)
    page.select_option("#map", label="pool")
    weights = page.locator("#asked small").all_text_contents()
    assert weights[1] == "0 %"
    assert weights[0] != "0 %"


def test_the_attention_over_time_is_saved(opened):
    page = opened()
    with page.expect_download() as waited:
        page.click("[data-save='row.svg']")
    svg = Path(waited.value.path()).read_text()
    assert svg.count("<polyline") == DIM
    assert svg.count("<rect") >= 24


def test_the_page_of_a_look_shows_the_series(models, tmp_path):
    import regard

    (values,) = series(1, seed=10)
    page_file = tmp_path / "look.html"
    page_file.write_text(regard.look(models["labels"], values).to_html())
    with browser() as started, strict_pages(started) as open_page:
        page = open_page(page_file.as_uri())
        until(page, "() => document.querySelector('#series canvas')")
        label = page.locator("#series canvas").first.get_attribute("aria-label")
        assert f"{len(values)} vectors" in label
        drawn = page.evaluate(
            "() => { const c = document.querySelector('#series canvas');"
            " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " return new Set(new Uint32Array(d.buffer)).size }"
        )
        assert drawn > 20
        assert violations(page) == []


def test_vectors_that_a_model_gives_are_drawn(opened, models):
    page = opened("vectors")
    canvas = page.locator(".series-output")
    assert canvas.get_attribute("aria-label") == f"24 vectors of {DIM} numbers over time"
    assert f"24 vectors of {DIM} numbers" in said(page)
    shades = page.evaluate(
        "() => { const c = document.querySelector('.series-output');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return new Set(new Uint32Array(d.buffer)).size }"
    )
    assert shades > 5
    assert violations(page) == []


def test_the_channel_of_the_attention_is_chosen(tmp_path):
    with (
        served({"model": channels_apart(tmp_path)}) as running,
        browser() as started,
        strict_pages(started) as open_page,
    ):
        page = settled(open_page(f"http://127.0.0.1:{running.port}/#/type?model=model"))
        until(page, "() => document.querySelector('#series canvas')")
        caption = page.locator("#series figcaption").first
        assert page.locator("#channel option").all_text_contents() == ["1", "2", "3"]
        assert caption.text_content().endswith("channel 1")
        page.select_option("#channel", "3")
        caption_text = "document.querySelector('#series figcaption').textContent"
        until(page, f"() => {caption_text}.endsWith('channel 3')")
        assert page.url.endswith("channel=3")
        assert violations(page) == []
