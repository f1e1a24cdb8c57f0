"""Cross-attention of generated outputs, from a teacher-forced pass over each output, and re-ranking by it."""

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

# Takes a source as a batch of one, and its outputs.
Reranker = Callable[[Source, Sequence[Hypothesis]], list[Hypothesis]]


def require_cross_attention(argument: str, model: Model) -> Seq2Seq:
    """The model, if it has cross-attention to the positions of its source.

    Refused are language models, RNNs without attention and ensembles, and models whose decoder attends to learned
    queries instead of positions of the source.
    """
    generator = model.generator
    if generator is None or not generator.decoder.cross_attentions:
        wanted = "one model whose decoder attends to its source"
        remedy = "Leave it out, or choose another model."
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

    There is a row for each token, and for the end token where there is one.

    first   the token that precedes every output
    """
    reads = require_cross_attention("attention", model)
    assert first is not None
    layers = {module: list[Tensor]() for module in reads.decoder.cross_attentions}
    # The decoder's inputs. An output that did not end has no row for an end token.
    targets = []
    for each in hypotheses:
        size = len(each.tokens) + each.ended
        targets.append((first, *each.tokens)[:size])
    longest = max(map(len, targets), default=0)
    if not longest:
        return []
    memory = reads.encode(source)
    assert memory is not None
    rows = torch.zeros(len(targets), dtype=torch.int64, device=memory.states.device)
    padded_rows = [[*row, *[first] * (longest - len(row))] for row in targets]
    padded = torch.tensor(padded_rows, device=rows.device)  # (B, T)

    def collect(call: AttentionCall) -> None:
        if call.source in layers:
            weights = call.weights()  # (B, H, T, S), or (B, T, S) where there are no heads
            if weights.dim() == 3:
                weights = weights[:, None]
            layers[call.source].append(weights)

    with capture_attention(collect):
        # Hidden states suffice: logits would take more memory.
        reads.decoder.hidden(padded, memory.reorder(rows))
    by_layer = [torch.cat(parts, 2) for parts in layers.values()]  # each (B, H, T, S)
    weights = torch.stack(by_layer, 1).float().cpu()  # (B, layers, H, T, S)
    return [each[:, :, : len(row)] for each, row in zip(weights, targets, strict=True)]


def _rank(hypothesis: Hypothesis) -> float:
    """The score by which outputs are sorted; outputs without a score come last."""
    if hypothesis.score is None:
        return -torch.inf
    return hypothesis.score


def coverage_reranker(model: Model, config: DecodeConfig, first: int | None) -> Reranker | None:
    """A function that ranks the outputs of a source again by score plus coverage (https://arxiv.org/abs/1609.08144).

    The coverage of a source token is the attention it received from all output tokens, averaged over layers and heads
    and at most 1. The penalty multiplies the sum of its logarithms. None where `coverage_penalty` is 0.
    """
    if not config.coverage_penalty:
        return None
    reads = require_cross_attention("coverage_penalty", model)

    def rerank(source: Source, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        memory = reads.encode(source)
        assert memory is not None
        attention = output_attention(reads, memory, hypotheses, first)
        tiny = torch.finfo(torch.float32).tiny  # keeps the logarithm finite
        ranked = []
        for each, weights in zip(hypotheses, attention, strict=True):
            received = weights.mean((0, 1)).sum(0)  # (S,)
            of_tokens = received[memory.cls_tokens :]
            coverage = float(of_tokens.clamp(tiny, 1.0).log().sum())
            score = each.score
            if score is not None:
                score = score + config.coverage_penalty * coverage
            ranked.append(each._replace(score=score))
        return sorted(ranked, key=_rank, reverse=True)

    return rerank
