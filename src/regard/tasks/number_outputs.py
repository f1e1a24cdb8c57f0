"""What the tasks have in common whose outputs are numbers: no probabilities, none that are given, and their looks."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from regard.core.errors import InvalidArgument, Problem
from regard.core.shapes import Float, Tensor
from regard.data.statistics import Statistics
from regard.interpret.editing import refuse_output_edits
from regard.interpret.maps import ForwardPass
from regard.interpret.record import DirectOutput, LookInput
from regard.model.interfaces import Source
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import Model
from regard.tasks.base import LookRequest, Task, TrainedModel
from regard.tasks.pipeline import DirectPipeline, EncodedInputs, SequenceScore


class NumberTask(Task):
    """A task whose outputs are numbers: one or several, or sequences of vectors.

    noun   of its outputs, for messages
    """

    noun: ClassVar[str]
    has_scores = False
    default_loss = "mse"
    default_label_smoothing = 0.0

    def training_problems(self, train: Any, model: ModelConfig) -> Iterator[Problem]:
        for key in ("label_smoothing", "r_drop", "distillation"):
            value = getattr(train, key)
            if value:
                wanted = f"nothing for a model that gives {self.noun}, which are no distribution"
                yield Problem(f"train.{key}", wanted, repr(value)[:80], "Leave it out.")

    @abstractmethod
    def shown_output(self, statistics: Statistics) -> DirectOutput:
        """What makes the output of a look from the places of numbers and the normalized numbers."""

    def forward_pass(
        self, model: Model, source: Source | None, labels: Tensor | None
    ) -> ForwardPass:
        """What a label is elsewhere is here the place of a number, and its score the number."""
        if labels is not None:
            raise self._given_output(str(labels.tolist()))
        return ForwardPass(model, source, None, None, score=number_at, choose=places)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        refuse_output_edits(request.edits)
        if request.output is not None:
            raise self._given_output(repr(request.output))
        assert isinstance(trained.target, Statistics)
        shown = replace(request.shown, direct_output=self.shown_output(trained.target))
        return self.forward_pass(trained.model, request.batch, None), shown

    def _given_output(self, got: str) -> InvalidArgument:
        return InvalidArgument(
            "output",
            wanted=f"none for a model that gives {self.noun}",
            got=got[:60],
            remedy="Leave it out.",
        )


class NumberOutputs(DirectPipeline):
    """Outputs that have no probability by which they could be scored.

    noun   of the outputs, for messages
    """

    noun: ClassVar[str]

    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        raise InvalidArgument(
            "model",
            wanted="one that gives probabilities",
            got=f"one that gives {self.noun}",
            remedy=f"Use regard evaluate, which compares its {self.noun} with others.",
        )


def places(outputs: Float[Tensor, "*lead D"]) -> Tensor:
    """The places of the numbers of an output."""
    return torch.arange(outputs.numel(), device=outputs.device)


def number_at(outputs: Float[Tensor, "*lead D"], places: Tensor) -> Tensor:
    """The numbers at these places."""
    return outputs.flatten().float()[places]
