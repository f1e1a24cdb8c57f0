"""The table of metrics: description, direction, the tasks each applies to, and its `Statistics`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.metric_names import DESCRIPTIONS, HIGHER_IS_BETTER
from regard.evaluation import caption_metrics, translation_metrics
from regard.evaluation.meteor import matchers, meteor
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

TaskName = Literal[
    "text", "label", "language"
]  # sequences are generated, labels predicted, or tokens only scored
TEXT: tuple[TaskName, ...] = ("text",)
LABEL: tuple[TaskName, ...] = ("label",)


@dataclass(frozen=True)
class Metric:
    """A metric of the table `METRICS`.

    description         one line, shown by `regard evaluate --help`
    statistics          makes its empty `Statistics`; None: computed from the model's probabilities, without outputs
    tasks               the tasks it applies to
    higher_is_better    its direction
    percent             a fraction that is shown in percent
    digits              decimals shown, unless in percent
    variant             names how it is computed on this machine, shown behind its name in tables
    """

    description: str
    statistics: Callable[[], Statistics] | None
    tasks: tuple[TaskName, ...] = TEXT
    higher_is_better: bool = True
    percent: bool = False
    digits: int = 2
    variant: Callable[[], str] | None = None


METRICS: dict[str, Metric] = {
    name: Metric(DESCRIPTIONS[name], higher_is_better=HIGHER_IS_BETTER[name], **options)
    for name, options in dict[str, dict[str, Any]](
        loss={"statistics": None, "tasks": (*TEXT, *LABEL, "language"), "digits": 4},
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
        accuracy={"statistics": exact_match, "tasks": TEXT + LABEL, "percent": True},
        error_rate={"statistics": partial(edit_rate, str.split), "percent": True},
        character_error_rate={"statistics": partial(edit_rate, str), "percent": True},
        f1={"statistics": partial(macro_average, f1), "tasks": LABEL, "percent": True},
        f1_micro={"statistics": micro_f1, "tasks": LABEL, "percent": True},
        precision={
            "statistics": partial(macro_average, precision),
            "tasks": LABEL,
            "percent": True,
        },
        recall={"statistics": partial(macro_average, recall), "tasks": LABEL, "percent": True},
    ).items()
}


def register_metric(name: str, metric: Metric, package: str | None = None) -> None:
    """Add a metric, for `regard evaluate` and as `train.monitor`."""
    HIGHER_IS_BETTER.register(
        name, metric.higher_is_better, package=package
    )  # refuses a name that is taken
    METRICS[name], DESCRIPTIONS[name] = metric, metric.description


def check_metrics(names: Sequence[str], task: TaskName | None) -> None:
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
            kind = {
                "text": "generates texts",
                "label": "predicts labels",
                "language": "has no outputs to compare",
            }[task]
            raise InvalidArgument(
                "metric",
                wanted=f"one of {fitting}, as the model {kind}",
                got=repr(name),
                remedy="Leave it out for the default metrics.",
            )


def new_statistics(names: Sequence[str]) -> dict[str, Statistics]:
    """Empty statistics of each of these metrics that is computed from outputs."""
    makers = {name: METRICS[name].statistics for name in names}
    return {name: make() for name, make in makers.items() if make is not None}


def score(name: str, outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """A metric of outputs, each with its references."""
    check_metrics([name], None)
    if len(outputs) != len(references) or not outputs:
        raise InvalidArgument(
            "outputs",
            wanted="as many as there are references, at least one",
            got=f"{len(outputs):,} and {len(references):,}",
            remedy="Give an output for each.",
        )
    statistics = new_statistics([name])[name]
    statistics.add(outputs, references)
    return float(statistics.values(np.ones((1, len(outputs))))[0])
