"""No request holds up those of others, and none is computed on when nobody waits for it. Over real sockets."""

import json
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.scheduler.scheduler import SchedulerLimits
from support.predictors import classifier, language_model, translator
from support.servers import PATIENCE, Running, served, slowed, until

MODELS = {
    "lines": language_model("bytes"),
    "en-de": translator("bytes", encoder="transformer"),
    "labels": classifier(),
    "held": translator(decoder="rnn", seed=2),
    "long": translator(decoder="rnn", seed=2).with_decode(min_length=500, max_length=500),
}
# A minute or more of computing, for one core: a token is a byte, and attention grows with the square.
HOURS = {"model": "lines", "input": "a b " * 15_000}
VICTIMS = {
    "/predict": {"model": "en-de", "input": "the cat"},
    "/score": {"model": "en-de", "input": "the cat", "target": "a dog"},
    "/embed": {"model": "en-de", "input": "the cat"},
    "/classify": {"model": "labels", "input": "the cat"},
    "/look": {"model": "en-de", "input": "the cat"},
    "/studio/look": {"model": "en-de", "input": ["the cat"]},
    "/studio/beam": {"model": "en-de", "input": ["the cat"]},
    "/studio/heads": {"model": "en-de", "input": "the cat"},
    "/studio/long": {"model": "en-de", "input": "the cat"},
}


class Attacker:
    """A client that asks for something long, and may leave."""

    def __init__(self, server: Running, path: str, body: dict, **headers: str) -> None:
        self.status: int | None = None
        self.connection = server.connect()
        given = {"content-type": "application/json", **headers}
        self.connection.request("POST", path, json.dumps(body), given)
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        try:
            self.status = self.connection.getresponse().status
        except OSError:
            self.status = 0

    @property
    def waits(self) -> bool:
        return self.reading.is_alive()

    def leave(self) -> None:
        self.connection.sock.shutdown(2)
        self.reading.join(PATIENCE)
        self.connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS, SchedulerLimits(slots=4, hypotheses=16)) as running:
        yield running


@pytest.fixture
def idle(server) -> Iterator[Running]:
    """A server that computes nothing, before and after the test."""
    until(lambda: not server.engine.computing)
    yield server
    until(lambda: not server.engine.computing)


def test_every_route_answers_others_while_a_long_input_is_read(idle):
    attacker = Attacker(idle, "/studio/long", HOURS)
    until(lambda: idle.engine.computing)
    for path, body in VICTIMS.items():
        assert idle.ask(path, body)[0] == 200, path
        assert attacker.waits, path
    assert idle.ask("/health/ready")[0] == 200
    attacker.leave()


def test_several_long_computations_of_a_client_hold_up_none(idle):
    attackers = [
        Attacker(idle, "/studio/long", {**HOURS, "input": HOURS["input"] + extra})
        for extra in "abcdef"
    ]
    until(lambda: idle.engine.computing)
    for path in ("/predict", "/health/ready"):
        assert idle.ask(path, VICTIMS.get(path))[0] == 200, path
    assert all(each.waits for each in attackers)
    for each in attackers:
        each.leave()


def test_a_wide_search_leaves_room_to_others(idle, monkeypatch):
    """It has as many hypotheses as all searches may have together, and does not end."""
    gate, waits = slowed(monkeypatch, MODELS["held"])
    wide = {"input": "the cat", "model": "held", "beam_size": 16}
    wide |= {"min_length": 2_000, "max_length": 2_000}
    attacker = Attacker(idle, "/predict", wide)
    assert waits.wait(PATIENCE)
    done: list[int] = []
    victim = threading.Thread(
        target=lambda: done.append(idle.ask("/predict", VICTIMS["/predict"])[0])
    )
    victim.start()
    while victim.is_alive():  # the engine goes on to the other search between two steps
        gate.release()
        victim.join(0.05)
    assert done == [200]
    assert attacker.waits
    gate.release(1_000)
    attacker.leave()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/studio/long", HOURS),
        ("/studio/beam", {"model": "long", "input": ["a dog"], "beam_size": 128}),
        ("/look", {"model": "long", "input": "a dog", "beam_size": 128, "edits": [
            {"edit": "scale_head", "map": "decoder cross", "factor": 0.5}
        ]}),
        ("/predict", {"model": "en-de", "input": "a dog", "max_length": 900,
                      "required": [f"a{number} dog{number}" * 3 for number in range(64)]}),
    ],
    ids=["a long input", "a tree of a wide search", "a look with a wide search", "a long plan"],
)  # fmt: skip
def test_a_deadline_ends_any_computation(idle, path, body):
    status, _, answer = idle.ask(path, body, x_timeout_ms="300")
    assert status == 504, answer
    until(lambda: not idle.engine.computing)


def test_a_closed_connection_ends_any_computation(idle):
    attacker = Attacker(idle, "/studio/long", HOURS)
    until(lambda: idle.engine.computing)
    attacker.leave()
    until(lambda: not idle.engine.computing)
    assert idle.engine.stats().jobs == 0


def test_several_users_of_the_studio_get_their_answers_at_once(idle):
    """Looks with and without edits, beams and long inputs of one model, whose last looks are kept."""
    edits = [{"edit": "scale_head", "map": "decoder 1 cross", "head": 0, "factor": 0.5}]
    statuses: list[int] = []

    def user(name: str) -> None:
        for number in range(6):
            text = f"the cat {name} {number}"
            asked = {"model": "en-de", "input": [text], "beam_size": 1}
            for path, body in (
                ("/studio/look", asked),
                ("/studio/look", {**asked, "edits": edits}),
                ("/studio/beam", {"model": "en-de", "input": [text]}),
                ("/studio/long", {"model": "en-de", "input": text}),
            ):
                statuses.append(idle.ask(path, body)[0])

    users = [threading.Thread(target=user, args=(name,)) for name in "abc"]
    for each in users:
        each.start()
    for each in users:
        each.join()
    assert statuses == [200] * 72


LONG = "a b " * 10_000
REFUSED = {
    "predict": ("/predict", {"model": "en-de", "input": LONG}),
    "predict of text": ("/predict", {"model": "lines", "input": LONG}),
    "a prefix": ("/predict", {"model": "en-de", "input": "a", "prefix": LONG}),
    "labels": ("/classify", {"model": "labels", "input": LONG}),
    "embed": ("/embed", {"model": "en-de", "input": LONG}),
    "embed of text": ("/embed", {"model": "lines", "input": LONG}),
    "score": ("/score", {"model": "en-de", "input": LONG, "target": "a"}),
    "score of text": ("/score", {"model": "lines", "input": LONG}),
    "a target": ("/score", {"model": "en-de", "input": "a", "target": LONG}),
    "look": ("/look", {"model": "en-de", "input": LONG}),
    "look at text": ("/look", {"model": "lines", "input": LONG, "output": ""}),
    "look at an output": ("/look", {"model": "en-de", "input": "a", "output": LONG}),
    "look at token ids": ("/look", {"model": "en-de", "input": "a", "output": [5] * 20_000}),
    "studio look": ("/studio/look", {"model": "en-de", "input": [LONG]}),
    "studio output": ("/studio/look", {"model": "en-de", "input": ["a"], "output": LONG}),
    "studio beam": ("/studio/beam", {"model": "en-de", "input": [LONG]}),
    "studio heads": ("/studio/heads", {"model": "en-de", "input": LONG}),
    "studio alternatives": (
        "/studio/alternatives", {"model": "en-de", "input": [LONG], "position": 0},
    ),
    "studio long": ("/studio/long", {"model": "en-de", "input": LONG * 10}),
    "completions": ("/v1/completions", {"model": "lines", "prompt": LONG, "max_tokens": 1}),
    "embeddings": ("/v1/embeddings", {"model": "en-de", "input": LONG}),
    "kserve": ("/v2/models/en-de/infer", {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [LONG]}]
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_and_outputs_that_are_too_long_are_refused(idle, name):
    path, body = REFUSED[name]
    status, _, answer = idle.ask(path, body)
    assert status == 400, answer
    assert "at most" in json.dumps(answer)


def test_a_line_that_is_too_long_is_refused_alone(idle):
    lines = [{"model": "lines", "input": text} for text in ("a b", LONG, "a b")]
    body = "\n".join(map(json.dumps, lines)).encode()
    status, _, answer = idle.ask("/score", body, content_type="application/x-ndjson")
    found = [json.loads(line) for line in answer["text"].splitlines()]
    assert status == 200
    assert [each.get("status") for each in found] == [None, 400, None]
    assert found[0]["results"] == found[2]["results"]


@pytest.mark.parametrize("path", ["/predict", "/look"])
def test_a_request_lowers_the_limit_of_inputs_and_never_raises_it(idle, path):
    body = {"model": "en-de", "input": "the cat sat on the mat"}
    limit = MODELS["en-de"].recipe.decode.max_source_length
    assert idle.ask(path, {**body, "max_source_length": limit})[0] == 200
    status, _, refused = idle.ask(path, {**body, "max_source_length": 3})
    assert (status, refused["wanted"]) == (400, "at most 3 tokens")
    status, _, refused = idle.ask(path, {**body, "max_source_length": limit + 1})
    assert (status, refused["argument"]) == (400, "max_source_length")
    assert str(limit) in refused["wanted"]


@pytest.mark.parametrize("name", ["banned", "required", "stop"])
def test_phrases_of_a_request_are_limited(idle, name):
    phrases = [f"a{number}" for number in range(3_000)]
    if name == "stop":
        path = "/v1/completions"
        body = {"model": "lines", "prompt": "a", "stop": phrases}
    else:
        path = "/predict"
        body = {**VICTIMS["/predict"], name: phrases}
    assert idle.ask(path, body)[0] == 400


def test_ready_turns_false_while_the_engine_does_not_answer(idle, monkeypatch):
    gate, waits = slowed(monkeypatch, MODELS["held"])
    assert idle.ask("/health/ready")[0] == 200
    attacker = Attacker(idle, "/predict", {"model": "held", "input": "the cat"})
    assert waits.wait(PATIENCE)
    until(lambda: idle.ask("/health/ready")[0] == 503)
    assert idle.ask("/v2/health/ready")[0] == 503
    assert idle.ask("/health/live")[0] == 200
    gate.release(1_000)
    until(lambda: idle.ask("/health/ready")[0] == 200)
    attacker.leave()
