"""Batches of inputs of similar length, within a budget of tokens."""

from itertools import pairwise

from hypothesis import given, strategies as st

from regard.inference.pipelines import length_batches


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
