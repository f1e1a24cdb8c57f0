"""`regard caption`: pictures of every kind in order, broken ones named, and drawings that nothing can break out of."""

import json
import re
import zipfile
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from regard.api import caption as caption_verb
from regard.api.caption import caption, caption_words, file_name, predictor_regions
from regard.core.errors import InvalidArgument
from regard.data.image_store import find_images
from regard.data.special_tokens import END
from regard.data.synthetic.sampling import SIZES
from regard.data.synthetic.scenes import SIDE
from regard.data.synthetic.shapes import shapes
from regard.interpret.regions import ImageRegions
from regard.tasks.pipeline import Output
from regard.views.caption_overlay import PAGE, SHADE, Overlay, draw, figure, upsampled
from regard.views.html import PAGE_END
from support.captioners import captioner
from support.command_line import command

Image = pytest.importorskip(
    "PIL.Image", reason="Pillow is not installed: pip install 'regard[images]'"
)

VIT = {
    "kind": "vit",
    "patch_size": 16,
    "transformer": {"dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16, "cls_token": True},
}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE pictures; --",
    "</text></svg><script>alert(1)</script>",
    "]]><!--",
    "&lt;b&gt; &amp; &#x3c;",
    "javascript:alert(1)",
    "a\nb\tc\x00\x1b[31m",
    "\u202eevil\u2066",
    "--><svg/onload=alert(1)>",
    "</title></style><script src=//evil.example/x.js></script>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "{{7*7}} ${7*7} <%= 7 %>",
    "\\u003cscript\\u003e",
    "<a href=data:text/html,x>y</a>",
    "<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>&e;",
    "\ufeff\ufffe\ud800",
    "\u2028<b>\u2029",
    "<style>*{background:url(//evil.example)}</style>",
    "`${alert(1)}`",
]


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of pictures, one in a folder of its own, one of another shape; and what is none."""
    folder = tmp_path / "photos"
    (folder / "deeper").mkdir(parents=True)
    for name, scene in zip(("b.png", "a.jpg", "deeper/c.webp"), shapes("test", 0, 3), strict=True):
        Image.fromarray(scene.source.draw()).save(folder / name)
    Image.fromarray(np.full((20, 50, 3), 200, np.uint8)).save(folder / "wide.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_pictures_are_found_in_files_folders_and_zips(photos, tmp_path):
    names = ["a.jpg", "b.png", "deeper/c.webp", "wide.png"]
    assert [str(found.relative_to(photos)) for found in find_images([photos])] == names
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        for name in reversed(["notes.txt", *names]):
            packed.write(photos / name, name)
    assert [str(found) for found in find_images([tmp_path / "all.zip", photos / "notes.txt"])] == [
        *(f"{tmp_path}/all.zip/{name}" for name in names),
        f"{photos}/notes.txt",
    ]
    made = captioner("rnn")
    folder, packed = (
        [each.outputs[0].text for each in caption(made, [path])]
        for path in (photos, tmp_path / "all.zip")
    )
    assert folder == packed == made.predict([photos / name for name in names])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument, match="empty: wanted at least one image; got none"):
        list(find_images([tmp_path / "empty"]))


def test_a_broken_picture_holds_nobody_up(photos):
    (photos / "b.png").write_bytes((photos / "b.png").read_bytes()[:200])
    found = list(caption(captioner("rnn"), [photos, photos / "gone.png"]))
    assert [bool(each.outputs) for each in found] == [True, False, True, True, False]
    assert f"{photos}/b.png: wanted a whole image" in found[1].problem
    assert f"{photos}/gone.png: wanted" in found[4].problem


def test_draws_depend_on_the_place_alone(photos, monkeypatch):
    made, drawn = captioner("rnn"), {"sample": True, "temperature": 2.0}
    whole = [each.outputs for each in caption(made, [photos] * 2, **drawn)]
    assert whole[:4] != whole[4:]
    monkeypatch.setattr(caption_verb, "CHUNK", 3)
    (photos / "b.png").write_bytes(b"")
    few = [each.outputs for each in caption(made, [photos] * 2, **drawn)]
    assert few == [() if n % 4 == 1 else each for n, each in enumerate(whole)]


@pytest.mark.parametrize("tokens", ["words", "bytes", "bpe"])
def test_words_have_the_weights_of_their_tokens(tokens):
    target = (
        {"tokenizer": tokens} if tokens == "bytes" else {"tokenizer": tokens, "vocab_size": 300}
    )
    made = captioner("transformer", tokens=target)
    ids = made.target.encode("a red circle")
    pieces = tuple(made.target.pieces(ids))
    attention = torch.rand(2, 2, len(pieces) + 1, 1 + 4)
    output = Output("a red circle", pieces, attention=attention, token_ids=tuple(ids))
    found = caption_words(made, output, ImageRegions(1, 2, 2))
    assert [word.text for word in found] == ["a", "red", "circle"]
    if tokens == "words":
        assert torch.allclose(found[1].weights, attention[-1, :, 1, 1:].mean(0).reshape(2, 2))
    if tokens == "bytes":  # "a", " red": five tokens
        assert torch.allclose(
            found[1].weights, attention[-1, :, 1:5, 1:].mean((0, 1)).reshape(2, 2)
        )
    for rows in (0, 1):  # with the row of the end, and without
        assert (
            caption_words(
                made, Output("", (), attention=attention[:, :, :rows]), ImageRegions(1, 2, 2)
            )
            == []
        )


def test_regions_are_where_the_encoder_says():
    assert predictor_regions(captioner("rnn")) == ImageRegions(0, SIDE // 4, SIDE // 4)
    assert predictor_regions(captioner("transformer", VIT)) == ImageRegions(
        1, SIDE // 16, SIDE // 16
    )


def test_light_falls_where_a_word_looked():
    weights = torch.zeros(2, 4, 4)
    weights[0, 0, 3] = weights[1, 3, 0] = 0.5
    found = upsampled(weights, (40, 80))
    assert found.shape == (2, 40, 80)
    assert found.amin() >= 0
    assert found.amax() == 1
    assert found[0, 5, 70] > 0.7
    assert found[0, 35, 10] == found[1, 5, 70] == 0
    steps = (found[0, 5, 1:] - found[0, 5, :-1]).abs()
    assert steps.max() < 0.1  # smoothly, and not in squares


def drawing(name: str = "a.jpg", said: tuple[str, ...] = ("a", "dog")) -> Overlay:
    weights = torch.zeros(len(said), 2, 2)
    weights[:, 0, 0] = 1.0
    return Overlay(name, np.full((60, 90, 3), 200, np.uint8), said, weights)


def test_a_png_shows_the_picture_for_each_word():
    sheet = np.asarray(Image.open(BytesIO(draw(drawing(), ".png"))))
    height, width = drawing().size
    assert (height, width) == (149, 224)
    assert sheet.shape == (8 + 149 + 30 + 8, 8 + 3 * (224 + 8), 3)
    assert (sheet[8 + 70, 8 + 110] == 200).all()  # as it is
    assert abs(int(sheet[8 + 30, 8 + 232 + 40, 0]) - 200) < 25  # light where the first word looked
    assert (
        abs(int(sheet[8 + 140, 8 + 232 + 215, 0]) - 200 * (1 - SHADE)) < 5
    )  # and dark far from there
    none = np.asarray(Image.open(BytesIO(draw(drawing(said=()), ".png"))))
    assert none.shape[:2] == (195, 8 + 232)  # a picture that nothing was said of
    assert draw(drawing(said=()), ".svg").count(b"<use") == 1
    many = np.asarray(Image.open(BytesIO(draw(drawing(said=("x",) * 13), ".png"))))
    assert many.shape[:2] == (8 + 3 * 187, 8 + 6 * 232)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_and_words_stay_text(text):
    one = drawing(text, ("a", text))
    shown = "".join(letter if letter.isprintable() else "�" for letter in text)
    reader = Reader()
    reader.feed(PAGE + figure(one) + PAGE_END)
    assert reader.texts.count(shown) == 2  # as a word, and as the name
    assert {tag for tag, _ in reader.tags} <= {
        "html", "head", "meta", "title", "style", "body", "p", "figure", "img", "figcaption", "span", "small"
    }  # fmt: skip
    for _, attributes in reader.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert (
            attributes.get("src", "data:").startswith("data:image/")
            if "src" in attributes
            else True
        )
    tree = ElementTree.fromstring(draw(one, ".svg"))  # which is well formed
    assert {node.tag.rpartition("}")[2] for node in tree.iter()} == {
        "svg",
        "title",
        "defs",
        "image",
        "rect",
        "use",
        "text",
    }
    assert [node.text for node in tree.iter() if node.tag.endswith("}text")] == ["a", shown]
    assert len(draw(one, ".png")) > 100
    made = file_name(Path(text.replace("/", "_").replace("\0", "") + ".jpg"), 3)
    assert re.fullmatch(r"0003(-[\w-]+)?", made)


def test_the_page_forbids_everything_but_what_it_holds():
    style = PAGE.partition("<style>")[2].partition("</style>")[0]
    known = b64encode(sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'sha256-{known}'" in PAGE
    assert "unsafe" not in PAGE
    assert "<script" not in PAGE
    assert "http" not in PAGE.replace("http-equiv", "")
    assert figure(drawing()).count('tabindex="0"') == 2  # words can be reached by keyboard


@pytest.fixture
def few(monkeypatch):
    for split in SIZES:
        monkeypatch.setitem(SIZES, split, 4)


RECIPE = """
[data]
synthetic = "shapes"
source = {kind = "image"}
target = {tokenizer = "words", vocab_size = 50}
[model]
encoder = {kind = "cnn", channels = [4, 8], dim = 16}
decoder = {kind = "rnn", dim = 16, attention = "ATTENTION"}
[train]
max_steps = 2
warmup_steps = 1
validate_every = 2
monitor = "cider"
[decode]
max_length = 5
"""


def test_the_command_captions_and_draws(photos, tmp_path, few):
    for attention in ("bahdanau", "none"):
        (tmp_path / "r.toml").write_text(RECIPE.replace("ATTENTION", attention))
        done = command(
            "train",
            tmp_path / "r.toml",
            "--out",
            tmp_path / attention,
            "--cache",
            tmp_path / "cache",
        )
        assert done.returncode == 0, done.stderr
    validated = json.loads((tmp_path / "bahdanau" / "log.jsonl").read_text().splitlines()[-1])
    assert validated["cider"] >= 0
    hostile = photos / "..\\x<b>\tc.png"
    (photos / "b.png").rename(hostile)
    (photos / "notes.txt").rename(photos / "notes.jpg")
    run, looks = tmp_path / "bahdanau", tmp_path / "looks"
    done = command("caption", run, photos, "--draw", looks, "--beam", 2)
    assert done.returncode == 1  # for one of them could not be read
    names, captions = zip(*(line.split("\t") for line in done.stdout.splitlines()), strict=True)
    assert [Path(name).name for name in names] == [
        "..\\x<b>\\tc.png",
        "a.jpg",
        "c.webp",
        "wide.png",
    ]
    assert "notes.jpg: wanted a whole image" in done.stderr
    assert "1 image could not be captioned" in done.stderr
    made = sorted(path.name for path in looks.iterdir())
    assert made == [
        "0001-x-b-c.png", "0001-x-b-c.svg", "0002-a.png", "0002-a.svg", "0003-c.png", "0003-c.svg", "0004-wide.png",
        "0004-wide.svg", "index.html",
    ]  # fmt: skip
    assert (looks / "index.html").read_text().count("<figure>") == 4
    assert {path.name for path in tmp_path.iterdir()} == {
        "r.toml",
        "bahdanau",
        "none",
        "cache",
        "photos",
        "looks",
    }
    (photos / "notes.jpg").unlink()
    scored = command("caption", run, photos, "--scores", "--beam", 2)
    assert scored.returncode == 0
    assert tuple(line.split("\t")[2] for line in scored.stdout.splitlines()) == captions
    told = [
        json.loads(line)
        for line in command("caption", run, photos, "--json", "--beam", 2).stdout.splitlines()
    ]
    assert tuple(each["output"] for each in told) == captions
    assert told[1]["input"] == str(photos / "a.jpg")
    both = command(
        "caption", run, photos / "a.jpg", "--beam", 2, "--set", "num_hypotheses=2"
    ).stdout.splitlines()
    assert [line.split("\t")[0] for line in both] == [str(photos / "a.jpg")] * 2
    for arguments, message in {
        (
            tmp_path / "none",
            photos,
            "--draw",
            looks,
        ): "draw: wanted one model whose decoder attends to its source",
        (run, photos, "--draw", photos / "a.jpg"): "a.jpg: wanted a folder to draw into",
        (run, tmp_path / "cache"): "cache: wanted at least one image",
        (run, photos, "--set", "beems=3"): "wanted a key of [decode]; got beems",
    }.items():
        done = command("caption", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_an_empty_caption_is_drawn_too(photos, tmp_path):
    made = captioner("transformer")
    made.model.decoder.project.bias.data[END] = 100.0
    found = list(caption(made, [photos], draw=tmp_path / "drawn"))
    assert [each.outputs[0].text for each in found] == [""] * 4
    assert (tmp_path / "drawn" / "index.html").read_text().count("<figure>") == 4


def test_models_of_texts_caption_nothing(photos):
    from support.predictors import translator

    with pytest.raises(InvalidArgument, match="model: wanted a model from images to texts"):
        next(caption(translator(), [photos]))


def test_the_name_of_a_drawing_has_at_most_60_characters_of_its_image():
    assert file_name(Path("a" * 59 + " dog.jpg"), 3) == "0003-" + "a" * 59
    assert file_name(Path("a" * 60 + "b.jpg"), 3) == "0003-" + "a" * 60
