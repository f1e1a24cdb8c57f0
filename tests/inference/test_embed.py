"""Embeddings: the vector of an input does not depend on the batch, and is made of the states it says."""

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.inference.predictor import Predictor
from regard.model.memory import Memory
from regard.recipe.recipe import Recipe
from support.captioners import captioner
from support.predictors import (
    COPY,
    PARTS,
    classifier,
    language_model,
    masked_model,
    tokenizer,
    translator,
)

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


WIRINGS = {
    "default": {},
    "zero state": {"initial_state": "zero"},
    "one MLP for state and context": {"initial_state": "mlp", "context": "initial_state"},
    "initial state alone": {"context": "none"},
}


def autoencoder(wiring: dict[str, Any], encoder: dict[str, Any]) -> Predictor:
    words = tokenizer()
    decoder = {"kind": "rnn", "dim": 16, "attention": "none", **wiring}
    parts = {"encoder": encoder, "decoder": decoder}
    torch.manual_seed(1)
    model = regard.build({**parts, "vocab_size": words.size}).eval()
    return Predictor(model, Recipe.of({"data": COPY, "model": parts}), (words,), words)


@pytest.mark.parametrize("encoder", ["rnn", "transformer"])
@pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS)
@torch.no_grad()
def test_without_attention_the_vector_is_what_the_decoder_reads(wiring, encoder):
    """Decoding from the vector alone gives the model's own log-probabilities: it is the bottleneck."""
    model = autoencoder(wiring, PARTS[encoder])
    vectors = model.embed(TEXTS)
    if encoder == "rnn":
        # The last state of each direction.
        ids = model.source.special_tokens.source(model.source.encode(TEXTS[0]))
        states = model.model.encoder(Tokens.of([ids])).states[0]
        wanted = torch.cat((states[-1, :8], states[0, 8:]))
        assert (vectors[0] - wanted).abs().max() < 1e-6
    targets = ["a cat", "the dog ran", "", "the", "a mat"]
    wanted = model.score(TEXTS, targets)
    for vector, target, score in zip(vectors, targets, wanted, strict=True):
        nothing = Memory(torch.zeros(1, 0, 16), torch.zeros(1, 0, dtype=torch.bool), vector[None])
        special = model.target.special_tokens
        ids = [special.start, *model.target.encode(target), special.end]
        found = model.model.log_probabilities(nothing, torch.tensor([ids]))
        assert float(found.sum()) == pytest.approx(score.log_probability, abs=1e-4)


def test_the_bottleneck_in_a_batch_equals_that_alone():
    model = autoencoder({}, PARTS["rnn"])
    together = model.embed(TEXTS)
    alone = torch.cat([model.embed([text]) for text in TEXTS])
    assert (together - alone).abs().max() < 1e-5
    assert (together[0] - together[1]).abs().max() > 1e-3


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
