"""Load a trained model from the folder of a checkpoint or of a run."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.checkpoint import store
from regard.checkpoint.format import (
    CONFIG,
    SHORTLIST,
    WEIGHTS,
    open_checkpoint,
    read_config,
    read_vocabularies,
    writer,
)
from regard.core.errors import CheckpointRefused, InvalidArgument, InvalidRecipe
from regard.data.corpus import SourceVocabularies, VocabularyType, as_running_text
from regard.generation.shortlist import Shortlist
from regard.inference.predictor import Predictor
from regard.kernels import triton_launch
from regard.model.build import build
from regard.model.uninitialized import only_parameters, uninitialized
from regard.model.weights import check_weights, load_weights, weights_of
from regard.recipe.recipe import Recipe
from regard.tasks.base import task_of

LARGE = 1_000_000  # numbers up to this are not compared with the weights of a checkpoint


def load(path: str | Path | Predictor | Sequence[str | Path], *, device: str = "auto") -> Predictor:
    """The model of a checkpoint, or the best of a run, ready to predict.

    Every byte that is read is checked first.

    path     the folder of a checkpoint or of a run; several make an ensemble, which predicts with
             the mean of their probabilities and the first one's recipe. A model that is already
             loaded is returned as it is
    device   "cpu", "cuda", or "auto": a GPU where there is one

    Raises `CheckpointRefused` for a checkpoint that is damaged, incomplete or of another model.
    """
    if isinstance(path, Predictor):
        return path
    if not isinstance(path, str | Path):
        return _ensemble([load(each, device=device) for each in path])
    device = pick_device(device)
    triton_launch.prepare(device)
    folder, content = open_checkpoint(Path(path))
    weights = store.tensors(content, WEIGHTS, folder)
    try:
        config = read_config(content, folder)
        recipe = stored_recipe(config, folder)
        *names, _ = recipe.data.fields
        sources, target = read_vocabularies(content, folder, names)
        target = as_running_text(target, recipe.data.context_length)
        check_sizes(config["model"], [tensor.numel() for tensor in weights.values()])
        # Shapes without memory: sizes that the weights do not have are refused here.
        with torch.device("meta"), uninitialized():
            model = build(config["model"])
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        problem = str(error)[:500].rstrip(".") or type(error).__name__
        raise CheckpointRefused(
            f"{folder}/{CONFIG}: wanted a model's; got {problem}. It was changed."
        ) from None
    check_weights(weights_of(model), weights, folder)
    if recipe.with_sizes(sources, target) != config["model"]:
        wanted = "the model of its recipe, with a row of weights for each id of its vocabularies"
        raise CheckpointRefused(f"{folder}/{CONFIG}: wanted {wanted}; got another. It was changed.")
    assign = only_parameters(model)
    if not assign:
        with uninitialized():
            model = build(config["model"])
    load_weights(model, weights, folder, assign=assign)
    shortlist = _shortlist(content, folder, sources, target)
    return Predictor(model.to(device).eval(), recipe, sources, target, folder, shortlist)


def _shortlist(
    content: Mapping[str, bytes], folder: Path, sources: SourceVocabularies, target: VocabularyType
) -> Shortlist | None:
    """The vocabulary shortlist of a checkpoint; refused if it is not one of its vocabularies."""
    if SHORTLIST not in content:
        return None
    size = 0
    if len(sources) == 1 and sources[0] is not None:
        size = sources[0].size
    try:
        return Shortlist.of(store.tensors(content, SHORTLIST, folder), size, target.size)
    except ValueError as error:
        raise CheckpointRefused(
            f"{folder / SHORTLIST}: {error}. Learn it again: regard shortlist."
        ) from None


def stored_recipe(config: Mapping[str, Any], folder: Path) -> Recipe:
    """The recipe in config.json of a checkpoint.

    Unknown keys are refused, with the version that wrote them.
    """
    try:
        return Recipe.of(config["recipe"])
    except InvalidRecipe as error:
        problem = str(error)[:500].rstrip(".")
        raise CheckpointRefused(
            f"{folder}/{CONFIG}: wanted a recipe; got {problem}. {writer(config)}"
        ) from None


def check_sizes(table: Any, weights: Sequence[int], key: str = "model") -> None:
    """Refuse a model's table whose numbers cannot be those of tensors of so many weights each.

    Before anything of that size is made: each layer has a tensor, and a size beyond a million has
    as many weights.
    """
    if isinstance(table, Mapping):
        for name, value in table.items():
            check_sizes(value, weights, f"{key}.{name}")
        return
    if isinstance(table, list):
        for each in table[: len(weights) + 1]:
            check_sizes(each, weights, key)
    size = 0
    if isinstance(table, list):
        size = len(table)
    elif isinstance(table, int):
        size = table
    limit = max([LARGE, *weights])
    if isinstance(table, list) or key.endswith(".layers"):
        limit = len(weights)  # each layer has a tensor
    if size > limit:
        raise ValueError(f"{key} = {size} with {len(weights)} tensors of at most {limit} weights")


def pick_device(name: str) -> str:
    """The device of this name; "auto" is a GPU where PyTorch finds one."""
    count = torch.cuda.device_count()
    devices = ["cpu", *(["cuda"] * bool(count)), *(f"cuda:{number}" for number in range(count))]
    if name == "auto":
        return "cuda" if count else "cpu"
    if name not in devices:
        wanted = "auto, cpu, or cuda (cuda:1, …) where PyTorch finds a GPU"
        remedy = "Use cpu."
        if name == "gpu" and count:
            remedy = "Use cuda."
        elif name == "gpu":
            remedy = "A GPU is named cuda, but PyTorch finds none: use cpu."
        raise InvalidArgument("device", wanted=wanted, got=repr(name), remedy=remedy)
    return name


def current_device(name: str) -> AbstractContextManager[Any]:
    """Makes a GPU the current one of this thread: kernels are launched there."""
    device = torch.device(pick_device(name))
    if device.type == "cuda":
        return torch.cuda.device(device)
    return nullcontext()


def _ensemble(members: Sequence[Predictor]) -> Predictor:
    """Refused unless all members have the same task and the same vocabularies."""
    models = [member.model for member in members]
    tasks = [model.task for model in models]
    if len(set(tasks)) != 1:
        raise InvalidArgument(
            "path",
            wanted="models of one task",
            got=" and ".join(dict.fromkeys(tasks)) or "none",
            remedy="Leave others out.",
        )
    first = members[0]
    for other in members[1:]:
        if vocabulary_key(other) != vocabulary_key(first):
            wanted = f"the vocabularies of {first.folder}"
            remedy = "Train them on the same prepared data."
            raise InvalidArgument(str(other.folder), wanted=wanted, got="others", remedy=remedy)
    return replace(first, model=task_of(models[0]).ensemble(models))


def vocabulary_key(predictor: Predictor) -> tuple[bool, *tuple[str | None, ...]]:
    """What two models must have in common to be combined: the hashes of their vocabularies,
    and running text.
    """
    vocabularies = (*predictor.sources, predictor.target)
    hashes = [None if each is None else each.hash for each in vocabularies]
    return predictor.running_text, *hashes
