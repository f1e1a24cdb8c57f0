"""The library of the CPU engine: compiled once into a private folder, checked before it is loaded, and not needed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.core.atomic_io import cache_folder, private_folder
from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.generation.batch_plan import BatchLimits, BatchPlan
from regard.generation.config import DecodeConfig
from regard.generation.engines.cpu import compile
from regard.generation.request import SearchTask
from support.search import LONGEST, decode, model, sources, token_ids

needs_compiler = pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")


@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler here"
)
def test_where_there_is_a_compiler_there_is_the_library():
    """Tests of the compiled engine are skipped where it is not: a fault that prevents it would be skipped with them."""
    assert compile.library() is not None


@needs_compiler
def test_the_library_decodes_while_weights_are_constant_too():
    """As in a server; what is known of a model is asked for again in each search."""
    task = SearchTask(model("transformer"), Tokens.of, DecodeConfig(), constant_weights=True)
    limits = BatchLimits(LONGEST)
    decoders = [BatchPlan(task, limits, 4).decoder for _ in range(2)]
    assert [decoder.compiled for decoder in decoders] == [True, True]


def test_a_private_folder_is_made_and_found_again(tmp_path):
    folder = tmp_path / "above" / "own"
    for _ in range(2):
        private_folder(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(folder)
    for wrong, got in (
        (tmp_path / "link", "got a link"),
        (Path("own"), "got a relative path"),
        (tmp_path / "file", "wanted a folder"),
    ):
        (tmp_path / "file").touch()
        with pytest.raises(InvalidArgument, match=got):
            private_folder(wrong)


@pytest.mark.parametrize(
    ("compiler", "why"),
    [("false", "ended with 1"), ("no-such-compiler", "No such file")],
    ids=["fails", "missing"],
)
def test_a_missing_compiler_is_logged_once(monkeypatch, tmp_path, caplog, compiler, why):
    monkeypatch.setenv("CXX", shutil.which(compiler) or compiler)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    compile.library.cache_clear()
    try:
        made, rows = model("transformer"), sources()[:3]
        outputs = [token_ids(decode(made, rows)) for _ in range(2)]
        assert caplog.text.count("the compiled CPU engine is unavailable") == 1
        assert why in caplog.text
        assert not list(tmp_path.rglob("*.so"))
        monkeypatch.undo()
        compile.library.cache_clear()
        assert token_ids(decode(made, rows)) == outputs[0] == outputs[1]
    finally:
        compile.library.cache_clear()


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    """A cache without a compiled library, and a compiler that optimizes nothing; the folder of compiled libraries."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        f'#!/bin/sh\nexec {shutil.which("g++") or shutil.which("clang++")} "$@" -O0\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    compile.library.cache_clear()
    yield tmp_path / "cache" / "native"
    monkeypatch.undo()
    compile.library.cache_clear()


LOADED = """
import sys
from regard.generation.engines.cpu import compile
library = compile.library()
sys.exit(3 if library is None else 0 if library.regard_panel_columns() in (16, 64) else 1)
"""


def loaded() -> tuple[int, str]:
    """The exit code of a process that loads the library, 3 where it does not, and its messages."""
    ended = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stderr


@needs_compiler
def test_a_truncated_or_planted_library_is_compiled_anew(fresh_cache):
    assert loaded()[0] == 0
    (path,) = fresh_cache.glob("*.so")
    content, inode = path.read_bytes(), path.stat().st_ino
    assert fresh_cache.stat().st_mode & 0o777 == 0o700
    assert loaded()[0] == 0
    assert path.stat().st_ino == inode  # compiled once
    with path.open("r+b") as file:  # under another name in the cache, this is a SIGBUS
        file.truncate(len(content) // 2)
    code, messages = loaded()
    assert (code, path.read_bytes()) == (0, content)
    assert "compiled anew" in messages
    flipped = bytearray(content)
    flipped[len(content) // 3] ^= 4
    path.write_bytes(flipped)
    code, messages = loaded()
    assert (code, path.read_bytes()) == (0, content)
    assert "compiled anew" in messages
    path.unlink()
    path.symlink_to("/dev/null")
    assert loaded()[0] == 0
    assert not path.is_symlink()


@needs_compiler
@pytest.mark.parametrize("change", ["mode", "parent", "link", "owner"])
def test_a_library_that_others_could_replace_is_not_loaded(
    fresh_cache, change, monkeypatch, caplog
):
    fresh_cache.mkdir(parents=True)
    if change == "mode":
        fresh_cache.chmod(0o777)
    elif change == "parent":
        fresh_cache.parent.chmod(0o775)
    elif change == "link":
        fresh_cache.rmdir()
        (fresh_cache.parent / "elsewhere").mkdir()
        fresh_cache.symlink_to(fresh_cache.parent / "elsewhere")
    else:
        monkeypatch.setattr(
            os, "geteuid", lambda: 4321
        )  # neither root nor the owner, if the tests run as another user
        if fresh_cache.stat().st_uid == 0:
            os.chown(fresh_cache, 1234, -1)
    assert compile.library() is None
    assert "others cannot write to" in caplog.text
    made, rows = model("transformer"), sources()[:3]
    assert token_ids(decode(made, rows))  # by PyTorch


@pytest.mark.parametrize("given", ["", "relative"])
def test_an_empty_or_relative_cache_home_is_not_used(monkeypatch, given):
    monkeypatch.delenv("REGARD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder() == Path.home() / ".cache" / "regard"
