"""SentencePiece models as tokenizers: the same encodings as SentencePiece's own, and hostile files refused."""

import contextlib
import gettext
import gzip
import io
import math
import os
import random
import struct
import unicodedata
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from regard.core.errors import InvalidData
from regard.data.special_tokens import SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.interop.sentencepiece import _fields, read_sentencepiece, to_tokenizer

spm = pytest.importorskip("sentencepiece")

SCRIPTS = [
    "the cat sat on the mat, and the other cat ran away from it", "Der Hund läuft über die Straße; ein Mädchen lacht",
    "Ωραία ημέρα σήμερα, φίλε μου", "Съешь ещё этих мягких французских булок", "日本語の文章です。東京タワー",
    "한국어 문장입니다 안녕하세요", "مرحبا بالعالم كيف حالك", "שלום עולם",
    "हिन्दी में एक वाक्य", "ภาษาไทย", "中文句子，你好世界",
    "ﬁne ① ² Å é e\u0301 ﷺ ½ ǅ İ", "tab\there  two   spaces ", "\u3000wide\u00a0nbsp\u200bzero-width",
    "😀👩‍👩‍👧‍👦 emoji 👍🏽", "......!!!!----====", "hahahahaha aaaaaaaaa ________", "a ▁b ▁▁ c",
]  # fmt: skip
KINDS = ("unigram", "bpe")
CATALOGS = Path("/usr/share/locale")
OPTIONS = {
    "plain": {},
    "byte fallback": {"byte_fallback": True},
    "case folding": {"normalization_rule_name": "nfkc_cf", "add_dummy_prefix": False},
    "no rules": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "symbols": {
        "user_defined_symbols": ["<sep>", "foo", "▁▁", "at"], "control_symbols": ["<ctl>"], "byte_fallback": True,
        "remove_extra_whitespaces": False,
    },
    "rare characters unknown": {"character_coverage": 0.98},
    "pieces across words": {"split_by_whitespace": False},
}  # fmt: skip


@cache
def generated():
    """Lines of words of several scripts, and unusual ones."""
    chance, words = random.Random(1), " ".join(SCRIPTS).split(" ")
    lines = [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(400)]
    return [
        *lines,
        *SCRIPTS,
        "",
        " ",
        "  x",
        "x  ",
        "<sep>a foo",
        "a<sep>b  c   d",
        "foofoo<sep>",
        "Ж<sep>ж",
        "\n",
        "a\nb",
    ]


@cache
def trained(kind, options, vocab_size=600, lines=None):
    file = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(generated()[:300] if lines is None else lines), model_writer=file, model_type=kind,
        vocab_size=vocab_size, hard_vocab_limit=False, minloglevel=2, pad_id=3, num_threads=1, **OPTIONS[options],
    )  # fmt: skip
    return file.getvalue()


def read(tmp_path, content):
    (tmp_path / "some.model").write_bytes(content)
    return read_sentencepiece(tmp_path / "some.model")


def wrong_lines(content, tmp_path, lines, *, ties=False):
    """Lines that are encoded otherwise; without `ties` whose tokens have the same sum of scores as SentencePiece's."""
    theirs, ours = (
        spm.SentencePieceProcessor(model_proto=content),
        to_tokenizer(read(tmp_path, content)),
    )
    wanted = theirs.encode(lines)
    got = [each.ids for each in ours.encode_batch(lines, add_special_tokens=False)]

    def total(ids):
        return math.fsum(map(theirs.get_score, ids))

    def tied(one, two):
        return theirs.decode(one) == theirs.decode(two) and math.isclose(
            total(one), total(two), rel_tol=1e-7
        )

    pairs = [
        (line, one, two) for line, one, two in zip(lines, wanted, got, strict=True) if one != two
    ]
    return [line for line, one, two in pairs if ties or not tied(one, two)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_encodings_are_those_of_sentencepiece(tmp_path, kind, options):
    assert wrong_lines(trained(kind, options), tmp_path, generated(), ties=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", ["plain", "byte fallback"])
@pytest.mark.parametrize("kind", KINDS)
def test_encodings_of_10_000_real_lines(tmp_path, kind, options):
    root = os.environ.get("REGARD_DATA")
    if root is None:
        pytest.skip("REGARD_DATA is not set: the folder with multi30k, sst2 and tinyshakespeare")
    lines = generated()
    for name in (
        "multi30k/train.de.gz",
        "multi30k/train.en.gz",
        "sst2/train.tsv.gz",
        "tinyshakespeare/input.txt.gz",
    ):
        with gzip.open(Path(root) / name, "rt", encoding="utf-8") as file:
            lines = [*lines, *file.read().split("\n")[:2500]]
    assert len(lines) > 10_000
    assert (
        wrong_lines(trained(kind, options, 4000, tuple(lines[::2])), tmp_path, lines, ties=True)
        == []
    )


@cache
def catalog_lines():
    """Lines of the translations of the programs that are installed here, in as many languages as there are."""
    lines = set[str]()
    for path in sorted(CATALOGS.glob("*/LC_MESSAGES/*.mo")):
        with contextlib.suppress(OSError, ValueError, IndexError), path.open("rb") as file:
            lines.update(
                line
                for text in gettext.GNUTranslations(file)._catalog.values()
                for line in text.split("\n")
            )
    chosen = sorted(filter(str.strip, lines))
    random.Random(1).shuffle(chosen)
    return tuple(chosen[:10_000])


@pytest.mark.slow
@pytest.mark.parametrize("options", ["plain", "byte fallback", "case folding"])
@pytest.mark.parametrize("kind", KINDS)
def test_encodings_of_10_000_real_lines_in_many_scripts(tmp_path, kind, options):
    lines = catalog_lines()
    scripts = {
        unicodedata.name(letter, "").split(" ")[0]
        for letter in set("".join(lines))
        if letter.isalpha()
    }
    if len(lines) < 10_000 or len(scripts) < 20:
        pytest.skip(
            f"{len(lines)} lines in {len(scripts)} scripts under {CATALOGS}: 10,000 in 20 are needed"
        )
    content = trained(kind, options, 8000, lines[::2])
    decomposed = [unicodedata.normalize("NFD", line) for line in lines]
    for each in (lines, decomposed):
        assert wrong_lines(content, tmp_path, [*each]) == []
        assert len(wrong_lines(content, tmp_path, [*each], ties=True)) <= 5


def test_only_ties_of_repeated_letters_are_decided_otherwise(tmp_path):
    """By float32 sums: "xx" + "x" or "x" + "xx"."""
    chance = random.Random(1)
    lines = [
        " ".join(
            chance.choice("aouwhxe") * chance.randint(1, 40) for _ in range(chance.randint(1, 30))
        )
        for _ in range(1000)
    ]
    known = (*generated()[:200], *" ".join(lines[:30]).split(" "))
    unigram, bpe = (trained(kind, "plain", 600, known) for kind in KINDS)
    assert wrong_lines(unigram, tmp_path, lines) == []
    assert 0 < len(wrong_lines(unigram, tmp_path, lines, ties=True)) < 200
    assert wrong_lines(bpe, tmp_path, lines, ties=True) == []


def test_a_piece_that_no_merges_lead_to_is_no_token(tmp_path):
    """A word that is a piece, of which the pair in the middle is merged first."""
    pieces = {"ა": -50.0, "ბ": -50.0, "გ": -50.0, "დ": -50.0}
    pieces |= {"ბგ": -0.1, "▁ა": -0.3, "▁აბ": -0.4, "გდ": -0.2, "▁აბგდ": -0.5}
    content = trained("bpe", "plain")
    for text, score in pieces.items():
        own = (
            b"\x0a"
            + bytes([len(text.encode())])
            + text.encode()
            + b"\x15"
            + struct.pack("<f", score)
        )
        content += b"\x0a" + bytes([len(own)]) + own
    theirs = spm.SentencePieceProcessor(model_proto=content)
    assert theirs.encode("აბგდ", out_type=str) == ["▁ა", "ბგ", "დ"]
    assert wrong_lines(content, tmp_path, ["აბგდ", "აბ გდ აბგდ", "the აბგ cat"], ties=True) == []


@pytest.mark.parametrize("options", ["plain", "case folding"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_marks_in_any_order(tmp_path, kind, options):
    """Of a rule for a letter and some marks, the rest of the marks stays; Hangul letters become syllables."""
    chance, letters = random.Random(3), "abcdeEAOUyoñçÅéαωΩЙиאבשابتীकখகカハかはᄀ가각ﬁ①ǅİıſ▁ "
    ranges = [
        (0x300, 0x370),
        (0x610, 0x61B),
        (0x64B, 0x660),
        (0x5B0, 0x5C0),
        (0x1161, 0x1176),
        (0x11A8, 0x11C3),
    ]
    marks = [chr(code) for first, end in ranges for code in range(first, end)] + [
        *"\u093c\u09be\u0bbe\u3099\u309a"
    ]
    clusters = [
        chance.choice(letters) + "".join(chance.choices(marks, k=chance.choice((0, 0, 1, 1, 2, 3))))
        for _ in range(9000)
    ]
    lines = ["".join(clusters[i : i + 6]) for i in range(0, len(clusters), 6)]
    assert wrong_lines(trained(kind, options, 600, tuple(lines[:300])), tmp_path, lines) == []


@pytest.mark.parametrize("options", ["plain", "case folding"])
@pytest.mark.parametrize("kind", KINDS)
def test_decomposed_characters_are_composed(tmp_path, kind, options):
    """As many keyboards write them: U+09C7 U+09BE is U+09CB. Greek letters have up to three marks."""
    lines = ("যোগ করুন, আপলোড হয়েছে", "மொத்தம்", "ഒക്ടോബർ", "ಪ್ರವೇಶ ಹೊಸ", "सही यू.आऱ.एल", "日本語の文章です。がパ",
             "Μαΐου, ὦ ἄνδρες Ἀθηναῖοι, ᾧ ᾖ", "École ÜBER Ångström Ấm Йод İstanbul")  # fmt: skip
    decomposed = [unicodedata.normalize("NFD", line) for line in lines]
    assert all(one != two for one, two in zip(lines, decomposed, strict=True))
    assert wrong_lines(trained(kind, options, 180, lines), tmp_path, [*lines, *decomposed]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_words_and_spellings(tmp_path, kind):
    content = trained(kind, "byte fallback")
    theirs = spm.SentencePieceProcessor(model_proto=content)
    ours = Tokenizer(
        to_tokenizer(read(tmp_path, content)), SpecialTokens(3, 1, 2, 0, None, (1, 3), (), (2,), ())
    )
    assert Tokenizer.from_json(ours.to_json(), ours.settings).hash == ours.hash
    for line in generated():
        ids = ours.encode(line)
        assert ours.decode(ids) == theirs.decode(ids)
        assert b"".join(ours.spellings(ids)).decode().removeprefix(" ") == theirs.decode(ids)
        assert ours.decode([1, *ids, 2, 3]) == ours.decode(ids)
    ids = ours.encode("the cat 𝄞")
    words = [
        ours.decode([i for i, word in zip(ids, ours.words(ids), strict=True) if word == n])
        for n in range(3)
    ]
    assert [word.strip() for word in words] == ["the", "cat", "𝄞"]
    assert {ours.word_indices(ids)[n] for n in range(len(ids))} - {None} == {0, 1, 2}
    assert ours.pieces(ours.encode("the"))[0].startswith("▁")
    assert ours.encode("a</s>")[-1] == 2  # the name of a control symbol is that symbol


def test_hostile_files_are_refused(tmp_path):
    content = trained("unigram", "plain")
    assert read(tmp_path, content).names[:4] == ["<unk>", "<s>", "</s>", "<pad>"]
    piece = b"\x0a\x03\x0a\x01x"
    hostile = {
        "an empty file": b"",
        "a text": b"hello, this is not a model",
        "half of it": content[: len(content) // 2],
        "a length beyond the end": b"\x0a\xff\xff\xff\xff\x0f",
        "a number without an end": b"\x0a" + b"\xff" * 20,
        "a group": b"\x0b",
        "pieces that are numbers": b"\x08\x05",
        "a piece of invalid UTF-8": b"\x0a\x03\x0a\x01\xff",
        "a piece whose text is a number": b"\x0a\x02\x08\x05",
        "a score of NaN": b"\x0a\x08\x0a\x01x\x15\x00\x00\xc0\x7f",
        "a score that is a number": b"\x0a\x05\x0a\x01x\x10\x05",
        "a piece of unknown type": b"\x0a\x05\x0a\x01x\x18\x09",
        "the same piece twice": piece * 2 + content,
        "no unknown piece": piece,
        "two unknown pieces": b"\x0a\x05\x0a\x01x\x18\x02" + content,
        "an unused piece": b"\x0a\x05\x0a\x01\x07\x18\x05" + content,
        "a byte piece too few": b"\x0a\x0a\x0a\x06<0x41>\x18\x06" + content,
        "another type of model": content + b"\x12\x02\x18\x03",
        "white space as a suffix": content + b"\x12\x03\xc0\x01\x01",
        "rules that are a number": content + b"\x1a\x02\x10\x05",
        "rules that are damaged": content + b"\x1a\x0a\x12\x08\xff\xff\xff\xff\xff\xff\xff\xff",
    }
    for name, data in hostile.items():
        with pytest.raises(InvalidData, match=r"some\.model.*: wanted a SentencePiece model"):
            read(tmp_path, data), name
    with pytest.raises(InvalidData, match="No such file"):
        read_sentencepiece(tmp_path / "missing.model")
    with pytest.raises(InvalidData, match="treat_whitespace_as_suffix"):
        read(tmp_path, hostile["white space as a suffix"])
    chance = random.Random(2)
    for _ in range(
        40
    ):  # damaged bytes are refused, or read as another model; nothing else is raised
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged) // 2)] = chance.randrange(256)
        try:
            read(tmp_path, bytes(damaged))
        except InvalidData:
            continue


def test_fields_of_every_kind():
    """A varint of two bytes, eight bytes, a text and four bytes; then what ends too early or is of no such kind."""
    message = (
        b"\x08\xac\x02"
        + b"\x11"
        + bytes(range(8))
        + b"\x1a\x02ab"
        + b"\x25"
        + bytes(4)
        + b"\x28\x00"
    )
    assert [*_fields(message, count())] == [
        (1, 300),
        (2, bytes(range(8))),
        (3, b"ab"),
        (4, bytes(4)),
        (5, 0),
    ]
    for wrong, got in {
        b"\x11" + bytes(7): "a field of 8 bytes where 7 are left",
        b"\x25" + bytes(3): "a field of 4 bytes where 3 are left",
        b"\x1a\x03ab": "a field of 3 bytes where 2 are left",
        b"\x0b": "a field of wire type 3 at byte 1",
    }.items():
        with pytest.raises(ValueError, match=got):
            [*_fields(wrong, count())]
    with pytest.raises(ValueError, match="more than"):
        [*_fields(message, iter(range(4)))]
