"""Embeddings: one vector for each input, from the states of a model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.core.shapes import Float, Tensor
from regard.data.tokenizer import Tokenizer
from regard.inference.inputs import EncodedInput
from regard.inference.pipelines import length_batches
from regard.model.memory import Memory, masked_mean

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor


@torch.inference_mode()
def embed(
    predictor: "Predictor", encoded: Sequence[EncodedInput], batch_tokens: int
) -> Float[Tensor, "N W"]:
    """The vector of each encoded input, in float32 on the CPU. See `Predictor.embed`."""
    if not predictor.model.inspectable:
        wanted, remedy = "one model", "Choose one of its members."
        raise InvalidArgument(
            "model",
            wanted=wanted,
            got="an ensemble, whose states are not comparable",
            remedy=remedy,
        )
    vectors = dict[int, Tensor]()
    for rows in length_batches(predictor.inputs.sizes(encoded), batch_tokens):
        batch = _batch(predictor, [encoded[row] for row in rows]).float().cpu()
        vectors.update(zip(rows, batch, strict=True))
    return (
        torch.stack([vectors[row] for row in range(len(vectors))]) if vectors else torch.zeros(0, 0)
    )


def _batch(predictor: "Predictor", encoded: Sequence[EncodedInput]) -> Float[Tensor, "B W"]:
    model = predictor.model
    classifier, generator = model.as_classifier(), model.as_seq2seq()
    if predictor.sources:
        source = predictor.inputs.collate(encoded)
        memory = model.encode(source)
        assert memory is not None
        pooled: Tensor = _mean(memory) if classifier is None else classifier.pool(memory)
        return pooled
    assert isinstance(predictor.target, Tokenizer)
    special, running = predictor.target.special_tokens, predictor.running_text
    texts = [ids for ids in encoded if isinstance(ids, list)]
    device = next(model.parameters()).device
    if generator is None:  # a masked language model
        memory = model.encode(
            Tokens.of(texts if running else [special.target(ids) for ids in texts], device=device)
        )
        assert memory is not None
        return _mean(memory)
    first = special.end if running else special.start
    tokens = Tokens.of(texts if first is None else [[first, *ids] for ids in texts], device=device)
    return masked_mean(generator.decoder.hidden(tokens.ids), tokens.mask)


def _mean(memory: Memory) -> Float[Tensor, "B W"]:
    return masked_mean(memory.states, memory.mask)
