"""Batches of the engine: the results of each work, and the tokens that it has read."""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import pytest
import torch

pytest.importorskip("msgspec", reason="needs the extra `serve`")

from regard.core.errors import DeadlineExceeded, EngineFailed
from regard.core.interruption import check_interruption
from regard.core.sequence import Tokens
from regard.generation.batch_plan import BatchLimits
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask, plan_requests
from regard.serving.scheduler import background
from regard.serving.scheduler.background import BackgroundThreads
from regard.serving.scheduler.direct_batches import compute
from regard.serving.scheduler.jobs import Embedding, Generation, Job, Scoring
from regard.serving.scheduler.searches import limits_of
from regard.studio.jobs import LiveLook
from support.predictors import classifier, language_model, translator
from support.search import model
from support.servers import until


def test_tokens_that_were_read_are_those_of_the_input_and_of_a_given_target():
    lines = language_model()
    model = translator()
    texts = ["the cat sat", "the cat", ""]
    for text, found in zip(texts, compute(lines, [Scoring(text) for text in texts]), strict=True):
        assert found.read == len(lines.encode(text)[0])
    (found,) = compute(model, [Scoring("the red dog", "a cat sat")])
    assert found.read == len(model.encode("the red dog")[0]) + len(found.result.tokens)
    assert (
        len(found.result.tokens) == len(model.score(["the red dog"], ["a cat sat"])[0].tokens) > 1
    )


LONG = "the cat sat on the mat " * 300  # longer than the models take
ALIKE = {
    "vectors": (translator, [Embedding("a dog"), Embedding(LONG, truncate=True), Embedding(LONG)]),
    "labels": (
        classifier,
        [
            Generation("a dog").as_batched(classifier()),
            Generation(LONG, truncate=True).as_batched(classifier()),
            Generation(LONG).as_batched(classifier()),
            Generation("a dog", scores=True).as_batched(classifier()),
        ],
    ),
    "scores": (language_model, [Scoring("a dog"), Scoring("the cat", "sat"), Scoring("mat")]),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_works_of_one_group_give_together_what_each_gives_alone(kind):
    """Whatever options they have: those that change a result keep works apart."""
    make, works = ALIKE[kind]
    model = make()

    def told(result) -> str:
        return f"{type(result).__name__}: {result}" if isinstance(result, Exception) else "result"

    alone = {id(work): compute(model, [work])[0].result for work in works}
    for one, other in product(works, repeat=2):
        if one.group != other.group:
            continue
        together = [each.result for each in compute(model, [one, other])]
        assert [told(each) for each in together] == [told(alone[id(each)]) for each in (one, other)]


def test_a_search_has_room_for_what_its_requests_need_and_for_nothing_else():
    def limits(banned=(), prefix=(), **options) -> BatchLimits:
        task = SearchTask(made, Tokens.of, DecodeConfig(**{"max_length": 60, **options}))
        (planned,) = plan_requests(task, [GenerationRequest([5, 6], 2, prefix, banned)])
        return limits_of(task, planned)

    made = model("transformer")
    plain = BatchLimits(max_length=64)
    assert (
        limits() == limits(max_length=64) == limits(max_length=3) == plain
    )  # similar requests share a search
    assert limits(max_length=65) == plain._replace(max_length=128)
    assert limits(min_length=1) == plain._replace(min_length=True)
    assert limits(banned=[[7], [8, 9, 10]]) == plain._replace(banned=(2, 4))
    assert limits(prefix=(7, 8, 9)) == plain._replace(max_prefix=4)


@dataclass(frozen=True)
class Thread(LiveLook):
    """The thread in which it is computed, and how many of PyTorch's threads that has."""

    def compute(self, predictor, works):
        return [(threading.current_thread(), torch.get_num_threads())]


def begin(aside: BackgroundThreads, model, *works) -> list[Job]:
    jobs = [Job("", work, print) for work in works]
    aside.begin(jobs, model, works)
    return jobs


def test_looks_are_computed_in_a_thread_that_stays(monkeypatch):
    """With as many of PyTorch's threads as the model is large, and no other thread has fewer for it."""
    model = translator()
    before = torch.get_num_threads()
    wake = threading.Condition()
    threads = BackgroundThreads("cpu", wake)

    def computed() -> tuple[threading.Thread, int]:
        with wake:
            begin(threads, model, Thread("a dog"))
            assert wake.wait_for(lambda: threads.found, 60)
        ((_, (found,)),) = threads.take()
        return found.result

    torch.set_num_threads(3)
    try:
        (first, count) = computed()
        again = computed()
        assert (again, count) == ((first, 1), 1)
        other: list[int] = []
        late = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
        late.start()
        late.join()
        assert other == [3]
        size = sum(weight.numel() for weight in model.model.parameters())
        monkeypatch.setattr(background, "PARAMETERS", size // 2)
        larger, count = computed()
        assert (larger is not first, count) == (True, 2)
        monkeypatch.setattr(background, "PARAMETERS", 1)
        assert computed()[1] == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    threads.close()
    assert not first.is_alive()
    assert not larger.is_alive()


def test_a_look_that_is_computed_ends_before_its_thread_is_closed(monkeypatch):
    """A thread that computes while Python exits would abort the process: "terminate called", exit code 134."""
    begun = threading.Event()
    go_on = threading.Event()
    monkeypatch.setattr(
        Thread, "compute", lambda *given: begun.set() or (go_on.wait(60) and ["looked"])
    )
    threads = BackgroundThreads("cpu", threading.Condition())
    begin(threads, translator(), Thread("a dog"))
    assert begun.wait(60)
    threading.Timer(0.2, go_on.set).start()
    threads.close()
    ((_, found),) = threads.take()
    assert [each.result for each in found] == ["looked"]


@dataclass(frozen=True)
class Endless(Embedding):
    """Computes until it is interrupted, and says when it begins and how often it asked whether to go on."""

    def compute(self, predictor, works):
        (work,) = works
        checks = endless[work.input]
        while True:
            check_interruption()
            checks.append(time.monotonic())
            time.sleep(0.001)


endless: defaultdict[str, list[float]] = defaultdict(list)


def test_more_computations_than_processors_take_turns():
    """Each goes on, whatever the others do, and a short one that comes last is answered before they end."""
    endless.clear()
    wake = threading.Condition()
    threads = BackgroundThreads("cpu", wake)
    model = translator()
    jobs = [job for text in "abcde" for job in begin(threads, model, Endless(text))]
    until(lambda: all(endless[text] for text in "abcde"))
    (short,) = begin(threads, model, Embedding("the cat"))
    with wake:
        assert wake.wait_for(lambda: threads.found, 60)
    ((ended, (found,)),) = threads.take()
    assert list(ended) == [short]
    assert isinstance(found.result, list)
    before = {text: len(endless[text]) for text in "abcde"}
    until(lambda: all(len(endless[text]) > before[text] for text in "abcde"))
    for job in jobs:
        job.abandoned = True
    threads.close()


def test_a_computation_that_does_not_pass_on_its_turn_keeps_no_other_waiting(monkeypatch):
    begun = threading.Semaphore(0)
    go_on = threading.Event()
    monkeypatch.setattr(
        Thread, "compute", lambda *given: begun.release() or (go_on.wait(60) and ["looked"])
    )
    wake = threading.Condition()
    threads = BackgroundThreads("cpu", wake)
    model = translator()
    for _ in range(4):
        begin(threads, model, Thread("a dog"))
    for _ in range(4):
        assert begun.acquire(timeout=60)
    begin(threads, model, Embedding("the cat"))
    with wake:
        assert wake.wait_for(lambda: threads.found, 60)
    assert isinstance(threads.take()[0][1][0].result, list)
    go_on.set()
    threads.close()


def test_a_computation_ends_where_its_job_is_late_or_abandoned():
    endless.clear()
    wake = threading.Condition()
    threads = BackgroundThreads("cpu", wake)
    model = translator()
    late = Job("", Endless("late"), print, deadline=time.monotonic() + 3600)
    threads.begin([late], model, [late.work])
    (abandoned,) = begin(threads, model, Endless("abandoned"))
    until(lambda: endless["abandoned"] and endless["late"])
    abandoned.abandoned = True
    late.deadline = time.monotonic() - 1
    with wake:
        assert wake.wait_for(lambda: len(threads.found) == 2, 60)
    results = {jobs[0]: found[0].result for jobs, found in threads.take()}
    assert isinstance(results[late], DeadlineExceeded)
    assert not threads.begun
    threads.close()


@dataclass(frozen=True)
class Fussy(Embedding):
    """Refuses some inputs, and with them their batch."""

    def compute(self, predictor, works):
        batches_seen.append([work.input for work in works])
        if any(work.input == "wrong" for work in works):
            raise ValueError("wrong")
        return [work.input.upper() for work in works]


batches_seen: list[list[str]] = []


def test_where_a_batch_is_refused_each_is_computed_alone():
    batches_seen.clear()
    found = compute(translator(), [Fussy(text) for text in ("the cat", "wrong", "a dog")])
    assert batches_seen == [["the cat", "wrong", "a dog"], ["the cat"], ["wrong"], ["a dog"]]
    assert (found[0].result, found[2].result) == ("THE CAT", "A DOG")
    assert isinstance(found[1].result, EngineFailed)
    batches_seen.clear()
    found = compute(translator(), [Fussy(text) for text in ("the cat", "a dog")])
    assert [each.result for each in found] == ["THE CAT", "A DOG"]
    assert batches_seen == [["the cat", "a dog"]]
