"""Writes tests/fixtures/sklearn_metrics.json: metrics of random cases as scikit-learn and SciPy compute them.

They are no dependencies of the package. Run this file in an environment that has them:

python -m venv oracle && oracle/bin/pip install scikit-learn scipy
oracle/bin/python tests/support/write_sklearn_metrics.py
"""

import json
import platform
import warnings
from pathlib import Path

import numpy as np
import scipy
import sklearn
from scipy import stats
from sklearn import metrics

PATH = Path(__file__).parents[1] / "fixtures" / "sklearn_metrics.json"
CASES = 100  # of each kind


def numbers(random: np.random.Generator, case: int) -> dict:
    """Numbers with and without ties, constant columns, outliers and offsets."""
    examples = int(random.integers(2, 25))
    columns = int(random.integers(1, 4))
    references = random.normal(size=(examples, columns))
    predicted = references + random.normal(size=references.shape) * random.choice([0.1, 1.0])
    kind = case % 5
    if kind == 1:
        references = np.round(references)
        predicted = np.round(predicted * 2) / 2
    elif kind == 2:
        predicted[:, 0] = 0.75
    elif kind == 3:
        references[:, -1] = -3.0
    elif kind == 4:
        references = references * 0.01 + 1234.0
        predicted = predicted * 0.01 + 1234.0
        predicted[0, 0] = -250.0
    references = np.round(references, 4)
    predicted = np.round(predicted, 4)
    weights = random.integers(0, 4, size=examples)
    weights[0] += 1
    return {
        "predicted": predicted.tolist(),
        "references": references.tolist(),
        "weights": weights.tolist(),
        "metrics": number_values(predicted, references),
        "resampled": number_values(predicted.repeat(weights, 0), references.repeat(weights, 0)),
    }


def number_values(predicted: np.ndarray, references: np.ndarray) -> dict:
    """The metrics of each column, and averaged as scikit-learn averages them; None: not a number."""
    columns = range(references.shape[1])
    pairs = [(references[:, k], predicted[:, k]) for k in columns]
    values = {
        "mse": [metrics.mean_squared_error(*pair) for pair in pairs],
        "rmse": [metrics.root_mean_squared_error(*pair) for pair in pairs],
        "mae": [metrics.mean_absolute_error(*pair) for pair in pairs],
        "r2": [r2(*pair) for pair in pairs],
        "pearson": [correlation(stats.pearsonr, *pair) for pair in pairs],
        "spearman": [correlation(stats.spearmanr, *pair) for pair in pairs],
    }
    averages = {
        "mse": metrics.mean_squared_error(references, predicted),
        "rmse": metrics.root_mean_squared_error(references, predicted),
        "mae": metrics.mean_absolute_error(references, predicted),
    }
    return {"columns": values, "averages": averages}


def r2(references: np.ndarray, predicted: np.ndarray) -> float | None:
    if len(references) < 2:
        return None
    value = metrics.r2_score(references, predicted, force_finite=False)
    return float(value) if np.isfinite(value) else None


def correlation(function, references: np.ndarray, predicted: np.ndarray) -> float | None:
    if np.ptp(references) == 0 or np.ptp(predicted) == 0:
        return None
    return float(function(references, predicted).statistic)


def label_sets(random: np.random.Generator, case: int) -> dict:
    """Probabilities with and without ties, labels that are never a reference or never predicted."""
    examples = int(random.integers(2, 25))
    labels = int(random.integers(2, 7))
    references = random.random((examples, labels)) < random.choice([0.15, 0.5])
    scores = np.clip(references * 0.3 + random.random(references.shape) * 0.7, 0, 1)
    scores = np.round(scores, 1 if case % 2 else 5)
    if case % 4 == 1:
        references[:, 0] = False
    if case % 4 == 2:
        scores[:, -1] = 0.0
    if case % 8 == 3:
        references[:, 1] = False
        scores[:, 1] = 0.0
    predicted = scores >= 0.5
    weights = random.integers(0, 4, size=examples)
    weights[0] += 1
    return {
        "scores": scores.tolist(),
        "predicted": predicted.astype(int).tolist(),
        "references": references.astype(int).tolist(),
        "weights": weights.tolist(),
        "metrics": set_values(references, predicted, scores),
        "resampled": set_values(
            *(one.repeat(weights, 0) for one in (references, predicted, scores))
        ),
        "labels": per_label(references, predicted, scores),
    }


def set_values(references: np.ndarray, predicted: np.ndarray, scores: np.ndarray) -> dict:
    values = {
        "accuracy": metrics.accuracy_score(references, predicted),
        "hamming_loss": metrics.hamming_loss(references, predicted),
    }
    functions = {
        "f1": metrics.f1_score,
        "precision": metrics.precision_score,
        "recall": metrics.recall_score,
    }
    for name, function in functions.items():
        values[name] = function(references, predicted, average="macro", zero_division=0)
        values[f"{name}_micro"] = function(references, predicted, average="micro", zero_division=0)
    for name, average in (("average_precision", "macro"), ("average_precision_micro", "micro")):
        values[name] = metrics.average_precision_score(references, scores, average=average)
    return {name: float(value) for name, value in values.items()}


def per_label(references: np.ndarray, predicted: np.ndarray, scores: np.ndarray) -> dict:
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        references, predicted, average=None, zero_division=0
    )
    average_precision = metrics.average_precision_score(references, scores, average=None)
    return {
        "precision": precision.tolist(),
        "recall": recall.tolist(),
        "f1": f1.tolist(),
        "references": support.tolist(),
        "average_precision": np.atleast_1d(average_precision).tolist(),
    }


def single_labels(random: np.random.Generator, case: int) -> dict:
    """One label an example, some of which are never a reference or never predicted."""
    examples = int(random.integers(1, 40))
    labels = int(random.integers(2, 7))
    references = random.integers(0, max(1, labels - case % 2), size=examples)
    others = random.integers(0, labels, size=examples)
    predicted = np.where(random.random(examples) < 0.6, references, others)
    known = list(range(labels))
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        references, predicted, labels=known, average=None, zero_division=0
    )
    weighted = metrics.precision_recall_fscore_support(
        references, predicted, labels=known, average="weighted", zero_division=0
    )
    return {
        "labels": labels,
        "predicted": predicted.tolist(),
        "references": references.tolist(),
        "precision": precision.tolist(),
        "recall": recall.tolist(),
        "f1": f1.tolist(),
        "support": support.tolist(),
        "weighted": [float(value) for value in weighted[:3]],
        "matrix": metrics.confusion_matrix(references, predicted, labels=known).tolist(),
    }


def main() -> None:
    random = np.random.default_rng(7)
    warnings.simplefilter("ignore")  # of undefined metrics, which the cases contain on purpose
    kinds = {"numbers": numbers, "label_sets": label_sets, "single_labels": single_labels}
    content = {
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
        **{name: [make(random, case) for case in range(CASES)] for name, make in kinds.items()},
    }
    # A line for each case.
    parts = []
    for name, value in content.items():
        if isinstance(value, dict):
            text = json.dumps(value)
        else:
            lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in value)
            text = f"[\n{lines}\n]"
        parts.append(f'"{name}": {text}')
    PATH.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
