"""`regard.thresholds`: chooses the thresholds of a multi-label classifier,
and adds them to its checkpoint.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.api.evaluate import Evaluation, as_paths
from regard.checkpoint import store
from regard.checkpoint.format import CONFIG, TRAINING_TENSORS, WEIGHTS, find_checkpoint
from regard.core.errors import InvalidArgument
from regard.data.fields.label import labels_of
from regard.evaluation.statistics import Array
from regard.evaluation.thresholds import EQUAL, best_label_thresholds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChosenThreshold:
    """The threshold of a label, and F1 on the data that it was chosen on.

    references   examples that have the label
    before       F1 with the threshold that the label had
    """

    label: str
    threshold: float
    before: float
    f1: float
    references: int


def thresholds(
    model: str | Path,
    *,
    split: str | None = None,
    data: str | Path | Sequence[str | Path] = (),
    columns: Sequence[str] = (),
    device: str = "auto",
    trust_data_paths: bool = False,
) -> tuple[Path, list[ChosenThreshold]]:
    """Choose the threshold of each label with the highest F1,
    and add them to the recipe of the checkpoint.

    model              a run, whose best checkpoint gets the thresholds, or a checkpoint
    split              a split of the model's own data, "valid" by default; or
    data               new data: a table, or files of sources and targets
    columns            of a table, of the sources, then of the target; default: the recipe's
    device             "cpu", "cuda", or "auto": a GPU where there is one
    trust_data_paths   that of `regard.evaluate`

    A label whose present threshold reaches the highest F1 keeps it, and so does a label that no
    example has.

    Returns the checkpoint and the threshold of each label. A signature of the checkpoint is
    removed: it was that of other content.
    """
    folder = find_checkpoint(Path(model))
    files = as_paths(data)
    own_split = None if files else "valid"
    evaluation = Evaluation(
        split=split or own_split,
        data=files,
        columns=columns,
        device=device,
        trust_data_paths=trust_data_paths,
    )
    predictor = evaluation.load(folder)
    field = predictor.recipe.data.target
    labels = labels_of(predictor.target)
    if labels is None or not predictor.task.has_threshold:
        raise InvalidArgument(
            "model",
            wanted="a model that predicts several labels",
            got=f"one that gives {predictor.task.gives}",
            remedy="Others have no thresholds.",
        )
    names = labels.names
    probabilities = []
    references = []
    for output, (reference,) in evaluation.predictions(predictor):
        assert output.probabilities is not None
        gold = set(field.parse(reference))
        probabilities.append([output.probabilities[name] for name in names])
        references.append([name in gold for name in names])
    decode = predictor.recipe.decode
    present = np.array([decode.threshold_of(name) for name in names])
    chosen = list(_choose(names, present, np.array(probabilities), np.array(references)))
    changed = {
        each.label: each.threshold
        for each, before in zip(chosen, present, strict=True)
        if each.threshold != before
    }
    if changed:
        _write(folder, {**(decode.thresholds or {}), **changed})
    return folder, chosen


def _write(folder: Path, table: Mapping[str, float]) -> None:
    """Put thresholds into the recipe of a checkpoint."""
    content = store.read(folder, skip=[WEIGHTS, TRAINING_TENSORS])
    config = store.document(content, CONFIG, folder)
    config["recipe"]["decode"]["thresholds"] = dict(table)
    if (folder / store.SIGNATURE).exists():
        log.warning(
            "%s: its signature is removed, which was that of other "
            "content: regard sign signs it again",
            folder,
        )
    store.replace(folder, CONFIG, store.as_json(config))


def _choose(
    names: Sequence[str], present: Array, probabilities: Array, gold: NDArray[np.bool_]
) -> Iterator[ChosenThreshold]:
    """The threshold of each label; `present` (L,) has those until now, the others are (N, L)."""
    best = best_label_thresholds(probabilities, gold)
    predicted = probabilities >= present
    correct = (predicted & gold).sum(0)
    before = 2 * correct / np.maximum(1, predicted.sum(0) + gold.sum(0))
    for k, name in enumerate(names):
        is_better = best.f1[k] > before[k] + EQUAL
        threshold = best.thresholds[k] if is_better else present[k]
        highest = max(float(best.f1[k]), float(before[k]))
        yield ChosenThreshold(
            name, float(threshold), float(before[k]), highest, int(gold[:, k].sum())
        )
