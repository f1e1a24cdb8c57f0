"""Tokenizers: lossless, no special tokens in texts, reproducible training."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.special_tokens import END, MASK, PAD, SPECIALS, START, UNKNOWN
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.data.vocabulary import Labels

KINDS = ("bpe", "unigram", "characters", "words", "bytes")
LOSSLESS = ("bpe", "unigram", "characters", "bytes")
TEXTS = [
    "the cat sat on the mat, and the other cat sat down",
    "der Hund läuft über die Straße; ein Hund bellt",
    "</s> <mask> <s></s> <pad><unk> <0x41> ▁Ġ",
] * 20
HARD = [
    "", " ", "  a  b  ", "\n", "a\r\nb\rc\n\n", "\t\x00\x0b\x0c\x1c\x85\u2028", "é", "é", "👩‍👩‍👧‍👦 👍🏽",
    "\u202eabc\u202c\u2066x\u2069",
    "שלום עולם", "مرحبا", "日本語", "\ufeff", "\ufffd", "▁", "Ġ", "<0x41>", "</s>", "<pad><s></s><unk><mask>", "a</s>b",
    "\U0010ffff", "don't", "  's", "x" * 5000, "ﬁ ① Å", "\u00a0a\u3000b",
]  # fmt: skip


@cache
def trained(kind, lower=False):
    return train_tokenizer(kind, TEXTS, 300, lower)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", HARD, ids=ascii)
def test_unusual_texts_round_trip(kind, text):
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", LOSSLESS)
@settings(max_examples=150, deadline=None)
@given(text=st.text() | st.lists(st.sampled_from(HARD)).map("".join))
def test_any_text_round_trips(kind, text):
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {PAD, START, END, UNKNOWN, MASK} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(lines=st.lists(st.sampled_from(["", "the cat", "sat on", "ein Hund"])))
def test_running_text_round_trips_with_its_line_breaks(kind, lines):
    text, running = "\n".join(lines), trained(kind).for_running_text()
    ids = running.encode(text)
    assert ids.count(END) == text.count("\n")
    assert running.decode(ids) == text
    assert b"".join(running.spellings(ids)).count(b"\n") == text.count("\n")
    words = [index for index in running.word_indices(ids) if index is not None]
    assert len(set(words)) == len(running.spans(text))


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(), min_size=1), more=st.text())
@pytest.mark.parametrize("kind", LOSSLESS)
def test_any_text_can_be_trained_on(kind, texts, more):
    tokenizer = train_tokenizer(kind, texts, 270)
    assert tokenizer.size <= 270
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch([*texts, more])] == [
        *texts,
        more,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_first_and_never_in_a_text(kind):
    tokenizer = trained(kind)
    assert tuple(tokenizer.tokens()[:5]) == SPECIALS == ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
    assert len(tokenizer.tokens()) == len(set(tokenizer.tokens())) == tokenizer.size <= 300
    found = tokenizer.encode(" ".join(SPECIALS)) + tokenizer.encode("".join(SPECIALS))
    assert set(found) == {UNKNOWN} if kind == "words" else min(found) > MASK
    the = tokenizer.encode("the")
    assert tokenizer.decode([START, *the, END, PAD, MASK]) == "the"
    assert tokenizer.pieces([START, *the, END])[:: len(the) + 1] == ["<s>", "</s>"]


def test_words():
    tokenizer = train_tokenizer("words", ["a b  a\tc", "b a d"], 8)
    assert tokenizer.tokens()[5:] == ["a", "b", "c"]
    assert tokenizer.encode(" a  d c ") == [5, UNKNOWN, 7]
    assert tokenizer.decode([5, UNKNOWN, 7]) == "a <unk> c"
    assert tokenizer.pieces([5, UNKNOWN]) == ["a", "<unk>"]


def test_characters_and_bytes():
    tokenizer = train_tokenizer("characters", ["ab", "aé"], 5 + 256 + 2)
    assert tokenizer.tokens()[5 + 256 :] == ["a", "b"]
    assert tokenizer.encode("baé") == [262, 261, 5 + 0xC3, 5 + 0xA9]
    assert tokenizer.pieces(tokenizer.encode("b é\n")) == ["b", "▁", "⟨c3⟩", "⟨a9⟩", "↵"]
    assert train_tokenizer("bytes", []).encode("aé\0") == [5 + 0x61, 5 + 0xC3, 5 + 0xA9, 5]


def test_pieces_are_readable():
    tokenizer = trained("bpe")
    ids = tokenizer.encode("the cat läuft 👍")
    pieces = tokenizer.pieces(ids)
    assert pieces[:2] == ["the", "▁cat"]
    assert "l⟨c3⟩" in pieces  # half of an ä
    assert pieces[-4:] == ["⟨f0⟩", "⟨9f⟩", "⟨91⟩", "⟨8d⟩"]


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase(kind):
    tokenizer = trained(kind, lower=True)
    assert tokenizer.encode("The CAT") == tokenizer.encode("the cat")
    assert tokenizer.decode(tokenizer.encode("The CAT")) == "the cat"
    assert trained(kind).encode("THE") != trained(kind).encode("the") or kind == "words"


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind, tmp_path):
    tokenizer = trained(kind)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.hash == tokenizer.hash
    assert [loaded.encode(text) for text in HARD] == [tokenizer.encode(text) for text in HARD]
    others = {trained(other).hash for other in KINDS} | {trained(kind, lower=True).hash}
    assert len(others) == 6


def test_hugging_face_reads_the_file(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = trained("bpe")
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token="</s>"
    )
    assert theirs.encode("the cat über") == tokenizer.encode("the cat über")
    assert theirs.eos_token_id == END


def test_the_same_texts_give_the_same_tokenizer():
    """In other processes too, with other hash seeds and numbers of threads."""
    program = f"""
from regard.data.train_tokenizer import train_tokenizer
words = [f"{{a}}{{b}}" for a in "kitchen waters old blue under".split() for b in "s ing ed er ly ness".split()]
texts = {TEXTS!r} + [" ".join(words[i::7]) for i in range(7)] * 3
print([train_tokenizer(kind, texts, 400).hash for kind in {KINDS}])
"""
    found = set()
    for seed in "123":
        environment = os.environ | {
            "PYTHONHASHSEED": seed, "LC_ALL": "C", "PYTHONUTF8": "1", "RAYON_NUM_THREADS": seed,
        }  # fmt: skip
        run = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout)
    assert len(found) == 1


def test_other_values_than_texts_are_refused():
    with pytest.raises(InvalidArgument, match="wanted Unicode text; got half of a surrogate pair"):
        trained("bpe").encode("a\ud800")
    with pytest.raises(InvalidArgument, match="wanted Unicode text; got half of a surrogate pair"):
        train_tokenizer("bpe", ["\udfff"], 300)
    with pytest.raises(InvalidArgument, match="ids: wanted numbers from 0 to 260; got 261"):
        trained("bytes").decode([5, 261])
    with pytest.raises(InvalidArgument, match="got -1"):
        trained("bytes").pieces([-1])


def test_other_tokenizers_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    for content in ("", "{}", "\ud800".encode("utf-8", "surrogatepass")):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InvalidData, match=r"wanted a tokenizer\.json"):
            Tokenizer.load(path)
    trained("characters").save(path)
    path.write_text(path.read_text().replace("<mask>", "<hide>"))
    with pytest.raises(
        InvalidArgument, match=r"one that Regard trained; got .* <hide> as its first tokens instead"
    ):
        Tokenizer.load(path)


def test_labels(tmp_path):
    labels = Labels(["neg", "pos", "neg", "Ärger"])
    assert labels.names == ("neg", "pos", "Ärger")
    assert [labels.encode(name) for name in labels.names] == [0, 1, 2]
    assert [labels.decode(i) for i in range(labels.size)] == labels.tokens()
    labels.save(tmp_path / "labels.json")
    assert Labels.load(tmp_path / "labels.json").hash == labels.hash != Labels(["neg"]).hash
    with pytest.raises(
        InvalidArgument, match=r"one of the 3 labels of the training data; got 'poss'. .* 'pos'?"
    ):
        labels.encode("poss")
    with pytest.raises(InvalidArgument, match="from 0 to 2; got 3"):
        labels.decode(3)
    for names in ([], ["a", ""]):
        with pytest.raises(InvalidArgument, match="wanted names of labels"):
            Labels(names)
    (tmp_path / "labels.json").write_text(json.dumps([1]))
    with pytest.raises(InvalidData, match="wanted a file of labels"):
        Labels.load(tmp_path / "labels.json")


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_an_invalid_byte_does_not_affect_others(kind):
    words = train_tokenizer(kind, ["cat"])
    wrong = words.tokens().index("<0xFF>")
    assert words.decode([*words.encode("é cat"), wrong, *words.encode("ü")]) == "é cat\ufffdü"


@pytest.mark.parametrize("kind", ["bpe", "words"])
@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 299)))
def test_decoded_as_by_the_library(kind, ids):
    """Any tokens, bytes of partial characters and special tokens among them; the first time, and again."""
    tokenizer = trained(kind)
    ids = [i % tokenizer.size for i in ids]
    shown = [i for i in ids if i >= len(SPECIALS) or (kind == "words" and i == UNKNOWN)]
    expected = tokenizer._inner.decode(shown, skip_special_tokens=False)
    assert [tokenizer.decode(given) for given in (ids, tuple(ids), iter(ids))] == [expected] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_ids_beyond_the_vocabulary_are_refused_after_others_were_decoded(kind):
    tokenizer = trained(kind)
    ids = list(range(tokenizer.size))
    tokenizer.decode(ids)
    for wrong in (-1, tokenizer.size):
        with pytest.raises(InvalidArgument, match=f"got {wrong}"):
            tokenizer.decode([*ids, wrong])
