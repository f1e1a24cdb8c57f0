"""Looks at one model in several threads at once: each has the memory and the edits of its own input."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

import regard
from support.predictors import translator

TEXTS = ("the cat", "a dog sat on the mat")
PATIENCE = 60


@pytest.fixture
def meeting_model(monkeypatch):
    """A model whose encoder and decoder wait until both threads have come so far."""
    predictor = translator()
    alone = [regard.look(predictor, text, output="the") for text in TEXTS]
    encoders_end = Barrier(len(TEXTS))
    decoders_begin = Barrier(len(TEXTS))
    model = predictor.model
    encode = model.encoder.forward
    decode = model.decoder.forward

    def encode_together(*given):
        encoders_end.wait(PATIENCE)
        return encode(*given)

    def decode_together(*given):
        decoders_begin.wait(PATIENCE)
        return decode(*given)

    monkeypatch.setattr(model.encoder, "forward", encode_together)
    monkeypatch.setattr(model.decoder, "forward", decode_together)
    return predictor, alone


@pytest.mark.parametrize(
    "edits", [(), [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 0}]]
)
def test_each_look_has_the_memory_of_its_own_input(meeting_model, edits):
    predictor, alone = meeting_model

    def look(text: str) -> regard.Look:
        return regard.look(predictor, text, output="the", edits=edits)

    with ThreadPoolExecutor(len(TEXTS)) as threads:
        together = list(threads.map(look, TEXTS))
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.memory.states, other.memory.states)
        assert one.sources == other.sources
