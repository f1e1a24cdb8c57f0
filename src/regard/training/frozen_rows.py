"""Rows of embeddings that training leaves as they are: those that began as frozen word vectors."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import nn

from regard.core.errors import CheckpointRefused
from regard.core.shapes import Bool, Float, Tensor

# Before the name of a matrix, in the tensors of a checkpoint's training state.
PREFIX = "frozen_rows."


class FrozenRows:
    """Rows of a model's matrices that are not trained,
    while the other rows of the same matrices are.

    Their gradient becomes zero as soon as it is computed. So they count neither in the gradient
    norm nor in the state of the optimizer, and AdamW, which gives embeddings no weight decay, adds
    zero to them. A checkpoint names them in its training state: a resumed run needs no file of word
    vectors.

    names   of the matrices that have such rows
    """

    def __init__(self, model: nn.Module, names: Sequence[str] = ()) -> None:
        parameters = dict(model.named_parameters())
        self.matrices = {name: parameters[name] for name in names}
        self.rows: dict[str, Tensor] = {}

    def freeze(self, rows: Mapping[str, Bool[Tensor, " V"]]) -> None:
        """Freeze these rows of each matrix, for as long as the model exists."""
        for name, frozen in rows.items():
            matrix = self.matrices[name]
            mask = frozen.to(matrix.device)[:, None]  # (V, 1)
            is_trained = matrix.requires_grad
            # PyTorch takes a hook of trained parameters only;
            # train.unfreeze_after may train it later.
            matrix.requires_grad_(True)
            matrix.register_hook(partial(_without_rows, mask))  # type: ignore[no-untyped-call]
            matrix.requires_grad_(is_trained)
            self.rows[name] = frozen

    def tensors(self) -> dict[str, Tensor]:
        """The rows, as the training state of a checkpoint holds them."""
        return {f"{PREFIX}{name}": rows for name, rows in self.rows.items()}

    def load(self, saved: Mapping[str, Tensor], where: Path) -> None:
        """Freeze the rows that the tensors of a checkpoint name."""
        for name, matrix in self.matrices.items():
            rows = saved.get(f"{PREFIX}{name}")
            if rows is None or rows.shape != matrix.shape[:1]:
                got = "none" if rows is None else f"shape {tuple(rows.shape)}"
                wanted = f"the frozen rows of {name}, {len(matrix)} of them"
                raise CheckpointRefused(
                    f"{where}: wanted {wanted}; got {got}. Use another checkpoint."
                )
            self.freeze({name: rows.bool()})


def _without_rows(
    mask: Bool[Tensor, "V 1"], gradient: Float[Tensor, "V W"]
) -> Float[Tensor, "V W"]:
    return gradient.masked_fill(mask, 0.0)
