"""An engine behind a socket: the same results, errors and limits as in this process, and nothing is left behind."""

import asyncio
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import is_dataclass
from http import HTTPStatus
from inspect import isabstract
from typing import get_args, get_type_hints
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
if sys.platform == "win32":
    pytest.skip("needs Unix sockets", allow_module_level=True)

import msgspec

from regard.core import errors
from regard.core.errors import (
    DeadlineExceeded,
    EngineRestarting,
    InvalidArgument,
    InvalidData,
    Overloaded,
    RegardError,
    ServerStopping,
)
from regard.serving.http.errors import RequestRefused, status_of
from regard.serving.http.keys import KeyBudgets, read_keys
from regard.serving.processes.child import Child
from regard.serving.processes.connection import Connection, _frames
from regard.serving.processes.message_types import ERRORS, TYPES, packed, unpacked
from regard.serving.processes.messages import (
    Ended,
    Leave,
    Ping,
    Pong,
    ServerConfig,
    Start,
    ToChild,
    ToFrontEnd,
    ToSupervisor,
    encode,
)
from regard.serving.processes.remote_scheduler import RemoteScheduler
from regard.serving.processes.scheduler_host import SchedulerHost, Session
from regard.serving.processes.supervised import Backoff, Supervised
from regard.serving.scheduler.async_client import AsyncClient
from regard.serving.scheduler.attention_ranges import InspectedAttention, InspectedMap
from regard.serving.scheduler.jobs import (
    AttentionPart,
    DirectPrediction,
    Embedding,
    Generation,
    Inspection,
    Scoring,
    Usage,
    Work,
)
from regard.serving.scheduler.model_loader import ModelLoader
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from regard.serving.scheduler.served_model import OutputsOfSearch, Planning
from regard.studio.data import (
    AblationStep,
    AlignmentStep,
    DataSize,
    ExampleInputs,
    ExampleMeasurement,
    HeadsOfData,
)
from regard.studio.jobs import Alternatives, LiveLook
from regard.tasks.pipeline import Output
from support.predictors import classifier, language_model, translator
from support.servers import PATIENCE, slowed

TEXTS = ["the cat sat", "a dog ran on the mat", "the", "dog", ""]
LONG = {"min_length": 8, "max_length": 12}


def crossed(value):
    """What arrives of a value that is sent."""
    content = encode([Ended(1, packed(value), None)])
    (message,) = msgspec.msgpack.Decoder(list[ToFrontEnd], ext_hook=unpacked).decode(content)
    return message.result


@pytest.mark.parametrize(
    "value",
    [
        Generation(
            "a",
            {"beam_size": 2, "temperature": 0.5, "sample": True},
            "p",
            ("x",),
            ("y", "z"),
            number=3,
        ),
        Generation(
            ("a", "b"),
            {"stop": ["s"], "top_logprobs": 2},
            echo=True,
            token_texts=True,
            widen_beam=True,
        ),
        Scoring("a", "b"),
        Embedding("a", truncate=True),
        Inspection(
            "a", (1, 2), layers=(1,), maps=("m",), rows=(0, 2), words=True, edits=({"head": 1},)
        ),
        [
            Output(
                "t",
                ("t",),
                (-0.5,),
                -0.5,
                "end",
                truncated=True,
                token_ids=(7, 2),
                token_texts=("t",),
                input_tokens=3,
            )
        ],
        [Output("", refused="input: wanted at most 3 tokens; got 4")],
        [Output("label", probabilities={"label": 0.75, "other": 0.25})],
        [0.1, float("inf"), -2.5e-300],
        Generation("a", attention=AttentionPart((1,), None, (0, 2))),
        LiveLook("a", ({"head": 1},), "b", {"max_length": 3}, words=True),
        Alternatives("a", ({"head": 1},), options={"seed": 3}, position=4, count=2),
        b'{"maps": []}',
        Usage("v", 0.25, None, 0.5, 3, 4),
    ],
)
def test_values_arrive_as_they_were_sent(value):
    assert crossed(value) == value
    assert type(crossed(value)) is type(value)


@pytest.mark.parametrize("piece", [1, 3, 4, 7, 1000])
def test_frames_arrive_in_pieces_of_any_size(piece):
    contents = [b"", b"a", b"bc" * 40, b"\x00\x00\x00\x01"]
    sent = b"".join(len(each).to_bytes(4, "big") + each for each in contents)
    found, buffer = [], bytearray()
    for first in range(0, len(sent), piece):
        buffer += sent[first : first + piece]
        found += _frames(buffer)
    assert found == contents
    assert not buffer


def test_arrays_and_tensors_arrive_as_they_were_sent():
    attention = torch.randn(2, 3, 4, 5)
    (output,) = crossed([Output("t", attention=attention)])
    assert torch.equal(output.attention, attention)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    arrived = crossed(Generation(pixels)).input
    assert np.array_equal(arrived, pixels)
    assert arrived.dtype == np.uint8


def test_attention_arrives_as_it_was_sent():
    weights = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    map_ = InspectedMap(
        "m", "k", "p", 1, 0, (3, 4), (0, 1), (0, 3), (0, 4), ("a",), ("b",), "q", "s", True, weights.tobytes(),
        ({"entropy": 0.5},),
    )  # fmt: skip
    seen = InspectedAttention(({"tokens": ["a"]},), {"text": "t"}, (map_,))
    assert crossed(seen) == seen
    assert np.array_equal(crossed(seen).maps[0].weights, weights)


def test_every_kind_of_work_has_a_format():
    def kinds(of: type) -> set[type]:
        return {of, *(each for one in of.__subclasses__() for each in kinds(one))}

    # Those of tests are not sent.
    made = {
        each
        for each in kinds(Work)
        if not isabstract(each) and each.__module__.startswith("regard.")
    }
    sent = {each for each in made if each.crosses_processes}
    of_data = {
        AblationStep,
        AlignmentStep,
        DataSize,
        ExampleInputs,
        ExampleMeasurement,
        HeadsOfData,
    }
    of_engine = {DirectPrediction, OutputsOfSearch, Planning}
    assert made - sent == {*of_engine, *of_data}
    assert sent == {each for each in TYPES.values() if issubclass(each, Work)}


def test_everything_that_works_and_results_are_made_of_has_a_format():
    def parts(hint: object) -> set[type]:
        own = {hint} if isinstance(hint, type) and is_dataclass(hint) else set()
        return own.union(*map(parts, get_args(hint)))

    for each in TYPES.values():
        for name, hint in get_type_hints(each).items():
            if name != "input":  # images are arrays in requests: other kinds of them are not sent
                assert parts(hint) <= {*TYPES.values()}, (each, name)


class OfAPlugin(InvalidArgument):
    """A class that the other process does not have."""


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("beam_size", wanted="1", got="0", remedy="Raise it."),
        InvalidData("keys.txt", 3, wanted="a key", got="none", remedy="Add one."),
        Overloaded(17),
        DeadlineExceeded(2.5),
        ServerStopping(),
        EngineRestarting(5),
        RequestRefused(HTTPStatus.CONFLICT, "name: wanted another", {"x-a": "b"}, reason="why"),
        errors.CheckpointRefused("model.safetensors: damaged"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_class_message_and_status(error):
    arrived = crossed(error)
    assert type(arrived) is type(error)
    assert (str(arrived), vars(arrived), arrived.exit_code) == (
        str(error),
        vars(error),
        error.exit_code,
    )
    assert status_of(arrived) == status_of(error)
    assert isinstance(arrived, ValueError) == isinstance(error, ValueError)


def test_errors_of_other_classes_arrive_as_the_nearest_that_is_known():
    arrived = crossed(OfAPlugin("a", wanted="b", got="c", remedy="D."))
    assert (type(arrived), arrived.wanted, str(arrived)) == (
        InvalidArgument,
        "b",
        "a: wanted b; got c. D.",
    )
    arrived = crossed(ZeroDivisionError("secret"))
    assert (type(arrived), "ZeroDivisionError" in str(arrived), "secret" in str(arrived)) == (
        errors.EngineFailed, True, False,
    )  # fmt: skip
    assert {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, RegardError)
    } < {*ERRORS.values()}


def test_nothing_but_listed_types_is_made():
    for name in ("Path", "Predictor", "Job"):
        with pytest.raises(KeyError):
            unpacked(1, memoryview(msgspec.msgpack.encode((name, {}))))


def test_a_process_that_crashes_again_and_again_waits_longer():
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(Backoff.STABLE) == 0.0  # it was well for a while
    assert (backoff.after(0.0), backoff.crashes) == (1.0, 2)


def test_a_process_that_ends_is_started_again_and_the_log_tells_why(tmp_path, monkeypatch, caplog):
    """Killed, then failing, then refusing to start, then well: see support/crashing_child.py."""
    monkeypatch.setattr(Backoff, "FIRST", 0.01)
    child = Supervised("it", "support.crashing_child", Start(config()), {"CRASHES": str(tmp_path)})

    async def run() -> None:
        running = asyncio.ensure_future(child.run())
        await until(
            lambda: (
                "it is ready again" in caplog.text
                and child.ready.is_set()
                and len([*tmp_path.iterdir()]) == 4
            )
        )
        child.end(signal.SIGTERM)
        await asyncio.wait_for(running, PATIENCE)

    with caplog.at_level("INFO", "regard"):
        asyncio.run(run())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "it ended with SIGKILL: started again",
        "it ended with exit code 3: 2 times in a row, started again in 0.01 s",
        "it ended with exit code 4 (model: gone): 3 times in a row, started again in 0.02 s",
    ]


def test_a_process_that_never_was_ready_is_not_started_again(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).touch()  # it refuses to start at once

    async def run() -> None:
        await Supervised(
            "it", "support.crashing_child", Start(config()), {"CRASHES": str(tmp_path)}
        ).run()

    with pytest.raises(RegardError, match=r"^model: gone$") as refused:
        asyncio.run(run())
    assert refused.value.exit_code == 4
    assert len([*tmp_path.iterdir()]) == 3


@pytest.mark.parametrize(
    ("module", "ending"), [("this", "exit code 0"), ("py_compile", "exit code 1")]
)
def test_a_process_that_ends_before_it_was_ready_is_an_error(module, ending):
    """Other programs, which end at once and have said nothing."""
    with pytest.raises(
        RegardError, match=f"^it: wanted a process that starts; got {ending}. See the log.$"
    ):
        asyncio.run(Supervised("it", module, Start(config()), {}).run())


def test_a_process_that_does_not_answer_is_ended_and_started_again(tmp_path, caplog):
    """The child says that it is ready, and never answers a ping: see support/crashing_child.py."""
    for number in range(3):
        (tmp_path / str(number)).touch()
    child = Supervised(
        "it", "support.crashing_child", Start(config()), {"CRASHES": str(tmp_path)}, patience=0.2
    )

    async def run() -> None:
        running = asyncio.ensure_future(child.run())
        await until(lambda: "it is ready again" in caplog.text)
        child.end(signal.SIGKILL)
        await asyncio.wait_for(running, PATIENCE)

    with caplog.at_level("INFO", "regard"):
        asyncio.run(run())
    messages = [record.message for record in caplog.records]
    assert messages[:2] == [
        "it has not answered for 0.2 s: it is ended",
        "it ended with SIGKILL: started again",
    ]


def test_a_process_answers_pings_with_the_time_for_which_it_is_stuck():
    async def run() -> list[Pong]:
        ours, theirs = socket.socketpair()
        supervisor = Connection(*await asyncio.open_unix_connection(sock=ours), ToSupervisor)
        child = Child(Connection(*await asyncio.open_unix_connection(sock=theirs), ToChild))
        running = asyncio.ensure_future(child.run())
        supervisor.send(Ping())
        messages = supervisor.messages()
        first = await anext(messages)
        child.stuck = lambda: 3.5
        supervisor.send(Ping())
        second = await anext(messages)
        running.cancel()
        supervisor.close()
        child.connection.close()
        return [first, second]

    assert asyncio.run(run()) == [Pong(0.0), Pong(3.5)]


def config() -> ServerConfig:
    return ServerConfig(
        models={}, devices={}, slots=1, queue=1, keys=[], max_body=1, max_image_body=1, max_inputs=1, bulk_lines=1,
        drain_seconds=1.0, cors=[], tls=None, max_length=1, max_beams=1, search_memory=None,
    )  # fmt: skip


class Side:
    """An engine with its socket, and what connects to it."""

    def __init__(self, engine: Scheduler, host: SchedulerHost, socket: str) -> None:
        self.engine, self.host, self.socket = engine, host, socket

    @asynccontextmanager
    async def front_end(self) -> AsyncIterator[RemoteScheduler]:
        remote = RemoteScheduler(self.socket)
        task = asyncio.ensure_future(remote.run())
        try:
            await asyncio.wait_for(remote.began.wait(), PATIENCE)
            yield remote
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture(scope="module")
def models() -> dict:
    return {
        "rnn": translator(decoder="rnn"),
        "conv": translator(decoder="conv"),
        "labels": classifier(),
        "lines": language_model(),
    }


def behind_a_socket(
    models: dict, test: Callable, tmp_path, limits: SchedulerLimits | None = None, keys=()
) -> None:
    """Run a test in an event loop, with an engine behind a socket."""

    async def run() -> None:
        engine = Scheduler(
            limits or SchedulerLimits(slots=4, queued_jobs=500, queued_tokens=100_000), "cpu"
        )
        loader = ModelLoader(engine, models)
        for name, model in models.items():
            engine.load(name, "7", model)
        engine.start()
        host = SchedulerHost(engine, loader, KeyBudgets(read_keys(keys)))
        socket = str(tmp_path / "s")
        listening = await host.listen(socket)
        pushing = asyncio.ensure_future(host.push_states())
        try:
            await asyncio.wait_for(test(Side(engine, host, socket)), PATIENCE)
        finally:
            listening.close()
            pushing.cancel()
            await asyncio.to_thread(engine.stop, PATIENCE)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def test_results_are_those_of_the_engine(models, tmp_path):
    """Random works from two front ends at once, some cancelled: each result is what the engine itself gives."""
    chance = random.Random(3)
    asked: list[tuple[str, list[Work]]] = []
    for _ in range(60):
        text, model = chance.choice(TEXTS), chance.choice(["rnn", "conv"])
        kinds: list[tuple[str, Work]] = [
            (
                model,
                Generation(
                    text, {**LONG, "beam_size": 2, "num_hypotheses": 2}, scores=True, attention=True
                ),
            ),
            (
                model,
                Generation(
                    text, {"max_length": 9, "sample": True, "seed": 4}, number=2, banned=("dog",)
                ),
            ),
            (model, Scoring(text, "a dog")),
            (model, Embedding(text)),
            (model, Inspection(text or "a", "the mat", rows=(0, 2))),
            ("labels", Generation(text, {"num_hypotheses": 2}, scores=True)),
            (
                "lines",
                Generation("the cat", {"max_length": 4}, token_texts=True, echo=True, scores=True),
            ),
            ("lines", Generation("the cat", {"beam_size": 0})),  # refused
        ]
        name, work = chance.choice(kinds)
        asked.append((name, [work] * chance.choice([1, 3])))

    async def answer(engine, name: str, works: list[Work]):
        try:
            client = AsyncClient(engine, name, "c", None)
            return await client.results(works), client.version
        except RegardError as error:
            return type(error), str(error)

    async def test(side: Side) -> None:
        wanted = [await answer(side.engine, *each) for each in asked]
        async with side.front_end() as one, side.front_end() as other:
            assert one.ready
            assert one.model_info == side.engine.model_info
            tasks = [
                asyncio.ensure_future(answer(chance.choice([one, other]), *each)) for each in asked
            ]
            dropped = [asyncio.ensure_future(answer(one, *each)) for each in asked[:20]]
            await asyncio.sleep(0.02)
            for task in dropped:
                task.cancel()
            for task, expected in zip(tasks, wanted, strict=True):
                assert_alike(await task, expected)
            # A session forgets a job a moment after the engine.
            await until(lambda: not any(session.jobs for session in side.host.sessions))
            await until(lambda: side.engine.busy == 0)
            assert [len(each) for each in (one._jobs, one._ids, other._jobs, other._ids)] == [0] * 4

    behind_a_socket(models, test, tmp_path)


def assert_alike(result, wanted) -> None:
    """Equal but for the rounding of other batches."""
    if isinstance(wanted, float):
        assert result == pytest.approx(wanted, abs=1e-5, nan_ok=True)
    elif isinstance(wanted, torch.Tensor | np.ndarray):
        assert type(result) is type(wanted)
        assert np.abs(np.asarray(result) - np.asarray(wanted)).max(initial=0) < 1e-5
    elif isinstance(wanted, list | tuple):
        for one, other in zip(result, wanted, strict=True):
            assert_alike(one, other)
    elif isinstance(wanted, dict):
        assert list(result) == list(wanted)
        assert_alike(list(result.values()), list(wanted.values()))
    elif hasattr(wanted, "__dataclass_fields__"):
        assert type(result) is type(wanted)
        assert_alike(vars(result), vars(wanted))
    else:
        assert result == wanted


def test_streams_deadlines_and_cancellation_cross_the_socket(models, tmp_path, monkeypatch):
    async def test(side: Side) -> None:
        async with side.front_end() as remote:
            client, work = AsyncClient(remote, "rnn", "c", None), Generation("the cat", LONG)
            pieces, versions, text = [], [], ""
            async for _, item in client.streams([work]):
                versions.append(client.version)
                pieces.append(item)
                text += item if isinstance(item, str) else ""
            assert set(versions) == {"7"}
            assert text == pieces[-1][0].text == models["rnn"].predict(["the cat"], **LONG)[0]
            assert len(pieces) > 2
            with pytest.raises(DeadlineExceeded):
                await AsyncClient(remote, "rnn", "c", 1e-9).results([work])
            gate, _ = slowed(monkeypatch, models["rnn"])
            left = asyncio.ensure_future(AsyncClient(remote, "rnn", "c", None).results([work] * 3))
            await until(lambda: side.engine.busy == 3)
            await until(lambda: remote.stats().jobs == 3)  # the state is sent as it changes
            left.cancel()
            gate.release(1000)
            await until(lambda: side.engine.busy == 0)
            await until(lambda: remote.stats().jobs == 0)

    behind_a_socket(models, test, tmp_path)


def test_a_full_queue_refuses_with_the_time_to_wait(models, tmp_path, monkeypatch):
    async def test(side: Side) -> None:
        async with side.front_end() as remote:
            gate, waits = slowed(monkeypatch, models["rnn"])
            work = Generation("the cat", LONG)
            held = asyncio.ensure_future(AsyncClient(remote, "rnn", "c", None).results([work] * 2))
            await asyncio.to_thread(waits.wait, PATIENCE)
            with pytest.raises(Overloaded) as refused:
                await AsyncClient(remote, "rnn", "c", None).results([work] * 3)
            assert refused.value.retry_after >= 1
            gate.release(1000)
            assert len(await held) == 2
            await until(
                lambda: side.engine.busy == 0
            )  # those that were let in before the refused one have left

    behind_a_socket(models, test, tmp_path, SchedulerLimits(slots=2, queued_jobs=2))


def test_limits_of_keys_hold_for_all_front_ends_together(models, tmp_path):
    one, rate = keys = read_keys(["a name=one concurrent=2", "b name=rate rate=2/h"])

    async def refused(remote: RemoteScheduler, key) -> str:
        with pytest.raises(RequestRefused) as refusal:
            await remote.enter(key)
        assert refusal.value.status == HTTPStatus.TOO_MANY_REQUESTS
        return refusal.value.reason

    async def test(side: Side) -> None:
        async with side.front_end() as first:
            async with side.front_end() as second:
                await first.enter(one)
                await second.enter(one)
                assert await refused(first, one) == await refused(second, one) == "concurrency"
                await first.enter(rate)
                await second.enter(rate)
                assert await refused(first, rate) == "rate"
                first.leave(one)
                await second.enter(one)
                assert await refused(second, one) == "concurrency"
            await until(
                lambda: len(side.host.sessions) == 1
            )  # the second has ended: its requests have left
            await first.enter(one)
            await first.enter(one)
            assert await refused(first, one) == "concurrency"
            assert await refused(first, rate) == "rate"

    behind_a_socket(
        models, test, tmp_path, keys=["a name=one concurrent=2", "b name=rate rate=2/h"]
    )
    assert all(key.limited for key in keys)


def test_models_are_administered_through_the_socket(tmp_path):
    from support.forged import GOLDEN

    async def test(side: Side) -> None:
        async with side.front_end() as remote:
            (state,) = await remote.states()
            assert (state.name, state.version, state.reloads) == ("en", "7", 0)
            with pytest.raises(RequestRefused, match="given as an object") as refused:
                await remote.reload("en")
            assert refused.value.status == HTTPStatus.CONFLICT
            side.host.admin.models = {"en": GOLDEN / "rnn"}
            assert (await remote.reload("en")).version == "rnn"
            assert remote.model_info["en"].version == "rnn"  # the state arrives before the answer
            with pytest.raises(RequestRefused, match="wanted one of en"):
                await remote.reload("/etc")

    behind_a_socket({"en": translator(decoder="rnn")}, test, tmp_path)


def test_an_engine_that_ends_is_told_and_found_again(models, tmp_path, monkeypatch):
    async def test(side: Side) -> None:
        async with side.front_end() as remote:
            gate, waits = slowed(monkeypatch, models["rnn"])
            work = Generation("the cat", LONG)
            held = asyncio.ensure_future(AsyncClient(remote, "rnn", "c", None).results([work] * 2))
            await asyncio.to_thread(waits.wait, PATIENCE)
            (session,) = side.host.sessions
            remote.socket = str(tmp_path / "nowhere")
            session.connection.close()
            with pytest.raises(EngineRestarting) as lost:
                await held
            assert status_of(lost.value) == (HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": "5"})
            assert not remote.ready
            for asked in (AsyncClient(remote, "rnn", "c", None).results([work]), remote.states()):
                with pytest.raises(EngineRestarting):
                    await asked
            gate.release(1000)
            await until(
                lambda: side.engine.busy == 0
            )  # what the front end had asked for is cancelled
            remote.socket = side.socket
            await until(lambda: remote.ready)
            assert len(await AsyncClient(remote, "rnn", "c", None).results([work])) == 1

    behind_a_socket(models, test, tmp_path)


def test_a_front_end_that_stops_finishes_its_jobs(models, tmp_path, monkeypatch):
    async def test(side: Side) -> None:
        async with side.front_end() as remote, side.front_end() as other:
            gate, waits = slowed(monkeypatch, models["rnn"])
            work = Generation("the cat", LONG)
            held = asyncio.ensure_future(AsyncClient(remote, "rnn", "c", None).results([work]))
            await asyncio.to_thread(waits.wait, PATIENCE)
            stopping = asyncio.ensure_future(asyncio.to_thread(remote.stop, PATIENCE))
            await until(lambda: not remote.ready)
            with pytest.raises(ServerStopping):
                await AsyncClient(remote, "rnn", "c", None).results([work])
            gate.release(1000)
            assert len(await held) == 1
            assert await stopping
            assert (
                len(await AsyncClient(other, "rnn", "c", None).results([work])) == 1
            )  # the engine goes on

    behind_a_socket(models, test, tmp_path)


def test_requests_that_a_front_end_has_open_leave_once_each():
    """Also where it ends before they do; one that had not entered does not leave."""
    left, host, session = [], object.__new__(SchedulerHost), object.__new__(Session)
    host.budgets, host.engine = Mock(leave_name=left.append), Mock()
    session.host, session.connection = host, Mock()
    session.jobs, session.entered, session._tasks = {}, Counter(), set()
    for name in ("a", "b", "a", "a"):
        session._enter(name)
    for name in ("a", "c", "b", "b"):
        session._receive(Leave(name))
    assert left == ["a", "b"]
    session.close()
    assert left == ["a", "b", "a", "a"]
