"""`regard.average`: one model whose weights are the mean of those
of several trained models (a model soup).
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from regard.checkpoint import store
from regard.checkpoint.format import CARD, SHORTLIST, WEIGHTS, open_checkpoint
from regard.core.atomic_io import named_os_errors
from regard.core.errors import InvalidArgument
from regard.inference.load import load, vocabulary_key
from regard.inference.predictor import Predictor
from regard.model.weights import WeightSum, weights_of

log = logging.getLogger(__name__)

CARD_SECTION = """
## Average

The weights are the mean of those of {count} models: {models}.
"""


def average(models: Sequence[str | Path], out: str | Path) -> Path:
    """Write a checkpoint whose weights are the mean of several models'
    (https://arxiv.org/abs/2203.05482).

    models   two or more runs, whose best checkpoints are taken, or checkpoints: of one [model],
             with the same vocabularies. The checkpoint has the recipe of the first
    out      a folder that does not exist yet

    The mean is a useful model where all were trained on from the same weights (`train.init_from`)
    with other seeds or other settings of [train]; a warning is logged where their recipes say that
    they began with different ones. Returns the folder, which is loaded, evaluated, served and
    exported like any other checkpoint.
    """
    folder = Path(out)
    paths = [Path(model) for model in models]
    if len(paths) < 2:
        raise InvalidArgument(
            "models", wanted="two or more", got=str(len(paths)), remedy="Name more runs."
        )
    with named_os_errors(folder, "a folder to write to"):
        if folder.exists() or str(out) in ("", "."):
            raise InvalidArgument(
                "out",
                wanted="a folder that does not exist yet",
                got=repr(str(out)),
                remedy="Choose another.",
            )
        place, content = open_checkpoint(paths[0])
        first = load(place, device="cpu")
        total = WeightSum()
        total.add(weights_of(first.model))
        beginnings = {_beginning(first)}
        for path in paths[1:]:
            other = load(path, device="cpu")
            _check_same_model(first, other)
            total.add(weights_of(other.model))
            beginnings.add(_beginning(other))
        if len(beginnings) > 1:
            wanted = "models that were trained on from the same weights (train.init_from)"
            got = "different initial weights by their recipes"
            log.warning(
                "average: wanted %s; got %s. Evaluate the result: it may be far worse.", wanted, got
            )
        texts = {
            name: data.decode()
            for name, data in content.items()
            if not _of_training_or_tensors(name)
        }
        names = ", ".join(f"`{path}`" for path in paths)
        texts[CARD] = texts.get(CARD, "") + CARD_SECTION.format(count=len(paths), models=names)
        tensors = {WEIGHTS: total.mean()}
        if SHORTLIST in content:  # of the same vocabularies
            tensors[SHORTLIST] = store.tensors(content, SHORTLIST, place)
        folder.parent.mkdir(parents=True, exist_ok=True)
        store.write(folder, texts, tensors)
    return folder


def _beginning(model: Predictor) -> tuple[str | None, int | None]:
    """What decided the weights before the first update: the checkpoint training started from,
    or the seed.
    """
    config = model.recipe.train
    return config.init_from, None if config.init_from is not None else config.seed


def _check_same_model(first: Predictor, other: Predictor) -> None:
    remedy = "Average models of one recipe, which differ in [train] alone."
    if other.recipe.model != first.recipe.model:
        wanted = f"the [model] of {first.folder}"
        got = "another"
        raise InvalidArgument(str(other.folder), wanted=wanted, got=got, remedy=remedy)
    if vocabulary_key(other) != vocabulary_key(first):
        wanted = f"the vocabularies of {first.folder}"
        got = "others"
        raise InvalidArgument(str(other.folder), wanted=wanted, got=got, remedy=remedy)


def _of_training_or_tensors(name: str) -> bool:
    return name == store.TRAINING_STATE or name.endswith(".safetensors")
