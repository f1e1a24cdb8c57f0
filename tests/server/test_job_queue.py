"""The queue of an engine: how much waits, what is chosen next, and when a client is asked to try again."""

from types import SimpleNamespace

import pytest

from regard.core.errors import Overloaded
from regard.decoding.config import DecodeConfig
from regard.server import job_queue
from regard.server.job_queue import Admissions, DrainRate, JobQueue
from regard.server.jobs import BatchedWork, Inspection, Job
from regard.server.long_inputs import LongWork, OpenLongInput, OverviewStep, RowOfMap, TileOfMap
from regard.server.searches import RunningJob, SearchGroup
from regard.server.served_model import BatchPlan, SearchPlan
from regard.server.studio_data import AblationStep, AlignmentStep, ExampleMeasurement, HeadsOfInput
from regard.server.studio_jobs import Alternatives, BeamTree, LiveLook, LookPage


def job(size: int = 1) -> Job:
    made = object.__new__(Job)
    made.size = size
    return made


def searched(rows: int, *, room: bool = True) -> Job:
    """A job with a search of so many hypotheses."""

    class Plan(SearchPlan):
        lane = "search"

        def __init__(self) -> None:
            object.__setattr__(self, "running", object.__new__(RunningJob))
            object.__setattr__(self, "task", SimpleNamespace(config=DecodeConfig(beam_size=rows)))

        def group(self, slots, threads):
            made = object.__new__(SearchGroup)
            made.entering = []
            made.memory = self.running.memory
            return made if room else None

    made = job()
    made.plan = Plan()
    return made


def computed(lane: str = "batch", *, most: int = 9, aside: bool = False) -> Job:
    """A job that is computed in a batch, beside the engine's thread or in it."""

    class Plan(BatchPlan):
        runs_aside = aside

        def __init__(self) -> None:
            object.__setattr__(self, "work", SimpleNamespace(most=most))

    Plan.lane = lane
    made = job()
    made.plan = Plan()
    return made


def admissions(**changes) -> Admissions:
    return Admissions(
        **{"slots": 4, "hypotheses": 10, "batch": 2, "threads": 1, "rows": 0, "aside": False}
        | changes
    )


def test_hypotheses_of_all_searches_are_limited():
    round_ = admissions()
    assert [round_.choose(searched(rows)) for rows in (4, 6, 1)] == [True, True, False]
    assert round_.rows == 10
    assert round_.full == {"search"}
    assert admissions().choose(searched(11))  # one alone may have more
    assert not admissions(rows=1).choose(searched(10))
    assert not admissions().choose(searched(1, room=False))


def test_a_batch_has_the_size_of_the_engine_or_of_its_work():
    round_ = admissions(batch=2)
    assert [round_.choose(computed()) for _ in range(3)] == [True, True, False]
    round_ = admissions(batch=9)
    assert [round_.choose(computed(most=1)) for _ in range(2)] == [True, False]


def kinds_of_work(kind: type = BatchedWork) -> list[type[BatchedWork]]:
    return [found for each in kind.__subclasses__() for found in (each, *kinds_of_work(each))]


ALONE = {  # a forward pass under capture is of one input, and edits are of one search
    LiveLook, LookPage, Alternatives, BeamTree, Inspection, OpenLongInput, LongWork, TileOfMap, OverviewStep, RowOfMap,
    ExampleMeasurement, HeadsOfInput, AblationStep, AlignmentStep,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [each for each in kinds_of_work() if each.__module__.startswith("regard.")]
)
def test_work_that_is_captured_or_edited_is_computed_alone(kind):
    round_ = admissions(batch=3)
    together = [round_.choose(computed(most=kind.most)) for _ in range(4)]
    assert together == ([True, False, False, False] if kind in ALONE else [True, True, True, False])


def test_one_batch_at_a_time_is_computed_aside():
    round_ = admissions()
    assert round_.choose(computed("one", aside=True))
    assert not round_.choose(computed("two", aside=True))
    assert round_.choose(computed("one", aside=True))  # of the batch that was begun
    assert round_.choose(computed("three"))
    assert not admissions(aside=True).choose(computed("one", aside=True))


def test_jobs_and_tokens_that_wait_are_limited():
    queue = JobQueue(3, 10)
    first, second, third = job(4), job(6), job(1)
    for each in (first, second):
        queue.add(each)
    with pytest.raises(Overloaded):
        queue.add(third)  # of eleven tokens
    assert queue.remove(first)
    assert not queue.remove(first)
    assert queue.tokens == 6
    queue.add(third)
    queue.add(job(3))
    with pytest.raises(Overloaded):
        queue.add(job(0))  # the fourth
    large = JobQueue(3, 10)
    large.add(job(11))  # alone, it may be larger
    assert large.tokens == 11


def test_the_time_to_try_again_is_that_of_the_last_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(job_queue.time, "monotonic", lambda: now[0])
    drain = DrainRate()
    assert drain.seconds_for(50) == 1  # nothing is known
    now[0] += 10
    drain.ended(20)  # two a second, over all that counts
    assert [drain.seconds_for(jobs) for jobs in (0, 1, 2, 3, 119, 120, 500)] == [
        1,
        1,
        1,
        2,
        60,
        60,
        60,
    ]
    now[0] += 5
    drain.ended(40)  # eight a second for half of it
    assert [drain.seconds_for(jobs) for jobs in (5, 6, 50)] == [1, 2, 10]
