"""Models loaded anew while they serve: requests before the switch end with the old one, which is freed then."""

import gc
import json
import os
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.checkpoint import store
from regard.core.errors import CheckpointUnreadable
from regard.serving.scheduler import model_loader as loader_module
from regard.serving.scheduler.model_loader import ModelLoader
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from support.forged import GOLDEN, rehashed
from support.predictors import translator
from support.servers import PATIENCE, served, slowed, until

TEXTS = ["abc", "the cat", "x"]
LONG = {"min_length": 6, "max_length": 8}


def add_step(run: Path, step: int, model: str) -> Path:
    """A golden checkpoint as the one of this step, which is the best so far."""
    folder = store.step_folder(run, step)
    shutil.copytree(GOLDEN / model, folder)
    (folder / store.TRAINING_STATE).write_text(
        json.dumps({"step": step, "history": {"best_step": step}})
    )
    return rehashed(folder)


def said(answer: dict) -> list[str]:
    return [result["outputs"][0]["text"] for result in answer["results"]]


def test_a_newer_checkpoint_is_served_after_a_reload(tmp_path):
    old = add_step(tmp_path, 10, "transformer")
    with served({"en": tmp_path}) as running:
        status, headers, answer = running.ask("/predict", {"input": TEXTS, **LONG})
        assert (status, answer["version"], headers["x-model"], headers["x-model-version"]) == (
            200, old.name, "en", old.name,
        )  # fmt: skip
        assert said(answer) == regard.load(old).predict(TEXTS, **LONG)
        new = add_step(tmp_path, 20, "convolution")
        assert running.ask("/predict", {"input": TEXTS, **LONG})[2] == {
            **answer,
            "id": running.last_id,
        }
        status, _, state = running.ask("/admin/models", {"name": "en"})
        assert (status, state["version"], state["state"], state["reloads"]) == (
            200,
            new.name,
            "ready",
            1,
        )
        _, headers, answer = running.ask("/predict", {"input": TEXTS, **LONG})
        assert (answer["version"], headers["x-model-version"]) == (new.name, new.name)
        assert said(answer) == regard.load(new).predict(TEXTS, **LONG)
        assert running.ask("/admin/models")[2] == {"models": [state]}
        assert running.ask("/models")[2] == {"models": [{"name": "en", "version": new.name}]}


def test_a_path_may_be_a_link_to_the_checkpoint(tmp_path):
    link = tmp_path / "current"
    link.symlink_to(GOLDEN / "transformer")
    with served({"en": link}) as running:
        link.unlink()
        link.symlink_to(GOLDEN / "rnn")
        assert running.ask("/predict", {"input": "x", **LONG})[2]["version"] == "transformer"
        assert running.ask("/admin/models", {"name": "en"})[2]["version"] == "rnn"


def test_a_damaged_checkpoint_leaves_the_old_model_serving(tmp_path, caplog):
    model = tmp_path / "model"
    shutil.copytree(GOLDEN / "transformer", model)
    with served({"en": model}) as running:
        weights = bytearray((model / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (model / "model.safetensors").write_bytes(weights)
        status, _, answer = running.ask("/admin/models", {"name": "en"})
        assert status == 500
        assert "model.safetensors" in answer["detail"]
        assert "not reloaded, 'model' is served on" in caplog.text
        assert "Traceback" not in caplog.text
        assert running.ask("/predict", {"input": "x", **LONG})[:1] == (200,)
        (state,) = running.ask("/admin/models")[2]["models"]
        assert "model.safetensors" in state["error"]
        assert state["reloads"] == 0
        shutil.copy(GOLDEN / "transformer" / "model.safetensors", model)
        assert running.ask("/admin/models", {"name": "en"})[2]["error"] is None


@pytest.mark.parametrize("damage", ["deleted", "empty", "truncated", "manifest"])
def test_a_checkpoint_that_cannot_be_read_again_is_an_error_of_the_server(tmp_path, damage):
    """The path is that of the operator, and the client has done nothing wrong."""
    model = tmp_path / "model"
    shutil.copytree(GOLDEN / "rnn", model)
    with served({"en": model}) as running:
        if damage in ("deleted", "empty"):
            shutil.rmtree(model)
        if damage == "empty":
            model.mkdir()
        elif damage == "truncated":
            os.truncate(model / "model.safetensors", 100)
        elif damage == "manifest":
            (model / "manifest.json").write_text("{")
        status, _, answer = running.ask("/admin/models", {"name": "en"})
        assert status == 500
        assert "cannot read the checkpoint of the model 'en'" in answer["detail"]
        assert "still serves version 'model'" in answer["detail"]
        assert running.ask("/predict", {"input": "x", **LONG})[0] == 200
        (state,) = running.ask("/admin/models")[2]["models"]
        assert (state["version"], state["failures"]) == ("model", 1)


def test_requests_before_the_switch_end_with_the_old_model_which_is_freed(tmp_path, monkeypatch):
    """One runs, one waits for its slot, one comes after the switch; each tells the version that answered it."""
    link = tmp_path / "current"
    link.symlink_to(GOLDEN / "rnn")
    wanted = {
        name: regard.load(GOLDEN / name).predict(TEXTS[:1], **LONG)
        for name in ("rnn", "convolution")
    }
    assert wanted["rnn"] != wanted["convolution"]
    with served({"en": link}, SchedulerLimits(slots=1)) as running, ThreadPoolExecutor(3) as pool:
        old = running.engine.models["en"].predictor
        gate, waits = slowed(monkeypatch, old)
        model = weakref.ref(old.model)
        before = [
            pool.submit(running.ask, "/predict", {"input": TEXTS[0], **LONG}) for _ in range(2)
        ]
        assert waits.wait(PATIENCE)
        until(lambda: running.engine.busy == 2)
        link.unlink()
        link.symlink_to(GOLDEN / "convolution")
        _, _, state = running.ask("/admin/models", {"name": "en"})
        assert (state["version"], state["jobs"], state["old_jobs"]) == ("convolution", 0, 2)
        after = pool.submit(running.ask, "/predict", {"input": TEXTS[0], **LONG})
        until(lambda: running.engine.busy == 3)
        gate.release(100_000)
        for asked, version in ((before[0], "rnn"), (before[1], "rnn"), (after, "convolution")):
            status, headers, answer = asked.result(PATIENCE)
            assert (status, answer["version"], headers["x-model-version"]) == (
                200,
                version,
                version,
            )
            assert said(answer) == wanted[version]
        del old
        monkeypatch.undo()
        until(
            lambda: gc.collect() >= 0 and model() is None
        )  # the engine's thread may still be in its last step
        assert running.ask("/admin/models")[2]["models"][0]["old_jobs"] == 0


def test_inputs_of_one_request_get_one_version_while_models_are_switched():
    """A thread switches versions without pause: the outputs of a request are those of the version it tells."""
    models = {str(seed): translator(decoder="rnn", seed=seed) for seed in (1, 2)}
    wanted = {version: model.predict(TEXTS, **LONG) for version, model in models.items()}
    assert all(a != b for a, b in zip(*wanted.values(), strict=True))
    with served({"en": models["1"]}, SchedulerLimits(slots=2)) as running:
        running.engine.load("en", "1", models["1"])
        done = threading.Event()

        def switch() -> None:
            for version, model in cycle(models.items()):
                if done.wait(0.001):
                    return
                running.engine.load("en", version, model)

        thread = threading.Thread(target=switch)
        thread.start()
        try:
            for _ in range(15):
                answer = running.ask("/predict", {"input": TEXTS, **LONG})[2]
                assert said(answer) == wanted[answer["version"]]
        finally:
            done.set()
            thread.join(PATIENCE)
        assert running.engine.jobs_of("en") == (0, 0)
        assert not running.engine._replaced


def test_no_path_is_taken_from_a_request(tmp_path):
    with served({"en": GOLDEN / "transformer", "given": translator(decoder="rnn")}) as running:
        status, _, answer = running.ask("/admin/models", {"name": str(GOLDEN / "rnn")})
        assert (status, "wanted one of en, given" in answer["detail"]) == (404, True)
        assert running.ask("/admin/models", {"name": "en", "path": str(GOLDEN / "rnn")})[0] == 400
        assert running.ask("/admin/models", {"name": "given"})[0] == 409
        assert running.engine.models["en"].version == "transformer"


def test_a_model_is_loaded_once_at_a_time(monkeypatch):
    engine = Scheduler()
    loader = ModelLoader(engine, {"en": GOLDEN / "transformer"})
    loader.load("en")
    begun, go, load = threading.Event(), threading.Event(), loader_module.load

    def slow(*given, **options):
        begun.set()
        assert go.wait(PATIENCE)
        return load(*given, **options)

    monkeypatch.setattr(loader_module, "load", slow)
    thread = threading.Thread(target=loader.load_anew, args=["en"])
    thread.start()
    assert begun.wait(PATIENCE)
    assert loader.state("en").state == "loading"
    with pytest.raises(Exception, match="wanted a model that is not being loaded"):
        loader.load_anew("en")
    go.set()
    thread.join(PATIENCE)
    assert (loader.state("en").state, loader.reloads) == ("ready", {"en": 1})


def test_all_models_are_loaded_anew_in_spite_of_one_that_is_damaged(tmp_path, caplog):
    shutil.copytree(GOLDEN / "transformer", tmp_path / "bad")
    engine = Scheduler()
    loader = ModelLoader(
        engine, {"bad": tmp_path / "bad", "good": GOLDEN / "rnn", "given": translator()}
    )
    for name in loader.models:
        loader.load(name)
    os.truncate(tmp_path / "bad" / "model.safetensors", 100)
    loader.load_all_anew()
    assert loader.reloads == {"bad": 0, "good": 1, "given": 0}
    with pytest.raises(CheckpointUnreadable):
        loader.load_anew("bad")


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("127.0.0.1", 200),
        ("127.8.8.8", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("10.0.0.1", 403),
        ("", 403),
    ],
)
def test_without_keys_only_this_machine_administers(address, status, monkeypatch):
    from regard.serving.http.request_handler import RequestHandler

    init = RequestHandler.__init__
    monkeypatch.setattr(
        RequestHandler,
        "__init__",
        lambda self, app, scope, *rest: init(self, app, {**scope, "client": (address, 1)}, *rest),
    )
    with served({"en": GOLDEN / "transformer"}) as running:
        assert running.ask("/admin/models")[0] == status
        assert running.ask("/admin/models", {"name": "en"})[0] == status
        assert running.ask("/models")[0] == 200
