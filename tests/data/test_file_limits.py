"""Files that are read whole have a largest size: one of that size is read, and one byte more is refused unread."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.api import convert
from regard.checkpoint import store
from regard.checkpoint.signature import read_key
from regard.core.errors import CheckpointRefused, InvalidArgument, InvalidData, RegardError
from regard.data import image_store, text
from regard.interop import sentencepiece, tensors, tokenizer_files


def sparse(path: Path, size: int) -> Path:
    """A file that is nothing that is read here, and of so many bytes, which take no room on the disk."""
    with path.open("wb") as file:
        file.write(b"\x07")
        file.truncate(size)
    return path


def nothing_of_it(path: Path) -> None:
    """Images are read elsewhere: this is the check of their size."""
    image_store.check_size(path, path.stat().st_size)


def manifest(path: Path) -> None:
    folder = path.with_suffix(".folder")
    folder.mkdir(exist_ok=True)
    os.replace(path, folder / store.MANIFEST)
    store._listed(folder)


READERS = {
    "the configuration of another toolkit": (
        convert._read,
        1_000_000,
        "wanted at most 1,000,000 bytes; got 1,000,001",
    ),
    "the manifest of a checkpoint": (
        manifest,
        16 << 20,
        "wanted at most 16,777,216 bytes; got 16,777,217",
    ),
    "JSON of a model": (tensors.read_json, 64 << 20, "got more than 67,108,864 bytes"),
    "tokenizer.json": (tokenizer_files._tokenizer_json, 256 << 20, "got more than 256 MiB"),
    "a SentencePiece model": (sentencepiece.read_sentencepiece, 256 << 20, "got more than 256 MiB"),
    "an image": (nothing_of_it, 256 << 20, "a file of at most 268,435,456 bytes; got 268,435,457"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_the_largest_size_is_read_and_a_larger_one_refused(tmp_path, name):
    read, largest, message = READERS[name]
    with pytest.raises((InvalidData, CheckpointRefused), match=message):
        read(sparse(tmp_path / "file", largest + 1))
    if name == "tokenizer.json":
        return  # reading it whole takes a second
    said = refusal(read, sparse(tmp_path / "file", largest))
    assert "at most" not in said
    assert "more than" not in said


def test_zeros_are_no_sentencepiece_model(tmp_path):
    """Found at the first byte: a field has a number from 1."""
    path = sparse(tmp_path / "file", 1 << 20)
    path.write_bytes(bytes(1 << 20))
    assert "got a field of number 0 at byte 0" in refusal(sentencepiece.read_sentencepiece, path)


@pytest.mark.slow
def test_a_sentencepiece_model_has_a_largest_number_of_fields(tmp_path):
    """Fields that nobody knows are read one by one, which takes minutes for a file of nothing else."""
    path = tmp_path / "file"
    path.write_bytes(b"\x20\x00" * (1 << 24))
    said = refusal(sentencepiece.read_sentencepiece, path)
    assert "got more than 10,000,000 fields" in said


def refusal(read: Callable[[Path], object], path: Path) -> str:
    try:
        read(path)
    except RegardError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("size", [31, 32, 4096, 4097])
def test_keys_have_32_to_4096_bytes(tmp_path, size):
    path = tmp_path / "key"
    path.write_bytes(b"k" * size)
    path.chmod(0o600)
    if size in (32, 4096):
        assert read_key(path) == b"k" * size
    else:
        with pytest.raises(InvalidArgument, match="a file with a key of 32 to 4096 bytes"):
            read_key(path)


@pytest.mark.parametrize("mode", [0o601, 0o602, 0o604, 0o610, 0o620, 0o640])
def test_keys_that_others_could_use_are_refused(tmp_path, mode):
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(mode)
    with pytest.raises(InvalidArgument, match="a key that others cannot read"):
        read_key(path)
    path.chmod(0o700)
    assert read_key(path) == b"k" * 32


def test_a_document_has_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LARGEST_DOCUMENT", 1000)
    path = tmp_path / "text.txt"
    path.write_bytes(b"a" * 1000)
    assert len(text.whole(path)) == 1000
    path.write_bytes(b"a" * 1001)
    with pytest.raises(InvalidData, match="wanted at most 1,000 bytes; got more"):
        text.whole(path)
