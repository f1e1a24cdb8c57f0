"""The metrics: what each is called, what it says, and of what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.evaluation import caption_metrics, sacrebleu_statistics
from regard.evaluation.meteor import meteor
from regard.evaluation.statistics import Statistics, edits, exact, f1, macro, micro_f1, precision, recall

TaskName = Literal[
    "text", "label", "language"
]  # a sequence or a label is given; or tokens are scored and nothing given
TEXT: tuple[TaskName, ...] = ("text",)
LABEL: tuple[TaskName, ...] = ("label",)


@dataclass(frozen=True)
class Metric:
    """A figure, and whom it suits."""

    tells: str
    tally: Callable[[], Statistics] | None  # None: a model's own probabilities, without any output
    tasks: tuple[TaskName, ...] = TEXT
    higher: bool = True  # is better
    share: bool = False  # of one, and shown in percent
    digits: int = 2  # shown behind the point, where it is no share


METRICS = {
    "loss": Metric(
        "minus the log-probability of a token, or label; in nats",
        None,
        ("text", "label", "language"),
        higher=False,
        digits=4,
    ),
    "perplexity": Metric("e to the loss", None, ("text", "language"), higher=False),
    "bleu": Metric("word n-grams that outputs share with references, 0 to 100; sacreBLEU's", sacrebleu_statistics.bleu),
    "bleu_lower": Metric("the same, capitals and small letters alike", partial(sacrebleu_statistics.bleu, lower=True)),
    "chrf": Metric("character n-grams that they share, 0 to 100; sacreBLEU's", sacrebleu_statistics.chrf),
    "ter": Metric(
        "edits and shifts to a reference, for 100 words; sacreBLEU's", sacrebleu_statistics.ter, higher=False
    ),
    **{
        f"bleu{order}": Metric(
            f"of captions: word n-grams up to {order} that they share, 0 to 1; COCO's",
            partial(caption_metrics.bleu, order),
            digits=4,
        )
        for order in range(1, caption_metrics.ORDERS + 1)
    },
    "rouge_l": Metric("of captions: longest common subsequences, 0 to 1; COCO's", caption_metrics.rouge_l, digits=4),
    "meteor": Metric("of captions: words, stems and synonyms that can be aligned, 0 to 1", meteor, digits=4),
    "cider": Metric(
        "of captions: n-grams that they share, rare ones more, 0 to 10; CIDEr-D", caption_metrics.Cider, digits=4
    ),
    "accuracy": Metric(
        "the share of outputs that are a reference, exactly: labels, or whole sequences",
        exact,
        ("text", "label"),
        share=True,
    ),
    "error_rate": Metric(
        "edits to the nearest reference for each of its words, or phonemes (what spaces part): WER, PER",
        partial(edits, str.split),
        higher=False,
        share=True,
    ),
    "character_error_rate": Metric(
        "the same of characters, spaces among them: CER", partial(edits, str), higher=False, share=True
    ),
    "f1": Metric("precision and recall in one; the mean over classes", partial(macro, f1), LABEL, share=True),
    "f1_micro": Metric("the same of all classes together, which is accuracy", micro_f1, LABEL, share=True),
    "precision": Metric(
        "of the outputs of a class, the share that is right; the mean over classes",
        partial(macro, precision),
        LABEL,
        share=True,
    ),
    "recall": Metric(
        "of the references of a class, the share that was found; the mean over classes",
        partial(macro, recall),
        LABEL,
        share=True,
    ),
}


def check(names: Sequence[str], task: TaskName | None) -> None:
    """Refuse what there is not, and what says nothing of this task; None: of outputs whose task is not known."""
    for name in names:
        if name not in METRICS:
            raise InvalidArgument(
                "metric", wanted=f"one of {', '.join(METRICS)}", got=repr(name), remedy=nearest(name, METRICS)
            )
        if task is None and METRICS[name].tally is None:
            raise InvalidArgument("metric", wanted="one of outputs", got=repr(name), remedy="It needs a model: a run.")
        if task is not None and task not in METRICS[name].tasks:
            fitting = ", ".join(found for found, metric in METRICS.items() if task in metric.tasks)
            gives = {"text": "gives texts", "label": "gives labels", "language": "gives no outputs to compare"}[task]
            raise InvalidArgument(
                "metric",
                wanted=f"one of {fitting}, for the model {gives}",
                got=repr(name),
                remedy="Leave it out for the usual ones.",
            )


def start(names: Sequence[str]) -> dict[str, Statistics]:
    """An empty tally of each of these that is of outputs."""
    found = {name: METRICS[name].tally for name in names}
    return {name: tally() for name, tally in found.items() if tally is not None}


def score(name: str, outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """A figure of outputs, each beside its references."""
    check([name], None)
    if len(outputs) != len(references) or not outputs:
        raise InvalidArgument(
            "outputs",
            wanted="as many as there are references, at least one",
            got=f"{len(outputs):,} and {len(references):,}",
            remedy="Give an output for each.",
        )
    tally = start([name])[name]
    tally.add(outputs, references)
    return float(tally.values(np.ones((1, len(outputs))))[0])
