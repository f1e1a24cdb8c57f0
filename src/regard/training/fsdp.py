"""A model whose weights, gradients and moments are divided among the ranks, for models that fill more than one GPU.

PyTorch's `fully_shard`, block by block: a block's weights are whole while it computes, and only then. Checkpoints hold
whole tensors, gathered one by one, so they are those of any other run.
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
from regard.training.distributed import ProcessGroup
from regard.training.objective import Objective


class ShardedModel(nn.Module):
    """A model with its objective: what is outside of blocks is whole from the forward to the end of the backward."""

    def __init__(self, model: Model, objective: Objective, ranks: ProcessGroup, device: str) -> None:
        super().__init__()
        self.model, self.objective, self.ranks = model, objective, ranks
        mesh = init_device_mesh(device, (ranks.world,))
        blocks = [module for module in model.modules() if isinstance(module, TransformerBlock)]
        for module in (*blocks, self):
            sharded = fully_shard(module, mesh=mesh, reshard_after_forward=module is not self)
            sharded.set_gradient_divide_factor(1.0)  # a sum: it is divided once, by all tokens
            sharded.set_force_sum_reduction_for_comms(True)

    def forward(self, batch: Batch, step: int) -> tuple[Tensor, int]:
        """The summed loss, and how many predictions it sums over."""
        loss, count, _ = self.objective(self.model, batch, step=step)
        return loss, count

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """With all weights whole on every rank, to be read and not to be trained."""
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

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These tensors undivided, in the first rank's memory. All ranks must ask; the others get nothing."""
        found = {}
        for name, tensor in tensors.items():
            full = self.undivided(tensor)
            if self.ranks.first:
                found[name] = full.detach().cpu()
        return found

    def undivided(self, tensor: Tensor) -> Tensor:
        """A whole tensor of one that may be divided. All ranks must ask."""
        full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return full

    def divided(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of this rank of every tensor of a checkpoint: of weights, and of what is kept for each of them."""
        own = dict(self.model.named_parameters())
        found = dict(tensors)
        for name, tensor in tensors.items():
            like = own.get(name, own.get(name.partition(".")[2]))
            if isinstance(like, DTensor) and tensor.shape == like.shape:
                moved = tensor.to(like.device)
                found[name] = distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)
        return found
