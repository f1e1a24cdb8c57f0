"""ES modules as one script: an HTML file that carries its script, and forbids all others,
has no modules to import.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

IMPORT = re.compile(r"^import \{([^}]*)\} from \"(\.[^\"]+)\";", re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


@cache
def bundle(entry: str) -> str:
    """A module of this package, as "studio/app/page/main.js", with all that it imports,
    each before those that import it.

    Each module is a function scope that returns its exports.
    """
    order = list(dict.fromkeys(_with_imports(PurePosixPath(entry))))
    names = {path: f"module_{number}" for number, path in enumerate(order)}
    return "\n".join(_enclosed(path, names) for path in order)


def _with_imports(path: PurePosixPath) -> Iterator[PurePosixPath]:
    for _, imported in IMPORT.findall(_read(path)):
        yield from _with_imports(_resolved(path, imported))
    yield path


def _enclosed(path: PurePosixPath, names: dict[PurePosixPath, str]) -> str:
    def constants(found: re.Match[str]) -> str:
        return f"const {{{found[1].replace(' as ', ': ')}}} = {names[_resolved(path, found[2])]};"

    source = _read(path)
    exported = ", ".join(EXPORT.findall(source))
    source = re.sub(r"^export ", "", IMPORT.sub(constants, source), flags=re.MULTILINE)
    return (
        f"const {names[path]} = (() => {{ // "
        f"{path.name}\n{source}\nreturn {{ {exported} }};\n}})();"
    )


def _resolved(path: PurePosixPath, imported: str) -> PurePosixPath:
    parts: list[str] = []
    for part in (path.parent / imported).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def _read(path: PurePosixPath) -> str:
    return files("regard").joinpath(*path.parts).read_text(encoding="utf-8")
