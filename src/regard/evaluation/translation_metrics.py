"""BLEU, chrF2 and TER of translations, equal to the scores of sacreBLEU with its default settings.

Statistics of sentences, and scores of their sums: of a thousand bootstrap resamples at once. The tests hold both equal
to sacreBLEU's (https://aclanthology.org/W18-6319), whose settings the signatures name. The edits of TER are counted by
sacreBLEU itself, an extra.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from regard.core.errors import MissingExtra
from regard.core.version import __version__
from regard.evaluation.statistics import Array, References, StatisticsRow, SumStatistics

BLEU_ORDER = 4  # of word n-grams
CHRF_ORDER = 6  # of character n-grams
CHRF_BETA = 2  # weight of recall relative to precision

NGram = TypeVar("NGram")

ENTITIES = {
    "&quot;": '"',
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
}  # in this order: "&amp;lt;" becomes "<"
SPLITS = [
    (re.compile(r"([{-~\[-` -&(-+:-@/])"), r" \1 "),  # punctuation and symbols of ASCII but ' , - .
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),  # periods and commas, unless between digits
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),  # a hyphen behind a digit
]


def tokenize_13a(text: str) -> list[str]:
    """The tokens of mteval-v13a.pl, the tokenizer of WMT's evaluations.

    >>> tokenize_13a("It's 1,000.5 km, isn't it?")
    ["It's", '1,000.5', 'km', ',', "isn't", 'it', '?']
    """
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in ENTITIES.items():
        text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in SPLITS:
        text = pattern.sub(replacement, text)
    return text.split()


def bleu(*, lowercase: bool = False) -> SumStatistics:
    """BLEU (https://aclanthology.org/P02-1040) of 13a tokens: closest reference length, exponential smoothing."""

    def row(output: str, references: Sequence[str]) -> list[int]:
        tokens, *reference_tokens = (
            tokenize_13a(text.lower() if lowercase else text) for text in (output, *references)
        )
        length = min(
            map(len, reference_tokens), key=lambda length: (abs(length - len(tokens)), length)
        )
        correct = []
        for n in range(1, BLEU_ORDER + 1):
            clipped = _ngrams(reference_tokens[0], n)
            for other in reference_tokens[1:]:
                clipped |= _ngrams(other, n)
            correct.append(_shared(_ngrams(tokens, n), clipped))
        return [
            len(tokens),
            length,
            *correct,
            *(max(0, len(tokens) - n) for n in range(BLEU_ORDER)),
        ]

    ngrams = [f"{what}_{n}" for what in ("correct", "total") for n in range(1, BLEU_ORDER + 1)]
    settings = f"case:{'lc' if lowercase else 'mixed'}|eff:no|tok:13a|smooth:exp"
    return _statistics(["output_tokens", "reference_tokens", *ngrams], row, _bleu, settings)


def chrf() -> SumStatistics:
    """chrF2 (https://aclanthology.org/W15-3049): characters but white space, of the reference with the best score."""

    def row(output: str, references: Sequence[str]) -> Array:
        ngrams, *reference_ngrams = (_character_ngrams(text) for text in (output, *references))
        rows = np.array([_chrf_row(ngrams, each) for each in reference_ngrams], dtype=np.float64)
        best: Array = rows[_chrf(rows).argmax()] if len(rows) > 1 else rows[0]
        return best

    ngrams = [
        f"{what}_{n}"
        for n in range(1, CHRF_ORDER + 1)
        for what in ("output", "reference", "correct")
    ]
    return _statistics(ngrams, row, _chrf, "case:mixed|eff:yes|nc:6|nw:0|space:no")


def ter() -> SumStatistics:
    """TER (https://aclanthology.org/2006.amta-papers.25): edits and shifts per word of the references' mean length."""
    try:
        from sacrebleu import __version__ as version
        from sacrebleu.metrics.ter import TER
    except ImportError:
        raise MissingExtra("sacrebleu", "ter", "the metric ter") from None
    metric: Any = TER()
    tokenizer: Any = type(metric.tokenizer)

    def row(output: str, references: Sequence[str]) -> list[float]:
        # One sentence per call, as each has its own number of references; a longer call would keep all of them.
        edits, length = metric._extract_corpus_statistics(
            [output], [[each] for each in references]
        )[0]
        tokenizer.__call__.cache_clear()  # of 65,536 sentences
        return [float(edits), float(length)]

    settings = "case:lc|tok:tercom|norm:no|punct:yes|asian:no"
    return _statistics(["edits", "reference_tokens"], row, _ter, settings, version)


def _statistics(
    columns: Sequence[str],
    row: Callable[[str, Sequence[str]], StatisticsRow],
    aggregate: Callable[[Array], Array],
    settings: str,
    version: str = f"regard-{__version__}",
) -> SumStatistics:
    reference_counts: set[int] = set()

    def measure(outputs: Sequence[str], references: References) -> list[StatisticsRow]:
        reference_counts.update(map(len, references))
        return [row(output, own) for output, own in zip(outputs, references, strict=True)]

    def describe() -> str:
        """The settings as sacreBLEU writes them, and what computed it."""
        count = next(iter(reference_counts)) if len(reference_counts) == 1 else "var"
        return f"nrefs:{count}|{settings}|version:{version}"

    return SumStatistics(columns, measure, aggregate, describe)


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _character_ngrams(text: str) -> list[Counter[str]]:
    text = "".join(text.split())
    return [
        Counter(text[i : i + n] for i in range(len(text) - n + 1)) for n in range(1, CHRF_ORDER + 1)
    ]


def _chrf_row(output: list[Counter[str]], reference: list[Counter[str]]) -> list[int]:
    """For each order: n-grams of the output (none where the reference has none), of the reference, and of both."""
    row = []
    for found, wanted in zip(output, reference, strict=True):
        row += [found.total() if wanted else 0, wanted.total(), _shared(found, wanted)]
    return row


def _shared(a: Counter[NGram], b: Counter[NGram]) -> int:
    return sum(
        min(count, b[ngram]) for ngram, count in a.items() if ngram in b
    )  # faster than Counter's `&`


def _bleu(sums: Array) -> Array:
    output, reference = sums[:, 0], sums[:, 1]
    correct, total = sums[:, 2 : 2 + BLEU_ORDER], sums[:, 2 + BLEU_ORDER :]
    halved = np.cumprod(
        np.where(correct == 0, 2.0, 1.0), axis=1
    )  # exponential smoothing of orders without a match
    matches = np.where(correct == 0, 1 / halved, correct)
    scored = (correct > 0).any(1) & (total > 0).all(1)
    precisions = matches / np.maximum(total, 1)
    brevity_penalty = np.exp(np.minimum(0.0, 1 - reference / np.maximum(output, 1)))
    score: Array = np.where(scored, 100 * brevity_penalty * np.exp(np.log(precisions).mean(1)), 0.0)
    return score


def _chrf(sums: Array) -> Array:
    output, reference, correct = (sums[:, i::3] for i in range(3))  # each (R, orders)
    present = (output > 0) & (reference > 0)
    orders = np.maximum(present.sum(1), 1)
    precision = (present * correct / np.maximum(output, 1)).sum(1) / orders
    recall = (present * correct / np.maximum(reference, 1)).sum(1) / orders
    weighted = CHRF_BETA**2 * precision + recall
    score: Array = (
        100 * (1 + CHRF_BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1.0)
    )
    return score


def _ter(sums: Array) -> Array:
    edits, length = sums[:, 0], sums[:, 1]
    score: Array = 100 * np.where(
        length > 0, edits / np.where(length > 0, length, 1.0), np.minimum(edits, 1.0)
    )
    return score
