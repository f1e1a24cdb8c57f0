"""The engine behind a server: any mixture of jobs is answered as `Predictor.outputs` answers each alone."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidArgument,
    Overloaded,
    ServerStopping,
)
from regard.generation.config import DecodeConfig
from regard.serving.scheduler import jobs as jobs_module, scheduler, searches
from regard.serving.scheduler.attention_ranges import InspectedAttention
from regard.serving.scheduler.job_queue import JobQueue, Lanes
from regard.serving.scheduler.jobs import Embedding, Generation, Inspection, Job, Scoring, Work
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from regard.tasks.pipeline import Output, OutputOptions
from support.predictors import classifier, language_model, masked_model, replace_step, translator
from support.servers import until

TEXTS = [
    "the cat sat",
    "a dog ran on the mat",
    "the",
    "on the mat the red cat sat; a dogma",
    "dog",
    "",
]
PATIENCE = 60.0
LONG = {"min_length": 8, "max_length": 12}


class Answer:
    """Receives what a job gives."""

    def __init__(self, model: str, work: Work, **options) -> None:
        self.ended, self.result, self.pieces = threading.Event(), None, []
        self.calls = 0
        self.job = Job(model, work, self.end, **options)

    def end(self, result) -> None:
        self.result, self.calls = result, self.calls + 1
        self.ended.set()

    def wait(self):
        assert self.ended.wait(PATIENCE), "no answer"
        return self.result


@pytest.fixture
def engine() -> Iterator[Scheduler]:
    yield from started()


@pytest.fixture(params=[1, 2])
def any_engine(request, monkeypatch) -> Iterator[Scheduler]:
    """With one search of equal settings, or two at once in threads, of two hypotheses or more."""
    monkeypatch.setattr(searches, "FULL_ROWS", 16 // request.param**3)
    yield from started(searches=request.param)


def started(**limits) -> Iterator[Scheduler]:
    engine = Scheduler(
        SchedulerLimits(
            slots=4, hypotheses=16, queued_jobs=200, queued_tokens=10_000, batch=3, **limits
        )
    )
    for decoder in ("transformer", "rnn", "conv"):
        engine.load(decoder, "1", translator(decoder=decoder))
    engine.load("exact", "1", translator(encoder="transformer"))
    engine.load("labels", "1", classifier())
    engine.load("lines", "1", language_model())
    engine.load("running", "1", language_model(context_length=8))
    engine.load("masked", "1", masked_model())
    engine.start()
    yield engine
    engine.stop()


def ask(engine: Scheduler, model: str, work: Work, **options) -> Answer:
    answer = Answer(model, work, **options)
    engine.submit(answer.job)
    return answer


@pytest.fixture
def held_looks(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Looks that begin, and wait before they search until they are released."""
    begun, release, inspect = threading.Event(), threading.Event(), jobs_module.inspect

    def waiting(*given, **options) -> InspectedAttention:
        begun.set()
        assert release.wait(PATIENCE)
        return inspect(*given, **options)

    monkeypatch.setattr(jobs_module, "inspect", waiting)
    return begun, release


def test_the_weights_of_a_model_that_is_served_are_constant(engine):
    """So that no search compares them with what is compiled; the model that was given is as it was."""
    task = engine.models["exact"].pipeline.task(DecodeConfig(), OutputOptions())
    assert task.constant_weights
    given = translator()
    assert not given.pipeline.task(DecodeConfig(), OutputOptions()).constant_weights


def test_a_look_that_searches_holds_up_no_other_job(engine, held_looks):
    begun, release = held_looks
    edits = ({"edit": "scale_head", "map": "decoder 1 cross", "head": 0, "factor": 0.25},)
    looks = [ask(engine, "transformer", Inspection(text, edits=edits)) for text in TEXTS[:2]]
    late = ask(engine, "transformer", Inspection(TEXTS[2]), deadline=time.monotonic() + 0.2)
    assert begun.wait(PATIENCE)
    pieces: list[str] = []
    stream = ask(engine, "transformer", Generation(TEXTS[1], LONG), on_text=pieces.append)
    assert [each.text for each in stream.wait()] == [
        engine.models["transformer"].predictor.predict([TEXTS[1]], **LONG)[0]
    ]
    assert "".join(pieces) == stream.result[0].text
    assert isinstance(late.wait(), DeadlineExceeded)  # it waited for its turn
    assert not any(each.ended.is_set() for each in looks)
    release.set()
    for text, each in zip(TEXTS, looks, strict=False):
        wanted = regard.look(engine.models["transformer"].predictor, text, edits=edits)
        assert each.wait().output["text"] == wanted.output.as_dict()["text"]
    assert_nothing_is_left(engine)


def test_looks_of_several_models_that_come_together_are_all_answered():
    models = {name: translator(decoder=name) for name in ("transformer", "rnn", "conv")}
    engine = Scheduler(SchedulerLimits(slots=4))
    for name, model in models.items():
        engine.load(name, "1", model)
    looks = {
        name: ask(engine, name, Inspection(TEXTS[0], options={"max_length": 8})) for name in models
    }
    engine.start()
    for name, each in looks.items():
        assert (
            each.wait().output["text"]
            == regard.look(models[name], TEXTS[0], max_length=8).output.text
        ), name
    engine.stop()


def test_a_look_that_is_cancelled_while_it_searches_gives_nothing(engine, held_looks):
    begun, release = held_looks
    look = ask(engine, "transformer", Inspection(TEXTS[0]))
    assert begun.wait(PATIENCE)
    engine.cancel(look.job)
    assert ask(engine, "transformer", Generation(TEXTS[0])).wait()[0].text is not None
    release.set()
    assert isinstance(ask(engine, "transformer", Inspection(TEXTS[1])).wait(), InspectedAttention)
    assert not look.ended.is_set()
    assert_nothing_is_left(engine)


def test_an_engine_that_does_nothing_with_its_jobs_is_stuck(engine):
    release, job = (
        threading.Event(),
        Job("rnn", Generation(TEXTS[0]), lambda result: release.wait(PATIENCE)),
    )
    assert engine.stuck() == 0.0
    engine.submit(job)  # whose receiver blocks the engine's thread
    other = ask(engine, "rnn", Generation(TEXTS[1], LONG))
    until(lambda: engine.stuck() >= 0.2)
    release.set()
    other.wait()
    assert engine.stuck() == 0.0


def assert_nothing_is_left(engine: Scheduler) -> None:
    # What a job that was cancelled leaves behind goes when the engine's thread comes to it.
    until(lambda: engine.busy == engine._clients.total() == 0)
    assert engine.busy == 0
    assert (len(engine.queue), engine.queue.tokens) == (0, 0)
    assert not any(model.groups for model in engine.models.values())
    assert engine._clients.total() == 0


def expected(engine: Scheduler, model: str, work: Work):
    predictor = engine.models[model].predictor
    if isinstance(work, Scoring):
        return predictor.score([work.input], None if work.target is None else [work.target])[0]
    if isinstance(work, Embedding):
        return predictor.embed([work.input], truncate=work.truncate)[0]
    if isinstance(work, Inspection):
        return regard.look(
            predictor, work.input, output=work.output, layers=work.layers, words=work.words
        )
    found: list[Output] = predictor.outputs(
        [work.input],
        prefixes=[work.prefix] if work.prefix else None,
        banned=work.banned,
        required=[work.required] if work.required else None,
        scores=work.scores,
        attention=work.attention,
        lines=[work.number + 1],
        **work.options,
    )[0]
    return found


def assert_equal(result, wanted, *, exact: bool = False) -> None:
    """Texts, tokens and numbers are equal; those of a search with `exact`, where the compiled engine computes it."""
    if isinstance(wanted, torch.Tensor):
        assert result == wanted.tolist()
        return
    if isinstance(wanted, regard.Look):
        assert isinstance(result, InspectedAttention)
        assert result.output == (None if wanted.output is None else wanted.output.as_dict())
        for each in result.maps:
            weights = wanted[each.name].weights()[list(each.heads)]
            part = weights[:, slice(*each.rows), slice(*each.columns)]
            assert np.abs(each.weights - part.numpy()).max(initial=0) < 1e-6
            assert part.shape == each.weights.shape
            assert each.size == wanted[each.name].size
        return
    if not isinstance(wanted, list):
        assert result.tokens == wanted.tokens
        assert result.log_probabilities == wanted.log_probabilities
        return
    assert [(each.text, each.token_ids, each.finish_reason) for each in result] == [
        (each.text, each.token_ids, each.finish_reason) for each in wanted
    ]
    if exact:
        numbers = [(each.score, each.log_probabilities) for each in result]
        assert numbers == [(each.score, each.log_probabilities) for each in wanted]
    for one, other in zip(result, wanted, strict=True):
        assert (one.score is None) == (other.score is None)
        if one.score is not None:
            assert one.score == pytest.approx(other.score, abs=1e-5)
        assert (one.attention is None) == (other.attention is None)
        if one.attention is not None:
            assert (one.attention - other.attention).abs().max() < 1e-5
        assert (one.probabilities is None) == (other.probabilities is None)
        if one.probabilities is not None:
            assert one.probabilities == other.probabilities


def works(chance: random.Random) -> tuple[str, Work]:
    """Some job: a model, and what it is asked."""
    text, short = chance.choice(TEXTS), {"max_length": chance.choice([3, 9, 20])}
    model = chance.choice(["transformer", "rnn", "conv", "exact", "exact"])
    kind = chance.randrange(13)
    if kind == 0:
        return model, Generation(text, {**short, "beam_size": 3, "num_hypotheses": 2}, scores=True)
    if kind == 1:
        sampled = {**short, "sample": True, "temperature": 0.8, "seed": chance.choice([1, 2])}
        return model, Generation(text, sampled, number=chance.randrange(3))
    if kind == 2:
        return model, Generation(text, short, prefix="the cat", banned=["dog"], scores=True)
    if kind == 3:
        return model, Generation(text, {"max_length": 20, "beam_size": 2}, required=["mat"])
    if kind == 4:
        return "labels", Generation(text, chance.choice([{}, {"num_hypotheses": 2}]), scores=True)
    if kind == 5:
        return chance.choice(["lines", "running"]), Generation(
            "the cat", {"max_length": chance.choice([4, 20])}
        )
    if kind == 6:
        return model, Scoring(text, "a dog sat") if chance.random() < 0.5 else Generation(
            text, short, attention=True
        )
    if kind == 7:
        return "lines", Scoring("the cat sat")
    if kind == 8:
        every = [model, "labels", "lines", "running", "masked"]
        return chance.choice(every), Embedding(text, truncate=chance.random() < 0.5)
    if kind == 9:
        output, rows = (
            chance.choice([("the mat", None), ("a dog", (1, 3))]),
            chance.choice([None, (0, 2)]),
        )
        return model, Inspection(
            text or "a", output[0], rows=output[1] or rows, columns=rows, words=rows is None
        )
    if kind == 10:
        return chance.choice(["labels", "masked"]), Inspection(
            "the cat sat", heads=chance.choice([None, (0,)])
        )
    if kind == 11:
        return chance.choice(["rnn", "exact"]), Generation(
            text, {**short, "min_length": 3, "stop": ["a", " c"]}
        )
    return model, Generation(text, short, scores=chance.random() < 0.5)


def test_any_mixture_of_jobs_is_answered_as_each_alone(any_engine):
    """From several threads, with random arrivals, cancellations, deadlines and reloads; nothing is left behind."""
    engine = any_engine
    answers: list[tuple[Answer, str, Work]] = []
    cancelled: list[Answer] = []
    late: list[Answer] = []
    lock = threading.Lock()

    def client(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(15):
            model, work = works(chance)
            soon = time.monotonic() + 0.02 if chance.random() < 0.1 else None
            answer = ask(engine, model, work, client=str(seed), deadline=soon)
            late.extend([answer] if soon else [])
            with lock:
                answers.append((answer, model, work))
            if chance.random() < 0.15:
                engine.cancel(answer.job)
                cancelled.append(answer)
            if chance.random() < 0.1:
                engine.load(model, str(seed), engine.models[model].predictor)
            time.sleep(chance.random() * 0.01)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checked = 0
    for answer, model, work in answers:
        if answer not in cancelled and not (
            isinstance(answer.wait(), DeadlineExceeded) and answer in late
        ):
            assert_equal(answer.wait(), expected(engine, model, work), exact=model == "exact")
            checked += 1
    assert checked > 30
    assert engine.stop(PATIENCE)
    assert all(answer.calls <= 1 for answer, _, _ in answers)
    assert_nothing_is_left(engine)


@pytest.mark.parametrize("model", ["transformer", "rnn", "lines", "running"])
def test_the_pieces_of_a_stream_are_the_text(engine, model):
    work = Generation("the cat sat", {"max_length": 20, "sample": True, "temperature": 3.0})
    answer = Answer(model, work)
    answer.job.on_text = answer.pieces.append
    engine.submit(answer.job)
    assert "".join(answer.pieces if answer.wait() else ()) == expected(engine, model, work)[0].text
    assert len(answer.pieces) > 1


def test_a_bad_input_is_refused_alone(engine):
    good = Generation("the cat", {"max_length": 5})
    bad = [
        Generation("the cat", {"beam_size": 0}),
        Generation("cat " * 2000),
        Generation("the cat", {"no_such_option": 1}),
        Generation("the cat", required=["mat " * 400]),
    ]
    answers = [ask(engine, "transformer", work) for work in (good, *bad, good)]
    assert_equal(answers[0].wait(), expected(engine, "transformer", good))
    assert_equal(answers[-1].wait(), expected(engine, "transformer", good))
    for answer in answers[1:-1]:
        assert isinstance(answer.wait(), ValueError)
    labels = [
        ask(engine, "labels", work)
        for work in (Generation("cat"), Generation(np.zeros((4, 4, 3), np.uint8)))
    ]
    assert_equal(labels[0].wait(), expected(engine, "labels", Generation("cat")))
    assert isinstance(labels[1].wait(), InvalidArgument)
    with pytest.raises(InvalidArgument, match=r"model: wanted one of transformer.*; got 'nothing'"):
        ask(engine, "nothing", good)


def test_a_truth_value_is_no_number_whatever_was_asked_for_before(engine):
    """In Python, True equals 1; as a setting it is refused, before and after the number was used."""
    for value in (True, 1, True, 1):
        answer = ask(engine, "transformer", Generation("the cat", {"beam_size": value})).wait()
        assert isinstance(answer, ValueError) == (value is True), answer


def test_a_model_that_fails_ends_its_jobs_and_not_the_engine(engine, monkeypatch, caplog):
    decoder = engine.models["rnn"].predictor.model.decoder
    replace_step(monkeypatch, decoder, lambda *given: 1 / 0)
    failed = ask(engine, "rnn", Generation("the cat"))
    assert isinstance(failed.wait(), EngineFailed)
    assert "ZeroDivisionError" in caplog.text
    work = Generation("the cat", {"max_length": 4})
    assert_equal(ask(engine, "conv", work).wait(), expected(engine, "conv", work))
    monkeypatch.undo()
    assert_equal(ask(engine, "rnn", work).wait(), expected(engine, "rnn", work))


class Slow:
    """Makes every step of a model wait until it is told to go on."""

    def __init__(self, engine: Scheduler, model: str, monkeypatch) -> None:
        decoder = engine.models[model].predictor.model.decoder
        self.gate, self.waits, step = threading.Semaphore(0), threading.Event(), type(decoder).step

        def slow(*given):
            self.waits.set()
            assert self.gate.acquire(timeout=PATIENCE)
            return step(*given)

        replace_step(monkeypatch, decoder, slow)

    def go_on(self, steps: int = 10_000) -> None:
        self.gate.release(steps)


@pytest.fixture
def slow(engine, monkeypatch) -> Iterator[Slow]:
    slow = Slow(engine, "rnn", monkeypatch)
    yield slow
    slow.go_on()


def test_a_full_queue_refuses_and_says_when_to_come_again(slow):
    engine = Scheduler(SchedulerLimits(slots=1, queued_jobs=3, queued_tokens=40))
    engine.load("rnn", "1", translator(decoder="rnn"))
    engine.start()
    first = ask(engine, "rnn", Generation("the cat", {"max_length": 3}))
    assert slow.waits.wait(PATIENCE)
    queued = [ask(engine, "rnn", Generation("cat", {"max_length": 3})) for _ in range(3)]
    with pytest.raises(Overloaded) as refused:
        ask(engine, "rnn", Generation("cat"))
    assert 1 <= refused.value.retry_after <= 60
    engine.cancel(queued.pop().job)
    with pytest.raises(Overloaded):  # few jobs, but many tokens
        ask(engine, "rnn", Generation("cat " * 60))
    slow.go_on()
    assert all(isinstance(each.wait(), list) for each in (first, *queued))
    assert engine.stop(PATIENCE)
    assert_nothing_is_left(engine)


def test_a_job_that_is_late_when_it_arrives_does_not_begin(engine, monkeypatch):
    """Also right after all deadlines were checked."""
    monkeypatch.setattr(engine, "_checked", time.monotonic() + 3600)
    late = ask(engine, "rnn", Generation("the cat"), deadline=time.monotonic() - 1)
    assert isinstance(late.wait(), DeadlineExceeded)
    in_time = ask(engine, "rnn", Generation("the cat"), deadline=time.monotonic() + 600)
    assert isinstance(in_time.wait(), list)


def test_a_deadline_ends_a_job_in_the_queue_and_in_the_batch(engine, slow, monkeypatch):
    # All deadlines are checked after every step.
    monkeypatch.setattr(scheduler, "DEADLINE_SECONDS", 0.0)
    far = time.monotonic() + 3600
    running = ask(engine, "rnn", Generation("the cat", LONG), deadline=far)
    assert slow.waits.wait(PATIENCE)
    queued = ask(engine, "transformer", Generation("the cat"), deadline=far)
    # The first has begun, and both are late now.
    running.job.deadline = queued.job.deadline = time.monotonic() - 1
    slow.go_on(1)
    assert isinstance(running.wait(), DeadlineExceeded)
    assert isinstance(queued.wait(), DeadlineExceeded)
    assert engine.stop(PATIENCE)
    assert_nothing_is_left(engine)


def test_a_cancelled_job_frees_its_slot_at_the_next_step(engine, slow):
    first = [ask(engine, "rnn", Generation("the cat", LONG)) for _ in range(4)]  # all slots
    assert slow.waits.wait(PATIENCE)
    late = ask(engine, "rnn", Generation("dog", {"max_length": 2}))
    for answer in first:
        engine.cancel(answer.job)
    slow.go_on(40)
    assert isinstance(late.wait(), list)
    assert not any(answer.ended.is_set() for answer in first)
    assert engine.stop(PATIENCE)
    assert_nothing_is_left(engine)


def test_stopping_finishes_what_is_in_flight_and_refuses_the_rest(engine, slow):
    answers = [ask(engine, "rnn", Generation("the cat", {"max_length": 4})) for _ in range(9)]
    stopping = threading.Thread(target=lambda: results.append(engine.stop(PATIENCE)))
    results: list[bool] = []
    stopping.start()
    assert slow.waits.wait(PATIENCE)
    until(lambda: not engine.ready)
    with pytest.raises(ServerStopping):
        ask(engine, "rnn", Generation("dog"))
    slow.go_on()
    stopping.join(PATIENCE)
    assert results == [True]
    assert all(isinstance(answer.wait(), list) for answer in answers)


def test_stopping_in_time_ends_the_rest_with_an_error(engine, slow):
    answer = ask(engine, "rnn", Generation("the cat", LONG))
    assert slow.waits.wait(PATIENCE)
    # Until the time to stop is over, the step waits.
    going_on = threading.Thread(target=lambda: (until(lambda: not engine._working), slow.go_on()))
    going_on.start()
    assert engine.stop(0.05) is False
    going_on.join()
    assert isinstance(answer.wait(), ServerStopping | list)


def test_a_replaced_model_answers_what_it_began(engine, slow):
    old, new = engine.models["rnn"].predictor, translator(decoder="rnn", seed=5)
    work = Generation("the cat sat on", LONG)
    before = ask(engine, "rnn", work)
    assert slow.waits.wait(PATIENCE)
    engine.load("rnn", "2", new)
    after = ask(engine, "rnn", work)
    slow.go_on()
    results = [each.wait()[0].text for each in (before, after)]
    assert results == [each.predict([work.input], **LONG)[0] for each in (old, new)]
    assert results[0] != results[1]
    assert engine.stop(PATIENCE)
    assert not engine._replaced


def test_the_queue_is_fair_between_clients():
    clients = ("busy", "busy", "busy", "quiet", "other", "gone")
    queue = JobQueue(max_jobs=10, max_tokens=100)
    lanes, running, turns = Lanes(queue), Counter(busy=2), []
    for number, client in enumerate(clients):
        job = Job("m", Generation("x"), lambda result: None, client=client)
        queue.add(job)
        lanes.add(number % 2, job)
    queue.remove(job)  # cancelled
    for job in lanes.turns(running, set()):
        queue.remove(job)  # taken
        turns.append(job.client)
        running[job.client] += 1
    assert turns == ["quiet", "other", "busy", "busy", "busy"]
    assert not list(lanes.turns(running, set()))


def test_a_lane_without_room_does_not_keep_others_waiting():
    queue = JobQueue(max_jobs=10, max_tokens=100)
    lanes, jobs = Lanes(queue), [Job("m", Generation("x"), lambda result: None) for _ in range(2)]
    for lane, job in enumerate(jobs):
        queue.add(job)
        lanes.add(lane, job)
    assert next(lanes.turns({}, {0})) is jobs[1]
    assert next(lanes.turns({}, set())) is jobs[0]
    full: set[int] = set()
    for job in lanes.turns({}, full):  # a lane that is found to be full is left
        full.add(jobs.index(job))
    assert full == {0, 1}


def test_the_turns_of_many_clients_are_those_of_the_least_busy_who_waited_longest():
    chance, queue = random.Random(3), JobQueue(max_jobs=1000, max_tokens=100_000)
    lanes, running = (
        Lanes(queue),
        Counter({str(number): chance.randrange(4) for number in range(9)}),
    )
    jobs = [
        Job("m", Generation("x"), lambda result: None, client=str(chance.randrange(9)))
        for _ in range(200)
    ]
    for number, job in enumerate(jobs):
        queue.add(job)
        lanes.add(number % 3, job)
    turns = lanes.turns(running, {1})
    waiting = [job for number, job in enumerate(jobs) if number % 3 != 1]
    while waiting:
        job = next(turns)
        assert job is min(waiting, key=lambda each: (running[each.client], each.submitted))
        waiting.remove(job)
        queue.remove(job)
        running[job.client] += 1
    assert next(turns, None) is None


def test_a_client_with_many_jobs_leaves_slots_to_others(engine, slow):
    many = [ask(engine, "rnn", Generation("the cat", LONG), client="many") for _ in range(8)]
    assert slow.waits.wait(PATIENCE)  # they have all four slots
    ended_before = []
    one = Answer("rnn", Generation("dog", LONG), client="one")

    def end(result) -> None:
        ended_before.extend(answer for answer in many if answer.ended.is_set())
        one.end(result)

    one.job.on_end = end
    engine.submit(one.job)
    slow.go_on()
    one.wait()
    # It was admitted with the first that became free.
    assert len(ended_before) <= 4 + 3
    assert all(isinstance(answer.wait(), list) for answer in many)


def test_a_stream_ends_with_any_of_several_end_tokens(engine):
    """As `outputs`; the end token is no part of the text."""
    model = translator(decoder="transformer")
    drawn = {"sample": True, "seed": 3}
    (free,) = model.outputs(TEXTS[:1], **drawn)
    other = next(token for token in free[0].token_ids[2:-1] if token not in free[0].token_ids[:2])
    model.target.special_tokens = replace(model.target.special_tokens, other_ends=(other,))
    engine.load("several", "1", model)
    answer = Answer("several", Generation(TEXTS[0], options=drawn))
    answer.job.on_text = answer.pieces.append
    engine.submit(answer.job)
    (output,) = answer.wait()
    assert output.token_ids[-1] == other
    assert "".join(answer.pieces) == output.text == model.predict(TEXTS[:1], **drawn)[0]


def test_an_engine_that_was_idle_is_not_stuck_when_jobs_come():
    """The time counts from the first of the jobs that wait, not from when the thread worked last."""
    engine = Scheduler(SchedulerLimits())
    engine.load("labels", "1", classifier())
    before = time.monotonic()
    first = Answer("labels", Generation("the cat"))
    engine.submit(first.job)
    time.sleep(0.05)
    engine.submit(Answer("labels", Generation("the cat")).job)
    assert 0.05 <= engine.stuck() <= time.monotonic() - before


def test_an_output_that_spells_a_banned_phrase_otherwise_is_searched_again(monkeypatch):
    """As `Predictor.outputs` does, with the draws of its own number and without those of others."""
    again = []
    search_again = Scheduler._search_again
    monkeypatch.setattr(
        Scheduler,
        "_search_again",
        lambda self, group, each: (again.append(each.job), search_again(self, group, each))[1],
    )
    engine = Scheduler(SchedulerLimits(slots=4))
    engine.load("characters", "1", translator("characters"))
    engine.start()
    options = {
        "sample": True,
        "temperature": 1.5,
        "min_length": 3,
        "max_length": 8,
        "num_hypotheses": 6,
        "seed": 3,
    }
    works = [
        Generation(text, options, banned=tuple("aeiotn"), scores=True, number=number)
        for number, text in enumerate(TEXTS)
    ]
    try:
        answers = [ask(engine, "characters", work) for work in works]
        for answer, work in zip(answers, works, strict=True):
            assert_equal(answer.wait(), expected(engine, "characters", work))
            assert answer.calls == 1
        assert again
        assert_nothing_is_left(engine)
    finally:
        engine.stop()
