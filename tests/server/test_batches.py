"""Batches of the engine: the results of each work, and the tokens that it has read."""

import pytest

pytest.importorskip("msgspec", reason="needs the extra `serve`")

from regard.server.batches import compute
from regard.server.jobs import Scoring
from support.predictors import language_model, translator


def test_tokens_that_were_read_are_those_of_the_input_and_of_a_given_target():
    lines, model = language_model(), translator()
    texts = ["the cat sat", "the cat", ""]
    for text, found in zip(texts, compute(lines, [Scoring(text) for text in texts]), strict=True):
        assert found.read == len(lines.encode(text)[0])
    (found,) = compute(model, [Scoring("the red dog", "a cat sat")])
    assert found.read == len(model.encode("the red dog")[0]) + len(found.result.tokens)
    assert len(found.result.tokens) == len(model.score(["the red dog"], ["a cat sat"])[0].tokens) > 1
