"""Labels of training data that were probably meant otherwise: numbers, names of examples,
several labels in one.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator

from regard.core.errors import InvalidArgument
from regard.data.vocabulary import Labels

SEPARATOR = "|"  # of the field `labels`, unless its recipe says otherwise
OTHER_SEPARATOR = ";"
FEW = 20  # labels: no more are never taken for numbers, nor examples for too few
logger = logging.getLogger(__name__)


def target_labels(texts: Iterable[str]) -> Labels:
    """The labels of the training examples.

    Many different numbers are refused. A warning is logged where most labels have a single example,
    and where a label consists of other labels, as "sport|politics".
    """
    counts = Counter(texts)
    _refuse_numbers(counts)
    examples = counts.total()
    once = sum(count == 1 for count in counts.values())
    if examples > FEW and once > 0.9 * examples:
        logger.warning(
            "data.target: %s of %s examples have a label that no other has: a classifier cannot "
            "learn these. Is the column right?",
            once,
            examples,
        )
    combined = list(_combined(counts))
    if combined:
        logger.warning(
            "data.target: %r is learned as one label, and not as several (%s such labels). "
            'For several labels of one input, set data.target.kind = "labels"; '
            "otherwise rename these.",
            combined[0],
            len(combined),
        )
    return Labels(counts)


def _refuse_numbers(counts: Counter[str]) -> None:
    values = [_number(label) for label in counts]
    if len(counts) <= FEW or None in values:
        return
    is_measured = any(value is not None and not value.is_integer() for value in values)
    if is_measured and len(counts) > counts.total() / 10:
        raise InvalidArgument(
            "data.target",
            wanted="labels",
            got=f"{len(counts):,} different numbers in {counts.total():,} examples, as "
            f"{next(iter(counts))}",
            remedy=(
                "Each number would be a class of its own, unrelated to the others. Predict "
                'numbers, with data.target.kind = "number", or write classes, such as "low" '
                'and "high".'
            ),
        )


def _number(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _combined(counts: Counter[str]) -> Iterator[str]:
    """Labels that were probably meant as several.

    A bar is in hardly any name. A semicolon separates labels where its parts are in other labels too, alone or beside
    others.
    """
    for label in counts:
        if len(_parts(label, SEPARATOR)) > 1:
            yield label
    parts_of = {label: _parts(label, OTHER_SEPARATOR) for label in counts}
    having = Counter(part for parts in parts_of.values() for part in set(parts))
    for label, parts in parts_of.items():
        if len(parts) > 1 and all(having[part] > 1 for part in parts):
            yield label


def _parts(label: str, separator: str) -> list[str]:
    parts = [part.strip() for part in label.split(separator)]
    return [part for part in parts if part]
