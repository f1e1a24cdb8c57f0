"""The table of metrics: description, direction, the tasks each applies to, and its `Statistics`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.metric_names import DESCRIPTIONS, HIGHER_IS_BETTER
from regard.evaluation import caption_metrics, translation_metrics
from regard.evaluation.meteor import matchers, meteor
from regard.evaluation.multilabel_metrics import MULTILABEL_METRICS
from regard.evaluation.number_metrics import NUMBER_METRICS, number_statistics
from regard.evaluation.span_metrics import SPAN_METRICS, TokenConfusion
from regard.evaluation.statistics import (
    Statistics,
    edit_rate,
    exact_match,
    f1,
    macro_average,
    micro_f1,
    precision,
    recall,
)
from regard.evaluation.vector_metrics import VECTOR_METRICS, vector_statistics

# Groups of metrics, one for each kind of output; "language": tokens are only scored.
GIVES = {
    "text": "generates texts",
    "label": "predicts labels",
    "tags": "gives tags",
    "number": "predicts numbers",
    "vectors": "gives sequences of vectors",
    "forecast": "gives forecasts",
    "labels": "predicts several labels",
    "language": "has no outputs to compare",
}
TEXT: tuple[str, ...] = ("text",)
LABEL: tuple[str, ...] = ("label",)
TAGS: tuple[str, ...] = ("tags",)
NUMBER: tuple[str, ...] = ("number",)
FORECAST: tuple[str, ...] = ("forecast",)  # whose season is known
VECTORS: tuple[str, ...] = ("vectors", *FORECAST)
LABELS: tuple[str, ...] = ("labels",)  # several of each example


@dataclass(frozen=True)
class Metric:
    """A metric of the table `METRICS`.

    description         one line, shown by `regard evaluate --help`
    statistics          makes its empty `Statistics`; None: computed from the model's probabilities, without outputs
    tasks               the tasks it applies to
    of_group            makes other `Statistics` for outputs of some groups, which are compared part by part
    higher_is_better    its direction
    percent             a fraction that is shown in percent
    digits              decimals shown, unless in percent
    variant             names how it is computed on this machine, shown behind its name in tables
    """

    description: str
    statistics: Callable[..., Statistics] | None
    tasks: tuple[str, ...] = TEXT
    of_group: Mapping[str, Callable[..., Statistics]] = field(default_factory=dict)
    higher_is_better: bool = True
    percent: bool = False
    digits: int = 2
    variant: Callable[[], str] | None = None


# Metrics of one label, which have others of the same name where an example has several.
OF_ONE_LABEL: dict[str, Callable[[], Statistics]] = {
    "f1": partial(macro_average, f1),
    "f1_micro": micro_f1,
    "precision": partial(macro_average, precision),
    "recall": partial(macro_average, recall),
}


def _of_labels(name: str) -> dict[str, Callable[..., Statistics]]:
    return {"labels": MULTILABEL_METRICS[name]}


def _of_vectors(name: str) -> dict[str, Callable[..., Statistics]]:
    if name not in VECTOR_METRICS:
        return {}
    return dict.fromkeys(VECTORS, partial(vector_statistics, name))


METRICS: dict[str, Metric] = {
    name: Metric(DESCRIPTIONS[name], higher_is_better=HIGHER_IS_BETTER[name], **options)
    for name, options in dict[str, dict[str, Any]](
        loss={"statistics": None, "tasks": tuple(GIVES), "digits": 4},
        perplexity={"statistics": None, "tasks": (*TEXT, "language")},
        bleu={"statistics": translation_metrics.bleu},
        bleu_lower={"statistics": partial(translation_metrics.bleu, lowercase=True)},
        chrf={"statistics": translation_metrics.chrf},
        ter={"statistics": translation_metrics.ter},
        **{
            f"bleu{n}": {"statistics": partial(caption_metrics.bleu, n), "digits": 4}
            for n in range(1, caption_metrics.MAX_ORDER + 1)
        },
        rouge_l={"statistics": caption_metrics.rouge_l, "digits": 4},
        meteor={"statistics": meteor, "digits": 4, "variant": matchers},
        cider={"statistics": caption_metrics.Cider, "digits": 4},
        accuracy={
            "statistics": exact_match,
            "tasks": TEXT + LABEL + LABELS + TAGS,
            "of_group": {"tags": TokenConfusion, **_of_labels("accuracy")},
            "percent": True,
        },
        error_rate={"statistics": partial(edit_rate, str.split), "percent": True},
        character_error_rate={"statistics": partial(edit_rate, str), "percent": True},
        **{
            name: {
                "statistics": make,
                "tasks": LABEL + LABELS,
                "of_group": _of_labels(name),
                "percent": True,
            }
            for name, make in OF_ONE_LABEL.items()
        },
        **{
            name: {"statistics": MULTILABEL_METRICS[name], "tasks": LABELS, "percent": True}
            for name in MULTILABEL_METRICS
            if name not in ("accuracy", *OF_ONE_LABEL)
        },
        **{name: {**options, "tasks": TAGS} for name, options in SPAN_METRICS.items()},
        **{
            name: {
                "statistics": partial(number_statistics, name),
                "tasks": NUMBER + VECTORS if name in VECTOR_METRICS else NUMBER,
                "of_group": _of_vectors(name),
                "digits": 4,
            }
            for name in NUMBER_METRICS
        },
        **{
            name: {"statistics": partial(vector_statistics, name), "tasks": VECTORS, "digits": 4}
            for name in VECTOR_METRICS
            if name not in NUMBER_METRICS
        },
        **{
            name: {"statistics": None, "tasks": FORECAST, "digits": 4}
            for name in ("seasonal_naive_mse", "seasonal_naive_mae")
        },
    ).items()
}


def register_metric(name: str, metric: Metric, package: str | None = None) -> None:
    """Add a metric, for `regard evaluate` and as `train.monitor`."""
    HIGHER_IS_BETTER.register(
        name, metric.higher_is_better, package=package
    )  # refuses a name that is taken
    METRICS[name], DESCRIPTIONS[name] = metric, metric.description


def check_metrics(names: Sequence[str], task: str | None) -> None:
    """Refuse unknown metrics and those that do not apply to this task; None: outputs whose task is unknown."""
    for name in names:
        if name not in METRICS:
            raise InvalidArgument(
                "metric",
                wanted=f"one of {', '.join(METRICS)}",
                got=repr(name),
                remedy=nearest(name, METRICS, listed=True),
            )
        if task is None and METRICS[name].statistics is None:
            raise InvalidArgument(
                "metric", wanted="one of outputs", got=repr(name), remedy="It needs a model: a run."
            )
        if task is not None and task not in METRICS[name].tasks:
            fitting = ", ".join(other for other, metric in METRICS.items() if task in metric.tasks)
            kind = GIVES.get(task, f"gives {task}")
            raise InvalidArgument(
                "metric",
                wanted=f"one of {fitting}, as the model {kind}",
                got=repr(name),
                remedy="Leave it out for the default metrics.",
            )


def new_statistics(
    names: Sequence[str], group: str | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Statistics]:
    """Empty statistics of each of these metrics that is computed from outputs.

    group     of metrics, to which the outputs belong; None: it is not known
    options   what statistics of this group are made with (`Task.metric_options`)
    """
    found = {}
    for name in names:
        metric = METRICS[name]
        make = metric.statistics if group is None else metric.of_group.get(group, metric.statistics)
        if make is not None:
            found[name] = make(**(options or {}))
    return found


def score(
    name: str,
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> float:
    """A metric of outputs, each with its references; `group` and `options` are as of `new_statistics`."""
    check_metrics([name], None)
    if len(outputs) != len(references) or not outputs:
        raise InvalidArgument(
            "outputs",
            wanted="as many as there are references, at least one",
            got=f"{len(outputs):,} and {len(references):,}",
            remedy="Give an output for each.",
        )
    statistics = new_statistics([name], group, options)[name]
    statistics.add(outputs, references)
    return float(statistics.values(np.ones((1, len(outputs))))[0])
