"""Several models that answer as one: the mean of their probabilities, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Int, Tensor
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq


@dataclass(frozen=True)
class EnsembleState:
    """What each member knows after some steps."""

    members: list[Any]

    def reorder(self, index: Int[Tensor, " sentences"]) -> "EnsembleState":
        return EnsembleState([state.reorder(index) for state in self.members])

    def follow(self, parents: Int[Tensor, "B K"]) -> "EnsembleState":
        return EnsembleState([state.follow(parents) for state in self.members])

    def admit(self, rows: Int[Tensor, " n"], fresh: "EnsembleState") -> "EnsembleState":
        return EnsembleState([mine.admit(rows, new) for mine, new in zip(self.members, fresh.members, strict=True)])


class Encoders(nn.Module):
    """The memories of all members."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, source: Any) -> list[Memory]:
        return [member(source) for member in self.members]


class Decoders(nn.Module):
    """A decoder whose logits are the logarithm of its members' mean probability."""

    cross_attentions: Sequence[nn.Module] = ()  # whose weights could be compared

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.project = members[0].project

    def forward(self, targets: Int[Tensor, "B T"], memories: list[Memory] | None = None) -> Float[Tensor, "B T V"]:
        given = [None] * len(self.members) if memories is None else memories
        return _mean([member(targets, memory) for member, memory in zip(self.members, given, strict=True)])

    def start(
        self, memories: list[Memory] | None, *, batch: int, capacity: int, beams: int | None = None
    ) -> EnsembleState:
        given = [None] * len(self.members) if memories is None else memories
        sizes = {"batch": batch, "capacity": capacity, "beams": beams}
        members = zip(self.members, given, strict=True)
        return EnsembleState([member.start(memory, **sizes) for member, memory in members])  # type: ignore[operator]

    def step(self, tokens: Int[Tensor, " rows"], state: EnsembleState) -> tuple[Float[Tensor, "rows V"], EnsembleState]:
        steps = [member.step(tokens, each) for member, each in zip(self.members, state.members, strict=True)]  # type: ignore[operator]
        return _mean([logits for logits, _ in steps]), EnsembleState([moved for _, moved in steps])


class Ensemble(Seq2Seq):
    """Models of any architecture with one vocabulary, searched and scored as one."""

    def __init__(self, models: Sequence[Seq2Seq]) -> None:
        if not models or not all(isinstance(model, Seq2Seq) for model in models):
            got = ", ".join(type(model).__name__ for model in models) or "none"
            raise InvalidArgument("models", wanted="models that give sequences", got=got, remedy="Leave others out.")
        sizes = [len(model.decoder.project.weight) for model in models]  # type: ignore[union-attr, arg-type]
        encoders = [model.encoder for model in models if model.encoder is not None]
        if len(set(sizes)) > 1 or len(encoders) not in (0, len(models)):
            raise InvalidArgument(
                "models",
                wanted="one vocabulary, and a source for all or none",
                got=f"vocabularies of {', '.join(map(str, sizes))}; {len(encoders)} of {len(models)} with a source",
                remedy="Train them on the same data.",
            )
        super().__init__(Encoders(encoders) if encoders else None, Decoders([model.decoder for model in models]))


def _mean(logits: Sequence[Float[Tensor, "*shape V"]]) -> Float[Tensor, "*shape V"]:
    total = logits[0].float().log_softmax(-1)
    for each in logits[1:]:
        total = torch.logaddexp(total, each.float().log_softmax(-1))
    return total - log(len(logits))
