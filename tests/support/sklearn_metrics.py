"""The metrics that scikit-learn and SciPy compute on random cases, as write_sklearn_metrics.py wrote them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).parents[1] / "fixtures" / "sklearn_metrics.json"
TOLERANCE = 1e-9


def cases(kind: str) -> list[dict[str, Any]]:
    return json.loads(PATH.read_text())[kind]


def assert_equal_values(values: Any, wanted: Any, context: object = None) -> None:
    """Compare numbers or lists of numbers; None stands for a value that is undefined."""
    expected = np.array(wanted, dtype=float)
    np.testing.assert_allclose(
        values, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=str(context)
    )
