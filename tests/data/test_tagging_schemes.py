"""Spans of tags as seqeval finds them in both modes; schemes, constraints and conversion."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from regard.core.errors import InvalidArgument
from regard.data.tagging_schemes import (
    Span,
    constraints,
    convert,
    detect,
    first_violation,
    lenient_spans,
    strict_spans,
    tags_of,
)
from regard.model.crf import LinearChainCRF

SEQEVAL = json.loads((Path(__file__).parents[1] / "fixtures" / "seqeval.json").read_text())
LABELS = {
    "IOB2": ["O", "B-X", "I-X", "B-Y", "I-Y"],
    "BIOES": ["O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y"],
}


def test_spans_are_those_of_seqeval_in_both_modes():
    assert len(SEQEVAL["sequences"]) == 300
    for sequence in SEQEVAL["sequences"]:
        tags = sequence["tags"]
        assert [list(span) for span in lenient_spans(tags)] == sequence["lenient"], tags
        strict = strict_spans(tags, sequence["scheme"])
        assert [list(span) for span in strict] == sequence["strict"], tags


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        ({"O", "B-PER", "I-PER"}, "IOB2"),
        ({"B-PER"}, "IOB2"),
        ({"B", "I", "O"}, "IOB2"),
        ({"O", "B-PER", "I-PER", "B-LOC"}, "IOB2"),
        ({"O", "B-PER", "E-PER"}, "BIOES"),
        ({"O", "S-PER"}, "BIOES"),
        ({"B", "I", "E", "S"}, "BIOES"),
        ({"O"}, "plain"),
        (set(), "plain"),
        ({"NOUN", "VERB", "O"}, "plain"),
        ({"B-PER", "NOUN"}, "plain"),
        ({"BNOUN"}, "plain"),
        ({"I-PER", "O"}, "plain"),
        ({"I-PER", "B-LOC", "I-LOC", "O"}, "plain"),
        ({"I-PER", "E-PER", "O"}, "plain"),
        ({"U-PER", "B-PER", "L-PER"}, "plain"),
    ],
)
def test_detected_scheme(labels, scheme):
    assert detect(labels) == scheme


@pytest.mark.parametrize("scheme", LABELS)
def test_what_is_permitted_is_what_spans_spell(scheme):
    """A sequence is permitted exactly if it is the spelling of its strict spans, which are then the lenient ones."""
    labels = LABELS[scheme]
    crf = LinearChainCRF(len(labels), constraints(labels, scheme))
    for length in range(1, 4):
        every = list(product(range(len(labels)), repeat=length))
        mask = torch.ones(len(every), length, dtype=torch.bool)
        permitted = crf.allows(torch.tensor(every), mask).tolist()
        for path, is_permitted in zip(every, permitted, strict=True):
            tags = [labels[i] for i in path]
            spans = strict_spans(tags, scheme)
            well_formed = tags_of(spans, length, scheme) == tags
            assert is_permitted == well_formed, tags
            assert (first_violation(tags, scheme) is None) == well_formed
            if well_formed:
                assert lenient_spans(tags) == spans


def test_plain_tags_have_no_constraints():
    permitted = constraints(["NOUN", "B-X", "I-Y"], "plain")
    assert permitted.starts.all()
    assert permitted.transitions.all()
    assert permitted.ends.all()
    assert first_violation(["I-X", "NOUN"], "plain") is None


@pytest.mark.parametrize(
    ("tags", "scheme", "position"),
    [
        (["O", "I-X"], "IOB2", 1),
        (["B-X", "I-X", "I-Y"], "IOB2", 2),
        (["B-X", "I-X"], "BIOES", 2),
        (["B-X", "O", "O"], "BIOES", 1),
        (["NOUN"], "IOB2", 0),
        ([], "BIOES", None),
    ],
)
def test_the_first_violation(tags, scheme, position):
    assert first_violation(tags, scheme) == position


CONVERTED = [
    ("B-X I-X O B-Y", "B-X E-X O S-Y"),
    ("B-X I-X I-X B-X", "B-X I-X E-X S-X"),
    ("B I B O", "B E S O"),
    ("B-A-b I-A-b", "B-A-b E-A-b"),
    ("", ""),
]


@pytest.mark.parametrize(("iob2", "bioes"), CONVERTED)
def test_conversion_there_and_back(iob2, bioes):
    assert convert(iob2.split(), "BIOES") == bioes.split()
    assert convert(bioes.split(), "IOB2") == iob2.split()
    assert convert(iob2.split(), "IOB2") == iob2.split()


def test_iob1_and_ill_formed_tags_become_well_formed():
    tags = ["I-X", "I-X", "B-X", "I-Y", "O", "I-Y"]
    assert convert(tags, "IOB2") == ["B-X", "I-X", "B-X", "B-Y", "O", "B-Y"]


def test_tags_of_a_span_without_a_type():
    assert tags_of([Span("_", 1, 2)], 4, "IOB2") == ["O", "B", "I", "O"]


def test_tags_of_no_scheme_are_refused():
    with pytest.raises(InvalidArgument, match="got 'NOUN'"):
        convert(["O", "NOUN"], "IOB2")
    with pytest.raises(InvalidArgument, match=r"tags of the scheme IOB2.*got 'E-X'"):
        constraints(["O", "E-X"], "IOB2")
    with pytest.raises(InvalidArgument, match=r"tags of the scheme IOB2.*got 'E-X'"):
        strict_spans(["O", "E-X"], "IOB2")
