"""Encoders on a GPU, padded to few sizes and recorded as CUDA graphs."""

from collections.abc import Hashable
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.model.memory import Memory
from regard.model.transformer import TransformerEncoder
from regard.runtime.cuda.cuda_graphs import GraphRecorder, autocast, rounded
from regard.runtime.cuda.static_decoder import weights

LENGTHS = 16  # lengths are padded to a multiple of it
KEPT = 16  # sizes of an encoder that stay recorded


class GraphedEncoder:
    """An encoder for sources of at most one size."""

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self.source = Tokens(*(torch.zeros(size, dtype=torch.int64, device=device) for size in ((rows, length), rows)))
        self.memory: Memory | None = None
        self.graphs = GraphRecorder()

    def __call__(self, encoder: TransformerEncoder, source: Tokens) -> Memory:
        (rows, length), static = source.ids.shape, self.source
        static.ids[:rows, :length].copy_(source.ids)  # beyond are padding and unused rows
        static.lengths[:rows].copy_(source.lengths)

        def work() -> None:
            self.memory = encoder(static)

        with torch.cuda.device_of(source.ids):  # type: ignore[no-untyped-call]
            self.graphs.run("encode", work)
        assert self.memory is not None
        return self.memory.first(rows)  # a copy: the next call overwrites it


_encoders: "WeakKeyDictionary[nn.Module, dict[Hashable, GraphedEncoder]]" = WeakKeyDictionary()


def encode(encoder: TransformerEncoder, source: Tokens, *, half: bool) -> Memory:
    """The memory of a source; with `half`, linear layers in bfloat16."""
    size = rounded(len(source.ids), up=True), _padded_length(encoder, source.ids.shape[1])
    known = _encoders.setdefault(encoder, {})
    key = (*size, half, *(weight.data_ptr() for weight in weights(encoder)))
    graphed = known.pop(key, None) or GraphedEncoder(*size, source.ids.device)
    with autocast(half):
        memory = graphed(encoder, source)
    known[key] = graphed  # put back after use: other threads make their own meanwhile
    while len(known) > KEPT:
        del known[next(iter(known))]
    return memory


def _padded_length(encoder: TransformerEncoder, length: int) -> int:
    """Padded to a multiple, within the limit of learned positions."""
    padded, limit = LENGTHS * -(-length // LENGTHS), encoder.input_layer.limit
    return padded if limit is None else max(length, min(padded, limit - (encoder.cls_token is not None)))
