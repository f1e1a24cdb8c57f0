"""Word alignments in Pharaoh format, and the alignment error rate (https://aclanthology.org/J03-1002).

A link is source word, target word, counted from 0: `0-0` is a sure link, `2?1` a possible one.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from regard.core.errors import InvalidData

Link = tuple[int, int]
LINK = re.compile(r"(\d+)([-?])(\d+)", re.ASCII)


@dataclass(frozen=True)
class Links:
    """A reference alignment."""

    sure: frozenset[Link]
    possible: frozenset[Link]  # including the sure links


def read_links(line: str, sizes: tuple[int, int], path: object, number: int) -> Links:
    """The links of line `number` of a file; `sizes` are the numbers of source and target words."""
    sure = set()
    possible = set()
    for text in line.split():
        match = LINK.fullmatch(text)
        link = None
        if match is not None:
            link = (int(match[1]), int(match[3]))
        if match is None or link is None or link[0] >= sizes[0] or link[1] >= sizes[1]:
            raise InvalidData(
                path,
                number,
                wanted=f"links as 0-0 and 1?2 between {sizes[0]} words and {sizes[1]}",
                got=text,
                remedy="Words are separated by spaces and counted from 0.",
            )
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def pharaoh(links: Collection[Link]) -> str:
    """Links as a line in Pharaoh format.

    >>> pharaoh([(1, 2), (0, 0)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


@dataclass
class Agreement:
    """Counts of links over all sentences added, and the precision, recall and error rate computed from them."""

    found: int = 0
    sure: int = 0
    found_sure: int = 0
    found_possible: int = 0

    def add(self, links: Collection[Link], reference: Links) -> None:
        """Add the links of one sentence."""
        predicted = set(links)
        self.found += len(predicted)
        self.sure += len(reference.sure)
        self.found_sure += len(predicted & reference.sure)
        self.found_possible += len(predicted & reference.possible)

    @property
    def precision(self) -> float:
        """The fraction of predicted links that are possible; 0 without any."""
        return self.found_possible / max(1, self.found)

    @property
    def recall(self) -> float:
        """The fraction of sure links that were predicted; 0 without any."""
        return self.found_sure / max(1, self.sure)

    @property
    def error_rate(self) -> float:
        """AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|); 0 without any links."""
        total = self.found + self.sure
        if total:
            return 1 - (self.found_sure + self.found_possible) / total
        return 0.0

    def as_dict(self) -> dict[str, float]:
        return {
            "alignment_error_rate": self.error_rate,
            "precision": self.precision,
            "recall": self.recall,
        }

    def __str__(self) -> str:
        return f"alignment error rate {self.error_rate:.1%}, precision {self.precision:.1%}, recall {self.recall:.1%}"
