"""Cross-attention of generated outputs, from a teacher-forced pass over each output, and the re-ranking based on it."""

from collections.abc import Callable, Sequence

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.config import DecodeConfig
from regard.model.capture import AttentionCall, capture_attention
from regard.model.interfaces import Source
from regard.model.multi_source import source_encoders
from regard.model.seq2seq import Model, Seq2Seq

Reranker = Callable[
    [Source, Sequence[Hypothesis]], list[Hypothesis]
]  # a source as a batch of one, and its outputs


def require_cross_attention(argument: str, model: Model) -> Seq2Seq:
    """The model; refused without cross-attention, as a language model, an RNN without attention or an ensemble is.

    Refused too where the decoder attends to learned queries instead of positions of the source.
    """
    generator = model.generator
    if generator is None or not generator.decoder.cross_attentions:
        wanted, remedy = (
            "one model whose decoder attends to its source",
            "Leave it out, or choose another model.",
        )
        raise InvalidArgument(
            argument, wanted=wanted, got="a decoder that does not, or several", remedy=remedy
        )
    if not all(encoder.keeps_positions for encoder in source_encoders(generator.encoder)):
        raise InvalidArgument(
            argument,
            wanted="a model whose decoder attends to the positions of its source",
            got="an encoder whose states are those of learned queries, which stand for no token",
            remedy="Leave it out, or choose another model.",
        )
    return generator


@torch.inference_mode()
def output_attention(
    model: Model, source: Source, hypotheses: Sequence[Hypothesis], first: int | None
) -> list[Float[Tensor, "layers H _T S"]]:
    """The cross-attention weights of each of these outputs of one source, in float32 on the CPU.

    A row for each token and for the end token, where there is one. `first` is the token before an output's first.
    """
    reads = require_cross_attention("attention", model)
    assert first is not None
    layers = {module: list[Tensor]() for module in reads.decoder.cross_attentions}
    targets = [(first, *each.tokens)[: len(each.tokens) + each.ended] for each in hypotheses]
    longest = max(map(len, targets), default=0)
    if not longest:
        return []
    memory = reads.encode(source)
    assert memory is not None
    rows = torch.zeros(len(targets), dtype=torch.int64, device=memory.states.device)
    padded = torch.tensor(
        [[*row, *[first] * (longest - len(row))] for row in targets], device=rows.device
    )

    def collect(call: AttentionCall) -> None:
        if call.source in layers:
            weights = call.weights()  # (B, H, T, S), or (B, T, S) where there are no heads
            layers[call.source].append(weights if weights.dim() == 4 else weights[:, None])

    with capture_attention(collect):
        reads.decoder.hidden(padded, memory.reorder(rows))  # logits would take more memory
    weights = (
        torch.stack([torch.cat(parts, 2) for parts in layers.values()], 1).float().cpu()
    )  # (B, layers, H, T, S)
    return [each[:, :, : len(row)] for each, row in zip(weights, targets, strict=True)]


def coverage_reranker(model: Model, config: DecodeConfig, first: int | None) -> Reranker | None:
    """Ranks the outputs of a source again by score plus coverage (https://arxiv.org/abs/1609.08144).

    The coverage of a source token is the attention it received from all output tokens, averaged over layers and heads
    and at most 1; the penalty multiplies the sum of its logarithms. None where `coverage_penalty` is 0.
    """
    if not config.coverage_penalty:
        return None
    reads = require_cross_attention("coverage_penalty", model)

    def rerank(source: Source, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        memory = reads.encode(source)
        assert memory is not None
        ranked = []
        for each, weights in zip(
            hypotheses, output_attention(reads, memory, hypotheses, first), strict=True
        ):
            received = weights.mean((0, 1)).sum(0)[memory.cls_tokens :]  # (S,)
            coverage = float(received.clamp(torch.finfo(torch.float32).tiny, 1.0).log().sum())
            score = None if each.score is None else each.score + config.coverage_penalty * coverage
            ranked.append(each._replace(score=score))
        return sorted(
            ranked, key=lambda each: -torch.inf if each.score is None else each.score, reverse=True
        )

    return rerank
