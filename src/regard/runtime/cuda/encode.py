"""How a search reads its sources: in compiled code on a CPU, recorded on a GPU, or as the model does it."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerEncoder
from regard.runtime.cpu.decoder import encode
from regard.runtime.cuda.cuda_graphs import LAUNCHED, alone, precision, record, rounded
from regard.runtime.cuda.static_decoder import weights

PLACES = 16  # lengths are made up to a multiple of it, so that there are few sizes to record
KEPT = 16  # sizes of an encoder


class GraphedEncoder:
    """An encoder's work on sources of one size."""

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self.source = Tokens(*(torch.zeros(size, dtype=torch.int64, device=device) for size in ((rows, length), rows)))
        self.memory: Memory | None = None
        self.launched = 0
        self.replay: Callable[[], None] | None = None

    def __call__(self, encoder: TransformerEncoder, source: Tokens) -> Memory:
        (rows, length), mine = source.ids.shape, self.source
        mine.ids[:rows, :length].copy_(source.ids)  # the rest is padding, or of rows that nobody asks for
        mine.lengths[:rows].copy_(source.lengths)

        def work() -> None:
            self.memory = encoder(mine)

        with torch.cuda.device_of(source.ids):  # type: ignore[no-untyped-call]
            if self.launched == LAUNCHED:
                self.replay = record(work)
            self.launched += 1
            (self.replay or work)()
        assert self.memory is not None
        return self.memory.first(rows)  # a copy: the next lies where it lay


_made: "WeakKeyDictionary[nn.Module, dict[Any, GraphedEncoder]]" = WeakKeyDictionary()


def read(model: Any, source: Any, *, half: bool) -> Any:
    """The memory of a source; `half` in bfloat16."""
    encoder = model.encoder if isinstance(model, Seq2Seq) else None
    if not isinstance(source, Tokens) or not isinstance(encoder, TransformerEncoder) or not alone(encoder):
        with precision(half):
            return encode(model, source)
    size = rounded(len(source.ids), up=True), _longer(encoder, source.ids.shape[1])
    known = _made.setdefault(encoder, {})
    key = (*size, half, *(weight.data_ptr() for weight in weights(encoder)))
    reading = known.pop(key, None) or GraphedEncoder(*size, source.ids.device)
    with precision(half):
        memory = reading(encoder, source)
    known[key] = reading  # back again: nobody else has had it meanwhile
    while len(known) > KEPT:
        del known[next(iter(known))]
    return memory


def _longer(encoder: TransformerEncoder, length: int) -> int:
    """Made up to a multiple, as far as positions reach."""
    limit = getattr(getattr(encoder.input_layer.position_encoding, "positions", None), "limit", None)
    more = PLACES * -(-length // PLACES)
    return more if limit is None else max(length, min(more, limit - (encoder.cls_token is not None)))
