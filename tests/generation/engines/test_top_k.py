"""The largest scores of each row by a kernel, in Triton's interpreter."""

import os

import pytest
import torch

if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs Triton's interpreter; on a GPU contracts/test_cuda.py searches with it",
        allow_module_level=True,
    )

from regard.generation.engines.cuda.kernels import sampling_triton


@pytest.mark.parametrize(
    ("vocabulary", "count"),
    [(5, 5), (300, 6), (5000, 3), (16384, 10), (16400, 10)],
    ids=["all", "few columns", "last column not full", "all columns", "one level at a time"],
)
def test_largest_scores(vocabulary, count):
    """Of rows that are not next to each other in memory, and of one with fewer likely tokens than are asked for."""
    scores = torch.randn(2, 3, vocabulary + 7)[..., :vocabulary]
    scores[1, 2, : -min(4, vocabulary)] = -torch.inf
    values, tokens = sampling_triton.top_k(scores, count)
    expected = scores.topk(count)
    torch.testing.assert_close(values, expected.values, atol=0, rtol=0)
    likely = values > -torch.inf  # of the others, any will do
    assert torch.equal(tokens[likely], expected.indices[likely])
