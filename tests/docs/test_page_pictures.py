"""The pictures of the pages: each belongs to a group that draws it, and only what has changed is drawn again."""

import json
import re
from pathlib import Path

import pytest

import page_pictures as pictures

DOCS = pictures.ROOT / "docs"
ELSEWHERE = {"packages.svg"}  # docs/tools/package_map.py draws it


def test_every_picture_is_drawn_by_a_command():
    drawn = [name for group in pictures.GROUPS.values() for name in group.pictures]
    assert len({*drawn}) == len(drawn)
    kept = {path.name for path in DOCS.iterdir() if path.suffix in (".svg", ".webp", ".png")}
    assert kept == {*drawn} | ELSEWHERE
    pages = "".join(
        path.read_text("utf-8") for path in (*DOCS.rglob("*.md"), pictures.ROOT / "README.md")
    )
    assert [name for name in kept if name not in pages] == []


def test_sources_and_commands_exist_and_every_group_was_drawn():
    for group in pictures.GROUPS.values():
        assert [
            name
            for name in (*group.sources, group.command[0])
            if not (pictures.ROOT / name).exists()
        ] == []
    assert {*json.loads(pictures.RECORD.read_text("utf-8"))} == {*pictures.GROUPS}


def test_the_states_of_the_studio_are_those_of_its_script():
    script = (pictures.ROOT / "tests" / "support" / "studio_pictures.py").read_text("utf-8")
    states = script.partition("STATES = {")[2].partition("\n}")[0]
    assert re.findall(r'^    "([\w-]+)": State\(', states, re.M) == [*pictures.STATES]


@pytest.fixture
def drawn(tmp_path, monkeypatch) -> list[str]:
    """Groups of two pictures in a folder; what was drawn of them."""
    done: list[str] = []
    (tmp_path / "docs").mkdir()
    for name in ("a.py", "b.py", "docs/a.svg", "docs/b.svg"):
        (tmp_path / name).write_text(name)
    groups = {
        "quick": pictures.Group(("a.svg",), ("a.py",), ("a.py",)),
        "translation": pictures.Group(("b.svg",), ("b.py",), ("b.py",), "Multi30k"),
    }
    monkeypatch.setattr(pictures, "GROUPS", groups)
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(
        pictures.Group, "digest", lambda self: (tmp_path / self.sources[0]).read_text()
    )
    monkeypatch.setattr(pictures, "draw", lambda group: done.append(group.pictures[0]))
    return done


def test_only_what_has_changed_is_drawn_and_what_cannot_be_drawn_is_named(
    tmp_path, drawn, capsys, monkeypatch
):
    monkeypatch.delenv("REGARD_DATA", raising=False)
    pictures.main([])
    assert drawn == ["a.svg"]
    assert (
        "b.svg: drawn from an older b.py; kept, as drawing it needs Multi30k in"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("REGARD_DATA", "data")
    pictures.main([])
    pictures.main([])
    assert drawn == ["a.svg", "b.svg"]
    assert capsys.readouterr().err == ""
    (tmp_path / "a.py").write_text("other")
    pictures.main([])
    assert drawn == ["a.svg", "b.svg", "a.svg"]
    (tmp_path / "docs" / "a.svg").unlink()
    pictures.main([])
    assert drawn[3:] == ["a.svg"]


def test_what_is_missing_here_is_said(monkeypatch):
    monkeypatch.setattr(pictures.shutil, "which", lambda name: None)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    assert pictures.obstacle(pictures.GROUPS["studio"]) == "needs Playwright and chromium"
    assert "REGARD_DATA" in pictures.obstacle(pictures.GROUPS["translation"])
    assert pictures.obstacle(pictures.GROUPS["scaling"]) == ""
    monkeypatch.setenv("REGARD_DATA", "data")
    assert pictures.obstacle(pictures.GROUPS["translation"]) == ""


def test_a_digest_is_of_the_files_of_folders_too(tmp_path):
    group = pictures.Group((), ("folder",), ())
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    file = tmp_path / "folder" / "inner" / "x.js"
    file.write_text("1")
    first = group.digest(tmp_path)
    file.write_text("2")
    assert group.digest(tmp_path) != first
    (Path(file).parent / "__pycache__").mkdir()
    (file.parent / "__pycache__" / "y").write_text("3")
    file.write_text("1")
    assert group.digest(tmp_path) == first
