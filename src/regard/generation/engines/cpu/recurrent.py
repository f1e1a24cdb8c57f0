"""A recurrent decoder's step in compiled C++ (recurrent.h)."""

import ctypes
from dataclasses import replace

import torch
from torch import nn

from regard.core.shapes import Float, Int, Tensor
from regard.generation.engines.cpu.compiled_decoder import (
    CompiledDecoder,
    StepCall,
    check_rows,
    scratch,
)
from regard.generation.engines.cpu.weight_layout import (
    Count,
    LinearTable,
    Pointer,
    WeightLayout,
    address,
    apply_linear,
    fields,
)
from regard.generation.engines.transformer_weights import LinearWeights
from regard.kernels.attention.score_function import AdditiveScoreFunction, DotScoreFunction
from regard.model.capture import capturing_here
from regard.model.interfaces import DecoderState
from regard.model.memory import Memory
from regard.model.rnn_decoder import RnnDecoder, constant_context
from regard.model.rnn_state import RnnMemory, RnnState
from regard.model.scores import Additive, Bilinear, Dot, ReducedRank, ScaledDot, Score, Uniform

CELLS = {"elman": 0, "gru": 1, "lstm": 2}
ATTENTIONS = {"none": 0, "bahdanau": 1, "luong": 2}
SUPPORTED_SCORES = (
    Additive,
    Bilinear,
    Dot,
    ReducedRank,
    ScaledDot,
    Uniform,
)  # a subclass may compute anything


class _LayerTable(ctypes.Structure):
    _fields_ = [("input_gates", LinearTable), ("hidden_gates", LinearTable)]


class _DecoderTable(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_LayerTable)),
        *fields(LinearTable, "query context_gate context_proj project"),
        *fields(Pointer, "embed_tokens additive_weight"),
        *fields(
            Count,
            "vocab_size layer_count width embed_dim memory_dim key_dim feed_dim cell attention",
        ),
        *fields(ctypes.c_float, "embed_scale score_scale"),
    ]


class _StepArguments(ctypes.Structure):
    _fields_ = [
        *fields(Pointer, "tokens hidden cell_state context keys values mask"),
        *fields(Count, "batch beams source_length"),
        *fields(
            Pointer, "input gates hidden_gates query attended scores joined output logits slots"
        ),
        *fields(Count, "places stride"),
    ]


def is_supported(decoder: RnnDecoder) -> bool:
    return decoder.score is None or type(decoder.score) in SUPPORTED_SCORES


class NativeRnnDecoder(CompiledDecoder[RnnState]):
    """The compiled form of a recurrent decoder. Its state is that of the decoder itself."""

    state_type = RnnState
    step_name = "regard_recurrent_step"
    search_name = "regard_recurrent_search"

    def __init__(self, decoder: RnnDecoder, library: ctypes.CDLL, *, int8: bool = False) -> None:
        super().__init__(decoder, library, int8=int8)
        self.feeds_output = decoder.attention == "luong" and decoder.feed_dim > 0
        layout = self.weights
        embedding = decoder.embed_tokens
        score = decoder.score
        layers = [
            _LayerTable(
                layout.linear(LinearWeights(w_ih, b_ih)), layout.linear(LinearWeights(w_hh, b_hh))
            )
            for w_ih, w_hh, b_ih, b_hh in decoder.rnn.all_weights
        ]
        memory_dim = 0
        if decoder.context_proj is not None:
            memory_dim = decoder.context_proj.in_features - decoder.dim
        query = LinearTable()
        key_dim = 0
        additive = None
        scale = 1.0
        if score is not None:
            query = _queries(layout, score, decoder.dim)
            self.keys = _keys(layout, score, memory_dim)
            key_dim = memory_dim if self.keys is None else self.keys.outputs
            function = score.score_function(key_dim)
            if isinstance(function, AdditiveScoreFunction):
                additive = layout.copy(function.weight[0])
            else:
                assert isinstance(function, DotScoreFunction)
                scale = function.scale
        optional = [decoder.context_gate, decoder.context_proj]
        initial = [] if decoder.initial_proj is None else decoder.initial_proj.modules()
        # One layer, or the two of an MLP.
        self.initial = [layout.linear(each) for each in initial if isinstance(each, nn.Linear)]
        self.context = decoder.context
        self.table = _DecoderTable(
            (_LayerTable * len(layers))(*layers), query,
            *(LinearTable() if each is None else layout.linear(each) for each in optional),
            layout.linear(decoder.project), layout.copy(embedding.weight), additive, len(embedding.weight), len(layers),
            decoder.dim, embedding.dim, memory_dim, key_dim, decoder.feed_dim, CELLS[decoder.cell],
            ATTENTIONS[decoder.attention], embedding.scale, scale,
        )  # fmt: skip
        self.states_per_layer = decoder.states_per_layer
        self.gates = {"elman": 1, "gru": 3, "lstm": 4}[decoder.cell] * decoder.dim

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int = 0, beams: int = 1
    ) -> RnnState:
        table = self.table
        source = None
        shape = self.states_per_layer, table.layer_count, batch, table.width
        hidden = torch.zeros(shape)
        context = torch.zeros(batch, table.feed_dim if self.feeds_output else 0)
        if memory is not None and self.initial:
            first = memory.summary
            for layer in self.initial[:-1]:
                first = torch.relu(apply_linear(self.library, layer, first))
            first = torch.tanh(apply_linear(self.library, self.initial[-1], first))
            hidden = first.reshape(batch, *shape[:2], table.width).permute(1, 2, 0, 3)
        if memory is not None and table.attention:
            states = memory.states.float().contiguous()
            keys = states
            if self.keys is not None:
                keys = apply_linear(self.library, self.keys, states)
            source = RnnMemory(keys, states, memory.mask[:, None])
        elif memory is not None:
            context = constant_context(self.context, memory, hidden).float()
        parts = tuple(part.repeat_interleave(beams, 1).contiguous() for part in hidden)
        return RnnState(parts, context.repeat_interleave(beams, 0).contiguous(), source, beams)

    def prepare(self, state: RnnState) -> RnnState:
        hidden = tuple(part.contiguous() for part in state.hidden)
        return replace(state, hidden=hidden, context=state.context.contiguous())

    def queries(self, tokens: Int[Tensor, " rows"], state: RnnState) -> Tensor | None:
        """The hidden state before the step, which Bahdanau's attention asks with."""
        return None if state.memory is None else state.hidden[0][-1].clone()

    def publish(self, queries: Float[Tensor, "rows W"], state: RnnState) -> None:
        """Attend once more, to report to captures only."""
        decoder = self.decoder()
        if decoder is None:
            return
        if self.table.attention != ATTENTIONS["bahdanau"]:
            queries = state.hidden[0][-1]
        decoder._attend(queries[:, None], state)

    def prefill(self, tokens: Int[Tensor, "B T"], state: DecoderState) -> RnnState | None:
        assert isinstance(state, RnnState)
        decoder = self.decoder()
        if decoder is None or self.int8 or state.memory is not None or capturing_here():
            return None
        found: RnnState | None = decoder.prefill(tokens, state)
        return found

    def step_call(
        self, tokens: Int[Tensor, " rows"], state: RnnState, steps: int, queries: Tensor | None
    ) -> StepCall:
        table = self.table
        rows = len(tokens)
        memory = state.memory
        hidden = state.hidden
        check_rows(rows, hidden[0].shape[1])
        keys = values = mask = None
        length = 0
        if memory is not None:
            keys = memory.keys.contiguous()
            values = memory.values.contiguous()
            mask = memory.mask.to(torch.uint8).contiguous()
            length = mask.shape[-1]
        sizes = [
            table.embed_dim + table.feed_dim, self.gates, self.gates, max(1, table.key_dim), table.memory_dim, length,
            table.width + table.memory_dim, table.width,
        ]  # fmt: skip
        parts = scratch(rows, sizes)
        logits = torch.empty(rows, self.vocab_size)
        tokens = tokens.contiguous()
        tensors = [
            tokens,
            hidden[0],
            hidden[1] if len(hidden) > 1 else None,
            state.context,
            keys,
            values,
            mask,
        ]
        arguments = _StepArguments(
            *map(address, tensors), rows // state.beams, state.beams, length,
            *(part.data_ptr() for part in parts), logits.data_ptr(), None, rows // state.beams, rows,
        )  # fmt: skip
        return StepCall(arguments, logits, [*tensors, *parts])


def _queries(layout: WeightLayout, score: Score, dim: int) -> LinearTable:
    """The map of hidden states to queries; without weights where it is the identity."""
    identity = torch.eye(dim)
    matrix = score.queries(identity)
    if matrix is identity:
        return LinearTable()
    return layout.linear(LinearWeights(matrix.detach().mT.contiguous()))


def _keys(layout: WeightLayout, score: Score, dim: int) -> LinearTable | None:
    """The map of memory states to keys; None where it is the identity."""
    identity = torch.eye(dim)
    matrix = score.keys(identity)
    if matrix is identity:
        return None
    bias = score.keys(torch.zeros(1, dim))
    return layout.linear(LinearWeights((matrix - bias).detach().mT.contiguous(), bias.detach()[0]))
