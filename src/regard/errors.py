"""Everything Regard raises on purpose.

    RegardError
    └── InvalidArgument   (also a ValueError)  an argument that cannot be used as it is

A message names the thing, what was wanted, what came, and the remedy.
"""


class RegardError(Exception):
    """The root of every error that Regard raises on purpose."""


class InvalidArgument(RegardError, ValueError):
    """An argument that cannot be used as it is."""

    def __init__(self, argument: str, *, wanted: str, got: str, remedy: str) -> None:
        super().__init__(f"{argument}: wanted {wanted}; got {got}. {remedy}")
        self.argument = argument
