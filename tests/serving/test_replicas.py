"""Several engines as one: the outputs are those of one engine, jobs go where the fewest are, versions never mix."""

import threading
from itertools import cycle
from unittest.mock import Mock

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.core.errors import InvalidArgument, Overloaded, ServerStopping
from regard.serving.scheduler.jobs import Generation, Job
from regard.serving.scheduler.model_loader import ModelLoader
from regard.serving.scheduler.placement import Placement
from regard.serving.scheduler.replicas import ReplicaRouter
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from support.forged import GOLDEN
from support.predictors import translator
from support.servers import PATIENCE, until

TEXTS = ["abc", "the cat", "x", "hello there", "a", "zz"]
LONG = {"min_length": 6, "max_length": 8}


def submit(engine, texts: list[str], model: str = "en", **options) -> list[tuple[Job, list]]:
    """The jobs of one request, each with the list that its result is put in."""
    asked = []
    for number, text in enumerate(texts):
        result: list = []
        asked.append(
            (
                Job(model, Generation(text, {**LONG, **options}, number=number), result.append),
                result,
            )
        )
    engine.submit(*(job for job, _ in asked))
    return asked


def texts_of(asked: list[tuple[Job, list]]) -> list[str]:
    until(lambda: all(result for _, result in asked))
    return [result[0][0].text for _, result in asked]


def router(
    *models: tuple[str, object],
    limits: SchedulerLimits = SchedulerLimits(),  # noqa: B008  frozen
) -> ReplicaRouter:
    """Two engines that hold each model."""
    made = Placement.of([name for name, _ in models], ["cpu", "cpu"]).engine(limits)
    assert isinstance(made, ReplicaRouter)
    loader = ModelLoader(made, dict(models))
    loader.load_all()
    return made


def test_models_are_placed():
    both = Placement.of(["a", "b"], ["cpu", "cpu"])
    assert (both.devices, both.engines) == (("cpu", "cpu"), {"a": (0, 1), "b": (0, 1)})
    named = Placement.of(["a", "b", "c"], {"a": "cpu", "b": ["cpu", "cpu"], "c": ("auto",)})
    assert named.devices[:2] == ("cpu", "cpu")
    assert (named.engines["a"], named.engines["b"]) == ((0,), (0, 1))
    assert isinstance(Placement.of(["a"], "cpu").engine(SchedulerLimits(slots=1)), Scheduler)
    for wrong in (
        {"a": "cpu"},
        {"a": "cpu", "b": "cpu", "z": "cpu"},
        {"a": "cpu", "b": []},
        "tpu",
        ["cpu", "cuda:99"],
    ):
        with pytest.raises(InvalidArgument, match="device: wanted"):
            Placement.of(["a", "b"], wrong)


def test_a_model_is_on_the_devices_that_were_named_for_it():
    placement = Placement.of(["en", "de"], {"en": ["cpu", "cpu"], "de": "cpu"})
    engine = placement.engine(SchedulerLimits())
    ModelLoader(engine, {"en": GOLDEN / "rnn", "de": GOLDEN / "convolution"}).load_all()
    assert [sorted(each.models) for each in engine.engines] == [["de", "en"], ["en"]]
    assert (len(engine.devices("en")), len(engine.devices("de"))) == (2, 1)
    assert {name: info.version for name, info in engine.model_info.items()} == {
        "en": "rnn",
        "de": "convolution",
    }
    engine.start()
    try:
        assert texts_of(submit(engine, TEXTS, "de")) == regard.load(GOLDEN / "convolution").predict(
            TEXTS, **LONG
        )
        with pytest.raises(InvalidArgument, match="model: wanted one of"):
            submit(engine, TEXTS, "fr")
    finally:
        engine.stop(PATIENCE)


def test_jobs_go_to_the_engine_with_the_fewest_and_are_answered_alike():
    engine = router(("en", GOLDEN / "transformer"))
    first, second = engine.engines
    asked = submit(engine, TEXTS[:3])  # nothing runs yet
    assert sorted(each.busy for each in engine.engines) == [1, 2]
    asked += submit(engine, TEXTS[3:])
    assert (first.busy, second.busy) == (3, 3)
    assert engine.stats().jobs == engine.stats().queued_jobs == 6
    assert engine.jobs_of("en") == (6, 0)
    fewer = [job for job, _ in asked if job in second._jobs]
    for job in fewer:
        engine.cancel(job)
    second.start()
    until(lambda: second.busy == 0)
    asked = [each for each in asked if each[0] not in fewer] + submit(engine, TEXTS[:3])
    assert first.busy == 3  # all three went to the other, which is free
    first.start()
    wanted = [job.work.input for job, _ in asked]
    assert texts_of(asked) == regard.load(GOLDEN / "transformer").predict(wanted, **LONG)
    assert engine.stop(PATIENCE)


def test_a_full_queue_and_a_stopping_router_refuse():
    engine = router(("en", GOLDEN / "rnn"), limits=SchedulerLimits(queued_jobs=2))
    submit(engine, TEXTS[:4])
    with pytest.raises(Overloaded):
        submit(engine, TEXTS[:1])
    assert engine.ready
    assert not engine.stop(0.0)
    assert not engine.ready
    with pytest.raises(ServerStopping):
        submit(engine, TEXTS[:1])


def test_the_jobs_of_a_request_get_one_version_while_models_are_switched():
    versions = {
        str(seed): [translator(decoder="rnn", seed=seed) for _ in range(2)] for seed in (1, 2)
    }
    wanted = {version: models[0].predict(TEXTS, **LONG) for version, models in versions.items()}
    assert all(a != b for a, b in zip(*wanted.values(), strict=True))
    engine = ReplicaRouter(
        [Scheduler(SchedulerLimits(slots=2), "cpu") for _ in range(2)], {"en": (0, 1)}
    )
    engine.load("en", "1", *versions["1"])
    engine.start()
    done = threading.Event()

    def switch() -> None:
        for version, models in cycle(versions.items()):
            if done.wait(0.001):
                return
            engine.load("en", version, *models)

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        for _ in range(15):
            asked = submit(engine, TEXTS)
            (version,) = {job.usage.version for job, _ in asked}
            assert texts_of(asked) == wanted[version]
    finally:
        done.set()
        thread.join(PATIENCE)
        assert engine.stop(PATIENCE)
    assert engine.jobs_of("en") == (0, 0)


def test_one_object_is_not_two_replicas():
    with pytest.raises(
        InvalidArgument, match="wanted a model that is loaded for each of its devices"
    ):
        router(("en", translator(decoder="rnn")))


@pytest.mark.parametrize("finished", [(True, True), (True, False), (False, True), (False, False)])
def test_a_router_has_finished_where_every_engine_has(finished):
    """Each of them is stopped, whatever the others say."""
    engines = [Mock(spec=Scheduler, **{"stop.return_value": each}) for each in finished]
    assert ReplicaRouter(engines, {}).stop(1.0) is all(finished)
    assert [engine.stop.call_count for engine in engines] == [1, 1]


def test_engines_are_stuck_as_long_as_the_worst_of_them():
    made = Placement.of(["en"], ["cpu", "cpu"]).engine(SchedulerLimits())
    for engine, seconds in zip(made.engines, (3.5, 1.25), strict=True):
        engine.stuck = lambda seconds=seconds: seconds
    assert made.stuck() == 3.5
