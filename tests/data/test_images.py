"""Images: decoding, refusal of damaged files, prepared corpora, and captioning end to end."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from regard.api.dry_run import dry_run
from regard.api.evaluate import evaluate
from regard.api.train import train
from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe, MissingExtra
from regard.data import column_files
from regard.data.batching import batches
from regard.data.columns import ImageColumn
from regard.data.config import DataConfig
from regard.data.corpus import Prepared, prepare
from regard.data.example import SPLITS
from regard.data.fields.base import make_field
from regard.data.image_store import LARGEST, stem
from regard.data.images import MAX_PIXELS, image_token_cost, load_image, normalize, read_image
from regard.data.sources import examples
from regard.data.synthetic.sampling import SIZES
from regard.data.synthetic.scenes import COLORS, KINDS, SIDE, Scene, Shape, relation
from regard.data.synthetic.shapes import shapes
from regard.inference.load import load
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from regard.recipe.shipped import find_recipe
from regard.tasks.inputs import SourceInput

Image = pytest.importorskip(
    "PIL.Image", reason="Pillow is not installed: pip install 'regard[images]'"
)

CORNERS = np.array(
    [[[250, 10, 20], [10, 240, 30]], [[20, 30, 230], [200, 200, 10]]], dtype=np.uint8
)  # (2, 2, 3)


def blocks(size=16):
    """Four squares of one color each."""
    return CORNERS.repeat(size // 2, 0).repeat(size // 2, 1)


def saved(path, picture, mode=None, **options):
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def noise(height=40, width=48, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# --- files that are read ---


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "tiff"])
def test_lossless_formats_give_the_same_pixels(tmp_path, suffix):
    picture = noise(24, 24)
    assert np.array_equal(read_image(saved(tmp_path / f"a.{suffix}", picture), 24), picture)


@pytest.mark.parametrize(
    ("suffix", "options"), [("jpg", {"quality": 95}), ("webp", {"lossless": True}), ("gif", {})]
)
def test_lossy_formats_give_similar_pixels(tmp_path, suffix, options):
    path = saved(tmp_path / f"a.{suffix}", blocks(32), **options)
    assert np.abs(read_image(path, 32)[4::8, 4::8].astype(int) - blocks(32)[4::8, 4::8]).max() <= 6


def test_the_format_is_recognized_by_content(tmp_path):
    path = saved(tmp_path / "a.png", noise(8, 8))
    shutil.copy(path, tmp_path / "a.jpg")
    assert np.array_equal(read_image(tmp_path / "a.jpg", 8), noise(8, 8))


UPRIGHT = {  # orientation -> what a camera stored of an upright picture
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p),
    7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
    8: lambda p: np.rot90(p, -1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(UPRIGHT[orientation](blocks()))
    for name in ("a.png", "a.jpg"):
        path = saved(
            tmp_path / name, stored, exif=exif, **({"quality": 95} if name == "a.jpg" else {})
        )
        assert np.abs(read_image(path, 16)[4::8, 4::8].astype(int) - CORNERS).max() <= 8, name


def over_white(colour, alpha):
    return [round(int(part) * alpha / 255 + 255 - alpha) for part in colour]


def test_transparent_pixels_become_white(tmp_path):
    alpha = np.array([[255, 0], [128, 64]], dtype=np.uint8)
    wanted = [
        [over_white(c, int(a)) for c, a in zip(*row, strict=True)]
        for row in zip(CORNERS, alpha, strict=True)
    ]
    path = saved(tmp_path / "rgba.png", np.dstack([CORNERS, alpha]))
    assert np.abs(read_image(path, 2).astype(int) - wanted).max() <= 1
    grey = np.dstack([np.array([[0, 100], [200, 50]], dtype=np.uint8), alpha])
    path = saved(
        tmp_path / "la.png",
        Image.merge("LA", [Image.fromarray(plane) for plane in (grey[:, :, 0], alpha)]),
    )
    wanted = [over_white([int(value)], int(a))[0] for value, a in grey.reshape(-1, 2)]
    assert np.abs(read_image(path, 2)[:, :, 1].astype(int).ravel() - wanted).max() <= 1


def test_palettes(tmp_path):
    image = Image.fromarray(blocks()).quantize(4)
    assert image.mode == "P"
    assert (
        np.abs(
            read_image(saved(tmp_path / "p.png", image), 16)[4::8, 4::8].astype(int) - CORNERS
        ).max()
        <= 1
    )
    clear = image.getpixel((0, 0))
    for name in ("t.png", "t.gif"):
        found = read_image(saved(tmp_path / name, image, transparency=clear), 16)
        assert found[4, 4].tolist() == [255, 255, 255], name
        assert np.abs(found[4, 12].astype(int) - CORNERS[0, 1]).max() <= 1, name
    key = saved(tmp_path / "key.png", blocks(), transparency=tuple(CORNERS[1, 1].tolist()))
    assert read_image(key, 16)[12, 12].tolist() == [255, 255, 255]


def test_black_and_white(tmp_path):
    bits = np.array([[True, False], [False, True]])
    assert read_image(saved(tmp_path / "1.png", Image.fromarray(bits)), 2)[:, :, 2].tolist() == [
        [255, 0],
        [0, 255],
    ]
    grey = np.array([[0, 80], [160, 255]], dtype=np.uint8)
    assert np.array_equal(
        read_image(saved(tmp_path / "l.png", grey), 2), grey[:, :, None].repeat(3, 2)
    )


@pytest.mark.parametrize("name", ["a.jpg", "a.tiff"])
def test_cmyk(tmp_path, name):
    inks = np.zeros((16, 16, 4), dtype=np.uint8)
    inks[:8, :, 0] = 255  # cyan above, yellow below
    inks[8:, :, 2] = 255
    options = {"quality": 95} if name == "a.jpg" else {}
    found = read_image(saved(tmp_path / name, Image.fromarray(inks, "CMYK"), **options), 16)
    assert np.abs(found[4, 8].astype(int) - [0, 255, 255]).max() <= 8
    assert np.abs(found[12, 8].astype(int) - [255, 255, 0]).max() <= 8


def test_lab_and_ycbcr(tmp_path):
    lab = Image.merge("LAB", [Image.new("L", (2, 2), value) for value in (255, 128, 128)])
    assert np.abs(read_image(saved(tmp_path / "lab.tiff", lab), 2).astype(int) - 255).max() <= 2
    path = saved(tmp_path / "ycc.jpg", Image.new("RGB", (16, 16), (250, 10, 20)), quality=95)
    assert np.abs(read_image(path, 16).astype(int) - [250, 10, 20]).max() <= 6


def test_sixteen_bits_are_scaled(tmp_path):
    deep = np.array([[0, 257 * 60], [257 * 128, 65535]], dtype=np.uint16)
    wanted = np.array([[0, 60], [128, 255]])[:, :, None].repeat(3, 2)
    for name in ("a.png", "a.tiff", "a.pgm"):
        assert np.array_equal(
            read_image(saved(tmp_path / name, Image.fromarray(deep)), 2), wanted
        ), name
    (tmp_path / "rgb.png").write_bytes(png(2, 2, 16, 2, [[[257 * 200, 257 * 9, 257 * 77]] * 2] * 2))
    assert read_image(tmp_path / "rgb.png", 2).reshape(-1, 3).tolist() == [[200, 9, 77]] * 4
    (tmp_path / "key.png").write_bytes(
        png(2, 1, 16, 0, [[[257 * 60], [257 * 10]]], (b"tRNS", struct.pack(">H", 15420)))
    )
    assert read_image(tmp_path / "key.png", 1)[0, 0, 0] > 100


def png(width, height, bits, colour, rows, *chunks):
    """A PNG written by hand, of a kind that Pillow does not write."""
    code = ">B" if bits <= 8 else ">H"
    raw = b"".join(
        b"\0" + b"".join(struct.pack(code, value) for pixel in row for value in pixel)
        for row in rows
    )
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    written = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + written


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tiff"])
def test_the_first_frame_of_an_animation_is_read(tmp_path, name):
    frames = [
        Image.new("RGB", (8, 8), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))
    ]
    options = {"lossless": True} if name == "a.webp" else {}
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
    with Image.open(tmp_path / name) as image:
        assert image.n_frames == 3
    assert np.abs(read_image(tmp_path / name, 8).astype(int) - [200, 0, 0]).max() <= 2


def test_resizing_uses_all_pixels(tmp_path):
    wide = np.hstack([blocks(16)] * 2)  # twice as wide as high
    found = read_image(saved(tmp_path / "wide.png", wide), 8)
    assert found.shape == (8, 8, 3)
    assert np.abs(found[1, 1::2].astype(int) - [*CORNERS[0], *CORNERS[0]]).max() <= 40
    large = read_image(saved(tmp_path / "noise.png", noise(512, 512)), 8)
    assert 115 < large.mean() < 140  # a mean of many pixels each,
    assert large.std() < 12  # and not one of them


# --- files that are refused ---


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


REFUSED = {
    "zero bytes": (lambda p: p.write_bytes(b""), "a whole image .*; got an empty file"),
    "text": (
        lambda p: p.write_text("no picture at all"),
        "got a file that begins with b'no picture ",
    ),
    "eps": (
        lambda p: saved(p.with_suffix(".eps"), blocks()).rename(p),
        "got a file that begins with b'%!PS-Adobe",
    ),
    "tga": (
        lambda p: saved(p.with_suffix(".tga"), blocks()).rename(p),
        "a whole image .*; got a file that begins",
    ),
    "half a jpeg": (lambda p: cut(saved(p, noise(), format="JPEG"), 0.5), "got .*truncated"),
    "half a png": (lambda p: cut(saved(p, noise(), format="PNG"), 0.5), "a whole image"),
    "half a gif": (lambda p: cut(saved(p, noise(), format="GIF"), 0.5), "a whole image"),
    "half a bmp": (lambda p: cut(saved(p, noise(), format="BMP"), 0.5), "a whole image"),
    "half a tiff": (lambda p: cut(saved(p, noise(), format="TIFF"), 0.5), "a whole image"),
    "half a webp": (lambda p: cut(saved(p, noise(), format="WEBP"), 0.5), "a whole image"),
    "half a ppm": (lambda p: cut(saved(p, noise(), format="PPM"), 0.5), "a whole image"),
    "a bomb": (
        lambda p: p.write_bytes(png(100_000, 100_000, 8, 0, [[[0]]])),
        f"at most {MAX_PIXELS:,} pixels",
    ),
    "a bomb that Pillow only warns of": (
        lambda p: p.write_bytes(png(10_000, 10_000, 8, 0, [[[0]]])),
        f"at most {MAX_PIXELS:,} pixels",
    ),
    "large": (lambda p: p.write_bytes(png(8192, 8193, 8, 0, [[[0]]])), "got 8,192 × 8,193"),
    "32 bits": (
        lambda p: saved(p, Image.fromarray(np.full((2, 2), 0.5, np.float32)), format="TIFF"),
        "got pixels of 32 bits",
    ),
    "a folder": (lambda p: p.mkdir(), "wanted a file to read; got Is a directory"),
    "nothing": (lambda p: None, "wanted a file to read; got No such file"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings(
    "ignore::PIL.Image.DecompressionBombWarning"
)  # as users have it: their warnings no errors
def test_unreadable_files_are_refused_by_name(tmp_path, name):
    make, message = REFUSED[name]
    make(path := tmp_path / "it.jpg")
    with pytest.raises(InvalidData, match=rf"it\.jpg: .*{message}") as caught:
        read_image(path, 8)
    assert caught.value.path == str(path)


def test_a_decompression_bomb_is_refused_where_warnings_are_errors(tmp_path):
    path = tmp_path / "it.png"
    path.write_bytes(png(10_000, 10_000, 8, 0, [[[0]]]))
    with pytest.raises(InvalidData, match=r"it\.png: wanted at most"):
        read_image(path, 8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_a_truncated_file_is_refused_unless_all_pixels_are_there(tmp_path, kind):
    """No pixels are invented: a truncated file is refused, unless all of its pixels are there."""
    path = saved(tmp_path / "a", noise(), format=kind)
    whole, picture = path.read_bytes(), read_image(path, 16)
    refused = 0
    for end in np.linspace(0, len(whole) - 1, 120).astype(int).tolist():
        path.write_bytes(whole[:end])
        try:
            assert np.array_equal(read_image(path, 16), picture), end
        except InvalidData as error:
            refused += str(path) in str(error)
    assert refused > 110


def test_pillow_is_an_extra(tmp_path, monkeypatch):
    saved(tmp_path / "a.png", blocks())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[images\]'"):
        read_image(tmp_path / "a.png", 8)
    assert load_image(next(shapes("test")).source, SIDE).shape == (
        SIDE,
        SIDE,
        3,
    )  # drawn without it


def test_importing_loads_no_pillow():
    program = "import regard.api.train, regard.inference.load, sys; print([m for m in sys.modules if 'PIL' in m])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr


# --- arrays ---


def test_arrays(tmp_path):
    assert load_image(blocks(), 16) is not None
    small = load_image(blocks(), 8)
    assert np.array_equal(small, read_image(saved(tmp_path / "a.png", blocks()), 8))
    for wrong in (
        blocks().astype(np.float32),
        blocks()[:, :, :1],
        blocks()[0],
        np.zeros((0, 4, 3), np.uint8),
        None,
        3,
    ):
        with pytest.raises(InvalidArgument, match="image: wanted"):
            load_image(wrong, 8)


def test_normalization():
    found = normalize(np.array([0, 51, 255], dtype=np.uint8).reshape(1, 1, 1, 3))
    assert found.shape == (1, 3, 1, 1)
    assert found.flatten().tolist() == pytest.approx([-1.0, -0.6, 1.0])
    assert normalize(noise(5, 7)[None]).shape == (1, 3, 5, 7)
    assert torch.equal(
        normalize(noise(5, 7)[None])[0, 1, 2], torch.tensor(noise(5, 7)[2, :, 1]) / 127.5 - 1
    )
    assert [image_token_cost(size) for size in (8, 16, 64, 224)] == [1, 1, 16, 196]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    wanted = (noise(5, 7) / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(
        normalize(noise(5, 7)[None], mean, std)[0].permute(1, 2, 0), wanted, atol=1e-6
    )


def test_resizing_with_a_filter_and_a_center_crop(tmp_path):
    path, picture = saved(tmp_path / "a.png", noise(40, 30)), Image.fromarray(noise(40, 30))
    for name, filter in (
        ("bilinear", Image.Resampling.BILINEAR),
        ("nearest", Image.Resampling.NEAREST),
    ):
        assert np.array_equal(read_image(path, 9, name), picture.resize((9, 9), filter))
    whole = np.array(picture.resize((12, 12), Image.Resampling.BILINEAR))
    for given in (path, noise(40, 30)):
        assert np.array_equal(load_image(given, 9, "bilinear", 12), whole[1:10, 1:10])


def test_the_settings_of_images_are_checked():
    image = partial(make_field, "image")
    with pytest.raises(
        InvalidRecipe, match="image_crop_from: wanted at least image_size = 64; got 60"
    ):
        image(image_crop_from=60)
    with pytest.raises(InvalidRecipe, match="image_mean: wanted three numbers"):
        image(image_mean=(0.5,))
    with pytest.raises(InvalidRecipe, match="augment: wanted no 'color' with another image_mean"):
        image(image_std=(0.2, 0.2, 0.2), augment=("color",))
    with pytest.raises(
        InvalidRecipe, match="image_resize: wanted nothing here: it means nothing to a text"
    ):
        make_field(image_resize="box")


# --- drawn scenes ---


def test_splits_share_no_arrangement():
    found = {split: list(shapes(split, 0, 60)) for split in SPLITS}
    train_, valid, test = (
        {
            tuple((s.kind, s.color, s.x, s.y, s.radius) for s in example.source.shapes)
            for example in found[split]
        }
        for split in SPLITS
    )
    assert not train_ & valid
    assert not train_ & test
    assert not valid & test
    assert len({example.source for example in found["train"]}) == 60
    counts = [len(example.source.shapes) for example in found["train"]]
    assert {1, 2, 3} == set(counts)
    assert {shape.kind for e in found["train"] for shape in e.source.shapes} == set(KINDS)
    assert {shape.color for e in found["train"] for shape in e.source.shapes} == set(COLORS)


def test_scenes_depend_on_seed_and_index():
    first, again = list(shapes("valid", 3, 20)), list(shapes("valid", 3, 30))[:20]
    assert first == again
    assert all(
        np.array_equal(a.source.draw(), b.source.draw()) for a, b in zip(first, again, strict=True)
    )
    assert first != list(shapes("valid", 4, 20))


def test_pixels_are_pinned():
    """Raise VERSION of the generated data if this must change."""
    import hashlib

    drawn = b"".join(example.source.draw().tobytes() for example in shapes("test", 0, 20))
    assert hashlib.sha256(drawn).hexdigest()[:16] == "83e93a89df859804"


def quiet(scene):
    return replace(scene, grain=0, background=(255, 255, 255), smooth=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_box_bounds_its_shape(kind):
    for x, y, radius in ((30.0, 20.0, 6.0), (31.375, 40.625, 11.875), (20.5, 20.5, 8.0)):
        shape = Shape(kind, "black", (0, 0, 0), x, y, radius)
        scene = Scene((shape,), (255, 255, 255), False, 0, 0)
        rows, columns_ = np.nonzero(scene.draw().min(2) < 255)
        drawn = columns_.min(), rows.min(), columns_.max() + 1, rows.max() + 1
        assert np.abs(np.array(drawn) - scene.boxes[0]).max() <= 1.5, (kind, drawn, scene.boxes)
        area = {"circle": 3.1416, "square": 2.89, "triangle": 1.8, "cross": 2.2044}[kind]
        assert len(rows) == pytest.approx(area * radius**2, rel=0.12)
        smooth = replace(scene, smooth=True).draw()
        assert len(np.unique(smooth)) > 2
        assert (255 - smooth[:, :, 0].astype(int)).sum() / 255 == pytest.approx(
            area * radius**2, rel=0.04
        )


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shape_at_an_edge_is_cut_off_there(kind, smooth):
    """What is seen of a shape that lies partly outside equals that part of it in the middle."""
    middle = Shape(kind, "black", (0, 0, 0), 32.0, 32.0, 9.0)
    whole = Scene((middle,), (255, 255, 255), smooth, 0, 0).draw()
    for across, down in ((-28, 0), (28, 0), (0, -28), (0, 28), (-22, -23), (-24, 24), (-41, 0)):
        moved = replace(middle, x=middle.x + across, y=middle.y + down)
        wanted = np.full_like(whole, 255)
        (to_y, from_y), (to_x, from_x) = (
            (slice(max(0, by), SIDE + min(0, by)), slice(max(0, -by), SIDE + min(0, -by)))
            for by in (down, across)
        )
        wanted[to_y, to_x] = whole[from_y, from_x]
        assert np.array_equal(Scene((moved,), (255, 255, 255), smooth, 0, 0).draw(), wanted), (
            across,
            down,
        )


def test_captions_agree_with_the_pixels():
    """The positions of all colors, read from the pixels, give the relations of the caption."""
    for example in shapes("train", 0, 100):
        scene = quiet(example.source)
        picture = scene.draw().astype(int)
        places = {}
        for name in re.findall(r"an? (\w+ \w+)", example.target):
            shape = next(s for s in scene.shapes if f"{s.color} {s.kind}" == name)
            rows, columns_ = np.nonzero((picture == shape.tint).all(2))
            assert len(rows) > 20, name
            left, top, right, bottom = shape.box
            assert left - 1 <= columns_.min() < columns_.max() <= right + 1
            assert top - 1 <= rows.min() < rows.max() <= bottom + 1
            places[name] = (columns_.min() + columns_.max()) / 2, (rows.min() + rows.max()) / 2
        assert len(places) == len(scene.shapes)
        relations = re.findall(r"(left of|right of|above|below) an? (\w+ \w+)", example.target)
        assert len(relations) == len(scene.shapes) - 1
        first = next(iter(places.values()))
        for where, name in relations:
            across, down = first[0] - places[name][0], first[1] - places[name][1]
            side = {"left of": -across, "right of": across, "above": -down, "below": down}[where]
            assert side > 8, example.target
            assert side >= max(abs(across), abs(down)) - 1, example.target


def test_relations():
    a, b = (Shape("circle", "red", (0, 0, 0), x, 20.0, 6.0) for x in (10.0, 40.0))
    assert (relation(a, b), relation(b, a)) == ("left of", "right of")
    c = replace(a, y=50.0, x=20.0)
    assert (relation(a, c), relation(c, a)) == ("above", "below")
    caption = Scene((a, replace(b, color="orange", kind="cross"), c), (0, 0, 0), True, 0, 0).caption
    assert caption == "a red circle left of an orange cross and above a red circle"


# --- from a table to batches ---


@pytest.fixture
def table(tmp_path):
    """A table of six images and eight captions, in several formats, and its configuration."""
    (tmp_path / "photos").mkdir()
    for i in range(6):
        saved(tmp_path / "photos" / f"{i}.png", noise(20 + i, 30, seed=i))
    rows = [
        ("photos/0.png", "zero"),
        ("photos/1.png", "one"),
        ("photos/0.png", "nought"),
        ("photos/2.png", "two"),
    ]
    rows += [(f"photos/{i}.png", f"number {i}") for i in (3, 4, 5)] + [
        ("photos/1.png", "one again")
    ]
    (tmp_path / "t.tsv").write_text("file\tcaption\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"file": a, "caption": b}) + "\n" for a, b in rows)
    )
    (tmp_path / "t.paths").write_text("".join(f"{a}\n" for a, _ in rows))
    (tmp_path / "t.captions").write_text("".join(f"{b}\n" for _, b in rows))
    return DataConfig(
        train=str(tmp_path / "t.tsv"),
        source=make_field("image", column="file", image_size=12),
        target=make_field(tokenizer="words", vocab_size=50, column="caption"),
    )


def test_prepared_images_are_those_of_a_prediction(tmp_path, table):
    """With settings of images other than the default ones."""
    settings = {
        "image_resize": "box",
        "image_crop_from": 15,
        "image_mean": (0.1, 0.2, 0.3),
        "image_std": (0.4, 0.5, 0.6),
    }
    field = replace(table.source, **settings)
    batch = next(
        batches(
            prepare(replace(table, source=field), tmp_path / "out").train,
            budget=20,
            seed=1,
            epoch=0,
        )
    )
    paths = [each.source for each in examples(table, "train")]
    read = SourceInput(nn.Linear(1, 1), field, None).collate([paths[row] for row in batch.rows])
    assert torch.equal(batch.source, read)
    pixels = np.stack([read_image(paths[row], 12, "box", 15) for row in batch.rows])
    assert torch.equal(read, normalize(pixels, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))


def test_prepared_images_equal_those_read_directly(tmp_path, table):
    made = prepare(table, tmp_path / "out")
    found = list(examples(table, "train"))
    corpus = made.train
    assert isinstance(corpus.source, ImageColumn)
    assert isinstance(corpus.source.pixels, np.memmap)
    assert corpus.source.pixels.shape == (6, 12, 12, 3)  # each file once
    assert made.source is None
    assert len(corpus) == len(found) == 8
    for i, example in enumerate(found):
        source, target = corpus.row(i)
        assert np.array_equal(source, read_image(example.source, 12))
        assert made.target.decode(target) == example.target
    direct = normalize(np.stack([read_image(example.source, 12) for example in found]))
    for batch in batches(corpus, budget=20, seed=1, epoch=0):
        assert torch.equal(batch.source, direct[batch.rows])
        assert batch.source.dtype == torch.float32
        assert "images of 12 × 12 pixels" in batch.shape


@pytest.mark.parametrize("form", ["t.jsonl", "lines"])
def test_other_formats_give_the_same_corpus(tmp_path, table, form):
    other = replace(table, train=str(tmp_path / "t.jsonl"))
    if form == "lines":
        other = replace(
            table,
            train=(str(tmp_path / "t.paths"), str(tmp_path / "t.captions")),
            source=replace(table.source, column=None),
            target=replace(table.target, column=None),
        )
    a, b = prepare(table, tmp_path / "out"), prepare(other, tmp_path / "out")
    assert np.array_equal(a.train.source.pixels, b.train.source.pixels)
    assert (
        a.train.source.which.tolist() == b.train.source.which.tolist() == [0, 1, 0, 2, 3, 4, 5, 1]
    )


def test_the_number_of_threads_changes_nothing(tmp_path, table, monkeypatch):
    found = []
    for workers, at_once in ((1, 64), (4, 64), (3, 2)):
        monkeypatch.setattr(column_files, "WORKERS", workers)
        monkeypatch.setattr(column_files, "CHUNK", at_once)
        made = prepare(table, tmp_path / f"{workers} {at_once}")
        found.append(
            (made.key, made.train.source.pixels.tobytes(), made.train.source.which.tolist())
        )
    assert found[0] == found[1] == found[2]


def test_the_key_depends_on_the_images_too(tmp_path, table):
    stages = []
    first = prepare(table, tmp_path / "out")
    again = prepare(table, tmp_path / "out", progress=lambda stage, count: stages.append(stage))
    assert again.key == first.key
    assert stages == []  # reused
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copytree(tmp_path / "photos", moved / "photos")
    shutil.copy(tmp_path / "t.tsv", moved / "t.tsv")
    there = replace(table, train=str(moved / "t.tsv"))
    assert prepare(there, tmp_path / "out").key == first.key
    saved(moved / "photos" / "3.png", noise(23, 30, seed=99))
    changed = prepare(there, tmp_path / "out")
    assert changed.key != first.key
    assert not np.array_equal(changed.train.source.pixels[3], first.train.source.pixels[3])
    assert (
        prepare(replace(table, source=replace(table.source, image_size=13)), tmp_path / "out").key
        != first.key
    )


BAD = {
    "missing": (
        lambda folder: (folder / "photos/4.png").unlink(),
        r"photos/4\.png: wanted a file to read",
    ),
    "damaged": (
        lambda folder: cut(folder / "photos/4.png", 0.5),
        r"photos/4\.png: wanted a whole image",
    ),
    "no path": (
        lambda folder: (folder / "t.tsv").write_text("file\tcaption\n\tx\n"),
        r"t\.tsv: wanted the path of an image; got ''",
    ),
    "nul": (
        lambda folder: (folder / "t.tsv").write_text("file\tcaption\na\0b\tx\n"),
        r"t\.tsv: wanted the path of an image",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_image_leaves_no_corpus(tmp_path, table, name):
    harm, message = BAD[name]
    harm(tmp_path)
    before = set(threading.enumerate())
    with pytest.raises(InvalidData, match=message):
        prepare(table, tmp_path / "out")
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
    assert set(threading.enumerate()) <= before


def test_truncated_pixels_are_refused(tmp_path, table):
    folder = prepare(table, tmp_path / "out").folder
    for name in ("train.source.pixels.npy", "train.source.which.npy"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-1])
        with pytest.raises(InvalidData, match=rf"{name}: wanted a whole prepared corpus"):
            Prepared.open(folder)
        (folder / name).write_bytes(whole)
    Prepared.open(folder)


def test_images_of_long_captions_are_left_out(tmp_path, table):
    made = prepare(replace(table, target=replace(table.target, max_tokens=1)), tmp_path / "out")
    assert made.record["splits"]["train"]["left_out"] == {"target.max_tokens": 4}
    assert made.train.source.which.tolist() == [0, 1, 0, 2]
    assert len(made.train.source.pixels) == 3


# --- what a recipe may say ---

IMAGE = {"kind": "image", "column": "a"}
WORDS = {"tokenizer": "words", "vocab_size": 50}
WRONG = {
    "target": (
        {"train": "a.csv", "source": {"column": "a"}, "target": IMAGE},
        "data.target.kind: wanted 'text' or",
    ),
    "tokens": (
        {"train": "a.csv", "source": IMAGE | {"lowercase": True}, "target": {"column": "b"}},
        "data.source.lowercase: wanted nothing here: it means nothing to an image",
    ),
    "size of a text": (
        {"train": "a", "target": {"image_size": 9}},
        "data.target.image_size: wanted nothing here: it means nothing",
    ),
    "no size": (
        {"train": "a.csv", "source": IMAGE | {"image_size": 0}, "target": {"column": "b"}},
        "data.source.image_size: wanted a whole number of at least 1",
    ),
    "shapes in texts": (
        {"synthetic": "shapes", "source": {}, "target": WORDS, "shared_vocab": False},
        "data.source: wanted kind = 'image' without a column",
    ),
    "dates in pictures": (
        {"synthetic": "dates", "source": {"kind": "image"}},
        "data.source: wanted kind = 'text' without a column",
    ),
    "large shapes": (
        {"synthetic": "shapes", "source": {"kind": "image", "image_size": 96}},
        "data.source.image_size: wanted 64, of shapes; got 96",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_data_settings_are_refused(name):
    table, message = WRONG[name]
    problems = read(DataConfig, table, "data")
    assert isinstance(problems, list)
    assert any(message in str(problem) for problem in problems), list(map(str, problems))


def test_invalid_models_are_refused():
    table = read_recipe(find_recipe("shapes-vit")).as_dict()
    table["model"]["encoder"] = table["model"]["encoder"] | {"patch_size": 7}
    with pytest.raises(
        InvalidRecipe,
        match=r"model\.encoder\.patch_size: wanted a divisor of data\.source\.image_size = 64; got 7",
    ):
        Recipe.of(table)
    table["model"] = {"encoder": {"kind": "rnn"}, "decoder": {"kind": "rnn"}}
    with pytest.raises(
        InvalidRecipe,
        match=r"data\.source\.kind: wanted 'text' or 'words', which the encoder reads; got 'image'",
    ):
        Recipe.of(table)
    letters = {
        "synthetic": "copy",
        "source": {"tokenizer": "bytes"},
        "target": {"tokenizer": "bytes"},
    }
    with pytest.raises(
        InvalidRecipe,
        match=r"data\.source\.kind: wanted 'image', which the encoder reads; got 'text'",
    ):
        Recipe.of(
            {"data": letters, "model": {"encoder": {"kind": "cnn"}, "decoder": {"kind": "rnn"}}}
        )


# --- end to end ---

SMALL = {
    "shapes-rnn": [
        "model.encoder.channels=[8,16,32]",
        "model.encoder.dim=64",
        "model.decoder.dim=64",
    ],
    "shapes-rnn-attention": [
        "model.encoder.channels=[8,16,32]",
        "model.encoder.dim=64",
        "model.decoder.dim=64",
    ],
    "shapes-transformer": [
        "model.encoder.channels=[8,16,32]",
        "model.encoder.dim=64",
        "model.decoder.dim=64",
    ],
    "shapes-vit": ["model.encoder.transformer.layers=1", "model.decoder.layers=1"],
}
SHORT = [
    "train.max_steps=150",
    "train.warmup_steps=10",
    "train.validate_every=150",
    "train.log_samples=1",
    "train.learning_rate=3e-3",
]


@pytest.fixture
def few(monkeypatch):
    """Few examples, so that they are soon memorized."""
    monkeypatch.setitem(SIZES, "train", 6)
    monkeypatch.setitem(SIZES, "valid", 2)
    monkeypatch.setitem(SIZES, "test", 2)


@pytest.mark.parametrize("name", SMALL)
def test_our_recipes_learn(name, tmp_path, few):
    recipe = read_recipe(find_recipe(name), [*SMALL[name], *SHORT])
    shown = dry_run(recipe, tmp_path / "cache")
    assert "source  an image of 64 × 64 pixels" in shown
    made = train(recipe, tmp_path / "run", cache=tmp_path / "cache")
    known = list(examples(recipe.data, "train"))
    outputs = made.predict([example.source for example in known])
    right = sum(output == example.target for output, example in zip(outputs, known, strict=True))
    assert right >= 5, list(zip(outputs, (e.target for e in known), strict=True))
    assert set(evaluate(made, cache=tmp_path / "cache").systems[0].metrics) == {
        "loss",
        "perplexity",
        "accuracy",
        "error_rate",
    }
    # From disk, from files and from arrays, alone and together: the same.
    again = load(tmp_path / "run")
    paths = [
        saved(tmp_path / f"{i}.png", example.source.draw()) for i, example in enumerate(known[:3])
    ]
    arrays = [example.source.draw() for example in known[:3]]
    assert (
        again.predict(paths)
        == again.predict(arrays)
        == again.predict(map(str, paths))
        == outputs[:3]
    )
    assert [again.predict([path])[0] for path in paths] == outputs[:3]


def test_invalid_inputs_of_captioning_are_refused(tmp_path, few):
    changes = [
        *SMALL["shapes-rnn"],
        *SHORT,
        "train.max_steps=2",
        "train.warmup_steps=1",
        "train.monitor=loss",
    ]
    made = train(
        read_recipe(find_recipe("shapes-rnn"), changes), tmp_path / "run", cache=tmp_path / "cache"
    )
    (tmp_path / "no.png").write_bytes(b"no")
    with pytest.raises(InvalidData, match=r"no\.png: wanted a whole image"):
        made.predict([tmp_path / "no.png"])
    with pytest.raises(InvalidArgument, match="image: wanted a path, or an array"):
        made.predict([np.zeros((4, 4), np.uint8)])
    for one in ("a.png", noise()):
        with pytest.raises(InvalidArgument, match="texts: wanted a list; got one"):
            made.predict(one)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["samples"][0]["source"].startswith("a drawing of a")


def test_image_classification(tmp_path, few):
    """A table of images with labels, and a pool."""
    rows = []
    for i in range(12):
        colour = np.array([200, 30, 30] if i % 2 else [30, 30, 200], dtype=np.uint8)
        saved(tmp_path / f"{i}.png", np.broadcast_to(colour, (9, 9, 3)) + noise(9, 9, seed=i) // 8)
        rows.append(f"{i}.png,{'red' if i % 2 else 'blue'}\n")
    (tmp_path / "t.csv").write_text("file,color\n" + "".join(rows))
    recipe = {
        "data": {
            "train": str(tmp_path / "t.csv"),
            "source": {"kind": "image", "column": "file", "image_size": 16},
            "target": {"kind": "label", "column": "color"},
        },
        "model": {"encoder": {"kind": "cnn", "channels": [4], "dim": 8}, "pool": {"kind": "mean"}},
        "train": {"max_steps": 30, "warmup_steps": 2, "learning_rate": 1e-2, "batch_tokens": 12},
    }
    made = train(recipe, tmp_path / "run", cache=tmp_path / "cache")
    assert made.predict([tmp_path / f"{i}.png" for i in range(4)]) == ["blue", "red", "blue", "red"]


SPECIAL = {
    "a device": (
        lambda path: path.symlink_to("/dev/zero"),
        "wanted a regular file; got a device or a pipe",
    ),
    "a pipe": (os.mkfifo, "wanted a regular file; got a device or a pipe"),
    "too large": (
        lambda path: [path.touch(), os.truncate(path, LARGEST + 1)],
        r"wanted a file of at most 268,435,456 bytes; got 268,435,457",
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_only_regular_files_of_some_size_are_read(name, tmp_path):
    make, message = SPECIAL[name]
    make(tmp_path / "a.jpg")
    with pytest.raises(InvalidData, match=rf"a\.jpg: {message}"):
        read_image(tmp_path / "a.jpg", 8)
    if name != "too large":
        (tmp_path / "t.tsv").write_text("image\ttext\na.jpg\tone\n")
        fields = {
            "source": make_field("image", image_size=8, column="image"),
            "target": make_field(column="text"),
        }
        with pytest.raises(InvalidData, match=rf"a\.jpg: {message}"):
            prepare(DataConfig(train=str(tmp_path / "t.tsv"), **fields), tmp_path / "out")


def test_only_an_image_extension_is_no_part_of_a_name():
    names = {
        "a.b.jpg": "a.b",
        "x.TIFF": "x",
        "photo.raw": "photo.raw",
        ".jpg": ".jpg",
        "a": "a",
        "": "",
    }
    assert {name: stem(name) for name in names} == names
