"""Untrained image captioners."""

import torch

import regard
from regard.data.synthetic.shapes import shapes
from regard.data.train_tokenizer import train_tokenizer
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe

CNN = {"kind": "cnn", "channels": [4, 8], "dim": 16}
DECODERS = {
    "rnn": {"kind": "rnn", "dim": 16, "attention": "bahdanau"},
    "blind": {"kind": "rnn", "dim": 16, "attention": "none"},
    "transformer": {"kind": "transformer", "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 32},
}
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
    vocabulary = train_tokenizer(tokens["tokenizer"], [scene.target for scene in shapes("train", 0, 40)], 300)
    torch.manual_seed(0)
    return Predictor(regard.build({**table, "vocab_size": vocabulary.size}).eval(), recipe, (None,), vocabulary)
