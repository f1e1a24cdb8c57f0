"""An unknown word is seen: in the text of an output, token by token, and in a page."""

import pytest

from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.generation.text_stream import text_pieces

TEXT = ["the cat sat on a mat"] * 3


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer("words", TEXT, 100)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the zebra sat", "the <unk> sat"),
        ("zebra sat", "<unk> sat"),
        ("the zebra zebra", "the <unk> <unk>"),
        ("zebra", "<unk>"),
        ("the cat", "the cat"),
    ],
)
def test_the_text_shows_it(text, shown, words):
    ids = words.encode(text)
    assert words.decode(ids) == shown
    assert b"".join(words.spellings(ids)).decode().strip() == shown
    assert "".join(text_pieces(words, iter(ids))).strip() == shown


def test_in_running_text_too():
    words = train_tokenizer("words", TEXT, 100).for_running_text()
    end = words.special_tokens.end
    ids = [*words.encode("the zebra"), end, *words.encode("cat")]
    assert words.decode(ids) == "the <unk>\ncat"


def test_other_special_tokens_stay_out_of_the_text(words):
    special = words.special_tokens
    ids = [special.start, *words.encode("the zebra"), special.end, special.pad]
    assert words.decode(ids) == "the <unk>"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes"])
def test_other_tokenizers_have_no_unknown_words(kind):
    trained = train_tokenizer(kind, TEXT, 300)
    assert trained.decode(trained.encode("a zebra")) == "a zebra"
