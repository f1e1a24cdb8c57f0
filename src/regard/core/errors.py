"""Every exception that Regard raises on purpose.

    RegardError
    ├── InvalidArgument              (also a ValueError)   an argument or a file that cannot be used
    │   ├── InvalidData              a file whose content cannot be used
    │   ├── InputTooLong             an input with more tokens than a model may read
    │   ├── Locked                   a folder or file that another process works on
    │   └── UnsatisfiableConstraint  required phrases that the other decoding constraints rule out
    ├── InvalidRecipe                (also a ValueError)   a configuration, with every problem found in it
    ├── MissingExtra                 (also an ImportError) an optional package that is not installed
    ├── CheckpointRefused            a checkpoint that is damaged, incomplete, or of another model
    ├── Diverged                     training whose loss or gradients are no longer finite
    ├── TrainingFailed               training that ran out of memory or disk
    ├── InterruptedTraining          training stopped by a signal, after saving
    └── ServerError                  a request that a server cannot answer now
        ├── Overloaded               its queue is full; `retry_after` says when to try again
        ├── DeadlineExceeded         the request's time is over
        ├── ServerStopping           it does not take new requests any more
        ├── EngineRestarting         the process with its models has ended, and is started again
        ├── EngineCrashed            a fault in the server itself has ended its engine
        ├── CheckpointUnreadable     the checkpoint of a model that was to be loaded again
        └── EngineFailed             the model raised an error

A message names the argument, what was wanted, what was given, and the remedy. Control and direction characters of file
names and data are replaced in it, so that it can neither command a terminal nor forge a line. `exit_code` is
the exit status of the command line.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regard.core.sanitize import printable


class RegardError(Exception):
    """Base class of every error that Regard raises on purpose: its `message` is written for users.

    `exit_code` is the status with which the command line ends (docs/exit-codes.md).
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, also="\n"))


class InvalidArgument(RegardError, ValueError):
    """An argument that cannot be used.

    argument   its name
    wanted     what it may be
    got        what it was
    remedy     what to do
    """

    exit_code = 2

    def __init__(self, argument: str, *, wanted: str, got: str, remedy: str) -> None:
        super().__init__(printable(f"{argument}: wanted {wanted}; got {got}. {remedy}"))
        self.argument = argument
        self.wanted = wanted
        self.got = got
        self.remedy = remedy


# The file that examples from Python are written to (regard.data.from_python), and their split.
GIVEN_ROWS = re.compile(r"^.*given-(train|valid|test)-[0-9a-f]{16}\.jsonl", re.DOTALL)


class InvalidData(InvalidArgument):
    """A file whose content cannot be used. `line` counts from 1 and is None where it is not known.

    A message about examples from Python names their split and row, not the file that they were written to.
    """

    def __init__(
        self, path: object, line: int | None = None, *, wanted: str, got: str, remedy: str
    ) -> None:
        place = shown_file(path)
        if line is not None:
            unit = "line" if place == str(path) else "row"
            place = f"{place}, {unit} {line}"
        super().__init__(place, wanted=wanted, got=got, remedy=remedy)
        self.path = str(path)
        self.line = line


def shown_file(path: object) -> str:
    """A file of data, and what follows its name, as messages name it: the argument for examples from Python."""
    return GIVEN_ROWS.sub(r"data['\1']", str(path))


class InputTooLong(InvalidArgument):
    """An input with more tokens than a model may read."""

    REMEDY = (
        "Split it; truncate=True (--truncate) drops its end; or raise decode.max_source_length."
    )

    def __init__(self, name: str, tokens: int, limit: int, remedy: str = REMEDY) -> None:
        wanted = f"at most {limit} tokens"
        super().__init__(name, wanted=wanted, got=str(tokens), remedy=remedy)
        self.tokens = tokens
        self.limit = limit


class Locked(InvalidArgument):
    """A lock that another process holds."""

    def __init__(self, path: Path, holder: str) -> None:
        remedy = "Wait for it, end it, or choose another folder."
        super().__init__(
            str(path.parent),
            wanted="a folder that no other process works on",
            got=holder,
            remedy=remedy,
        )


class UnsatisfiableConstraint(InvalidArgument):
    """Required phrases that cannot be generated because banned phrases and length limits leave no token."""

    def __init__(self) -> None:
        wanted = "phrases that the bans and limits of the output permit"
        got = "no token left to generate"
        super().__init__("required", wanted=wanted, got=got, remedy="Ban less, or require less.")


class MissingExtra(RegardError, ImportError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str, why: str) -> None:
        super().__init__(
            f"{why} needs the package {package!r}. Install it: pip install 'regard[{extra}]'"
        )


@dataclass(frozen=True)
class Problem:
    """One problem of a recipe."""

    key: str
    wanted: str
    got: str
    remedy: str

    def under(self, table: str) -> "Problem":
        """The same problem, its key within this table."""
        return replace(self, key=f"{table}.{self.key}")

    def __str__(self) -> str:
        return printable(f"{self.key}: wanted {self.wanted}; got {self.got}. {self.remedy}")


class InvalidRecipe(RegardError, ValueError):
    """A configuration that cannot be built. `problems` holds every problem; the message has a line for each."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = list(problems)


class CheckpointRefused(RegardError):
    """A checkpoint that is damaged, incomplete, or of another model. Nothing of it was loaded."""

    exit_code = 4


class Diverged(RegardError):
    """Training whose loss or gradients are no longer finite. The last good checkpoint is kept."""

    exit_code = 3


class TrainingFailed(RegardError):
    """Training that cannot continue. The last checkpoint is kept."""


class InterruptedTraining(RegardError):
    """Training that a signal stopped, after saving a checkpoint to resume from.

    signal_number   of the signal
    run             the folder of the run
    command         with which a user of the command line continues it
    """

    def __init__(self, signal_number: int, run: Path, command: str | None = None) -> None:
        how = "with resume=True (--resume)"
        if command is not None:
            how = f"it: {command}"
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name}; {run} is saved. Continue {how}")
        self.signal_number = signal_number
        self.run = run
        self.exit_code = 128 + signal_number


class ServerError(RegardError):
    """A request that a server cannot answer now."""


class Overloaded(ServerError):
    """A queue that is full. `retry_after` is the number of seconds after which there will be room."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"wanted room in the queue; got none. Try again in {retry_after} s.")
        self.retry_after = retry_after


class DeadlineExceeded(ServerError):
    """A request whose time is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"wanted an answer before the deadline; got none in {seconds:.1f} s. Allow more time."
        )


class ServerStopping(ServerError):
    """A server that does not take new requests any more."""

    def __init__(self) -> None:
        super().__init__("wanted a server that takes requests; got one that stops. Ask another.")


class EngineRestarting(ServerError):
    """An engine process that has ended and is started again; `retry_after` is a number of seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(
            f"wanted an engine that answers; got one that is started again. Retry in {retry_after} s."
        )
        self.retry_after = retry_after


class EngineCrashed(ServerError):
    """An engine whose thread was ended by an error of its own, which is logged: the process that has it ends."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"wanted an engine that answers; got one that {type(error).__name__} ended. Ask again later."
        )


class CheckpointUnreadable(ServerError):
    """A checkpoint on the server's disk that was to be loaded again and cannot be used."""

    def __init__(self, name: str, version: str, error: BaseException) -> None:
        super().__init__(
            f"The server cannot read the checkpoint of the model {name!r} again, and still serves "
            f"version {version!r}. {error}"
        )


class EngineFailed(ServerError):
    """A model that raised an error, which is logged."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"wanted an answer of the model; got {type(error).__name__}. See the log of the server."
        )
