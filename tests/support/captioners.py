"""Untrained image captioners, and models of an image and a text."""

import torch

import regard
from regard.data.synthetic.shapes import shapes
from regard.data.train_tokenizer import train_tokenizer
from regard.data.vocabulary import Labels
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe
from support.predictors import translator

CNN = {"kind": "cnn", "channels": [4, 8], "dim": 16}
DECODERS = {
    "rnn": {"kind": "rnn", "dim": 16, "attention": "bahdanau"},
    "blind": {"kind": "rnn", "dim": 16, "attention": "none"},
    "transformer": {"kind": "transformer", "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 32},
}
IMAGE = {"kind": "cnn", "dim": 16, "channels": [4, 8, 8]}
TEXT = {"kind": "transformer", "dim": 16, "heads": 2, "layers": 2, "ffn_dim": 16}
TARGET = {"tokenizer": "words", "vocab_size": 50}


def captioner(decoder: str, encoder: dict = CNN, tokens: dict = TARGET) -> Predictor:
    """One that was never trained."""
    table = {"encoder": encoder, "decoder": DECODERS[decoder]}
    recipe = Recipe.of(
        {
            "data": {"synthetic": "shapes", "source": {"kind": "image"}, "target": tokens},
            "model": table,
            "decode": {"max_length": 6},
        }
    )
    vocabulary = train_tokenizer(
        tokens["tokenizer"], [scene.target for scene in shapes("train", 0, 40)], 300
    )
    torch.manual_seed(0)
    return Predictor(
        regard.build({**table, "vocab_size": vocabulary.size}).eval(), recipe, (None,), vocabulary
    )


def questioner(decoder: dict) -> Predictor:
    """A model that reads an image and a text."""
    words = translator().target
    parts = {"encoders": [IMAGE, TEXT], "decoder": decoder}
    data = {"synthetic": "questions", "sources": [{"kind": "image"}, {}], "target": {}}
    recipe = Recipe.of({"data": data, "model": parts, "decode": {"max_length": 5}})
    torch.manual_seed(0)
    sizes = {"vocab_size": words.size, "source_vocab_size": [words.size]}
    return Predictor(regard.build({**parts, **sizes}).eval(), recipe, (None, words), words)


def image_classifier() -> Predictor:
    labels = Labels(["circle", "square", "triangle"])
    parts = {"encoder": CNN, "pool": {"kind": "mean"}}
    data = {
        "train": "x",
        "source": {"kind": "image", "image_size": 24},
        "target": {"kind": "label"},
    }
    torch.manual_seed(0)
    model = regard.build({**parts, "num_labels": labels.size}).eval()
    return Predictor(model, Recipe.of({"data": data, "model": parts}), (None,), labels)


def question_answerer() -> Predictor:
    """One that reads an image and a text."""
    words = train_tokenizer("words", ["what is red ? a circle is left of a square"], 50)
    table = {
        "encoders": [CNN, DECODERS["transformer"]],
        "decoder": DECODERS["transformer"],
        "tie_embeddings": "none",
    }
    fields = [
        {"kind": "image", "column": "1", "image_size": 24},
        {"tokenizer": "words", "column": "2"},
    ]
    data = {"train": "x.tsv", "sources": fields, "target": {"tokenizer": "words", "column": "3"}}
    torch.manual_seed(0)
    sizes = {"vocab_size": words.size, "source_vocab_size": [words.size]}
    model = regard.build({**table, **sizes}).eval()
    recipe = Recipe.of({"data": data, "model": table, "decode": {"max_length": 6}})
    return Predictor(model, recipe, (None, words), words)
