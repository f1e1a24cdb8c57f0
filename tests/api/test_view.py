"""Attention captured from a module of the user's own, shown as a look."""

import json
import re

import pytest
import torch
from torch import nn

import regard
from regard.core.errors import InvalidArgument
from regard.views.figures import draw
from regard.views.terminal import look_text


class Mine(nn.Module):
    """Two heads over themselves, then over something else."""

    def forward(self, x, other):
        heads, others = (
            y.unflatten(2, (2, -1)).transpose(1, 2) for y in (x, other)
        )  # (B, H, N, E)
        y = regard.attend(heads, heads, heads, causal=True)
        return regard.attend(y, others, others)


@pytest.fixture
def calls():
    torch.manual_seed(0)
    with regard.capture_attention() as calls:
        Mine()(torch.randn(3, 4, 8), torch.randn(3, 6, 8))
    return calls


def test_each_call_is_a_map_of_one_sequence(calls, tmp_path):
    own = regard.view(calls[0], ["a", "b", "c", "d"], batch=1)
    torch.testing.assert_close(own["attention 1"].weights(), calls[0].weights()[1])
    assert own.names(own["attention 1"]) == (("a", "b", "c", "d"),) * 2
    cross = regard.view(
        calls[1], list("uvwxyz"), queries=list("abcd"), names=["mine"], batch=2, title="a title"
    )
    torch.testing.assert_close(cross["mine"].weights(), calls[1].weights()[2])
    assert cross.names(cross["mine"]) == (tuple("abcd"), tuple("uvwxyz"))
    assert "mine, 2 heads" in look_text(cross)
    draw(cross, tmp_path / "mine.svg")
    assert ">mine" in (tmp_path / "mine.svg").read_text()
    assert "a title" in cross.to_html()
    assert len(cross.heads()) == 2


def test_several_inputs_on_one_page(calls, tmp_path):
    looks = [
        regard.view(calls[0], list("abcd"), batch=i, title=f"input {i} </script>") for i in range(3)
    ]
    regard.page(looks, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    told = re.search('<script type="application/json" id="look">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(told) == [json.loads(look.to_json()) for look in looks]
    regard.page(looks[0], tmp_path / "one.html")
    with pytest.raises(InvalidArgument, match="looks: wanted from 1 to 100; got 0"):
        regard.page([], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_refused(calls):
    with pytest.raises(
        InvalidArgument, match="tokens: wanted 4 names for the tokens of 'attention 1'; got 3"
    ):
        regard.view(calls[0], ["a", "b", "c"])
    with pytest.raises(
        InvalidArgument, match="queries: wanted 4 names for the queries of 'attention 1'; got 0"
    ):
        regard.view(calls[1], list("uvwxyz"))
    with pytest.raises(InvalidArgument, match="batch: wanted from 0 to 2; got 3"):
        regard.view(calls[0], list("abcd"), batch=3)
    with pytest.raises(InvalidArgument, match="calls: wanted at least one call; got 0"):
        regard.view([], list("abcd"))
    with pytest.raises(InvalidArgument, match=r"attributions: wanted a look of regard\.look"):
        regard.view(calls[0], list("abcd")).attributions()
