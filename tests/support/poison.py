"""Memory that shows who did not write to it."""

import pytest
import torch


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `new_empty` makes is full of NaNs, or of a number that is nobody's."""
    new_empty = torch.Tensor.new_empty

    def poisoned(self, *shape, **keywords):
        made = new_empty(self, *shape, **keywords)
        return made.fill_(torch.nan if made.is_floating_point() else 77)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
