"""Grades the exercises of lesson 11."""

import torch

import regard


def check_1(answer):
    features = torch.randn(3, 2, 4)
    found = answer(features)
    assert found.shape == (8, 3), (
        f"wanted 8 regions of 3 channels, (8, 3); got {tuple(found.shape)}"
    )
    assert torch.equal(found[5], features[:, 1, 1]), (
        "region 5 of a grid of 4 columns is row 1, column 1"
    )


def check_2(answer):
    image = torch.arange(2 * 4 * 4).view(2, 4, 4)
    found = answer(image, 2)
    assert found.shape == (4, 8), (
        f"wanted 4 patches of 2 · 2 · 2 numbers, (4, 8); got {tuple(found.shape)}"
    )
    assert found[1].tolist() == image[:, :2, 2:].flatten().tolist(), "patch 1 is above on the right"
    assert found[2].tolist() == image[:, 2:, :2].flatten().tolist(), "patch 2 is below on the left"


def check_3(answer):
    features, state, W = torch.randn(3, 2, 2), torch.randn(5), torch.randn(5, 3)
    regions = features.flatten(1).T
    wanted = regard.attend((state @ W)[None], regions, regions, score=regard.Dot())[0]
    assert torch.allclose(answer(features, state, W), wanted, atol=1e-4), (
        "softmax of the scores over all regions, then the weighted mean of the regions"
    )
