"""Embeddings: one vector for each input, from the states of a model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.tasks.inputs import EncodedInput
from regard.tasks.pipeline import length_batches

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor


@torch.inference_mode()
def embed(
    predictor: "Predictor", encoded: Sequence[EncodedInput], batch_tokens: int
) -> Float[Tensor, "N W"]:
    """The vector of each encoded input, in float32 on the CPU. See `Predictor.embed`."""
    if not predictor.model.inspectable:
        wanted = "one model"
        remedy = "Choose one of its members."
        raise InvalidArgument(
            "model",
            wanted=wanted,
            got="an ensemble, whose states are not comparable",
            remedy=remedy,
        )
    vectors = dict[int, Tensor]()
    for rows in length_batches(predictor.inputs.sizes(encoded), batch_tokens):
        rows_of_batch = [encoded[row] for row in rows]
        batch = predictor.task.embed(predictor.trained, rows_of_batch).float().cpu()
        vectors.update(zip(rows, batch, strict=True))
    if not vectors:
        return torch.zeros(0, 0)
    return torch.stack([vectors[row] for row in range(len(vectors))])
