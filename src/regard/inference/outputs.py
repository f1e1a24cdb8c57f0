"""The outputs of a model: hypotheses decoded into texts, and labels with their probabilities."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Tensor
from regard.data.tokenizer import END, Labels, Tokenizer
from regard.decoding.config import DecodeConfig
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.request import Request, SearchTask
from regard.inference import phrases
from regard.inference.inputs import EncodedInput, InputEncoder
from regard.inference.score import length_batches
from regard.interpret.output_attention import output_attention, require_cross_attention
from regard.model.seq2seq import Classifier


@dataclass(frozen=True)
class Output:
    """One output for an input."""

    text: str
    tokens: tuple[str, ...] = ()
    log_probabilities: tuple[float, ...] | None = None  # of each token and of the end token, where there is one
    score: float | None = None  # by which outputs are ranked
    truncated: bool = False  # whether the input was too long and its end was dropped
    token_ids: tuple[int, ...] = ()  # with the end token, where there is one
    # Cross-attention weights: a row for each token and for the end token, where there is one; a column for each token
    # of the source and its end token, after a [CLS] token where the encoder has one.
    attention: Float[Tensor, "layers H T S"] | None = None

    @property
    def log_probability(self) -> float | None:
        """Of the whole output."""
        return None if self.log_probabilities is None else sum(self.log_probabilities)


def label_outputs(
    model: Classifier,
    labels: Labels,
    inputs: InputEncoder,
    encoded: list[EncodedInput],
    config: DecodeConfig,
    *,
    scored: bool,
) -> Iterator[tuple[int, list[Output]]]:
    """The index of each input and its `num_hypotheses` most likely labels, as they are computed."""
    count = min(config.num_hypotheses, labels.size)
    for rows in length_batches(inputs.sizes(encoded), config.batch_tokens):
        with torch.inference_mode():
            log_p = model(inputs.collate([encoded[row] for row in rows])).float().log_softmax(-1)
            values, best = (x.tolist() for x in log_p.topk(count))
        for row, likely, chosen in zip(rows, values, best, strict=True):
            yield (
                row,
                [
                    Output(name, (name,), (value,) if scored else None, value if scored else None)
                    for name, value in zip(map(labels.decode, chosen), likely, strict=True)
                ],
            )


def sequence_outputs(
    tokenizer: Tokenizer, task: SearchTask, requests: list[Request], *, attention: bool
) -> Iterator[tuple[int, list[Output]]]:
    """The index of each request and its outputs, best first, as the search finishes them."""
    if attention:
        require_cross_attention("attention", task.model)
    for index, hypotheses in phrases.search(tokenizer, task, requests):
        request, weights = requests[index], list[Tensor | None]([None] * len(hypotheses))
        if attention:
            weights = [*output_attention(task.model, task.collate([request.source]), hypotheses, task.first)]
        outputs = [
            _output(tokenizer, each, request.given, rows) for each, rows in zip(hypotheses, weights, strict=True)
        ]
        yield index, outputs or [Output("")]  # where the logits processors leave no token


def _output(tokenizer: Tokenizer, hypothesis: Hypothesis, skip: int, attention: Tensor | None) -> Output:
    """Without the first `skip` tokens, which continue a language model's prompt."""
    ids, log_p = hypothesis.tokens[skip:], hypothesis.log_probabilities
    return Output(
        tokenizer.decode(ids),
        tuple(tokenizer.pieces(ids)),
        None if log_p is None else log_p[skip:],
        hypothesis.score,
        token_ids=(*ids, END) if hypothesis.ended else ids,
        attention=attention,
    )
