"""A server keeps nothing of a request that has ended: neither of an answered nor of a cancelled one."""

import gc
import json
import random
import time
from collections import Counter

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.http.request_handler import RequestHandler
from regard.serving.http.usage import RequestUsage
from regard.serving.scheduler.jobs import Job, Work
from regard.serving.scheduler.searches import RunningJob, SearchGroup
from support.predictors import translator
from support.servers import Running, served, until

KINDS = (RequestHandler, Job, RequestUsage, RunningJob, SearchGroup, Work)


def alive() -> Counter:
    gc.collect()
    return Counter(
        type(each).__name__ for each in gc.get_objects() if issubclass(type(each), KINDS)
    )


def ask(running: Running, chance: random.Random) -> None:
    connection = running.connect()
    stream = chance.random() < 0.5
    body = json.dumps(
        {
            "input": "a dog",
            "stream": stream,
            "max_length": 6,
            "timeout_ms": chance.choice([5, 60_000]),
        }
    )
    connection.request("POST", "/predict", body, {"content-type": "application/json"})
    if chance.random() < 0.4:
        time.sleep(chance.random() * 0.02)
        connection.sock.close()
    else:
        assert connection.getresponse().read()
    connection.close()


def test_no_object_of_a_request_is_left(caplog):
    before = alive()  # other tests have objects of their own
    with served({"rnn": translator(decoder="rnn")}) as running:
        chance = random.Random(4)
        for _ in range(60):
            ask(running, chance)
        until(lambda: running.app.open == running.engine.busy == 0)
        until(lambda: not alive() - before)
    assert "never retrieved" not in caplog.text
