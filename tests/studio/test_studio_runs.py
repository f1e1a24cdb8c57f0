"""Training runs in the studio: what their logs have since a position, and nothing changed in their folders."""

import json
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from golden.write import HERE
from regard.studio.routes.runs import run_news
from regard.studio.sources import DataSet, StudioSources
from regard.training.telemetry.log_file import truncate_log
from regard.training.telemetry.log_reader import LogPosition
from support.predictors import translator
from support.servers import served

HEADS = [{"map": "decoder 1 cross", "head": 0, "entropy": 1.5}]
SAMPLES = [{"source": "a", "output": "b", "reference": "c"}]


def write(run: Path, *events: dict) -> Path:
    run.mkdir(exist_ok=True)
    with (run / "log.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    return run


def train(step: int, loss: float) -> dict:
    return {"event": "train", "step": step, "loss": loss + 1, "nll": loss, "rate": step * 1e-4}


VALIDATION = {"event": "validation", "step": 20, "loss": 2.5, "bleu": 30.0, "best": True}


def test_news_of_a_run(tmp_path):
    run = write(tmp_path / "run", {"event": "start"}, train(10, 4.0), train(20, 3.0))
    write(run, {**VALIDATION, "samples": SAMPLES, "heads": HEADS})
    news = run_news(run, LogPosition())
    assert [tuple(point) for point in news.points] == [
        ("loss", "training", 10, 4.0),
        ("loss", "training, smoothed", 10, 5.0),
        ("learning rate", "learning rate", 10, 0.001),
        ("loss", "training", 20, 3.0),
        ("loss", "training, smoothed", 20, 4.0),
        ("learning rate", "learning rate", 20, 0.002),
        ("loss", "validation", 20, 2.5),
        ("bleu", "validation", 20, 30.0),
    ]
    assert [(each.step, each.samples, each.heads) for each in news.validations] == [
        (20, SAMPLES, HEADS)
    ]
    with (run / "log.jsonl").open("a") as file:
        file.write('{"event": "tr')
    assert run_news(run, LogPosition.parse(news.after)).points == []
    with (run / "log.jsonl").open("a") as file:
        file.write('ain", "step": 30, "loss": 1.0, "rate": 1.0}\nnot JSON\n')
    later = run_news(run, LogPosition.parse(news.after))
    assert [tuple(point)[2:] for point in later.points] == [(30, 1.0), (30, 1.0)]
    truncate_log(run, 10)
    again = run_news(run, LogPosition.parse(later.after))
    assert again.restarted
    assert {point.step for point in again.points} == {10}


def test_a_run_that_has_not_begun(tmp_path):
    news = run_news(tmp_path, LogPosition())
    assert (news.points, news.restarted, news.complete) == ([], False, True)
    assert run_news(tmp_path, LogPosition(10, 1)).restarted  # its log is gone


def test_runs_over_http(tmp_path):
    runs = {name: write(tmp_path / name, train(10, 4.0)) for name in ("one", "two")}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with served({"m": translator()}, studio=StudioSources(runs=runs)) as running:
        assert running.ask("/studio/given")[2] == {"data": None, "runs": ["one", "two"]}
        first = running.ask("/studio/run?name=one")[2]
        assert first["points"][0] == ["loss", "training", 10, 4.0]
        write(runs["one"], train(20, 3.0))
        second = running.ask(f"/studio/run?name=one&after={first['after']}")[2]
        assert (second["points"][0], second["restarted"]) == (["loss", "training", 20, 3.0], False)
        assert running.ask("/studio/run?name=three")[0] == 404
        assert running.ask("/studio/run?name=..%2fone")[0] == 404
    assert {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.parent.name != "one"
    } == {path: time for path, time in before.items() if path.parent.name != "one"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(path.name for path in before)


def test_the_studio_draws_runs_and_loads_those_with_a_checkpoint(tmp_path, monkeypatch):
    served_with: dict = {}
    monkeypatch.setattr(
        import_module("regard.studio.run"),
        "serve",
        lambda models, **options: served_with.update(options, models=models),
    )
    begun, trained = write(tmp_path / "begun", train(10, 4.0)), HERE / "0.1.0" / "rnn"
    regard.studio(
        {"begun": begun, "rnn": trained},
        device={"begun": "cpu", "rnn": "cpu"},
        data=["test"],
        columns=["a"],
    )
    assert (served_with["models"], served_with["device"]) == ({"rnn": trained}, {"rnn": "cpu"})
    assert served_with["studio"] == StudioSources(DataSet(("test",), ("a",)), {"begun": begun})
    regard.studio(begun, open_browser=False)
    assert list(served_with["models"]) == ["dates"]  # the model of the package
    assert served_with["studio"] == StudioSources(None, {"begun": begun})
