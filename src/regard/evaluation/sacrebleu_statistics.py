"""BLEU, chrF and TER: the statistics of sentences are sacreBLEU's own; only sums of them are turned into scores here.

sacreBLEU scores one sum at a time. These formulas do the same for a thousand, and the tests hold them equal.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from regard.evaluation.statistics import Array, References, SumStatistics

ORDERS = 4  # of BLEU's word n-grams
CHARACTERS = 6  # of chrF's character n-grams
BETA = 2  # how much more recall counts than precision in chrF


def bleu(*, lower: bool = False) -> SumStatistics:
    """Of `sacrebleu`, with its defaults: tokens of mteval-v13a, exponential smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    grams = [f"{what}_{n}" for what in ("right", "given") for n in range(1, ORDERS + 1)]
    return _sums(BLEU(lowercase=lower, force=True), ["output_tokens", "reference_tokens", *grams], _bleu)


def chrf() -> SumStatistics:
    """Of `sacrebleu`, with its defaults: character n-grams up to six, no words."""
    from sacrebleu.metrics.chrf import CHRF

    grams = [f"{what}_{n}" for n in range(1, CHARACTERS + 1) for what in ("given", "wanted", "right")]
    return _sums(CHRF(), grams, _chrf)


def ter() -> SumStatistics:
    """Of `sacrebleu`, with its defaults: lower case, edits and shifts for each word of the references' mean length."""
    from sacrebleu.metrics.ter import TER

    return _sums(TER(), ["edits", "reference_tokens"], _ter)


def _sums(metric: Any, columns: Sequence[str], figure: Callable[[Array], Array]) -> SumStatistics:
    numbers: set[int] = set()  # of references to an example

    def measure(outputs: Sequence[str], references: References) -> list[Any]:
        """Sentence by sentence, as each has its own number of references; of many at once all n-grams would be kept."""
        numbers.update(map(len, references))
        rows = [
            metric._extract_corpus_statistics([output], [[reference] for reference in found])[0]
            for output, found in zip(outputs, references, strict=True)
        ]
        _forget(metric)
        return rows

    def sign() -> str:
        metric.num_refs = next(iter(numbers)) if len(numbers) == 1 else -1  # -1: it varies
        return str(metric.get_signature())

    return SumStatistics(columns, measure, figure, sign)


def _forget(metric: Any) -> None:
    """Its tokenizers remember the last 65,536 sentences of each, which nobody will ask for again."""
    tokenizer = getattr(metric, "tokenizer", None)
    for one in (tokenizer, getattr(tokenizer, "_post_tokenizer", None)):
        clear = getattr(type(one).__call__, "cache_clear", None)
        if clear is not None:
            clear()


def _bleu(sums: Array) -> Array:
    output, reference = sums[:, 0], sums[:, 1]
    right, given = sums[:, 2 : 2 + ORDERS], sums[:, 2 + ORDERS :]
    halved = np.cumprod(np.where(right == 0, 2.0, 1.0), axis=1)  # each order without a match counts half the last
    matches = np.where(right == 0, 1 / halved, right)
    scored = (right > 0).any(1) & (given > 0).all(1)
    precisions = matches / np.maximum(given, 1)
    brevity = np.exp(np.minimum(0.0, 1 - reference / np.maximum(output, 1)))
    found: Array = np.where(scored, 100 * brevity * np.exp(np.log(precisions).mean(1)), 0.0)
    return found


def _chrf(sums: Array) -> Array:
    given, wanted, right = (sums[:, i::3] for i in range(3))  # each (R, orders)
    there = (given > 0) & (wanted > 0)
    orders = np.maximum(there.sum(1), 1)
    precision = (there * right / np.maximum(given, 1)).sum(1) / orders
    recall = (there * right / np.maximum(wanted, 1)).sum(1) / orders
    weighed = BETA**2 * precision + recall
    found: Array = 100 * (1 + BETA**2) * precision * recall / np.where(weighed > 0, weighed, 1.0)
    return found


def _ter(sums: Array) -> Array:
    edits, length = sums[:, 0], sums[:, 1]
    found: Array = 100 * np.where(length > 0, edits / np.where(length > 0, length, 1.0), np.minimum(edits, 1.0))
    return found
