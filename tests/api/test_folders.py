"""Whatever is written: folders are made with those above them, and one that is there is used."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.api.caption import caption
from regard.core.atomic_io import atomic_folder, private_folder
from regard.core.config import read
from regard.data.config import DataConfig
from regard.data.corpus import prepare
from regard.data.from_python import with_python_data
from regard.interop import importing
from regard.interop.interfaces import ExportOptions, FolderTarget
from regard.recipe import trusted_paths
from regard.training import checkpointing
from support.captioners import captioner
from support.predictors import translator


class Small(FolderTarget):
    """A format of one file."""

    name = title = "small"

    def obstacles(self, model):
        return []

    def write(self, model, folder, options):
        (folder / "file").write_text("content")


def exported(folder: Path) -> None:
    Small().save(translator(), folder / "model", ExportOptions())
    for inside in (folder / "model").iterdir():  # so that it can be written again
        inside.unlink()


def captioned(folder: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    picture = Path(f"{folder.parents[1]}.png")
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(picture)
    assert len(list(caption(captioner("transformer"), [picture], draw=folder))) == 1
    assert (folder / "index.html").exists()


def prepared(folder: Path) -> None:
    files = {split: Path(f"{folder.parents[1]}.{split}.tsv") for split in ("train", "valid")}
    for path in files.values():
        path.write_text("a\tb\nx\ty\n")
    config = {split: str(path) for split, path in files.items()} | {
        "source": {"tokenizer": "characters", "column": "1"},
        "target": {"tokenizer": "characters", "column": "2"},
    }
    prepare(read(DataConfig, config, "data"), folder)


def from_python(folder: Path) -> None:
    found = with_python_data({}, {"train": ["a", "b"]}, folder)
    assert Path(found["train"]).parent == folder


def locked(folder: Path) -> None:
    with checkpointing._locked(folder):
        assert (folder / checkpointing.LOCK).exists()


def made_whole(folder: Path) -> None:
    with atomic_folder(folder / "whole", replace=True) as temporary:
        (temporary / "file").write_text("content")
    assert (folder / "whole" / "file").exists()


WRITERS = {
    "captions": captioned,
    "an export": exported,
    "a corpus": prepared,
    "data from Python": from_python,
    "a run": locked,
    "compiled code": private_folder,
    "a whole folder": made_whole,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_folders_above_are_made_and_one_that_is_there_is_used(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    write(folder)
    assert folder.is_dir()
    write(folder)


def test_paths_of_data_are_recorded_in_a_cache_that_is_not_there_yet(tmp_path, monkeypatch, caplog):
    (tmp_path / "train.txt").write_text("a\n")
    monkeypatch.setattr(trusted_paths, "cache_folder", lambda: tmp_path / "not" / "there")
    for _ in range(2):
        trusted_paths.record_paths(DataConfig(train=str(tmp_path / "train.txt")))
    assert len(list((tmp_path / "not" / "there" / "trained-paths").iterdir())) == 1
    assert not caplog.text


def test_a_model_is_imported_into_a_folder_below_others(tmp_path, monkeypatch):
    class Imported:
        def __init__(self, source, *, pairs) -> None:
            pass

        def write(self, folder, dtype, version):
            folder.mkdir()

    monkeypatch.setattr(importing, "ImportedModel", Imported)
    (tmp_path / "theirs").mkdir()
    for name in ("a", "b"):
        assert regard.import_model(tmp_path / "theirs", tmp_path / "not" / "there" / name).is_dir()
