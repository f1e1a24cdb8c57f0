"""A Transformer encoder in compiled C++ (step.cpp), for batches of few tokens."""

import ctypes
from weakref import ref

import torch
from torch.nn import functional as F

from regard.core.sequence import Packing, Tokens
from regard.generation.engines.cpu.position_tables import PositionTable
from regard.generation.engines.cpu.weight_layout import (
    Count,
    LinearTable,
    Pointer,
    Scratch,
    WeightLayout,
    address,
    call,
    fields,
)
from regard.generation.engines.published_attention import publish
from regard.model.capture import capturing_here
from regard.model.embedding import token_embedding
from regard.model.memory import Memory
from regard.model.positions import Add
from regard.model.transformer import TransformerEncoder


class _EncodeArguments(ctypes.Structure):
    _fields_ = [
        *fields(Pointer, "tokens offsets sequence position_table"),
        *fields(Count, "positions batch rows max_length"),
        ("scratch", Scratch),
        ("projections", Pointer),
    ]


class NativeEncoder:
    """The compiled form of an encoder. It copies the weights, and does not keep the encoder alive."""

    def __init__(
        self, encoder: TransformerEncoder, library: ctypes.CDLL, *, int8: bool = False
    ) -> None:
        encoding = encoder.input_layer.position_encoding
        self.library = library
        self.positions = None
        if isinstance(encoding, Add):
            self.positions = PositionTable(encoding)
        self.weights = WeightLayout(library, int8=int8)
        self.table = self.weights.stack(
            encoder.stack, encoder.input_layer, token_embedding(encoder), LinearTable()
        )
        self.attentions = [ref(block.self_attn) for block in encoder.stack.layers]

    def __call__(self, source: Tokens) -> Memory:
        mask = source.mask
        packing = Packing.of(mask)
        rows = len(packing.indices)
        max_length = mask.shape[1]
        tokens = source.ids.flatten()[packing.indices]
        offsets = F.pad(source.lengths.cumsum(0), (1, 0))
        sequence = packing.indices // max_length
        scratch, x, normed = self.weights.scratch(rows, max_length)
        size = (len(self.attentions), rows, 3 * self.table.width)
        projections = torch.empty(size) if capturing_here() else None
        table = None
        count = 0
        if self.positions is not None:
            table = self.positions.of(max_length)
            count = len(table)
        arguments = _EncodeArguments(
            tokens.data_ptr(), offsets.data_ptr(), sequence.data_ptr(), address(table), count,
            len(mask), rows, max_length, scratch, address(projections),
        )  # fmt: skip
        call(self.library.regard_encode, self.table, arguments)
        if projections is not None:
            for self_attn, packed in zip(self.attentions, projections, strict=True):
                padded = packing.unpack(packed).view(*mask.shape, 3, -1)  # queries, keys and values
                publish(
                    self_attn(), padded[:, :, 0], padded[:, :, 1:], mask[:, None], self.table.heads
                )
        states = normed if self.table.norm_first else x
        # Sums of the sequence alone: those over padded states depend on the longest sequence of the batch.
        sums = torch.segment_reduce(states, "sum", lengths=source.lengths, axis=0)
        return Memory(packing.unpack(states), mask, sums / source.lengths[:, None])
