"""Grades the exercises of lesson 9."""

import torch


def check_1(answer):
    found = [(list(a), list(b)) for a, b in answer(list(range(8)), 3)]
    assert found == [([0, 1, 2], [1, 2, 3]), ([3, 4, 5], [4, 5, 6])], f"got {found}"


def check_2(answer):
    states, mask = torch.tensor([[[1.0], [3.0], [100.0]]]), torch.tensor([[True, True, False]])
    assert answer(states, mask).tolist() == [[2.0]], "padding does not count"
    assert answer(torch.ones(2, 4, 5), torch.ones(2, 4, dtype=torch.bool)).shape == (2, 5), (
        "wanted one mean per sequence, (B, D)"
    )


def check_3(answer):
    tokens = [5, 6, 7, 8]
    inputs, labels = answer(tokens, [1, 3], 0)
    assert list(inputs) == [5, 0, 7, 0], (
        f"positions 1 and 3 of {tokens} with mask_id 0: wanted inputs [5, 0, 7, 0]; got {inputs}"
    )
    assert list(labels) == [-100, 6, -100, 8], (
        f"positions 1 and 3 of {tokens}: wanted labels [-100, 6, -100, 8]; got {labels}"
    )
    assert tokens == [5, 6, 7, 8], "the given list was changed"
