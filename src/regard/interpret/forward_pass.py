"""A forward pass over one input that can be run again, under capture or with gradients."""

from dataclasses import dataclass

import torch
from torch import nn

from regard.core.shapes import Float, Int, Tensor
from regard.model.interfaces import Source

CHUNK = 1024  # rows of logits whose log-softmax is in memory at once


@dataclass(frozen=True)
class ForwardPass:
    """A model, and a batch of one input with the output it is given (teacher forcing)."""

    model: nn.Module
    source: Source | None  # None for a language model
    targets: Int[Tensor, "1 T"] | None  # the decoder's input, for a model with a decoder
    labels: Int[Tensor, " T"] | None  # the token predicted after each target, or the label; None if there is no output

    def __call__(self) -> Tensor:
        """Logits: (T, V), or (1, labels)."""
        logits: Tensor = self.model(self.source) if self.targets is None else self.model(self.source, self.targets)
        return logits if self.targets is None else logits[0]


def log_probabilities(logits: Float[Tensor, "T V"], labels: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
    """The log-probability of each label, computed a chunk of rows at a time to bound memory."""
    chosen = torch.empty_like(labels, dtype=torch.float32)
    for start in range(0, len(labels), CHUNK):
        rows = slice(start, start + CHUNK)
        chosen[rows] = logits[rows].float().log_softmax(-1).gather(-1, labels[rows, None])[:, 0]
    return chosen
