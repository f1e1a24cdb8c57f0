"""`regard train --dry-run`: the settings, model, first batch and memory of a recipe,
without training.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from regard.api.initial_word_vectors import (
    check_word_vectors,
    frozen_word_vectors,
    load_word_vectors,
)
from regard.api.train import device_of, epochs, make_model, prepare
from regard.api.train_checks import with_warmup
from regard.core.joined_tokens import JoinedTokens
from regard.core.sequence import MultiSource
from regard.data.batching import Batch
from regard.data.config import DataConfig
from regard.data.corpus import Prepared
from regard.inference.teachers import load_teachers
from regard.model.seq2seq import Model
from regard.recipe.recipe import Recipe
from regard.tasks.objective import Objective
from regard.training.telemetry.log_file import Event


def dry_run(recipe: Recipe, cache: Path | None = None) -> str:
    """All settings of a recipe, its model, the first batch as text,
    and the memory that training takes.
    """
    recipe = with_warmup(recipe)
    check_word_vectors(recipe)
    data = prepare(recipe, cache)
    assert data.train is not None
    model = make_model(recipe, recipe.sized(data))
    events: list[Event] = []
    frozen_rows = frozen_word_vectors(recipe, model, data)
    load_word_vectors(recipe, model, data, frozen_rows, events.append)
    batch = next(epochs(recipe, data.train)(0, 0))
    lines = [f"{key} = {value!r}" for key, value in recipe.settings()]
    lines += ["", repr(model), *(event["message"] for event in events)]
    lines += ["", f"first batch: {batch.shape}"]
    for row in range(min(3, len(batch.rows))):
        lines += [f"  {side:<7} {text}" for side, text in _as_text(batch, row, data, recipe.data)]
    names = ("label_smoothing", "mask_probability", "r_drop", "doubly_stochastic", "ctc_weight")
    settings = {name: getattr(recipe.train, name) for name in names}
    settings["output_loss"] = recipe.train.loss
    distillation = load_teachers(recipe, data, device_of(recipe))
    objective = Objective(**settings, distillation=distillation, special_tokens=data.special_tokens)
    activations = _saved_bytes(model, batch.to(next(model.parameters()).device), objective)
    weights = sum(p.numel() for p in model.parameters())
    lines += [
        "",
        f"memory: {16 * weights / 2**20:,.0f} MiB for weights, gradients and the optimizer, "
        f"and about {activations / 2**20:,.0f} MiB for the activations of such a batch",
    ]
    return "\n".join(lines)


def _as_text(
    batch: Batch, row: int, data: Prepared, config: DataConfig
) -> Iterator[tuple[str, str]]:
    sources: tuple[Any, ...] = (batch.source,)
    if isinstance(batch.source, MultiSource):
        sources = batch.source.parts
    elif isinstance(batch.source, JoinedTokens):
        sources = batch.source.parts(len(config.source_fields))
    values = (*sources, batch.targets) if config.source_fields else (batch.targets,)
    vocabularies = (*data.sources, data.target)
    sides = zip(config.fields.items(), vocabularies, values, strict=True)
    for (name, field), vocabulary, side in sides:
        yield name, field.row_text(vocabulary, side, row)


def _saved_bytes(model: Model, batch: Batch, objective: Objective) -> int:
    """The bytes of all storages that the forward pass saves for the backward pass,
    without the weights.
    """
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = objective(model.train(), batch)  # kept alive, so that no storage is reused
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert loss
    return sum(size for pointer, size in storages.items() if pointer not in own)
