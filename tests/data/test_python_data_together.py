"""Equal Python data given by several processes at once: all succeed, with one copy."""

import os
import subprocess
import sys
from pathlib import Path

from regard.data.from_python import with_python_data
from support.servers import PATIENCE

TABLE = {"source": {"tokenizer": "words"}, "target": {"tokenizer": "words"}}
ROWS = [("ein hund", "a dog"), ("eine katze", "a cat")]
PROCESSES = 8
TOGETHER = f"""
import multiprocessing, sys
from pathlib import Path
from regard.core.config import read
from regard.data import corpus
from regard.data.config import DataConfig
from regard.data.from_python import with_python_data

TABLE = {TABLE!r}

def prepared(number, begin, results):
    begin.wait()
    try:
        for turn in range(6):
            rows = [(f"wort {{turn}} {{k}}", f"word {{k}}") for k in range(3000)]
            table = with_python_data(TABLE, {{"train": rows}}, Path(sys.argv[1]))
            data = corpus.prepare(read(DataConfig, table, "data"), sys.argv[1])
            assert len(data.train) == 3000
        results.put((number, None))
    except BaseException as error:
        results.put((number, f"{{type(error).__name__}}: {{error}}"))

context = multiprocessing.get_context("fork")
begin, results = context.Barrier({PROCESSES}), context.Queue()
workers = [
    context.Process(target=prepared, args=(number, begin, results)) for number in range({PROCESSES})
]
for worker in workers:
    worker.start()
for _ in workers:
    print(*results.get())
for worker in workers:
    worker.join()
"""


def test_eight_processes_prepare_equal_data_at_once(tmp_path):
    command = [sys.executable, "-c", TOGETHER, str(tmp_path)]
    limited = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=5 * PATIENCE, env=limited, check=False
    )
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == [f"{number} None" for number in range(PROCESSES)]
    assert len(list(tmp_path.glob("given-*.jsonl"))) == 6
    assert len(list(tmp_path.glob("corpus-*"))) == 6
    assert not list(tmp_path.glob(".given*"))


def given(folder: Path) -> Path:
    return Path(with_python_data(TABLE, {"train": ROWS}, folder)["train"])


def test_a_file_that_is_there_is_not_written_again(tmp_path):
    path = given(tmp_path)
    before = path.stat()
    assert given(tmp_path) == path
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_is_replaced(tmp_path):
    path = given(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"hund", b"hand"))
    assert given(tmp_path).read_bytes() == content
    path.write_bytes(content[:10])
    assert given(tmp_path).read_bytes() == content
