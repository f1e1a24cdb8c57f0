"""What a request may ask of a search, and the memory that all searches of a server share."""

import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.core.errors import InvalidArgument
from regard.serving.scheduler.job_queue import SearchBudget
from regard.serving.scheduler.jobs import Generation, Job
from regard.serving.scheduler.scheduler import SchedulerLimits
from regard.serving.scheduler.search_limits import OptionCaps
from support.command_line import command
from support.forged import GOLDEN
from support.predictors import translator
from support.resident import MEBIBYTE, forget_peak, needs_proc, peak, resident
from support.servers import PATIENCE, served, until

HEADERS = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def capped():
    """A server whose requests may have at most 50 tokens and 4 hypotheses."""
    with served({"en": translator()}, SchedulerLimits(caps=OptionCaps(50, 4))) as server:
        yield server


LONG_OUTPUTS = [
    ("/predict", {"input": "a", "max_length": 1_000_000}, "max_length"),
    ("/predict", {"input": "a", "max_length": 1_000_000, "stream": True}, "max_length"),
    ("/v1/completions", {"model": "en", "prompt": "a", "max_tokens": 1_000_000}, "max_length"),
    ("/look", {"input": "a", "max_length": 1_000_000}, "max_length"),
]
MANY_HYPOTHESES = [
    ("/predict", {"input": "a", "beam_size": 1000}, "beam_size"),
    ("/predict", {"input": "a", "sample": True, "num_hypotheses": 10_000}, "num_hypotheses"),
    (
        "/v1/completions",
        {"model": "en", "prompt": "a", "n": 100, "temperature": 1},
        "num_hypotheses",
    ),
    ("/look", {"input": "a", "beam_size": 1000}, "beam_size"),
]


@pytest.mark.parametrize(("path", "body", "name"), [*LONG_OUTPUTS, *MANY_HYPOTHESES])
def test_options_beyond_the_caps_are_refused(capped, path, body, name):
    """On each route that searches; the text names the option, the cap and the value."""
    status, _, answer = capped.ask(path, body)
    text = json.dumps(answer)
    most, option = (50, "--max-length") if "max_" in name else (4, "--max-beams")
    assert status == 400, text
    assert f"wanted at most {most} on this server ({option}); got 1" in text
    assert f"{name}: " in text


def test_options_at_the_caps_are_answered(capped):
    assert capped.ask("/predict", {"input": "a", "max_length": 50, "beam_size": 4})[0] == 200


def test_what_a_recipe_says_is_allowed_whatever_the_caps():
    model = translator().with_decode(beam_size=6, max_length=70)
    with served({"en": model}, SchedulerLimits(caps=OptionCaps(50, 4))) as server:
        assert server.ask("/predict", {"input": "a"})[0] == 200
        assert server.ask("/predict", {"input": "a", "beam_size": 6})[0] == 200
        status, _, answer = server.ask("/predict", {"input": "a", "beam_size": 7})
        assert (status, "at most 6" in answer["detail"]) == (400, True)


def test_a_line_of_many_that_needs_too_much_is_refused_alone(capped):
    lines = [{"input": "a"}, {"input": "a", "max_length": 1_000_000}, {"input": "b"}]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    _, _, answer = capped.ask("/predict", body, content_type="application/x-ndjson")
    first, second, third = map(json.loads, answer["text"].splitlines())
    assert "results" in first
    assert "--max-length" in json.dumps(second)
    assert "results" in third


def test_a_search_that_needs_more_than_the_budget_is_refused():
    """Each option by itself is allowed."""
    limits = SchedulerLimits(caps=OptionCaps(1_000_000, 10_000), search_memory=16)
    with served({"en": translator()}, limits) as server:
        for body in (
            {"input": "ab", "beam_size": 1000, "max_length": 1_000_000},
            {"input": "ab", "sample": True, "num_hypotheses": 10_000},
            {"input": "ab", "max_length": 1_000_000},
        ):
            status, _, answer = server.ask("/predict", body)
            assert status == 400
            assert re.search(
                r"^(max_length|beam_size|num_hypotheses): wanted a search within 12 MiB.*; "
                r"got max_length = [\d,]+ with \w+ = [\d,]+, "
                r"which may need [\d,]+ MiB for one input\. Lower",
                answer["detail"],
            )
        look = {"input": "ab", "max_length": 900_000}
        status, _, answer = server.ask("/look", look)
        assert (status, "within 12 MiB" in json.dumps(answer)) == (400, True)
        # A look with edits is computed aside, where there is less memory.
        edits = [{"edit": "scale_head", "map": "decoder cross", "factor": 0.5}]
        status, _, answer = server.ask("/look", {**look, "edits": edits})
        assert (status, "within 4 MiB" in json.dumps(answer)) == (400, True)
        assert server.ask("/predict", {"input": "ab"})[0] == 200


def test_the_attention_of_outputs_counts():
    """An answer without it is given, and one with it as far as it fits."""
    limits = SchedulerLimits(caps=OptionCaps(1_000_000, 10_000), search_memory=16)
    with served({"en": translator()}, limits) as server:
        body = {"input": "ab " * 200, "beam_size": 8, "num_hypotheses": 8, "max_length": 500}
        assert server.ask("/predict", body)[0] == 200
        status, _, answer = server.ask("/predict", {**body, "attention": True})
        assert (status, "within 12 MiB" in answer["detail"]) == (400, True), answer
        assert server.ask("/predict", {**body, "input": "ab", "attention": True})[0] == 200


def test_what_a_refusal_says_is_allowed_is_answered():
    limits = SchedulerLimits(caps=OptionCaps(1_000_000, 10_000), search_memory=16)
    with served({"en": translator()}, limits) as server:
        body = {"input": "ab", "sample": True, "num_hypotheses": 100}
        _, _, answer = server.ask("/predict", {**body, "max_length": 100_000})
        allowed = int(
            re.search(r"at most max_length = ([\d,]+)", answer["detail"])[1].replace(",", "")
        )
        assert server.ask("/predict", {**body, "max_length": allowed})[0] == 200


def test_searches_of_different_settings_share_the_budget_and_are_all_answered():
    """Each fits alone, all together do not: they wait for each other, and outputs are those of `predict`."""
    model = translator()
    limits = SchedulerLimits(search_memory=12)
    asked = [
        {
            "beam_size": beams,
            "max_length": 60 + 64 * (beams % 2),
            "length_penalty": 1.0 + beams / 10,
        }
        for beams in range(8, 20)
    ]
    wanted = [model.predict(["ab"], **options)[0] for options in asked]
    taken = []
    with served({"en": model}, limits) as server:
        fits = SearchBudget.takes

        def watched(self, job, more, **given):
            found = fits(self, job, more, **given)
            taken.append((self.taken, self.allowed, found))
            return found

        SearchBudget.takes = watched
        try:
            with ThreadPoolExecutor(len(asked)) as pool:
                answers = list(
                    pool.map(lambda one: server.ask("/predict", {"input": "ab", **one}), asked)
                )
        finally:
            SearchBudget.takes = fits
    assert [status for status, _, _ in answers] == [200] * len(asked)
    found = [answer["results"][0]["outputs"][0]["text"] for _, _, answer in answers]
    assert found == wanted
    assert all(used <= allowed for used, allowed, _ in taken)


def budget_of(allowed: int, **given) -> SearchBudget:
    return SearchBudget(allowed, **given)


def waiting(seconds: float = 0.0) -> Job:
    """A job that has waited so long."""
    return Job("en", Generation("a"), lambda result: None, submitted=time.monotonic() - seconds)


def test_jobs_enter_searches_as_far_as_memory_lasts():
    budget = budget_of(10)
    assert [budget.takes(waiting(), size) for size in (4, 6, 1)] == [True, True, False]
    assert budget_of(10, taken=3).takes(waiting(), 7)
    assert not budget_of(10, taken=3).takes(waiting(), 8)


def test_a_job_that_has_waited_long_for_memory_is_next():
    """Otherwise smaller ones that come and go could keep it waiting for ever."""
    large, small = waiting(seconds=1000.0), waiting()
    budget = budget_of(10, taken=5)
    assert not budget.takes(large, 9)
    assert not budget.takes(small, 1)
    later = budget_of(10, taken=0, first=budget.first)
    assert not later.takes(small, 1)
    assert later.takes(large, 9)
    assert later.takes(small, 1)


def test_a_short_wait_for_memory_holds_up_nobody():
    budget = budget_of(10, taken=5)
    assert not budget.takes(waiting(), 9)
    assert budget.takes(waiting(), 1)


def test_a_part_of_the_memory_is_for_small_jobs():
    large = waiting()
    small = waiting()
    budget = budget_of(16, reserved=4)
    assert [budget.takes(large, size) for size in (10, 3, 2)] == [True, False, True]
    assert [budget.takes(small, 1, is_small=True) for _ in range(5)] == [True] * 4 + [False]
    assert (budget.taken, budget.small) == (16, 4)
    # Small ones may take more where there is more.
    budget = budget_of(16, reserved=4)
    assert [budget.takes(small, 4, is_small=True) for _ in range(5)] == [True] * 4 + [False]
    assert not budget.takes(waiting(), 1)


def test_small_jobs_pass_a_large_one_that_waits_for_memory():
    """Within their part only: so the large one waits for large ones alone."""
    first = waiting(seconds=1000.0)
    budget = budget_of(16, taken=12, reserved=4)
    assert not budget.takes(first, 5)
    assert budget.first is first
    assert not budget.takes(waiting(), 0)
    assert [budget.takes(waiting(), 2, is_small=True) for _ in range(3)] == [True, True, False]
    later = budget_of(16, taken=4, first=first, reserved=4, small=4)
    assert later.takes(first, 12)
    assert later.first is None
    # Its estimate is of one job, and a search may round that up.
    assert budget_of(16, taken=4, reserved=4, small=4).takes(waiting(), 13)
    assert not budget_of(16, taken=5, reserved=4, small=5).takes(waiting(), 13)


def test_a_small_request_does_not_wait_for_the_memory_of_large_ones(monkeypatch):
    """Of which two do not fit together, and the second has waited long."""
    monkeypatch.setattr(SearchBudget, "PATIENCE", 0.0)
    large = {"input": "ab", "beam_size": 32, "max_length": 1500, "min_length": 1500}
    with (
        served({"en": translator()}, SchedulerLimits(search_memory=72)) as server,
        ExitStack() as all_,
    ):
        connections = [all_.enter_context(closing(server.connect())) for _ in range(2)]
        for each in connections:
            each.request("POST", "/predict", json.dumps(large), HEADERS)
        until(lambda: server.engine.stats().running_jobs == 1 and server.engine.busy == 2)
        assert server.ask("/predict", {"input": "ab"})[0] == 200
        answered, _, _ = select.select([each.sock for each in connections], [], [], 0)
        assert not answered


# ---- a real process


class Process:
    """`regard serve` as a process of its own, and its memory."""

    def __init__(self, *arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "regard",
            "serve",
            f"en={GOLDEN / 'transformer'}",
            "--port",
            "0",
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*command, "--device", "cpu", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for line in self.process.stderr:
            if said := re.search(r"serving en on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(said[1])
                break
        else:
            raise AssertionError("it did not start")
        self._reader = threading.Thread(target=self.process.stderr.read, daemon=True)
        self._reader.start()

    def ask(self, body: dict) -> tuple[int, dict]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=4 * PATIENCE)
        try:
            connection.request("POST", "/predict", json.dumps(body), HEADERS)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stderr.close()


ATTACKS = [
    {"input": "ab", "beam_size": 1000, "max_length": 1_000_000},
    {"input": "ab", "sample": True, "num_hypotheses": 10_000},
    {"input": "ab", "max_length": 1_000_000},
    {"input": "ab", "beam_size": 100, "max_length": 20},
    {"input": "ab", "beam_size": 50, "num_hypotheses": 50, "max_length": 1_000_000, "scores": True},
    {"input": "ab", "sample": True, "num_hypotheses": 200, "min_length": 60, "max_length": 60},
    {"input": "ab", "beam_size": 40, "length_penalty": 0.5, "min_length": 60, "max_length": 60},
]


@needs_proc
@pytest.mark.parametrize("options", [(), ("--max-length", "1000000", "--max-beams", "10000")])
def test_no_request_takes_more_than_the_budget(options):
    """One by one and all at once; what is refused is told why, and the server answers as before."""
    server = Process(*options)
    try:
        assert server.ask({"input": "ab"})[0] == 200
        forget_peak(server.process.pid)
        before = resident(server.process.pid)
        answers = [server.ask(body) for body in ATTACKS]
        with ThreadPoolExecutor(2 * len(ATTACKS)) as pool:
            answers += pool.map(server.ask, 2 * ATTACKS)
        assert {status for status, _ in answers} <= {200, 400}
        for status, answer in answers:
            if status == 400:
                assert re.search("max_length|--max-beams|num_hypotheses", answer["detail"])
        assert answers[0][0] == 400
        assert peak(server.process.pid) - before <= 512 * MEBIBYTE
        assert server.ask({"input": "ab"})[0] == 200
    finally:
        server.end()


@needs_proc
def test_memory_comes_back_after_large_searches():
    server = Process("--max-beams", "1000")
    large = {
        "input": "ab",
        "sample": True,
        "num_hypotheses": 1000,
        "min_length": 60,
        "max_length": 60,
    }
    try:
        assert server.ask({"input": "ab"})[0] == 200
        before = resident(server.process.pid)
        for seed in range(3):
            assert server.ask({**large, "seed": seed})[0] == 200
        end = time.monotonic() + PATIENCE
        while resident(server.process.pid) - before > 30 * MEBIBYTE and time.monotonic() < end:
            time.sleep(0.5)
        assert resident(server.process.pid) - before <= 30 * MEBIBYTE
    finally:
        server.end()


@needs_proc
def test_front_ends_have_the_same_limits():
    server = Process(
        "--workers", "1", "--max-length", "300", "--max-beams", "3", "--search-memory", "8"
    )
    try:
        status, answer = server.ask({"input": "ab", "max_length": 301})
        assert (status, "at most 300" in answer["detail"]) == (400, True)
        status, answer = server.ask({"input": "ab", "beam_size": 4})
        assert (status, "at most 3" in answer["detail"]) == (400, True)
        assert server.ask({"input": "ab", "beam_size": 3, "max_length": 300})[0] == 200
    finally:
        server.end()


@pytest.mark.parametrize("verb", ["serve", "studio"])
def test_the_command_line_sets_the_limits(monkeypatch, verb):
    given = {}
    monkeypatch.setattr(regard, verb, lambda *models, **options: given.update(options))
    limits = ["--max-length", "77", "--max-beams", "5", "--search-memory", "33"]
    assert command(verb, str(GOLDEN / "transformer"), *limits).returncode == 0
    found = given["max_length"], given["max_beams"], given["search_memory"]
    assert found == (77, 5, 33)


@pytest.mark.parametrize("name", ["max_length", "max_beams", "search_memory"])
def test_limits_below_one_are_refused(name):
    with pytest.raises(InvalidArgument, match=f"{name}: wanted 1 or more; got 0"):
        regard.serve({"en": translator()}, port=0, **{name: 0})
