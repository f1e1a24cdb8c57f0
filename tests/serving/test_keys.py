"""API keys: their file, rates, concurrency, administrators; never the key itself in log or metrics."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from regard.core.errors import InvalidData
from regard.serving.http.app import Server
from regard.serving.http.errors import RequestRefused
from regard.serving.http.keys import KeyBudgets, KeyRing, read_key_file, read_keys
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from support.predictors import translator
from support.servers import PATIENCE, served, slowed

MODEL = translator(decoder="rnn")
LONG = {"min_length": 6, "max_length": 8}


def test_a_line_is_a_key_with_its_settings(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text(
        "# who may ask\nplain\n\n  abc name=web rate=10/s concurrent=8 admin \nd rate=6/min\ne rate=5/h name=é\n"[
            :-8
        ]
    )
    plain, web, slow, slower = read_key_file(file)
    assert (plain.name, plain.rate, plain.concurrent, plain.admin) == ("key-1", None, None, False)
    assert (web.name, web.rate, web.concurrent, web.admin) == ("web", (10, 1), 8, True)
    assert (slow.name, slow.rate, slower.rate) == ("key-3", (6, 60), (5, 3600))
    assert "abc" not in repr(web)


@pytest.mark.parametrize(
    "line",
    ["k rate=0/s", "k rate=x", "k rate=1/day", "k concurrent=0", "k concurrent=-1", "k name=", "k name=a/b",
     "k admin=no", "k other", "k name=" + "x" * 33, "good", "other name=first"],
)  # fmt: skip
def test_a_wrong_line_is_refused_with_its_number(line, tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text(f"good name=first\n\n{line}\n")
    with pytest.raises(InvalidData, match=r"keys\.txt, line 3: wanted") as refused:
        read_key_file(file)
    assert "good" not in str(refused.value)


def test_a_refusal_names_a_known_setting_and_no_part_of_a_key():
    with pytest.raises(InvalidData, match="got another rate"):
        read_keys(["abc rate=fast"])
    with pytest.raises(InvalidData, match="got another setting") as refused:
        read_keys(["a-key with-a-space-in-it"])
    assert "space-in-it" not in str(refused.value)


def test_a_file_without_keys_is_refused(tmp_path):
    (tmp_path / "keys.txt").write_text("# none yet\n")
    with pytest.raises(InvalidData, match="wanted a key per line; got none"):
        read_key_file(tmp_path / "keys.txt")


def refusal(budgets: KeyBudgets, name: str) -> int:
    with pytest.raises(RequestRefused) as refused:
        budgets.enter_name(name)
    assert refused.value.status == 429
    return int(refused.value.headers["retry-after"])


def test_a_rate_is_a_token_bucket_and_retry_after_is_exact():
    now = [100.0]
    budgets = KeyBudgets(read_keys(["abc rate=3/min name=one"]), lambda: now[0])
    for _ in range(3):
        budgets.enter_name("one")
    assert refusal(budgets, "one") == 20
    now[0] += 12.5
    assert refusal(budgets, "one") == 8
    now[0] += 7.4  # one tenth too early
    assert refusal(budgets, "one") == 1
    now[0] += 0.1
    budgets.enter_name("one")
    assert refusal(budgets, "one") == 20
    now[0] += 1e6  # never more than the bucket holds
    for _ in range(3):
        budgets.enter_name("one")
    assert refusal(budgets, "one") == 20


def test_concurrency_is_freed_at_the_end_of_a_request():
    budgets = KeyBudgets(read_keys(["abc concurrent=2 name=one", "d name=other"]))
    budgets.enter_name("one")
    budgets.enter_name("one")
    assert refusal(budgets, "one") == 1
    budgets.enter_name("other")
    budgets.leave_name("one")
    budgets.enter_name("one")


def test_all_keys_are_compared(monkeypatch):
    """No early end: how long it takes does not tell which key was nearly right."""
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(len(b)) or a == b)
    ring = KeyRing(read_keys(["first", "a much longer second key".replace(" ", "-"), "third"]))
    assert ring.client("Bearer first", "").name == "key-1"
    assert compared == [32] * 3


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_limits_hold_over_http_and_the_log_has_the_name(caplog, monkeypatch):
    caplog.set_level("INFO")
    keys = [
        "s3cret-a name=web rate=2/h",
        "s3cret-b name=batch concurrent=1",
        "s3cret-c name=root admin",
    ]
    body = {"input": "a dog", **LONG}
    with served({"rnn": MODEL}, keys=keys) as running:
        assert [running.ask("/predict", body, **bearer("s3cret-a"))[0] for _ in range(3)] == [
            200,
            200,
            429,
        ]
        status, headers, answer = running.ask("/models", **bearer("s3cret-a"))
        assert (status, answer["status"]) == (429, 429)
        assert 1700 < int(headers["retry-after"]) <= 1800
        for key, status in (("s3cret-b", 403), ("s3cret-c", 200), ("wrong", 401)):
            assert running.ask("/admin/models", **bearer(key))[0] == status
        gate, waits = slowed(monkeypatch, MODEL)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(running.ask, "/predict", body, **bearer("s3cret-b"))
            assert waits.wait(PATIENCE)
            status, headers, _ = running.ask("/predict", body, **bearer("s3cret-b"))
            assert (status, headers["retry-after"]) == (429, "1")
            gate.release(100_000)
            assert first.result(PATIENCE)[0] == 200
        assert running.ask("/predict", body, **bearer("s3cret-b"))[0] == 200
        metrics = running.ask("/metrics", **bearer("s3cret-c"))[2]["text"]
    records = [
        json.loads(each.message)
        for each in caplog.records
        if each.name == "regard.serving.http.request_handler"
    ]
    assert {each["client"] for each in records} == {"web", "batch", "root", "127.0.0.1"}
    assert "s3cret" not in caplog.text + metrics


def test_a_stream_counts_until_it_ends(monkeypatch):
    gate, waits = slowed(monkeypatch, MODEL)
    with served({"rnn": MODEL}, keys=["k concurrent=1"]) as running:
        connection = running.connect()
        headers = {"content-type": "application/json", **bearer("k")}
        connection.request(
            "POST", "/predict", json.dumps({"input": "a dog", "stream": True, **LONG}), headers
        )
        assert waits.wait(PATIENCE)
        gate.release(3)  # the stream has begun
        answer = connection.getresponse()
        assert running.ask("/models", **bearer("k"))[0] == 429
        threading.Timer(0.1, gate.release, [100_000]).start()
        answer.read()
        connection.close()
        assert running.ask("/models", **bearer("k"))[0] == 200


def test_a_request_has_left_when_its_answer_is_sent():
    """A client that has the answer may ask again at once, also another front end."""
    order = []

    class Watched(KeyBudgets):
        def leave(self, key):
            order.append("leave")
            super().leave(key)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        order.append(message["type"])

    engine = Scheduler(SchedulerLimits())
    app = Server(engine, keys=(keys := read_keys(["k concurrent=1"])))
    app.limiter = Watched(keys)
    scope = {"type": "http", "method": "GET", "path": "/models", "query_string": b"", "client": ("127.0.0.1", 1),
             "headers": [(b"authorization", b"Bearer k")]}  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert order == ["http.response.start", "leave", "http.response.body"]
