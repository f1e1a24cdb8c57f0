"""CoNLL column files: what is read of each format, what is refused with its line, and writing them again."""

import gzip
import logging

import pytest
import zstandard

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.conll import formatted, is_conllu, line_of, numbered_sentences, sentences
from regard.data.token_lists import cell_of, tokens_of


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(tmp_path, content, columns=("1", "2"), name="a.conll", **options):
    return list(sentences(written(tmp_path / name, content), columns, **options))


CONLLU = """\
# sent_id = 1
# text = Vámonos al mar.

# sent_id = 2
# newpar\tx
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\tSpaceAfter=No
2.1\tvacío\tvacío\tNOUN\t_\t_\t_\t_\t_\t_
3\tNew York\t_\tPROPN\t_\t_\t1\tobl\t_\t_

# sent_id = 3
1\t#\t#\tSYM\t_\t_\t0\troot\t_\t_
"""
CASES = {
    "tabs": ("a\tX\nb\tY\n\nc\tZ\n", [(("a", "b"), ("X", "Y")), (("c",), ("Z",))]),
    "spaces": ("a   X\nb Y \n\nc Z", [(("a", "b"), ("X", "Y")), (("c",), ("Z",))]),
    "windows": ("a\tX\r\n\r\nb\tY\r\n", [(("a",), ("X",)), (("b",), ("Y",))]),
    "byte order mark": ("\ufeffa\tX\n", [(("a",), ("X",))]),
    "several blank lines": ("\n\na\tX\n \n\t\n\nb\tY\n\n\n", [(("a",), ("X",)), (("b",), ("Y",))]),
    "spaces within tabs": ("New York\tX\n", [(("New York",), ("X",))]),
    "other white space": ("a\u00a0b X\n\u2028 Y\n", [(("a\u00a0b", "\u2028"), ("X", "Y"))]),
    "documents": (
        "-DOCSTART- -X-\n\na X\n\n-DOCSTART- -X-\nb Y\n-DOCSTART- Z\n",
        [(("a",), ("X",)), (("b", "-DOCSTART-"), ("Y", "Z"))],
    ),
    "comments": ("# x y z\n#\na X\n\n#c\n# d\nb Y\n", [(("a",), ("X",)), (("b",), ("Y",))]),
    "comments with tabs around": ("# x y\n#z\na\tX\n", [(("a",), ("X",))]),
    "a hash as a word": (
        "#tag\tX\n#\tY\n\n#\tZ\n# 1\tV\n",
        [(("#tag", "#"), ("X", "Y")), (("#", "# 1"), ("Z", "V"))],
    ),
    "a hash as a word after spaces": (
        "#tag X\na Y\n# Z\n#c V\n",
        [(("#tag", "a", "#", "#c"), ("X", "Y", "Z", "V"))],
    ),
    "widths that change": ("a X 1\nb Y 2\n\nc Z\n", [(("a", "b"), ("X", "Y")), (("c",), ("Z",))]),
    "nothing but hashes": ("#\tX\n#b\tY\n", [(("#", "#b"), ("X", "Y"))]),
}


@pytest.mark.parametrize("case", CASES)
def test_sentences(tmp_path, case):
    content, wanted = CASES[case]
    assert read(tmp_path, content) == wanted


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("a.conllu", ("2", "4")),
        ("a.conllu.gz", ("FORM", "UPOS")),
        ("a.txt", ("FORM", "UPOS")),
        ("a.txt", ("2", "UPOS")),
        ("a.txt", ("2", "4")),
    ],
)
def test_conllu(tmp_path, name, columns):
    content = gzip.compress(CONLLU.encode()) if name.endswith("gz") else CONLLU
    assert read(tmp_path, content, columns, name) == [
        (("Vamos", "nos", "New York"), ("VERB", "PRON", "PROPN")),
        (("#",), ("SYM",)),
    ]


def test_what_is_not_known_stays_an_underscore(tmp_path):
    (first, _) = read(tmp_path, CONLLU, ("LEMMA", "FEATS"), "a.conllu")
    assert first == (("ir", "nosotros", "_"), ("Mood=Imp", "_", "_"))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_packed_files(tmp_path, pack):
    name = "a.gz" if pack is gzip.compress else "a.zst"
    assert read(tmp_path, pack(b"a\tX\n\nb\tY\n"), name=name) == [
        (("a",), ("X",)),
        (("b",), ("Y",)),
    ]


def test_columns_may_be_any_and_repeated(tmp_path):
    assert read(tmp_path, "a X 1\n", ("3", "1", "1")) == [(("1",), ("a",), ("a",))]


def test_lines_of_sentences(tmp_path):
    path = written(tmp_path / "a", "# c d e\n\na X\nb Y\n\n\n# c d e\nc Z\n")
    assert [line for line, _ in numbered_sentences(path, ["1"])] == [3, 8]
    assert line_of(path, 2, ["1"], "strict") == 8
    assert line_of(path, 3, ["1"], "strict") is None


def test_a_comment_that_may_be_a_row_is_reported_once(tmp_path, caplog):
    content = "# id x\na _ X\n\n# id y\nb _ Y\n\n# id z\nc _ Z\n"
    with caplog.at_level(logging.WARNING):
        assert [words for (words,) in read(tmp_path, content, ("1",))] == [("a",), ("b",), ("c",)]
    assert len(caplog.messages) == 1
    assert "line 1: '# id x' is read as a comment" in caplog.messages[0]
    rows = read(tmp_path, content, ("1",), comments=False)
    assert rows == [(("#", "a"),), (("#", "b"),), (("#", "c"),)]
    tabs = "#a\tX\n#b\tY\nc\tZ\n"
    assert read(tmp_path, tabs, comments=True) == [(("c",), ("Z",))]


REFUSED = {
    "few cells": ("a X\n\nb\n", ("1", "2"), r"a\.conll, line 3: wanted a row with 2 cells.*got 1 between spaces"),
    "few cells of tabs": ("a b\tX\n", ("1", "3"), r"line 1: wanted a row with 3 cells.*got 2 between tabs"),
    "a cell with a space": ("a X\nNew York X\n", ("1", "2"), r"line 2: wanted 2 cells, as in the row before; got 3"),
    "an empty cell": ("a\tX\n\tY\n", ("1", "2"), r"line 2: wanted a value in column 1; got an empty cell"),
    "an empty tag": ("a\t \tX\n", ("1", "2"), r"line 1: wanted a value in column 2"),
    "not UTF-8": (b"a X\n\xff Y\n", ("1", "2"), r"line 2: wanted UTF-8 text; got byte 0xff"),
    "no column": ("a X\n", (), r"wanted a column to read; got none"),
    "column zero": ("a X\n", ("0",), r"wanted columns by number from 1.*got '0'"),
    "an unknown name": ("a X\n", ("FROM",), r"got 'FROM'. Did you mean 'FORM'"),
    "empty": ("", ("1",), r"wanted at least one sentence; got none"),
    "blank": ("\n \n\n", ("1",), r"wanted at least one sentence"),
    "comments only": ("# a b\n# c\n\n", ("FORM",), r"wanted at least one sentence"),
    "no CoNLL-U": ("the\tDET\n", ("FORM",), r"line 1: wanted the number of a token.*got 'the'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_line(tmp_path, case):
    content, columns, message = REFUSED[case]
    with pytest.raises(InvalidData, match=message):
        read(tmp_path, content, columns)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidData, match="wanted a file to read"):
        list(sentences(tmp_path / "none.conll", ["1"]))


def test_bytes_that_are_not_utf8_may_be_replaced(tmp_path):
    assert read(tmp_path, b"\xff X\n", errors="replace") == [(("\ufffd",), ("X",))]


@pytest.mark.parametrize("line", [b"word\tTAG\n", b"# a comment before any sentence\n"])
def test_a_file_without_blank_lines_is_refused_before_it_fills_the_memory(tmp_path, line):
    path = written(tmp_path / "a.gz", gzip.compress(line * 500_000))
    with pytest.raises(InvalidData, match=r"line 1: wanted a sentence of at most .* bytes"):
        list(sentences(path, ["1", "2"]))


def test_it_streams(tmp_path):
    """The first sentence comes before what cannot be read at the end."""
    path = written(tmp_path / "a.gz", gzip.compress(b"word\tTAG\n\n" * 50_000 + b"\xff\tX\n"))
    found = sentences(path, ["1", "2"])
    assert next(found) == (("word",), ("TAG",))
    with pytest.raises(InvalidData, match="line 100001: wanted UTF-8 text"):
        list(found)


def test_the_format_of_a_name():
    assert is_conllu("a/en.conllu")
    assert is_conllu("en.conllu.zst")
    assert not is_conllu("en.conll")


def test_a_written_sentence_is_read_again(tmp_path):
    columns = (("#", "New York", "is"), ("SYM", "B-LOC", "O"))
    content = formatted(columns) + formatted([["x"], ["O"]])
    assert content.startswith("#\tSYM\nNew York\tB-LOC\nis\tO\n\n")
    assert read(tmp_path, content) == [columns, (("x",), ("O",))]


def test_conllu_is_written_with_all_columns(tmp_path):
    content = formatted([["a", "b"], ["DET", "NOUN"]], ["FORM", "UPOS"])
    assert content == "1\ta\t_\tDET" + "\t_" * 6 + "\n2\tb\t_\tNOUN" + "\t_" * 6 + "\n\n"
    assert read(tmp_path, content, ("UPOS", "FORM"), "a.conllu") == [(("DET", "NOUN"), ("a", "b"))]


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ([["a"], ["X", "Y"]], (), "got 1 and 2"),
        ([], (), "got no columns"),
        ([["a\tb"], ["X"]], (), r"cells without tabs.*got 'a\\tb'"),
        ([["a\nb"], ["X"]], (), "line breaks"),
        ([[""], ["X"]], (), "got ''"),
        ([["a"], ["X"]], ("FORM",), "for each of 2 columns"),
        ([["a"]], ("form",), "got form"),
    ],
)
def test_what_cannot_be_written_is_refused(columns, names, message):
    with pytest.raises(InvalidArgument, match=message):
        formatted(columns, names)


class Array:
    """As Arrow and NumPy have them."""

    def __init__(self, values):
        self.values = values

    def tolist(self):
        return self.values


@pytest.mark.parametrize(
    ("cell", "tokens"),
    [
        (["New York", "is"], ("New York", "is")),
        (("a", 3, 2.5), ("a", "3", "2.5")),
        (Array(["a", "b"]), ("a", "b")),
        ("  a  b\tc\n", ("a", "b", "c")),
        ('["New York", "is"]', ("New York", "is")),
        ("[1]", ("[1]",)),
        ("[ a ]", ("[", "a", "]")),
        ("[" * 100_000 + "]", ("[" * 100_000 + "]",)),
        ("[]", ()),
        ("", ()),
        ([], ()),
    ],
)
def test_cells_of_tables(cell, tokens):
    assert tokens_of(cell, "words") == tokens


@pytest.mark.parametrize(
    "cell", [None, 3, {"a": 1}, ["a", None], [["a"]], [True], ["a", ""], [" "], b"a"]
)
def test_cells_that_are_no_tokens_are_refused(cell):
    with pytest.raises(InvalidArgument, match="words: wanted"):
        tokens_of(cell, "words")


@pytest.mark.parametrize(
    "tokens", [(), ("a", "b"), ("New York", "is"), ("[]",), ('["a"]',), ("a\u00a0b",), ("[", "]")]
)
def test_tokens_are_read_from_the_cell_that_spells_them(tokens):
    assert tokens_of(cell_of(tokens), "words") == tokens
