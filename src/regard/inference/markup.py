"""Inline tags: taken out of a text, and put around the words of its translation that come from theirs.

A text with tags is HTML in small: `&lt;` is a sign in it, and white space is one space. Tags are `<b>`, `</b>` and
`<br/>`, with any names and attributes; those that HTML never closes need no stroke.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regard.core.errors import InvalidArgument

TAG = re.compile(r"""<(/?)([A-Za-z][\w:.-]*)(?:\s(?:[^<>"']|"[^"]*"|'[^']*')*)?/?>""")
NEVER_CLOSED = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "param",
    "source",
    "track",
    "wbr",
}
Path = tuple[int, ...]  # the elements around a place, from the outermost


@dataclass(frozen=True)
class Element:
    """A pair of tags, or one that stands alone, and where in the words of its text."""

    opens: str
    closes: str | None  # None: it stands alone
    around: Path  # the elements that it is in
    first: int  # so many words begin before it
    last: int  # and so many before its end
    leans: bool  # towards the word behind it: there is a space before it alone


@dataclass(frozen=True)
class Marked:
    """A text without its tags, and what they were around."""

    text: str
    paths: tuple[Path, ...]  # of each word
    elements: tuple[Element, ...]  # as they begin


def take_out(text: str, name: str = "text") -> Marked:
    """The words and the tags of a text; what was opened last must be closed first."""
    letters, at = "", 0  # the text without tags, and how far it is read
    runs: list[tuple[int, Path]] = []  # from which letter on, these elements
    path: Path = ()
    found: list[tuple[str, str, Path, int]] = []  # opening tag, name, elements around, place
    ends: dict[int, int] = {}
    for tag in TAG.finditer(text):
        letters += html.unescape(text[at : tag.start()])
        at, kind = tag.end(), tag[2]
        if tag[1]:
            if not path or found[path[-1]][1].lower() != kind.lower():
                _refuse(name, tag[0], found[path[-1]][0] if path else None)
            ends[path[-1]] = len(letters)
            path = path[:-1]
        else:
            found.append((tag[0], kind, path, len(letters)))
            if tag[0].endswith("/>") or kind.lower() in NEVER_CLOSED:
                if re.fullmatch(r"[\w.,;:!?)]", letters[-1:]) and text[at : at + 1].isalnum():
                    letters += " "  # it parts words, as a break of the line does
            else:
                path = (*path, len(found) - 1)
        runs.append((len(letters), path))
    if path:
        _refuse(name, "its end", found[path[-1]][0])
    letters += html.unescape(text[at:])
    words = [word.span() for word in re.finditer(r"\S+", letters)]
    elements = tuple(
        Element(
            opens,
            f"</{kind}>" if number in ends else None,
            around,
            _begun(words, start),
            _begun(words, ends.get(number, start)),
            letters[start : start + 1].strip() != "" and letters[start - 1 : start].strip() == "",
        )
        for number, (opens, kind, around, start) in enumerate(found)
    )
    plain = " ".join(letters[start:end] for start, end in words)
    return Marked(plain, tuple(_path(word, runs, len(letters)) for word in words), elements)


def _refuse(name: str, got: str, opened: str | None) -> None:
    wanted = "a tag that opens, before one that closes" if opened is None else f"{opened} to be closed first"
    raise InvalidArgument(name, wanted=wanted, got=got, remedy="Close first what was opened last.")


def _begun(words: Sequence[tuple[int, int]], place: int) -> int:
    return sum(start < place for start, _ in words)


def _path(word: tuple[int, int], runs: Sequence[tuple[int, Path]], size: int) -> Path:
    """The elements around a word: the most of them that any part of it has, and of such parts the longest's."""
    best: Path = ()
    most = (0, 0)
    starts: list[tuple[int, Path]] = [(0, ()), *runs, (size, ())]
    for (start, path), (end, _) in pairwise(starts):
        shared = min(end, word[1]) - max(start, word[0])
        if shared > 0 and (len(path), shared) > most:
            best, most = path, (len(path), shared)
    return best


def put_in(marked: Marked, output: str, spans: Sequence[tuple[int, int]], origins: Sequence[int | None]) -> str:
    """An output, whose words lie at these places and come from these words of the text, with the tags of the text.

    Each word is in the elements that its origin is in; one without an origin in those that both its neighbours are in.
    So an element whose words were moved apart is there twice. One that no word comes from, and a tag that stands alone,
    go beside what comes from the nearest word of the text.
    """
    paths = _filled([None if origin is None else marked.paths[origin] for origin in origins])
    there = {element for path in paths for element in path}
    before: dict[int, list[tuple[Path, str]]] = {}  # a word: empty elements, and tags that stand alone
    behind: dict[int, list[tuple[Path, str]]] = {}
    parents = {element.around[-1] for element in marked.elements if element.around}
    for number, element in enumerate(marked.elements):
        if element.closes is not None and (number in there or number in parents):
            continue  # its words show it, or what is in it does
        path = element.around if element.closes is None else (*element.around, number)
        highest = next((one for one in (*element.around, number) if one not in there), number)
        word, after = _beside(marked, highest, origins)
        text = element.opens if element.closes is None else ""
        (behind if after else before).setdefault(word, []).append((path, text))
    line = _Line(marked.elements)
    end = 0
    for word, (start, stop) in enumerate(spans):
        line.space(output[end:start])
        for path, text in (*before.get(word, ()), (paths[word], _escaped(output[start:stop])), *behind.get(word, ())):
            line.add(path, text)
        end = stop
    for path, text in () if spans else behind.get(-1, ()):
        line.add(path, text)
    return line.end() + output[end:]


def _filled(paths: Sequence[Path | None]) -> list[Path]:
    """A word without a path of its own has what those before and behind it share."""
    found: list[Path] = []
    for at, path in enumerate(paths):
        if path is None:
            later = next((one for one in paths[at + 1 :] if one is not None), ())
            earlier = found[-1] if found else ()
            path = earlier[: _shared(earlier, later)]
        found.append(path)
    return found


def _beside(marked: Marked, number: int, origins: Sequence[int | None]) -> tuple[int, bool]:
    """The word of an output that an element goes beside, and whether behind it; -1 where there is none."""
    element, inside = marked.elements[number], marked.elements[number].around[-1:]
    places: dict[int, list[int]] = {}  # of the words of the text, in the output
    for word, origin in enumerate(origins):
        if origin is not None and set(inside) <= set(marked.paths[origin]):
            places.setdefault(origin, []).append(word)
    left = max((origin for origin in places if origin < element.first), default=None)
    right = min((origin for origin in places if origin >= element.first), default=None)
    if left is None and right is None:
        return len(origins) - 1, True
    far = len(marked.paths) + 1
    to_left = far if left is None else element.first - left
    to_right = far if right is None else max(right - element.last, 0) + 1
    if right is None or (left is not None and (to_left, element.leans) < (to_right, True)):
        assert left is not None
        return max(places[left]), True
    return min(places[right]), False


class _Line:
    """Words with the elements they are in, written so that what was opened last is closed first."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self.elements, self.gap = elements, ""
        self.parts: list[str] = []
        self.path: Path = ()

    def space(self, text: str) -> None:
        """Before what comes next, and outside of what ends before it or begins with it."""
        self.gap = text

    def add(self, path: Path, text: str) -> None:
        self._close(_shared(self.path, path))
        self.parts += [self.gap, *(self.elements[one].opens for one in path[len(self.path) :]), text]
        self.path, self.gap = path, ""

    def end(self) -> str:
        self._close(0)
        return "".join(self.parts)

    def _close(self, kept: int) -> None:
        self.parts += [self.elements[one].closes or "" for one in reversed(self.path[kept:])]
        self.path = self.path[:kept]


def _shared(a: Path, b: Path) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)
