"""Recurrent encoders (Elman, GRU, LSTM), uni- or bidirectional."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import neg
from typing import Literal

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.core.config import Count, Probability, doc
from regard.core.errors import Problem
from regard.core.interruption import check_interruption
from regard.core.sequence import PackedSequences, Packing, to_device
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.layers.dropout import Dropout
from regard.kernels.recurrent import rnn, rnn_cuda, rnn_scan
from regard.model.inputs import InputModule, InputVectors
from regard.model.interfaces import SequenceEncoder
from regard.model.memory import Memory
from regard.model.part_config import EncoderConfig, Sees
from regard.model.word_vector_keys import WordVectorKeys

CellName = Literal["elman", "gru", "lstm"]
MODULES = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
# What these modules call: a layer over some steps, from given states.
LAYERS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "elman": torch.rnn_tanh,
    "gru": torch.gru,
    "lstm": torch.lstm,
}
# Of a piece of a long input, after which a computation may be interrupted: a fraction of a second.
PIECE_STEPS = 8192
PIECE_PRODUCTS = 1 << 29
# The share of the steps of a padded piece that are no padding.
LEAST_FILLED = 0.85


@dataclass(frozen=True)
class RnnConfig(WordVectorKeys, EncoderConfig):
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
    """The tokens of a batch in time-major order: the first of every sequence, then the second, …;
    longest first.
    """

    sizes: list[int]  # sequences that have a token at each step
    tokens: Packing  # the time-major tokens, by position in the batch
    reversed_: Packing  # the token of the same sequence at the mirrored position
    last: Int[Tensor, " B"]  # the row of the last token of each sequence

    @staticmethod
    def of(source: InputVectors) -> "Schedule":
        """Computed on the host, so that nothing waits for the GPU."""
        batch, longest = source.shape
        # An empty sequence counts as one token.
        counts = source.host_lengths.clamp(min=1)
        lengths, order = counts.sort(descending=True, stable=True)
        step = torch.arange(longest)[:, None]
        column = torch.arange(batch)
        there = step < lengths  # (S, B)
        sizes = there.sum(1)
        first = sizes.cumsum(0) - sizes  # of each step
        reversed_ = first[(lengths - 1 - step).clamp(min=0)] + column  # (S, B)
        last = torch.empty_like(order).index_copy_(0, order, first[lengths - 1] + column)
        indices = torch.cat(((order * longest + step)[there], reversed_[there], last))
        rows = int(sizes.sum())
        moved = to_device(indices, source.device)
        tokens, reversed_, last = moved.split((rows, rows, batch))  # type: ignore[no-untyped-call]
        step_sizes = [size for size in sizes.tolist() if size]
        return Schedule(
            step_sizes, Packing(tokens, batch, longest), Packing(reversed_, 1, rows), last
        )

    @staticmethod
    def even(source: InputVectors) -> "Schedule":
        """Steps over all sequences with their padding: the same work for every batch of a shape."""
        batch, longest = source.shape
        step = torch.arange(longest, device=source.device)[:, None]
        column = torch.arange(batch, device=source.device)
        lengths = source.lengths
        reversed_ = torch.where(step < lengths, lengths - 1 - step, step) * batch + column  # (S, B)
        return Schedule(
            [batch] * longest,
            Packing((column * longest + step).flatten(), batch, longest),
            Packing(reversed_.flatten(), 1, batch * longest),
            (lengths - 1).clamp(min=0) * batch + column,
        )


class RnnEncoder(SequenceEncoder):
    """A recurrent encoder. The summary is the final state of each direction."""

    packable = True
    packed_memory = False

    def __init__(self, config: RnnConfig, input_module: InputModule) -> None:
        super().__init__(input_module)
        self.dim = config.dim
        self.causal = not config.bidirectional
        self.cell = config.cell
        directions = 2 if config.bidirectional else 1
        self.rnn = MODULES[config.cell](
            input_module.dim,
            config.dim // directions,
            config.layers,
            batch_first=True,
            bidirectional=config.bidirectional,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.dropout = Dropout(config.dropout)

    def encode(self, vectors: InputVectors) -> Memory:
        check_interruption()
        if torch.compiler.is_exporting():
            return self._memory(vectors, *self._exported(vectors))
        if self._scans(vectors):
            return self._memory(vectors, *self._scanned(vectors, Schedule.of(vectors)))
        return self._memory(vectors, *self._packed(vectors))

    def forward_packed(self, source: PackedSequences) -> Memory:
        """As `forward`, for packed sequences, which are padded here:
        a step computes all of them at once.
        """
        vectors = self.input_module.read(source.padded())
        return self._memory(vectors, *self._scanned(vectors, Schedule.even(vectors)))

    def _memory(
        self, source: InputVectors, states: Float[Tensor, "B S W"], summary: Float[Tensor, "B W"]
    ) -> Memory:
        states = states.masked_fill(~source.mask[..., None], 0.0)
        summary = self.dropout(summary.masked_fill((source.lengths == 0)[:, None], 0.0))
        last = summary if self.rnn.bidirectional else None
        return Memory(states, source.mask, summary, last=last)

    def _scans(self, source: InputVectors) -> bool:
        weight: Tensor = self.rnn.weight_ih_l0
        if source.device.type == "cpu":
            return fused_backward(weight, source.mask)
        is_empty = 0 in source.shape
        return torch.is_grad_enabled() and not is_empty and rnn_cuda.can_launch(weight)

    def _packed(self, source: InputVectors) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        # Packed, so that the backward direction starts at each sequence's own end.
        # An empty one counts as one token here, and has an empty mask in the memory.
        lengths = source.host_lengths.clamp(min=1)
        steps = self._steps_at_once(source)
        if source.shape[1] > steps or self._has_fast_padding(source):
            return self._in_pieces(source.states(), lengths, steps)
        packed = pack_padded_sequence(
            self.dropout(source.states()),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        states, hidden = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        last = hidden
        if isinstance(hidden, tuple):
            last = hidden[0]  # (layers · directions, B, width of a direction)
        directions = 2 if self.rnn.bidirectional else 1
        return self.dropout(states), torch.cat(tuple(last[-directions:]), -1)

    def _has_fast_padding(self, source: InputVectors) -> bool:
        """Whether padded sequences are read faster than packed ones:
        oneDNN has an LSTM for the former alone.
        """
        return (
            self.cell == "lstm"
            and self._computes_on_cpu(source)
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        )

    def _computes_on_cpu(self, source: InputVectors) -> bool:
        """Whether this is a forward pass alone, on a CPU."""
        in_training = self.training or torch.is_grad_enabled()
        return not (in_training or source.device.type != "cpu" or torch.compiler.is_compiling())

    def _steps_at_once(self, source: InputVectors) -> int:
        """The steps of a layer that are computed in one call; on a CPU,
        a call cannot be interrupted.
        """
        batch, longest = source.shape
        if not self._computes_on_cpu(source):
            return longest
        weights: int = max(sum(each.numel() for each in one[:2]) for one in self.rnn.all_weights)
        return max(16, min(PIECE_STEPS, PIECE_PRODUCTS // (weights * max(1, batch))))

    def _in_pieces(
        self, x: Float[Tensor, "B S I"], lengths: Int[Tensor, " B"], steps: int
    ) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        """As `_packed` without dropout, in pieces of so many steps,
        between which the computation may be interrupted.

        The states after a piece are those before the next one, so that the numbers are the same.
        Pieces are padded: what is computed after the end of a sequence changes nothing before it,
        and the backward direction reads each sequence mirrored within its own length.
        """
        batch, longest = x.shape[:2]
        lengths, order = lengths.sort(descending=True, stable=True)
        segments = segments_of(lengths.tolist(), steps)
        step = torch.arange(longest)[:, None]
        mirrored = torch.where(step < lengths, lengths - 1 - step, step)  # (S, B)
        # Where the directions read each row of the batch,
        # and where each row of the batch is among theirs.
        ahead_from = (order * longest + step).flatten()
        back_from = (order * longest + mirrored).flatten()
        place = order.argsort()
        ahead_at = (step * batch + place).T.flatten()
        back_at = (mirrored[:, place] * batch + place).T.flatten()
        # The ends of the sequences, among the rows of a direction.
        ends = (lengths[place] - 1) * batch + place
        weights = iter([rnn.RnnWeights(*each) for each in self.rnn.all_weights])
        rows = x.flatten(0, 1)  # (B · S, I)
        last: list[Tensor] = []
        for _ in range(self.rnn.num_layers):
            directions = []
            last = []
            pairs = [(ahead_from, ahead_at), (back_from, back_at)]
            for read_from, found_at in pairs[: 1 + self.rnn.bidirectional]:
                read = rows.index_select(0, read_from).view(longest, batch, -1)  # (S, B, I)
                states = self._forward_direction(read, next(weights), segments).flatten(0, 1)
                directions.append(states.index_select(0, found_at))
                last.append(states.index_select(0, ends))
            rows = torch.cat(directions, -1)  # (B · S, W)
        return rows.view(batch, longest, -1), torch.cat(last, -1)

    def _forward_direction(
        self,
        x: Float[Tensor, "S B I"],
        weights: rnn.RnnWeights,
        segments: list[tuple[int, int, int]],
    ) -> Float[Tensor, "S B V"]:
        """The states of one direction of a layer, over sequences that are sorted by length."""
        width = weights.state.shape[1]
        layer = LAYERS[self.cell]
        states_per_layer = 2 if self.cell == "lstm" else 1
        hidden = [x.new_zeros(1, x.shape[1], width) for _ in range(states_per_layer)]
        found: list[Tensor] = []
        for first, end, count in segments:
            check_interruption()
            # Only the first of them go on, as they are sorted.
            before = tuple(each[:, :count].contiguous() for each in hidden)
            computed, *hidden = layer(
                x[first:end, :count],
                before if self.cell == "lstm" else before[0],
                weights,
                has_biases=True,
                num_layers=1,
                dropout=0.0,
                train=False,
                bidirectional=False,
                batch_first=False,
            )
            found.append(computed)
        if len(found) == 1:
            return found[0]
        states = x.new_zeros(*x.shape[:2], width)
        for (first, end, count), computed in zip(segments, found, strict=True):
            states[first:end, :count] = computed
        return states

    def _scanned(
        self, source: InputVectors, schedule: Schedule
    ) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        """As `_packed`, with our own scan: where PyTorch's backward is slow,
        or in half precision.
        """
        x = self.dropout(source.rows(schedule.tokens.indices))  # (rows, W)
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

    def _exported(
        self, source: InputVectors
    ) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        """As `_packed`, for torch.export: one graph for all lengths.

        Padding is read too, after each sequence.
        """
        x = source.states()  # (B, S, W)
        lengths = source.lengths.clamp(min=1)[:, None]  # (B, 1)
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


def segments_of(lengths: list[int], steps: int) -> list[tuple[int, int, int]]:
    """Ranges of at most so many steps, each with the number of sequences that it is computed for.

    lengths   longest first

    Sequences of similar lengths share a range, to whose end the shorter ones are padded.
    """
    found = []
    first = 0
    while first < lengths[0]:
        end = _segment_end(lengths[: _longer_than(first, lengths)], first)
        # Of about equal length: a product of few rows might be rounded otherwise.
        pieces = -(-(end - first) // steps)
        bounds = [first + (end - first) * piece // pieces for piece in range(pieces)]
        for begin, stop in pairwise([*bounds, end]):
            found.append((begin, stop, _longer_than(begin, lengths)))
        first = end
    return found


def _longer_than(steps: int, lengths: list[int]) -> int:
    """How many of these lengths, longest first, are greater."""
    return bisect_left(lengths, -steps, key=neg)


def _segment_end(lengths: list[int], first: int) -> int:
    """The last of these lengths, longest first,
    to which few of the steps from `first` are padding.
    """
    end = lengths[-1]
    total = len(lengths) * (end - first)
    for going_on in range(len(lengths) - 1, 0, -1):
        longer = lengths[going_on - 1]
        total += going_on * (longer - end)
        if total < LEAST_FILLED * len(lengths) * (longer - first):
            break
        end = longer
    return end


def _rows(x: Float[Tensor, "B S W"], index: Int[Tensor, "B R"]) -> Float[Tensor, "B R W"]:
    """Rows of each sequence."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def fused_backward(weight: Tensor, tokens: Tensor, vectors: Tensor | None = None) -> bool:
    """Whether the hand-written backward passes apply to these weights, tokens and input vectors.

    On a GPU also under autocast: cuDNN's recurrences would run in float16, where small gradients
    underflow.
    """
    if vectors is None:
        vectors = weight
    dtypes = (torch.float32, torch.float64)
    cast = torch.is_autocast_enabled(weight.device.type)
    computed_in_type = weight.is_cuda if cast else vectors.dtype in dtypes
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and weight.dtype in dtypes
        and computed_in_type
        and vectors.numel() > 0
        and tokens.numel() > 0
    )
