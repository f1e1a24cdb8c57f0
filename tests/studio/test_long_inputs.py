"""Tiles, levels and rows of long maps: equal to pooled weights of `regard.look`."""

from collections.abc import Iterator
from urllib.parse import urlencode

import numpy as np
import pytest
import torch

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.interpret.look import Look
from regard.studio import long_inputs
from support.predictors import language_model, translator
from support.servers import Running, served

MODELS = {"lines": language_model("bytes"), "en-de": translator("bytes")}
TEXT = "the red car and the dog sat; a dogma, the doghouse of words! " * 2
SIDE, GRID = 16, 32


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("SIDE", SIDE),
            ("GRID", GRID),
            ("STRIP", 1 << 11),
            ("TOGETHER", 1 << 9),
        ):
            patch.setattr(long_inputs, name, value)
        with served(MODELS) as running:
            yield running


@pytest.fixture(scope="module")
def look() -> Look:
    return regard.look(MODELS["lines"], TEXT, output="")


def pooled(weights: torch.Tensor, level: int) -> torch.Tensor:
    size = 1 << level
    return torch.stack(
        [
            torch.stack([part.max() for part in strip.split(size, 1)])
            for strip in weights.split(size, 0)
        ]
    )


def bytes_of(server: Running, path: str) -> np.ndarray:
    connection = server.connect()
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, content
    return np.frombuffer(content, "<f4")


def test_every_tile_of_every_level_has_the_largest_weights(server, look):
    opened = server.ask("/studio/long", {"model": "lines", "input": TEXT})[2]
    each = opened["maps"][1]
    assert opened["tokens"]["read"] == list(look.output.read)
    n = len(TEXT) + 1
    assert (each["name"], each["rows"], each["levels"], each["grid_level"]) == (
        "decoder 2 self",
        n,
        4,
        2,
    )
    of = {"model": "lines", "map": each["name"], "head": 1}
    path = f"/studio/long/{opened['id']}"
    weights = look["decoder 2 self"].weights(heads=[1])[0]
    coarsest, first = (
        pooled(weights, 3).numpy(),
        f"{path}/tile?{urlencode({**of, 'level': 3, 'row': 0, 'column': 0})}",
    )
    assert server.ask(first)[0] == 400  # nothing is known
    steps, complete, known = 0, False, list[int]()
    while not complete:
        overview = server.ask(f"{path}/overview?{urlencode(of)}")[2]
        steps, complete = steps + 1, overview["complete"]
        rows = bytes_of(server, first).reshape(-1, min(SIDE, coarsest.shape[1]))
        known.append(len(rows))
        assert len(rows) == min(SIDE, len(coarsest) if complete else overview["rows"] >> 3)
        np.testing.assert_allclose(rows, coarsest[: len(rows), :SIDE], rtol=0, atol=1e-6)
    assert steps > 3  # in strips, between which other requests are answered
    assert known[0] < known[-1]
    for level in range(each["levels"]):
        wanted = pooled(weights, level).numpy()
        found = np.zeros_like(wanted)
        for y in range(0, wanted.shape[0], SIDE):
            for x in range(0, wanted.shape[1], SIDE):
                query = urlencode({**of, "level": level, "row": y // SIDE, "column": x // SIDE})
                tile = found[y : y + SIDE, x : x + SIDE]
                tile[:] = bytes_of(server, f"{path}/tile?{query}").reshape(tile.shape)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    entropies = torch.special.entr(weights).sum(1)
    means = [float(part.mean()) for part in entropies.split(4)]
    assert overview["entropy"] == pytest.approx(means, abs=1e-4)
    assert overview["mean_entropy"] == pytest.approx(float(entropies.mean()), abs=1e-4)
    assert overview["largest"] == pytest.approx(float(weights.max()), abs=1e-6)


def test_few_weights_are_in_memory_at_once(look, monkeypatch):
    each, tiles = look["decoder 2 self"], list[torch.Tensor]()
    (n, m), tile, weights = each.size, type(each).tile, each.weights(heads=[1])[0]
    monkeypatch.setattr(long_inputs, "TOGETHER", 512)
    monkeypatch.setattr(type(each), "tile", lambda *given: tiles.append(tile(*given)) or tiles[-1])
    torch.testing.assert_close(long_inputs.pooled(each, 1, (0, n), (0, m), 1), pooled(weights, 1))
    assert sum(map(torch.numel, tiles)) == n * m
    shape = pooled(weights, 2).shape
    grid = long_inputs._Grid(2, torch.zeros(shape), torch.zeros(shape[0]))
    long_inputs._fill(grid, each, 1, n)
    torch.testing.assert_close(grid.points, pooled(weights, 2))
    assert sum(map(torch.numel, tiles)) == 2 * n * m
    assert max(map(torch.numel, tiles)) <= 512


def test_inputs_may_be_longer_than_the_recipe_allows(server):
    text = TEXT * 10
    assert len(text) > MODELS["lines"].recipe.decode.max_source_length
    opened = server.ask("/studio/long", {"model": "lines", "input": text})[2]
    assert opened["maps"][0]["rows"] == len(text) + 1


def test_rows_have_their_largest_weights(server, look):
    opened = server.ask("/studio/long", {"model": "lines", "input": TEXT})[2]
    query = urlencode({"model": "lines", "map": "decoder 1 self", "head": 0, "row": 70})
    row = server.ask(f"/studio/long/{opened['id']}/row?{query}")[2]
    weights = look["decoder 1 self"].weights([70], [0])[0, 0]
    best = weights.topk(16)
    assert row["weights"] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert [float(weights[key]) for key in row["keys"]] == pytest.approx(row["weights"], abs=1e-6)
    assert row["entropy"] == pytest.approx(float(torch.special.entr(weights).sum()), abs=1e-4)


def test_maps_that_are_not_square(server):
    opened = server.ask("/studio/long", {"model": "en-de", "input": TEXT})[2]
    each = next(one for one in opened["maps"] if one["name"] == "decoder 1 cross")
    seen = regard.look(MODELS["en-de"], TEXT)
    assert (each["rows"], each["keys"]) == seen["decoder 1 cross"].size
    query = urlencode(
        {"model": "en-de", "map": each["name"], "head": 1, "level": 1, "row": 0, "column": 2}
    )
    wanted = pooled(seen["decoder 1 cross"].weights(heads=[1])[0], 1)[
        :SIDE, 2 * SIDE : 3 * SIDE
    ].numpy()
    found = bytes_of(server, f"/studio/long/{opened['id']}/tile?{query}").reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_what_is_not_there_is_refused(server):
    opened = server.ask("/studio/long", {"model": "lines", "input": TEXT})[2]
    path = f"/studio/long/{opened['id']}"
    status, _, answer = server.ask("/studio/long/missing/row?model=lines&map=x")
    assert (status, answer["remedy"]) == (400, "Open it: POST /studio/long.")
    assert server.ask(f"{path}/tile?map=decoder+1+self")[0] == 404  # of which model?
    path = f"{path}/tile?model=lines"
    assert server.ask(f"{path}&map=decoder+9+self")[0] == 400
    for query in ("head=2", "level=9", "row=99", "column=99", "head=x"):
        assert server.ask(f"{path}&map=decoder+1+self&{query}")[0] == 400, query
    assert server.ask(f"{path}&map=decoder+1+self&level=3")[2]["remedy"] == "Ask for it first."
