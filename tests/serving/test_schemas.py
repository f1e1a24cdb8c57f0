"""Types of requests, answers and messages: unknown keys are refused, what threads share cannot be changed."""

import inspect
import pkgutil
from importlib import import_module
from itertools import chain
from typing import get_args

import msgspec
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.http import schemas
from regard.serving.http.app import Server
from regard.serving.http.keys import ApiKey, read_keys
from regard.serving.processes import messages
from regard.serving.routes import libretranslate, operations
from regard.serving.scheduler import interfaces
from regard.serving.scheduler.scheduler import Scheduler
from regard.studio import data as studio_data, long_inputs
from regard.studio.routes import studio


def structs() -> list[type[msgspec.Struct]]:
    """Those of all modules of the server."""
    found = []
    packages = [import_module("regard.serving"), import_module("regard.studio")]
    walks = [pkgutil.walk_packages(each.__path__, f"{each.__name__}.") for each in packages]
    for module in chain.from_iterable(walks):
        if not module.name.endswith("_process"):
            members = vars(import_module(module.name)).values()
            found += [
                each
                for each in members
                if inspect.isclass(each) and issubclass(each, msgspec.Struct)
            ]
    return sorted(
        {each for each in found if each.__module__.startswith("regard.")},
        key=lambda each: each.__qualname__,
    )


def within(wanted: object) -> set[type[msgspec.Struct]]:
    """The types of objects in a type."""
    if inspect.isclass(wanted) and issubclass(wanted, msgspec.Struct):
        return {wanted}.union(*(within(each.type) for each in msgspec.structs.fields(wanted)))
    return set().union(*(within(each) for each in get_args(wanted)))


REQUESTS = set().union(*(within(route.request) for route in Server(Scheduler()).table.routes))
# Clients of this API send keys of their own, which its server ignores.
LENIENT = {libretranslate.TranslateRequest, libretranslate.DetectRequest}


@pytest.mark.parametrize("kind", sorted(REQUESTS - LENIENT, key=str))
def test_unknown_keys_of_a_request_are_refused(kind):
    """A mistyped option must not be ignored."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `no_such_key`"):
        msgspec.convert({"no_such_key": 1} | required(kind), kind)


@pytest.mark.parametrize("kind", sorted(LENIENT, key=str))
def test_unknown_keys_of_libretranslate_are_ignored(kind):
    assert msgspec.convert({"no_such_key": 1} | required(kind), kind) == msgspec.convert(
        required(kind), kind
    )


def required(kind: type[msgspec.Struct]) -> dict[str, object]:
    """Values of the keys that have no default."""
    values: dict[object, object] = {str: "a", int: 1, bool: True, float: 1.0}

    def value(wanted: object) -> object:
        if inspect.isclass(wanted) and issubclass(wanted, msgspec.Struct):
            return required(wanted)
        if wanted in values:
            return values[wanted]
        return value(get_args(wanted)[0]) if get_args(wanted) and "list" not in str(wanted) else []

    fields = msgspec.structs.fields(kind)
    return {each.encode_name: value(each.type) for each in fields if each.required}


def test_requests_are_made_by_name():
    """Their keys have no order."""
    by_name = {each for each in REQUESTS if each.__name__.endswith("Request")}
    by_name -= {schemas.AttentionRequest, operations.ReloadRequest}  # of one or two keys
    assert len(by_name) > 12
    for kind in by_name | {messages.ServerConfig}:
        parameters = inspect.signature(kind).parameters
        own = [parameters[name] for name in kind.__annotations__]
        assert all(each.kind is each.KEYWORD_ONLY for each in own), kind


SHARED = {
    interfaces.ModelInfo, interfaces.SchedulerStats, interfaces.ModelState, studio.StudioModel, studio_data.Example,
    long_inputs.LongMap, long_inputs.LongInput, long_inputs.LongRow, long_inputs.LongOverview,
    *(each for each in structs() if each.__module__ == messages.__name__),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(SHARED, key=str))
def test_what_threads_and_processes_share_cannot_be_changed(kind):
    made = kind(**{each.name: None for each in msgspec.structs.fields(kind)})
    with pytest.raises(AttributeError, match="immutable"):
        setattr(made, next(iter(kind.__struct_fields__), "anything"), 1)


def test_messages_are_short_lists():
    """Names of keys in each message of a token would take longer than the token."""
    for kind in (*get_args(messages.ToEngine), *get_args(messages.ToFrontEnd), messages.JobMessage):
        assert kind.__struct_config__.array_like, kind


def test_a_key_is_not_shown():
    (key,) = read_keys(["a-secret-of-some-length"])
    assert isinstance(key, ApiKey)
    assert "digest" not in repr(key)
    assert repr(key.digest) not in repr(key)
