"""The search behind a server: requests that come and go at random are answered as each would be alone."""

import random
from dataclasses import replace

import pytest

from regard.core.sequence import Tokens
from regard.generation import search as searching
from regard.generation.batch_plan import BatchLimits
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask, plan_requests
from regard.generation.search import Search, search
from support import search as support
from support.models import DECODERS

SLOTS = 4


def task_and_requests(name: str, options: dict) -> tuple[SearchTask, list[GenerationRequest]]:
    config = DecodeConfig(**{"max_length": support.LONGEST, **options})
    rows = support.sources()
    # Each draws its random numbers as the first request of a search of its own.
    task = SearchTask(support.model(name), Tokens.of, config, scored=True, numbers=[0] * len(rows))
    return task, [GenerationRequest(row, len(row)) for row in rows]


def alone(task: SearchTask, request: GenerationRequest) -> list:
    single = SearchTask(task.model, task.collate, task.config, scored=True, numbers=[0])
    ((_, hypotheses),) = search(single, [request])
    return hypotheses


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(pytest.param(name, {}, id=f"{name}-greedy") for name in DECODERS),
        *(
            pytest.param(name, support.STRATEGIES[1], id=f"{name}-beam")
            for name in ("transformer", "rnn", "conv")
        ),
        *(
            pytest.param(name, support.STRATEGIES[2], id=f"{name}-sample")
            for name in ("transformer", "rnn", "conv")
        ),
    ],
)
def test_an_answer_does_not_depend_on_what_comes_and_goes_beside_it(name, options):
    task, requests = task_and_requests(name, options)
    planned, chance = plan_requests(task, requests), random.Random(5)
    running = Search(task, BatchLimits(support.LONGEST), SLOTS)
    waiting, index_of, streamed, answers = list(range(len(requests))), {}, {}, {}
    cancelled = set()
    while waiting or len(running):
        count = min(running.free, len(waiting), chance.choice([0, 1, 2, 3]))
        if count:
            chosen, waiting = waiting[:count], waiting[count:]
            index_of |= zip(running.admit([planned[i] for i in chosen]), chosen, strict=True)
        if len(running) and chance.random() < 0.2:
            number = chance.choice([*running.requests])
            running.cancel(number)
            cancelled.add(index_of[number])
        if len(running):
            last, finished = running.advance()
            for number, token in last.items():
                streamed.setdefault(index_of[number], []).append(token)
            answers |= {index_of[number]: hypotheses for number, hypotheses in finished}
    assert cancelled
    assert answers.keys() == set(range(len(requests))) - cancelled
    for i, hypotheses in answers.items():
        expected = alone(task, requests[i])
        assert [each.tokens for each in hypotheses] == [each.tokens for each in expected]
        assert [each.score for each in hypotheses] == pytest.approx(
            [each.score for each in expected], abs=1e-5
        )
        if not options:
            assert tuple(streamed[i][: len(expected[0].tokens)]) == expected[0].tokens


@pytest.mark.parametrize("options", [{}, support.STRATEGIES[1]], ids=["greedy", "beam"])
def test_steps_that_begin_before_results_are_read_change_no_answer(options, monkeypatch):
    """As on a GPU, where slots are freed and admitted to while steps are running; here one step at a time."""
    monkeypatch.setattr(searching, "STEPS_AHEAD", 1)
    task, requests = task_and_requests("transformer", options)
    planned, chance = plan_requests(task, requests), random.Random(3)
    running = Search(task, BatchLimits(support.LONGEST), SLOTS)
    running.ahead = True
    waiting, index_of, answers, late = list(range(len(requests))), {}, {}, 0
    while waiting or len(running):
        while waiting and running.free and chance.random() < 0.8:
            first = waiting.pop(0)
            index_of[running.admit([planned[first]])[0]] = first
        if len(running):
            _, finished = running.advance(())
            late += bool(finished and waiting)
            answers |= {index_of[number]: hypotheses for number, hypotheses in finished}
    assert late  # slots were freed, and admitted to, while others ran
    for i, hypotheses in answers.items():
        assert [each.tokens for each in hypotheses] == [
            each.tokens for each in alone(task, requests[i])
        ]
    assert answers.keys() == set(range(len(requests)))


@pytest.mark.parametrize("options", [{}, support.STRATEGIES[1]], ids=["greedy", "beam"])
@pytest.mark.parametrize("name", ["transformer", "rnn", "conv"])
def test_several_steps_at_once_change_no_answer(name, options):
    """Of compiled loops, which end when requests are finished, or are interrupted; bit for bit."""
    task, requests = task_and_requests(name, {**options, "min_length": 4})
    planned, chance = plan_requests(task, requests), random.Random(7)
    running = Search(task, BatchLimits(support.LONGEST), SLOTS)
    running.microseconds = 0  # no limit: this machine may be busy
    if not running.plan.decoder.compiled:
        pytest.skip("no C++ compiler here")
    waiting, index_of, answers, taken = list(range(len(requests))), {}, {}, []
    while waiting or len(running):
        count = min(running.free, len(waiting), chance.choice([0, 1, 2, 3]))
        if count:
            chosen, waiting = waiting[:count], waiting[count:]
            index_of |= zip(running.admit([planned[i] for i in chosen]), chosen, strict=True)
        if len(running):
            interrupted = chance.random() < 0.3
            (running.interrupt.set if interrupted else running.interrupt.clear)()
            before = running.step
            last, finished = running.advance(())
            assert last == {}
            taken.append(running.step - before)
            assert taken[-1] == 1 if interrupted else finished
            answers |= {index_of[number]: hypotheses for number, hypotheses in finished}
    assert max(taken) > 2
    assert answers == {i: alone(task, request) for i, request in enumerate(requests)}


def test_the_batch_of_a_compiled_loop_has_few_sizes():
    """Free slots cost it nothing, and to move the others costs the time of steps."""
    task, requests = task_and_requests("transformer", {})
    planned = plan_requests(task, requests)
    running = Search(task, BatchLimits(support.LONGEST), slots=7)
    if not running.plan.decoder.compiled:
        pytest.skip("no C++ compiler here")
    first, sizes = running.admit(planned[:1]), []
    for each in planned[1:6]:
        running.admit([each])
        sizes.append(len(running.batch.occupants))
    assert sizes == [2, 4, 4, 7, 7]  # powers of two, and all slots
    kept = {}
    for number in list(running.requests)[1:]:
        running.cancel(number)
        kept[len(running)] = len(running.batch.occupants)
    assert kept == {5: 7, 4: 7, 3: 7, 2: 7, 1: 1}
    running.cancel(*first)
    assert (len(running), running.free) == (0, 7)


def test_the_batch_holds_what_is_running():
    task, requests = task_and_requests(
        "transformer", support.STRATEGIES[2]
    )  # sampled, which has no compiled loop
    planned = plan_requests(task, requests)
    running = Search(task, BatchLimits(support.LONGEST), slots=8)
    first = running.admit(planned[:1])
    assert len(running.batch.occupants) == 1
    rest = running.admit(planned[1:6])
    assert (len(running.batch.occupants), len(running), running.free) == (6, 6, 2)
    for number in rest[:4]:
        running.cancel(number)
    assert (len(running.batch.occupants), len(running), running.free) == (
        3,
        2,
        6,
    )  # shrunk when half of them were free
    running.cancel(rest[0])  # again: nothing happens
    for number in (*first, rest[4]):
        running.cancel(number)
    assert (len(running), running.free) == (0, 8)
    running.admit(planned[:2])
    assert (running.step, len(running.batch.occupants)) == (0, 2)  # began anew


def test_it_runs_on_when_the_cache_is_full():
    task, requests = task_and_requests("transformer", {})
    planned = plan_requests(task, requests)
    running = Search(task, BatchLimits(support.LONGEST), slots=2)
    index_of, answers, next_ = {}, {}, 0
    while (
        running.step < 5 * support.LONGEST
    ):  # never empty: the cache of twice the longest output is full several times
        while running.free:
            index_of[running.admit([planned[next_ % len(planned)]])[0]] = next_ % len(planned)
            next_ += 1
        answers |= {index_of[number]: hypotheses for number, hypotheses in running.advance()[1]}
    for i, hypotheses in answers.items():
        assert hypotheses[0].tokens == alone(task, requests[i])[0].tokens


@pytest.mark.parametrize("begun", [False, True], ids=["first", "later"])
def test_requests_whose_encoding_raises_are_forgotten(begun):
    """The search goes on as if they had never come: their slots are free, and the others' outputs are unchanged."""
    task, requests = task_and_requests("transformer", {})
    planned = plan_requests(task, requests)
    refused = requests[2].source

    def collate(sources: list) -> Tokens:
        if refused in sources:
            raise RuntimeError("no memory is left")
        return Tokens.of(sources)

    running = Search(replace(task, collate=collate), BatchLimits(support.LONGEST), slots=3)
    numbers = running.admit(planned[:1]) if begun else []
    with pytest.raises(RuntimeError, match="no memory"):
        running.admit(planned[1:3])
    assert [*running.requests] == numbers
    assert (len(running), running.free) == (len(numbers), 3 - len(numbers))
    assert running.batch.running == len(numbers)
    numbers += running.admit([planned[1], planned[3]])
    answers = {}
    while len(running):
        answers |= dict(running.advance()[1])
    indices = [0, 1, 3] if begun else [1, 3]
    wanted = [alone(task, requests[index])[0].tokens for index in indices]
    assert [answers[number][0].tokens for number in numbers] == wanted
