"""Several sources: an encoder for each, their memories concatenated."""

from collections.abc import Sequence

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import MultiSource, Packing
from regard.model.interfaces import Encoder, Source
from regard.model.memory import Memory, SourceSpan, last_state
from regard.model.module_list import TypedModuleList


def source_encoders(encoder: Encoder | None) -> list[Encoder]:
    """The encoder of each source."""
    if isinstance(encoder, MultiSourceEncoder):
        return list(encoder.encoders)
    return [] if encoder is None else [encoder]


class MultiSourceEncoder(Encoder):
    """Encodes each source by its own encoder into one memory (https://arxiv.org/abs/1601.00710).

    States of encoders with a smaller dimension than the largest are projected to it. The states of
    a sequence are those of its first source, then those of the second, without padding between
    them; the summary is the mean over sources.
    """

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        self.dim = max(encoder.dim for encoder in encoders)
        self.cls_tokens = encoders[0].cls_tokens
        self.encoders = TypedModuleList[Encoder](encoders)
        self.projections = nn.ModuleList(
            nn.Identity() if encoder.dim == self.dim else nn.Linear(encoder.dim, self.dim)
            for encoder in encoders
        )

    def forward(self, source: Source) -> Memory:
        if not isinstance(source, MultiSource) or len(source.parts) != len(self.encoders):
            raise InvalidArgument(
                "source",
                wanted=f"{len(self.encoders)} sources, one for each encoder",
                got=type(source).__name__,
                remedy="Give a MultiSource of as many parts.",
            )
        parts = zip(self.encoders, source.parts, strict=True)
        memories: list[Memory] = [encoder(part) for encoder, part in parts]
        projected = list(zip(self.projections, memories, strict=True))
        projected_states = [project(memory.states) for project, memory in projected]
        states = torch.cat(projected_states, 1)  # (B, S, W)
        mask = torch.cat([memory.mask for memory in memories], 1)
        summary = torch.stack([project(memory.summary) for project, memory in projected]).mean(0)
        batch, length = mask.shape
        # Padding after the states of all sources. ONNX has no stable sort.
        padding_place = mask.sum(1, keepdim=True) + (~mask).cumsum(1)
        place = torch.where(mask, mask.cumsum(1), padding_place) - 1  # (B, S)
        order = torch.zeros_like(place).scatter(
            1, place, torch.arange(length, device=mask.device).expand_as(place)
        )
        rows = torch.arange(batch, device=mask.device)[:, None] * length + order
        packing = Packing(rows.flatten(), batch, length)
        states = packing.pack(states).unflatten(0, (batch, length))  # type: ignore[no-untyped-call]
        spans = tuple(
            SourceSpan(memory.mask.sum(1), memory.grid, memory.cls_tokens) for memory in memories
        )
        mask = mask.gather(1, order)
        project, final = projected[-1]
        last = None
        if final.last is not None:
            # Where the last source is empty, the last state is one of an earlier source.
            given = final.mask.any(1, keepdim=True)
            last = torch.where(given, project(final.last), last_state(states, mask))
        return Memory(states, mask, summary, None, self.cls_tokens, spans, last)
