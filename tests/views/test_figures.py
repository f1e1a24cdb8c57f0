"""A look as SVG and PNG, and what of its page needs no browser."""

import io
import json
import re
from base64 import b64decode
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.core.sequence import Tokens
from regard.model.seq2seq import Seq2Seq
from regard.views import html
from regard.views.canvas import SHARP, PngCanvas, data_uri, mixed, shortened
from regard.views.charts import CELL, RAMP, color
from regard.views.figures import ENDINGS, MOST, _thumbnails, draw, write_look
from support.models import decoder, encoder, one, source
from support.predictors import language_model, translator

NAMES = {"svg": "{http://www.w3.org/2000/svg}"}
TEXT, SAID = "the cat sat on the mat.", "a <dog> & cats"


@pytest.fixture(scope="module")
def look():
    return regard.look(translator(), TEXT, output=SAID)


@pytest.fixture(scope="module")
def of_picture():
    return regard.look(
        Seq2Seq(encoder("vit"), decoder("transformer")), one(source("vit"), 0), output=[5, 6, 7, 3]
    )


def test_an_image_in_a_page_is_near_the_original_and_exact_with_an_alpha_channel():
    rng = np.random.default_rng(0)
    smooth = np.kron(rng.integers(0, 256, (6, 6, 4), np.uint8), np.ones((12, 12, 1), np.uint8))
    for mode, form, most in (
        ("RGBA", "png", 0),
        ("LA", "png", 0),
        ("RGB", "jpeg", 7.0),
        ("L", "jpeg", 0.5),
    ):
        image = Image.fromarray(smooth).convert(mode)
        head, _, content = data_uri(image).partition(",")
        assert head == f"data:image/{form};base64"
        with Image.open(io.BytesIO(b64decode(content))) as shown:
            error = np.abs(np.asarray(shown, int) - np.asarray(image, int)).mean()
        assert error <= most


def svg(look, tmp_path, **options) -> ElementTree.Element:
    draw(look, tmp_path / "look.svg", **options)
    return ElementTree.parse(tmp_path / "look.svg").getroot()


def parts(drawn: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return drawn.findall(f".//{NAMES['svg']}{kind}")


def texts(drawn: ElementTree.Element) -> list[str]:
    return [each.text for each in parts(drawn, "text")]


def test_a_heat_map_has_a_cell_and_a_number_for_each_weight(look, tmp_path):
    drawn = svg(look, tmp_path)
    weights = look["decoder 2 cross"].weights().mean(0)
    cells = [each.get("fill") for each in parts(drawn, "rect")[1:]]
    assert cells == [color(share) for share in (weights / weights.max()).flatten().tolist()]
    told = texts(drawn)
    assert told[0] == f"decoder 2 cross, mean of 2 heads; darkest: {weights.max():.0%}"
    keys = len(look.source.tokens)
    assert tuple(told[1 : 1 + keys]) == look.source.tokens
    lines = [told[i : i + keys + 1] for i in range(1 + keys, len(told), keys + 1)]
    assert tuple(line[0] for line in lines) == look.output.tokens
    assert [[int(number) for number in line[1:]] for line in lines] == (
        100 * weights
    ).round().int().tolist()


def test_a_png_has_the_same_cells(look, tmp_path):
    one_head = regard.look(translator(), TEXT, output=SAID, heads=[1])
    draw(one_head, tmp_path / "look.png", map="decoder 1 cross")
    with Image.open(tmp_path / "look.png") as opened:
        pixels = np.asarray(opened)
    weights = look["decoder 1 cross"].weights(heads=[1])[0]
    drawn = svg(one_head, tmp_path, map="decoder 1 cross")
    assert texts(drawn)[0].startswith("decoder 1 cross, head 1; ")
    for rect, share in zip(
        parts(drawn, "rect")[1:], (weights / weights.max()).flatten().tolist(), strict=True
    ):
        x, y = (round(SHARP * (float(rect.get(side)) + CELL * 0.05)) for side in "xy")
        assert "#" + "".join(f"{value:02x}" for value in pixels[y, x]) == color(share)
    assert pixels.shape[:2] == (SHARP * int(drawn.get("height")), SHARP * int(drawn.get("width")))
    assert (pixels[: round(SHARP * CELL)] < 100).any()  # words above


def test_lines_are_darker_the_heavier(look, tmp_path):
    drawn = svg(look, tmp_path, view="lines")
    weights = look["decoder 2 cross"].weights().mean(0)
    shares = (weights / weights.max()).flatten().sort().values
    shown = parts(drawn, "line")
    assert len(shown) == int((shares >= 0.1).sum())
    assert [float(each.get("stroke-width")) for each in shown] == pytest.approx(
        [0.5 + 2.5 * share for share in shares.tolist() if share >= 0.1], rel=0.01
    )
    assert shown[-1].get("stroke") == "#00224e"
    row, key = divmod(int(weights.argmax()), weights.shape[1])
    places = {each.text: float(each.get("y")) for each in parts(drawn, "text")}
    assert float(shown[-1].get("y1")) == places[look.output.tokens[row]]
    assert float(shown[-1].get("y2")) == places[look.source.tokens[key]]


def test_every_head_is_drawn_thumbnails(look, tmp_path):
    drawn = svg(look, tmp_path, view="heads")
    assert texts(drawn) == [f"{each.name}, {head}" for each in look.maps for head in range(2)]
    weights = look.maps[0].weights()[0].flatten()
    first = [color(share) for share in (weights / weights.max()).tolist() if share >= 0.01]
    assert [each.get("fill") for each in parts(drawn, "rect")][3 : 3 + len(first)] == first
    long = regard.look(language_model().model, Tokens.of([list(range(5, 105))]), output=[5])
    each = long["decoder 1 self"]
    points = torch.zeros(2, 28, 28)
    for row, line in enumerate(each.weights().transpose(0, 1)):
        for key in range(101):
            at = row * 28 // 101, key * 28 // 101
            points[:, *at] = torch.maximum(points[:, *at], line[:, key])
    for (_, small), wanted in zip(_thumbnails(each), points, strict=True):
        torch.testing.assert_close(small, wanted)
    few = parts(svg(long, tmp_path, view="heads"), "rect")
    assert len(few) < 1 + 4 * (2 + 28 * 28)
    draw(long, tmp_path / "heads.png", view="heads")
    told = texts(svg(long, tmp_path))[0]
    assert told.endswith(f"; {101 - MOST} rows, {101 - MOST} keys more")


def test_words_are_drawn_on_their_picture(of_picture, tmp_path):
    drawn = svg(of_picture, tmp_path)
    assert texts(drawn) == ["5", "6", "7", "3"]
    assert len(parts(drawn, "image")) == 1 + 4
    draw(of_picture, tmp_path / "look.png")
    with Image.open(tmp_path / "look.png") as drawn:
        assert drawn.size[0] > 4 * 150
    assert len(texts(svg(of_picture, tmp_path, view="heat"))) > 1 + 4 + 6
    assert svg(of_picture, tmp_path, map="decoder 1 self") is not None


def test_what_cannot_be_drawn_is_refused(look, tmp_path):
    nothing = regard.look(
        Seq2Seq(encoder("bag"), decoder("rnn")), one(source("bag"), 0), output=[5]
    )
    kept = regard.look(translator(), TEXT, output=SAID, top=2)
    for found, name, options, message in (
        (look, "x.gif", {}, "path: wanted a name in .svg or .png; got .*x.gif"),
        (
            look,
            "x.svg",
            {"view": "heet"},
            "view: wanted one of heat, heads, lines, image, series; got 'heet'.*heat",
        ),
        (look, "x.svg", {"map": "decoder 2"}, "map: wanted one of .*; got 'decoder 2'"),
        (
            look,
            "x.svg",
            {"view": "image"},
            "view: wanted a map whose keys are regions of an image; got 'decoder 2 cross'",
        ),
        (look, "there/x.svg", {}, "path: wanted a file's name in a folder that is there"),
        (nothing, "x.svg", {}, "look: wanted at least one map; got none"),
        (kept, "x.svg", {}, "a map whose queries and keys were kept"),
        (kept, "x.png", {"view": "heads"}, "a map whose queries and keys were kept"),
    ):
        with pytest.raises(regard.RegardError, match=message):
            draw(found, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_colours_grow_ever_darker():
    shades = [
        [int(color(i / 100)[1 + 2 * c : 3 + 2 * c], 16) for c in range(3)] for i in range(101)
    ]
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in shades]
    assert light == sorted(light, reverse=True)
    assert shades[0] == list(RAMP[0])
    assert shades[-1] == list(RAMP[-1])
    assert color(2.0) == color(1.0)


def test_a_page_is_one_file_with_a_strict_policy(look):
    page = look.to_html()
    policy = re.search('Content-Security-Policy" content="(.*?)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    script = re.search('<script type="module">(.*?)</script>', page, re.DOTALL)[1]
    assert len(script.encode()) < 150_000
    assert html.content_hash(script) in policy
    assert html.content_hash(re.search("<style>(.*?)</style>", page, re.DOTALL)[1]) in policy
    assert not re.search("^(import|export) ", script, re.MULTILINE)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|https?://(?!www.w3.org)",
        script,
    )
    told = re.search('<script type="application/json" id="look">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(told) == json.loads(look.to_json())
    assert look.to_html() == page


def test_a_title_cannot_close_its_element(look):
    page = replace(look, title="</title></script><!--<b>").to_html()
    assert page.count("</title>") == 1
    assert page.count("</script>") == 2
    assert "<!--" not in page
    assert "&lt;/title&gt;" in page


def test_a_notebook_frames_the_page(look):
    framed = look._repr_html_()
    assert re.match(
        '<iframe title="A look" .*sandbox="allow-scripts allow-downloads" srcdoc="', framed
    )
    assert unescape(framed.split('srcdoc="')[1].removesuffix('"></iframe>')) == look.to_html()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_that_is_no_text_is_written_all_the_same(look, ending, tmp_path):
    write_look(replace(look, title="dog\udcff.png"), tmp_path / f"look{ending}")
    assert (tmp_path / f"look{ending}").stat().st_size > 1000


def test_a_png_has_boxes_lines_and_images_where_they_were_drawn():
    """Twice as large as in an SVG; a box of no width is a line."""
    canvas = PngCanvas(20, 10, scale=2)
    canvas.box((1, 2), (3, 4), "#ff0000")
    canvas.box((6, 1), (0, 2), "#0000ff")
    canvas.line((10, 1), (15, 1), 1, "#00ff00")
    image = Image.new("RGBA", (4, 4), (9, 9, 9, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    canvas.image((16, 5), (2, 2), image)
    pixels = np.asarray(canvas.sheet)
    assert pixels.shape == (20, 40, 3)

    def place(color):
        """The first and last row and column of a color, and how many pixels have it."""
        rows, columns = np.nonzero((pixels == color).all(-1))
        return rows.min(), rows.max(), columns.min(), columns.max(), len(rows)

    assert place((255, 0, 0)) == (4, 11, 2, 7, 48)
    assert place((0, 0, 255)) == (2, 5, 12, 12, 4)
    assert place((9, 9, 9)) == (10, 13, 32, 35, 15)  # where it is transparent, the sheet is white
    first, last, left, right, count = place((0, 255, 0))
    assert (last - first + 1, left, right) == (2, 20, 30)
    assert count == 22


def test_slanted_text_ascends_from_its_place():
    canvas = PngCanvas(60, 60, scale=1)
    canvas.slanted((10, 50), "mmmm")
    rows, columns = np.nonzero((np.asarray(canvas.sheet) < 128).all(-1))
    assert rows.max() <= 52
    assert columns.min() >= 4
    assert rows.min() < 50 - 1.2 * (columns.max() - 10) + 8  # at 60 degrees


@pytest.mark.parametrize(
    ("name", "most", "wanted"),
    [("abcd", 4, "abcd"), ("abcde", 4, "abc…"), ("", 1, ""), ("ab", 1, "…")],
)
def test_shortened_names(name, most, wanted):
    assert shortened(name, most) == wanted


def test_colors_between_two():
    assert [mixed((0, 10, 255), (255, 20, 0), share) for share in (0.0, 0.5, 1.0)] == [
        "#000aff",
        "#800f80",
        "#ff1400",
    ]
