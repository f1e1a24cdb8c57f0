"""Links between the words of a text and of its translation, and how well those that were found meet a reference.

Written as Pharaoh does, word of the source, word of the target, from 0: `0-0 1-2` are sure, `2?1` is possible.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from regard.core.errors import InvalidData

Link = tuple[int, int]
LINK = re.compile(r"(\d+)([-?])(\d+)", re.ASCII)


@dataclass(frozen=True)
class Links:
    """What a reference says: links that must be found, and all that may be, these among them."""

    sure: frozenset[Link]
    possible: frozenset[Link]


def read_links(line: str, sizes: tuple[int, int], path: object, number: int) -> Links:
    """Of a line of a file, between so many words of a source and of a target."""
    sure, possible = set(), set()
    for told in line.split():
        found = LINK.fullmatch(told)
        link = None if found is None else (int(found[1]), int(found[3]))
        if found is None or link is None or link[0] >= sizes[0] or link[1] >= sizes[1]:
            raise InvalidData(
                path,
                number,
                wanted=f"links as 0-0 and 1?2 between {sizes[0]} words and {sizes[1]}",
                got=told,
                remedy="Words are what spaces part, and count from 0.",
            )
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def pharaoh(links: Collection[Link]) -> str:
    """As a line.

    >>> pharaoh([(1, 2), (0, 0)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


@dataclass
class Agreement:
    """Counts over all sentences so far, and what follows from them (https://aclanthology.org/J03-1002)."""

    found: int = 0
    sure: int = 0
    found_sure: int = 0
    found_possible: int = 0

    def add(self, links: Collection[Link], reference: Links) -> None:
        """One more sentence."""
        found = set(links)
        self.found += len(found)
        self.sure += len(reference.sure)
        self.found_sure += len(found & reference.sure)
        self.found_possible += len(found & reference.possible)

    @property
    def precision(self) -> float:
        """The share of links found that are possible; 0 where none was found."""
        return self.found_possible / max(1, self.found)

    @property
    def recall(self) -> float:
        """The share of sure links that were found; 0 where none is wanted."""
        return self.found_sure / max(1, self.sure)

    @property
    def error_rate(self) -> float:
        """AER: 0 where all that is sure was found, and nothing that is not even possible."""
        wanted = self.found + self.sure
        return 1 - (self.found_sure + self.found_possible) / wanted if wanted else 0.0

    def as_dict(self) -> dict[str, float]:
        return {"alignment_error_rate": self.error_rate, "precision": self.precision, "recall": self.recall}

    def __str__(self) -> str:
        return f"alignment error rate {self.error_rate:.1%}, precision {self.precision:.1%}, recall {self.recall:.1%}"
