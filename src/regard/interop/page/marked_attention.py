"""Attention calls as single operators of a graph that name their module, so that a page can read and edit attention.

The operator takes the scores of a call, −∞ where a key is masked, and its values. So a program that runs the graph can
mask keys before the softmax, change weights after it, and scale the output of heads, as `regard.interpret.edits` does.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.onnx.ops import symbolic

from regard.interop.onnx.graph import Graph, Tensors
from regard.interpret.sites import AttentionSite
from regard.kernels.attention import reference
from regard.kernels.attention.spec import repeat_heads
from regard.model import capture
from regard.model.capture import AttentionResult
from regard.model.interfaces import AttentionModule

DOMAIN = "regard"
OPERATOR = "Attention"


class MarkedGraph(Graph):
    """A graph with the attention calls of some modules as single operators, which name their sites."""

    def __init__(self, inner: Graph, sites: Mapping[AttentionModule, AttentionSite]) -> None:
        super().__init__()
        self.inner = inner
        self.name = inner.name
        self.inputs = inner.inputs
        self.sites: dict[nn.Module | None, str] = {
            module: site.name for module, site in sites.items()
        }
        # The sites whose rows attend to no later key; filled when the graph runs.
        self.causal: set[str] = set()

    def run(self, given: Tensors) -> Tensors:
        with capture.intercepting(self._mark):
            return self.inner.run(given)

    def _mark(self, source: nn.Module | None, result: AttentionResult) -> AttentionResult:
        if source not in self.sites:
            return result
        if result.spec.visible.ahead == 0:
            self.causal.add(self.sites[source])
        scores = reference.scores(result.spec)  # (B, H, N, M)
        value = repeat_heads(result.value, scores.shape[1])  # (B, H, M, E)
        if torch.compiler.is_exporting():
            shape = (*scores.shape[:3], value.shape[3])
            out = symbolic(
                f"{DOMAIN}::{OPERATOR}",
                (scores, value),
                {"site": self.sites[source]},
                dtype=value.dtype,
                shape=shape,
                version=1,
            )
        else:
            out = reference.softmax(scores) @ value
        return result._replace(out=out)
