"""Regard's convolutional encoder-decoder in PyTorch's own modules over padded batches: the peer of its benchmark."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

DIM, DILATIONS = 512, [1, 2, 4, 8]


class PlainConvolution(nn.Module):
    """x + dropout(GLU(convolution(norm(x)))) over three positions: the last ones if causal, otherwise around each."""

    def __init__(self, dilation: int, *, causal: bool) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(DIM), nn.Dropout(0.1)
        self.conv = nn.Conv1d(DIM, 2 * DIM, 3, dilation=dilation)
        self.padding = (2 * dilation, 0) if causal else (dilation, dilation)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.norm(x) if mask is None else self.norm(x) * mask
        return x + self.dropout(F.glu(self.conv(F.pad(h.mT, self.padding)), dim=1)).mT


class PlainCrossAttention(nn.Module):
    """One head over the source."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        return x + self.out(F.scaled_dot_product_attention(query, key, value, mask))


class PlainConvolutions(nn.Module):
    """Encoder and decoder, with cross-attention after each layer of the decoder."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocabulary, DIM), nn.Dropout(0.1)
        nn.init.normal_(self.embedding.weight, std=DIM**-0.5)
        self.encoder_layers = nn.ModuleList(
            PlainConvolution(each, causal=False) for each in DILATIONS
        )
        self.decoder_layers = nn.ModuleList(
            PlainConvolution(each, causal=True) for each in DILATIONS
        )
        self.cross_attention = nn.ModuleList(PlainCrossAttention() for _ in DILATIONS)
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.project = nn.Linear(DIM, vocabulary)
        self.project.weight = self.embedding.weight

    def forward(
        self,
        ids: torch.Tensor,
        *,
        attention_mask: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        use_cache: bool,
    ) -> SimpleNamespace:
        column_mask, row_mask = attention_mask[..., None], attention_mask[:, None].bool()
        x, y = self._embed(ids), self._embed(decoder_input_ids)
        for layer in self.encoder_layers:
            x = layer(x, column_mask)
        memory = self.encoder_norm(x)
        for layer, attention in zip(self.decoder_layers, self.cross_attention, strict=True):
            y = attention(layer(y), memory, row_mask)
        return SimpleNamespace(logits=self.project(self.decoder_norm(y)))

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.dropout(self.embedding(ids) * DIM**0.5)
        return embedded
