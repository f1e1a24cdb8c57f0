"""Searches that are computed in threads beside the engine's: jobs enter and leave them between two rounds."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from regard.core.errors import DeadlineExceeded, EngineCrashed, EngineFailed, ServerStopping
from regard.generation.engines.cpu import compile
from regard.generation.search import LOOP_MICROSECONDS
from regard.serving.scheduler import search_rounds, searches
from regard.serving.scheduler.job_queue import ENTERING_TOKENS
from regard.serving.scheduler.jobs import Generation, Job
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from regard.serving.scheduler.search_rounds import SearchRounds
from regard.serving.scheduler.searches import Round, SearchGroup
from support.predictors import translator
from support.servers import until

pytestmark = pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")
MODEL = translator(decoder="transformer")
TEXTS = ["the cat sat", "a dog ran on the mat", "the", "on the mat the red cat sat"]
LONG = {"min_length": 8, "max_length": 20}
PATIENCE = 60.0


class Held:
    """Rounds that begin in threads, and wait there until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.rows, self.jobs = list[int](), list[list[Job]]()  # of each round
        compute = SearchGroup.compute

        def waiting(group: SearchGroup) -> Round:
            if "search" in threading.current_thread().name:
                self.rows.append(group.rows)
                self.jobs.append(
                    [each.job for each in (*group.running.values(), *(group.admitted or ()))]
                )
                self.begun.release()
                assert self.go_on.wait(PATIENCE)
            return compute(group)

        monkeypatch.setattr(SearchGroup, "compute", waiting)

    def wait(self, rounds: int) -> None:
        for _ in range(rounds):
            assert self.begun.acquire(timeout=PATIENCE)


@pytest.fixture
def engine(monkeypatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(searches, "FULL_ROWS", 2)
    engine = Scheduler(SchedulerLimits(slots=4, searches=2), "cpu")
    engine.load("m", "1", MODEL)
    yield engine
    engine.stop()


def ask(engine: Scheduler, text: str, **options) -> tuple[Job, list[object], threading.Event]:
    found, ended = [], threading.Event()
    job = Job(
        "m", Generation(text, LONG), lambda result: (found.append(result), ended.set()), **options
    )
    engine.submit(job)
    return job, found, ended


def assert_empty(engine: Scheduler) -> None:
    assert engine.busy == 0
    assert not engine.models["m"].groups
    assert engine._clients.total() == 0


def test_jobs_of_equal_settings_share_the_slots_of_two_searches(engine, monkeypatch):
    held = Held(monkeypatch)
    asked = [ask(engine, text) for text in TEXTS + TEXTS]
    engine.start()
    held.wait(2)
    assert held.rows == [2, 2]  # two slots each, and the other jobs wait
    assert engine.stats().searches == 2
    assert len(engine.queue) == 4
    held.go_on.set()
    for text, (_, found, ended) in zip(TEXTS + TEXTS, asked, strict=True):
        assert ended.wait(PATIENCE)
        assert [each.text for each in found[0]] == MODEL.predict([text], **LONG)
    assert_empty(engine)


def test_inputs_that_are_encoded_between_two_checks_of_deadlines_are_bounded(monkeypatch):
    """Also where each job has a search of its own, as those with required phrases have."""
    tokens = []
    drop_late = Scheduler._drop_late
    compute = SearchGroup.compute

    def checked(engine: Scheduler, jobs) -> None:
        tokens.append(0)
        drop_late(engine, jobs)

    def counted(group: SearchGroup) -> Round:
        tokens[-1] += sum(each.input_tokens for each in group.admitted or ())
        return compute(group)

    monkeypatch.setattr(Scheduler, "_drop_late", checked)
    monkeypatch.setattr(SearchGroup, "compute", counted)
    engine = Scheduler(SchedulerLimits(slots=16, searches=1), "cpu")
    engine.load("m", "1", MODEL)
    text = "the cat sat " * 200
    work = Generation(text, {"max_length": 8}, required=("dog",))
    ended = [threading.Event() for _ in range(12)]
    for event in ended:
        engine.submit(Job("m", work, lambda result, event=event: event.set()))
    engine.start()
    assert all(event.wait(PATIENCE) for event in ended)
    assert engine.stop(PATIENCE)
    assert sum(tokens) > 12 * 600
    assert max(tokens) <= ENTERING_TOKENS


def test_a_job_that_is_cancelled_or_late_during_a_round_leaves_with_its_end(engine, monkeypatch):
    held = Held(monkeypatch)
    asked = [ask(engine, TEXTS[0]), ask(engine, TEXTS[1], deadline=time.monotonic() + 0.1)]
    asked += [ask(engine, text) for text in TEXTS[2:]]
    engine.start()
    held.wait(2)
    engine.cancel(asked[0][0])
    later = ask(engine, "dog")
    time.sleep(0.15)
    held.go_on.set()
    for text, (_, found, ended) in zip([*TEXTS[2:], "dog"], [*asked[2:], later], strict=True):
        assert ended.wait(PATIENCE)
        assert [each.text for each in found[0]] == MODEL.predict([text], **LONG)
    assert asked[1][2].wait(PATIENCE)
    assert isinstance(asked[1][1][0], DeadlineExceeded)
    assert engine.stop(PATIENCE)
    assert asked[0][1] == []
    assert not any(
        gone[0] in jobs for jobs in held.jobs[2:] for gone in asked[:2]
    )  # their slots were free at once
    assert_empty(engine)


def test_a_job_that_is_cancelled_when_it_has_just_finished_gives_nothing(engine, monkeypatch):
    take_in = engine._take_in

    def cancelled(rounds):
        finished = take_in(rounds)
        for _, each, _ in finished:
            engine.cancel(each.job)
        return finished

    monkeypatch.setattr(engine, "_take_in", cancelled)
    asked = [ask(engine, text) for text in TEXTS]
    engine.start()
    assert engine.stop(PATIENCE)
    assert all(found == [] for _, found, _ in asked)
    assert_empty(engine)


def test_a_search_that_fails_in_a_thread_ends_its_jobs_only(engine, monkeypatch):
    plain, failed = searches.Search.advance, []

    def advance(search, watched):
        if not failed:
            failed.append(threading.current_thread().name)
            raise ZeroDivisionError
        return plain(search, watched)

    monkeypatch.setattr(searches.Search, "advance", advance)
    asked = [ask(engine, text) for text in TEXTS]
    engine.start()
    assert all(ended.wait(PATIENCE) for _, _, ended in asked)
    assert "search" in failed[0]
    assert [isinstance(found[0], EngineFailed) for _, found, _ in asked].count(True) == 2
    _, found, ended = ask(engine, TEXTS[0])
    assert ended.wait(PATIENCE)
    assert [each.text for each in found[0]] == MODEL.predict([TEXTS[0]], **LONG)
    assert_empty(engine)


def test_jobs_that_cannot_enter_end_alone(engine, monkeypatch):
    plain, refused = searches.Search.admit, []

    def admit(search, requests):
        if not refused:
            refused.append(len(requests))
            raise ZeroDivisionError
        return plain(search, requests)

    monkeypatch.setattr(searches.Search, "admit", admit)
    asked = [ask(engine, text) for text in TEXTS]
    engine.start()
    assert all(ended.wait(PATIENCE) for _, _, ended in asked)
    assert [isinstance(found[0], EngineFailed) for _, found, _ in asked].count(True) == refused[0]
    assert_empty(engine)


def test_a_fault_in_a_thread_ends_the_engine(engine, monkeypatch, caplog):
    def fault(group: SearchGroup) -> Round:
        raise SystemExit("planted")

    monkeypatch.setattr(SearchGroup, "compute", fault)
    asked = [ask(engine, text) for text in TEXTS]
    engine.start()
    for _, found, ended in asked:
        assert ended.wait(PATIENCE)
        assert isinstance(found[0], EngineCrashed)
    with pytest.raises(EngineCrashed):
        ask(engine, TEXTS[0])


def test_stopping_waits_for_the_rounds_that_are_computed(engine, monkeypatch):
    held = Held(monkeypatch)
    asked = [ask(engine, text) for text in TEXTS]
    engine.start()
    held.wait(2)
    # Until the time to stop is over, the rounds wait.
    going_on = threading.Thread(
        target=lambda: (until(lambda: not engine._working), held.go_on.set())
    )
    going_on.start()
    assert engine.stop(0.05) is False
    going_on.join()
    assert not any(
        "search" in each.name or each is engine._thread for each in threading.enumerate()
    )
    assert all(
        isinstance(found[0], ServerStopping) for _, found, ended in asked if ended.wait(PATIENCE)
    )


def test_searches_that_wait_for_each_other_have_shorter_rounds(monkeypatch):
    """Of three in two threads, each has a third of the time; where one of them streams, a step."""
    rounds = SearchRounds("cpu", 4, threading.Condition(), 2)
    groups = [object.__new__(SearchGroup) for _ in range(3)]
    for group in groups:
        search = SimpleNamespace(microseconds=0, plan=SimpleNamespace(beams=1))
        vars(group).update(
            search=search, threaded=True, running={1: None}, watched=set(), entering=[], dropped=[]
        )
    monkeypatch.setattr(SearchRounds, "busy", True)
    rounds.begin(groups)
    assert [group.search.microseconds for group in groups] == [LOOP_MICROSECONDS // 3] * 3
    groups[0].watched.add(1)
    rounds.begin(groups)
    assert [group.search.microseconds for group in groups] == [1] * 3
    rounds.begin(groups[:2])
    assert [group.search.microseconds for group in groups] == [
        LOOP_MICROSECONDS,
        LOOP_MICROSECONDS,
        1,
    ]


@pytest.mark.parametrize(
    ("threads", "small", "threaded", "here"),
    [
        (2, [True], True, [0]),  # alone, with all of PyTorch's threads
        (2, [False], True, []),
        (2, [True, True], True, []),
        (2, [True, False], True, []),
        (2, [True, False], False, [0, 1]),
        (2, [False], False, [0]),
        (1, [False, True], True, [0, 1]),
    ],
)
def test_a_small_search_without_others_is_computed_here(
    monkeypatch, threads, small, threaded, here
):
    monkeypatch.setattr(SearchRounds, "busy", True)
    monkeypatch.setattr(SearchGroup, "small", property(lambda group: group.is_small))
    groups = [object.__new__(SearchGroup) for _ in small]
    for group, is_small in zip(groups, small, strict=True):
        search = SimpleNamespace(microseconds=0, plan=SimpleNamespace(beams=1))
        vars(group).update(search=search, threaded=threaded, is_small=is_small, running={1: None})
        vars(group).update(watched=set(), entering=[], dropped=[])
    found = SearchRounds("cpu", 4, threading.Condition(), threads).begin(groups)
    assert [groups.index(group) for group in found] == here


def test_the_first_token_has_the_time_of_its_step():
    found = Round(steps=(10, 14), times=(100.0, 108.0))
    assert [found.time_of(step) for step in (10, 11, 14)] == [100.0, 102.0, 108.0]
    assert Round(steps=(3, 3), times=(1.0, 2.0)).time_of(3) == 2.0


@pytest.mark.parametrize(
    ("device", "cores", "slots", "given", "threads"),
    [
        ("cpu", 4, 64, None, 4),
        ("cpu", 4, 47, None, 2),  # 16 slots for each
        ("cpu", 4, 48, None, 3),
        ("cpu", 4, 15, None, 1),
        ("cpu", 1, 64, None, 1),
        ("cpu", 4, 64, 2, 2),
        ("cuda", 4, 64, None, 1),  # whose kernels are launched by one thread
        ("cuda", 4, 64, 2, 2),
    ],
)
def test_searches_at_once(monkeypatch, device, cores, slots, given, threads):
    monkeypatch.setattr(search_rounds, "pick_device", lambda name: name)
    monkeypatch.setattr(search_rounds.torch, "get_num_threads", lambda: cores)
    rounds = SearchRounds(device, slots, threading.Condition(), given)
    assert rounds.threads == threads
    for computed in range(threads + 1):
        rounds._computed = dict.fromkeys(range(computed))
        assert (rounds.active, rounds.busy) == (computed > 0, computed == threads)
