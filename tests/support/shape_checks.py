"""Types and shapes of every annotated call of the package, checked by beartype and jaxtyping: each value once.

jaxtyping's own decorator binds the arguments of every call, opens a scope of axis names and checks the arguments twice,
before the call and after it: more than half of the time of tests with small models. Here a function without axes in its
annotations is wrapped by beartype alone, the others by beartype within a scope of jaxtyping. No check is lost: axis
names are shared by the arguments and the result of one call, and the second check of the arguments has the same values.
"""

import dataclasses
import inspect
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial, wraps
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import AbstractArray, install_import_hook, jaxtyped, print_bindings

SCOPE = jaxtyped("context")  # has no state of its own: it enters and leaves a scope of the thread


def check_calls(package: str) -> None:
    """Check the calls of a package: of its modules that are imported from now on."""
    jaxtyping.jaxtyped = checked  # the hook writes this name above every function and class
    install_import_hook(package, "beartype.beartype")


def checked(given: Any = None, *, typechecker: Callable) -> Any:
    """A function, or a dataclass, whose calls are checked. A generator function is left to jaxtyping."""
    if given is None:
        return partial(checked, typechecker=typechecker)
    if inspect.isclass(given):
        if dataclasses.is_dataclass(given) and not hasattr(given.__init__, "checked"):
            given.__init__ = checked_function(given.__init__)
            given.__init__.checked = True
        return given
    if isinstance(given, FunctionType) and not inspect.isgeneratorfunction(given):
        return checked_function(given)
    return jaxtyped(given, typechecker=typechecker)


def checked_function(function: FunctionType) -> Callable:
    hints, written = resolved(function), function.__annotations__
    function.__annotations__ = hints
    checks = beartype(function)
    function.__annotations__ = checks.__annotations__ = written
    if not any(map(has_axes, hints.values())):
        return checks

    @wraps(function)
    def scoped(*args, **kwargs):
        __tracebackhide__ = True
        with SCOPE:
            try:
                return checks(*args, **kwargs)
            except BeartypeCallHintViolation as error:
                if not hasattr(error, "__notes__"):  # of the innermost call
                    with redirect_stdout(io.StringIO()) as axes:
                        print_bindings()
                    error.add_note(axes.getvalue())
                raise

    return scoped


def resolved(function: FunctionType) -> dict[str, Any]:
    """Annotations; `Any` for names that are not defined yet, as of a class within its own body, or for mypy alone."""

    def hint(annotation: Any) -> Any:
        def carrier(value): ...

        carrier.__annotations__ = {"value": annotation}
        try:
            return get_type_hints(carrier, function.__globals__, include_extras=True)["value"]
        except NameError:
            return Any

    return {name: hint(annotation) for name, annotation in function.__annotations__.items()}


def has_axes(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(map(has_axes, get_args(hint)))
