"""Reading text files and tables; errors name the file, the line and the byte."""

import gzip
import sys
import tracemalloc

import pytest
import zstandard

from regard.core.errors import InvalidData, MissingExtra
from regard.data import text
from regard.data.text import lines, parallel, rows


def written(path, content: bytes):
    path.write_bytes(content)
    return path


LINES = {
    "ends": (b"a\nb\r\nc\rd\n\ne", ["a", "b", "c", "d", "", "e"]),
    "empty": (b"", []),
    "one empty line": (b"\n", [""]),
    "no break at the end": (b"a\nb", ["a", "b"]),
    "a carriage return at the end": (b"a\r", ["a"]),
    "byte order mark": (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    "nothing but a mark": (b"\xef\xbb\xbf", []),
    "NUL": (b"a\0b\n\0\n", ["a\0b", "\0"]),
    "other breaks": (
        "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n".encode(),
        ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"],
    ),
    "composed and decomposed": ("\u00e9\ne\u0301\n".encode(), ["\u00e9", "e\u0301"]),
    "joined emoji": ("👩‍👩‍👧\n".encode(), ["👩‍👩‍👧"]),
    "right to left": ("\u202eabc\u202c שלום\n".encode(), ["\u202eabc\u202c שלום"]),
    "a megabyte": (b"x" * 2**20 + b"\ny", ["x" * 2**20, "y"]),
}
PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda raw: zstandard.ZstdCompressor().compress(raw),
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("name", LINES)
def test_lines(tmp_path, name, suffix):
    content, wanted = LINES[name]
    assert list(lines(written(tmp_path / f"a.txt{suffix}", PACK[suffix](content)))) == wanted


@pytest.mark.parametrize("size", range(1, 8))
def test_a_line_break_may_fall_between_two_reads(tmp_path, monkeypatch, size):
    monkeypatch.setattr(text, "CHUNK", size)
    assert list(lines(written(tmp_path / "a", b"a\r\nbc\r\rd\n\r\ne"))) == [
        "a",
        "bc",
        "",
        "d",
        "",
        "e",
    ]


def test_concatenated_compressed_files_are_read(tmp_path):
    for suffix, pack in PACK.items():
        assert list(lines(written(tmp_path / f"a{suffix}", pack(b"a\nb") + pack(b"c\n")))) == [
            "a",
            "bc",
        ]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-5], lambda raw: raw[: len(raw) // 2], lambda raw: b"no" + raw]
)
def test_damaged_compressed_files_are_refused(tmp_path, suffix, damage):
    path = written(
        tmp_path / f"a{suffix}", damage(PACK[suffix](bytes(range(65, 91)) * 5000 + b"\n"))
    )
    with pytest.raises(InvalidData, match="wanted a whole packed file"):
        list(lines(path))


def test_invalid_utf8_is_refused_with_its_position(tmp_path):
    path = written(tmp_path / "a.txt", b"\xef\xbb\xbfgood\r\nb\xffd\n")
    with pytest.raises(
        InvalidData, match=r"a.txt, line 2: wanted UTF-8 text; got byte 0xff at offset 10 "
    ) as caught:
        list(lines(path))
    assert caught.value.line == 2
    assert path.read_bytes()[10] == 0xFF
    assert list(lines(path, "replace")) == ["good", "b\ufffdd"]
    first = written(tmp_path / "b.txt", b"\xef\xbb\xbfa\xff")
    with pytest.raises(InvalidData, match=r"line 1: .* at offset 4 "):
        list(lines(first))


def test_a_missing_file_names_the_nearest(tmp_path):
    written(tmp_path / "train.en.gz", b"")
    with pytest.raises(
        InvalidData, match=r"No such file or directory. Did you mean 'train.en.gz'?"
    ):
        list(lines(tmp_path / "train.en"))
    with pytest.raises(InvalidData, match="wanted a file to read; got Is a directory"):
        list(lines(tmp_path))


def test_zstandard_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[zstd\]'"):
        list(lines(written(tmp_path / "a.zst", b"1")))


def test_parallel_files(tmp_path):
    a, b = written(tmp_path / "a", b"1\n\n3\n"), written(tmp_path / "b", b"x\ny\nz")
    assert list(parallel([a, b])) == [("1", "x"), ("", "y"), ("3", "z")]
    longer = written(tmp_path / "c", b"x\n" * 1234)
    with pytest.raises(InvalidData, match=rf"got 3 in {a} and 1,234 in {longer}"):
        list(parallel([a, longer]))
    with pytest.raises(InvalidData, match=rf"got 1,234 in {longer} and 3 in {a}"):
        list(parallel([longer, a]))


TABLES = {
    "t.tsv": b'label\ttext\n1\tsaid "no\n0\t\n',
    "t.csv": b'label,text\n1,"said ""no"\n0,""\n',
    "t.jsonl": b'{"label": 1, "text": "said \\"no"}\n{"text": "", "more": [], "label": 0}\n',
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path, name, suffix):
    path = written(tmp_path / f"{name}{suffix}", PACK[suffix](TABLES[name]))
    assert list(rows(path, ["text", "label"])) == [('said "no', "1"), ("", "0")]
    assert list(rows(path, ["text"])) == [('said "no',), ("",)]


def test_cells_may_be_long_and_hold_line_breaks(tmp_path):
    long = "x" * 2**20
    path = written(tmp_path / "t.csv", f'a,b\n"{long}","1\r\n2\u20283"\n'.encode())
    assert list(rows(path, ["a", "b"])) == [(long, "1\n2\u20283")]


def test_numbers_are_returned_as_written(tmp_path):
    path = written(
        tmp_path / "t.jsonl", b'{"a": 1.50}\n{"a": 12345678901234567890123}\n{"a": 1e5}\n'
    )
    assert [a for (a,) in rows(path, ["a"])] == ["1.50", "12345678901234567890123", "1e5"]


REFUSED = {
    "missing column": (
        "t.tsv",
        b"a\tlabel\n",
        "line 1: wanted one column 'b'; got the columns 'a', 'label'. Choose one of these.",
    ),
    "semicolons": (
        "t.csv",
        b"a;b;c\n1;2;3\n",
        "got one cell, 'a;b;c', whose parts semicolons separate. Separate the cells by commas.",
    ),
    "tabs in a csv": (
        "t.csv",
        b"a\tb\n1\t2\n",
        "whose parts tabs separate. Separate the cells by commas.",
    ),
    "commas in a tsv": (
        "t.tsv",
        b"a,b\n1,2\n",
        "got one cell, 'a,b', whose parts commas separate. Separate the cells by tabs.",
    ),
    "column twice": ("t.csv", b"b,b\n", "wanted one column 'b'"),
    "short row": ("t.tsv", b"b\tc\n1\t2\n3\n", "line 3: wanted 2 cells, as in the header; got 1"),
    "long row": ("t.csv", b"b,c\n1,2,3\n", "line 2: wanted 2 cells, as in the header; got 3"),
    "open quote": (
        "t.csv",
        b'b,c\n1,"2\n',
        "line 2: wanted comma-separated cells; got unexpected end of data",
    ),
    "missing key": (
        "t.jsonl",
        b'{"b": ""}\n{"c": "", "d": 1}\n',
        "line 2: wanted a key 'b'; got the keys 'c', 'd'",
    ),
    "no JSON": (
        "t.jsonl",
        b'{"b": ""}\n{"b": }\n',
        "line 2: wanted a JSON object; got Expecting value",
    ),
    "no object": ("t.jsonl", b"[1]\n", r"line 1: wanted a JSON object; got \[1\]"),
    "empty line": ("t.jsonl", b'{"b": ""}\n\n', "line 2: wanted a JSON object"),
    "no text": (
        "t.jsonl",
        b'{"b": {"x": "y"}}\n',
        "line 1: wanted a text, a number or a list of these in 'b'; got {'x': 'y'}",
    ),
    "deep": ("t.jsonl", b"[" * 150_000 + b"\n", "line 1: wanted a JSON object; got"),
    "half a pair": (
        "t.jsonl",
        b'{"b": "\\ud83d"}\n',
        "line 1: wanted Unicode text in 'b'; got half of a surrogate",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_tables_are_refused(tmp_path, name):
    file, content, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        list(rows(written(tmp_path / file, content), ["b"]))


def test_unpaired_surrogates_can_be_replaced(tmp_path):
    path = written(tmp_path / "t.jsonl", b'{"b": "x\\ud83dy"}\n')
    assert list(rows(path, ["b"], "replace")) == [("x\ufffdy",)]


def test_a_column_by_its_number(tmp_path):
    (tmp_path / "t.tsv").write_bytes(b"label\tcontent\n0\tfine\n")
    assert list(rows(tmp_path / "t.tsv", ["2", "label"])) == [("fine", "0")]
    (tmp_path / "n.tsv").write_bytes(b"2\t1\n0\tfine\n")
    assert list(rows(tmp_path / "n.tsv", ["2"])) == [("0",)]  # a name comes before a number
    with pytest.raises(InvalidData, match="one column '3'"):
        list(rows(tmp_path / "t.tsv", ["3"]))


FIRST_LINES = {
    "names": ("german\tenglish", ("1", "2"), None),
    "words": ("Hund\tdog", ("1", "2"), None),  # may be names
    "a sentence": ("Ein Hund.\tdog", ("1", "2"), "'Ein Hund.'"),
    "several words": ("Hund\ta dog that runs", ("1", "2"), "'a dog that runs'"),
    "a long word": (f"Hund\t{'a' * 41}", ("1", "2"), f"'{'a' * 40}'"),
    "by name": ("What is it?\tdog", ("What is it?", "dog"), None),
    "elsewhere": ("Hund\tdog\tWhat is it?", ("1", "2"), None),
}


@pytest.mark.parametrize("name", FIRST_LINES)
def test_a_header_that_resembles_an_example_warns_once(name, tmp_path, caplog):
    first, columns, cell = FIRST_LINES[name]
    path = tmp_path / "t.tsv"
    path.write_text(f"{first}\n{first}\n")
    for _ in range(2):
        assert len(list(rows(path, columns))) == 1
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (cell is not None)
    assert cell is None or f"t.tsv: its first line, {cell}, resembles an example" in warnings[0]


@pytest.mark.parametrize("suffix", [".txt", ".gz", ".zst"])
def test_a_line_of_any_length_is_refused_before_it_fills_the_memory(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    content = b"short\n" + b"x" * 50_000_000
    pack = {".txt": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    path.write_bytes(pack(content))
    read = text.lines(path)
    assert next(read) == "short"
    tracemalloc.start()
    try:
        with pytest.raises(
            InvalidData,
            match=rf"a{suffix}, line 2: wanted a line of at most 4,194,304 bytes; got more",
        ):
            next(read)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000 // 2
    finally:
        tracemalloc.stop()


def test_a_document_of_any_size_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LARGEST_DOCUMENT", 1 << 20)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(InvalidData, match=r"a\.json\.gz: wanted at most 1,048,576 bytes; got more"):
        text.whole(tmp_path / "a.json.gz")


def test_a_file_of_another_name_is_suggested_only_where_it_is_near(tmp_path):
    (tmp_path / "readme.py").write_text("")
    for name, remedy in (
        ("missing.txt", "Check the path."),
        ("readmi.py", "Did you mean 'readme.py'?"),
    ):
        with pytest.raises(InvalidData) as refused:
            list(lines(tmp_path / name))
        assert refused.value.remedy == remedy


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("before", [b"", b"short\n", b"x" * 300_000 + b"\r\n"])
def test_a_line_of_the_largest_size_is_read_and_one_byte_more_is_refused(tmp_path, before, end):
    """Wherever it ends in what is read at once, and whatever follows."""
    path = tmp_path / "lines"
    number = 1 + bool(before)
    for size in (1 << 22, 1000):
        for after in (b"", b"after\n"):
            if after and not end:
                continue
            path.write_bytes(before + b"y" * size + end + after)
            if size == 1 << 22:
                (found,) = list(lines(path))[number - 1 : number]
                assert len(found) == size
                path.write_bytes(before + b"y" * (size + 1) + end + after)
                with pytest.raises(
                    InvalidData, match=f"line {number}: wanted a line of at most 4,194,304"
                ):
                    list(lines(path))
            elif not before:
                assert len(next(lines(path, longest=size))) == size
                with pytest.raises(InvalidData, match="line 1: wanted a line of at most 999 bytes"):
                    list(lines(path, longest=size - 1))
