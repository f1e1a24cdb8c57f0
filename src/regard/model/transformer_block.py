"""Transformer blocks: what encoders, decoders and grids of regions are stacked from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.core.config import Config, Count, Probability, Range
from regard.core.errors import Problem
from regard.core.sequence import Packing, SequenceOffsets
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels.attention.bias import Bias, DistanceBias
from regard.kernels.layers.dropout import Dropout
from regard.kernels.layers.linear import ACTIVATIONS, product
from regard.kernels.layers.residual_norm import PendingResidual, join
from regard.model.kv_cache import KeyValue, KeyValueCache
from regard.model.memory import Memory, PackedMemory
from regard.model.module_list import TypedModuleList
from regard.model.multihead import MultiHead
from regard.model.positions import Add, Alibi, Concatenate, Learned, RelativeBias, Rotary, Sinusoidal, Start
from regard.model.scores import ScoreName

PositionKind = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


@dataclass(frozen=True)
class TransformerConfig(Config):
    width: Count = 256
    layers: Count = 3
    heads: Count = 4
    hidden: Count = 1024  # width of the perceptron's hidden layer
    dropout: Probability = 0.1  # of what is embedded and of what each part of a block adds, as in the first paper
    weight_dropout: Probability = 0.0  # of attention weights
    hidden_dropout: Probability = 0.0  # within the perceptron
    norm: Literal["layer", "rms"] = "layer"
    norm_first: bool = True  # before each part (stable when deep), or after it as in the first paper
    norm_input: bool = False  # what is embedded, too
    epsilon: Annotated[float, Range(0.0)] = 1e-5  # added to the variance that a norm divides by
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"] = "relu"
    position: PositionKind = "sinusoidal"
    join: Literal["add", "concatenate"] = "add"  # sinusoidal or learned positions to what is embedded
    longest: Count = 512  # for learned positions
    score: ScoreName = "scaled_dot"
    key_heads: Count | None = None
    normalise: bool = False  # queries and keys
    causal: bool = False  # an encoder that sees no later token
    unit: bool = False  # encoders: a learned state put first, which may ask all others, for the pool `first`
    recompute: bool = False  # hold no activations of a block; compute them again in the backward

    def conflicts(self) -> Iterator[Problem]:
        if self.width % self.heads:
            yield Problem("heads", f"a divisor of width = {self.width}", str(self.heads), "Change one of the two.")
        elif self.position == "rotary" and self.width // self.heads % 2:
            yield Problem(
                "heads", "heads of even width for rotary positions", str(self.heads), "Change heads or width."
            )
        if self.position == "sinusoidal" and self.width % 2:
            yield Problem("width", "an even number for sinusoidal positions", str(self.width), "Change one of the two.")
        if self.key_heads is not None and self.heads % self.key_heads:
            yield Problem("key_heads", f"a divisor of heads = {self.heads}", str(self.key_heads), "1 always is one.")
        if self.score == "uniform" and (self.normalise or self.position == "rotary"):
            yield Problem("score", "a score that looks at queries and keys", "'uniform'", "Or drop what turns them.")
        if self.join == "concatenate" and self.position not in ("sinusoidal", "learned"):
            got = f"'concatenate' with position = {self.position!r}"
            yield Problem("join", "'add' unless positions are sinusoidal or learned", got, "Leave it out.")
        if self.unit and self.causal:
            yield Problem("unit", "false in a causal encoder", "true", "What stands first would see nothing.")


JOINS: dict[str, Callable[[Sinusoidal | Learned], nn.Module]] = {"add": Add, "concatenate": Concatenate}
NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class FeedForward(nn.Module):
    """The perceptron at every position."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gated = config.activation == "swiglu"
        self.kind = "silu" if self.gated else config.activation
        self.activation = ACTIVATIONS[self.kind]
        self.open = nn.Linear(config.width, config.hidden * (2 if self.gated else 1))
        self.close = nn.Linear(config.hidden, config.width)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, x: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead W"]:
        open_, close = self.open, self.close
        if self.gated:
            gate, hidden = product(x, open_.weight, open_.bias).chunk(2, -1)
            hidden = self.activation(gate) * hidden
        else:
            hidden = product(x, open_.weight, open_.bias, self.kind)
        return product(self.dropout(hidden), close.weight, close.bias)


class PreNorm(nn.Module):
    """x + part(norm(x)): the residual path is never normalised, so gradients pass any depth (https://arxiv.org/abs/2002.04745).

    What a part says is added where the next norm is taken.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm, self.dropout = _norm(config), Dropout(config.dropout)

    def forward(self, given: PendingResidual, part: Callable[[Tensor], Tensor]) -> PendingResidual:
        x, h = join(given, self.dropout, self.norm)
        return PendingResidual(x, part(h))

    def step(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        return self.dropout.onto(x, part(self.norm(x)))


class PostNorm(nn.Module):
    """norm(x + part(x)), as in https://arxiv.org/abs/1706.03762"""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm, self.dropout = _norm(config), Dropout(config.dropout)

    def forward(self, given: PendingResidual, part: Callable[[Tensor], Tensor]) -> PendingResidual:
        return PendingResidual(self.step(given.x, part))

    def step(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        return join(PendingResidual(x, part(x)), self.dropout, self.norm)[1]


class TransformerBlock(nn.Module):
    """Self-attention, attention to a memory where there is one, and the perceptron, each with its residual."""

    def __init__(self, config: TransformerConfig, memory_width: int | None = None) -> None:
        super().__init__()
        residual = PreNorm if config.norm_first else PostNorm
        make = partial(
            MultiHead,
            config.width,
            config.heads,
            key_heads=config.key_heads,
            score=config.score,
            dropout=config.weight_dropout,
            normalise=config.normalise,
        )
        self.attend = make(rotary=Rotary(config.width // config.heads) if config.position == "rotary" else None)
        self.around_attend = residual(config)
        if memory_width is not None:
            self.cross = make(source_width=memory_width)
            self.around_cross = residual(config)
        self.perceive = FeedForward(config)
        self.around_perceive = residual(config)

    def forward(
        self,
        given: PendingResidual,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        bias: DistanceBias | None = None,
        source: Float[Tensor, "*there D"] | None = None,
        around: Packing | None = None,
        memory_mask: Tensor | None = None,
        packing: Packing | None = None,
        ends: SequenceOffsets | None = None,
        strung: PackedMemory | None = None,
    ) -> PendingResidual:
        """Where there is a memory: its states, as `source`, which may be packed as `around` says.

        With ends, sequences are laid end to end, and so is their memory, `strung`.
        """
        if ends is not None:
            return self._end_to_end(given, ends, causal, strung)
        memory = None if source is None else self.cross.remember(source, around)
        attend = self.attend if packing is None else partial(self.attend.packed, packing=packing)
        given = self.around_attend(given, lambda h: attend(h, mask=mask, causal=causal, bias=bias))
        if memory is not None:
            read = partial(self.cross.read, memory=memory, mask=memory_mask, packing=packing)
            given = self.around_cross(given, read)
        out: PendingResidual = self.around_perceive(given, self.perceive)
        return out

    def _end_to_end(
        self, given: PendingResidual, ends: SequenceOffsets, causal: bool, memory: PackedMemory | None
    ) -> PendingResidual:
        given = self.around_attend(given, lambda h: self.attend.end_to_end(h, ends, causal=causal))
        if memory is not None:
            given = self.around_cross(given, lambda h: self.cross.end_to_end(h, ends, memory.states, memory.ends))
        out: PendingResidual = self.around_perceive(given, self.perceive)
        return out

    def step(
        self,
        x: Float[Tensor, "B S W"],
        cache: KeyValueCache,
        *,
        bias: Bias | None = None,
        visible: Tensor | None = None,
        position: int | Int[Tensor, " B"] | None = None,
        memory: KeyValue | None = None,
        memory_mask: Tensor | None = None,
    ) -> Float[Tensor, "B S W"]:
        attend = partial(self.attend.step, cache=cache, bias=bias, visible=visible, position=position)
        x = self.around_attend.step(x, attend)
        if memory is not None:
            x = self.around_cross.step(x, partial(self.cross.read, memory=memory, mask=memory_mask))
        return self.around_perceive.step(x, self.perceive)


class InputLayer(nn.Module):
    """From what is embedded to what the first block reads: positions, a norm where asked, dropout."""

    def __init__(self, config: TransformerConfig, *, ahead: bool) -> None:
        super().__init__()
        self.place: nn.Module | None = None
        self.narrow: nn.Linear | None = None
        self.distance: Alibi | RelativeBias | None = None
        match config.position:
            case "sinusoidal":
                self.place = JOINS[config.join](Sinusoidal(config.width))
            case "learned":
                self.place = JOINS[config.join](Learned(config.width, config.longest))
            case "alibi":
                self.distance = Alibi(config.heads)
            case "relative":
                self.distance = RelativeBias(config.heads, ahead=ahead)
        if config.join == "concatenate":
            self.narrow = nn.Linear(2 * config.width, config.width)
        self.norm = _norm(config) if config.norm_input else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "*lead W"], start: Start = 0) -> Float[Tensor, "*lead W"]:
        if self.place is not None:
            x = self.place(x, start)
        if self.narrow is not None:
            x = self.narrow(x)
        entered: Tensor = self.dropout(self.norm(x))
        return entered

    def reached(self, places: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """These, or the last of a learned table: a sentence that is done goes on beyond it, to no effect."""
        limit: int | None = getattr(getattr(self.place, "positions", None), "limit", None)
        return places if limit is None else places.clamp(max=limit - 1)

    def bias(self, n: int, m: int) -> DistanceBias | None:
        return None if self.distance is None else self.distance(n, m)


class ClsToken(nn.Module):
    """A learned state put before all others, to ask them and be asked."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.state = nn.Parameter(torch.randn(width) * 0.02)

    def forward(
        self, x: Float[Tensor, "B S W"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S1 W"], Bool[Tensor, "B S1"]]:
        first = self.state.expand(x.shape[0], 1, -1)
        return torch.cat((first, x), 1), F.pad(mask, (1, 0), value=True)


class TransformerStack(nn.Module):
    """Blocks one on another over states that already have their positions; a last norm where blocks norm first."""

    def __init__(self, config: TransformerConfig, memory_width: int | None = None) -> None:
        super().__init__()
        self.blocks = TypedModuleList[TransformerBlock](
            TransformerBlock(config, memory_width) for _ in range(config.layers)
        )
        self.norm, self.dropout = _norm(config) if config.norm_first else nn.Identity(), Dropout(config.dropout)
        self.recompute = config.recompute

    def forward(
        self,
        x: Float[Tensor, "B S W"],
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        bias: DistanceBias | None = None,
        memory: Memory | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "*lead W"]:
        """With a packing, what comes out is packed."""
        memory_mask = source = around = None
        if memory is not None:
            memory_mask, around = memory.mask[:, None], Packing.where_it_pays(memory.mask)
            source = memory.states if around is None else around.pack(memory.states)

        return self._through(
            x if packing is None else packing.pack(x),
            lambda block: partial(
                block,
                mask=mask,
                causal=causal,
                bias=bias,
                source=source,
                around=around,
                memory_mask=memory_mask,
                packing=packing,
            ),
        )

    def end_to_end(
        self,
        x: Float[Tensor, "N W"],
        ends: SequenceOffsets,
        *,
        causal: bool = False,
        memory: PackedMemory | None = None,
    ) -> Float[Tensor, "N W"]:
        """Of sequences laid end to end."""
        return self._through(x, lambda block: partial(block, ends=ends, causal=causal, strung=memory))

    def _through(
        self, x: Tensor, way: Callable[[TransformerBlock], Callable[[PendingResidual], PendingResidual]]
    ) -> Tensor:
        given = PendingResidual(x)
        for block in self.blocks:
            again = self.recompute and self.training
            run = way(block)
            given = checkpoint(run, given, use_reentrant=False) if again else run(given)
        return join(given, self.dropout, self.norm)[1]


def _norm(config: TransformerConfig) -> nn.Module:
    return NORMS[config.norm](config.width, eps=config.epsilon)
