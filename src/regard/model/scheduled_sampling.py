"""Scheduled sampling (https://arxiv.org/abs/1506.03099):
decoder inputs are gold tokens or the model's predictions.

A stateful decoder is stepped and reads its own previous prediction. Parallel decoders predict all
tokens from the gold ones, mix these predictions into the inputs and predict again
(https://arxiv.org/abs/1906.04331); each pass makes one more position equal to free running.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from typing import Annotated, Any, Literal, TypeVar

import torch

from regard.core.config import Config, Count, Range, doc
from regard.core.errors import Problem
from regard.core.sequence import PackedSequences
from regard.core.shapes import Bool, Float, Shaped, Tensor
from regard.model.interfaces import AnyDecoder, CarriedState, StatefulDecoder
from regard.model.memory import Memory, PackedMemory

Share = Annotated[float, Range(0.0, 1.0)]
PackedType = TypeVar("PackedType", bound=PackedSequences)


@dataclass(frozen=True)
class ScheduledSampling(Config):
    """The probability of teacher forcing over the steps of training."""

    teacher_forcing: Share = doc(
        1.0, "probability of the gold token as input: 1 is teacher forcing", arxiv="1506.03099"
    )
    final_teacher_forcing: Share | None = doc(
        None, "probability at the end of the schedule; left out: constant"
    )
    over_steps: Count | None = doc(None, "updates that the schedule takes")
    schedule: Literal["linear", "exponential", "sigmoid"] = doc("linear", "shape of the schedule")
    mode: Literal["token", "ratio"] = doc(
        "token", "draw each token, or exactly that share of each sequence"
    )
    passes: Count = doc(
        1, "forward passes by which a parallel decoder makes its predictions", arxiv="1906.07651"
    )

    def conflicts(self) -> Iterator[Problem]:
        if (self.final_teacher_forcing is None) != (self.over_steps is None):
            given = "final_teacher_forcing" if self.over_steps is None else "over_steps"
            yield Problem(
                "final_teacher_forcing, over_steps",
                "both for a schedule, or neither",
                f"{given} alone",
                "Give both.",
            )
        ends = (self.teacher_forcing, self.final_teacher_forcing)
        if (
            self.schedule == "exponential"
            and self.final_teacher_forcing is not None
            and 0.0 in ends
        ):
            wanted = "above 0 for an exponential schedule"
            got = str(self.final_teacher_forcing)
            yield Problem("final_teacher_forcing", wanted, got, "Use 0.01, or 'linear'.")

    def share(self, step: int) -> float:
        """The share of gold tokens at this training step."""
        if self.final_teacher_forcing is None or self.over_steps is None:
            return self.teacher_forcing
        done = min(1.0, max(0.0, step / self.over_steps))
        if self.schedule == "exponential":
            return float(
                self.teacher_forcing * (self.final_teacher_forcing / self.teacher_forcing) ** done
            )
        if self.schedule == "sigmoid":
            low = 1 / (1 + exp(6))
            high = 1 / (1 + exp(-6))
            done = (1 / (1 + exp(6 - 12 * done)) - low) / (high - low)
        return self.teacher_forcing + (self.final_teacher_forcing - self.teacher_forcing) * done


@dataclass(frozen=True)
class Forced:
    """What a decoder predicted from inputs that are in part its own predictions.

    inputs   the tokens or vectors that it read
    state    after the last of them; None for a parallel decoder
    """

    logits: Float[Tensor, "*lead V"]
    inputs: Shaped[Tensor, "*read"]
    state: CarriedState | None = None


def force(
    decoder: AnyDecoder,
    targets: Shaped[Tensor, "B T *each"],
    memory: Memory | None,
    forcing: ScheduledSampling,
    *,
    step: int = 0,
    mask: Bool[Tensor, "B T"] | None = None,
    generator: torch.Generator | None = None,
    state: CarriedState | None = None,
    weights: list[Float[Tensor, "B _ S"]] | None = None,
) -> Forced:
    """Logits as of `decoder(targets, memory)`,
    with some of the inputs replaced by the decoder's own predictions.

    The first token is always gold. Predictions are the most likely tokens, or vectors, and carry no
    gradient. The mask is False for padding, at the end of each sequence; None: there is none. A
    stateful decoder reads on from `state`, if that is given, and appends its attention to
    `weights`.
    """
    share = forcing.share(step)
    if share == 1.0 and state is None and weights is None:
        return Forced(decoder(targets, memory), targets)
    if mask is None:
        mask = targets.new_ones(targets.shape[:2], dtype=torch.bool)
    gold = _choose(mask, share, forcing.mode, generator)
    if isinstance(decoder, StatefulDecoder):
        if state is None:
            state = decoder.start(memory, batch=len(targets), capacity=targets.shape[1])
        return _stepwise(decoder, targets, gold, state, weights)
    inputs = targets
    with torch.no_grad():
        for _ in range(forcing.passes):
            predicted = decoder.project.next_inputs(decoder(inputs, memory))  # (B, T, …)
            shifted = torch.cat((targets[:, :1], predicted[:, :-1].to(targets.dtype)), 1)
            inputs = torch.where(_as_wide(gold, targets), targets, shifted)
    return Forced(decoder(inputs, memory), inputs)


def force_packed(
    decoder: AnyDecoder,
    targets: PackedType,
    memory: Memory | PackedMemory | None,
    forcing: ScheduledSampling,
    *,
    step: int = 0,
) -> Forced:
    """As `force`, for a parallel decoder and packed sequences: logits (N, V)."""
    offsets = targets.offsets
    packing = offsets.packing
    chosen = _choose(offsets.mask, forcing.share(step), forcing.mode, None)
    gold = chosen.flatten()[packing.indices]  # (N,)
    inputs = targets
    with torch.no_grad():
        for _ in range(forcing.passes):
            states = decoder.hidden_packed(inputs, memory)
            predicted = decoder.project.next_inputs(decoder.project(states))  # (N, …)
            # The first token of each sequence is gold,
            # so that none follows a token of another sequence.
            shifted = torch.cat((targets.items[:1], predicted[:-1].to(targets.items.dtype)))
            mixed = torch.where(_as_wide(gold, targets.items), targets.items, shifted)
            inputs = inputs.with_items(mixed)
    return Forced(decoder.project(decoder.hidden_packed(inputs, memory)), inputs.items)


def _stepwise(
    decoder: StatefulDecoder[Any],
    targets: Shaped[Tensor, "B T *each"],
    gold: Bool[Tensor, "B T"],
    state: CarriedState,
    weights: list[Float[Tensor, "B _ S"]] | None,
) -> Forced:
    tokens = targets[:, 0]
    steps = []
    inputs = []
    for t in range(targets.shape[1]):
        given = targets[:, t]
        tokens = torch.where(_as_wide(gold[:, t], given), given, tokens)
        inputs.append(tokens)
        if weights is None:
            logits, state = decoder.step(tokens, state)
        else:
            states, state = decoder.carry(tokens[:, None], state, weights)
            logits = decoder.project(states)[:, 0]
        steps.append(logits)
        tokens = decoder.project.next_inputs(logits).to(targets.dtype)
    return Forced(torch.stack(steps, 1), torch.stack(inputs, 1), state)


def _as_wide(
    chosen: Bool[Tensor, "*lead"], like: Shaped[Tensor, "*shape"]
) -> Bool[Tensor, "*wide"]:
    """A choice of tokens or vectors, for each number of a vector."""
    return chosen if chosen.ndim == like.ndim else chosen[..., None]


def _choose(
    mask: Bool[Tensor, "B T"], share: float, draw: str, generator: torch.Generator | None
) -> Bool[Tensor, "B T"]:
    """A mask of the inputs that are gold, given the mask of those that are not padding."""
    chance = torch.rand(mask.shape, generator=generator).to(mask.device)
    if draw == "token":
        gold = chance < share
    else:
        free = mask[:, 1:]
        rank = chance[:, 1:].masked_fill(~free, 1.0).argsort(1).argsort(1)  # padding comes last
        count = (share * free.sum(1, keepdim=True, dtype=torch.float64)).round()
        gold = torch.cat((mask[:, :1], rank < count), 1)
    gold[:, 0] = True
    return gold
