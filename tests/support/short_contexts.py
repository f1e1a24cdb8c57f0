"""Language models with contexts of five tokens, and what they give by forward passes over their window."""

from collections.abc import Sequence

import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.data.special_tokens import END
from regard.generation.config import DecodeConfig
from regard.generation.request import SearchTask
from regard.model.seq2seq import Seq2Seq
from support.models import DECODERS, VOCABULARY, WIDTH, decoder

CONTEXT, LONGEST = 5, 12
EXTRAPOLATING = {
    name
    for name in DECODERS
    if not name.startswith("transformer") or name.endswith(("alibi", "relative", "like T5"))
}


def language_model(name: str) -> Seq2Seq:
    made = decoder(name, None)
    made.project.weight = nn.Parameter(
        0.5 * torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(2))
    )
    return Seq2Seq(None, made).eval()


def task(made: Seq2Seq, **options) -> SearchTask:
    config = DecodeConfig(**{"max_length": LONGEST, **options})
    return SearchTask(
        made, Tokens.of, config, first=END, ends=False, scored=True, context_length=CONTEXT
    )


def recomputed(
    made: Seq2Seq, tokens: Sequence[int], *, slides: bool = True, context: int = CONTEXT
) -> list[torch.Tensor]:
    """Log-probabilities of the token at each position, by a forward pass over its window."""
    read, rows = [END, *tokens], []
    for length in range(1, len(read)):
        stride = -(-context // 2)
        start = max(0, -(-(length - context) // stride) * stride) if slides else 0
        rows.append(made(None, torch.tensor([read[start:length]]))[0, -1].log_softmax(-1))
    return rows
