"""The output projection of a compiled decoder, and its rows for the candidates of a batch alone."""

import ctypes
from weakref import WeakKeyDictionary

from regard.generation.engines.cpu.weight_layout import LinearTable, WeightLayout
from regard.generation.engines.loop import Candidates
from regard.generation.engines.transformer_weights import LinearWeights
from regard.model.embedding import Projection


class CandidateProjection:
    """Hidden states to the logits of some tokens: a matrix of their rows, packed when it is first needed.

    It shares the weights of the decoder, which makes a new one when they change.
    """

    def __init__(self, project: Projection, library: ctypes.CDLL, *, int8: bool) -> None:
        self.weight = project.weight.detach()
        self.scale = project.scale
        self.bias = None if project.bias is None else project.bias.detach()
        self.library = library
        self.int8 = int8
        self.packed: WeakKeyDictionary[Candidates, tuple[WeightLayout, LinearTable]] = (
            WeakKeyDictionary()
        )

    @property
    def vocab_size(self) -> int:
        return len(self.weight)

    def of(self, candidates: Candidates) -> LinearTable:
        """The rows of these candidates. Their memory lives as long as the candidates."""
        known = self.packed.get(candidates)
        if known is None:
            layout = WeightLayout(self.library, int8=self.int8, chunk=0)
            tokens = candidates.tokens
            weight = self.weight.index_select(0, tokens)
            rows = LinearWeights(
                weight if self.scale == 1.0 else weight * self.scale,
                None if self.bias is None else self.bias.index_select(0, tokens),
            )
            known = self.packed[candidates] = layout, layout.linear(rows)
        return known[1]
