"""Attention of long inputs on a CPU: computed in blocks of rows between which it can be interrupted."""

import pytest
import torch

import regard
from regard.core.interruption import Interrupted, interruptible
from regard.kernels.attention import sdpa


@pytest.fixture
def blocks(monkeypatch):
    """What is long is computed in blocks already where it has few tokens."""
    monkeypatch.setattr(sdpa, "UNINTERRUPTED", 1 << 10)
    monkeypatch.setattr(sdpa, "BLOCK_SCORES", 1 << 9)
    monkeypatch.setattr(sdpa, "TILE", 1 << 9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_of_rows_give_what_one_call_gives(blocks, monkeypatch, causal, padded):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 70, 8) for _ in range(3))
    mask = torch.ones(2, 1, 1, 70, dtype=torch.bool)
    mask[1, ..., 50:] = False
    given = {"causal": causal, "mask": mask if padded else None}
    asked: list[int] = []
    with torch.no_grad(), interruptible(lambda: asked.append(1)):
        found = regard.attend(query, key, value, **given)
    assert len(asked) > 10
    monkeypatch.undo()
    with torch.no_grad():
        torch.testing.assert_close(found, regard.attend(query, key, value, **given))


def test_attention_of_a_long_input_can_be_interrupted(blocks):
    x = torch.randn(1, 1, 300, 8)
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 5:
            raise Interrupted

    with pytest.raises(Interrupted), torch.no_grad(), interruptible(check):
        regard.attend(x, x, x)
    assert len(asked) == 5


def test_checks_of_one_thread_are_not_those_of_another():
    x = torch.randn(1, 2, 3, 8)
    asked: list[str] = []
    with interruptible(lambda: asked.append("outer")):
        with interruptible(lambda: asked.append("inner")):
            regard.attend(x, x, x)
        regard.attend(x, x, x)
    regard.attend(x, x, x)
    assert asked == ["inner", "outer"]
