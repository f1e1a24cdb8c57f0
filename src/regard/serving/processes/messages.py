"""What the processes of a server send each other."""

from typing import Any

import msgspec
from msgspec import Struct

from regard.serving.http.keys import ApiKey
from regard.serving.scheduler.interfaces import ModelInfo, SchedulerStats

# ---- the supervisor and its processes ----


class ServerConfig(Struct, frozen=True, kw_only=True):
    """The settings of a server, as the arguments of `regard.serve` give them.

    models       paths, by name
    devices      of each model, by its name
    host         as the operator gave it, for the names that requests may address the server by
    socket       path on which the scheduler process listens
    """

    models: dict[str, str]
    devices: dict[str, list[str]]
    slots: int
    queue: int
    keys: list[ApiKey]
    max_body: int
    max_image_body: int
    max_inputs: int
    bulk_lines: int
    drain_seconds: float
    cors: list[str]
    tls: tuple[str, str] | None
    max_length: int
    max_beams: int
    search_memory: int | None
    host: str = ""
    allowed_hosts: list[str] = []
    no_studio: bool = False
    socket: str = ""


class Start(Struct, frozen=True, tag=True):
    """To a process that was started: its settings.

    listening   the file descriptor of the socket on which a front end accepts connections
    """

    config: ServerConfig
    listening: int = -1


class Begin(Struct, frozen=True, tag=True):
    """To a front end: all processes are ready, accept connections."""


class ServerEnds(Struct, frozen=True, tag=True):
    """To a front end, before its signal: all front ends end. Send `Drained`, and keep the socket open until `Close`."""


class Drained(Struct, frozen=True, tag=True):
    """Of a front end: its requests are finished."""


class Close(Struct, frozen=True, tag=True):
    """To a front end: all front ends are drained, and no client can connect any more. Close the socket."""


class Ready(Struct, frozen=True, tag=True):
    """Of a process: it has what it needs."""


class Ping(Struct, frozen=True, tag=True):
    """To a process: is it well?"""


class Pong(Struct, frozen=True, tag=True):
    """Of a process: for how many seconds it has done nothing although it has work."""

    stuck: float = 0.0


class Failed(Struct, frozen=True, tag=True):
    """Of a process that could not start: a mistake of the user."""

    message: str
    exit_code: int


# ---- front ends and the scheduler process ----


class JobMessage(Struct, frozen=True, array_like=True):
    """A job.

    work      packed
    seconds   until its deadline
    streams   whether pieces of its text are wanted
    tokens    whether the ids of its tokens are wanted too
    """

    id: int
    model: str
    work: Any
    client: str
    seconds: float | None
    streams: bool
    tokens: bool = False


class Submit(Struct, frozen=True, tag=True, array_like=True):
    """Jobs of one request, which get one version of their model."""

    jobs: list[JobMessage]


class Cancel(Struct, frozen=True, tag=True, array_like=True):
    job: int


class Enter(Struct, frozen=True, tag=True, array_like=True):
    """A request with this key begins: allowed, or refused in the answer."""

    id: int
    key: str


class Leave(Struct, frozen=True, tag=True, array_like=True):
    """A request with this key has ended."""

    key: str


class Reload(Struct, frozen=True, tag=True, array_like=True):
    id: int
    model: str


class AskStates(Struct, frozen=True, tag=True, array_like=True):
    id: int


class SchedulerState(Struct, frozen=True, tag=True, array_like=True):
    """Sent to each front end at the beginning, and when it has changed."""

    models: list[ModelInfo]
    ready: bool
    stats: SchedulerStats


class Text(Struct, frozen=True, tag=True, array_like=True):
    """The next piece of a job's text, or the id of its next token, and the version of the model that it is of."""

    job: int
    piece: str | int
    version: str


class Ended(Struct, frozen=True, tag=True, array_like=True):
    """A job has ended with a result or an error (packed), and took this: the values of its `Usage`, in order."""

    job: int
    result: Any
    usage: list[Any] | None


class Reply(Struct, frozen=True, tag=True, array_like=True):
    """The answer to a question of this number; an error is packed."""

    id: int
    value: Any


ToEngine = Submit | Cancel | Enter | Leave | Reload | AskStates
ToFrontEnd = SchedulerState | Text | Ended | Reply
ToChild = Start | Begin | Ping | ServerEnds | Close
ToSupervisor = Ready | Failed | Pong | Drained
Message = ToEngine | ToFrontEnd | ToChild | ToSupervisor
encode = msgspec.msgpack.Encoder().encode
