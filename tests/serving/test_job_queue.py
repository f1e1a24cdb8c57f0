"""The queue of an engine: how much waits, what is chosen next, and when a client is asked to try again."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import pytest

from regard.core.errors import Overloaded
from regard.generation.config import DecodeConfig
from regard.serving.scheduler.background import BackgroundRoom
from regard.serving.scheduler.job_queue import Admissions, DrainRate, JobQueue, Lanes
from regard.serving.scheduler.jobs import BatchedWork, Inspection, Job
from regard.serving.scheduler.searches import RunningJob, SearchGroup
from regard.serving.scheduler.served_model import BatchPlan, OutputsOfSearch, Planning, SearchPlan
from regard.studio.data import AblationStep, AlignmentStep, ExampleMeasurement, HeadsOfInput
from regard.studio.jobs import Alternatives, BeamTree, LiveLook, LookPage
from regard.studio.long_inputs import LongWork, OpenLongInput, OverviewStep, RowOfMap, TileOfMap


def job(size: int = 1, client: str = "") -> Job:
    made = object.__new__(Job)
    made.size = size
    made.client = client
    return made


def searched(rows: int, *, room: bool = True) -> Job:
    """A job with a search of so many hypotheses."""

    class Plan(SearchPlan):
        lane = "search"

        def __init__(self) -> None:
            running = object.__new__(RunningJob)
            running.input_tokens = 1
            object.__setattr__(self, "running", running)
            object.__setattr__(self, "task", SimpleNamespace(config=DecodeConfig(beam_size=rows)))

        def group(self, slots, threads):
            made = object.__new__(SearchGroup)
            made.entering = []
            made.memory = self.running.memory
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
    room = BackgroundRoom(3, Counter(), set())
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
    ExampleMeasurement, HeadsOfInput, AblationStep, AlignmentStep, Planning, OutputsOfSearch,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [each for each in kinds_of_work() if each.__module__.startswith("regard.")]
)
def test_work_that_is_captured_or_edited_is_computed_alone(kind):
    round_ = admissions(batch=3)
    together = [round_.choose(computed(most=kind.most)) for _ in range(4)]
    assert together == ([True, False, False, False] if kind in ALONE else [True, True, True, False])


def test_batches_that_are_computed_aside_are_limited():
    round_ = admissions(aside=BackgroundRoom(2, Counter(), set()))
    assert round_.choose(computed("one", aside=True))
    assert round_.choose(computed("two", aside=True))
    assert not round_.choose(computed("three", aside=True))
    assert round_.choose(computed("one", aside=True))  # of a batch that begins
    assert round_.choose(computed("four"))


def test_a_client_leaves_room_aside_to_others():
    most = BackgroundRoom(8, Counter(heavy=4), set())
    round_ = admissions(aside=most)
    assert not round_.choose(computed("one", aside=True, client="heavy"))
    assert round_.choose(computed("two", aside=True, client="light"))


def test_works_that_change_the_same_are_computed_one_after_the_other():
    round_ = admissions(aside=BackgroundRoom(8, Counter(), {"data"}))
    assert not round_.choose(computed("one", aside=True, locks="data"))
    assert round_.choose(computed("two", aside=True, locks="other data"))
    assert not round_.choose(computed("three", aside=True, locks="other data"))
    assert round_.choose(computed("four", aside=True))
    assert round_.choose(computed("five", aside=True))


def test_jobs_and_tokens_that_wait_are_limited():
    queue = JobQueue(3, 10)
    first = job(4)
    second = job(6)
    third = job(1)
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


def test_a_client_that_fills_the_queue_leaves_others_their_share():
    queue = JobQueue(8, 10_000)
    heavy = [job(client="heavy") for _ in range(8)]
    for each in heavy:  # all of it, while nobody else waits
        queue.add(each)
    with pytest.raises(Overloaded):
        queue.add(job(client="heavy"))
    light = [job(client="light") for _ in range(4)]
    for each in light:  # half of it, since two wait
        queue.add(each)
    with pytest.raises(Overloaded):
        queue.add(job(client="light"))
    third = [job(client="third") for _ in range(2)]
    for each in third:  # a third of it
        queue.add(each)
    with pytest.raises(Overloaded):
        queue.add(job(client="third"))
    assert len(queue) == 14
    for each in heavy[:6]:
        assert queue.remove(each)
        with pytest.raises(Overloaded):  # still full: no client may have more than its share
            queue.add(job(client="light"))
    assert len(queue) == 8
    queue.remove(heavy[6])
    queue.add(job(client="heavy"))  # there is room for everyone again
    assert len(queue) == 8


def test_a_share_is_counted_in_tokens_too():
    queue = JobQueue(100, 1000)
    queue.add(job(900, client="heavy"))
    queue.add(job(400, client="light"))
    queue.add(job(100, client="light"))
    with pytest.raises(Overloaded):
        queue.add(job(1, client="light"))  # half of the tokens
    queue.add(job(600, client="third"))  # one job at least, in twice the tokens
    with pytest.raises(Overloaded):
        queue.add(job(1, client="fourth"))
    assert queue.tokens == 2000


@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_queue_is_never_more_than_twice_as_long(size):
    """Whatever comes and goes, of many clients; whoever has nothing in a queue that is not twice as long gets in."""
    chosen = random.Random(size)
    queue = JobQueue(size, 1000)
    for _ in range(3000):
        client = f"client {chosen.randrange(12)}"
        waiting = [each for each in queue if each.client == client]
        before = len(queue)
        try:
            queue.add(job(client=client))
        except Overloaded:
            assert before >= size
            assert waiting or before >= 2 * size
        assert len(queue) <= 2 * size
        if chosen.random() < 0.4:
            queue.remove(chosen.choice(list(queue)))


def test_a_light_client_is_not_refused_while_a_heavy_one_always_asks_for_more():
    """Four hundred connections ask again at once; the engine takes the clients in turn, as it does."""
    queue = JobQueue(256, 65_536)
    lanes = Lanes(queue)
    running = Counter()
    accepted = Counter()

    def ask(client: str) -> None:
        made = job(client=client)
        made.submitted = next(numbers)
        queue.add(made)
        lanes.add("lane", made)
        accepted[client] += 1

    numbers = count()
    for _ in range(500):
        for _ in range(400):
            with suppress(Overloaded):
                ask("heavy")
        ask("light")  # never refused
        for each in lanes.turns(running, ()):
            queue.remove(each)
            running[each.client] += 1
            if sum(running.values()) >= 64:
                break
        running.clear()
    assert accepted["light"] == 500
    assert accepted["heavy"] > 500 * 60


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_time_to_try_again_follows_from_the_jobs_that_end(clock):
    drain = DrainRate(clock)
    drain.begin()
    for _ in range(200):
        clock.now += 0.5
        drain.ended(10, others_wait=True)
    times = [drain.seconds_for(jobs) for jobs in (0, 1, 20, 16, 100, 1000, 5000)]
    assert times == pytest.approx([1, 1, 1, 1, 5, 50, 60], rel=0.15)
    for _ in range(200):  # ten times slower
        clock.now += 5
        drain.ended(10, others_wait=True)
    times = [drain.seconds_for(jobs) for jobs in (4, 20, 100)]
    assert times == pytest.approx([2, 10, 50], rel=0.15)


def test_time_without_jobs_is_not_counted(clock):
    """After a minute without jobs, the queue takes as long as before it."""
    drain = DrainRate(clock)
    for pause in (0.0, 25.0, 3600.0):
        clock.now += pause
        drain.begin()
        for left in range(9, -1, -1):
            clock.now += 0.5
            drain.ended(50, others_wait=left > 0)
        drain.stop()
        clock.now += pause
        drain.begin()
        assert drain.seconds_for(300) == 3
        drain.stop()


def test_one_short_job_tells_little_about_a_full_queue(clock):
    """Jobs that run alone end more slowly, in all, than those of a full batch."""
    drain = DrainRate(clock)
    for _ in range(20):
        drain.begin()
        clock.now += 0.1
        drain.ended(1, others_wait=False)
        drain.stop()
        clock.now += 25
    drain.begin()
    assert 2 <= drain.seconds_for(200) <= 15  # one after the other, they would take 20
    clock.now += 0.4
    drain.ended(64, others_wait=True)
    for _ in range(5):
        clock.now += 0.4
        drain.ended(64, others_wait=True)
    assert drain.seconds_for(200) <= 2


def test_twice_as_many_jobs_wait_twice_as_long_before_others_have_waited(clock):
    drain = DrainRate(clock)
    for _ in range(20):
        drain.begin()
        clock.now += 0.1
        drain.ended(1, others_wait=False)
        drain.stop()
    times = [drain.seconds_for(jobs) for jobs in (200, 400, 800)]
    assert times[1:] == [pytest.approx(2 * each, abs=2) for each in times[:-1]]


def test_with_nothing_known_the_estimate_grows_with_the_time_that_has_passed(clock):
    drain = DrainRate(clock)
    first = drain.seconds_for(200)
    drain.begin()
    assert 1 < first == drain.seconds_for(200) <= 10
    for passed in (20, 20, 20):
        clock.now += passed
        assert drain.seconds_for(200) == min(60, round(clock.now - 100))


def test_a_blocked_scheduler_is_not_expected_to_end_within_a_second(clock):
    drain = DrainRate(clock)
    drain.begin()
    for _ in range(50):
        clock.now += 0.5
        drain.ended(100, others_wait=True)
    assert drain.seconds_for(100) == 1
    clock.now += 30  # and no job has ended
    assert drain.seconds_for(100) == 30
    clock.now += 1000
    assert drain.seconds_for(100) == 60
    drain.ended(1, others_wait=True)
    for _ in range(20):
        clock.now += 0.5
        drain.ended(100, others_wait=True)
    assert drain.seconds_for(100) <= 2


def served_burst(
    queue: JobQueue, clock: Clock, slots: int, lengths: Callable[[], float]
) -> list[tuple[float, float]]:
    """Fill an empty server and let it work until it is idle: estimates, and how long it took from there."""
    queue.drain.begin()
    for _ in range(queue.max_jobs):
        queue.add(job())
    running: list[float] = []  # when each will end
    estimates: list[tuple[float, int]] = []
    emptied = clock.now
    while len(queue) or running:
        ended = sum(end <= clock.now for end in running)
        running = [end for end in running if end > clock.now]
        while len(queue) and len(running) < slots:
            queue.remove(next(iter(queue)))
            running.append(clock.now + lengths())
            emptied = clock.now
        queue.drain.ended(ended, others_wait=len(queue) > 0)
        if len(queue) >= 2 * slots:
            estimates.append((clock.now, queue.drain.seconds_for(len(queue))))
        clock.now = min(running, default=clock.now)
    queue.drain.stop()
    return [(estimate, emptied - at) for at, estimate in estimates]


@pytest.mark.parametrize("slots", [4, 16, 64])
@pytest.mark.parametrize("seconds", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("in_step", [True, False])
def test_the_time_to_try_again_is_within_a_factor_of_three(clock, slots, seconds, in_step):
    """Of a server in bursts with long pauses: single jobs first, which take a third of the time."""
    chosen = random.Random(slots)
    queue = JobQueue(4 * slots, 10_000, clock)

    def length() -> float:
        return seconds * (1.0 if in_step else chosen.uniform(0.5, 1.5))

    served_burst(queue, clock, slots, length)  # before it, nothing is known
    for _ in range(3):
        clock.now += 60
        for _ in range(20):
            queue.drain.begin()
            clock.now += seconds / 3
            queue.drain.ended(1, others_wait=False)
            queue.drain.stop()
        found = served_burst(queue, clock, slots, length)
        assert found
        for estimate, took in found:
            assert min(60, took) / 3 <= estimate <= 3 * max(1, took)
