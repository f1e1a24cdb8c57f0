"""The data sets that recipes name: their files are checked by content, and fetched whole or not at all."""

import gzip
import hashlib
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.public_datasets import DATASETS, fetch, missing_files, public_dataset
from regard.recipe.shipped import find_recipe
from support.command_line import command

CONTENT = b"one line\nand another\n"
SMALL = replace(
    DATASETS["multi30k"], files={"multi30k/train.en.gz": hashlib.sha256(CONTENT).hexdigest()}
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    """Serves the folder `remote`."""
    (tmp_path / "remote").mkdir()
    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "remote"))
    Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}/{{name}}"
    running.shutdown()
    running.server_close()


def test_files_are_fetched_and_checked(tmp_path, server):
    (tmp_path / "remote" / "train.en.gz").write_bytes(gzip.compress(CONTENT))
    dataset, here = replace(SMALL, url=server), tmp_path / "here"
    assert missing_files(dataset, here) == ["multi30k/train.en.gz"]
    assert list(fetch(dataset, here)) == [here / "multi30k" / "train.en.gz"]
    assert missing_files(dataset, here) == []
    assert list(fetch(dataset, here)) == []  # nothing is fetched twice
    (here / "multi30k" / "train.en").write_bytes(CONTENT)
    (here / "multi30k" / "train.en.gz").unlink()
    assert missing_files(dataset, here) == []  # without compression as well
    (here / "multi30k" / "train.en").write_bytes(CONTENT[:-1])
    with pytest.raises(InvalidData, match=r"train\.en: wanted content with the SHA-256"):
        missing_files(dataset, here)


@pytest.mark.parametrize(
    "content", [gzip.compress(b"other"), b"no gzip", None], ids=["other", "no gzip", "none"]
)
def test_nothing_is_written_unless_it_is_right(tmp_path, server, content):
    if content is not None:
        (tmp_path / "remote" / "train.en.gz").write_bytes(content)
    with pytest.raises(InvalidData, match=r"by hand|Fetch it again"):
        list(fetch(replace(SMALL, url=server), tmp_path / "here"))
    assert not list((tmp_path / "here").rglob("*.gz*"))


def test_a_data_set_without_an_address_says_where_to_put_its_files(tmp_path):
    with pytest.raises(
        InvalidData, match=r"Put it at .*train\.en\.gz by hand; it is described at https"
    ):
        list(fetch(replace(SMALL, url=None), tmp_path))
    with pytest.raises(InvalidArgument, match=r"name: wanted one of multi30k.*Did you mean 'sst2'"):
        public_dataset("sst-2")


def test_every_recipe_is_a_shipped_one():
    for dataset in DATASETS.values():
        assert all(find_recipe(recipe).is_file() for recipe in dataset.recipes)


def test_the_command_line_says_what_is_missing(tmp_path):
    listed = command("data").stdout
    assert all(name in listed for name in DATASETS)
    told = command("data", "multi30k", "--folder", str(tmp_path))
    assert told.returncode == 0
    assert f"missing: {tmp_path}/multi30k/train.en.gz" in told.stdout
