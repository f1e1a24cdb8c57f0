"""Multi-head attention: several attention heads computed as one batch axis."""

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import Packing, SequenceOffsets
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.attention import varlen
from regard.kernels.attention.bias import Bias
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.attention.varlen import HeadLayout, PackedAttentionSpec
from regard.kernels.layers.linear import Linear, linear
from regard.model.attention import (
    Window,
    attend_packed,
    attend_spec,
    attention_mask,
    check_dropout,
    check_mask,
    fold_bias,
)
from regard.model.interfaces import AttentionModule
from regard.model.kv_cache import KeyValue, KeyValueCache
from regard.model.positions import Rotary
from regard.model.scores import SCORES, Dot, ScaledDot


class MultiHead(AttentionModule):
    """Multi-head attention (https://arxiv.org/abs/1706.03762), self- or cross-attention.

    dim          of the queries and of the output
    heads        number of query heads; must divide dim unless `head_dim` is given
    source_dim   of the keys' and values' input, for cross-attention; default dim
    kv_heads     heads of keys and values, each shared by heads / kv_heads query heads
                 (grouped-query attention)
    head_dim     dim of one head
    value_dim    dim of one head's values, where it is another than that of its queries and keys
    score        a name in `regard.SCORES`
    bias         whether the projections have a bias
    out_bias     whether the output projection has one; default as `bias`
    dropout      probability of dropping an attention weight in training
    qk_norm      RMS norm of queries and keys, with a learned gain
                 (https://arxiv.org/abs/2010.04245)
    norm_eps     added to the mean square in that norm; default the smallest of the dtype
    rotary       rotary position embedding of queries and keys

    `forward` computes padded sequences and `forward_packed` packed ones. For decoding,
    `project_memory` computes keys and values once and `attend_memory` attends to them;
    `empty_cache` and `step` are self-attention with a cache.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        source_dim: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        score: str = "scaled_dot",
        bias: bool = True,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        qk_norm: bool = False,
        norm_eps: float | None = None,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        if kv_heads is None:
            kv_heads = heads
        _check(dim, heads, kv_heads, head_dim, value_dim, score, dropout)
        if head_dim is None:
            head_dim = dim // heads
        if value_dim is None:
            value_dim = head_dim
        if not SCORES[score].content_based and (rotary is not None or qk_norm):
            wanted = "a score that depends on queries and keys, for rotary or qk_norm"
            got = f"{score!r}, which depends on neither"
            raise InvalidArgument(
                "score", wanted=wanted, got=got, remedy="Leave out rotary and qk_norm."
            )
        if rotary is not None and rotary.dim != head_dim:
            wanted = f"positions for heads of dim {head_dim}"
            got = f"Rotary({rotary.dim})"
            raise InvalidArgument(
                "rotary", wanted=wanted, got=got, remedy=f"Use Rotary({head_dim})."
            )
        if source_dim is None:
            source_dim = dim
        self.dim = dim
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.source_dim = source_dim
        self.dropout = dropout
        self.q_proj = nn.Linear(dim, heads * head_dim, bias)
        self.k_proj = nn.Linear(source_dim, kv_heads * head_dim, bias)
        self.v_proj = nn.Linear(source_dim, kv_heads * value_dim, bias)
        if out_bias is None:
            out_bias = bias
        self.out_proj = nn.Linear(heads * value_dim, dim, out_bias)
        self.score = SCORES[score].build(head_dim, head_dim, heads, kv_heads)
        self.q_norm = nn.RMSNorm(head_dim, norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(head_dim, norm_eps) if qk_norm else None
        self.rotary = rotary
        self.linear: Linear = linear
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    @property
    def output_weight(self) -> Float[Tensor, "W HE"]:
        """The weight (dim, heads × value_dim) of the output projection."""
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
        packing: Packing | None = None,
    ) -> Tensor:
        """Attend from x (B, N, dim) to the source (B, M, source_dim), or to x itself: (B, N, dim).

        mask      (B, N, M) or (B, heads, N, M), True = may attend
        causal, window, bias   as in `regard.attend`; the bias broadcasts to (B, heads, N, M)
        packing   x and the output hold the tokens of a padded batch only, (tokens, dim)
        """
        if packing is None:
            self._check_input("x", x, self.dim)
        if source is None:
            query, key, value = self._project(
                x, self.q_proj, self.k_proj, self.v_proj, packing=packing
            )
            memory = self._key_value(key, value)
        elif self.rotary is None:
            query = self._query(x, packing)
            memory = self.project_memory(source)
        else:
            wanted = "none: rotary positions are distances within one sequence"
            got = f"a second sequence of shape {tuple(source.shape)}"
            raise InvalidArgument(
                "source", wanted=wanted, got=got, remedy="Leave rotary=None for cross-attention."
            )
        return self._attend(query, memory, mask, causal, window, bias, packing=packing)

    def forward_packed(
        self,
        x: Float[Tensor, "N W"],
        offsets: SequenceOffsets,
        source: Float[Tensor, "M V"] | None = None,
        source_offsets: SequenceOffsets | None = None,
        *,
        causal: bool = False,
        window: int | None = None,
    ) -> Float[Tensor, "N W"]:
        """Self-attention within packed sequences,
        or attention to the source sequence of the same index.

        x, offsets               (tokens, dim) of all sequences, and where each begins
        source, source_offsets   (source tokens, source_dim), likewise; None: self-attention
        causal                   mask keys after the query's position
        window                   attend to so many keys before the query's position

        For scores that declare `packable`, and values of the keys' dim.
        """
        if self.value_dim != self.head_dim:
            raise InvalidArgument(
                "value_dim",
                wanted=f"the head_dim, {self.head_dim}, for packed sequences",
                got=str(self.value_dim),
                remedy="Use padded sequences.",
            )
        score_function = self.score.score_function(self.head_dim)
        if not (self.score.packable and varlen.supports(score_function)):
            wanted = "a score that declares packable, for packed sequences"
            remedy = "Use padded sequences, or 'dot', 'scaled_dot' or 'bilinear'."
            raise InvalidArgument(
                "score", wanted=wanted, got=type(self.score).__name__, remedy=remedy
            )
        assert isinstance(score_function, DotScoreFunction)
        dropout = self.dropout if self.training else 0.0
        # Kernels have no window where it holds every position.
        if window is not None and window >= offsets.max_length - 1:
            window = None
        layout = HeadLayout(
            self.heads, self.kv_heads, self.head_dim, score_function.scale, causal, dropout, window
        )
        if source is None:
            source = x
        if self.rotary is None and self.q_norm is None and type(self.score) in (Dot, ScaledDot):
            # Self-attention computes queries, keys and values in one product.
            joined = x is source
            projections = [self.q_proj]
            if joined:
                projections += [self.k_proj, self.v_proj]
            query = self._fused_product(x, *projections)
            kv = None if joined else self._fused_product(source, self.k_proj, self.v_proj)
        else:
            query, kv = self._packed_query_kv(x, source, offsets.positions)
        if source_offsets is None:
            source_offsets = offsets
        spec = PackedAttentionSpec(layout, query, kv, offsets, source_offsets)
        return self.linear(attend_packed(spec, self), self.out_proj.weight, self.out_proj.bias)

    def _packed_query_kv(
        self, x: Tensor, source: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Queries (N, H · D), and keys and values side by side (M, 2 · G · D), after norm,
        rotation and score.
        """
        query = self._fused_product(x, self.q_proj)
        key, value = self._project(source, self.k_proj, self.v_proj)
        query = _split(query[None], self.heads)  # (1, H, N, D)
        key = _split(key[None], self.kv_heads)  # (1, G, M, D)
        query = _normalized(query, self.q_norm)
        key = _normalized(key, self.k_norm)
        if self.rotary is not None:
            query = self.rotary(query, positions)
            key = self.rotary(key, positions)
        query, key = (
            x.transpose(1, 2).flatten(2)[0]
            for x in (self.score.queries(query), self.score.keys(key))
        )
        return query, torch.cat((key, value), -1)

    def project_memory(self, source: Tensor, packing: Packing | None = None) -> KeyValue:
        """The keys and values of a source (B, M, source_dim),
        or with a packing of its tokens (tokens, source_dim).
        """
        if packing is None:
            self._check_input("source", source, self.source_dim)
        return self._key_value(*self._project(source, self.k_proj, self.v_proj, packing=packing))

    def attend_memory(
        self,
        x: Tensor,
        memory: KeyValue,
        *,
        mask: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Attend from x (B, N, dim) to keys and values that `project_memory` computed.

        memory          projected keys and values
        mask, packing   as of `forward`
        """
        if packing is None:
            self._check_input("x", x, self.dim)
        return self._attend(self._query(x, packing), memory, mask, packing=packing)

    def empty_cache(self, x: Tensor, capacity: int) -> KeyValueCache:
        """An empty cache for the batch,
        dtype and device of x (B, N, dim) and `capacity` positions.
        """
        return KeyValueCache(self.project_memory(x[:, :0]), capacity)

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
        """Causal self-attention of the next N positions, usually one,
        which are appended to the cache.

        x          (B, N, dim), the new positions
        cache      keys and values of the positions before them
        window, bias   as of `forward`
        position   of the first new one, of all sequences or of each; default: the number of cached
                   ones
        visible    (B, N, cached + N), for N hypotheses at one `position`: what each attends to,
                   instead of causality
        """
        length = cache.length
        positions = None
        if (
            self.rotary is not None
            and visible is None
            and (position is None or isinstance(position, int))
        ):
            start = length if position is None else position
            positions = _positions(start, x.shape[1], None, x.device)
        elif self.rotary is not None:
            positions = _positions(length, x.shape[1], position, x.device)
        self._check_input("source", x, self.source_dim)
        cache.append(self._key_value(self.k_proj(x), self.v_proj(x), positions))
        try:
            self._check_input("x", x, self.dim)
            causal = visible is None
            return self._attend(
                self.q_proj(x), cache.filled, visible, causal, window, bias, positions=positions
            )
        except BaseException:
            cache.length = length  # the step can be repeated
            raise

    def _query(self, x: Tensor, packing: Packing | None) -> Tensor:
        """Projected queries (B, N, H · D)."""
        query = self._fused_product(x, self.q_proj)
        if packing is None:
            return query
        return packing.unpack(query)

    def _key_value(self, key: Tensor, value: Tensor, positions: Tensor | None = None) -> KeyValue:
        """Keys and values by head from their projections (B, M, G · D) and (B, M, G · E).

        Positions count from 0 by default.
        """
        key = _normalized(_split(key, self.kv_heads), self.k_norm)  # (B, G, M, D)
        if self.rotary is not None:
            if positions is None:
                positions = _positions(0, key.shape[2], None, key.device)
            key = self.rotary(key, positions)
        return KeyValue(self.score.keys(key), _split(value, self.kv_heads))

    def _attend(
        self,
        query: Tensor,
        memory: KeyValue,
        mask: Tensor | None,
        causal: bool = False,
        window: Window | None = None,
        bias: Bias | None = None,
        *,
        packing: Packing | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attention of projected queries (B, N, H · D) and the output projection:
        the path of all padded entries.
        """
        batch = query.shape[0]
        n = query.shape[1]
        m = memory.key.shape[2]
        expected = (batch, self.kv_heads, m)
        if (
            not memory.key.shape[:3] == memory.value.shape[:3] == expected
            or memory.value.shape[3] != self.value_dim
        ):
            wanted = (
                f"keys and values of (batch, heads, positions) {expected}, "
                "from this layer's project_memory"
            )
            got = f"{tuple(memory.key.shape)} and {tuple(memory.value.shape)}"
            remedy = "Queries and source are one batch: repeat or reorder the memory to match."
            raise InvalidArgument("memory", wanted=wanted, got=got, remedy=remedy)
        query = _normalized(_split(query, self.heads), self.q_norm)  # (B, H, N, D)
        if self.rotary is not None:
            if positions is None:
                positions = _positions(m - n, n, None, query.device)
            query = self.rotary(query, positions)
        shape = (batch, self.heads, n, m)
        if mask is not None:
            mask = _head_axis(mask)
            check_mask(mask, shape, query.device)
        query = self.score.queries(query)
        score_function = self.score.score_function(query.shape[-1])
        visible = attention_mask(mask, causal, window)
        if bias is not None:
            bias = fold_bias(bias, shape, query, shape[:2])
        spec = AttentionSpec(score_function, query, memory.key, visible, bias)
        dropout = self.dropout if self.training else 0.0
        heads = attend_spec(spec, memory.value, dropout, self, shape[:2])  # (B, H, N, E)
        joined = heads.transpose(1, 2).flatten(2)  # (B, N, H · E)
        if packing is not None:
            joined = packing.pack(joined)
        return self.linear(joined, self.out_proj.weight, self.out_proj.bias)

    def _project(
        self, x: Tensor, *projections: nn.Linear, packing: Packing | None = None
    ) -> tuple[Tensor, ...]:
        """Several projections of one input, computed as one product;
        padded where the input is packed.
        """
        projected = self._fused_product(x, *projections)
        dims = [projection.out_features for projection in projections]
        if packing is not None:
            projected = packing.unpack(projected)
        return torch.split(projected, dims, -1)

    def _fused_product(self, x: Tensor, *projections: nn.Linear) -> Tensor:
        """Several projections of one input side by side."""
        if len(projections) == 1:
            return self.linear(x, projections[0].weight, projections[0].bias)
        weight = _joined([projection.weight for projection in projections])
        biased = projections[0].bias is not None
        bias = None
        if biased:
            bias = _joined([projection.bias for projection in projections])
        return self.linear(x, weight, bias)

    def _check_input(self, argument: str, x: Tensor, dim: int) -> None:
        weight = self.out_proj.weight
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != dim:
            got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
            remedy = "Batch comes first; a single sequence goes in as x[None]."
            raise InvalidArgument(
                argument, wanted=f"(batch, positions, {dim})", got=got, remedy=remedy
            )
        if x.device != weight.device or (
            x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type)
        ):
            wanted = f"{weight.dtype} on {weight.device}, as the layer"
            remedy = "Convert one to the other, or run under torch.autocast."
            raise InvalidArgument(
                argument, wanted=wanted, got=f"{x.dtype} on {x.device}", remedy=remedy
            )

    def extra_repr(self) -> str:
        grouped = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        values = "" if self.value_dim == self.head_dim else f", value_dim={self.value_dim}"
        return f"dim={self.dim}, heads={self.heads}{grouped}, head_dim={self.head_dim}{values}"


def _positions(
    start: int, count: int, shared: int | Int[Tensor, " B"] | None, device: torch.device
) -> Int[Tensor, "*batch_and_heads S"]:
    """Positions start, start + 1, …; or one position `shared` by all,
    or by those of each sequence (B, 1, count).
    """
    if isinstance(shared, Tensor):
        return shared[:, None, None].expand(-1, 1, count)
    if shared is not None:
        return torch.full((count,), shared, device=device)
    return torch.arange(start, start + count, device=device)


def _joined(parts: list[Tensor]) -> Tensor:
    """Weights side by side; without a copy where they are parts of one tensor in this order,
    and are not trained.
    """
    first = parts[0]
    rows = sum(map(len, parts))
    # Only a plain parameter has memory that can be asked for.
    plain = type(first) is nn.Parameter and not torch.compiler.is_compiling()
    if plain and not first.requires_grad and first.is_contiguous():
        offset = first.storage_offset()
        storage = first.untyped_storage().data_ptr()
        for x in parts:
            if (
                x.requires_grad
                or x.storage_offset() != offset
                or x.untyped_storage().data_ptr() != storage
            ):
                break
            offset += x.numel()
        else:
            return first.as_strided((rows, *first.shape[1:]), first.stride())
    return torch.cat(parts)


def _split(x: Float[Tensor, "B N HD"], heads: int) -> Float[Tensor, "B H N D"]:
    by_head: Tensor = x.unflatten(2, (heads, -1))  # type: ignore[no-untyped-call]
    return by_head.transpose(1, 2)


def _normalized(x: Tensor, norm: nn.RMSNorm | None) -> Tensor:
    """The norm in its own dtype, which under autocast is wider than the input's."""
    if norm is None:
        return x
    normed: Tensor = norm(x.to(norm.weight.dtype))
    return normed.to(x.dtype)


def _head_axis(mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dim() == 4:
        return mask
    if mask.dim() == 3:
        return mask[:, None]
    wanted = "(batch, queries, keys) or (batch, heads, queries, keys), any of them of size one"
    remedy = (
        "A padding mask (batch, keys) goes in as mask[:, None]; "
        "one for all the batch as mask[None]."
    )
    raise InvalidArgument("mask", wanted=wanted, got=f"shape {tuple(mask.shape)}", remedy=remedy)


def _check(
    dim: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None,
    value_dim: int | None,
    score: str,
    dropout: float,
) -> None:
    sizes = (dim, heads, kv_heads, head_dim, value_dim)
    if any(size is not None and size < 1 for size in sizes):
        raise InvalidArgument(
            "dim, heads, kv_heads, head_dim, value_dim",
            wanted="numbers of at least 1",
            got=", ".join(map(str, sizes)),
            remedy="One head is ordinary attention.",
        )
    if head_dim is None and dim % heads:
        divisors = [h for h in range(1, dim + 1) if dim % h == 0]
        remedy = f"The nearest is {min(divisors, key=lambda h: abs(h - heads))}; or give head_dim."
        raise InvalidArgument(
            "heads", wanted=f"a divisor of the dim {dim}", got=str(heads), remedy=remedy
        )
    if heads % kv_heads:
        remedy = (
            "1 shares one head of keys and values among all queries; leave it out to share none."
        )
        raise InvalidArgument(
            "kv_heads", wanted=f"a divisor of heads = {heads}", got=str(kv_heads), remedy=remedy
        )
    SCORES[score]  # refuses an unknown name
    check_dropout(dropout)
