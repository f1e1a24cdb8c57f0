"""The statistics of each sentence for BLEU, chrF and TER against sacreBLEU's, number by number."""

import itertools
import random
from functools import partial

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.lib_ter import translation_edit_rate as their_edits
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from regard.evaluation.metrics import METRICS
from regard.evaluation.translation_edit_rate import translation_edits
from regard.evaluation.translation_metrics import tokenize_13a

THEIRS = {
    "bleu": partial(BLEU, force=True),
    "bleu_lower": partial(BLEU, force=True, lowercase=True),
    "chrf": CHRF,
    "ter": TER,
}
# Every character that the 13a tokenizer treats on its own, white space of several kinds, letters of several scripts.
CHARACTERS = [chr(code) for code in range(32, 127)] + list("\t\n\r\u2028\u00a0\u3000äßÉİσςж猫，。٣") + [
    "&quot;", "&amp;", "&lt;", "&gt;", "&amp;lt;", "<skipped>", "-\n", "1,000.5", "3-4", "U.S.", "don't", " . "
]  # fmt: skip


def texts(count: int, seed: int, longest: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(CHARACTERS, k=chance.randint(0, longest))) for _ in range(count)]


def edited(words: list[str], chance: random.Random) -> list[str]:
    """With words left out, doubled and exchanged, and phrases moved."""
    words = [word for word in words for _ in range(chance.choice([0, 1, 1, 1, 1, 1, 1, 1, 2]))]
    words = [chance.choice(words) if chance.random() < 0.1 else word for word in words]
    for _ in range(chance.randint(0, 3)):
        start = chance.randint(0, len(words))
        phrase = words[start : start + chance.randint(1, 12)]
        words = words[:start] + words[start + len(phrase) :]
        place = chance.randint(0, len(words))
        words = words[:place] + phrase + words[place:]
    return words


def test_tokens_are_those_of_13a():
    tokenizer = Tokenizer13a()
    for text in texts(3000, 1, 30):
        assert tokenize_13a(text) == tokenizer(text.rstrip()).split(), text


@pytest.mark.parametrize("name", THEIRS)
def test_statistics_of_sentences_are_those_of_sacrebleu(name):
    theirs, chance = THEIRS[name](), random.Random(2)
    for output in texts(120, 3, 40):
        references = ["".join(edited(list(output), chance)) for _ in range(chance.randint(1, 3))]
        references += texts(chance.randint(0, 1), chance.getrandbits(32), 40)
        chance.shuffle(references)
        (row,) = METRICS[name].statistics().measure([output], [references])
        (their_row,) = theirs._extract_corpus_statistics([output], [[each] for each in references])
        assert list(row) == list(their_row), (output, references)


@pytest.mark.parametrize("name", THEIRS)
def test_statistics_of_short_and_empty_texts_are_those_of_sacrebleu(name):
    """Shorter than the longest n-grams, on one side or on both."""
    theirs = THEIRS[name]()
    for output, reference in itertools.product(["", " ", "a", "ab", "a b", "a b c d e f g"], repeat=2):
        (row,) = METRICS[name].statistics().measure([output], [[reference]])
        assert list(row) == list(theirs._extract_corpus_statistics([output], [[reference]])[0]), (output, reference)


# Words of the longest reference, distinct words, and how many sentences.
LENGTHS = {"short": (8, 4, 400), "a sentence": (30, 20, 100), "beyond the beam": (90, 300, 12), "few words": (45, 2, 6)}


@pytest.mark.parametrize("case", LENGTHS)
def test_edits_are_those_of_sacrebleu(case):
    longest, vocabulary, count = LENGTHS[case]
    chance = random.Random(4)
    for _ in range(count):
        reference = [f"w{chance.randrange(vocabulary)}" for _ in range(chance.randint(0, longest))]
        output = edited(reference, chance)
        assert translation_edits(output, reference) == their_edits(output, reference)[0], (output, reference)


def test_edits_of_unequal_lengths_are_those_of_sacrebleu():
    """A ratio of lengths beyond the beam widens it."""
    chance = random.Random(5)
    for lengths in ((1, 120), (2, 130), (120, 1), (0, 30), (30, 0), (3, 60)):
        output, reference = ([f"w{chance.randrange(4)}" for _ in range(length)] for length in lengths)
        assert translation_edits(output, reference) == their_edits(output, reference)[0]


# A match so many words after the diagonal, or before it; the third is outside of the beam, and takes many shifts.
EDGES = [(24, False), (25, True), pytest.param(25, False, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("offset", "before"), EDGES)
def test_edits_at_the_edges_of_the_beam_are_those_of_sacrebleu(offset, before):
    both = [f"b{i}" for i in range(60)]
    output, reference = ([f"{name}{i}" for i in range(offset)] for name in "ac")
    output, reference = (output + both, both + reference) if before else (both + output, reference + both)
    assert translation_edits(output, reference) == their_edits(output, reference)[0]


@pytest.mark.parametrize("distance", [49, 50, 51])
def test_words_are_shifted_as_far_as_sacrebleu_shifts_them(distance):
    words = [f"w{i}" for i in range(60)]
    output, reference = [*words[:distance], "x", *words[distance:]], ["x", *words]
    assert translation_edits(output, reference) == their_edits(output, reference)[0] == (1 if distance <= 50 else 2)


@pytest.mark.parametrize("seed", [10, 20, 33])  # of which 900 or 1,100 shifts would give other counts
def test_as_many_shifts_are_tried_as_by_sacrebleu(seed):
    chance = random.Random(seed)
    length, vocabulary = chance.randint(20, 30), chance.choice([3, 4, 5])
    reference = [f"w{chance.randrange(vocabulary)}" for _ in range(length)]
    output = list(reference)
    chance.shuffle(output)
    assert translation_edits(output, reference) == their_edits(output, reference)[0]
