"""Embeddings: the vector of an input does not depend on the batch, and is made of the states it says."""

from pathlib import Path

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from support.captioners import captioner
from support.predictors import classifier, language_model, masked_model, translator

GOLDEN = Path(__file__).parents[1] / "golden/0.1.0"
TEXTS = [
    "the cat sat",
    "a dog ran on the mat and the red cat sat",
    "the",
    "",
    "a dogma; the doghouse",
]
MODELS = {
    "rnn encoder": translator(decoder="rnn"),
    "classifier": classifier(),
    "language model": language_model(),
    "running text": language_model(context_length=8),
    "masked": masked_model(),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_padded_equals_alone(name):
    model = MODELS[name]
    together = model.embed(TEXTS)
    alone = torch.cat([model.embed([text]) for text in TEXTS])
    assert together.shape[0] == len(TEXTS)
    assert together.dtype == torch.float32
    assert (together - alone).abs().max() < 1e-5
    assert (together[0] - together[1]).abs().max() > 1e-3
    few = model.embed(TEXTS, batch_tokens=12)  # several batches
    assert (few - together).abs().max() < 1e-5


def test_a_vector_is_the_mean_of_the_states():
    model = MODELS["rnn encoder"]
    source = Tokens.of([model.source.special_tokens.source(model.source.encode("the cat sat"))])
    with torch.no_grad():
        wanted = model.model.encoder(source).states[0].mean(0)
    assert (model.embed(["the cat sat"])[0] - wanted).abs().max() < 1e-6
    lines = MODELS["language model"]
    ids = torch.tensor([[lines.target.special_tokens.start, *lines.target.encode("the cat sat")]])
    with torch.no_grad():
        wanted = lines.model.decoder.hidden(ids)[0].mean(0)
    assert (lines.embed(["the cat sat"])[0] - wanted).abs().max() < 1e-6
    labels = MODELS["classifier"]
    with torch.no_grad():
        logits = labels.model.classifier(labels.embed(["the cat sat"]))
    best = labels.target.decode(int(logits.argmax()))
    assert labels.predict(["the cat sat"]) == [best]


POOLS = {
    "mean": {"kind": "mean"},
    "last": {"kind": "last"},
    "first": {"kind": "first", "projection": "tanh"},
    "attention": {"kind": "attention", "heads": 2, "queries": 2},
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_the_vector_of_a_classifier_is_what_its_pool_makes_of_the_states(pool):
    """The output layer gives the probabilities of the labels for it, whatever the pool is."""
    model = classifier(pool=pool)
    with torch.no_grad():
        probabilities = model.model.classifier(model.embed(TEXTS)).softmax(-1).tolist()
    for (output,), wanted in zip(model.outputs(TEXTS), probabilities, strict=True):
        found = [output.probabilities[name] for name in model.target.names]
        assert found == pytest.approx(wanted, abs=1e-5)


def test_images_have_vectors_too():
    model = captioner("rnn")
    size = model.image_size
    images = [
        torch.full((size, size, 3), value, dtype=torch.uint8).numpy() for value in (0, 120, 255)
    ]
    assert model.embed(images).shape[0] == 3
    assert (model.embed(images)[1] - model.embed([images[1]])[0]).abs().max() < 1e-5


def test_what_cannot_be_embedded_is_refused():
    model = MODELS["rnn encoder"]
    with pytest.raises(InvalidArgument, match="wanted at most 3 tokens"):
        model.embed(["the cat sat on the mat on the mat"], max_source_length=3)
    assert (
        len(model.embed(["the cat sat on the mat on the mat"], max_source_length=3, truncate=True))
        == 1
    )
    assert len(model.embed([])) == 0
    several = regard.load([GOLDEN / "rnn", GOLDEN / "rnn"])
    with pytest.raises(InvalidArgument, match="wanted one model; got an ensemble"):
        several.embed(["a"])
