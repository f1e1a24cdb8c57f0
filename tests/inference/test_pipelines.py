"""Batches of inputs of similar length, within a budget of tokens; outputs with and without their tokens."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, strategies as st

from regard.data.tokenizer import Tokenizer
from regard.tasks.pipeline import length_batches
from support.predictors import translator

TEXTS = ["the cat", "a dog sees the cat", "the"]


def test_batches_are_as_large_as_the_budget_allows():
    """An input counts as long as the longest of its batch, with its end token."""
    assert [*length_batches([4, 1, 9, 1, 2], 10)] == [[1, 3, 4], [0], [2]]
    assert [*length_batches([4, 1, 9, 1, 2], 9)] == [[1, 3, 4], [0], [2]]
    assert [*length_batches([4, 1, 9, 1, 2], 8)] == [[1, 3], [4], [0], [2]]
    assert [*length_batches([], 8)] == []


@given(lengths=st.lists(st.integers(0, 30)), budget=st.integers(1, 100))
def test_each_input_is_in_one_batch_within_the_budget(lengths, budget):
    batches = [*length_batches(lengths, budget)]
    assert sorted(row for rows in batches for row in rows) == [*range(len(lengths))]
    for rows in batches:
        assert len(rows) == 1 or len(rows) * (max(lengths[row] for row in rows) + 1) <= budget
    for rows, following in pairwise(batches):
        assert (len(rows) + 1) * (lengths[following[0]] + 1) > budget


def test_outputs_without_tokens_equal_those_with_them():
    predictor, options = translator("words"), {"beam_size": 3, "num_hypotheses": 2, "max_length": 6}
    outputs = predictor.outputs(TEXTS, **options)
    assert all(each.tokens and each.token_ids for best in outputs for each in best)
    without = [[replace(each, tokens=(), token_ids=()) for each in best] for best in outputs]
    assert predictor.outputs(TEXTS, tokens=False, **options) == without


def test_predicted_texts_are_made_without_tokens(monkeypatch):
    predictor = translator("words")
    texts = [best[0].text for best in predictor.outputs(TEXTS, max_length=6)]

    def refuse(*_):
        raise AssertionError("the names of tokens are not needed")

    monkeypatch.setattr(Tokenizer, "pieces", refuse)
    assert predictor.predict(TEXTS, max_length=6) == texts
