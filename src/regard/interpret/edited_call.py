"""An attention call under edits, which hide keys, give the weights of rows, and scale the output of heads."""

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

# The weights of a row, and where the output is computed from them.
PaintedRow = tuple[Float[Tensor, "B H M"], Bool[Tensor, "B H"]]


@dataclass
class EditedCall:
    """One attention call, to which edits are applied in order; `result` computes its output with all of them.

    Rows and heads that are not edited keep every bit, as long as no key is hidden.

    computed   what the call computes without edits
    position   of the queries, where they are hypotheses at one position; None: queries are rows 0, 1, ...
    spans      if the keys come from several sources: how many keys each source has in each sequence; else empty
    """

    computed: AttentionResult
    site: AttentionSite
    position: QueryPosition | None = None
    spans: Sequence[Int[Tensor, " B"]] = ()
    spec: AttentionSpec = field(init=False)
    factors: dict[int, float] = field(default_factory=dict)  # of heads
    painted: dict[int, PaintedRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec = self.computed.spec

    @property
    def heads(self) -> int:
        return self.spec.query.shape[1]

    def scale(self, head: int | None, factor: float) -> None:
        """Multiply the output of a head, or of all heads; factors of several edits multiply."""
        chosen = range(self.heads) if head is None else (head,)
        for each in chosen:
            self.factors[each] = self.factors.get(each, 1.0) * factor

    def hide(self, source: int, token: int, where: str) -> None:
        """Let no row attend to a token of a source.

        The other weights of a painted row are scaled so that their sum stays what it was.
        """
        hidden = self._key(source, token, where)  # (B or 1, 1, 1, M)
        if not bool(hidden.any()):
            wanted = "a token of the source"
            remedy = "They count from 0."
            raise InvalidArgument(f"{where}.token", wanted=wanted, got=str(token), remedy=remedy)
        visible = self.spec.visible
        allowed = ~hidden
        if visible.allowed is not None:
            allowed = visible.allowed & ~hidden
        mask = AttentionMask(allowed, visible.behind, visible.ahead)
        self.spec = replace(self.spec, visible=mask)
        for row, (weights, chosen) in self.painted.items():
            rest = weights.masked_fill(hidden[:, :, 0], 0.0)  # (B, H, M)
            total = weights.sum(-1, keepdim=True)  # (B, H, 1)
            self.painted[row] = (_scaled_to(rest, total), chosen)

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
        """Give weights to keys in a row, as `PaintRow` describes. Return whether the call has the row.

        source   the source of these keys; None: keys are counted over all sources
        """
        batch = self.spec.query.shape[0]
        device = self.spec.query.device
        if self.position is None:
            # Queries are rows of one sequence.
            position: int | Tensor = row
            rows = [row]
            has_row = row < self.spec.n
        else:
            # Queries are hypotheses at one position, which may be the edited row.
            position = self.position
            rows = list(range(self.spec.n))
            has_row = True
        at = torch.as_tensor(position, device=device).expand(batch)  # (B,)
        here = at == row  # (B,)
        if not has_row or not bool(here.any()):
            return False
        heads = torch.ones(self.heads, dtype=torch.bool, device=device)
        if head is not None:
            heads = torch.arange(self.heads, device=device) == head
        chosen = here[:, None] & heads  # (B, H)
        for each in rows:
            weights, before = self._row(each)  # (B, H, M), (B, H)
            given = torch.zeros_like(weights)
            marked = torch.zeros_like(weights, dtype=torch.bool)
            for key, weight in given_weights.items():
                place = self._visible_key(each, source, key, at, where)  # (B, H or 1, M)
                if not bool((place & chosen[..., None]).any()):
                    wanted = f"keys that row {row} of {self.site.name} may attend to"
                    remedy = "Leave it out."
                    raise InvalidArgument(
                        f"{where}.keys", wanted=wanted, got=str(key), remedy=remedy
                    )
                given = given + place * weight
                marked = marked | place
            others = weights.masked_fill(marked, 0.0)  # (B, H, M)
            if renormalize:
                # The other keys share what the given weights leave of 1.
                left = (1 - given.sum(-1, keepdim=True)).clamp(min=0)  # (B, H, 1)
                others = _scaled_to(others, left)
                new = _scaled_to(given + others, torch.ones_like(given[..., :1]))
            else:
                new = given + others
            painted = torch.where(chosen[..., None], new, weights)
            self.painted[each] = (painted, before | chosen)
        return True

    def result(self) -> AttentionResult:
        """Compute the call with all edits."""
        _, value, out, lse = self.computed
        if self.spec is not self.computed.spec:
            # Keys were hidden: all rows are computed again.
            _, _, out, lse = attention_result(self.spec, value)
        spec = self.spec
        if self.painted:
            out = out.clone()  # (B, H, N, E)
            lse = lse.clone()  # (B, H, N)
            values = widened(repeat_heads(value, self.heads))  # (B, H, M, E)
            for row, (weights, chosen) in self.painted.items():
                product = weights.to(values.dtype)[:, :, None] @ values  # (B, H, 1, E)
                new = product[:, :, 0].to(out.dtype)  # (B, H, E)
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
        index = torch.tensor([row], device=self.spec.query.device)
        weights = exact.weights(self.spec, index)[:, :, 0]  # (B, H, M)
        not_painted = torch.zeros_like(weights[..., 0], dtype=torch.bool)  # (B, H)
        return weights, not_painted

    def _visible_key(
        self, row: int, source: int | None, key: int, at: Int[Tensor, " B"], where: str
    ) -> Bool[Tensor, "B _ M"]:
        """Where a key is among those that the row may attend to."""
        spec = self.spec
        batch = spec.query.shape[0]
        visible = torch.ones(1, 1, 1, spec.m, dtype=torch.bool, device=at.device)
        index = torch.tensor([row], device=at.device)
        tile = spec.visible.tile(index, 0, spec.m, spec.n, spec.m, at.device)
        if tile is not None:
            visible = visible & tile
        visible = visible[:, :, 0].expand(batch, -1, -1)  # (B, H or 1, M)
        if self.site.key_side == "output" and self.position is not None:
            # The cache of a beam holds keys of all hypotheses. Of the visible keys, the last is at the row's position.
            after = visible.flip(-1).cumsum(-1).flip(-1)  # visible keys from this one on
            position = at[:, None, None] + 1 - after  # (B, H or 1, M)
            return visible & (position == key)
        return visible & self._key(source, key, where)[:, :, 0]

    def _key(self, source: int | None, key: int, where: str) -> Bool[Tensor, "_ 1 1 M"]:
        """Mark the key of this number in each sequence, counted within a source or over all keys."""
        m = self.spec.m
        device = self.spec.query.device
        # An encoder has keys of its own source only.
        joined = () if self.site.part == "encoder" else self.spans
        if source is None or (not joined and source == self.site.source):
            return (torch.arange(m, device=device) == key)[None, None, None]
        if source >= len(joined):
            wanted = f"a source, from 0 to {max(0, len(joined) - 1)}"
            remedy = "Leave it out for the first."
            raise InvalidArgument(f"{where}.source", wanted=wanted, got=str(source), remedy=remedy)
        lengths = torch.stack([each.to(device) for each in joined])  # (sources, B)
        first = lengths[:source].sum(0)  # (B,)
        inside = key < lengths[source]  # (B,)
        place = torch.arange(m, device=device) == (first + key)[:, None]  # (B, M)
        marked = place & inside[:, None]
        return marked[:, None, None]


def scaled(out: Float[Tensor, "B H N E"], factors: dict[int, float]) -> Float[Tensor, "B H N E"]:
    """Multiply the outputs of some heads by factors. A factor of 0 gives zeros even for outputs that are not finite."""
    if not factors:
        return out
    out = out.clone()
    for head, factor in factors.items():
        if factor:
            out[:, head] = out[:, head] * factor
        else:
            out[:, head] = 0.0
    return out


def _scaled_to(
    weights: Float[Tensor, "B H M"], total: Float[Tensor, "B H 1"]
) -> Float[Tensor, "B H M"]:
    """Scale weights to a sum; zeros stay."""
    own = weights.sum(-1, keepdim=True)  # (B, H, 1)
    factors = (total / own).where(own > 0, 0.0)
    return weights * factors
