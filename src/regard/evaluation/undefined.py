"""Metrics that are undefined on some examples: their intervals, p-values and text.

A correlation with a constant has no value. Statistics mark it by NaN in their arrays, as NumPy and
SciPy do; a report, which never shows NaN, reads these arrays through the functions of this module.
"""

from math import isnan

import numpy as np

from regard.evaluation.bootstrap import CONFIDENCE, confidence_interval, p_value
from regard.evaluation.statistics import Array

UNDEFINED = "undefined"


def value_or_none(value: float) -> float | None:
    """The value, or None if it is undefined."""
    return None if isnan(value) else value


def value_text(value: float | None, digits: int = 4, *, percent: bool = False) -> str:
    """A value with this many digits, or the word for one that is undefined.

    >>> value_text(0.51239), value_text(0.5, percent=True), value_text(float("nan"))
    ('0.5124', '50.00%', 'undefined')
    """
    if value is None or isnan(value):
        return UNDEFINED
    if percent:
        return f"{value:.2%}"
    return f"{value:.{digits}f}"


def defined_interval(values: Array, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The percentile interval of bootstrap values, over the resamples that define the metric.

    None if the metric is undefined in more resamples than an interval leaves out: its bounds would
    say little then.
    """
    defined = values[~np.isnan(values)]
    undefined_share = 1 - len(defined) / len(values)
    if not len(defined) or undefined_share > 1 - confidence:
        return None
    return confidence_interval(defined, confidence)


def defined_p_value(difference: float, differences: Array, examples: int) -> float | None:
    """`p_value` over the resamples that define both metrics; None where there is no interval."""
    if isnan(difference) or defined_interval(differences) is None:
        return None
    return p_value(difference, differences[~np.isnan(differences)], examples)
