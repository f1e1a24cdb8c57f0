"""Memory that reveals elements which were never written."""

import pytest
import torch


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill tensors of `new_empty` with NaN, or with a number that occurs nowhere else."""
    new_empty = torch.Tensor.new_empty

    def poisoned(self, *shape, **keywords):
        made = new_empty(self, *shape, **keywords)
        return made.fill_(torch.nan if made.is_floating_point() else 77)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
