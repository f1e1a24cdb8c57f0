"""Whole models: one sentence of the grammar each.

source ──Encoder──▶ Memory ──Decoder──▶ logits          (or Memory ──Pool──▶ label)
"""

from typing import Any

from torch import nn

from regard.core.shapes import Float, Int, Tensor
from regard.model.memory import Memory
from regard.model.summary import describe


class Seq2Seq(nn.Module):
    """Anything to a sequence. Without an encoder, a language model."""

    def __init__(self, encoder: nn.Module | None, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def encode(self, source: Any) -> Any:
        """The memory of a source, as the decoder takes it; None for a language model."""
        return None if self.encoder is None else self.encoder(source)

    def __repr__(self) -> str:
        return describe(self)

    def forward(self, source: Any, targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Logits of the token after each of the targets, which begin with the token that starts a sentence."""
        logits: Tensor = self.decoder(targets, self.encode(source))
        return logits

    def log_probabilities(self, source: Any, targets: Int[Tensor, "B T1"]) -> Float[Tensor, "B T"]:
        """The log-probability of each target after the first, given those before it; in float32, never a product."""
        logits: Tensor = self(source, targets[:, :-1])
        chosen = targets[:, 1:, None]
        return logits.float().log_softmax(-1).gather(-1, chosen)[..., 0]


class Classifier(nn.Module):
    """Anything to a label."""

    def __init__(self, encoder: nn.Module, pool: nn.Module, labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.pool = encoder, pool
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(int(pool.dim), labels)  # type: ignore[arg-type]

    def forward(self, source: Any) -> Float[Tensor, "B labels"]:
        logits: Tensor = self.out(self.dropout(self.pool(self.encoder(source))))
        return logits

    def __repr__(self) -> str:
        return describe(self)


class MaskedTokens(nn.Module):
    """What stands at each position of a sequence, some of whose tokens are hidden: pre-training for an encoder."""

    def __init__(self, encoder: nn.Module, project: nn.Module, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.encoder, self.project = encoder, project
        dim = int(encoder.dim)  # type: ignore[arg-type]
        self.turn = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim, epsilon))

    def forward(self, source: Any) -> Float[Tensor, "B S V"]:
        memory: Memory = self.encoder(source)
        logits: Tensor = self.project(self.turn(memory.states[:, memory.cls_tokens :]))
        return logits

    def __repr__(self) -> str:
        return describe(self)
