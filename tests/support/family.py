"""The scores, masks, dtypes and shapes of the attention contracts. A new one is tested by being listed here.

`oracle` is attention written from its definition, independent of the package and in float64, with masks decided pair by
pair in Python. A `fault` makes it wrong, to test the contracts themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.kernels.attention import blockwise, reference, sdpa, small_kv
from regard.model import attention, capture

N, M, WIDTH, VALUE_WIDTH = 5, 7, 6, 4


@dataclass(frozen=True)
class ReluScoreFunction(regard.ScoreFunction):
    """w · relu(q + k): a score function of the user's own, with a learnable weight, unknown to the package."""

    weight: Tensor  # (1, D)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = torch.relu(query[:, :, :, None] + key[:, :, None])  # (B, H, R, C, D)
        return (hidden @ self.weight.to(hidden.dtype)[:, None, :, None])[..., 0]


class ReluScore(regard.Score):
    def __init__(self, dim: int, heads: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, dim))

    def score_function(self, dim: int) -> regard.ScoreFunction:
        return ReluScoreFunction(self.weight)


SCORES: dict[str, Callable[[], regard.Score]] = {
    "dot": regard.Dot,
    "scaled_dot": regard.ScaledDot,
    "bilinear": lambda: regard.Bilinear(WIDTH, WIDTH + 2),
    "reduced_rank": lambda: regard.ReducedRank(WIDTH, WIDTH + 2, 3),
    "additive": lambda: regard.Additive(WIDTH, WIDTH + 2, 9),
    "uniform": regard.Uniform,
    "relu": lambda: ReluScore(WIDTH),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
}


def padding(n: int, m: int, dtype: torch.dtype) -> dict[str, Any]:
    return {"mask": (torch.arange(m) < torch.tensor([m, m - 3])[:, None])[:, None]}


def scattered(n: int, m: int, dtype: torch.dtype) -> dict[str, Any]:
    return {"mask": (torch.arange(n * m).reshape(n, m) * 7 % 5 > 1).expand(2, n, m)}


def fully_masked(n: int, m: int, dtype: torch.dtype) -> dict[str, Any]:
    """One row of the first sequence may attend to nothing, nor may any row of the second."""
    mask = torch.ones(2, n, m, dtype=torch.bool)
    mask[0, n // 2] = False
    mask[1] = False
    return {"mask": mask}


def values(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(dtype)


MASKS: dict[str, Callable[[int, int, torch.dtype], dict[str, Any]]] = {
    "everything": lambda n, m, dtype: {},
    "padding": padding,
    "scattered": scattered,
    "fully masked": fully_masked,
    "causal": lambda n, m, dtype: {"causal": True},
    "causal padding": lambda n, m, dtype: {"causal": True} | padding(n, m, dtype),
    "window": lambda n, m, dtype: {"window": 2},
    "causal window": lambda n, m, dtype: {"causal": True, "window": (1, 3)},
    "window padding": lambda n, m, dtype: {"window": (None, 1)} | padding(n, m, dtype),
    "bias": lambda n, m, dtype: {"bias": values(n, m, dtype=dtype)},
    "bias of keys": lambda n, m, dtype: (
        {"bias": values(2, 1, m, dtype=dtype)} | scattered(n, m, dtype)
    ),
    "distance bias": lambda n, m, dtype: {
        "bias": regard.DistanceBias(values(n + m - 1, dtype=dtype)),
        "causal": True,
    },
    "all at once": lambda n, m, dtype: (
        {
            "bias": regard.DistanceBias(values(2, n + m - 1, dtype=dtype)),
            "causal": True,
            "window": (3, 0),
        }
        | padding(n, m, dtype)
    ),
}
SHAPES = {"more keys": (N, M), "square": (M, M), "more queries": (M, N), "one query": (1, M)}


@dataclass
class Case:
    """The inputs of one attention call: two sequences, no heads."""

    score: str = "scaled_dot"
    mask: str = "everything"
    dtype: torch.dtype = torch.float32
    shape: str = "more keys"
    query: Tensor = field(init=False)
    key: Tensor = field(init=False)
    value: Tensor = field(init=False)
    module: regard.Score = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        self.n, self.m = SHAPES[self.shape]
        self.module = SCORES[self.score]().to(self.dtype)
        for parameter in self.module.parameters():  # a bias of zero would hide a missing one
            parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)
        wide = WIDTH + 2 if self.score in ("bilinear", "reduced_rank", "additive") else WIDTH
        self.query, self.key, self.value = (
            (0.7 * torch.randn(2, size, dim)).to(self.dtype).requires_grad_()
            for size, dim in ((self.n, WIDTH), (self.m, wide), (self.m, VALUE_WIDTH))
        )

    @property
    def seen(self) -> dict[str, Any]:
        """Mask, window and bias, as keywords of `attend`."""
        return MASKS[self.mask](self.n, self.m, self.dtype)

    @property
    def keywords(self) -> dict[str, Any]:
        return {"score": self.module, **self.seen}

    @property
    def inputs(self) -> list[Tensor]:
        """Everything that has a gradient."""
        used = [] if self.score == "uniform" else [self.query, self.key]
        return [*used, self.value, *self.module.parameters()]


Attend = Callable[..., Tensor]


# Implementations: the kernel, and constants so small that small cases have many blocks.
PATHS: dict[str, tuple[Any, dict[str, int]]] = {
    "public": (None, {}),
    "reference": (reference, {}),
    "sdpa": (sdpa, {}),
    "sdpa in blocks": (sdpa, {"TILE": 2 * M}),
    "small_kv": (small_kv, {}),
    "blockwise": (blockwise, {}),
    "blockwise in blocks": (blockwise, {"BLOCK": 2 * M}),
}


@contextmanager
def path(name: str) -> Iterator[Attend]:
    """`regard.attend` by this implementation, within the context."""
    kernel, settings = PATHS[name]

    def attend(
        query, key, value, *, score=None, mask=None, causal=False, window=None, bias=None
    ) -> Tensor:
        tensors = {"query": query, "key": key, "value": value}
        spec, lead, folded = attention._spec(tensors, score, mask, causal, window, bias)
        assert kernel is not sdpa or sdpa.supports(spec, folded, 0.0)
        out, _ = kernel.attend(spec, folded)
        return out.reshape(*lead, *out.shape[2:])

    with pytest.MonkeyPatch.context() as patch:
        for constant, value in settings.items():
            patch.setattr(kernel, constant, value)
        yield regard.attend if kernel is None else attend


def has(path_name: str, score: str) -> bool:
    """Whether the path supports the score: these two take dot products only."""
    return not (path_name.startswith(("sdpa", "small_kv")) and score in ("additive", "relu"))


def sees(
    i: int, j: int, n: int, m: int, *, causal: bool, window: Any, fault: str | None = None
) -> bool:
    position = i + (0 if fault == "upper-left" else m - n)
    behind, ahead = (window, window) if isinstance(window, int) else window or (None, None)
    if fault == "window off by one" and behind is not None:
        behind += 1
    if causal and j > position + (fault == "sees one ahead"):
        return False
    return (behind is None or j >= position - behind) and (ahead is None or j <= position + ahead)


def score_of(module: regard.Score, q: Tensor, k: Tensor) -> Tensor:
    """One query, one key, one number."""
    p = {name: parameter.double() for name, parameter in module.named_parameters()}
    match module:
        case regard.Dot():
            return q @ k
        case regard.ScaledDot():
            return q @ k / sqrt(len(q))
        case regard.Bilinear():
            return k @ p["weight"] @ q
        case regard.ReducedRank():
            return (q @ p["query_weight"]) @ (k @ p["key_weight"])
        case regard.Additive():
            hidden = q @ p["query_weight"] + k @ p["key_weight"] + p["key_bias"][0]
            return p["weight"][0] @ torch.tanh(hidden)
        case ReluScore():
            return p["weight"][0] @ torch.relu(q + k)
        case regard.Uniform():
            return q.new_zeros(())
    raise TypeError(module)


def oracle_weights(
    query, key, *, score=None, mask=None, causal=False, window=None, bias=None, fault=None
) -> Tensor:
    score = score or regard.ScaledDot()
    if fault == "no scale":
        score = regard.Dot()
    (batch, n, _), m = query.shape, key.shape[-2]
    query, key = query.double(), key.double()
    if fault == "position dependent":
        key = key * (1 + 0.1 * torch.arange(m)[:, None])
    rows = []
    for b in range(batch):
        for i in range(n):
            cells = []
            for j in range(m):
                seen = sees(i, j, n, m, causal=causal, window=window, fault=fault)
                if mask is not None:
                    allowed = bool(mask.expand(batch, n, m)[b, i, j])
                    seen = seen and (allowed != (fault == "mask inverted"))
                s = score_of(score, query[b, i], key[b, j])
                if isinstance(bias, regard.DistanceBias):
                    s = s + bias.values.expand(batch, -1)[b, j - (i + m - n) + m - 1]
                elif bias is not None and fault != "bias ignored":
                    s = s + bias.expand(batch, n, m)[b, i, j]
                hidden = -3.0 if fault == "soft mask" else -torch.inf
                cells.append(s if seen else torch.full_like(s, hidden))
            row = torch.stack(cells)
            nothing = bool((row == -torch.inf).all()) and fault != "nan when masked"
            rows.append(torch.zeros_like(row) if nothing else row.softmax(0))
    weights = torch.stack(rows).reshape(batch, n, m)
    return weights * 1.01 if fault == "do not sum to one" else weights


def oracle(query, key, value, *, fault: str | None = None, **keywords) -> Tensor:
    if fault == "no gradient to the key":
        key = key.detach()
    weights = oracle_weights(query, key, fault=fault, **keywords)
    out = weights @ value.double()
    if fault == "future leaks":
        out = out + 1e-6 * value.mean(-2, keepdim=True)
    if fault == "length leaks":
        out = out * (1 + 0.05 * value.shape[-2])
    if fault == "notices captures" and capture._callbacks.get():
        out = out * (1 + 1e-6)
    return out.to(value.dtype)
