"""Curves of training runs from their logs: as text, and drawn."""

import json
from xml.etree import ElementTree

import pytest

import regard
from regard.core.errors import InvalidArgument, InvalidData


def log(folder, shift=0.0):
    folder.mkdir()
    events = [{"event": "start"}]
    events += [
        {"event": "train", "step": 10 * n, "loss": 4 - n / 3 + shift, "rate": n * 1e-4}
        for n in range(1, 9)
    ]
    events += [
        {"event": "validation", "step": s, "loss": 2.0, "accuracy": s / 80, "best": True}
        for s in (40, 80)
    ]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return folder


def test_curves_as_text(tmp_path):
    text = regard.plot(log(tmp_path / "one"), width=60)
    loss, accuracy, rate = text.split("\n\n")
    assert loss.startswith("loss   • training   + validation")
    assert accuracy.startswith("accuracy   • validation")
    assert rate.startswith("learning rate   • learning rate")
    rows = loss.splitlines()[1:13]
    assert [row.count("•") for row in rows].count(0) < 12
    assert sum(row.count("•") for row in rows) == 8
    # The loss falls: its first point is in a row above that of its last, and left of it.
    places = [(y, row.index("•")) for y, row in enumerate(rows) if "•" in row]
    assert places == sorted(places, key=lambda place: place[1])
    assert max(map(len, text.splitlines())) <= 60


def test_the_training_curve_is_without_label_smoothing(tmp_path):
    """So that it can be compared with that of the validation; the smoothed one is beside it."""
    folder = log(tmp_path / "one")
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    smoothed = [
        event | {"nll": event["loss"] - 1} if event["event"] == "train" else event
        for event in events
    ]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in smoothed))
    loss = regard.plot(folder).split("\n\n")[0]
    assert loss.startswith("loss   • training   + training, smoothed   x validation")
    assert loss.splitlines()[12].lstrip().startswith(f"{4 - 8 / 3 - 1:.4g}")


def test_runs_are_drawn_together(tmp_path):
    runs = [log(tmp_path / "one"), log(tmp_path / "two", 0.5)]
    assert "• one training   + one validation   x two training" in regard.plot(runs)
    regard.plot(runs, tmp_path / "curves.svg")
    drawn = ElementTree.fromstring((tmp_path / "curves.svg").read_text())
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"loss", "accuracy", "learning rate", "two validation"} <= set(texts)
    regard.plot(runs, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    folder = log(tmp_path / "one")
    whole = regard.plot(folder)
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"event": "train", "step": 90, "lo')
    assert regard.plot(folder) == whole


def test_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"wanted the folder of a run; got no log\.jsonl"):
        regard.plot(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"event": "start"}\n')
    with pytest.raises(InvalidArgument, match="wanted a run with logged steps; got none yet"):
        regard.plot(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"event": "start"}\n{"event": "tr\n')
    with pytest.raises(InvalidData, match=r"log\.jsonl, line 2: wanted a JSON object"):
        regard.plot(tmp_path)
    with pytest.raises(
        InvalidArgument, match=r"out: wanted a name in \.svg, \.png; got curves\.pdf"
    ):
        regard.plot(tmp_path, "curves.pdf")
