"""Recurrent encoders (Elman, GRU, LSTM), uni- or bidirectional."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.core.config import Count, Probability, doc
from regard.core.errors import Problem
from regard.core.interruption import check_interruption
from regard.core.sequence import Packed, Packing, Tokens, to_device
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.layers.dropout import Dropout
from regard.kernels.recurrent import rnn, rnn_cuda, rnn_scan
from regard.model.embedding import Embedding
from regard.model.interfaces import Encoder, Source, require_tokens
from regard.model.memory import Memory
from regard.model.part_config import EncoderConfig, Sees

CellName = Literal["elman", "gru", "lstm"]
MODULES = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@dataclass(frozen=True)
class RnnConfig(EncoderConfig):
    packable, packed_memory = True, False

    cell: CellName = doc("gru", "recurrent cell")
    dim: Count = doc(256, "dimension of the hidden state")
    layers: Count = doc(1, "number of layers")
    dropout: Probability = doc(0.1, "dropout of inputs and between layers")
    bidirectional: bool = doc(True, "read in both directions, with half of dim each")

    def conflicts(self) -> Iterator[Problem]:
        if self.bidirectional and self.dim % 2:
            yield Problem(
                "dim", "an even number for two directions", str(self.dim), "Half goes to each."
            )

    @property
    def sees(self) -> Sees:
        return "all" if self.bidirectional else "earlier"

    def mlm_conflicts(self) -> Iterator[Problem]:
        if not self.bidirectional:
            yield Problem(
                "bidirectional",
                "true for a masked-token head",
                "false",
                "A state must see both sides.",
            )


@dataclass(frozen=True)
class Schedule:
    """The tokens of a batch in time-major order: the first of every sequence, then the second, …; longest first."""

    sizes: list[int]  # sequences that have a token at each step
    tokens: Packing  # the time-major tokens, by position in the batch
    reversed_: Packing  # the token of the same sequence at the mirrored position
    last: Int[Tensor, " B"]  # the row of the last token of each sequence

    @staticmethod
    def of(source: Tokens) -> "Schedule":
        """Computed on the host, so that nothing waits for the GPU."""
        batch, longest = source.ids.shape
        counts = source.host_lengths.clamp(min=1)  # an empty sequence counts as one token
        lengths, order = counts.sort(descending=True, stable=True)
        step, column = torch.arange(longest)[:, None], torch.arange(batch)
        there = step < lengths  # (S, B)
        sizes = there.sum(1)
        first = sizes.cumsum(0) - sizes  # of each step
        reversed_ = first[(lengths - 1 - step).clamp(min=0)] + column  # (S, B)
        last = torch.empty_like(order).index_copy_(0, order, first[lengths - 1] + column)
        indices = torch.cat(((order * longest + step)[there], reversed_[there], last))
        rows = int(sizes.sum())
        tokens, reversed_, last = to_device(indices, source.ids.device).split((rows, rows, batch))  # type: ignore[no-untyped-call]
        step_sizes = [size for size in sizes.tolist() if size]
        return Schedule(
            step_sizes, Packing(tokens, batch, longest), Packing(reversed_, 1, rows), last
        )

    @staticmethod
    def even(source: Tokens) -> "Schedule":
        """Steps over all sequences with their padding: the same work for every batch of a shape."""
        batch, longest = source.ids.shape
        step = torch.arange(longest, device=source.ids.device)[:, None]
        column, lengths = torch.arange(batch, device=source.ids.device), source.lengths
        reversed_ = torch.where(step < lengths, lengths - 1 - step, step) * batch + column  # (S, B)
        return Schedule(
            [batch] * longest,
            Packing((column * longest + step).flatten(), batch, longest),
            Packing(reversed_.flatten(), 1, batch * longest),
            (lengths - 1).clamp(min=0) * batch + column,
        )


class RnnEncoder(Encoder):
    """A recurrent encoder. The summary is the final state of each direction."""

    def __init__(self, config: RnnConfig, embedding: Embedding) -> None:
        super().__init__()
        self.dim, self.causal = config.dim, not config.bidirectional
        self.embed_tokens, self.cell = embedding, config.cell
        self.rnn = MODULES[config.cell](
            embedding.dim,
            config.dim // (2 if config.bidirectional else 1),
            config.layers,
            batch_first=True,
            bidirectional=config.bidirectional,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, source: Source) -> Memory:
        source = require_tokens(source)
        check_interruption()
        if torch.compiler.is_exporting():
            return self._memory(source, *self._exported(source))
        if self._scans(source):
            return self._memory(source, *self._scanned(source, Schedule.of(source)))
        return self._memory(source, *self._packed(source))

    def forward_packed(self, source: Packed) -> Memory:
        """As `forward`, for packed sequences, which are padded here: a step computes all of them at once."""
        tokens = Tokens(source.offsets.pad(source.ids), source.offsets.cu_seqlens.diff().long())
        return self._memory(tokens, *self._scanned(tokens, Schedule.even(tokens)))

    def _memory(
        self, source: Tokens, states: Float[Tensor, "B S W"], summary: Float[Tensor, "B W"]
    ) -> Memory:
        states = states.masked_fill(~source.mask[..., None], 0.0)
        summary = self.dropout(summary.masked_fill((source.lengths == 0)[:, None], 0.0))
        last = summary if self.rnn.bidirectional else None
        return Memory(states, source.mask, summary, last=last)

    def _scans(self, source: Tokens) -> bool:
        words = self.embed_tokens.weight
        if source.ids.device.type == "cpu":
            return fused_backward(words, source.ids)
        return torch.is_grad_enabled() and source.ids.numel() > 0 and rnn_cuda.can_launch(words)

    def _packed(self, source: Tokens) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        # Packed, so that the backward direction starts at each sequence's own end. An empty one counts as one token
        # here, and has an empty mask in the memory.
        lengths = source.host_lengths.clamp(min=1)
        packed = pack_padded_sequence(
            self.dropout(self.embed_tokens(source.ids)),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        states, hidden = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.ids.shape[1])
        last = (
            hidden[0] if isinstance(hidden, tuple) else hidden
        )  # (layers · directions, B, width a direction)
        directions = 2 if self.rnn.bidirectional else 1
        return self.dropout(states), torch.cat(tuple(last[-directions:]), -1)

    def _scanned(
        self, source: Tokens, schedule: Schedule
    ) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        """As `_packed`, with our own scan: where PyTorch's backward is slow, or in half precision."""
        x = self.dropout(
            self.embed_tokens(source.ids.flatten()[schedule.tokens.indices])
        )  # (rows, W)
        weights = iter([rnn.RnnWeights(*each) for each in self.rnn.all_weights])
        for layer in range(self.rnn.num_layers):
            below = self.dropout(x) if layer else x
            if not self.rnn.bidirectional:
                (x,) = _scan_directions(self.cell, [below], schedule.sizes, [next(weights)])
                last = x[schedule.last]
                continue
            both = [below, schedule.reversed_.pack(below[None])]
            ahead, back = _scan_directions(
                self.cell, both, schedule.sizes, [next(weights), next(weights)]
            )
            x = torch.cat((ahead, schedule.reversed_.pack(back[None])), -1)
            last = torch.cat((ahead[schedule.last], back[schedule.last]), -1)
        return schedule.tokens.unpack(self.dropout(x)), last

    def _exported(self, source: Tokens) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        """As `_packed`, for torch.export: one graph for all lengths. Padding is read too, after each sequence."""
        x, lengths = (
            self.embed_tokens(source.ids),
            source.lengths.clamp(min=1)[:, None],
        )  # (B, S, W), (B, 1)
        position = torch.arange(x.shape[1], device=x.device)
        reversed_ = torch.where(position < lengths, lengths - 1 - position, position)  # (B, S)
        weights = iter([rnn.RnnWeights(*each) for each in self.rnn.all_weights])
        last = [x[:, 0]]
        for _ in range(self.rnn.num_layers):
            directions = [rnn_scan.layer(self.cell, x, next(weights))]
            if self.rnn.bidirectional:
                directions.append(rnn_scan.layer(self.cell, _rows(x, reversed_), next(weights)))
            last = [_rows(each, lengths - 1)[:, 0] for each in directions]
            x = torch.cat([directions[0], *(_rows(each, reversed_) for each in directions[1:])], -1)
        return x, torch.cat(last, -1)


def _scan_directions(
    cell: CellName, inputs: list[Tensor], sizes: list[int], weights: list[rnn.RnnWeights]
) -> Sequence[Float[Tensor, "rows W"]]:
    """The states of one layer for each input, from a zero state."""
    zeros = inputs[0].new_zeros(sizes[0], weights[0].state.shape[1])
    start = (zeros,) * (2 if cell == "lstm" else 1)
    if not rnn_cuda.can_launch(inputs[0]):
        with torch.autocast(zeros.device.type, enabled=False):
            return [
                rnn.scan(cell, x, sizes, start, w)[0] for x, w in zip(inputs, weights, strict=True)
            ]
    start = tuple(zeros.expand(len(inputs), -1, -1) for _ in start)
    return rnn_cuda.scan(cell, torch.stack(inputs), sizes, start, weights)[0].unbind()


def _rows(x: Float[Tensor, "B S W"], index: Int[Tensor, "B R"]) -> Float[Tensor, "B R W"]:
    """Rows of each sequence."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def fused_backward(weight: Tensor, tokens: Tensor, vectors: Tensor | None = None) -> bool:
    """Whether the hand-written backward passes apply to these weights, tokens and input vectors.

    On a GPU also under autocast: cuDNN's recurrences would run in float16, where small gradients underflow.
    """
    vectors = weight if vectors is None else vectors
    dtypes = (torch.float32, torch.float64)
    cast = torch.is_autocast_enabled(weight.device.type)
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and weight.dtype in dtypes
        and (weight.is_cuda if cast else vectors.dtype in dtypes)
        and vectors.numel() > 0
        and tokens.numel() > 0
    )
