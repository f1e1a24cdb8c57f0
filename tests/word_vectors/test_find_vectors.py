"""Finding the vectors of a vocabulary in files of other tools: their formats, and files that are damaged."""

import gzip
import tracemalloc

import numpy as np
import pytest
import torch

import regard
from regard.data.train_tokenizer import train_tokenizer
from regard.model.embedding import Embedding
from regard.word_vectors.embeddings import TokenVectors, token_spellings
from regard.word_vectors.files import find_vectors, layout_of
from regard.word_vectors.vectors import WordVectors

WORDS = ["the", "straße", "New_York", "7", "naïve\u00a0x"]
MATRIX = np.array(
    [[0.1, -2.5, 1e-8], [1, 2, 3], [0.25, 0, -0.0], [1e30, -1, 7], [4, 5, 6]], dtype=np.float32
)


def gensim_file(path, **options):
    gensim = pytest.importorskip("gensim.models")
    vectors = gensim.KeyedVectors(3)
    vectors.add_vectors(WORDS, MATRIX)
    vectors.save_word2vec_format(str(path), **options)


def tool_binary(path):
    """As word2vec's own tool writes it: a line break after each vector."""
    rows = [
        word.encode() + b" " + row.tobytes() + b"\n"
        for word, row in zip(WORDS, MATRIX, strict=True)
    ]
    path.write_bytes(b"5 3\n" + b"".join(rows))


def text_lines(end=""):
    return [
        f"{word} {' '.join(map(str, row))}{end}\n" for word, row in zip(WORDS, MATRIX, strict=True)
    ]


WRITERS = {
    "regard": lambda path: WordVectors(WORDS[:4], torch.from_numpy(MATRIX[:4])).save(path),
    "gensim text": gensim_file,
    "gensim binary": lambda path: gensim_file(path, binary=True),
    "word2vec binary": tool_binary,
    "GloVe": lambda path: path.write_text("".join(text_lines())),
    "fastText": lambda path: path.write_text("5 3\n" + "".join(text_lines(end=" "))),
    "Windows": lambda path: path.write_bytes(
        b"\xef\xbb\xbf5 3\r\n" + "".join(text_lines()).replace("\n", "\r\n").encode()
    ),
    "tabs": lambda path: path.write_text("".join(text_lines()).replace(" ", "\t")),
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_vectors(name, suffix, tmp_path):
    path = tmp_path / "vectors.bin"
    WRITERS[name](path)
    if suffix:
        (tmp_path / "vectors.bin.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "vectors.bin.gz"
    assert layout_of(path).dim == 3
    wanted = [word for word in WORDS if name != "regard" or word != WORDS[4]]
    found = find_vectors(path, {*wanted, "missing", "tHe"})
    assert set(found) == set(wanted)
    for word, row in zip(WORDS, MATRIX, strict=True):
        if word in found:
            assert found[word].view(np.int32).tolist() == row.view(np.int32).tolist()


def test_words_with_spaces_and_a_second_vector_of_a_word(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(". . . 1 2 3\n\na 1 1 1\nat name@domain.com 4 5 6\na 9 9 9\n")
    path.write_text("b 0 0 0\n" + path.read_text())
    found = find_vectors(path, {". . .", "a", "at name@domain.com", "."})
    expected = {". . .": [1, 2, 3], "a": [1, 1, 1], "at name@domain.com": [4, 5, 6]}
    assert {word: row.tolist() for word, row in found.items()} == expected


TEXT = "".join(text_lines())
DAMAGED = {
    "a column short": (b"the 1 2 3\ncat 1 2\ndog 1 2 3\n", 2, "a word and 3 numbers; got 'cat' and 2"),
    "a column more": (b"the 1 2 3\ncat 1 2 3 4\n", 2, "a word and 3 numbers; got 'cat' and 4"),
    "NaN": (b"dog 1 2 3\nthe 1 nan 3\n", 2, "finite numbers after 'the'; got nan"),
    "infinite": (b"dog 1 2 3\nthe 1 2 1e39\n", 2, "finite numbers after 'the'; got 1e39"),
    "no number": (b"2 3\ndog 1 2 3\nthe 1 2 x\n", 3, "numbers after 'the'"),
    "fewer words": (b"3 2\nthe 1 2\ndog 1 2\n", 4, "3 words, as the first line says; got the end after 2"),
    "more words": (b"1 2\nthe 1 2\ndog 1 2\n", 3, "the end after the 1 words of the first line"),
    "other columns than the first line": (b"1 2\nthe 1 2 3\n", 2, "a word and 2 numbers"),
    "a sentence": (b"the cat sat on the mat\n", 1, "a word and its numbers"),
    "empty": (b"", 1, "got an empty file"),
    "no dimension": (b"5 0\n", 1, "a dimension from 1"),
    "a long line": (b"the 1 2 3\n" + b"x" * (1 << 20), 2, "lines of less than"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_text_is_refused_with_its_line(name, tmp_path):
    content, line, message = DAMAGED[name]
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(regard.InvalidArgument, match=r"vectors\.txt") as refused:
        find_vectors(path, {"the"})
    assert message in str(refused.value)
    assert f"vectors.txt, line {line}:" in str(refused.value)


@pytest.mark.parametrize("cut", [-1, -5, -13, 30])
def test_a_truncated_binary_is_refused_with_the_word(cut, tmp_path):
    path = tmp_path / "vectors.bin"
    gensim_file(path, binary=True)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(
        regard.InvalidArgument, match=r"5 words of 3 numbers; got the end within word [25]"
    ):
        find_vectors(path, {"the"})


def test_other_damage_of_a_binary_is_refused(tmp_path):
    path = tmp_path / "vectors.bin"
    nan = np.array([1, np.nan], dtype=np.float32).tobytes()
    path.write_bytes(b"2 2\na " + bytes(8) + b"the " + nan)
    with pytest.raises(
        regard.InvalidArgument, match="finite numbers for 'the'; got others, in word 2"
    ):
        find_vectors(path, {"the"})
    path.write_bytes(b"1 2\na " + bytes(8) + b"the " + nan)
    with pytest.raises(regard.InvalidArgument, match="the end after the 1 words"):
        find_vectors(path, {"the"})
    packed = tmp_path / "vectors.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode() * 50)[:-20])
    with pytest.raises(regard.InvalidArgument, match="a whole packed file"):
        find_vectors(packed, {"the"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xba\x16\x4f\x2f\x0c\0\0\0", "a model of fastText. Give its .vec file"),
        (b"PK\x03\x04\x14\0", "a zip archive. Unpack it"),
        (b"\x80\x04\x95", "a pickled Python object. gensim writes text"),
        (gzip.compress(b"a 1\n", mtime=0), "a packed file. Give it a name that ends in .gz"),
    ],
)
def test_another_format_is_named(content, message, tmp_path):
    path = tmp_path / "vectors"
    path.write_bytes(content)
    with pytest.raises(regard.InvalidArgument, match=message):
        layout_of(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    (tmp_path / "glove.txt").write_text(TEXT)
    with pytest.raises(regard.InvalidArgument, match=r"Did you mean 'glove.txt'\?"):
        find_vectors(tmp_path / "glove.text", {"the"})
    with pytest.raises(regard.InvalidArgument, match="a file to read"):
        find_vectors(tmp_path, {"the"})


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_large_file_takes_no_memory(is_binary, tmp_path):
    path = tmp_path / "large"
    rows = 20_000
    dim = 200
    values = np.arange(dim, dtype=np.float32)
    row = values.tobytes() if is_binary else b" ".join(b"%d" % value for value in range(dim))
    end = b"" if is_binary else b"\n"
    with path.open("wb") as file:
        file.write(b"%d %d\n" % (rows, dim))
        for number in range(rows):
            file.write(b"w%d " % number + row + end)
    assert path.stat().st_size > 13_000_000
    tracemalloc.start()
    found = find_vectors(path, {"w0", "w19999"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [found[word].tolist() for word in ("w0", "w19999")] == [values.tolist()] * 2
    assert peak < 6_000_000


def test_a_token_has_the_vector_of_its_name_its_text_or_its_lower_case(tmp_path):
    tokenizer = train_tokenizer("words", ["the The THE cat unseen"] * 3, 300)
    path = tmp_path / "vectors.txt"
    path.write_text("the 1 0\nThe 2 0\ncat 3 0\n</s> 4 0\n<S> 5 0\n")
    found = TokenVectors.read(path, tokenizer).vectors
    tokens = tokenizer.tokens()
    by_name = {tokens[token]: row.tolist()[0] for token, row in found.items()}
    assert by_name == {"the": 1, "The": 2, "THE": 1, "cat": 3, "</s>": 4}


def test_a_sub_word_has_the_vector_of_what_it_spells():
    tokenizer = train_tokenizer("bpe", ["the cat sat on the mat"] * 20, 300)
    spellings = dict(zip(tokenizer.tokens(), token_spellings(tokenizer), strict=True))
    assert spellings["Ġthe"] == ["Ġthe", "the", "ġthe"]
    assert spellings["A"] == ["A", "a"]
    # A byte of a character that is none by itself.
    assert spellings["Ã"] == ["Ã", "ã"]
    letters = train_tokenizer("characters", ["ab"], 300)
    assert token_spellings(letters)[letters.tokens().index("<0x41>")] == ["<0x41>"]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dim", [4, 16, 64])
def test_a_filled_embedding_returns_the_vectors_of_the_file_exactly(scaled, dim, tmp_path):
    torch.manual_seed(0)
    vectors = torch.randn(40, dim) * 3.0
    words = [f"w{number}" for number in range(40)]
    WordVectors(words, vectors).save(tmp_path / "vectors.txt")
    tokenizer = train_tokenizer("words", [" ".join([*words, *(f"x{i}" for i in range(200))])], 300)
    embedding = Embedding(tokenizer.size, dim, scaled=scaled)
    found = TokenVectors.read(tmp_path / "vectors.txt", tokenizer)
    found.fill(embedding)
    assert torch.equal(embedding(torch.tensor([tokenizer.encode(" ".join(words))]))[0], vectors)
    rows = found.rows(tokenizer.size)
    assert int(rows.sum()) == 40
    others = embedding(torch.arange(tokenizer.size)[~rows]).detach()
    assert float(others.std()) == pytest.approx(float(vectors.std()), rel=0.15)
    assert not torch.equal(others[0], others[1])


def test_a_scale_that_is_no_power_of_two_costs_one_rounding(tmp_path):
    vectors = torch.randn(40, 300)
    words = [f"w{number}" for number in range(40)]
    WordVectors(words, vectors).save(tmp_path / "vectors.txt")
    tokenizer = train_tokenizer("words", [" ".join(words)], 300)
    embedding = Embedding(tokenizer.size, 300)
    TokenVectors.read(tmp_path / "vectors.txt", tokenizer).fill(embedding)
    read = embedding(torch.tensor(tokenizer.encode(" ".join(words))))
    torch.testing.assert_close(read, vectors, rtol=3e-7, atol=0)
