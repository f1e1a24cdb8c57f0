"""A look-up in a soft dictionary: what is asked, of which keys, and what may be seen. The values come later."""

from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Keys, Queries, Tensor
from regard.kernels.attention import bias as biases
from regard.kernels.attention.bias import Bias, DistanceBias
from regard.kernels.attention.mask import AttentionMask, RowRange
from regard.kernels.attention.score_function import AdditiveScoreFunction, DotScoreFunction, ScoreFunction

# query, key, weight of the energy, mask, values of the bias
Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class AttentionSpec:
    """Everything that decides attention weights, and so everything needed to compute any of them again."""

    score_function: ScoreFunction
    query: Queries
    key: Keys
    visible: AttentionMask
    bias: Bias | None = None

    @property
    def n(self) -> int:
        return self.query.shape[2]

    @property
    def m(self) -> int:
        return self.key.shape[2]

    @property
    def tensors(self) -> Tensors:
        """Every tensor in it, for autograd to hold; `Frame` is the rest, and puts it together again."""
        bias = None if self.bias is None else biases.bias_values(self.bias)
        return self.query, self.key, self.score_function.weight, self.visible.allowed, bias

    @property
    def frame(self) -> "Frame":
        scale = self.score_function.scale if isinstance(self.score_function, DotScoreFunction) else None
        return Frame(scale, self.visible.behind, self.visible.ahead, isinstance(self.bias, DistanceBias))

    def detached(self) -> "AttentionSpec":
        query, key, *others = self.tensors
        return self.frame.around(query.detach(), key.detach(), *(None if x is None else x.detach() for x in others))

    def for_heads(self, heads: Tensor) -> "AttentionSpec":
        group = self.query.shape[1] // self.key.shape[1]
        bias = self.bias
        if bias is not None and biases.bias_values(bias).shape[1] > 1:
            bias = biases.with_values(bias, biases.bias_values(bias)[:, heads])
        return AttentionSpec(
            score_function=self.score_function.for_heads(heads),
            query=self.query[:, heads],
            key=self.key[:, heads // group],
            visible=self.visible.for_heads(heads),
            bias=bias,
        )

    def scores(self, rows: RowRange, low: int, high: int) -> Float[Tensor, "B H R C"]:
        """Scores of these rows with keys low..high-1, −∞ where nothing may be seen, in float32 or wider."""
        query, key = self.query[:, :, rows], spread(self.key, self.query.shape[1])[:, :, low:high]
        scores = self.score_function.scores(widened(query), widened(key))
        if self.bias is not None:
            scores += biases.tile(self.bias, rows, low, high, self.n)
        seen = self.visible.tile(rows, low, high, self.n, self.m, query.device)
        if seen is not None:
            scores.masked_fill_(~seen, -torch.inf)
        return scores


@dataclass(frozen=True)
class Frame:
    """A look-up without its tensors."""

    scale: float | None  # of a dot product; None: the additive energy
    behind: int | None
    ahead: int | None
    by_distance: bool  # whether the bias is a DistanceBias

    def around(
        self, query: Tensor, key: Tensor, weight: Tensor | None, allowed: Tensor | None, bias: Tensor | None
    ) -> AttentionSpec:
        score_function: ScoreFunction
        if weight is not None:
            score_function = AdditiveScoreFunction(weight)
        else:
            assert self.scale is not None
            score_function = DotScoreFunction(self.scale)
        whole = DistanceBias(bias) if bias is not None and self.by_distance else bias
        return AttentionSpec(score_function, query, key, AttentionMask(allowed, self.behind, self.ahead), whole)


def spread(tensor: Float[Tensor, "B _ M E"], heads: int) -> Float[Tensor, "B H M E"]:
    """Each key or value head once for every query head of its group."""
    group = heads // max(1, tensor.shape[1])
    return tensor if group == 1 else tensor.repeat_interleave(group, dim=1)


def widened(tensor: Tensor) -> Tensor:
    """Half precisions in float32, anything else as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
