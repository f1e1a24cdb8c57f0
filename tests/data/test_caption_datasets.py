"""Captioned images in the formats of published datasets, in folders and zip files: equal results, or an error."""

import gzip
import json
import os
import re
import shutil
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_images import REFUSED as BROKEN, noise, saved

from regard.api.evaluate import evaluate, rows_of
from regard.api.train import train
from regard.core.config import read
from regard.core.errors import InvalidData
from regard.data import image_store
from regard.data.config import DataConfig
from regard.data.corpus import prepare
from regard.data.fields.base import make_field
from regard.data.image_store import FolderStore, Member, ZipStore, find_images, open_image_store
from regard.data.images import read_image
from regard.data.sources import examples
from regard.recipe.recipe import Recipe

CAPTIONS = {f"{i}.jpg": [f"number {i}", f"a picture of  {i} ."] for i in range(6)}
SHARES = {
    "0.jpg": "train",
    "1.jpg": "val",
    "2.jpg": "restval",
    "3.jpg": "test",
    "4.jpg": "train",
    "5.jpg": "val",
}
NAMES = {
    "train": [name for name, share in SHARES.items() if share in ("train", "restval")],
    "valid": [name for name, share in SHARES.items() if share == "val"],
    "test": [name for name, share in SHARES.items() if share == "test"],
}
SOURCE = make_field("image", image_size=12)
TARGET = make_field(tokenizer="words", vocab_size=50)


@pytest.fixture
def pictures(tmp_path):
    """Six images, stored as .webp but listed as .jpg, in a folder and in a zip file."""
    (tmp_path / "photos").mkdir()
    for i in range(6):
        saved(tmp_path / "photos" / f"{i}.webp", noise(20, 30, seed=i), lossless=True)
    packed(tmp_path / "photos.zip", tmp_path / "photos")
    return tmp_path


def packed(path, folder, method=zipfile.ZIP_STORED, before=""):
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, before + file.name)
    return path


def karpathy(folder):
    images = [
        {"filename": name, "imgid": i, "split": SHARES[name], "cocoid": i}
        | {"sentences": [{"raw": caption, "tokens": caption.split()} for caption in CAPTIONS[name]]}
        for i, name in enumerate(CAPTIONS)
    ]
    (folder / "dataset.json").write_text(json.dumps({"images": images, "dataset": "six"}))
    return dict.fromkeys(NAMES, str(folder / "dataset.json"))


def coco(folder):
    for split, names in NAMES.items():
        images = [
            {"id": 100 + i, "file_name": name, "coco_url": "x"} for i, name in enumerate(names)
        ]
        pairs = [
            (100 + i, caption)
            for n in (0, 1)
            for i, name in enumerate(names)
            for caption in [CAPTIONS[name][n]]
        ]
        notes = [
            {"id": n, "image_id": i, "caption": f"{caption}\n"}
            for n, (i, caption) in enumerate(pairs)
        ]
        with gzip.open(folder / f"{split}.json.gz", "wt") as file:
            json.dump({"info": {}, "images": images, "licenses": [], "annotations": notes}, file)
    return {split: str(folder / f"{split}.json.gz") for split in NAMES}


def token(folder):
    lines = [
        f"{name}#{n}\t{caption}\n"
        for name, captions in CAPTIONS.items()
        for n, caption in enumerate(captions)
    ]
    with gzip.open(folder / "captions.token.txt.gz", "wt") as file:
        file.writelines(lines)
    for split, names in NAMES.items():
        (folder / f"{split}.txt").write_text("".join(f"{name}\r\n" for name in reversed(names)))
    return {
        split: (str(folder / "captions.token.txt.gz"), str(folder / f"{split}.txt"))
        for split in NAMES
    }


def stems(folder):
    """As with Flickr30k, whose lists have numbers alone."""
    files = token(folder)
    (folder / "captions.token.txt.gz").rename(folder / "captions.token.gz")
    for split, names in NAMES.items():
        (folder / f"{split}.txt").write_text("\n".join(name.removesuffix(".jpg") for name in names))
    return {
        split: (str(folder / "captions.token.gz"), names) for split, (_, names) in files.items()
    }


FORMS = {"karpathy": karpathy, "coco": coco, "token": token, "stems": stems}


def config(files, images):
    return DataConfig(
        **files, images=None if images is None else str(images), source=SOURCE, target=TARGET
    )


@pytest.mark.parametrize("place", ["photos", "photos.zip"])
@pytest.mark.parametrize("form", FORMS)
def test_all_formats_give_the_same_examples(pictures, form, place):
    data = config(FORMS[form](pictures), pictures / place)
    made = prepare(data, pictures / "out")
    for split, names in NAMES.items():
        corpus = getattr(made, split)
        wanted = [
            (Path(name).stem, " ".join(caption.split()))
            for name in names
            for caption in CAPTIONS[name]
        ]
        found = list(examples(data, split))
        assert [(Path(str(e.source)).stem, e.target) for e in found] == wanted
        assert corpus.source.which.tolist() == [
            i for i in range(len(names)) for _ in (0, 1)
        ]  # each picture once
        for i, (stem, _) in enumerate(wanted):
            direct = read_image(pictures / "photos" / f"{stem}.webp", 12)
            assert np.array_equal(corpus.row(i)[0], direct)
    assert made.target.decode(made.train.row(3)[1]) == "a picture of 2 ."


def test_images_are_beside_the_list_by_default(pictures):
    files = karpathy(pictures / "photos")
    assert [str(e.source) for e in examples(config(files, None), "test")] == [
        str(pictures / "photos" / "3.webp")
    ] * 2


def test_zip_files_are_not_unpacked(pictures):
    before = set(pictures.rglob("*"))
    data = config(karpathy(pictures), pictures / "photos.zip")
    assert [isinstance(e.source, Member) for e in examples(data, "train")] == [True] * 6
    assert read_image(next(examples(data, "test")).source, 12).shape == (12, 12, 3)
    assert set(pictures.rglob("*")) - before == {pictures / "dataset.json"}


# --- where pictures lie ---


def album(tmp_path, kind, *names):
    (tmp_path / "album").mkdir()
    with zipfile.ZipFile(tmp_path / "album.zip", "w") as archive:
        for name in names:
            (tmp_path / "album" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "album" / name).write_bytes(name.encode())
            archive.writestr(name, name)
    return open_image_store(tmp_path / ("album.zip" if kind == "zip" else "album"))


@pytest.mark.parametrize("kind", ["zip", "folder"])
@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        ("a.jpg", "a.jpg"),  # as it stands, though there is another a
        ("a.webp", "a.webp"),
        ("val/b.jpg", "val/b.jpg"),
        ("val/b.png", "val/b.jpg"),
        ("val2014/a.jpg", "a.jpg"),  # by its last part
        ("deep/c.jpg", "c.webp"),
        ("e.f.jpg", "e.f.png"),
        ("g", "g"),
        ("notes.txt", "notes.txt"),
    ],
)
def test_an_image_is_found_by_path_name_or_stem(tmp_path, kind, listed, wanted):
    found = album(
        tmp_path, kind, "a.jpg", "a.webp", "val/b.jpg", "c.webp", "e.f.png", "g", "notes.txt"
    ).find(listed)
    assert (found.read() if isinstance(found, Member) else found.read_bytes()).decode() == wanted


def test_full_paths_resolve_ambiguous_names(tmp_path):
    here = album(
        tmp_path, "zip", "x/train/a.jpg", "x/val/a.jpg", "y/b.jpg", "y/b.png", "__MACOSX/y/._b.png"
    )
    assert here.find("val/a.jpg").name == "x/val/a.jpg"
    assert here.find("b.png").name == "y/b.png"
    with pytest.raises(
        InvalidData,
        match=r"album\.zip: wanted one image 'a\.jpg'; got x/train/a\.jpg, x/val/a\.jpg",
    ):
        here.find("a.jpg")
    with pytest.raises(InvalidData, match=r"wanted one image 'b\.gif'"):
        here.find("b.gif")
    with pytest.raises(
        InvalidData, match=r"album\.zip: wanted an image 'c\.jpg'; got none among 5 files"
    ):
        here.find("c.jpg")


def test_names_cannot_leave_the_zip_file(tmp_path):
    """The name of a zip member never opens another file."""
    (tmp_path / "secret.png").write_bytes(b"secret")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("../secret.png", "/etc/passwd", "a/../../b.png"):
            archive.writestr(name, f"inside {name}")
    here = ZipStore(tmp_path / "a.zip")
    for name in (
        "../secret.png",
        "secret.png",
        str(tmp_path / "secret.png"),
        "/etc/passwd",
        "b.jpg",
    ):
        assert here.find(name).read().startswith(b"inside ")


def test_folders(tmp_path):
    with pytest.raises(
        InvalidData, match=r"nowhere: wanted a folder of images, or a \.zip file; got neither"
    ):
        open_image_store(tmp_path / "nowhere")
    assert (
        FolderStore(tmp_path).find("none.jpg") == tmp_path / "none.jpg"
    )  # for its reader to refuse by name
    assert FolderStore(tmp_path).find("n" * 300) == tmp_path / ("n" * 300)


# --- zip files that are refused ---


def encrypted(path):
    """Set the encryption flag of every member, in both headers of a zip file."""
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(mark), bytes(content)):
            content[found.start() + offset] |= 1
    path.write_bytes(content)


def unknown_method(path):
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        for found in re.finditer(re.escape(mark), bytes(content)):
            content[found.start() + offset] = 97
    path.write_bytes(content)


def scratched(path):
    content = bytearray(path.read_bytes())
    at = content.index(b"RIFF") + 40
    content[at] ^= 1
    path.write_bytes(content)


ZIPS = {
    "missing": (
        lambda path: path.unlink(),
        r"photos\.zip: wanted a file to read; got No such file",
    ),
    "no zip": (
        lambda path: path.write_bytes(b"no"),
        r"photos\.zip: wanted a whole zip file; got File is not a zip",
    ),
    "empty": (lambda path: path.write_bytes(b""), r"photos\.zip: wanted a whole zip file"),
    "half": (
        lambda path: path.write_bytes(path.read_bytes()[:900]),
        r"photos\.zip: wanted a whole zip file",
    ),
    "a folder": (
        lambda path: (path.unlink(), path.mkdir()),
        r"photos\.zip: wanted a file to read; got Is a directory",
    ),
    "encrypted": (encrypted, r"photos\.zip/0\.webp: wanted an image; got an encrypted one"),
    "another packing": (
        unknown_method,
        r"photos\.zip/0\.webp: wanted a whole zip file; got .*compression",
    ),
    "scratched": (scratched, r"photos\.zip/0\.webp: wanted a whole zip file; got Bad CRC"),
}


@pytest.mark.parametrize("name", ZIPS)
def test_damaged_zip_files_are_refused(pictures, name):
    harm, message = ZIPS[name]
    data = config(karpathy(pictures), pictures / "photos.zip")
    harm(pictures / "photos.zip")
    with pytest.raises(InvalidData, match=message):
        prepare(data, pictures / "out")
    assert not (pictures / "out").exists() or list((pictures / "out").iterdir()) == []


def test_a_member_that_unpacks_to_too_much_is_refused(pictures, monkeypatch):
    monkeypatch.setattr(image_store, "LARGEST", 100)
    found = ZipStore(pictures / "photos.zip").find("0.jpg")
    with pytest.raises(
        InvalidData, match=r"photos\.zip/0\.webp: wanted a file of at most 100 bytes; got [\d,]+"
    ):
        found.read()


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"]
)
def test_a_corrupted_zip_is_refused_or_gives_the_same_image(tmp_path, method):
    """Flipping any bit or truncating anywhere never gives another image."""
    (tmp_path / "photos").mkdir()
    saved(tmp_path / "photos" / "0.png", noise(8, 8))
    path = packed(tmp_path / "a.zip", tmp_path / "photos", method)
    whole, picture = path.read_bytes(), (tmp_path / "photos" / "0.png").read_bytes()
    places = np.linspace(0, len(whole) - 1, 150).astype(int).tolist()
    harmed = [whole[:end] for end in places]
    harmed += [whole[:i] + bytes([whole[i] ^ (1 << i % 8)]) + whole[i + 1 :] for i in places]
    refused = 0
    for content in harmed:
        path.write_bytes(content)
        try:
            assert ZipStore(path).find("0.png").read() == picture
        except InvalidData as error:
            refused += str(path) in str(error)
    assert refused > 220


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in ("a folder", "nothing")])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_damaged_image_in_a_zip_is_refused_by_name(tmp_path, name):
    make, message = BROKEN[name]
    (tmp_path / "photos").mkdir()
    make(tmp_path / "photos" / "it.jpg")
    found = ZipStore(packed(tmp_path / "a.zip", tmp_path / "photos", zipfile.ZIP_DEFLATED)).find(
        "it.jpg"
    )
    with pytest.raises(InvalidData, match=rf"a\.zip/it\.jpg: .*{message}"):
        read_image(found, 8)


# --- lists that are refused ---


def changed(change):
    """A file in Karpathy's format with its first image, or the whole document, changed."""

    def write(folder):
        files = karpathy(folder)
        document = json.loads(Path(files["train"]).read_text())
        change(document)
        Path(files["train"]).write_text(json.dumps(document))
        return files

    return write


def noted(change):
    def write(folder):
        files = coco(folder)
        path = folder / "train.json"
        document = json.loads(gzip.decompress(Path(files["train"]).read_bytes()))
        change(document)
        path.write_text(json.dumps(document))
        return files | {"train": str(path)}

    return write


def lines(content, names="0.jpg\n"):
    def write(folder):
        (folder / "c.token.txt").write_text(content)
        (folder / "train.txt").write_text(names)
        return {"train": (str(folder / "c.token.txt"), str(folder / "train.txt"))}

    return write


def first(document):
    return document["images"][0]


LISTS = {
    "no json": (lambda folder: write(folder, "{"), r"d\.json: wanted JSON; got Expecting"),
    "no utf-8": (
        lambda folder: write(folder, b'\xef\xbb\xbf{"images": "\xe9"}'),
        r"d\.json: wanted UTF-8 text; got byte 0xe9 at offset 15",
    ),
    "nested": (lambda folder: write(folder, "[" * 150_000), r"d\.json: wanted JSON; got"),
    "no table": (
        lambda folder: write(folder, "[]"),
        r"d\.json, the document: wanted a table; got \[\]",
    ),
    "no images": (
        lambda folder: write(folder, "{}"),
        r"the document: wanted a list in 'images'; got None",
    ),
    "a text": (
        lambda folder: write(folder, '{"images": ["a"]}'),
        r"images\[0\]: wanted a table; got 'a'",
    ),
    "no name": (
        changed(lambda d: first(d).pop("filename")),
        r"images\[0\]: wanted a text in 'filename'; got None",
    ),
    "no split": (
        changed(lambda d: first(d).pop("split")),
        r"images\[0\]: wanted a text in 'split'; got None",
    ),
    "no captions": (
        changed(lambda d: first(d).update(sentences=[])),
        r"images\[0\]: wanted a caption; got \[\]",
    ),
    "a number": (
        changed(lambda d: first(d)["sentences"][1].update(raw=3)),
        r"images\[0\]\.sentences\[1\]: wanted a text in 'raw'; got 3",
    ),
    "half a character": (
        changed(lambda d: first(d)["sentences"][0].update(raw="\ud800")),
        r"dataset\.json: wanted Unicode text in 'raw'; got half",
    ),
    "nothing of the split": (
        changed(lambda d: [image.update(split="val") for image in d["images"]]),
        r"dataset\.json: wanted images of the split 'train'; got those of val",
    ),
    "no picture": (
        changed(lambda d: first(d).update(filename="")),
        r"wanted the path of an image; got ''",
    ),
    "another's id": (
        noted(lambda d: d["annotations"][1].update(image_id=7)),
        r"annotations\[1\]: wanted the id of one of the images; got 7",
    ),
    "a list as id": (
        noted(lambda d: first(d).update(id=[])),
        r"images\[0\]: wanted a number in 'id'; got \[\]",
    ),
    "one id twice": (
        noted(lambda d: d["images"][2].update(id=100)),
        r"images\[2\]: wanted an id that no image before it has; got 100",
    ),
    "one picture twice": (
        noted(lambda d: d["images"].append(first(d))),
        r"images\[3\]: wanted an id that no image before it has; got 100",
    ),
    "uncaptioned": (
        noted(lambda d: d["images"].append({"id": 1, "file_name": "5.jpg"})),
        r"images\[3\]: wanted a caption among the annotations; got '5\.jpg'",
    ),
    "no tab": (
        lines("0.jpg#0 a\n"),
        r"c\.token\.txt, line 1: wanted name\.jpg#0, a tab, a caption; got '0\.jpg#0 a'",
    ),
    "no number": (lines("0.jpg#0\ta\n0.jpg\tb\n"), r"c\.token\.txt, line 2: wanted name\.jpg#0"),
    "an empty line": (
        lines("0.jpg#0\ta\n\n0.jpg#1\tb\n"),
        r"c\.token\.txt, line 2: wanted name\.jpg#0",
    ),
    "without a caption": (
        lines("0.jpg#0\ta\n", "0.jpg\n7.jpg\n"),
        r"train\.txt: wanted images with captions in .*'7'",
    ),
    "no such picture": (
        lines("9.jpg#0\ta\n", "9.jpg\n"),
        r"photos\.zip: wanted an image '9\.jpg'; got none among 6",
    ),
    "empty": (lines("", ""), r"c\.token\.txt: wanted at least one example; got an empty file"),
}


def write(folder, content):
    (folder / "d.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    return {"train": str(folder / "d.json")}


@pytest.mark.parametrize("name", LISTS)
def test_malformed_lists_are_refused(pictures, name):
    make, message = LISTS[name]
    data = config(make(pictures), pictures / "photos.zip")
    with pytest.raises(InvalidData, match=message):
        list(examples(data, "train"))


def test_unpaired_surrogates_can_be_replaced(pictures):
    files = changed(lambda d: first(d)["sentences"][0].update(raw="a\ud800b"))(pictures)
    data = replace(config(files, pictures / "photos.zip"), encoding_errors="replace")
    assert next(examples(data, "train")).target == "a\ufffdb"


def test_a_token_file_by_another_name_is_refused(pictures):
    (pictures / "c.txt").write_text("0.jpg#0\ta\n")
    data = config(
        {"train": (str(pictures / "c.txt"), str(pictures / "c.txt"))}, pictures / "photos"
    )
    with pytest.raises(InvalidData, match=r"c\.txt: wanted the path of an image; .*\.token\.txt"):
        list(examples(data, "train"))


IMAGE = {"kind": "image"}
WRONG = {
    "images of texts": (
        {"train": "a", "images": "b"},
        "data.images: wanted nothing here: no images are read",
    ),
    "images drawn": (
        {
            "synthetic": "shapes",
            "images": "b",
            "source": IMAGE,
            "target": {"tokenizer": "words", "vocab_size": 50},
        },
        "data.images: wanted nothing here",
    ),
    "two of json": (
        {"train": ["a.json", "b.json"], "source": IMAGE},
        "data.train: wanted one file of JSON; got 2",
    ),
    "three of token": (
        {"train": ["a.token", "b", "c"], "source": IMAGE},
        "data.train: wanted captions, and the names of the split's images; got 3 files",
    ),
    "columns of json": (
        {"train": "a.json", "source": IMAGE | {"column": "a"}, "target": {"column": "b"}},
        "data.train: wanted a table (.tsv, .csv, .jsonl, .parquet), for it has columns; got a.json",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_settings_are_refused(name):
    table, message = WRONG[name]
    problems = read(DataConfig, table, "data")
    assert isinstance(problems, list)
    assert any(message in str(problem) for problem in problems), list(map(str, problems))


# --- what follows from it ---


def test_the_key_depends_on_the_zip_files_content_not_its_path(pictures):
    data = config(token(pictures), pictures / "photos.zip")
    first = prepare(data, pictures / "out")
    shutil.copy(pictures / "photos.zip", pictures / "moved.zip")
    moved = replace(data, images=str(pictures / "moved.zip"))
    stages = []
    assert (
        prepare(moved, pictures / "out", progress=lambda stage, count: stages.append(stage)).key
        == first.key
    )
    assert stages == []  # reused
    saved(pictures / "photos" / "4.webp", noise(20, 30, seed=99), lossless=True)
    packed(pictures / "moved.zip", pictures / "photos")
    changed = prepare(moved, pictures / "out")
    assert changed.key != first.key
    assert not np.array_equal(changed.train.source.pixels, first.train.source.pixels)


def recipe(data):
    return Recipe.of(
        {
            "data": {
                **data,
                "source": {"kind": "image", "image_size": 12},
                "target": {"tokenizer": "words", "vocab_size": 50},
            },
            "model": {
                "encoder": {"kind": "cnn", "channels": [4], "dim": 8},
                "decoder": {"kind": "rnn", "dim": 8},
            },
            "train": {
                "max_steps": 4,
                "warmup_steps": 1,
                "validate_every": 4,
                "batch_tokens": 24,
                "monitor": "bleu",
            },
            "decode": {"max_length": 5},
        }
    )


def test_an_image_has_all_its_references(pictures):
    """Wherever they are in a table; the image is captioned once."""
    made = recipe({**karpathy(pictures), "images": str(pictures / "photos.zip")})
    found = list(rows_of(made, "valid"))
    assert [Path(str(source)).name for source, _ in found] == ["1.webp", "5.webp"]
    assert found[1][1] == ["number 5", "a picture of 5 ."]
    rows = [("1.jpg", "one"), ("0.jpg", "zero"), ("1.jpg", "One"), ("2.jpg", "two"), ("1.jpg", "1")]
    (pictures / "t.tsv").write_text("file\tcaption\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    data = {"train": str(pictures / "t.tsv"), "images": str(pictures / "photos")}
    columns = {
        "source": {"kind": "image", "column": "file"},
        "target": {"column": "caption", "lowercase": True},
    }
    table = made.as_dict() | {"data": data | columns}
    table["train"]["monitor"] = "loss"
    found = [(source.name, references) for source, references in rows_of(Recipe.of(table), "train")]
    assert found == [("1.webp", ["one", "one", "1"]), ("0.webp", ["zero"]), ("2.webp", ["two"])]


def test_from_a_zip_to_captions(pictures):
    made = recipe({**token(pictures), "images": str(pictures / "photos.zip")})
    predictor = train(made, pictures / "run", cache=pictures / "cache")
    assert set(evaluate(predictor, cache=pictures / "cache").systems[0].metrics) == {
        "loss",
        "perplexity",
        "bleu1",
        "bleu2",
        "bleu3",
        "bleu4",
        "rouge_l",
        "meteor",
        "cider",
    }
    inside = [example.source for example in examples(made.data, "train")]
    outside = [pictures / "photos" / Path(str(member)).name for member in inside]
    assert predictor.predict(inside) == predictor.predict(outside)


def test_flickr8k():
    if not os.environ.get("REGARD_DATA"):
        pytest.skip("REGARD_DATA, the folder of real data, is not set")
    folder = Path(os.environ["REGARD_DATA"]) / "flickr8k"
    splits = {"train": "train.txt", "valid": "dev.txt", "test": "test.txt"}
    captions = str(folder / "captions.token.txt.gz")
    files = {split: (captions, str(folder / names)) for split, names in splits.items()}
    data = config(files, folder / "images192.zip")
    for split, count in {"train": 6000, "valid": 1000, "test": 1000}.items():
        found = list(examples(data, split))
        assert len(found) == 5 * count
        assert len({example.source for example in found}) == count
    assert read_image(found[0].source, 192).std() > 10


def test_a_member_that_unpacks_to_more_than_it_claims_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jpg", bytes(50_000_000))
    content = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(
        content.replace((50_000_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    )
    store = ZipStore(tmp_path / "a.zip")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidData, match=r"a\.jpg: wanted a whole zip file; got"):
            store.find("a.jpg").read()
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_zip_file_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.zip")
    with pytest.raises(InvalidData, match=r"a\.zip: wanted a regular file; got a device or a pipe"):
        ZipStore(tmp_path / "a.zip")


def test_the_name_of_a_member_forges_no_message(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a\nregard: all is well\x1b[2J.jpg", b"no image")
    (member,) = find_images([tmp_path / "a.zip"])
    with pytest.raises(
        InvalidData, match=r"a\.zip/a.regard: all is well.\[2J\.jpg: wanted a whole image"
    ) as caught:
        read_image(member, 8)
    assert str(caught.value).isprintable()


def test_images_may_have_texts_as_ids(pictures):
    """As Visual Genome's and Flickr's converted to COCO's format have."""
    images = [{"id": f"image {i}", "file_name": f"{i}.jpg"} for i in range(3)]
    notes = [{"id": i, "image_id": f"image {i}", "caption": f"number {i}"} for i in (2, 0, 1)]
    (pictures / "coco.json").write_text(json.dumps({"images": images, "annotations": notes}))
    config = DataConfig(
        train=str(pictures / "coco.json"),
        images=str(pictures / "photos"),
        source=SOURCE,
        target=TARGET,
    )
    assert [each.target for each in examples(config, "train")] == [
        "number 0",
        "number 1",
        "number 2",
    ]
    images[0]["id"] = 1.5
    (pictures / "coco.json").write_text(json.dumps({"images": images, "annotations": notes}))
    with pytest.raises(InvalidData, match="wanted a number in 'id'"):
        list(examples(config, "train"))
