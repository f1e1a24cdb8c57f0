"""Everything Regard raises on purpose.

    RegardError
    ├── InvalidArgument   (also a ValueError)  an argument that cannot be used as it is
    └── InvalidRecipe     (also a ValueError)  a configuration that cannot be built, with all that is wrong with it

A message names the thing, what was wanted, what came, and the remedy.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class RegardError(Exception):
    """The root of every error that Regard raises on purpose."""


class InvalidArgument(RegardError, ValueError):
    """An argument that cannot be used as it is."""

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

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = list(problems)
