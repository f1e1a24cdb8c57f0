"""Fully sharded data parallelism: weights, gradients and optimizer state divided among the ranks.

PyTorch's `fully_shard`, block by block: the weights of a block are gathered only while it computes.
Checkpoints hold whole tensors, gathered one by one, so they are the same as those of any other run.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from regard.core.shapes import Tensor
from regard.data.batching import Batch
from regard.model.seq2seq import Model
from regard.model.transformer_block import TransformerBlock
from regard.tasks.objective import BatchLoss, Objective
from regard.training.distributed import ProcessGroup


class ShardedModel(nn.Module):
    """A model with its objective.

    Weights outside of blocks stay gathered from the forward through the backward.
    """

    def __init__(
        self, model: Model, objective: Objective, process_group: ProcessGroup, device: str
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.process_group = process_group
        mesh = init_device_mesh(device, (process_group.world_size,))
        blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
        for module in (*blocks, self):
            sharded = fully_shard(module, mesh=mesh, reshard_after_forward=module is not self)
            # The gradient is a sum: it is divided once, by all tokens.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

    def forward(self, batch: Batch, step: int) -> BatchLoss:
        """The loss of a batch."""
        return self.objective(self.model, batch, step=step)

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """With all weights gathered on every rank, for inference."""
        parts: list[Any] = [module for module in self.modules() if isinstance(module, FSDPModule)]
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                part.set_reshard_after_forward(part is not self, recurse=False)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors, on rank 0's host; other ranks get none.

        A collective: all ranks must call it.
        """
        gathered = {}
        for name, tensor in tensors.items():
            full = self.full_tensor(tensor)
            if self.process_group.is_main:
                gathered[name] = full.detach().cpu()
        return gathered

    def scatter(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The shards of this rank of all tensors of a checkpoint: of weights,
        and of the optimizer state of each.
        """
        own = dict(self.model.named_parameters())
        shards = dict(tensors)
        for name, tensor in tensors.items():
            like = own.get(name, own.get(name.partition(".")[2]))
            if isinstance(like, DTensor) and tensor.shape == like.shape:
                moved = tensor.to(like.device)
                shards[name] = distribute_tensor(
                    moved, like.device_mesh, like.placements, src_data_rank=None
                )
        return shards

    @staticmethod
    def full_tensor(tensor: Tensor) -> Tensor:
        """The whole of a tensor that may be sharded. A collective: all ranks must call it."""
        full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return full
