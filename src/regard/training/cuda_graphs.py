"""A GPU's work on a batch, recorded once for each shape and replayed.

A small model waits for its kernels to be launched, one by one, more than for their work. Replayed they start at once,
do what they did, and draw the random numbers of the seed at hand; so a run is the same with and without.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from regard.core.errors import TrainingFailed
from regard.core.sequence import Packed, Tokens
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch

LAUNCHED = 2  # batches of a shape before it is recorded: libraries choose their kernels in the first
Shapes = tuple[torch.Size, ...]
SHAPES = 4  # that are recorded; the rest are rare, as the end of a text is, and each keeps memory of its own


@dataclass(frozen=True)
class RecordedGraph:
    """What was recorded for a shape, and where it reads and writes."""

    play: Callable[[], None]
    inputs: list[Tensor]
    loss: Float[Tensor, ""]
    gradients: list[Tensor | None]


class GraphedUpdate:
    """Loss and gradients of batches of running text, or of packed ones that are filled up to one size."""

    def __init__(self, model: nn.Module, warn: Callable[[str], None]) -> None:
        self.parameters = list(model.parameters())
        self.works = self.parameters[0].is_cuda
        self.seen: Counter[Shapes] = Counter()
        self.recorded: dict[Shapes, RecordedGraph] = {}
        if not self.works:
            warn("train.cuda_graphs: wanted a GPU; got none. Every kernel is launched by itself, to the same result.")

    def __call__(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Tensor:
        """What `compute` returns, the loss, with the gradients it leaves in weights that had none."""
        if not self.works or _has_padding(batch):  # which a recording knows nothing of
            return compute(batch)
        inputs = _inputs(batch)
        shapes = tuple(tensor.shape for tensor in inputs)
        known = self.recorded.get(shapes)
        if known is None:
            self.seen[shapes] += 1
            if self.seen[shapes] <= LAUNCHED or len(self.recorded) == SHAPES:
                return compute(batch)
            known = self.recorded[shapes] = self._record(batch, compute)
        for mine, new in zip(known.inputs, inputs, strict=True):
            mine.copy_(new, non_blocking=True)
        known.play()
        for parameter, gradient in zip(self.parameters, known.gradients, strict=True):
            parameter.grad = gradient
        return known.loss

    def _record(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> RecordedGraph:
        """Nothing is computed yet."""
        still = batch.to(self.parameters[0].device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                loss = compute(still)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # PyTorch's random numbers are of no use after it, so there is no going on here
            got = str(error).partition("\n")[0].rstrip(".")
            raise TrainingFailed(
                f"train.cuda_graphs: wanted work that can be recorded; got {got}. "
                "The checkpoints before it are as they were: leave train.cuda_graphs out, and resume."
            ) from error
        return RecordedGraph(graph.replay, _inputs(still), loss, [parameter.grad for parameter in self.parameters])


def _has_padding(batch: Batch) -> bool:
    targets = batch.targets
    return isinstance(targets, Tokens) and batch.tokens < targets.ids.numel() - len(targets.ids)


def _inputs(batch: Batch) -> list[Tensor]:
    """What is another in each batch of these shapes."""
    found = []
    for side in (batch.source, batch.targets):
        if isinstance(side, Tokens):
            found.append(side.ids)
        elif isinstance(side, Packed):
            found += [
                side.ids,
                side.offsets.cu_seqlens,
                side.offsets.positions,
                *(() if side.gold is None else (side.gold,)),
            ]
    return found
