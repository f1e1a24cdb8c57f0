"""The queue of an engine: how much waits, what is chosen next, and when a client is asked to try again."""

from collections import Counter
from types import SimpleNamespace

import pytest

from regard.core.errors import Overloaded
from regard.decoding.config import DecodeConfig
from regard.server import job_queue
from regard.server.aside import AsideRoom
from regard.server.job_queue import Admissions, DrainRate, JobQueue
from regard.server.jobs import BatchedWork, Inspection, Job
from regard.server.long_inputs import LongWork, OpenLongInput, OverviewStep, RowOfMap, TileOfMap
from regard.server.searches import SearchGroup
from regard.server.served_model import BatchPlan, Planning, SearchPlan
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
            object.__setattr__(self, "running", object())
            object.__setattr__(self, "task", SimpleNamespace(config=DecodeConfig(beam_size=rows)))

        def group(self, slots, threads):
            made = object.__new__(SearchGroup)
            made.entering = []
            return made if room else None

    made = job()
    made.plan = Plan()
    return made


def computed(
    lane: str = "batch", *, most: int = 9, aside: bool = False, client: str = "", locks: str = ""
) -> Job:
    """A job that is computed in a batch, beside the engine's thread or in it."""

    class Plan(BatchPlan):
        runs_aside = aside

        def __init__(self) -> None:
            object.__setattr__(self, "work", SimpleNamespace(most=most, locks=locks or None))
            object.__setattr__(self, "client", client)

    Plan.lane = lane
    made = job()
    made.plan = Plan()
    return made


def admissions(**changes) -> Admissions:
    room = AsideRoom(3, Counter(), set())
    return Admissions(
        **{"slots": 4, "hypotheses": 10, "batch": 2, "threads": 1, "rows": 0, "aside": room}
        | changes
    )


def test_hypotheses_of_all_searches_are_limited():
    round_ = admissions()
    assert [round_.choose(searched(rows)) for rows in (4, 5, 1, 1)] == [True, True, True, False]
    assert round_.rows == 10
    assert round_.full == {"search"}
    assert not admissions().choose(searched(1, room=False))


def test_a_wide_search_leaves_half_of_all_hypotheses_to_others():
    round_ = admissions()
    assert round_.choose(searched(1000))
    assert not round_.choose(searched(6))  # the second wide one waits
    assert [round_.choose(searched(rows)) for rows in (4, 1, 1)] == [True, True, False]
    assert not admissions(wide=True).choose(searched(1000))
    assert not admissions(rows=6).choose(searched(1000))


def test_a_batch_has_the_size_of_the_engine_or_of_its_work():
    round_ = admissions(batch=2)
    assert [round_.choose(computed()) for _ in range(3)] == [True, True, False]
    round_ = admissions(batch=9)
    assert [round_.choose(computed(most=1)) for _ in range(2)] == [True, False]


def kinds_of_work(kind: type = BatchedWork) -> list[type[BatchedWork]]:
    return [found for each in kind.__subclasses__() for found in (each, *kinds_of_work(each))]


ALONE = {  # a forward pass under capture is of one input, and edits are of one search
    LiveLook, LookPage, Alternatives, BeamTree, Inspection, OpenLongInput, LongWork, TileOfMap, OverviewStep, RowOfMap,
    ExampleMeasurement, HeadsOfInput, AblationStep, AlignmentStep, Planning,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [each for each in kinds_of_work() if each.__module__.startswith("regard.")]
)
def test_work_that_is_captured_or_edited_is_computed_alone(kind):
    round_ = admissions(batch=3)
    together = [round_.choose(computed(most=kind.most)) for _ in range(4)]
    assert together == ([True, False, False, False] if kind in ALONE else [True, True, True, False])


def test_batches_that_are_computed_aside_are_limited():
    round_ = admissions(aside=AsideRoom(2, Counter(), set()))
    assert round_.choose(computed("one", aside=True))
    assert round_.choose(computed("two", aside=True))
    assert not round_.choose(computed("three", aside=True))
    assert round_.choose(computed("one", aside=True))  # of a batch that begins
    assert round_.choose(computed("four"))


def test_a_client_leaves_room_aside_to_others():
    most = AsideRoom(8, Counter(heavy=4), set())
    round_ = admissions(aside=most)
    assert not round_.choose(computed("one", aside=True, client="heavy"))
    assert round_.choose(computed("two", aside=True, client="light"))


def test_works_that_change_the_same_are_computed_one_after_the_other():
    round_ = admissions(aside=AsideRoom(8, Counter(), {"data"}))
    assert not round_.choose(computed("one", aside=True, locks="data"))
    assert round_.choose(computed("two", aside=True, locks="other data"))
    assert not round_.choose(computed("three", aside=True, locks="other data"))
    assert round_.choose(computed("four", aside=True))
    assert round_.choose(computed("five", aside=True))


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
