"""Recurrent encoders and decoders, without attention and with it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.configuration import Checked, Count, Probability
from regard.errors import Problem
from regard.kernels import looking, recurrence
from regard.kernels.dropout import Dropout
from regard.model import listening
from regard.model.attention import attend, attention_weights
from regard.model.embedding import Embedding, Projection
from regard.model.memory import Memory
from regard.model.scores import SCORES, KeysReady, ScoreName
from regard.model.state import beam_rows, put_masks, put_rows, sentence_rows
from regard.sequence import Packing, Tokens
from regard.shapes import Bool, Float, Int, Tensor

Cell = Literal["elman", "gru", "lstm"]
CELLS = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

Looks = list[Float[Tensor, "B _ S"]]  # the weights of some steps, then of the next
Hidden = tuple[Float[Tensor, "layers rows W"], ...]  # one tensor, or two for an LSTM


@dataclass(frozen=True)
class RnnConfig(Checked):
    cell: Cell = "gru"
    width: Count = 256
    layers: Count = 1
    dropout: Probability = 0.1
    bidirectional: bool = True  # half of the width in each direction

    def conflicts(self) -> Iterator[Problem]:
        if self.bidirectional and self.width % 2:
            yield Problem("width", "an even number for two directions", str(self.width), "Half goes to each.")


@dataclass(frozen=True)
class RnnDecoderConfig(Checked):
    cell: Cell = "gru"
    width: Count = 256
    layers: Count = 1
    dropout: Probability = 0.1
    start: Literal["summary", "zero"] = "summary"  # where the first state comes from
    # none: the source's summary is an input of every step; before: look with the last state, then step
    # (https://arxiv.org/abs/1409.0473); after: step, then look with the new state (https://arxiv.org/abs/1508.04025)
    attention: Literal["none", "before", "after"] = "before"
    score: ScoreName = "additive"
    feed: bool = False  # with `after`: what was said last is an input of the next step
    gate: bool = False  # with `before`: the state also says how much of what it sees counts (arXiv:1502.03044)

    def conflicts(self) -> Iterator[Problem]:
        if self.feed and self.attention != "after":
            yield Problem("feed", "false unless attention = 'after'", "true", "`before` feeds what it sees anyway.")
        if self.gate and self.attention != "before":
            yield Problem("gate", "false unless attention = 'before'", "true", "Leave it out.")


@dataclass(frozen=True)
class Schedule:
    """The tokens of a batch step by step: the first of all sentences, longest sentence first, then the second, …"""

    sizes: list[int]  # how many sentences have a token at each step
    tokens: Packing  # where the tokens stand in the batch
    turned: Packing  # which token of the same sentence is as far from its end as this is from its start
    last: Int[Tensor, " B"]  # where each sentence ends

    @staticmethod
    def of(source: Tokens) -> "Schedule":
        batch, longest = source.ids.shape
        lengths, order = source.lengths.clamp(min=1).sort(
            descending=True, stable=True
        )  # an empty one has one token here
        step, column = torch.arange(longest)[:, None], torch.arange(batch)
        there = step < lengths  # (S, B)
        sizes = there.sum(1)
        first = sizes.cumsum(0) - sizes  # of each step
        turned = first[(lengths - 1 - step).clamp(min=0)] + column  # (S, B)
        return Schedule(
            [size for size in sizes.tolist() if size],
            Packing((order * longest + step)[there], batch, longest),
            Packing(turned[there], 1, int(sizes.sum())),
            torch.empty_like(order).index_copy_(0, order, first[lengths - 1] + column),
        )


class RnnEncoder(nn.Module):
    """Tokens to a memory of one state each; the summary is the last state of each direction."""

    def __init__(self, config: RnnConfig, embedding: Embedding) -> None:
        super().__init__()
        self.width, self.causal = config.width, not config.bidirectional
        self.embedding, self.cell = embedding, config.cell
        self.rnn = CELLS[config.cell](
            embedding.width,
            config.width // (2 if config.bidirectional else 1),
            config.layers,
            batch_first=True,
            bidirectional=config.bidirectional,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, source: Tokens) -> Memory:
        by_hand = source.ids.device.type == "cpu" and _by_hand(self.embedding.weight, source.ids)
        states, summary = self._scanned(source) if by_hand else self._packed(source)
        summary = summary.masked_fill((source.lengths == 0)[:, None], 0.0)
        return Memory(states.masked_fill(~source.mask[..., None], 0.0), source.mask, self.dropout(summary))

    def _packed(self, source: Tokens) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        # Packed, so that the backward direction starts at each sentence's own end. An empty one counts as one token
        # here, and as none in what is handed on.
        lengths = source.counts.clamp(min=1)
        packed = pack_padded_sequence(
            self.dropout(self.embedding(source.ids)), lengths, batch_first=True, enforce_sorted=False
        )
        states, hidden = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.ids.shape[1])
        last = hidden[0] if isinstance(hidden, tuple) else hidden  # (layers · directions, B, width a direction)
        directions = 2 if self.rnn.bidirectional else 1
        return self.dropout(states), torch.cat(tuple(last[-directions:]), -1)

    def _scanned(self, source: Tokens) -> tuple[Float[Tensor, "B S W"], Float[Tensor, "B W"]]:
        """The same without padding from the start, where PyTorch's own gradient of packed steps is slow."""
        when = Schedule.of(source)
        x = self.dropout(self.embedding(source.ids.flatten()[when.tokens.real]))  # (rows, W)
        start = (x.new_zeros(when.sizes[0], self.rnn.hidden_size),) * (2 if self.cell == "lstm" else 1)
        weights = iter([recurrence.Weights(*each) for each in self.rnn.all_weights])
        for layer in range(self.rnn.num_layers):
            below = self.dropout(x) if layer else x
            x, *_ = recurrence.scan(self.cell, below, when.sizes, start, next(weights))
            last = x[when.last]
            if self.rnn.bidirectional:
                back, *_ = recurrence.scan(self.cell, when.turned.pack(below[None]), when.sizes, start, next(weights))
                x, last = torch.cat((x, when.turned.pack(back[None])), -1), torch.cat((last, back[when.last]), -1)
        return when.tokens.unpack(self.dropout(x)), last


@dataclass(frozen=True)
class RnnState:
    """What a recurrent decoder knows after some steps, of K hypotheses for each of B sentences."""

    hidden: Hidden  # (layers, B · K, W) each
    context: Float[Tensor, "rows fed"]  # the summary, or what the last step fed back; of width 0 where neither is
    keys: Float[Tensor, "B S D"] | None  # the source, projected once
    values: Float[Tensor, "B S C"] | None
    mask: Bool[Tensor, "B 1 S"] | None
    beams: int = 1

    def reorder(self, index: Int[Tensor, " sentences"]) -> "RnnState":
        """The state whose sentence i is sentence index[i] of this one, with all its hypotheses."""
        rows = sentence_rows(index, self.beams)
        return replace(
            self,
            hidden=tuple(h[:, rows] for h in self.hidden),
            context=self.context[rows],
            keys=None if self.keys is None else self.keys[index],
            values=None if self.values is None else self.values[index],
            mask=None if self.mask is None else self.mask[index],
        )

    def follow(self, parents: Int[Tensor, "B K"]) -> "RnnState":
        """The state whose hypothesis k of sentence b goes on from hypothesis parents[b, k]."""
        if self.beams == 1:
            return self
        rows = beam_rows(parents)
        return replace(self, hidden=tuple(h[:, rows] for h in self.hidden), context=self.context[rows])

    def enter(self, rows: Int[Tensor, " n"], fresh: "RnnState") -> "RnnState":
        """The sentences of a state that has not stepped yet, in the place of these."""
        among = sentence_rows(rows, self.beams)
        return replace(
            self,
            hidden=tuple(h.index_copy(1, among, new) for h, new in zip(self.hidden, fresh.hidden, strict=True)),
            context=self.context.index_copy(0, among, fresh.context),
            keys=put_rows(self.keys, rows, fresh.keys),
            values=put_rows(self.values, rows, fresh.values),
            mask=put_masks(self.mask, rows, fresh.mask),
        )

    def detached(self) -> "RnnState":
        """The same, with no gradient to what came before: truncated back-propagation through time."""
        return replace(self, hidden=tuple(h.detach() for h in self.hidden), context=self.context.detach())


class RnnDecoder(nn.Module):
    """Tokens so far, and a memory where there is one, to logits of the next token.

    Where a step does not depend on what was seen before it (no attention; looking after the step without feeding), the
    whole sequence goes through the fused recurrent kernel and all look-ups are one. Otherwise step by step; with one
    gradient for all steps where that is possible.
    """

    def __init__(
        self, config: RnnDecoderConfig, embedding: Embedding, project: Projection, memory_width: int | None
    ) -> None:
        super().__init__()
        self.embedding, self.project, self.cell = embedding, project, config.cell
        self.width, self.layers = config.width, config.layers
        self.looks = "none" if memory_width is None else config.attention
        source = memory_width or 0
        fed = {"none": source, "before": source, "after": config.width if config.feed else 0}[self.looks]
        self.fed, self.one_by_one = fed, self.looks == "before" or (self.looks == "after" and config.feed)
        self.rnn = CELLS[config.cell](
            embedding.width + fed,
            config.width,
            config.layers,
            batch_first=True,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        parts = 2 if config.cell == "lstm" else 1
        begins = memory_width is not None and config.start == "summary"
        self.begin = nn.Linear(source, parts * config.layers * config.width) if begins else None
        self.score = None if self.looks == "none" else SCORES[config.score](config.width, source, None, None)
        self.join = None if self.looks == "none" else nn.Linear(config.width + source, config.width)
        self.gate = nn.Linear(config.width, 1) if config.gate and self.looks == "before" else None
        self.dropout = Dropout(config.dropout)
        self.parts = parts  # of a hidden state

    @property
    def lookers(self) -> list[nn.Module]:
        """The modules that look at the source, first to last."""
        return [] if self.score is None else [self]

    def forward(self, targets: Int[Tensor, "B T"], memory: Memory | None = None) -> Float[Tensor, "B T V"]:
        logits: Tensor = self.project(self.states(targets, memory))
        return logits

    def states(
        self,
        targets: Int[Tensor, "B T"],
        memory: Memory | None = None,
        packing: Packing | None = None,
        weights: Looks | None = None,
    ) -> Float[Tensor, "*lead W"]:
        """What `project` turns into logits; with a packing, of the tokens it names alone, packed."""
        states, _ = self.carry(targets, self.start(memory, batch=targets.shape[0]), weights)
        return states if packing is None else packing.pack(states)

    def carry(
        self, targets: Int[Tensor, "B T"], state: RnnState, weights: Looks | None = None
    ) -> tuple[Float[Tensor, "B T W"], RnnState]:
        """States of a text's next stretch, from where the last ended; `state.detached()` cuts the gradient there.

        A list of `weights` is added to: where each step looked, with its gradient.
        """
        if self.one_by_one and _by_hand(state.keys, targets) and not listening.anyone_changes():
            return self._carry_by_hand(targets, state, weights)
        embedded = self.dropout(self.embedding(targets))
        if not self.one_by_one:
            out, state = self._advance(embedded, state, weights)
        else:
            outs = []
            for t in range(targets.shape[1]):
                out, state = self._advance(embedded[:, t : t + 1], state, weights)
                outs.append(out)
            out = torch.cat(outs, 1) if outs else embedded.new_zeros(*targets.shape, self.width)
        return out, state

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int | None = None, beams: int | None = None
    ) -> RnnState:
        """The state before the first token; any number of tokens may follow, so `capacity` is not needed."""
        state = self._start(memory, batch)
        if beams is None or beams == 1:
            return state
        return replace(
            state,
            hidden=tuple(h.repeat_interleave(beams, 1) for h in state.hidden),
            context=state.context.repeat_interleave(beams, 0),
            beams=beams,
        )

    def _start(self, memory: Memory | None, batch: int) -> RnnState:
        weight = self.project.weight
        zeros = weight.new_zeros(self.layers, batch, self.width)
        hidden: Hidden = (zeros,) * self.parts
        if memory is None:
            return RnnState(hidden, weight.new_zeros(batch, 0), None, None, None)
        if self.begin is not None:
            first = torch.tanh(self.begin(memory.summary)).reshape(batch, self.parts, self.layers, self.width)
            hidden = tuple(part.transpose(0, 1).contiguous() for part in first.unbind(1))
        if self.score is None:
            return RnnState(hidden, memory.summary, None, None, None)
        nothing = weight.new_zeros(batch, self.fed if self.looks == "after" else 0)
        return RnnState(hidden, nothing, self.score.keys(memory.states), memory.states, memory.mask[:, None])

    def step(self, tokens: Int[Tensor, " B"], state: RnnState) -> tuple[Float[Tensor, "B V"], RnnState]:
        out, state = self._advance(self.dropout(self.embedding(tokens[:, None])), state)
        logits: Tensor = self.project(out)[:, 0]
        return logits, state

    def _advance(
        self, embedded: Float[Tensor, "B T W"], state: RnnState, weights: Looks | None = None
    ) -> tuple[Float[Tensor, "B T W"], RnnState]:
        length = embedded.shape[1]
        extra = state.context[:, None].expand(-1, length, -1)  # (B, T, C)
        if self.looks == "before":
            assert length == 1
            query = state.hidden[0][-1][:, None]
            extra = self._look(query, state, weights)
            extra = extra if self.gate is None else torch.sigmoid(self.gate(query)) * extra
        out, hidden = self.rnn(torch.cat((embedded, extra), -1), _pack(state.hidden))
        state = replace(state, hidden=hidden if isinstance(hidden, tuple) else (hidden,))
        if self.join is not None:
            seen = extra if self.looks == "before" else self._look(out, state, weights)
            out = torch.tanh(self.join(torch.cat((out, seen), -1)))
            if self.looks == "after" and self.fed:
                state = replace(state, context=out[:, -1])
        return self.dropout(out), state

    def _carry_by_hand(
        self, targets: Int[Tensor, "B T"], state: RnnState, weights: Looks | None
    ) -> tuple[Float[Tensor, "B T W"], RnnState]:
        """The same steps with one gradient for all of them."""
        assert self.join is not None
        embedded = self.dropout(self.embedding(targets.mT))  # (T, B, W)
        between = None
        if self.layers > 1 and self.training:
            between = self.dropout(embedded.new_ones(self.layers - 1, targets.numel(), self.width))
        rnn = [recurrence.Weights(*each) for each in self.rnn.all_weights]
        layers = looking.Layers(self.cell, rnn, list(zip(*state.hidden, strict=True)), between)
        source = self._source(state, embedded)
        if self.looks == "before":
            gate = None if self.gate is None else (self.gate.weight, self.gate.bias)
            states, seen, looked = looking.look_then_step(layers, source, embedded, gate)
            out = torch.tanh(self.join(torch.cat((states[-1][0], seen), -1)))
        else:
            join = self.join.weight, self.join.bias
            states, out, looked = looking.step_then_look(layers, source, embedded, state.context, *join)
            state = replace(state, context=out[-1])
        if weights is not None:
            weights.append(looked.transpose(0, 1))
        if listening.anyone():
            tops = states[-1][0].detach()  # (T, B, W)
            asked = torch.cat((state.hidden[0][-1].detach()[None], tops[:-1])) if self.looks == "before" else tops
            with torch.no_grad():
                for query in asked:  # once more, for those who listen alone
                    self._look(query[:, None], state)
        last = ((part[-1] for part in layer) for layer in states)
        hidden = tuple(torch.stack(each) for each in zip(*last, strict=True))
        return self.dropout(out).transpose(0, 1), replace(state, hidden=hidden)

    def _source(self, state: RnnState, like: Tensor) -> looking.Source:
        assert self.score is not None
        assert state.keys is not None
        assert state.values is not None
        assert state.mask is not None
        # Queries are linear in the state, so the identity's are the matrix that makes them.
        identity = torch.eye(self.width, dtype=like.dtype, device=like.device)
        matrix = self.score.queries(identity)
        energy = self.score.energy(state.keys.shape[-1])
        return looking.Source(
            state.keys, state.values, state.mask[:, 0], None if matrix is identity else matrix, energy
        )

    def _look(
        self, query: Float[Tensor, "B T W"], state: RnnState, weights: Looks | None = None
    ) -> Float[Tensor, "B T C"]:
        assert self.score is not None
        assert state.keys is not None
        assert state.values is not None
        several = query.view(-1, state.beams, query.shape[-1]) if state.beams > 1 else query  # (B, K, W)
        ready = KeysReady(self.score)
        seen = attend(several, state.keys, state.values, score=ready, mask=state.mask, source=self)
        if weights is not None:
            weights.append(attention_weights(several, state.keys, score=ready, mask=state.mask))
        return seen.view(-1, 1, seen.shape[-1]) if state.beams > 1 else seen


def _by_hand(vectors: Tensor | None, tokens: Tensor) -> bool:
    """Whether gradients are recorded in a way that those written by hand can serve."""
    return (
        torch.is_grad_enabled()
        and vectors is not None
        and vectors.dtype in (torch.float32, torch.float64)
        and vectors.numel() > 0
        and tokens.numel() > 0
        and not torch.is_autocast_enabled(vectors.device.type)
        and not torch.compiler.is_compiling()
    )


def _pack(hidden: Hidden) -> Tensor | Hidden:
    return hidden[0] if len(hidden) == 1 else hidden
