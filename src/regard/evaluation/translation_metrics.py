"""BLEU, chrF2 and TER of translations, equal to the scores of sacreBLEU with its default settings.

Statistics are kept for each sentence, and scores are computed from their sums, for a thousand bootstrap resamples at
once. Tests compare both with sacreBLEU (https://aclanthology.org/W18-6319), whose settings the signatures name.
SacreBLEU itself, an extra, counts the edits of TER.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from regard.core.errors import MissingExtra
from regard.core.version import __version__
from regard.evaluation.statistics import Array, References, StatisticsRow, SumStatistics

BLEU_ORDER = 4  # of word n-grams
CHRF_ORDER = 6  # of character n-grams
CHRF_BETA = 2  # weight of recall relative to precision

NGram = TypeVar("NGram")

# They are replaced in this order: "&amp;lt;" becomes "<".
ENTITIES = {
    "&quot;": '"',
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
}
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
        texts = [output, *references]
        if lowercase:
            texts = [text.lower() for text in texts]
        tokens, *reference_tokens = map(tokenize_13a, texts)
        length = closest_length(len(tokens), map(len, reference_tokens))
        correct = []
        for n in range(1, BLEU_ORDER + 1):
            # An n-gram is correct as often as it occurs in the reference that has it most often.
            clipped = _ngrams(reference_tokens[0], n)
            for other in reference_tokens[1:]:
                clipped |= _ngrams(other, n)
            correct.append(_shared(_ngrams(tokens, n), clipped))
        totals = [max(0, len(tokens) - n) for n in range(BLEU_ORDER)]
        return [len(tokens), length, *correct, *totals]

    ngrams = [f"{what}_{n}" for what in ("correct", "total") for n in range(1, BLEU_ORDER + 1)]
    case = "lc" if lowercase else "mixed"
    settings = f"case:{case}|eff:no|tok:13a|smooth:exp"
    return _statistics(["output_tokens", "reference_tokens", *ngrams], row, _bleu, settings)


def closest_length(length: int, reference_lengths: Iterable[int]) -> int:
    """The reference length nearest to the length of an output; of two equally near ones, the shorter."""
    return min(reference_lengths, key=lambda other: (abs(other - length), other))


def chrf() -> SumStatistics:
    """chrF2 (https://aclanthology.org/W15-3049): characters but white space, of the reference with the best score."""

    def row(output: str, references: Sequence[str]) -> Array:
        ngrams, *reference_ngrams = (_character_ngrams(text) for text in (output, *references))
        rows = np.array([_chrf_row(ngrams, each) for each in reference_ngrams], dtype=np.float64)
        best: Array = rows[0]
        if len(rows) > 1:
            best = rows[_chrf(rows).argmax()]
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
        columns = [[each] for each in references]
        edits, length = metric._extract_corpus_statistics([output], columns)[0]
        # The cache would grow to 65,536 sentences.
        tokenizer.__call__.cache_clear()
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
        """The settings as sacreBLEU writes them, and the version that computed the score."""
        count = "var"
        if len(reference_counts) == 1:
            count = str(next(iter(reference_counts)))
        return f"nrefs:{count}|{settings}|version:{version}"

    return SumStatistics(columns, measure, aggregate, describe)


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _character_ngrams(text: str) -> list[Counter[str]]:
    """The n-grams of the characters that are not white space, for each order."""
    text = "".join(text.split())
    return [Counter(_substrings(text, n)) for n in range(1, CHRF_ORDER + 1)]


def _substrings(text: str, length: int) -> Iterator[str]:
    return (text[i : i + length] for i in range(len(text) - length + 1))


def _chrf_row(output: list[Counter[str]], reference: list[Counter[str]]) -> list[int]:
    """For each order: n-grams of the output (none where the reference has none), of the reference, and of both."""
    row = []
    for found, wanted in zip(output, reference, strict=True):
        row += [found.total() if wanted else 0, wanted.total(), _shared(found, wanted)]
    return row


def _shared(a: Counter[NGram], b: Counter[NGram]) -> int:
    # This is faster than the operator `&` of Counter.
    return sum(min(count, b[ngram]) for ngram, count in a.items() if ngram in b)


def _bleu(sums: Array) -> Array:
    output = sums[:, 0]
    reference = sums[:, 1]
    correct = sums[:, 2 : 2 + BLEU_ORDER]
    total = sums[:, 2 + BLEU_ORDER :]
    # Exponential smoothing: the first order without a match counts as half a match, the next as a quarter.
    no_match = correct == 0  # (R, orders)
    halved = np.cumprod(np.where(no_match, 2.0, 1.0), axis=1)
    matches = np.where(no_match, 1 / halved, correct)
    scored = (correct > 0).any(1) & (total > 0).all(1)  # (R,)
    precisions = matches / np.maximum(total, 1)  # (R, orders)
    brevity_penalty = np.exp(np.minimum(0.0, 1 - reference / np.maximum(output, 1)))  # (R,)
    geometric_mean = np.exp(np.log(precisions).mean(1))  # (R,)
    score: Array = np.where(scored, 100 * brevity_penalty * geometric_mean, 0.0)
    return score


def _chrf(sums: Array) -> Array:
    output = sums[:, 0::3]  # (R, orders)
    reference = sums[:, 1::3]  # (R, orders)
    correct = sums[:, 2::3]  # (R, orders)
    present = (output > 0) & (reference > 0)
    orders = np.maximum(present.sum(1), 1)
    precision = (present * correct / np.maximum(output, 1)).sum(1) / orders
    recall = (present * correct / np.maximum(reference, 1)).sum(1) / orders
    weighted = CHRF_BETA**2 * precision + recall
    divisor = np.where(weighted > 0, weighted, 1.0)
    score: Array = 100 * (1 + CHRF_BETA**2) * precision * recall / divisor
    return score


def _ter(sums: Array) -> Array:
    edits = sums[:, 0]
    length = sums[:, 1]
    # An empty reference is worth 0 without edits and 1 with any.
    rate = edits / np.where(length > 0, length, 1.0)
    score: Array = 100 * np.where(length > 0, rate, np.minimum(edits, 1.0))
    return score
