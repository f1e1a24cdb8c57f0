"""The head of forecasts: all steps of a horizon at once, from the states of an encoded window."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from regard.core.config import Probability, doc
from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import Vectors
from regard.core.shapes import Float, Tensor
from regard.model.interfaces import Encoder, Head, SequenceEncoder, Source
from regard.model.memory import Memory, last_state, masked_mean
from regard.model.part_config import EncoderConfig, HeadConfig, Part
from regard.model.seq2seq import EncoderWithHead

EPSILON = 1e-5  # added to the variance of a window


@dataclass(frozen=True)
class HorizonConfig(HeadConfig):
    """All steps of a horizon at once: direct forecasts."""

    read: Literal["flatten", "mean", "last"] = doc(
        "flatten",
        "what the output layer reads: the states of all positions, one after the "
        "other; their mean; or the last",
    )
    instance_norm: Literal["none", "last", "mean", "mean_std"] = doc(
        "none",
        "what is subtracted from each window before it is read, and added to its forecast: its "
        "last value, or its mean; mean_std also divides by its standard deviation",
        arxiv="2112.10752",
    )
    affine: bool = doc(
        False,
        "a learned scale and shift of each channel after instance_norm = "
        '"mean_std", undone in the forecast',
    )
    channels: Literal["together", "independent"] = doc(
        "together",
        "independent: each channel is a sequence of its own, read with the same weights, beside "
        "the channels that are not forecast",
        arxiv="2211.14730",
    )
    dropout: Probability = doc(0.0, "dropout before the output layer")

    def conflicts(self) -> Iterator[Problem]:
        if self.affine and self.instance_norm != "mean_std":
            wanted = "false unless instance_norm is 'mean_std'"
            yield Problem("affine", wanted, "true", "Leave it out.")

    def encoder_conflicts(self, encoder: Part[EncoderConfig]) -> Iterator[Problem]:
        if self.read != "mean" and not encoder.module.keeps_positions:
            yield Problem(
                "kind",
                f"an encoder with a state for each position, for model.head.read = {self.read!r}",
                "one whose states are those of learned queries",
                'Set model.head.read = "mean", or choose another encoder.',
            )

    def input_size(self, size: int, channels: int) -> int:
        """The numbers of a vector that the encoder reads,
        of `size` in the source of which `channels` are forecast.
        """
        if self.channels == "independent":
            return size - channels + 1
        return size


class Levels(NamedTuple):
    """What instance normalization took from the windows, for each channel that is forecast."""

    shift: Float[Tensor, "B 1 C"]
    scale: Float[Tensor, "B 1 C"]


class HorizonHead(Head):
    """A linear layer from the states of a window to all steps of its horizon."""

    task = "forecast"
    needs_lengths = True

    def __init__(
        self, config: HorizonConfig, memory_dim: int, channels: int, horizon: int, states: int
    ) -> None:
        super().__init__()
        self.config = config
        self.channels = channels
        self.horizon = horizon
        self.states = states
        self.is_independent = config.channels == "independent"
        width = memory_dim * states if config.read == "flatten" else memory_dim
        outputs = horizon if self.is_independent else horizon * channels
        self.dropout = nn.Dropout(config.dropout)
        self.proj = nn.Linear(width, outputs)
        self.gain: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if config.affine:
            self.gain = nn.Parameter(torch.ones(channels))
            self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, memory: Memory) -> Float[Tensor, "B _"]:
        """The horizon of each sequence that the encoder has read,
        its channels one after the other.
        """
        found: Tensor = self.proj(self.dropout(self._read(memory)))
        return found

    def _read(self, memory: Memory) -> Float[Tensor, "B _"]:
        states = memory.states[:, memory.cls_tokens :]
        mask = memory.mask[:, memory.cls_tokens :]
        if self.config.read == "mean":
            return masked_mean(states, mask)
        if self.config.read == "last":
            return last_state(states, mask)
        if states.shape[1] != self.states:
            raise InvalidArgument(
                "source",
                wanted=f"windows of one length, of which the encoder makes {self.states} states",
                got=str(states.shape[1]),
                remedy='Set model.head.read = "mean" for windows of several lengths.',
            )
        # What is missing has a state of zeros.
        return states.masked_fill(~mask[..., None], 0.0).flatten(1)

    def normalized(self, source: Vectors) -> tuple[Vectors, Levels]:
        """The windows as the encoder reads them, and what was taken from them."""
        values = source.values  # (B, S, D)
        own = values[..., : self.channels].masked_fill(~source.places[..., None], torch.nan)
        levels = self._levels(own)
        own = (own - levels.shift) / levels.scale
        if self.gain is not None and self.bias is not None:
            own = own * self.gain + self.bias
        others = values[..., self.channels :]
        if not self.is_independent:
            return Vectors(torch.cat((own, others), -1), source.lengths), levels
        # (B · C, S, 1 + others): the channels of a window follow one another.
        each = own.permute(0, 2, 1).flatten(0, 1)[..., None]
        beside = others.repeat_interleave(self.channels, 0)
        lengths = source.lengths.repeat_interleave(self.channels)
        return Vectors(torch.cat((each, beside), -1), lengths), levels

    def _levels(self, own: Float[Tensor, "B S C"]) -> Levels:
        known = ~own.isnan()
        present = own.nan_to_num(0.0)
        count = known.sum(1, keepdim=True).clamp(min=1)
        shift = torch.zeros_like(present[:, :1])
        scale = torch.ones_like(shift)
        kind = self.config.instance_norm
        if kind == "last":
            positions = torch.arange(1, own.shape[1] + 1, device=own.device)[:, None]
            last = (known * positions).amax(1, keepdim=True)  # (B, 1, C), from 1
            shift = present.gather(1, (last - 1).clamp(min=0))
        elif kind in ("mean", "mean_std"):
            shift = present.sum(1, keepdim=True) / count
        if kind == "mean_std":
            deviations = (present - shift).masked_fill(~known, 0.0)
            scale = (deviations.square().sum(1, keepdim=True) / count + EPSILON).sqrt()
        return Levels(shift.detach(), scale.detach())

    def restored(self, outputs: Float[Tensor, "B2 _"], levels: Levels) -> Float[Tensor, "B T C"]:
        """The forecasts of all channels, with what was taken from their windows."""
        vectors = outputs.view(-1, self.channels, self.horizon).mT  # (B, T, C)
        if self.gain is not None and self.bias is not None:
            gain = torch.where(self.gain.abs() < EPSILON, EPSILON, self.gain)
            vectors = (vectors - self.bias) / gain
        return vectors * levels.scale + levels.shift


class Forecaster(EncoderWithHead):
    """An encoder of windows with the head of their horizon."""

    task = "forecast"
    head: HorizonHead

    def __init__(self, encoder: Encoder, head: HorizonHead) -> None:
        super().__init__(encoder, head)

    def encode(self, source: Source | None) -> Memory:
        """The memory of a batch of windows; where channels are independent,
        of each channel of each window.
        """
        if isinstance(source, Memory):
            return source
        return super().encode(self.head.normalized(_vectors(source))[0])

    def forward(self, source: Source) -> Float[Tensor, "B T C"]:
        """The normalized vectors of the horizon."""
        windows, levels = self.head.normalized(_vectors(source))
        memory = super().encode(windows)
        return self.head.restored(self.head(memory), levels)


def _vectors(source: Any) -> Vectors:
    if isinstance(source, Vectors):
        return source
    raise InvalidArgument(
        "source",
        wanted="sequences of vectors",
        got=type(source).__name__,
        remedy="Give regard.Vectors.of(arrays of shape (length, dimension)).",
    )


def state_count(encoder: Encoder, length: int) -> int:
    """How many states an encoder has for a window of this length."""
    if not isinstance(encoder, SequenceEncoder):
        return length
    return encoder.input_module.states_of(length)
