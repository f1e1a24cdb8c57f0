"""An attention call under edits: keys that are hidden, rows whose weights are given, heads whose output is scaled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.interpret.sites import AttentionSite
from regard.kernels.attention import weights as exact
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.spec import AttentionSpec, FixedRows, repeat_heads, widened
from regard.model.attention import attention_result
from regard.model.capture import AttentionResult, QueryPosition


@dataclass
class EditedCall:
    """One attention call, to which edits are applied in order; `result` computes what comes of them.

    Rows and heads that are not edited keep every bit, as long as no key is hidden.

    computed   what the call computes without edits
    position   of the queries, where they are hypotheses at one position; None: queries are rows 0, 1, ...
    spans      of several sources side by side, how many keys of each sequence each has; else empty
    """

    computed: AttentionResult
    site: AttentionSite
    position: QueryPosition | None = None
    spans: Sequence[Int[Tensor, " B"]] = ()
    spec: AttentionSpec = field(init=False)
    factors: dict[int, float] = field(default_factory=dict)  # of heads
    # Of each painted row: its weights, and where the output is computed from them.
    painted: dict[int, tuple[Float[Tensor, "B H M"], Bool[Tensor, "B H"]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.spec = self.computed.spec

    @property
    def heads(self) -> int:
        return self.spec.query.shape[1]

    def scale(self, head: int | None, factor: float) -> None:
        """Multiply the output of a head, or of all heads; factors of several edits multiply."""
        for each in range(self.heads) if head is None else (head,):
            self.factors[each] = self.factors.get(each, 1.0) * factor

    def hide(self, source: int, token: int, where: str) -> None:
        """No row attends to a token of a source; the other weights of a painted row are scaled to their sum before."""
        hidden = self._key(source, token, where)  # (B or 1, 1, 1, M)
        if not bool(hidden.any()):
            wanted, remedy = "a token of the source", "They count from 0."
            raise InvalidArgument(f"{where}.token", wanted=wanted, got=str(token), remedy=remedy)
        allowed = (
            ~hidden if self.spec.visible.allowed is None else self.spec.visible.allowed & ~hidden
        )
        visible = self.spec.visible
        self.spec = replace(
            self.spec, visible=AttentionMask(allowed, visible.behind, visible.ahead)
        )
        for row, (weights, chosen) in self.painted.items():
            rest = weights.masked_fill(hidden[:, :, 0], 0.0)
            self.painted[row] = _scaled_to(rest, weights.sum(-1, keepdim=True)), chosen

    def paint(
        self,
        head: int | None,
        row: int,
        given_weights: Mapping[int, float],
        where: str,
        *,
        source: int | None,
        renormalize: bool,
    ) -> bool:
        """Give weights to keys in a row, as `PaintRow` describes; whether the call has the row.

        source   whose keys they are; None: keys count over those of all sources
        """
        batch = self.spec.query.shape[0]
        position = row if self.position is None else self.position
        at = torch.as_tensor(position, device=self.spec.query.device).expand(batch)
        rows = [row] if self.position is None else list(range(self.spec.n))
        here = at == row  # (B,)
        if (self.position is None and row >= self.spec.n) or not bool(here.any()):
            return False
        heads = torch.ones(self.heads, dtype=torch.bool, device=at.device)
        if head is not None:
            heads = torch.arange(self.heads, device=at.device) == head
        chosen = here[:, None] & heads
        for each in rows:
            weights, before = self._row(each)
            given, marked = torch.zeros_like(weights), torch.zeros_like(weights, dtype=torch.bool)
            for key, weight in given_weights.items():
                place = self._visible_key(each, source, key, at, where)  # (B, H or 1, M)
                if not bool((place & chosen[..., None]).any()):
                    wanted, remedy = (
                        f"keys that row {row} of {self.site.name} may attend to",
                        "Leave it out.",
                    )
                    raise InvalidArgument(
                        f"{where}.keys", wanted=wanted, got=str(key), remedy=remedy
                    )
                given, marked = given + place * weight, marked | place
            others = weights.masked_fill(marked, 0.0)
            if renormalize:
                others = _scaled_to(others, (1 - given.sum(-1, keepdim=True)).clamp(min=0))
                new = _scaled_to(given + others, torch.ones_like(given[..., :1]))
            else:
                new = given + others
            self.painted[each] = torch.where(chosen[..., None], new, weights), before | chosen
        return True

    def result(self) -> AttentionResult:
        """The call with all edits."""
        _, value, out, lse = computed = self.computed
        if self.spec is not computed.spec:
            _, _, out, lse = attention_result(self.spec, value)
        spec = self.spec
        if self.painted:
            out, lse, values = out.clone(), lse.clone(), widened(repeat_heads(value, self.heads))
            for row, (weights, chosen) in self.painted.items():
                new = (weights.to(values.dtype)[:, :, None] @ values)[:, :, 0].to(
                    out.dtype
                )  # (B, H, E)
                out[:, :, row] = torch.where(chosen[..., None], new, out[:, :, row])
                lse[:, :, row] = 0.0
            rows = torch.tensor([*self.painted], device=out.device)
            fixed = torch.stack([weights for weights, _ in self.painted.values()], 2)
            spec = replace(spec, fixed=FixedRows(rows, fixed))
        return AttentionResult(spec, value, scaled(out, self.factors), lse)

    def _row(self, row: int) -> tuple[Float[Tensor, "B H M"], Bool[Tensor, "B H"]]:
        """The weights of a row after the edits so far, and where they are painted."""
        if row in self.painted:
            return self.painted[row]
        weights = exact.weights(self.spec, torch.tensor([row], device=self.spec.query.device))[
            :, :, 0
        ]
        return weights, torch.zeros_like(weights[..., 0], dtype=torch.bool)

    def _visible_key(
        self, row: int, source: int | None, key: int, at: Int[Tensor, " B"], where: str
    ) -> Bool[Tensor, "B _ M"]:
        """Where a key is among those that the row may attend to."""
        spec, batch = self.spec, self.spec.query.shape[0]
        every = torch.ones(1, 1, 1, spec.m, dtype=torch.bool, device=at.device)
        tile = spec.visible.tile(
            torch.tensor([row], device=at.device), 0, spec.m, spec.n, spec.m, at.device
        )
        visible = (every if tile is None else every & tile)[:, :, 0].expand(
            batch, -1, -1
        )  # (B, H or 1, M)
        if self.site.key_side == "output" and self.position is not None:
            # The cache of a beam holds keys of all hypotheses: of the visible ones, the last is at the row's position.
            after = visible.flip(-1).cumsum(-1).flip(-1)  # visible keys from this one on
            return visible & (at[:, None, None] + 1 - after == key)
        return visible & self._key(source, key, where)[:, :, 0]

    def _key(self, source: int | None, key: int, where: str) -> Bool[Tensor, "_ 1 1 M"]:
        """Which key of each sequence is this one, of a source or of all keys."""
        m, device = self.spec.m, self.spec.query.device
        joined = (
            self.spans if self.site.part != "encoder" else ()
        )  # an encoder has keys of its own source only
        if source is None or (not joined and source == self.site.source):
            return (torch.arange(m, device=device) == key)[None, None, None]
        if source >= len(joined):
            wanted, remedy = (
                f"a source, from 0 to {max(0, len(joined) - 1)}",
                "Leave it out for the first.",
            )
            raise InvalidArgument(f"{where}.source", wanted=wanted, got=str(source), remedy=remedy)
        lengths = torch.stack([each.to(device) for each in joined])  # (sources, B)
        first, inside = lengths[:source].sum(0), key < lengths[source]
        place = torch.arange(m, device=device) == (first + key)[:, None]  # (B, M)
        return (place & inside[:, None])[:, None, None]


def scaled(out: Float[Tensor, "B H N E"], factors: dict[int, float]) -> Float[Tensor, "B H N E"]:
    """Outputs with those of some heads multiplied by a factor; a factor of 0 gives zeros, whatever they are."""
    if not factors:
        return out
    out = out.clone()
    for head, factor in factors.items():
        out[:, head] = out[:, head] * factor if factor else 0.0
    return out


def _scaled_to(
    weights: Float[Tensor, "B H M"], total: Float[Tensor, "B H 1"]
) -> Float[Tensor, "B H M"]:
    """Weights scaled to a sum; zeros stay."""
    own = weights.sum(-1, keepdim=True)
    return weights * (total / own).where(own > 0, 0.0)
