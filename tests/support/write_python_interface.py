"""Writes tests/golden/python_interface.txt: every public function, class and method with its arguments and defaults.

python tests/support/write_python_interface.py
"""

import inspect
import re
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "golden" / "python_interface.txt"
sys.path[:0] = [str(Path(__file__).parents[2] / "docs" / "tools")]

import api_reference  # noqa: E402  beside the programs that write the pages
import docstrings  # noqa: E402
import regard  # noqa: E402


def public_callables():
    """Every public function, class and method with the docstring that must explain its arguments."""
    for name in (name for names in api_reference.GROUPS.values() for name in names):
        value = getattr(regard, name)
        if not callable(value):
            continue
        own = inspect.getdoc(value) or ""
        yield name, value, "\n".join([own, *docstrings.field_lines(value)])
        for each, member in vars(value).items() if inspect.isclass(value) else ():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and not each.startswith("_"):
                yield f"{name}.{each}", function, f"{inspect.getdoc(function) or ''}\n{own}"
    for name in api_reference.REGISTER:
        yield (
            f"register.{name}",
            getattr(regard.register, name),
            inspect.getdoc(getattr(regard.register, name)) or "",
        )


def interface() -> str:
    """A line for each public callable: its arguments and defaults, without types."""
    return "".join(f"{name}{_arguments(value)}\n" for name, value, _ in public_callables())


def _arguments(value) -> str:
    signature = inspect.signature(value)
    plain = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    return re.sub(r" at 0x\w+", "", str(inspect.Signature(plain)))


if __name__ == "__main__":
    FILE.write_text(interface(), "utf-8")
