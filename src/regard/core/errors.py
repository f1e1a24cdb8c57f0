"""Everything Regard raises on purpose.

    RegardError
    ├── InvalidArgument    (also a ValueError)  an argument or a file that cannot be used as it is
    ├── InvalidRecipe      (also a ValueError)  a configuration that cannot be built, with all that is wrong with it
    ├── CheckpointRefused  a checkpoint that is damaged, incomplete, or of another model
    ├── Diverged           training that no longer gives finite numbers
    └── TrainingFailed     training that cannot go on: no memory, no disk

A message names the thing, what was wanted, what came, and the remedy. `exit_code` is what the command ends with.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class RegardError(Exception):
    """The root of every error that Regard raises on purpose."""

    exit_code = 1


class InvalidArgument(RegardError, ValueError):
    """An argument that cannot be used as it is."""

    exit_code = 2

    def __init__(self, argument: str, *, wanted: str, got: str, remedy: str) -> None:
        super().__init__(f"{argument}: wanted {wanted}; got {got}. {remedy}")
        self.argument = argument


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a recipe."""

    key: str
    wanted: str
    got: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: wanted {self.wanted}; got {self.got}. {self.remedy}"


class InvalidRecipe(RegardError, ValueError):
    """A configuration that cannot be built; `problems` holds all that is wrong with it, the message a line for each."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = list(problems)


class CheckpointRefused(RegardError):
    """A checkpoint that is damaged, incomplete, or of another model: nothing of it was used."""

    exit_code = 4


class Diverged(RegardError):
    """Training that no longer gives finite numbers. The last good checkpoint stays."""

    exit_code = 3


class TrainingFailed(RegardError):
    """Training that cannot go on. The last checkpoint stays."""
