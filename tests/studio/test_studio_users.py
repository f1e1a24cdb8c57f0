"""Several users of the studio at once: edits, beam trees and long inputs, each answered as if it were alone."""

import logging
import random
import threading
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from support import page_members
from support.predictors import language_model
from support.servers import PATIENCE, Running, served

DATES = [each.source for each in page_members.DATES[:4]]
EDITS = (
    [],
    [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 1}],
    [{"edit": "mask_source", "token": 2}],
    [{"edit": "replace_token", "position": 3, "token": "7", "side": "output"}],
)
LONG = "the red car and the dog sat; a dogma, the doghouse of words! " * 12
ROUNDS = 2


def requests_of_a_session() -> list[tuple[str, dict]]:
    """What one user asks: looks at each input with each edit, and what the panels show beside them."""
    asked: list[tuple[str, dict]] = []
    for text in DATES:
        for edits in EDITS:
            body = {"model": "dates", "input": [text], "edits": edits}
            asked.append(("/studio/prepare", body))
            asked.append(("/studio/look", body))
        asked.append(("/studio/beam", {"model": "dates", "input": [text]}))
        position = {"model": "dates", "input": [text], "position": 2}
        asked.append(("/studio/alternatives", position))
    asked.append(("/studio/long", {"model": "lines", "input": LONG}))
    return asked


def equal(one: object, other: object) -> bool:
    """Whether two answers say the same. Their numbers may differ by rounding.

    The same look is found by a search or verified from a draft, which depends on what was asked
    before.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, abs=1e-4)
    return one == other


def answer(server: Running, path: str, body: dict) -> object:
    """The answer; of a long input its overview and a row."""
    status, _, content = server.ask(path, body)
    assert status == 200, (path, body, content)
    if path != "/studio/long":
        return content
    each = content["maps"][-1]
    head = {"model": "lines", "map": each["name"], "head": 0}
    base = f"/studio/long/{content['id']}"
    complete = False
    while not complete:
        status, _, overview = server.ask(f"{base}/overview?{urlencode(head)}")
        assert status == 200, overview
        complete = overview["complete"]
    status, _, row = server.ask(f"{base}/row?{urlencode({**head, 'row': 5})}")
    assert status == 200, row
    return [overview["mean_entropy"], row]


class User(threading.Thread):
    """Sends the requests of several sessions, each in an order of its own, and compares the answers."""

    def __init__(self, server: Running, seed: int, expected: list[object]) -> None:
        super().__init__()
        self.server = server
        self.random = random.Random(seed)
        self.expected = expected
        self.failure: BaseException | None = None

    def run(self) -> None:
        asked = requests_of_a_session()
        try:
            for _ in range(ROUNDS):
                numbers = list(range(len(asked)))
                self.random.shuffle(numbers)
                for number in numbers:
                    found = answer(self.server, *asked[number])
                    assert equal(found, self.expected[number]), asked[number]
        except BaseException as error:
            self.failure = error


@pytest.mark.slow
def test_users_of_the_studio_do_not_disturb_each_other(caplog):
    models = {
        "dates": regard.load(page_members.SHIPPED, device="cpu"),
        "lines": language_model("bytes"),
    }
    with caplog.at_level(logging.WARNING), served(models) as server:
        expected = [answer(server, *asked) for asked in requests_of_a_session()]
        users = [User(server, seed, expected) for seed in range(3)]
        for user in users:
            user.start()
        for user in users:
            user.join(10 * PATIENCE)
            assert not user.is_alive()
        failures = [user.failure for user in users if user.failure is not None]
        assert failures == []
    assert caplog.records == []
