"""Caption metrics against the COCO evaluation: pinned scores, and its own code where it is installed."""

import gzip
import os
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from regard.api.evaluate import Evaluation
from regard.evaluation import wordnet
from regard.evaluation.bootstrap import resample_counts
from regard.evaluation.caption_metrics import MAX_ORDER, lcs_length
from regard.evaluation.meteor import align, stem
from regard.evaluation.metrics import METRICS, new_statistics, score
from regard.evaluation.ptb_tokenizer import tokenize
from regard.evaluation.report import collect, report
from regard.evaluation.report_text import metric_heading
from regard.recipe.recipe import Recipe
from regard.tasks.generate import CAPTION_METRICS

# Captions and their tokens by the COCO evaluation's Java tokenizer (Stanford's 3.4.1), without dropped punctuation.
CUT = {
    "Don't you think it's John's dog?": "do n't you think it 's john 's dog",
    "They've said I'm here, she'd've gone, we'll see.": "they 've said i 'm here she 'd 've gone we 'll see",
    "The dogs' bowl isn't empty; cannot won't can't ain't": "the dogs bowl is n't empty can not wo n't ca n't ai n't",
    "A man (in red) sits [on a bench] {here}.": "a man -lrb- in red -rrb- sits -lsb- on a bench -rsb- -lcb- here -rcb-",
    "He said \"hello there\" and 'goodbye'.": "he said hello there and goodbye",
    "A black-and-white photo of a 3-year-old boy - smiling -- happily... yes…":
        "a black-and-white photo of a 3-year-old boy smiling happily yes",
    "It costs $5.50, or £3 or €20 or 50% off #1 & more @ home.": "it costs $ 5.50 or # 3 or $ 20 or 50 % off # 1 & more @ home",
    "The U.S. flag is near St. Paul's church, Mr. Smith vs. Dr. Jones": "the u.s. flag is near st. paul 's church mr. smith vs. dr. jones",
    "1,000 people ran 26.2 miles in 3:45 on 10/12/2012 at 5 p.m. and 6pm.":
        "1,000 people ran 26.2 miles in 3:45 on 10/12/2012 at 5 p.m. and 6pm",
    "12:30pm 2-3 people, 5-10% of them, 100km/h": "12:30 pm 2-3 people 5-10 % of them 100km/h",
    "and/or w/ a skateboard 1/2 way, 4-wheeler, his/her 24/7": "and/or w / a skateboard 1/2 way 4-wheeler his/her 24/7",
    "gonna wanna gotta gimme lemme 'tis 'twas more'n y'all": "gon na wan na got ta gim me lem me 't is 't was more 'n y' all",
    "o'clock ma'am rock'n'roll rock 'n' roll O'Neil's hat": "o'clock ma'am rock 'n' roll rock 'n' roll o'neil 's hat",
    "visit http://www.example.com/a?b=c or mail me@home.org #hashtag @user": "visit http://www.example.com/a?b=c or mail me@home.org #hashtag @user",
    "'90s kids in the 1990's": "'90s kids in the 1990 's",
    "A man,a plan.Then another!What?! No way!!! Wait??": "a man a plan.then another!what ?! no way !!! wait ??",
    "T-shirt no. 7 jersey, no. He sat. Sun. e.g. J. K. Rowling": "t-shirt no. 7 jersey no he sat sun e.g. j. k. rowling",
    "*star* ~tilde~ a+b=c under_score": "* star * ~ tilde ~ a + b = c under_score",
    "“curly” ‘single’ don’t it’s — dash – en": "curly single do n't it 's dash en",
    "Q&A but at&t and Tom &amp; Jerry": "q&a but at & t and tom & jerry",
    "café naïve Ærø 日本 😀": "café naïve ærø 日本",
    "I'M SHOUTING DON'T": "i 'm shouting do n't",
    "-dog a--b  c": "dog a b c",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("caption", CUT)
def test_tokens_are_those_of_the_coco_evaluation(caption):
    assert " ".join(tokenize(caption)) == CUT[caption]


STEMS = {
    "caresses": "caress", "ties": "tie", "cries": "cri", "gas": "gas", "kiwis": "kiwi", "agreed": "agre", "hopping": "hop",
    "hoping": "hope", "luxuriated": "luxuri", "by": "by", "say": "say", "cry": "cri", "generously": "generous",
    "communication": "communic", "skies": "sky", "dying": "die", "news": "news", "herring": "herring", "relational": "relat",
    "vietnamization": "vietnam", "hopefulness": "hope", "adoption": "adopt", "controll": "control", "skateboarding":
    "skateboard", "boys'": "boy", "dog's": "dog", "yellow": "yellow", "playing": "play", "children": "children",
}  # fmt: skip


@pytest.mark.parametrize("word", STEMS)
def test_stems_are_those_of_snowballs_english_stemmer(word):
    assert stem(word) == STEMS[word]


PICTURES = [
    (
        "a dog runs in the grass .",
        [
            "A brown dog is running through the green grass.",
            "a dog runs across the grass",
            "The dog isn't on grass",
        ],
    ),
    (
        "two people on a bench",
        ["Two women sit on a park bench.", "two people are sitting on a bench near the water"],
    ),
    (
        "a man riding a wave on top of a surfboard",
        [
            "A man (in black) rides a wave.",
            "surfer on a surfboard",
            "a man is riding a wave on a surfboard in the sea",
        ],
    ),
    ("a red bus a red bus", ["a red double-decker bus is on the street", "the bus", "red bus"]),
    ("a child in a blue coat", ["Child", "a small child wearing a blue winter coat outside"]),
    ("snow", ["a skier goes down the hill", "Skiing!"]),
]
OUTPUTS, REFERENCES = [output for output, _ in PICTURES], [found for _, found in PICTURES]
# By pycocoevalcap 1.2 over the tokens of its own Java tokenizer; METEOR by METEOR 1.5 with "exact stem".
PINNED = {
    "bleu1": 0.6409943894622357, "bleu2": 0.5183128964553788, "bleu3": 0.3395929462154212, "bleu4": 0.2066525737908673,
    "rouge_l": 0.6549626649445077, "cider": 1.3816473438261594, "meteor": 0.2805245380042559,
}  # fmt: skip


@pytest.mark.parametrize("name", PINNED)
def test_pinned_figures(name, no_wordnet):
    assert score(name, OUTPUTS, REFERENCES) == pytest.approx(PINNED[name], rel=1e-9)


@pytest.mark.parametrize("order", range(1, MAX_ORDER + 1))
def test_captions_shorter_than_an_ngram_have_a_score_above_zero(order):
    """Each order without an n-gram counts as a precision of 1e-15 over 1e-9, as in pycocoevalcap."""
    wanted = 1e-6 ** ((order - 1) / order)
    assert score(f"bleu{order}", ["snow"], [["snow"]]) == pytest.approx(wanted, rel=1e-6)


def theirs(outputs: list[str], references: list[list[str]]) -> dict[str, float]:
    reason = "pycocoevalcap is not installed: pip install --no-deps pycocoevalcap"
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu", reason=reason)
    rouge = pytest.importorskip("pycocoevalcap.rouge.rouge", reason=reason)
    cider = pytest.importorskip("pycocoevalcap.cider.cider", reason=reason)
    gold = {i: [" ".join(tokenize(each)) for each in found] for i, found in enumerate(references)}
    said = {i: [" ".join(tokenize(each))] for i, each in enumerate(outputs)}
    blues, _ = bleu.Bleu(MAX_ORDER).compute_score(gold, said, verbose=0)
    found = {f"bleu{n}": value for n, value in enumerate(blues, 1)}
    return found | {
        "rouge_l": rouge.Rouge().compute_score(gold, said)[0],
        "cider": cider.Cider().compute_score(gold, said)[0],
    }


WORDS = ["a", "the", "dog", "cat", "runs", "sits", "on", "red", "grass"]


def drawn(count: int, seed: int) -> tuple[list[str], list[list[str]]]:
    """Captions of few words, so that they share many; now and then an empty one."""
    chance = random.Random(seed)

    def caption() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(0, 12)))

    return [caption() for _ in range(count)], [
        [caption() for _ in range(chance.randint(1, 5))] for _ in range(count)
    ]


@pytest.mark.parametrize(
    "case", ["six pictures", "random", "one picture", "nothing in common", "empty"]
)
def test_figures_are_those_of_pycocoevalcap(case):
    outputs, references = {
        "six pictures": (OUTPUTS, REFERENCES),
        "random": drawn(50, 1),
        "one picture": (["a dog"], [["a dog runs", "the dog"]]),
        "nothing in common": (["a b c", "d"], [["x y z"], ["w", "v"]]),
        "empty": (["", ""], [["a dog"], ["", "a cat"]]),
    }[case]
    for name, value in theirs(outputs, references).items():
        assert score(name, outputs, references) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_figures_of_real_captions_are_those_of_pycocoevalcap():
    folder = os.environ.get("REGARD_DATA")
    if folder is None:
        pytest.skip("REGARD_DATA names no folder with flickr8k/captions.token.txt.gz")
    captions = defaultdict(list)
    with gzip.open(
        Path(folder) / "flickr8k" / "captions.token.txt.gz", "rt", encoding="utf-8"
    ) as lines:
        for line in lines:
            name, _, caption = line.rstrip("\n").partition("\t")
            captions[name.partition("#")[0]].append(caption)
    found = list(captions.values())[:200]
    outputs, references = [first for first, *_ in found], [others for _, *others in found]
    for name, value in theirs(outputs, references).items():
        assert score(name, outputs, references) == pytest.approx(value, rel=1e-9), name


def plain_common(one, other) -> int:
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
            )
    return table[-1][-1]


def test_common_subsequences_are_the_obvious_ones():
    chance = random.Random(0)
    for _ in range(300):
        one, other = (chance.choices("abcd", k=chance.randint(0, 15)) for _ in range(2))
        assert lcs_length(one, other) == plain_common(one, other), (one, other)


@pytest.mark.parametrize("name", CAPTION_METRICS)
def test_a_resample_scores_as_its_images_would(name):
    """CIDEr keeps the document frequencies of the whole set."""
    outputs, references = drawn(20, 2)
    statistics = new_statistics([name])[name]
    statistics.add(outputs[:7], references[:7])
    statistics.add(outputs[7:], references[7:])
    (counts,) = resample_counts(20, 3)
    for value, row in zip(statistics.values(counts), counts.astype(int), strict=True):
        rows = np.repeat(np.arange(20), row)
        again = new_statistics([name])[name]
        again.add([outputs[i] for i in rows], [references[i] for i in rows])
        if name == "cider":
            each = [statistics.values(np.ones((1, 1)), np.array([i]))[0] for i in range(20)]
            assert value == pytest.approx(np.mean([each[i] for i in rows]))
        else:
            assert value == pytest.approx(again.values(np.ones((1, 20)))[0])


def test_cider_uses_the_document_frequencies_of_everything_added():
    """A value computed before more examples are added is not cached."""
    statistics = new_statistics(["cider"])["cider"]
    statistics.add(["a dog"], [["a dog"]])
    assert (
        statistics.values(np.ones((1, 1)))[0] == 0.0
    )  # with one image every document frequency is 1 of 1
    statistics.add(["a cat"], [["a cat"]])
    assert statistics.values(np.ones((1, 2)))[0] > 1.0


def test_meteor_by_hand(no_wordnet):
    # "a dog runs" on "the dogs run": two content words by their stems, of lengths 0.25 + 2 × 0.75 each, in one piece
    precision = recall = 2 * 0.75 * 0.6 / 1.75
    mean = precision * recall / (0.85 * precision + 0.15 * recall)
    assert score("meteor", ["a dog runs"], [["the dogs run"]]) == pytest.approx(
        mean * (1 - 0.6 * (1 / 2) ** 0.2)
    )
    assert score("meteor", ["a dog runs"], [["nothing", "a dog runs"]]) == pytest.approx(1.0)
    assert score("meteor", ["a dog"], [["cats sleep"]]) == 0.0
    assert score("meteor", [""], [["a dog"]]) == 0.0


ALIGNED = {
    "as it stands": ("a b c", "a b c", (3, 1)),
    "turned round": ("b a", "a b", (2, 2)),
    "the piece that goes on": ("the cat the dog", "the dog sees the cat", (4, 2)),
    "one of two": ("dog", "dogs dog", (1, 1)),
    "two for one": ("dog dog", "dog", (1, 1)),
    "nothing": ("x", "y", (0, 0)),
}


@pytest.mark.parametrize("case", ALIGNED)
def test_alignments_match_most_words_in_fewest_chunks(case):
    output, reference, wanted = ALIGNED[case]
    found = align(output.split(), reference.split())
    assert (len(found.pairs), found.chunks) == wanted
    if case == "one of two":
        assert found.pairs == ((0, 1, 1.0),)  # the same word before one with its stem


@pytest.fixture
def tiny_wordnet(tmp_path, monkeypatch):
    """A WordNet of four lemmas: dog and canine share a synset, as do run and go."""
    files = {
        "index.noun": "  1 a license\ndog n 2 0 2 1 00000001 00000002\ncanine n 1 2 @ ~ 1 0 00000002\n",
        "index.verb": "run v 1 0 1 0 00000009\ngo v 1 0 1 0 00000009\n",
        "index.adj": "",
        "index.adv": "",
        "verb.exc": "ran run\nwent go\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    wordnet.wordnet.cache_clear()
    yield
    wordnet.wordnet.cache_clear()


@pytest.fixture
def no_wordnet(tmp_path, monkeypatch):
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path / "missing"))
    wordnet.wordnet.cache_clear()
    yield
    wordnet.wordnet.cache_clear()


def weights(output: str, reference: str) -> list[float]:
    return [weight for _, _, weight in align(output.split(), reference.split()).pairs]


def test_wordnet_adds_synonyms(tiny_wordnet):
    assert weights("canines ran", "dogs goes") == [0.8, 0.8]
    # "a canine ran" on "a dog went": every word matches in one chunk, of lengths 0.25 + 2 × 0.75
    assert score("meteor", ["a canine ran"], [["a dog went"]]) == pytest.approx(
        (0.25 + 2 * 0.75 * 0.8) / 1.75
    )


def test_an_inflection_matches_by_its_stem_also_with_wordnet(tiny_wordnet):
    """The forms dog and dogs share stem and synset; the matchers' order is exact, stem, synonym."""
    assert weights("a dog", "a dogs") == [1.0, 0.6]
    assert weights("a dog", "a dog") == [1.0, 1.0]
    assert weights("she ran", "she run") == [1.0, 0.8]  # an irregular form has another stem


def test_without_wordnet_synonyms_do_not_match(no_wordnet):
    assert weights("a canine ran", "a dog went") == [1.0]


@pytest.mark.parametrize(
    ("files", "matchers"), [("no_wordnet", "exact, stem"), ("tiny_wordnet", "exact, stem, synonym")]
)
def test_meteor_is_named_by_its_matchers(files, matchers, request):
    request.getfixturevalue(files)
    assert metric_heading("meteor") == f"meteor ({matchers}) ↑"
    assert (
        new_statistics(["meteor"])["meteor"]
        .signature()
        .startswith(f"METEOR ({matchers}), no paraphrases")
    )


def test_results_carry_signatures():
    rows = (((i, found), output) for i, (output, found) in enumerate(PICTURES))
    found = report(
        [collect("captions", rows, CAPTION_METRICS, source_length=lambda _: 1)], resamples=50
    )
    figures = found.systems[0].metrics
    assert figures["cider"].signature == "CIDEr-D|tok:ptb|n:4|sigma:6|df:6 images"
    assert "no paraphrases" in figures["meteor"].signature
    for name, value in figures.items():
        assert value.low <= value.value <= value.high
        assert METRICS[name].higher_is_better


def test_caption_metrics_are_the_default_for_captions():
    data = {"source": {"kind": "image", "column": "file"}, "target": {"column": "caption"}}
    model = {"encoder": {"kind": "cnn"}, "decoder": {"kind": "rnn"}}
    photographs = Recipe.of(
        {"data": {"train": "t.csv", **data}, "model": model, "train": {"monitor": "loss"}}
    )
    assert Evaluation().default_metrics(photographs) == ["loss", "perplexity", *CAPTION_METRICS]
    scenes = Recipe.of(
        {"data": {"synthetic": "shapes", "source": {"kind": "image"}}, "model": model}
    )
    assert Evaluation().default_metrics(scenes) == [
        "loss",
        "perplexity",
        "accuracy",
        "character_error_rate",
    ]
