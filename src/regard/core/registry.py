"""Registries: the names that recipes may use for a kind of part, and what each name stands for.

A module that defines interchangeable parts (scores, position encodings, encoders, metrics) keeps one `Registry` of
them; `regard.register` adds parts of the user's own. In a configuration, `Annotated[str, REGISTRY]` is a field that
takes a registered name, resolved when the configuration is made.
"""

import difflib
import logging
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from regard.core.errors import InvalidArgument

Entry = TypeVar("Entry")
# The entry-point group of modules that register parts when they are imported.
PLUGINS = "regard.plugins"
log = logging.getLogger(__name__)
_plugins_loaded = False
_registries: dict[str, "Registry[Any]"] = {}  # by kind


class Registry(Generic[Entry]):
    """An ordered table of names that can be extended at run time.

    kind      what the entries are, for messages: "score", "encoder"
    entries   those of the package itself
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = dict(entries or {})
        self._packages: dict[str, str | None] = {}
        _registries.setdefault(kind, self)

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry of the package itself, by the module that defines it."""
        self._entries[name] = entry

    def register(self, name: str, entry: Entry, *, package: str | None = None) -> None:
        """Add an entry. `package` is the distribution to install for it, named when a checkpoint needs the entry."""
        if not name:
            raise InvalidArgument(
                "name", wanted=f"a name for the {self.kind}", got=repr(name), remedy="Give a text."
            )
        if name in self._entries:
            remedy = "Choose another; a registered name is never replaced."
            raise InvalidArgument(
                "name",
                wanted=f"a {self.kind} name that is not taken",
                got=repr(name),
                remedy=remedy,
            )
        self._entries[name] = entry
        self._packages[name] = package

    def unregister(self, name: str) -> None:
        """Remove an entry that `register` added; those of the package itself stay."""
        del self._packages[name], self._entries[name]

    def __getitem__(self, name: str) -> Entry:
        if name not in self:
            near = difflib.get_close_matches(str(name), self, n=1, cutoff=0.0)
            remedy = "Register one first."
            if near:
                remedy = f"Did you mean {near[0]!r}?"
            raise InvalidArgument(self.kind, wanted=str(self), got=repr(name), remedy=remedy)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._entries:
            load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __str__(self) -> str:
        return "one of " + ", ".join(map(repr, self._entries))

    def is_extension(self, name: str) -> bool:
        """Whether this name was registered at run time."""
        return name in self._packages

    def package(self, name: str) -> str | None:
        """The distribution that registered this name; None for the package's own and where it was not given."""
        return self._packages.get(name)


def extensions(names: Iterable[tuple[Registry[Any], str]]) -> list[dict[str, str | None]]:
    """Keep the names that were registered at run time, each with its kind and the package that registered it."""
    return [
        {"kind": registry.kind, "name": name, "package": registry.package(name)}
        for registry, name in names
        if registry.is_extension(name)
    ]


def missing_extensions(extensions: Iterable[Mapping[str, str | None]]) -> Iterator[str]:
    """A sentence for each entry, as `extensions` returned it, that is not registered here; no sentence twice."""
    sentences = []
    for each in extensions:
        if each["name"] not in _registries[str(each["kind"])]:
            module = each["package"] or "the module that registers it"
            got = "no registration of that name"
            sentences.append(
                f"wanted the {each['kind']} {each['name']!r}; got {got}. Import {module} first."
            )
    yield from dict.fromkeys(sentences)


def load_plugins() -> None:
    """Import the modules of the entry-point group `regard.plugins`, once, when a name is not known without them."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True  # first: a plugin may look names up while it is imported
    for entry in entry_points(group=PLUGINS):
        log.info("importing the plugin %s (%s)", entry.name, entry.value)
        entry.load()
