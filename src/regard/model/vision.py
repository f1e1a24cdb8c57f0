"""Attention over images."""

import torch
from torch import nn

from regard.model.multihead import MultiHead
from regard.shapes import Float, Tensor


class SelfAttention2d(nn.Module):
    """A residual block for any CNN: every place of a feature map asks every other.

    The 1×1 convolutions that make queries, keys, values and the output are one linear map at every place, which is
    multi-head attention over the flattened grid. What it adds is scaled by a gate that starts at zero, so that a
    block put into a trained network changes nothing until it has learned to (https://arxiv.org/abs/1805.08318).
    """

    def __init__(self, channels: int, *, heads: int = 1, head_width: int | None = None) -> None:
        super().__init__()
        self.attend = MultiHead(channels, heads, head_width=head_width)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
        places = x.flatten(2).mT  # (B, Y·X, C)
        seen: Tensor = self.attend(places)
        return x + self.gate * seen.mT.reshape(x.shape)
