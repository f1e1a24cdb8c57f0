"""BLEU, chrF and TER: sentence statistics by sacreBLEU, scores of their sums computed here.

sacreBLEU scores one sum at a time; these formulas score a thousand bootstrap resamples at once, and the tests hold them
equal to sacreBLEU's scores.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from regard.evaluation.statistics import Array, References, SumStatistics

BLEU_ORDER = 4  # of word n-grams
CHRF_ORDER = 6  # of character n-grams
CHRF_BETA = 2  # weight of recall relative to precision


def bleu(*, lowercase: bool = False) -> SumStatistics:
    """The default of sacreBLEU for BLEU: mteval-v13a tokens, exponential smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    ngrams = [f"{what}_{n}" for what in ("correct", "total") for n in range(1, BLEU_ORDER + 1)]
    return _statistics(BLEU(lowercase=lowercase, force=True), ["output_tokens", "reference_tokens", *ngrams], _bleu)


def chrf() -> SumStatistics:
    """The default of sacreBLEU for chrF2: character n-grams up to six, no word n-grams."""
    from sacrebleu.metrics.chrf import CHRF

    ngrams = [f"{what}_{n}" for n in range(1, CHRF_ORDER + 1) for what in ("output", "reference", "correct")]
    return _statistics(CHRF(), ngrams, _chrf)


def ter() -> SumStatistics:
    """The default of sacreBLEU for TER: lower case, edits and shifts per word of the references' mean length."""
    from sacrebleu.metrics.ter import TER

    return _statistics(TER(), ["edits", "reference_tokens"], _ter)


def _statistics(metric: Any, columns: Sequence[str], aggregate: Callable[[Array], Array]) -> SumStatistics:
    reference_counts: set[int] = set()

    def measure(outputs: Sequence[str], references: References) -> list[Any]:
        """One sentence per call, as each has its own number of references; a longer call would keep all n-grams."""
        reference_counts.update(map(len, references))
        rows = [
            metric._extract_corpus_statistics([output], [[reference] for reference in own])[0]
            for output, own in zip(outputs, references, strict=True)
        ]
        _clear_caches(metric)
        return rows

    def describe() -> str:
        metric.num_refs = next(iter(reference_counts)) if len(reference_counts) == 1 else -1  # -1: it varies
        return str(metric.get_signature())

    return SumStatistics(columns, measure, aggregate, describe)


def _clear_caches(metric: Any) -> None:
    """Empty its tokenizers' caches of 65,536 sentences, which are not needed again."""
    tokenizer = getattr(metric, "tokenizer", None)
    for one in (tokenizer, getattr(tokenizer, "_post_tokenizer", None)):
        clear = getattr(type(one).__call__, "cache_clear", None)
        if clear is not None:
            clear()


def _bleu(sums: Array) -> Array:
    output, reference = sums[:, 0], sums[:, 1]
    correct, total = sums[:, 2 : 2 + BLEU_ORDER], sums[:, 2 + BLEU_ORDER :]
    halved = np.cumprod(np.where(correct == 0, 2.0, 1.0), axis=1)  # exponential smoothing of orders without a match
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
    score: Array = 100 * (1 + CHRF_BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1.0)
    return score


def _ter(sums: Array) -> Array:
    edits, length = sums[:, 0], sums[:, 1]
    score: Array = 100 * np.where(length > 0, edits / np.where(length > 0, length, 1.0), np.minimum(edits, 1.0))
    return score
