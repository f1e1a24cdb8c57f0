"""The steps of a beam search as a tree: every candidate, which of them were kept, and which ended.

A search records them where its task has a `BeamTrace`; without one, nothing is computed and nothing changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from regard.core.shapes import Bool, Float, Int, Tensor

ROOT = -1


@dataclass(frozen=True)
class TraceNode:
    """A token of a hypothesis.

    parent            index of the node before it; ROOT: none
    log_probability   of the token
    total             of the hypothesis up to it, by which candidates are ranked
    kept              whether it is extended
    score             of a hypothesis that ends here: its total after the length penalty; None: it does not
    """

    parent: int
    token: int
    log_probability: float
    total: float
    kept: bool
    score: float | None


@dataclass
class BeamTrace:
    """Records a beam search of one request; of several, that in the first slot."""

    nodes: list[TraceNode] = field(default_factory=list)
    _beams: list[int] = field(default_factory=list)  # the node of each hypothesis

    def record(
        self,
        totals: Float[Tensor, "B G C"],
        parents: Int[Tensor, "B G C"],
        tokens: Int[Tensor, "B G C"],
        gained: Float[Tensor, "B G C"],
        scores: Float[Tensor, "B G C"],
        ends: Bool[Tensor, "B G C"],
        chosen: Int[Tensor, "B G N"],
        extended: Bool[Tensor, "B G N"],
    ) -> None:
        """One step: candidates in G groups, best first; which of them end, with what score; and the next beam.

        The beam has all those that are `chosen`; not all of them are `extended`, where too few candidates are left.
        """
        beams: list[int] = []
        columns = (
            each[0].tolist()
            for each in (totals, parents, tokens, gained, scores, ends, chosen, extended)
        )
        for group in zip(*columns, strict=True):
            beams += self._group(*group)
        self._beams = beams

    def _group(
        self,
        totals: Sequence[float],
        parents: Sequence[int],
        tokens: Sequence[int],
        gained: Sequence[float],
        scores: Sequence[float],
        ends: Sequence[bool],
        chosen: Sequence[int],
        extended: Sequence[bool],
    ) -> list[int]:
        """Add the candidates of one group; the nodes of its hypotheses."""
        added: dict[int, int] = {}
        kept = {i for i, still in zip(chosen, extended, strict=True) if still}
        for i, total in enumerate(totals):
            if total == -float("inf"):
                continue
            parent = self._beams[parents[i]] if self._beams else ROOT
            added[i] = len(self.nodes)
            score = scores[i] if ends[i] else None
            self.nodes.append(TraceNode(parent, tokens[i], gained[i], total, i in kept, score))
        return [added.get(i, ROOT) for i in chosen]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this one."""
        found = []
        while node != ROOT:
            found.append(node)
            node = self.nodes[node].parent
        return found[::-1]

    def ended(self) -> list[int]:
        """The nodes at which hypotheses end, best first."""
        found = [i for i, node in enumerate(self.nodes) if node.score is not None]
        return sorted(found, key=lambda i: -(self.nodes[i].score or 0.0))
