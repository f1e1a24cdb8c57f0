"""Regard's convolutions as one would write them with PyTorch's own modules, over padding and all: their peer."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, DILATIONS = 512, [1, 2, 4, 8]


class PlainConvolution(nn.Module):
    """x + dropout(gate(convolution(norm(x)))) over three positions: the last ones, or around each."""

    def __init__(self, dilation: int, *, causal: bool) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.conv = nn.Conv1d(WIDTH, 2 * WIDTH, 3, dilation=dilation)
        self.beyond = (2 * dilation, 0) if causal else (dilation, dilation)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.norm(x) if mask is None else self.norm(x) * mask
        return x + self.drop(F.glu(self.conv(F.pad(h.mT, self.beyond)), dim=1)).mT


class PlainLook(nn.Module):
    """One head that looks at the source."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        return x + self.out(F.scaled_dot_product_attention(query, key, value, mask))


class PlainConvolutions(nn.Module):
    """Encoder and decoder, which looks at the source after each layer."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(vocabulary, WIDTH), nn.Dropout(0.1)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.readers = nn.ModuleList(PlainConvolution(each, causal=False) for each in DILATIONS)
        self.speakers = nn.ModuleList(PlainConvolution(each, causal=True) for each in DILATIONS)
        self.looks = nn.ModuleList(PlainLook() for _ in DILATIONS)
        self.read, self.said = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, vocabulary)
        self.project.weight = self.embedding.weight

    def forward(
        self, ids: torch.Tensor, *, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor, use_cache: bool
    ) -> SimpleNamespace:
        there, x, y = attention_mask[..., None], self._embedded(ids), self._embedded(decoder_input_ids)
        for reader in self.readers:
            x = reader(x, there)
        memory, seen = self.read(x), attention_mask[:, None].bool()
        for speaker, look in zip(self.speakers, self.looks, strict=True):
            y = look(speaker(y), memory, seen)
        return SimpleNamespace(logits=self.project(self.said(y)))

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.drop(self.embedding(ids) * WIDTH**0.5)
        return embedded
