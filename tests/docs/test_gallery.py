"""The gallery: its pictures are there, small and named, each below the command that draws it; and its tool."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import gallery

PAGE = gallery.PAGE.read_text("utf-8")
BLOCKS = gallery.blocks(PAGE)
DRAWN = [name for block in BLOCKS for name in block.drawn]


def test_every_picture_is_drawn_by_the_block_above_it():
    assert len(DRAWN) >= 24
    assert len({*DRAWN}) == len(DRAWN) == PAGE.count("](gallery/")
    assert [name for block in BLOCKS for name in block.drawn if name not in block.text] == []
    assert {path.name for path in gallery.PICTURES.iterdir() if path.is_file()} == {
        *DRAWN,
        "drawing.py",
    }


def test_every_picture_is_small_and_described():
    assert [name for name in DRAWN if (gallery.PICTURES / name).stat().st_size > 60_000] == []
    assert [name for alt, name in gallery.DRAWN.findall(PAGE) if len(alt) < 20] == []


def test_every_picture_has_its_own_background():
    """They are read on light and on dark pages."""
    assert {Path(name).suffix for name in DRAWN} == {
        ".svg",
        ".png",
    }  # the package's PNG files are opaque
    for name in (name for name in DRAWN if name.endswith(".svg")):
        first = (
            ElementTree.parse(gallery.PICTURES / name)
            .getroot()
            .find("{http://www.w3.org/2000/svg}rect")
        )
        assert first is not None, name
        assert first.get("fill") in ("#ffffff", "#fff", "white"), name


def test_a_command_may_go_on_in_the_next_line():
    (block,) = gallery.blocks("```sh\nregard train a \\\n    --out runs/a\nls\n```\n")
    assert block.text == "regard train a --out runs/a\nls\n"
    assert block.title == "runs/a"


def drawn_by(page: str, work: Path, drawing: str = "one") -> list[str]:
    (work / "pictures").mkdir(exist_ok=True)
    return gallery.draw(gallery.blocks(page), work / "work", work / "pictures", drawing)


def test_only_what_has_changed_runs_again(tmp_path):
    train = (
        "```sh\necho x > a.txt\n```\n\n```sh\nmkdir -p runs/a && cat a.txt >> runs/a/count\n```\n"
    )
    page = (
        f"{train}\n```sh\ncat runs/a/count > a.svg; echo y >> total\n```\n\n![A](gallery/a.svg)\n"
    )
    assert drawn_by(page, tmp_path) == ["a.svg"]
    assert drawn_by(page, tmp_path) == []
    assert drawn_by(page, tmp_path, "other modules") == ["a.svg"]
    assert (tmp_path / "pictures" / "a.svg").read_text() == "x\n"  # the model was kept
    changed = page.replace("echo x", "echo z")
    assert drawn_by(changed, tmp_path, "other modules") == ["a.svg"]
    assert (tmp_path / "pictures" / "a.svg").read_text() == "z\n"
    assert (tmp_path / "work" / "total").read_text() == "y\ny\ny\n"


def test_a_block_that_fails_or_draws_nothing_is_an_error(tmp_path):
    with pytest.raises(gallery.GalleryFailed, match="exit status 3"):
        drawn_by("```sh\nexit 3\n```\n", tmp_path)
    with pytest.raises(gallery.GalleryFailed, match=r"no b\.svg after"):
        drawn_by("```python\npass\n```\n\n![B](gallery/b.svg)\n", tmp_path)


def test_a_choice_of_pictures_brings_the_models_they_need():
    chosen = gallery.selected(BLOCKS, ["rnn-lines"])
    assert {name for block in chosen for name in block.names} == {"runs/luong"}
    names = {name for block in gallery.selected(BLOCKS, ["induction"]) for name in block.names}
    assert {"runs/repeat", "repeat.toml", "train.txt"} <= names
    assert "runs/luong" not in names
    assert [block.drawn for block in chosen if block.drawn] == [("rnn-lines.svg",)]


@pytest.mark.slow
def test_pictures_without_a_model_are_drawn_again(tmp_path):
    chosen = [block for block in BLOCKS if block.drawn and not block.names]
    names = gallery.draw(chosen, tmp_path / "work", tmp_path, "test")
    assert {"scaling.svg", "positions-distance.svg"} <= {*names}
    for name in names:
        assert (tmp_path / name).read_bytes().count(b"<text") == (
            gallery.PICTURES / name
        ).read_bytes().count(b"<text")
