"""A GPU's work on a batch, recorded once for each shape and replayed.

A small model waits for its kernels to be launched, one by one, more than for their work. Replayed they start at once,
do what they did, and draw the random numbers of the seed at hand; so a run is the same with and without.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from regard.data.batches import Batch
from regard.sequence import Tokens
from regard.shapes import Float, Int, Tensor

LAUNCHED = 2  # batches of a shape before it is recorded: libraries choose their kernels in the first
SHAPES = 4  # that are recorded; the rest are rare, as the end of a text is, and each keeps memory of its own


@dataclass(frozen=True)
class Recorded:
    """What was recorded for a shape, and where it reads and writes."""

    graph: torch.cuda.CUDAGraph
    ids: Int[Tensor, "B S"]
    loss: Float[Tensor, ""]
    gradients: list[Tensor | None]


class Replay:
    """Loss and gradients of batches without a source and without padding."""

    def __init__(self, model: nn.Module, warn: Callable[[str], None]) -> None:
        self.parameters, self.warn = list(model.parameters()), warn
        self.seen: Counter[torch.Size] = Counter()
        self.recorded: dict[torch.Size, Recorded] = {}
        self.works = self.parameters[0].is_cuda
        if not self.works:
            warn("train.replay: wanted a GPU; got none. Every kernel is launched by itself, to the same result.")

    def __call__(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Tensor:
        """What `compute` returns, the loss, with the gradients it leaves in weights that had none."""
        assert isinstance(batch.targets, Tokens)
        ids, shape = batch.targets.ids, batch.targets.ids.shape
        if shape in self.recorded:
            return self._replayed(self.recorded[shape], ids)
        self.seen[shape] += 1
        whole = batch.source is None and batch.tokens == ids.numel() - len(ids)
        often = self.seen[shape] > LAUNCHED and len(self.recorded) < SHAPES
        if not (self.works and whole and often):
            return compute(batch)
        try:
            self.recorded[shape] = self._record(batch, compute)
        except RuntimeError as error:
            self.works = False
            got = str(error).partition("\n")[0]
            self.warn(f"train.replay: wanted kernels that can be recorded; got {got} From here on they are launched.")
            for parameter in self.parameters:
                parameter.grad = None
            return compute(batch)
        return self._replayed(self.recorded[shape], ids)

    def _record(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Recorded:
        """Nothing is computed yet."""
        assert isinstance(batch.targets, Tokens)
        still = batch.targets.to(self.parameters[0].device)
        still = replace(still, ids=still.ids.clone(), lengths=still.lengths.clone())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = compute(replace(batch, targets=still))
        return Recorded(graph, still.ids, loss, [parameter.grad for parameter in self.parameters])

    def _replayed(self, known: Recorded, ids: Int[Tensor, "B S"]) -> Tensor:
        known.ids.copy_(ids)
        known.graph.replay()
        for parameter, gradient in zip(self.parameters, known.gradients, strict=True):
            parameter.grad = gradient
        return known.loss
