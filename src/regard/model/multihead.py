"""Multi-head attention: several look-ups side by side, for the parameters and the work of one wide one."""

import difflib

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import Packing, SequenceOffsets
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.attention import varlen
from regard.kernels.attention.bias import Bias
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers.linear import product
from regard.model.attention import Window, attend_spec, check_mask, fold_bias, visibility
from regard.model.interfaces import AttentionModule
from regard.model.kv_cache import KeyValue, KeyValueCache
from regard.model.positions import Rotary
from regard.model.scores import SCORES, Dot, ScaledDot


class MultiHead(AttentionModule):
    """Attention with one projection per role, split into heads that are a batch axis (https://arxiv.org/abs/1706.03762).

    width         of the queries, and of what comes out
    heads         how many look-ups; must divide the width unless `head_width` is given
    source_width  of what is looked up, where that is not as wide as the queries (cross-attention)
    key_heads     heads of keys and values, each shared by heads / key_heads query heads; 1 is multi-query attention
    head_width    width of one head
    score         a name in `regard.SCORES`
    bias          whether the projections add a bias
    dropout       probability of dropping a weight in training
    normalise     scale queries and keys to unit mean square, with a learned gain (https://arxiv.org/abs/2010.04245)
    rotary        rotate queries and keys by their positions
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        source_dim: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        score: str = "scaled_dot",
        bias: bool = True,
        dropout: float = 0.0,
        qk_norm: bool = False,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _check(dim, heads, kv_heads, head_dim, score, dropout)
        head_dim = dim // heads if head_dim is None else head_dim
        if score == "uniform" and (rotary is not None or qk_norm):
            raise InvalidArgument(
                "score",
                wanted="a score that looks at queries and keys, for rotary positions or normalised ones",
                got="'uniform', which looks at neither",
                remedy="Leave out rotary and normalise.",
            )
        if rotary is not None and rotary.dim != head_dim:
            raise InvalidArgument(
                "rotary",
                wanted=f"positions for heads of width {head_dim}",
                got=f"Rotary({rotary.dim})",
                remedy=f"Use Rotary({head_dim}).",
            )
        source_dim = dim if source_dim is None else source_dim
        self.dim, self.heads, self.kv_heads, self.head_dim = dim, heads, kv_heads, head_dim
        self.source_dim, self.dropout = source_dim, dropout
        self.q_proj = nn.Linear(dim, heads * head_dim, bias)
        self.k_proj = nn.Linear(source_dim, kv_heads * head_dim, bias)
        self.v_proj = nn.Linear(source_dim, kv_heads * head_dim, bias)
        self.out_proj = nn.Linear(heads * head_dim, dim, bias)
        self.score = SCORES[score](head_dim, head_dim, heads, kv_heads)
        self.q_norm = nn.RMSNorm(head_dim) if qk_norm else None
        self.k_norm = nn.RMSNorm(head_dim) if qk_norm else None
        self.rotary = rotary
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if bias:
                nn.init.zeros_(projection.bias)

    @property
    def output_weight(self) -> Float[Tensor, "W HE"]:
        weight: Tensor = self.out_proj.weight
        return weight

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        window: Window | None = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """Attend from x (B, N, width) to the source (B, M, source_width), or to x itself: (B, N, width).

        The mask is (B, N, M) or (B, heads, N, M), True = may attend; the bias broadcasts to (B, heads, N, M).
        """
        if source is not None and self.rotary is not None:
            raise InvalidArgument(
                "source",
                wanted="none: rotary positions compare places in one and the same sequence",
                got=f"a second sequence of shape {tuple(source.shape)}",
                remedy="Leave rotary=None for cross-attention.",
            )
        if source is not None:
            return self.read(x, self.remember(source), mask=mask, causal=causal, window=window, bias=bias)
        self._check_input("x", x, self.dim)
        query, key, value = _together(x, self.q_proj, self.k_proj, self.v_proj)
        memory = self._known(key, value)
        return self._look(query, memory, mask=mask, causal=causal, window=window, bias=bias)

    def packed(
        self, x: Tensor, packing: Packing, *, mask: Tensor | None, causal: bool = False, bias: Bias | None = None
    ) -> Tensor:
        """Self-attention of a packed batch (positions, width), equal to `forward` of the padded one."""
        query, key, value = _together(x, self.q_proj, self.k_proj, self.v_proj, packing=packing)
        memory = self._known(key, value)
        return self._look(query, memory, mask=mask, causal=causal, bias=bias, packing=packing)

    def forward_packed(
        self,
        x: Tensor,
        ends: SequenceOffsets,
        source: Tensor | None = None,
        around: SequenceOffsets | None = None,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Self-attention of sequences laid end to end (positions, width); or attention to others that are."""
        score_function = self.score.score_function(self.head_dim)
        assert isinstance(score_function, DotScoreFunction)
        dropout = self.dropout if self.training else 0.0
        kind = varlen.HeadLayout(self.heads, self.kv_heads, self.head_dim, score_function.scale, causal, dropout)
        if source is None and self._as_they_are:
            asked, known = _projected(x, self.q_proj, self.k_proj, self.v_proj), None
        else:
            asked, known = self._turned(x, x if source is None else source, ends.positions)
        seen = varlen.attend(asked, known, kind, ends, ends if around is None else around)
        return product(seen, self.out_proj.weight, self.out_proj.bias)

    @property
    def _as_they_are(self) -> bool:
        """Whether queries and keys meet as they were projected."""
        return self.rotary is None and self.q_norm is None and type(self.score) in (Dot, ScaledDot)

    def _turned(self, x: Tensor, source: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Queries of one, keys and values of the other, side by side."""
        if self._as_they_are:
            return _projected(x, self.q_proj), _projected(source, self.k_proj, self.v_proj)
        query, (key, value) = self.q_proj(x), _together(source, self.k_proj, self.v_proj)
        query, key = _split(query[None], self.heads), _split(key[None], self.kv_heads)  # (1, H, N, D)
        query, key = _normalised(query, self.q_norm), _normalised(key, self.k_norm)
        if self.rotary is not None:
            query, key = self.rotary(query, places), self.rotary(key, places)
        query, key = (x.transpose(1, 2).flatten(2)[0] for x in (self.score.queries(query), self.score.keys(key)))
        return query, torch.cat((key, value), -1)

    def step(
        self,
        x: Tensor,
        cache: KeyValueCache,
        *,
        window: Window | None = None,
        bias: Bias | None = None,
        visible: Tensor | None = None,
        position: int | Int[Tensor, " B"] | None = None,
    ) -> Tensor:
        """Causal self-attention of the next N positions, usually one, adding them to the cache.

        Or, where `visible` (B, N, cached + N) says which of all positions each may see, of N that stand at the same
        `position`, of all sequences or of each: hypotheses for one and the same place.
        """
        before = cache.length
        places = _places(before, x.shape[1], position, x.device) if self.rotary is not None else None
        cache.append(self._remember(x, places))
        try:
            self._check_input("x", x, self.dim)
            causal = visible is None
            return self._look(
                self.q_proj(x), cache.filled, mask=visible, causal=causal, window=window, bias=bias, places=places
            )
        except BaseException:
            cache.length = before  # nothing is lost: the step can be asked for again
            raise

    def start(self, x: Tensor, capacity: int) -> KeyValueCache:
        """An empty cache for a batch such as x, with room for `capacity` positions."""
        return KeyValueCache(self.remember(x[:, :0]), capacity)

    def remember(self, source: Tensor, packing: Packing | None = None) -> KeyValue:
        """The keys and values of a source (B, M, source_width), projected once for any number of reads.

        With a packing, the source is packed (positions, source_width).
        """
        if packing is None:
            self._check_input("source", source, self.source_dim)
        key, value = _together(source, self.k_proj, self.v_proj, packing=packing)
        return self._known(key, value)

    def _remember(self, source: Tensor, places: Tensor | None) -> KeyValue:
        self._check_input("source", source, self.source_dim)
        return self._known(self.k_proj(source), self.v_proj(source), places)

    def _known(self, key: Tensor, value: Tensor, places: Tensor | None = None) -> KeyValue:
        key = _normalised(_split(key, self.kv_heads), self.k_norm)  # (B, G, M, D)
        if self.rotary is not None:
            key = self.rotary(key, _places(0, key.shape[2], None, key.device) if places is None else places)
        return KeyValue(self.score.keys(key), _split(value, self.kv_heads))

    def read(
        self,
        x: Tensor,
        memory: KeyValue,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        window: Window | None = None,
        bias: Bias | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Attend from x to what is remembered, the last query standing at the last key.

        With a packing, x is packed (positions, width), and so is what comes out.
        """
        if packing is None:
            self._check_input("x", x, self.dim)
            query = self.q_proj(x)
        else:
            query = packing.unpack(self.q_proj(x))
        return self._look(query, memory, mask=mask, causal=causal, window=window, bias=bias, packing=packing)

    def _look(
        self,
        query: Tensor,
        memory: KeyValue,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        window: Window | None = None,
        bias: Bias | None = None,
        packing: Packing | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        batch, n, m = query.shape[0], query.shape[1], memory.key.shape[2]
        wanted = (batch, self.kv_heads, m)
        if not memory.key.shape[:3] == memory.value.shape[:3] == wanted or memory.value.shape[3] != self.head_dim:
            raise InvalidArgument(
                "memory",
                wanted=f"keys and values of (batch, heads, positions) {wanted}, from this layer's remember",
                got=f"{tuple(memory.key.shape)} and {tuple(memory.value.shape)}",
                remedy="Queries and source are one batch: repeat or reorder what is remembered to match.",
            )
        query = _normalised(_split(query, self.heads), self.q_norm)  # (B, H, N, D)
        if self.rotary is not None:
            query = self.rotary(query, _places(m - n, n, None, query.device) if places is None else places)
        shape = (batch, self.heads, n, m)
        if mask is not None:
            mask = _head_axis(mask)
            check_mask(mask, shape, query.device)
        query = self.score.queries(query)
        spec = AttentionSpec(
            score_function=self.score.score_function(query.shape[-1]),
            query=query,
            key=memory.key,
            visible=visibility(mask, causal, window),
            bias=None if bias is None else fold_bias(bias, shape, query, shape[:2]),
        )
        dropout = self.dropout if self.training else 0.0
        heads = attend_spec(spec, memory.value, dropout, self, shape[:2])  # (B, H, N, D)
        joined = heads.transpose(1, 2).flatten(2)  # (B, N, H · D)
        return product(joined if packing is None else packing.pack(joined), self.out_proj.weight, self.out_proj.bias)

    def _check_input(self, argument: str, x: Tensor, dim: int) -> None:
        mine = self.out_proj.weight
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != dim:
            raise InvalidArgument(
                argument,
                wanted=f"(batch, positions, {dim})",
                got=f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x),
                remedy="Batch comes first; a single sequence goes in as x[None].",
            )
        if x.device != mine.device or (x.dtype != mine.dtype and not torch.is_autocast_enabled(x.device.type)):
            raise InvalidArgument(
                argument,
                wanted=f"{mine.dtype} on {mine.device}, as the layer",
                got=f"{x.dtype} on {x.device}",
                remedy="Convert one to the other, or run under torch.autocast.",
            )

    def extra_repr(self) -> str:
        grouped = "" if self.kv_heads == self.heads else f", key_heads={self.kv_heads}"
        return f"width={self.dim}, heads={self.heads}{grouped}, head_width={self.head_dim}"


def _together(x: Tensor, *projections: nn.Linear, packing: Packing | None = None) -> tuple[Tensor, ...]:
    """Several projections of one input as one product, unpacked where the input is packed."""
    dims, projected = [projection.out_features for projection in projections], _projected(x, *projections)
    return torch.split(projected if packing is None else packing.unpack(projected), dims, -1)


def _projected(x: Tensor, *projections: nn.Linear) -> Tensor:
    """Side by side."""
    if len(projections) == 1:
        return product(x, projections[0].weight, projections[0].bias)
    weight = torch.cat([projection.weight for projection in projections])
    biased = projections[0].bias is not None
    return product(x, weight, torch.cat([projection.bias for projection in projections]) if biased else None)


def _places(
    start: int, count: int, shared: int | Int[Tensor, " B"] | None, device: torch.device
) -> Int[Tensor, "*each_of_B_in_all_heads S"]:
    if isinstance(shared, Tensor):
        return shared[:, None, None].expand(-1, 1, count)
    if shared is not None:
        return torch.full((count,), shared, device=device)
    return torch.arange(start, start + count, device=device)


def _split(x: Float[Tensor, "B N HD"], heads: int) -> Float[Tensor, "B H N D"]:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call, no-any-return]


def _normalised(x: Tensor, norm: nn.RMSNorm | None) -> Tensor:
    """In the norm's own precision, which under autocast is wider than the input's."""
    return x if norm is None else norm(x.to(norm.weight.dtype)).to(x.dtype)


def _head_axis(mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dim() == 4:
        return mask
    if mask.dim() == 3:
        return mask[:, None]
    raise InvalidArgument(
        "mask",
        wanted="(batch, queries, keys) or (batch, heads, queries, keys), any of them of size one",
        got=f"shape {tuple(mask.shape)}",
        remedy="A padding mask (batch, keys) goes in as mask[:, None]; one for all the batch as mask[None].",
    )


def _check(dim: int, heads: int, kv_heads: int, head_dim: int | None, score: str, dropout: float) -> None:
    if min(dim, heads, kv_heads, 1 if head_dim is None else head_dim) < 1:
        raise InvalidArgument(
            "width, heads, key_heads, head_width",
            wanted="numbers of at least 1",
            got=f"{dim}, {heads}, {kv_heads}, {head_dim}",
            remedy="One head is ordinary attention.",
        )
    if head_dim is None and dim % heads:
        divisors = [h for h in range(1, dim + 1) if dim % h == 0]
        raise InvalidArgument(
            "heads",
            wanted=f"a divisor of the width {dim}",
            got=str(heads),
            remedy=f"The nearest is {min(divisors, key=lambda h: abs(h - heads))}; or give head_width.",
        )
    if heads % kv_heads:
        raise InvalidArgument(
            "key_heads",
            wanted=f"a divisor of heads = {heads}",
            got=str(kv_heads),
            remedy="1 shares one head of keys and values among all queries; leave it out to share none.",
        )
    if not isinstance(score, str) or score not in SCORES:
        near = difflib.get_close_matches(str(score), SCORES, n=1, cutoff=0.0)[0]
        raise InvalidArgument(
            "score", wanted=f"one of {', '.join(SCORES)}", got=repr(score), remedy=f"Did you mean {near!r}?"
        )
    if not 0 <= dropout < 1:
        raise InvalidArgument(
            "dropout", wanted="a probability p, 0 ≤ p < 1", got=str(dropout), remedy="0.0 drops nothing."
        )
