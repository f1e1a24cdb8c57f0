"""The statistics of each sentence for BLEU, chrF and TER against sacreBLEU's, number by number."""

import itertools
import random
import sys
from functools import partial

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from regard.core.errors import MissingExtra
from regard.evaluation.metrics import METRICS
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
    for output, reference in itertools.product(
        ["", " ", "a", "ab", "a b", "a b c d e f g"], repeat=2
    ):
        (row,) = METRICS[name].statistics().measure([output], [[reference]])
        assert list(row) == list(theirs._extract_corpus_statistics([output], [[reference]])[0]), (
            output,
            reference,
        )


def test_ter_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.ter", None)
    with pytest.raises(MissingExtra, match=r"the metric ter needs .* pip install 'regard\[ter\]'"):
        METRICS["ter"].statistics()
