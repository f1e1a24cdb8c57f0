"""The keys of a recurrent decoder in a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from regard.core.config import Count, Probability, doc
from regard.core.errors import Problem
from regard.model.part_config import NO_SOURCE, DecoderConfig, UnusedKeys
from regard.model.rnn_encoder import CellName
from regard.model.scores import SCORES, ScoreName
from regard.model.word_vector_keys import WordVectorKeys

ContextName = Literal["summary", "initial_state", "none"]


@dataclass(frozen=True)
class RnnDecoderConfig(WordVectorKeys, DecoderConfig):
    cell: CellName = doc("gru", "recurrent cell")
    dim: Count = doc(256, "dimension of the hidden state")
    layers: Count = doc(1, "number of layers")
    dropout: Probability = doc(0.1, "dropout of inputs, between layers and of the output")
    input_dropout: Probability | None = doc(None, "dropout of inputs; left out: dropout")
    layer_dropout: Probability | None = doc(None, "dropout between layers; left out: dropout")
    recurrent_dropout: Probability = doc(
        0.0,
        "DropConnect: dropout of the hidden-to-hidden weights, once for a batch",
        arxiv="1708.02182",
    )
    variational_dropout: bool = doc(
        False, "the same dropout mask at all positions of a sequence", arxiv="1512.05287"
    )
    initial_state: Literal["summary", "mlp", "zero"] = doc(
        "summary",
        "initial hidden state: tanh of a linear layer of the summary, tanh of an MLP of it with "
        "one hidden layer, or zero",
    )
    context: ContextName = doc(
        "summary",
        'with attention = "none", what every step reads besides its token: the summary, the '
        "initial hidden state of the last layer, or nothing",
    )
    attention: Literal["none", "bahdanau", "luong"] = doc(
        "bahdanau",
        '"bahdanau" attends before each step (https://arxiv.org/abs/1409.0473), "luong" after it '
        "(https://arxiv.org/abs/1508.04025)",
    )
    score: ScoreName = doc("additive", "attention score function")
    input_feeding: bool = doc(
        False, 'with "luong": feed the last attentional state to the next step', arxiv="1508.04025"
    )
    context_gate: bool = doc(
        False, 'with "bahdanau": a learned gate scales the context vector', arxiv="1502.03044"
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.input_feeding and self.attention != "luong":
            wanted = "false unless attention = 'luong'"
            remedy = "'bahdanau' always feeds the context."
            yield Problem("input_feeding", wanted, "true", remedy)
        if self.context_gate and self.attention != "bahdanau":
            yield Problem(
                "context_gate", "false unless attention = 'bahdanau'", "true", "Leave it out."
            )
        if self.layers == 1 and self.layer_dropout is not None:
            yield Problem(
                "layer_dropout", "nothing with one layer", str(self.layer_dropout), "Leave it out."
            )

    @property
    def stepwise(self) -> bool:
        """Whether, given a memory, a step depends on the context of an earlier one."""
        return self.attention == "bahdanau" or self.input_feeding

    @property
    def attends(self) -> bool:
        return self.attention != "none"

    @property
    def reads_summary(self) -> bool:
        feeds_summary = self.context == "summary" and not self.attends
        return self.initial_state != "zero" or feeds_summary

    def memory_conflicts(self, memory_dim: int) -> Iterator[Problem]:
        if self.initial_state == "zero" and not self.attends and self.context != "summary":
            yield Problem(
                "context",
                "'summary' with initial_state = 'zero' and without attention: the output could "
                "not depend on the source",
                repr(self.context),
                "Change one of the two.",
            )
        if self.attends and SCORES[self.score].equal_dims and self.dim != memory_dim:
            got = f"{self.dim} and {memory_dim}"
            yield Problem("score", f"equal dims for {self.score!r}", got, "Use 'bilinear'.")
        for key in ("recurrent_dropout", "variational_dropout") if self.stepwise else ():
            if given := getattr(self, key):
                wanted = "nothing with 'bahdanau' or input_feeding, which are computed step by step"
                yield Problem(
                    key, wanted, str(given), "Use attention = 'luong' without input_feeding."
                )

    def unused_as_decoder(self, *, has_memory: bool) -> UnusedKeys:
        if not has_memory:
            keys = ("attention",) if self.attends else ()
            keys = (*keys, "initial_state", "context", "input_feeding", "score")
            yield from ((key, NO_SOURCE) for key in keys)
        elif not self.attends:
            yield "score", "with attention = 'none' there is nothing to score"
        else:
            yield "context", "attention computes another context for every step"
