"""What a recipe would do, before it does it."""

from collections.abc import Iterator
from pathlib import Path

import torch

from regard.api.train import epochs, make_model, prepared
from regard.core.sequence import Packed, Tokens
from regard.data.batching import Batch
from regard.data.corpus import Prepared
from regard.data.tokenizer import Labels, Tokenizer
from regard.model.seq2seq import Model
from regard.recipe.recipe import Recipe
from regard.training.objective import Objective


def outlook(recipe: Recipe, cache: Path | None = None) -> str:
    """What a recipe would do: all its settings, the model, the first batch as text, and the memory that takes."""
    data = prepared(recipe, cache)
    assert data.train is not None
    model = make_model(recipe, recipe.sized(data))
    batch = next(epochs(recipe, data.train)(0, 0))
    lines = [f"{key} = {value!r}" for key, value in recipe.settings()]
    lines += ["", repr(model), "", f"first batch: {batch.shape}"]
    for row in range(min(3, len(batch.rows))):
        lines += [f"  {side:<7} {text}" for side, text in _as_text(batch, row, data)]
    held = _held(model, batch.to(next(model.parameters()).device), recipe)
    numbers = sum(p.numel() for p in model.parameters())
    lines += [
        "",
        f"memory: {16 * numbers / 2**20:,.0f} MiB for weights, gradients and the optimiser, "
        f"and about {held / 2**20:,.0f} MiB for what the backward needs of such a batch",
    ]
    return "\n".join(lines)


def _as_text(batch: Batch, row: int, data: Prepared) -> Iterator[tuple[str, str]]:
    for side, given, vocabulary in (("source", batch.source, data.source), ("target", batch.targets, data.target)):
        if isinstance(given, Tokens | Packed) and isinstance(vocabulary, Tokenizer):
            ids = given.row(row)
            yield side, f"{vocabulary.decode(ids)}   ({' '.join(vocabulary.pieces(ids))})"
        elif isinstance(given, torch.Tensor) and isinstance(vocabulary, Labels):
            yield side, vocabulary.decode(int(given[row]))
        elif isinstance(given, torch.Tensor) and given.ndim == 4:
            yield side, f"a picture of {given.shape[3]} × {given.shape[2]} pixels"


def _held(model: Model, batch: Batch, recipe: Recipe) -> int:
    """The bytes of all tensors that a forward keeps for its backward, each once, less the weights themselves."""
    held: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    config = recipe.train
    objective = Objective(
        config.label_smoothing,
        config.mask_probability,
        r_drop=config.r_drop,
        doubly_stochastic=config.doubly_stochastic,
    )
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = objective(model.train(), batch)  # kept alive, or memory would be given out twice
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert loss
    return sum(size for pointer, size in held.items() if pointer not in own)
