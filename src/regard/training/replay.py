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
from regard.errors import TrainingFailed
from regard.sequence import Tokens
from regard.shapes import Float, Int, Tensor

LAUNCHED = 2  # batches of a shape before it is recorded: libraries choose their kernels in the first
SHAPES = 4  # that are recorded; the rest are rare, as the end of a text is, and each keeps memory of its own


@dataclass(frozen=True)
class Recorded:
    """What was recorded for a shape, and where it reads and writes."""

    play: Callable[[], None]
    ids: Int[Tensor, "B S"]
    loss: Float[Tensor, ""]
    gradients: list[Tensor | None]


class Replay:
    """Loss and gradients of batches without a source."""

    def __init__(self, model: nn.Module, warn: Callable[[str], None]) -> None:
        self.parameters = list(model.parameters())
        self.works = self.parameters[0].is_cuda
        self.seen: Counter[torch.Size] = Counter()
        self.recorded: dict[torch.Size, Recorded] = {}
        if not self.works:
            warn("train.replay: wanted a GPU; got none. Every kernel is launched by itself, to the same result.")

    def __call__(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Tensor:
        """What `compute` returns, the loss, with the gradients it leaves in weights that had none."""
        assert isinstance(batch.targets, Tokens)
        ids = batch.targets.ids
        if not self.works or batch.tokens < ids.numel() - len(ids):  # padding, which a recording knows nothing of
            return compute(batch)
        known = self.recorded.get(ids.shape)
        if known is None:
            self.seen[ids.shape] += 1
            if self.seen[ids.shape] <= LAUNCHED or len(self.recorded) == SHAPES:
                return compute(batch)
            known = self.recorded[ids.shape] = self._record(batch, compute)
        known.ids.copy_(ids)
        known.play()
        for parameter, gradient in zip(self.parameters, known.gradients, strict=True):
            parameter.grad = gradient
        return known.loss

    def _record(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Recorded:
        """Nothing is computed yet."""
        assert isinstance(batch.targets, Tokens)
        still = batch.targets.to(self.parameters[0].device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                loss = compute(replace(batch, targets=still))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # PyTorch's random numbers are of no use after it, so there is no going on here
            got = str(error).partition("\n")[0].rstrip(".")
            raise TrainingFailed(
                f"train.replay: wanted work that can be recorded; got {got}. "
                "The checkpoints before it are as they were: leave train.replay out, and resume."
            ) from error
        return Recorded(graph.replay, still.ids, loss, [parameter.grad for parameter in self.parameters])
