"""`regard train --dry-run`: the settings, model, first batch and memory of a recipe, without training."""

from collections.abc import Iterator
from pathlib import Path

import torch

from regard.api.train import device_of, epochs, make_model, prepare
from regard.api.train_checks import with_warmup
from regard.core.sanitize import one_line
from regard.core.sequence import MultiSource, Packed, Tokens
from regard.data.batching import Batch
from regard.data.corpus import Prepared
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.inference.teachers import load_teachers
from regard.model.seq2seq import Model
from regard.recipe.recipe import Recipe
from regard.training.objective import Objective


def dry_run(recipe: Recipe, cache: Path | None = None) -> str:
    """All settings of a recipe, its model, the first batch as text, and the memory that training takes."""
    recipe = with_warmup(recipe)
    data = prepare(recipe, cache)
    assert data.train is not None
    model = make_model(recipe, recipe.sized(data))
    batch = next(epochs(recipe, data.train)(0, 0))
    lines = [f"{key} = {value!r}" for key, value in recipe.settings()]
    lines += ["", repr(model), "", f"first batch: {batch.shape}"]
    for row in range(min(3, len(batch.rows))):
        lines += [f"  {side:<7} {text}" for side, text in _as_text(batch, row, data)]
    names = ("label_smoothing", "mask_probability", "r_drop", "doubly_stochastic")
    settings = {name: getattr(recipe.train, name) for name in names}
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


def _as_text(batch: Batch, row: int, data: Prepared) -> Iterator[tuple[str, str]]:
    sources = batch.source.parts if isinstance(batch.source, MultiSource) else (batch.source,)
    sides = [
        ("source", side, vocabulary)
        for side, vocabulary in zip(sources, data.sources, strict=False)
    ]
    for name, side, vocabulary in (*sides, ("target", batch.targets, data.target)):
        if isinstance(side, Tokens | Packed) and isinstance(vocabulary, Tokenizer):
            ids = side.row(row)
            yield name, f"{one_line(vocabulary.decode(ids))}   ({' '.join(vocabulary.pieces(ids))})"
        elif isinstance(side, torch.Tensor) and isinstance(vocabulary, Labels):
            yield name, vocabulary.decode(int(side[row]))
        elif isinstance(side, torch.Tensor) and side.ndim == 4:
            yield name, f"an image of {side.shape[3]} × {side.shape[2]} pixels"


def _saved_bytes(model: Model, batch: Batch, objective: Objective) -> int:
    """The bytes of all storages that the forward pass saves for the backward pass, without the weights."""
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
