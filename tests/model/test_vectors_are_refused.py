"""What a model cannot read is refused by name: vectors and numbers instead of token ids or texts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from support.predictors import PARTS
from support.servers import PATIENCE

TEXT = {
    "rnn": PARTS["rnn"],
    "transformer": PARTS["transformer"],
    "conv": PARTS["conv"],
    "bag": {"kind": "bag", "dim": 16},
    "mlp": {"kind": "mlp", "dim": 16},
    "perceiver": {"kind": "perceiver", "dim": 16, "queries": 3},
}
VECTORS = torch.zeros(2, 5, 16)


@pytest.mark.parametrize("encoder", TEXT)
def test_vectors_given_to_an_encoder_of_tokens(encoder):
    table = {"encoder": TEXT[encoder], "pool": {"kind": "mean"}}
    model = regard.build({**table, "num_labels": 2, "source_vocab_size": 9})
    with pytest.raises(InvalidArgument, match=r"source: wanted tokens.*shape \(2, 5, 16\)"):
        model(VECTORS)


def test_vectors_given_to_an_encoder_of_labels():
    table = {"encoder": {"kind": "label", "dim": 16}, "pool": {"kind": "mean"}}
    model = regard.build({**table, "num_labels": 2, "source_vocab_size": 9})
    for wrong in (VECTORS, Tokens.of([[1, 2]])):
        with pytest.raises(InvalidArgument, match=r"source: wanted a tensor .* label ids"):
            model(wrong)


def test_tokens_given_to_an_encoder_of_images():
    table = {"encoder": {"kind": "cnn", "dim": 16, "channels": [4]}, "pool": {"kind": "mean"}}
    model = regard.build({**table, "num_labels": 2})
    with pytest.raises(InvalidArgument, match=r"source: wanted .*pixels"):
        model(Tokens.of([[1, 2]]))


def test_one_source_given_to_an_encoder_of_several():
    table = {"encoders": [TEXT["rnn"], TEXT["rnn"]], "pool": {"kind": "mean"}}
    model = regard.build({**table, "num_labels": 2, "source_vocab_size": 9})
    with pytest.raises(InvalidArgument, match="source: wanted 2 sources"):
        model(Tokens.of([[1, 2]]))


PREDICTORS = """
import numpy, torch
from support.captioners import questioner
from support.predictors import PARTS, classifier, translator

values = [numpy.zeros((5, 16)), [0.1, 0.2], 0.5, None, torch.zeros(3)]
models = [translator(), classifier(), questioner({**PARTS["rnn"], "attention": "luong"})]
for model in models:
    for value in values:
        try:
            model.predict([value])
            print("taken")
        except Exception as error:
            print(type(error).__name__, error)
"""


def test_vectors_given_to_a_predictor():
    """In a process of its own: the types that the tests check would refuse them first."""
    path = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    found = subprocess.run(
        [sys.executable, "-c", PREDICTORS],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == 15
    for line in lines:
        assert line.startswith("InvalidArgument texts")
    for line in lines[:10]:
        assert "wanted texts" in line
        assert "no vectors" in line
