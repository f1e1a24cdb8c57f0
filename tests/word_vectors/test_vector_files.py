"""Files of word vectors in word2vec's text format, and of similarity judgements and analogies."""

import gzip
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import regard
from regard.word_vectors.evaluate import read_analogies, read_pairs
from regard.word_vectors.vectors import WordVectors

ROYAL = WordVectors(
    ["king", "man", "woman"], torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
)

words = st.lists(
    st.text(min_size=1).filter(lambda word: not any(map(str.isspace, word))),
    min_size=1,
    max_size=4,
    unique=True,
)


@settings(max_examples=60, deadline=None)
@given(words, st.integers(1, 3), st.sampled_from([".txt", ".gz"]), st.data())
def test_saved_vectors_load_bit_for_bit(tmp_path_factory, words, dim, suffix, data):
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    size = len(words) * dim
    flat = torch.tensor(
        data.draw(st.lists(numbers, min_size=size, max_size=size)), dtype=torch.float32
    )
    path = tmp_path_factory.mktemp("words") / f"v{suffix}"
    WordVectors(words, flat.view(-1, dim)).save(path)
    again = WordVectors.load(path)
    assert again.words == tuple(words)
    assert torch.equal(again.vectors.view(torch.int32), flat.view(-1, dim).view(torch.int32))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "v.txt"
    ROYAL.save(path)
    before = path.read_bytes()
    for word in ("New York", "", "a\u00a0b", "\ud800"):
        with pytest.raises(regard.InvalidArgument, match="words of UTF-8 text without spaces"):
            WordVectors(["fine", word], torch.ones(2, 2)).save(path)
    assert path.read_bytes() == before
    with pytest.raises(regard.InvalidArgument, match="a folder that is there"):
        ROYAL.save(tmp_path / "none" / "v.txt")

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        WordVectors(["other"], torch.ones(1, 1)).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


MALFORMED = {
    "no header": (
        b"king 1 2\n",
        "line 1: wanted the number of words and their dimension; got 'king 1 2'",
    ),
    "nothing": (b"", "line 1: wanted the number of words"),
    "short line": (b"2 2\na 1 2\nb 1\n", "line 3: wanted a word and 2 numbers; got 'b' and 1"),
    "no number": (b"1 2\na 1 x\n", "line 2: wanted 2 numbers after 'a'"),
    "not a number": (
        b"2 2\na 1 2\nbad nan nan\n",
        "line 3: wanted 2 finite numbers after 'bad'; got nan",
    ),
    "infinite": (
        b"2 2\nbad 1 -inf\na 1 2\n",
        "line 2: wanted 2 finite numbers after 'bad'; got -inf",
    ),
    "too large": (b"1 2\nbad 1 1e39\n", "line 2: wanted 2 finite numbers after 'bad'; got 1e39"),
    "twice": (b"2 1\na 1\na 2\n", "line 3: wanted each word once; got 'a', which is on line 2 too"),
    "too few": (
        b"3 1\na 1\nb 2\n",
        "line 3: wanted 3 words, as the first line says; got 2, then the end",
    ),
    "far too few": (
        b"1000000000 300\n",
        "line 1: wanted 1000000000 words, as the first line says; got 0",
    ),
    "far too wide": (
        b"1 9000000000000\na 1\n",
        "line 2: wanted a word and 9000000000000 numbers; got 'a' and 1",
    ),
    "endless header": (
        b"1" * 5000 + b" 2\na 1 2\n",
        "line 1: wanted the number of words and their dimension; got '1111",
    ),
    "after empty lines": (b"2 1\n\na 1\n \nb x\n", "line 5: wanted 1 numbers after 'b'"),
    "too many": (b"1 1\na 1\nb 2\n", "line 3: wanted the end after the 1 words"),
    "not text": (b"1 1\n\xff 1\n", "line 2: wanted UTF-8 text; got byte 0xff"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused_by_line(tmp_path, name):
    content, message = MALFORMED[name]
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    with pytest.raises(regard.InvalidArgument, match=re.escape(f"{path}, {message}")):
        WordVectors.load(path)


def test_missing_and_truncated_files(tmp_path):
    for name, reason in (
        ("v.txt", "No such file"),
        (".", "Is a directory"),
        ("x" * 300, "File name too long"),
    ):
        with pytest.raises(regard.InvalidArgument, match=f"wanted a file to read; got {reason}"):
            WordVectors.load(tmp_path / name)
    ROYAL.save(tmp_path / "v.gz")
    for content in ((tmp_path / "v.gz").read_bytes()[:-12], b"plain"):
        (tmp_path / "cut.gz").write_bytes(content)
        with pytest.raises(regard.InvalidArgument, match="wanted a whole packed file"):
            WordVectors.load(tmp_path / "cut.gz")


def test_the_original_program_ends_lines_with_a_space(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"2 2\na 1 2 \nb 3.5 -4e-1 \n")
    assert WordVectors.load(tmp_path / "v.txt").vectors.tolist() == [
        [1.0, 2.0],
        [3.5, pytest.approx(-0.4)],
    ]


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"\xef\xbb\xbf1 2\na 1 2\n")
    assert WordVectors.load(tmp_path / "v.txt").vectors.tolist() == [[1.0, 2.0]]


def test_gensim_reads_ours_and_we_read_gensims(tmp_path):
    models = pytest.importorskip("gensim.models")
    ours = WordVectors(["straße", "猫", "a"], torch.randn(3, 7))
    ours.save(tmp_path / "ours.txt")
    theirs = models.KeyedVectors.load_word2vec_format(tmp_path / "ours.txt")
    assert theirs.index_to_key == list(ours.words)
    assert np.array_equal(theirs.vectors, ours.vectors.numpy())
    theirs.save_word2vec_format(str(tmp_path / "theirs.txt.gz"))
    again = WordVectors.load(tmp_path / "theirs.txt.gz")
    assert again.words == ours.words
    assert torch.equal(again.vectors, ours.vectors)


PAIRS, QUESTIONS = b"caf\xc3\xa9 tea 7\nking man 1\n", b": family\nman king woman queen\n"


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
def test_judgements_are_read_like_any_text_file(tmp_path, suffix, mark):
    pack = {"": bytes, ".gz": gzip.compress}.get(suffix) or pytest.importorskip(
        "zstandard"
    ).compress
    pairs, questions = tmp_path / f"pairs.txt{suffix}", tmp_path / f"questions.txt{suffix}"
    pairs.write_bytes(pack(mark + PAIRS))
    questions.write_bytes(pack(mark + QUESTIONS))
    assert read_pairs(pairs) == [("café", "tea", 7.0), ("king", "man", 1.0)]
    assert read_analogies(questions) == {"family": [("man", "king", "woman", "queen")]}


UNREADABLE = {
    "latin-1": (
        "p.txt",
        b"king man 1\ncaf\xe9 tea 7\n",
        "p.txt, line 2: wanted UTF-8 text; got byte 0xe9",
    ),
    "cut": ("p.gz", gzip.compress(PAIRS)[:-12], "p.gz: wanted a whole packed file; got"),
    "not packed": ("p.gz", PAIRS, "p.gz: wanted a whole packed file; got"),
    "not there": ("p.txt", None, "p.txt: wanted a file to read; got No such file"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_judgements_are_refused(tmp_path, name):
    file, content, message = UNREADABLE[name]
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(regard.InvalidArgument, match=re.escape(message)):
        read_pairs(tmp_path / file)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (3, 2)])
def test_vectors_that_are_no_matrix_of_the_words_are_refused(shape):
    words = ["a", "b"][: shape[0]]
    with pytest.raises(
        regard.InvalidArgument, match=rf"vectors: wanted a row for each of the {len(words)} words"
    ):
        WordVectors(words, torch.zeros(shape))
