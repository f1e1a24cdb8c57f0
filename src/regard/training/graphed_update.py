"""Training updates as CUDA graphs: loss and gradients of a batch, recorded once for each shape.

A replay draws the random numbers of the current seed: a run is bit-identical with and without
graphs.
"""

from collections.abc import Callable

import torch
from torch import nn

from regard.core.errors import TrainingFailed
from regard.core.sequence import Packed, PackedSequences, Tokens
from regard.core.shapes import Tensor
from regard.data.batching import Batch
from regard.kernels.cuda_graphs import GraphRecorder, first_line

Shapes = tuple[torch.Size, ...]
# Other shapes are not recorded: they are rare, such as the end of a text,
# and each needs memory of its own.
MAX_SHAPES = 4


class RecordedBatch:
    """The memory that a recording reads and writes."""

    losses: Tensor
    gradients: list[Tensor | None]

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.inputs = batch_tensors(batch)


class GraphedUpdate:
    """Loss and gradients of batches without padding: running text,
    or packed batches filled up to one size.
    """

    def __init__(self, model: nn.Module, warn: Callable[[str], None]) -> None:
        self.parameters = list(model.parameters())
        self.enabled = self.parameters[0].is_cuda
        self.graphs = GraphRecorder(limit=MAX_SHAPES, release_cache=True, on_failure=_fail)
        self.recorded: dict[Shapes, RecordedBatch] = {}
        if not self.enabled:
            warn(
                "train.cuda_graphs: wanted a GPU; got none. Every kernel is launched "
                "by itself, to the same result."
            )

    def __call__(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Tensor:
        """What `compute` returns, the losses of a batch,
        with the gradients it leaves in parameters that had none.
        """
        if not self.enabled or _has_padding(batch):
            return compute(batch)
        inputs = batch_tensors(batch)
        shapes = tuple(tensor.shape for tensor in inputs)
        if not self.graphs.due(shapes):
            return compute(batch)
        if shapes not in self.recorded:
            self.recorded[shapes] = RecordedBatch(batch.to(self.parameters[0].device))
        memory = self.recorded[shapes]

        def work() -> None:
            memory.losses = compute(memory.batch)
            memory.gradients = [parameter.grad for parameter in self.parameters]

        for static, new in zip(memory.inputs, inputs, strict=True):
            static.copy_(new, non_blocking=True)
        self.graphs.replay(shapes, work)
        for parameter, gradient in zip(self.parameters, memory.gradients, strict=True):
            parameter.grad = gradient
        return memory.losses


def _fail(error: RuntimeError) -> None:
    """Raise: PyTorch's random numbers are unusable after a failed recording,
    so that training cannot go on.
    """
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    raise TrainingFailed(
        f"train.cuda_graphs: wanted work that can be recorded; got {first_line(error)}. "
        "The checkpoints before it are as they were: leave train.cuda_graphs out, and resume."
    ) from error


def _has_padding(batch: Batch) -> bool:
    targets = batch.targets
    return isinstance(targets, Tokens) and batch.tokens < targets.ids.numel() - len(targets.ids)


def batch_tensors(batch: Batch) -> list[Tensor]:
    """The tensors that differ between batches of the same shapes."""
    tensors = []
    for side in (batch.source, batch.targets):
        if isinstance(side, Tokens):
            tensors.append(side.ids)
        elif isinstance(side, PackedSequences):
            tensors += [side.items, side.offsets.cu_seqlens, side.offsets.positions]
            if isinstance(side, Packed) and side.gold is not None:
                tensors.append(side.gold)
    return tensors
