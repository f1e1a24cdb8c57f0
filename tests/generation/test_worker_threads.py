"""Searches in several threads: the same outputs, no thread left at work, one copy of the weights."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.generation import request_groups
from regard.generation.choose.trace import BeamTrace
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.cpu import compile
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import Search, search
from regard.generation.worker_threads import run_in_threads
from regard.model import capture
from support.predictors import translator
from support.search import LONGEST, model, sources

needs_compiler = pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")
ROWS = sources() * 4


def outputs(name: str, workers: int | None, **options):
    config = DecodeConfig(max_length=LONGEST, **options)
    task = SearchTask(model(name), Tokens.of, config, scored=True, workers=workers)
    found = dict(search(task, [GenerationRequest(row, len(row)) for row in ROWS]))
    return [found[index] for index in range(len(ROWS))]


@pytest.fixture
def used(monkeypatch) -> set[str]:
    """The names of threads in which batches were searched."""
    names, run = set[str](), Search.run
    monkeypatch.setattr(
        Search, "run", lambda self: (names.add(threading.current_thread().name), run(self))[1]
    )
    return names


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sample": True, "num_hypotheses": 2}])
@pytest.mark.parametrize("name", ["transformer", "transformer rotary", "lstm bahdanau"])
def test_workers_change_no_output(used, name, options):
    alone = outputs(name, 1, **options)
    assert used == {threading.current_thread().name}
    together = outputs(name, 3, **options, batch_tokens=20)
    assert len(used) > 2
    assert [[each.tokens for each in one] for one in together] == [
        [each.tokens for each in one] for one in alone
    ]
    if (
        name != "transformer rotary"
    ):  # the others' steps are compiled, and do not depend on the batch
        assert together == alone


@needs_compiler
def test_compiled_decoders_use_all_threads_by_default(used):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outputs("transformer additive", None)  # executed by PyTorch
        assert not any(name.startswith("regard-worker") for name in used)
        outputs("transformer", None)
        assert any(name.startswith("regard-worker") for name in used)
    finally:
        torch.set_num_threads(threads)


def test_the_engine_is_asked_for_the_longest_output(monkeypatch):
    """Where it would slide over its window, steps are not compiled, and threads gain nothing."""
    asked, decoder_for = [], selection.decoder_for
    monkeypatch.setattr(
        selection,
        "decoder_for",
        lambda model, **given: (asked.append(given), decoder_for(model, **given))[1],
    )
    config = DecodeConfig(max_length=LONGEST, max_length_ratio=1.0)
    dict(
        search(
            SearchTask(model("transformer"), Tokens.of, config),
            [GenerationRequest(row, len(row)) for row in ROWS],
        )
    )
    lengths = [GenerationRequest(row, len(row)).longest(config) for row in ROWS]
    assert asked[0]["max_length"] == max(lengths) > min(lengths)


def test_a_capture_sees_the_search_of_its_own_thread(used):
    with capture.capture_attention() as calls:
        outputs("transformer", 3)
    assert calls
    assert used == {threading.current_thread().name}


def test_few_requests_are_searched_by_one_thread(used):
    config = DecodeConfig(max_length=LONGEST)
    list(
        search(
            SearchTask(model("transformer"), Tokens.of, config, workers=3),
            [GenerationRequest(ROWS[0], len(ROWS[0]))] * 3,
        )
    )
    assert used == {threading.current_thread().name}


def test_results_keep_the_order_of_the_jobs_and_threads_their_settings():
    def job(number: int) -> tuple[int, int]:
        time.sleep(0.002 * (7 - number))
        return number, torch.get_num_threads()

    before = torch.get_num_threads()
    results = list(run_in_threads((lambda number=number: job(number) for number in range(7)), 2))
    assert results == [(number, 1) for number in range(7)]
    assert torch.get_num_threads() == before
    others = []
    thread = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert others == [before]


def test_nothing_runs_on_after_a_caller_has_left():
    running, ended = [], []

    def job(number: int) -> int:
        running.append(number)
        time.sleep(0.05)
        ended.append(number)
        return number

    results = run_in_threads((lambda number=number: job(number) for number in range(100)), 2)
    next(results)
    results.close()
    assert sorted(running) == sorted(ended)
    assert len(running) < 8


def test_an_error_in_a_worker_is_raised_here():
    def job() -> int:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        list(run_in_threads([job, lambda: 1], 2))


@pytest.mark.parametrize("wrong", [0, -1])
def test_fewer_than_one_worker_is_refused(wrong):
    with pytest.raises(InvalidArgument, match="workers"):
        translator().predict(["a"], workers=wrong)


@pytest.mark.parametrize(
    ("changes", "count", "compiled", "threads"),
    [
        ({}, 16, True, 4),  # those of PyTorch
        ({}, 15, True, 1),  # less than eight for each of two
        ({}, 16, False, 1),  # PyTorch uses them itself
        ({"workers": 3}, 16, False, 3),
        ({"workers": 3}, 15, True, 1),
        ({"logits_processors": (object(),)}, 16, True, 1),
        ({"trace": BeamTrace()}, 16, True, 1),
        ({"device": "cuda"}, 16, True, 1),
        ({"device": "cuda", "workers": 1}, 16, True, 1),
        ({"device": "cuda", "workers": 2}, 16, True, None),
    ],
)
def test_threads_that_search_at_once(monkeypatch, changes, count, compiled, threads):
    settings = {"device": "cpu", "workers": None, "logits_processors": (), "trace": None} | changes
    task = object.__new__(SearchTask)
    settings |= {
        "window": None,
        "config": DecodeConfig(),
        "model": None,
        "device": torch.device(settings["device"]),
    }
    vars(task).update(settings)
    monkeypatch.setattr(request_groups.torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(
        request_groups.selection,
        "decoder_for",
        lambda model, **options: SimpleNamespace(compiled=compiled),
    )
    planned = [GenerationRequest([3], 1, number=number, max_length=9) for number in range(count)]
    if threads is None:
        with pytest.raises(InvalidArgument, match="workers: wanted 1 for a model on a GPU"):
            request_groups.search_workers(task, planned)
        return
    assert request_groups.search_workers(task, planned) == threads
    with capture.capture_attention(lambda call: None):
        assert request_groups.search_workers(task, planned) == 1
