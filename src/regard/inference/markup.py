"""Inline tags: removed from a source text and inserted around the aligned words of its translation.

A text with tags is a subset of HTML: `&lt;` stands for a character, and white space is collapsed.
Tags are `<b>`, `</b>` and `<br/>`, with any names and attributes; HTML's void elements need no
slash.
"""

import html
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regard.core.errors import InvalidArgument

TAG = re.compile(r"""<(/?)([A-Za-z][\w:.-]*)(?:\s(?:[^<>"']|"[^"]*"|'[^']*')*)?/?>""")
VOID = re.compile(
    "area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr", re.IGNORECASE
)
Path = tuple[int, ...]  # indices of the elements around a position, outermost first


@dataclass(frozen=True)
class Element:
    """An element of the markup and the words it spans."""

    opening: str
    closing: str | None  # None for a void or self-closing element
    parents: Path
    first: int  # words that begin before it
    last: int  # words that begin before its end
    attaches_right: bool  # follows a space and directly precedes a word


@dataclass(frozen=True)
class MarkedText:
    """A text without its tags, and the elements around each word."""

    text: str
    paths: tuple[Path, ...]  # of each word
    elements: tuple[Element, ...]  # in the order of their opening tags


def extract_tags(text: str, name: str = "text") -> MarkedText:
    """The words and the tags of a text; elements must be properly nested.

    `name` is the argument, for messages.
    """
    # The text without tags, and how far it is parsed.
    plain = ""
    at = 0
    runs: list[tuple[int, Path]] = []  # the elements from this character on
    path: Path = ()
    opened: list[tuple[str, str, Path, int]] = []  # opening tag, name, parents, position
    ends: dict[int, int] = {}
    for tag in TAG.finditer(text):
        plain += html.unescape(text[at : tag.start()])
        at = tag.end()
        kind = tag[2]
        if tag[1]:
            if not path or opened[path[-1]][1].lower() != kind.lower():
                unclosed = opened[path[-1]][0] if path else None
                _refuse(name, tag[0], unclosed)
            ends[path[-1]] = len(plain)
            path = path[:-1]
        else:
            opened.append((tag[0], kind, path, len(plain)))
            if tag[0].endswith("/>") or VOID.fullmatch(kind):
                if re.fullmatch(r"[\w.,;:!?)]", plain[-1:]) and text[at : at + 1].isalnum():
                    # The element separates words, as a line break does.
                    plain += " "
            else:
                path = (*path, len(opened) - 1)
        runs.append((len(plain), path))
    if path:
        _refuse(name, "its end", opened[path[-1]][0])
    plain += html.unescape(text[at:])
    words = [word.span() for word in re.finditer(r"\S+", plain)]
    starts = [start for start, _ in words]
    elements = []
    for number, (opening, kind, parents, start) in enumerate(opened):
        closing = f"</{kind}>" if number in ends else None
        first = bisect_left(starts, start)
        last = bisect_left(starts, ends.get(number, start))
        precedes_word = plain[start : start + 1].strip() != ""
        follows_space = plain[start - 1 : start].strip() == ""
        attaches_right = follows_space and precedes_word
        elements.append(Element(opening, closing, parents, first, last, attaches_right))
    text = " ".join(plain[start:end] for start, end in words)
    paths = tuple(_path(word, runs, len(plain)) for word in words)
    return MarkedText(text, paths, tuple(elements))


def _refuse(name: str, got: str, opened: str | None) -> None:
    wanted = "a tag that opens, before one that closes"
    if opened is not None:
        wanted = f"{opened} to be closed first"
    raise InvalidArgument(name, wanted=wanted, got=got, remedy="Close elements in reverse order.")


def _path(word: tuple[int, int], runs: Sequence[tuple[int, Path]], size: int) -> Path:
    """The elements around a word: of its most deeply nested part, or the longest of such parts."""
    starts: list[tuple[int, Path]] = [(0, ()), *runs, (size, ())]
    overlaps = [
        (min(end, word[1]) - max(start, word[0]), path)
        for (start, path), (end, _) in pairwise(starts)
    ]
    parts = [(len(path), overlap, path) for overlap, path in overlaps if overlap > 0]
    return max(parts, key=lambda part: part[:2])[2]


def insert_tags(
    marked: MarkedText, output: str, spans: Sequence[tuple[int, int]], origins: Sequence[int | None]
) -> str:
    """An output with the tags of its source.

    spans     the characters of each word of the output
    origins   the source word that each is aligned with

    A word gets the elements of its origin; one without an origin those that both its neighbors
    have, so an element whose words were separated occurs twice. An element without aligned words,
    and one without content, is put beside the word aligned with the nearest source word.
    """
    paths = _filled([None if origin is None else marked.paths[origin] for origin in origins])
    present = {element for path in paths for element in path}
    before: dict[int, list[tuple[Path, str]]] = {}  # empty elements by word
    after: dict[int, list[tuple[Path, str]]] = {}
    parents = {element.parents[-1] for element in marked.elements if element.parents}
    for number, element in enumerate(marked.elements):
        if element.closing is not None and (number in present or number in parents):
            # Its words or its children show it.
            continue
        path = element.parents
        text = ""
        if element.closing is None:
            text = element.opening
        else:
            path = (*path, number)
        highest = next((one for one in (*element.parents, number) if one not in present), number)
        word, follows = _beside(marked, highest, origins)
        beside = after if follows else before
        beside.setdefault(word, []).append((path, text))
    writer = _Writer(marked.elements)
    end = 0
    for word, (start, stop) in enumerate(spans):
        own = paths[word], html.escape(output[start:stop], quote=False)
        writer.gap = output[end:start]
        for path, text in (*before.get(word, ()), own, *after.get(word, ())):
            writer.add(path, text)
        end = stop
    if not spans:
        for path, text in after.get(-1, ()):
            writer.add(path, text)
    writer.close(0)
    return "".join(writer.parts) + output[end:]


def _filled(paths: Sequence[Path | None]) -> list[Path]:
    """The paths, with the shared path of its neighbors for a word that has none."""
    filled: list[Path] = []
    for at, path in enumerate(paths):
        if path is None:
            later = next((one for one in paths[at + 1 :] if one is not None), ())
            earlier = filled[-1] if filled else ()
            path = earlier[: _shared(earlier, later)]
        filled.append(path)
    return filled


def _beside(marked: MarkedText, number: int, origins: Sequence[int | None]) -> tuple[int, bool]:
    """The word of the output to put an element beside (-1: there is none), and whether after it."""
    element = marked.elements[number]
    inside = marked.elements[number].parents[-1:]
    aligned: dict[int, list[int]] = {}  # the words of the output by source word
    for word, origin in enumerate(origins):
        if origin is not None and set(inside) <= set(marked.paths[origin]):
            aligned.setdefault(origin, []).append(word)
    left = max((origin for origin in aligned if origin < element.first), default=None)
    right = min((origin for origin in aligned if origin >= element.first), default=None)
    if left is None and right is None:
        return len(origins) - 1, True
    far = len(marked.paths) + 1
    to_left = far if left is None else element.first - left
    to_right = far if right is None else max(right - element.last, 0) + 1
    if right is None or (left is not None and (to_left, element.attaches_right) < (to_right, True)):
        assert left is not None
        return max(aligned[left]), True
    return min(aligned[right]), False


class _Writer:
    """Writes words with the elements around them, properly nested."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self.elements = elements
        # White space before the next word, outside of elements that end before it or begin with it.
        self.gap = ""
        self.parts: list[str] = []
        self.path: Path = ()

    def add(self, path: Path, text: str) -> None:
        self.close(_shared(self.path, path))
        self.parts += [
            self.gap,
            *(self.elements[one].opening for one in path[len(self.path) :]),
            text,
        ]
        self.path = path
        self.gap = ""

    def close(self, kept: int) -> None:
        """Close all elements but the outermost `kept`."""
        self.parts += [self.elements[one].closing or "" for one in reversed(self.path[kept:])]
        self.path = self.path[:kept]


def _shared(a: Path, b: Path) -> int:
    """The length of the common prefix of two paths."""
    return next(
        (i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other),
        min(len(a), len(b)),
    )
