"""Recurrent decoders: without attention, or with the attention of Bahdanau or of Luong."""

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn

from regard.core.sequence import PackedSequences, Packing
from regard.core.shapes import Float, Int, Shaped, Tensor
from regard.kernels.attention import reference
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers.dropout import Dropout, VariationalDropout
from regard.kernels.recurrent import attention_rnn, rnn, rnn_cuda, rnn_scan
from regard.model import capture
from regard.model.attention import attend, attention_weights
from regard.model.capture import AttentionResult
from regard.model.interfaces import AttentionModule, StatefulDecoder
from regard.model.memory import Memory, PackedMemory
from regard.model.rnn_decoder_config import ContextName, RnnDecoderConfig
from regard.model.rnn_encoder import MODULES, fused_backward
from regard.model.rnn_state import Hidden, RnnMemory, RnnState
from regard.model.scores import SCORES, ProjectedKeys
from regard.model.vector_embedding import TargetEmbedding, TargetProjection

WeightsList = list[Float[Tensor, "B _ S"]]  # of consecutive parts of the target


class RnnDecoder(StatefulDecoder[RnnState], AttentionModule):
    """A recurrent decoder.

    Where no step depends on the context of an earlier one (no attention, or Luong's without input feeding), the whole
    sequence passes each layer at once. Otherwise it is computed stepwise, with one fused backward where possible.
    """

    heads = 1
    packable = True
    packed_memory = False

    def __init__(
        self,
        config: RnnDecoderConfig,
        embedding: TargetEmbedding,
        project: TargetProjection,
        memory_dim: int | None,
    ) -> None:
        super().__init__()
        self.embed_tokens, self.project, self.cell = embedding, project, config.cell
        self.dim, self.layers = config.dim, config.layers
        self.attention = "none" if memory_dim is None else config.attention
        source = memory_dim or 0
        self.context: ContextName = config.context
        self.feed_dim = _feed_dim(config, self.attention, source)
        self.stepwise = self.attention != "none" and config.stepwise
        self.rnn = MODULES[config.cell](
            embedding.dim + self.feed_dim,
            config.dim,
            config.layers,
            batch_first=True,
            dropout=_either(config.layer_dropout, config.dropout) if config.layers > 1 else 0.0,
        )
        self.states_per_layer = 2 if config.cell == "lstm" else 1
        self.initial_proj: nn.Linear | nn.Sequential | None = None
        initial_dim = self.states_per_layer * config.layers * config.dim
        if memory_dim is not None and config.initial_state == "summary":
            self.initial_proj = nn.Linear(source, initial_dim)
        elif memory_dim is not None and config.initial_state == "mlp":
            self.initial_proj = nn.Sequential(
                nn.Linear(source, config.dim), nn.ReLU(), nn.Linear(config.dim, initial_dim)
            )
        self.score = (
            None if self.attention == "none" else SCORES[config.score].build(config.dim, source)
        )
        self.context_proj = (
            None if self.attention == "none" else nn.Linear(config.dim + source, config.dim)
        )
        self.context_gate = (
            nn.Linear(config.dim, 1)
            if config.context_gate and self.attention == "bahdanau"
            else None
        )
        dropout = VariationalDropout if config.variational_dropout else Dropout
        self.dropout = dropout(config.dropout)
        self.input_dropout = dropout(_either(config.input_dropout, config.dropout))
        self.layer_dropout = dropout(self.rnn.dropout)
        self.recurrent_dropout = Dropout(config.recurrent_dropout)
        # What PyTorch's recurrent layers do not have.
        self.own_dropout = config.variational_dropout or config.recurrent_dropout > 0

    @property
    def cross_attentions(self) -> list[AttentionModule]:
        return [] if self.score is None else [self]

    @property
    def output_weight(self) -> Float[Tensor, "W C"]:
        assert self.context_proj is not None
        weight: Tensor = self.context_proj.weight
        return weight[:, self.dim :]  # the context comes after the hidden state

    def hidden(
        self,
        targets: Shaped[Tensor, "B T *each"],
        memory: Memory | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "*lead W"]:
        states, _ = self.carry(targets, self.start(memory, batch=targets.shape[0]))
        return states if packing is None else packing.pack(states)

    def hidden_packed(
        self, targets: PackedSequences, memory: Memory | PackedMemory | None
    ) -> Float[Tensor, "N W"]:
        """As `hidden`, for packed sequences, which are padded here: a step computes all of them at once."""
        assert not isinstance(memory, PackedMemory)
        return self.hidden(targets.offsets.pad(targets.items), memory, targets.offsets.packing)

    def carry(
        self,
        targets: Shaped[Tensor, "B T *each"],
        state: RnnState,
        weights: WeightsList | None = None,
    ) -> tuple[Float[Tensor, "B T W"], RnnState]:
        if torch.compiler.is_exporting():
            return self._carry_exported(targets, state, weights)
        if self.stepwise and self._has_fused_backward(targets, state) and not capture.intercepted():
            return self._carry_fused(targets, state, weights)
        embedded = self.input_dropout(self.embed_tokens(targets))
        if not self.stepwise:
            out, state = self._advance(embedded, state, weights)
        else:
            outputs = []
            for t in range(targets.shape[1]):
                with capture.at_position(t) if capture.intercepted() else nullcontext():
                    out, state = self._advance(embedded[:, t : t + 1], state, weights)
                outputs.append(out)
            out = (
                torch.cat(outputs, 1)
                if outputs
                else embedded.new_zeros(*targets.shape[:2], self.dim)
            )
        return out, state

    def prefill(self, tokens: Int[Tensor, "B T"], state: RnnState) -> RnnState:
        one = self.carry(tokens, state.first_hypotheses())[1]
        return one if state.beams == 1 else state.admit(slice(len(tokens)), one)

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int = 0, beams: int = 1
    ) -> RnnState:
        """The state before the first token. Its size does not depend on `capacity`."""
        weight, source = self.project.weight, None
        hidden: Hidden = (weight.new_zeros(self.layers, batch, self.dim),) * self.states_per_layer
        context = weight.new_zeros(batch, self.feed_dim if self.attention == "luong" else 0)
        if memory is not None and self.initial_proj is not None:
            first = torch.tanh(self.initial_proj(memory.summary))
            first = first.reshape(batch, self.states_per_layer, self.layers, self.dim)
            hidden = tuple(part.transpose(0, 1).contiguous() for part in first.unbind(1))
        if memory is not None and self.score is not None:
            source = RnnMemory(self.score.keys(memory.states), memory.states, memory.mask[:, None])
        elif memory is not None:
            context = constant_context(self.context, memory, hidden)
        if beams > 1:
            hidden = tuple(part.repeat_interleave(beams, 1) for part in hidden)
            context = context.repeat_interleave(beams, 0)
        return RnnState(hidden, context, source, beams)

    def bottleneck(self, memory: Memory) -> Float[Tensor, "B W"] | None:
        return memory.summary if self.score is None else None

    def step(
        self, tokens: Shaped[Tensor, "B *each"], state: RnnState
    ) -> tuple[Float[Tensor, "B V"], RnnState]:
        out, state = self._advance(self.input_dropout(self.embed_tokens(tokens[:, None])), state)
        logits: Tensor = self.project(out)[:, 0]
        return logits, state

    def _advance(
        self, embedded: Float[Tensor, "B T W"], state: RnnState, weights: WeightsList | None = None
    ) -> tuple[Float[Tensor, "B T W"], RnnState]:
        length = embedded.shape[1]
        fed = state.context[:, None].expand(-1, length, -1)  # (B, T, C)
        if self.attention == "bahdanau":
            assert length == 1
            query = state.hidden[0][-1][:, None]
            fed = self._attend(query, state, weights)
            fed = (
                fed if self.context_gate is None else torch.sigmoid(self.context_gate(query)) * fed
            )
        out, hidden = self._run_layers(torch.cat((embedded, fed), -1), state.hidden)
        state = replace(state, hidden=hidden)
        if self.context_proj is not None:
            context = fed if self.attention == "bahdanau" else self._attend(out, state, weights)
            out = torch.tanh(self.context_proj(torch.cat((out, context), -1)))
            if self.attention == "luong" and self.feed_dim:
                state = replace(state, context=out[:, -1])
        return self.dropout(out), state

    def _run_layers(
        self, x: Float[Tensor, "B T I"], hidden: Hidden
    ) -> tuple[Float[Tensor, "B T W"], Hidden]:
        """The outputs of the last layer, and the final states of all layers."""
        batch, length, _ = x.shape
        on_gpu = torch.is_grad_enabled() and rnn_cuda.can_launch(x)
        if not on_gpu and not (self.training and self.own_dropout):
            out, after = self.rnn(
                x,
                hidden[0].to(x.dtype)
                if len(hidden) == 1
                else tuple(part.to(x.dtype) for part in hidden),
            )
            return out, after if isinstance(after, tuple) else (after,)
        sizes, last = [batch] * length, list[Hidden]()
        for layer, parameters in enumerate(self.rnn.all_weights):
            weights = rnn.RnnWeights(*parameters)
            weights = weights._replace(state=self.recurrent_dropout(weights.state))
            rows = (self.layer_dropout(x) if layer else x).transpose(0, 1).flatten(0, 1)
            if on_gpu:
                start = tuple(part[layer, None] for part in hidden)
                states = tuple(
                    part[0]
                    for part in rnn_cuda.scan(self.cell, rows[None], sizes, start, [weights])
                )
            else:
                with torch.autocast(x.device.type, enabled=False):
                    start = tuple(part[layer].to(weights.state) for part in hidden)
                    states = rnn.scan(self.cell, rows.to(weights.state), sizes, start, weights)
            x = states[0].unflatten(0, (length, batch)).transpose(0, 1)  # type: ignore[no-untyped-call]
            last.append(tuple(part[-batch:] for part in states))
        return x, tuple(torch.stack(each) for each in zip(*last, strict=True))

    def _carry_fused(
        self, targets: Shaped[Tensor, "B T *each"], state: RnnState, weights: WeightsList | None
    ) -> tuple[Float[Tensor, "B T W"], RnnState]:
        """As `carry`, with one backward pass for all steps; in float32, also under autocast."""
        assert self.context_proj is not None
        with torch.autocast(targets.device.type, enabled=False):
            state = state.widened()
            embedded = self.input_dropout(self.embed_tokens(targets.transpose(0, 1)))  # (T, B, W)
            between = None
            if self.layers > 1 and self.training:
                steps = embedded.shape[0] * embedded.shape[1]
                between = self.layer_dropout(embedded.new_ones(self.layers - 1, steps, self.dim))
            by_layer = [rnn.RnnWeights(*each) for each in self.rnn.all_weights]
            layers = attention_rnn.RecurrentLayers(
                self.cell, by_layer, list(zip(*state.hidden, strict=True)), between
            )
            source = self._source(state, embedded)
            if self.attention == "bahdanau":
                gate = (
                    None
                    if self.context_gate is None
                    else (self.context_gate.weight, self.context_gate.bias)
                )
                states, context, step_weights = attention_rnn.attend_then_step(
                    layers, source, embedded, gate
                )
                out = torch.tanh(self.context_proj(torch.cat((states[-1][0], context), -1)))
            else:
                proj = self.context_proj.weight, self.context_proj.bias
                states, out, step_weights = attention_rnn.step_then_attend(
                    layers, source, embedded, state.context, *proj
                )
                state = replace(state, context=out[-1])
            if weights is not None:
                weights.append(step_weights.transpose(0, 1))
            if capture.capturing():
                self._capture(states[-1][0].detach(), state)
            last = ((part[-1] for part in layer) for layer in states)
            hidden = tuple(torch.stack(each) for each in zip(*last, strict=True))
            return self.dropout(out).transpose(0, 1), replace(state, hidden=hidden)

    def _carry_exported(
        self, targets: Shaped[Tensor, "B T *each"], state: RnnState, weights: WeightsList | None
    ) -> tuple[Float[Tensor, "B T W"], RnnState]:
        """As `carry`, for torch.export: one graph for any number of tokens."""
        by_layer = [rnn.RnnWeights(*each) for each in self.rnn.all_weights]
        proj, gate = self.context_proj, self.context_gate

        def body(
            carried: tuple[Tensor, ...], embedded: Tensor
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            *hidden, fed = carried
            attended: list[Tensor] = []
            if self.attention == "bahdanau":
                query = hidden[0][-1]
                fed, *attended = self._attend_once(query, state)
                fed = fed if gate is None else torch.sigmoid(gate(query)) * fed
            out, layers = torch.cat((embedded, fed), -1), []
            for layer, each in enumerate(by_layer):
                layers.append(
                    rnn_scan.step(self.cell, out, tuple(part[layer] for part in hidden), each)
                )
                out = layers[-1][0]
            if proj is not None:
                context = fed
                if self.attention == "luong":
                    context, *attended = self._attend_once(out, state)
                out = torch.tanh(proj(torch.cat((out, context), -1)))
            fed = out if self.attention == "luong" and self.feed_dim else carried[-1]
            return (*(torch.stack(part) for part in zip(*layers, strict=True)), fed), (
                out,
                *attended,
            )

        embedded = self.embed_tokens(targets).transpose(0, 1)
        (*hidden, context), (out, *attended) = rnn_scan.scan(
            body, (*state.hidden, state.context), embedded
        )
        if weights is not None:
            weights += [each.transpose(0, 1) for each in attended]
        return out.transpose(0, 1), replace(state, hidden=tuple(hidden), context=context)

    def _attend_once(self, query: Float[Tensor, "B W"], state: RnnState) -> tuple[Tensor, Tensor]:
        """The context (B, C) and the weights (B, S) of one query for each sequence, in plain operations."""
        assert self.score is not None
        assert state.memory is not None
        keys, values, mask = state.memory
        queries = self.score.queries(query[:, None])  # (B, 1, D)
        score_function = self.score.score_function(keys.shape[-1])
        spec = AttentionSpec(
            score_function, queries[:, None], keys[:, None], AttentionMask(mask[:, None])
        )
        scores = reference.scores(spec)
        weights = reference.softmax(scores)  # (B, 1, 1, S)
        computed = AttentionResult(
            spec, values[:, None], weights @ values[:, None], scores.logsumexp(-1)
        )
        return capture.intercept(self, computed).out[:, 0, 0], weights[:, 0, 0]

    def _capture(self, hidden: Float[Tensor, "T B W"], state: RnnState) -> None:
        """Attend once more, to report to `capture_attention` only."""
        queries = hidden  # (T, B, W)
        if self.attention == "bahdanau":
            queries = torch.cat((state.hidden[0][-1].detach()[None], hidden[:-1]))
        with torch.no_grad():
            for query in queries:
                self._attend(query[:, None], state)

    def _has_fused_backward(self, targets: Tensor, state: RnnState) -> bool:
        """Whether the recurrent attention kernels support the score and these tensors."""
        if self.score is None or state.memory is None or not self.score.linear_queries:
            return False
        keys = state.memory.keys
        supported = attention_rnn.supports(self.score.score_function(keys.shape[-1]))
        return supported and fused_backward(self.project.weight, targets, keys)

    def _source(self, state: RnnState, like: Tensor) -> attention_rnn.AttentionSource:
        assert self.score is not None
        assert state.memory is not None
        # Queries are a linear map of the state: the queries of the identity are its matrix.
        identity = torch.eye(self.dim, dtype=like.dtype, device=like.device)
        matrix, (keys, values, mask) = self.score.queries(identity), state.memory
        score_function = self.score.score_function(keys.shape[-1])
        return attention_rnn.AttentionSource(
            keys, values, mask[:, 0], None if matrix is identity else matrix, score_function
        )

    def _attend(
        self, query: Float[Tensor, "B T W"], state: RnnState, weights: WeightsList | None = None
    ) -> Float[Tensor, "B T C"]:
        assert self.score is not None
        assert state.memory is not None
        queries = (
            query.view(-1, state.beams, query.shape[-1]) if state.beams > 1 else query
        )  # (B, K, W)
        score, (keys, values, mask) = ProjectedKeys(self.score), state.memory
        context = attend(queries, keys, values, score=score, mask=mask, source=self)
        if weights is not None:
            weights.append(attention_weights(queries, keys, score=score, mask=mask))
        return context.view(-1, 1, context.shape[-1]) if state.beams > 1 else context


def constant_context(
    kind: ContextName, memory: Memory, hidden: Hidden | Float[Tensor, "states layers B W"]
) -> Float[Tensor, "B C"]:
    """What every step of a decoder without attention reads besides its token.

    hidden   the initial hidden states
    """
    if kind == "summary":
        return memory.summary
    if kind == "initial_state":
        return hidden[0][-1]
    return memory.summary[:, :0]


def _feed_dim(config: RnnDecoderConfig, attention: str, memory_dim: int) -> int:
    """The dimension of what a step reads besides its token; without a memory, `memory_dim` is 0."""
    if attention == "bahdanau":
        return memory_dim
    if attention == "luong":
        return config.dim if config.input_feeding else 0
    dims = {"summary": memory_dim, "initial_state": config.dim, "none": 0}
    return dims[config.context] if memory_dim else 0


def _either(given: float | None, default: float) -> float:
    return default if given is None else given
