"""Where outputs looked, exactly: each is read once more, teacher forced, with somebody listening."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.tokenizer import PAD
from regard.decoding.hypothesis import Hypothesis
from regard.model.capture import AttentionCall, capture_attention
from regard.model.memory import Memory


def check_looks(argument: str, model: Any) -> None:
    if not model.decoder.cross_attentions:
        raise InvalidArgument(
            argument,
            wanted="one model whose decoder looks at its source",
            got="a decoder that does not, or several",
            remedy="Leave it out, or choose another model.",
        )


@torch.inference_mode()
def attention(
    model: Any, source: Any, hypotheses: Sequence[Hypothesis], first: int
) -> list[Float[Tensor, "layers H _T S"]]:
    """What each of these outputs of one source looked at: a row for each token and for the end, where it came."""
    check_looks("attention", model)
    cross_attentions: list[nn.Module] = model.decoder.cross_attentions
    given = [(first, *each.tokens)[: len(each.tokens) + each.ended] for each in hypotheses]
    longest = max(map(len, given), default=0)
    if not longest:
        return []
    memory: Memory = model.encode(source)
    rows = torch.zeros(len(given), dtype=torch.int64, device=memory.states.device)
    targets = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in given], device=rows.device)
    seen: list[list[Tensor]] = [[] for _ in cross_attentions]

    def hear(heard: AttentionCall) -> None:
        for looker, parts in zip(cross_attentions, seen, strict=True):
            if heard.source is looker:
                weights = heard.weights()  # (B, H, T, S), or (B, T, S) where there are no heads
                parts.append(weights if weights.dim() == 4 else weights[:, None])

    with capture_attention(hear):
        model.decoder(targets, memory.reorder(rows))
    layers = torch.stack([torch.cat(parts, 2) for parts in seen], 1).float().cpu()  # (B, layers, H, T, S)
    return [each[:, :, : len(row)] for each, row in zip(layers, given, strict=True)]


def covered(model: Any, source: Any, hypotheses: Sequence[Hypothesis], first: int, penalty: float) -> list[Hypothesis]:
    """The outputs of one source, ranked once more by how much of it they looked at.

    A word of the source has received the weight that all tokens gave it, in the mean over layers and heads.
    """
    units = model.encode(source).cls_tokens
    found = []
    for each, weights in zip(hypotheses, attention(model, source, hypotheses, first), strict=True):
        received = weights.mean((0, 1)).sum(0)[units:]  # (S,)
        missing = float(received.clamp(torch.finfo(torch.float32).tiny, 1.0).log().sum())
        found.append(each if each.score is None else each._replace(score=each.score + penalty * missing))
    return sorted(found, key=lambda each: -torch.inf if each.score is None else each.score, reverse=True)
