"""Which thread computes each kind of work: on a CPU the engine's thread, which everybody waits for, computes none."""

import threading

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.scheduler.jobs import (
    BatchedWork,
    Embedding,
    Generation,
    Inspection,
    Job,
    Scoring,
    Work,
)
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from regard.studio.data import (
    AblationStep,
    AlignmentStep,
    DataSize,
    ExampleInputs,
    ExampleMeasurement,
    HeadsOfData,
    HeadsOfInput,
)
from regard.studio.jobs import Alternatives, BeamTree, LiveLook, LookPage
from regard.studio.long_inputs import OpenLongInput, OverviewStep, RowOfMap, TileOfMap
from regard.studio.sources import DataSet
from support.predictors import classifier, translator
from support.servers import PATIENCE

DATA = DataSet(("nowhere.tsv",))
TEXT = "the cat sat"
LONG = " ".join([TEXT] * 2_000)
# The kind that is computed, the model, and work that leads to it. What is refused is refused in the same thread.
EXAMPLES: list[tuple[str, str, Work]] = [
    ("DirectPrediction", "labels", Generation(TEXT)),
    ("Planning", "en-de", Generation(LONG)),
    ("OutputsOfSearch", "en-de", Generation(TEXT, attention=True)),
    ("Scoring", "en-de", Scoring(TEXT, "a dog")),
    ("Embedding", "en-de", Embedding(TEXT)),
    ("Inspection", "en-de", Inspection(TEXT, output="a dog")),
    ("LiveLook", "en-de", LiveLook(TEXT, output="a dog")),
    ("LookPage", "en-de", LookPage(TEXT)),
    ("Alternatives", "en-de", Alternatives(TEXT)),
    ("BeamTree", "en-de", BeamTree(TEXT)),
    ("HeadsOfInput", "en-de", HeadsOfInput(TEXT)),
    ("OpenLongInput", "en-de", OpenLongInput(TEXT)),
    ("TileOfMap", "en-de", TileOfMap("a name", "a map", 0, 0, 0, 0)),
    ("OverviewStep", "en-de", OverviewStep("a name", "a map", 0)),
    ("RowOfMap", "en-de", RowOfMap("a name", "a map", 0, 0)),
    ("DataSize", "en-de", DataSize("", DATA)),
    ("ExampleMeasurement", "en-de", ExampleMeasurement("", DATA, 0)),
    ("HeadsOfData", "en-de", HeadsOfData("", DATA, complete=False)),
    ("AblationStep", "en-de", AblationStep("", DATA)),
    ("AlignmentStep", "en-de", AlignmentStep("", DATA)),
    ("ExampleInputs", "en-de", ExampleInputs("", DATA, (0,))),
]


def kinds(kind: type[BatchedWork] = BatchedWork) -> dict[str, type[BatchedWork]]:
    """All kinds of the package that are computed, and not only the bases of others."""
    found = {kind.__name__: kind} if "compute" in vars(kind) or kind.__mro__[1] is LiveLook else {}
    for each in kind.__subclasses__():
        if each.__module__.startswith("regard."):
            found |= kinds(each)
    return {name: each for name, each in found.items() if each is not BatchedWork}


def test_every_kind_of_work_is_in_the_table():
    assert sorted(name for name, _, _ in EXAMPLES) == sorted(kinds())


@pytest.mark.parametrize(("kind", "model", "work"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_no_work_is_computed_in_the_engines_thread(monkeypatch, kind, model, work):
    threads: list[str] = []
    computed = kinds()[kind]
    compute = computed.compute

    def recorded(*given):
        threads.append(threading.current_thread().name)
        return compute(*given)

    monkeypatch.setattr(computed, "compute", recorded)
    engine = Scheduler(SchedulerLimits(slots=2))
    engine.load("en-de", "1", translator())
    engine.load("labels", "1", classifier())
    engine.start()
    ended = threading.Event()
    engine.submit(Job(model, work, lambda result: ended.set()))
    assert ended.wait(PATIENCE)
    engine.stop(PATIENCE)
    assert threads
    assert set(threads) == {"regard aside"}
