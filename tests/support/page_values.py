"""Looks of an exported page, compared with those of Python."""

import base64
import json
from collections.abc import Sequence

import numpy as np
import pytest

from regard.interpret.look import Look


def weights(table: dict) -> np.ndarray:
    """The weights of a map in the format of Look.to_json."""
    numbers = (
        np.frombuffer(base64.b64decode(table["weights"]["data"]), "<u2").astype(np.float64) / 65535
    )
    return numbers.reshape(table["weights"]["shape"])


def check_look(got: dict, wanted: Look, rows: Sequence[bool] | None = None) -> None:
    """Weights to the precision of the format, names, scores and measures.

    rows   of every map, those whose query is there; those of missing vectors mean nothing
    """
    wanted = json.loads(wanted.to_json())
    assert [each["name"] for each in got["maps"]] == [each["name"] for each in wanted["maps"]]
    for ours, theirs in zip(got["maps"], wanted["maps"], strict=True):
        compared = [weights(each) for each in (ours, theirs)]
        if rows is not None:
            compared = [each[:, list(rows)] for each in compared]
        np.testing.assert_allclose(*compared, atol=1.6 / 65535)
        rest = ("weights", "summary", "top")
        assert {key: x for key, x in ours.items() if key not in rest} == {
            k: x for k, x in theirs.items() if k not in rest
        }
        measures = [] if rows is not None else zip(ours["summary"], theirs["summary"], strict=True)
        for one, other in measures:
            assert one == pytest.approx(other, abs=1e-4)
    for ours, theirs in zip(got["sources"], wanted["sources"], strict=True):
        assert {key: ours[key] for key in theirs if key != "data"} == {
            k: x for k, x in theirs.items() if k != "data"
        }
    scores = [
        each["output"].pop("scores", None) or [each["output"].pop("score", None)]
        for each in (got, wanted)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    if "vectors" in wanted["output"]:
        numbers = [np.array(each["output"].pop("vectors")) for each in (got, wanted)]
        np.testing.assert_allclose(*numbers, rtol=1e-5, atol=1e-4)
        for each in (got, wanted):
            del each["output"]["text"]
        tokens = [each["output"].pop("tokens") for each in (got, wanted)]
        assert [len(each) for each in tokens[0]] == [len(each) for each in tokens[1]]
    assert got["output"] == wanted["output"]
