"""The difference of two outputs: every token once, in order, with its score."""

from dataclasses import astuple

import pytest

import regard
from regard.evaluation.output_difference import marked_changes, token_differences
from support.predictors import translator

OUTPUTS = {
    "equal": ("a b c", "a b c", "a b c"),
    "replaced": ("a b c", "a x c", "a [-b-] {+x+} c"),
    "longer": ("a c", "a b b c", "a {+b b+} c"),
    "shorter": ("a b c d", "a d", "a [-b c-] d"),
    "replaced by more": ("a b c", "a x y c", "a [-b-] {+x y+} c"),
    "nothing in common": ("a b", "x y z", "[-a b-] {+x y z+}"),
    "from nothing": ("", "a", "{+a+}"),
    "nothing": ("", "", ""),
    "moved": ("a b c d", "d a b c", "{+d+} a b c [-d-]"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_token_of_both_outputs_stands_once_and_in_order(name):
    first, second, marked = OUTPUTS[name]
    sides = first.split(), second.split()
    scores = [[-float(i) for i in range(len(side))] for side in sides]
    found = token_differences(*sides, *scores)
    assert [(each.first, each.first_score) for each in found if each.first] == [
        *zip(sides[0], scores[0], strict=True)
    ]
    assert [(each.second, each.second_score) for each in found if each.second] == [
        *zip(sides[1], scores[1], strict=True)
    ]
    assert all((each.change == "equal") == (each.first == each.second) for each in found)
    assert all((each.gain is None) == (each.change in ("insert", "delete")) for each in found)
    assert marked_changes(found) == marked


def test_a_look_under_edits_is_aligned_with_the_one_without():
    model, text = translator(), "the cat sat on the mat"
    plain = regard.look(model, text, max_length=8, min_length=5)
    edit = {"edit": "replace_token", "side": "output", "position": 1, "token": "mat"}
    edited = regard.look(model, text, max_length=8, min_length=5, edits=[edit])
    found = plain.difference(edited)
    assert [each.first for each in found if each.first] == list(plain.output.tokens)
    assert [each.second for each in found if each.second] == list(edited.output.tokens)
    assert found[0].change == "equal"
    assert found[0].gain == pytest.approx(0, abs=1e-6)
    assert any(
        each.change == "replace" and each.second == edited.output.tokens[1] for each in found
    )
    assert sum(each.second_score or 0 for each in found) == pytest.approx(sum(edited.output.scores))
    assert {astuple(each)[0] for each in plain.difference(plain)} == {"equal"}
