"""The task `classify`: one label."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import exp
from typing import Any

import torch

from regard.core.errors import Problem
from regard.core.sequence import PackedSequences
from regard.core.shapes import Tensor
from regard.data.batching import Batch, evaluation_batches
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.data.vocabulary import Labels
from regard.generation.config import DecodeConfig
from regard.generation.ensemble import ClassifierEnsemble
from regard.interpret.editing import refuse_output_edits
from regard.interpret.maps import ForwardPass
from regard.interpret.record import DirectOutput, LookInput
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import Model, SourceModel
from regard.tasks.base import LookRequest, PooledTask, TrainedModel
from regard.tasks.carried import CarriedStates
from regard.tasks.look_inputs import look_label
from regard.tasks.loss_terms import Predictions
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.pipeline import (
    DirectPipeline,
    EncodedInputs,
    Output,
    OutputOptions,
    SequenceScore,
)


class Classify(PooledTask):
    """One label for each example."""

    name = "classify"
    target_kinds = ("label",)
    title = "A classifier"
    gives = "labels"
    metrics = "label"
    monitors = ("loss", "perplexity", "accuracy")
    has_probabilities = True
    problem_type = "single_label_classification"
    default_loss = "cross_entropy"

    def training_problems(self, train: Any, model: ModelConfig) -> Iterator[Problem]:
        if train.loss in (None, self.default_loss):
            return
        for key in ("r_drop", "distillation"):
            if value := getattr(train, key):
                wanted = f"nothing with train.loss = {train.loss!r}"
                yield Problem(f"train.{key}", wanted, repr(value)[:80], "Leave one of them out.")

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        return ["accuracy", "f1"]

    def loss(
        self,
        objective: Objective,
        model: Model,
        batch: Batch,
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> BatchLoss:
        source = batch.source
        gold = batch.targets
        assert isinstance(gold, Tensor)
        assert source is not None
        assert not isinstance(source, PackedSequences)
        if objective.output_loss not in (None, self.default_loss):
            found = objective.loss_of_outputs(self, model(source), gold)
            return BatchLoss(found.loss, found.nll, len(gold))
        teachers = objective.teach(lambda teacher: Predictions(teacher(source)))
        logits = model(objective.repeated(source)).float()
        losses = objective.total(Predictions(logits), gold, teachers)
        return BatchLoss(losses.loss, losses.nll, len(gold))

    def validation_values(
        self, model: Model, corpus: Corpus, target: VocabularyType, *, budget: int
    ) -> dict[str, float]:
        return {"accuracy": label_accuracy(model, corpus, budget=budget)}

    def pipeline(self, trained: TrainedModel) -> "LabelPipeline":
        assert isinstance(trained.model, SourceModel)
        assert isinstance(trained.target, Labels)
        return LabelPipeline(trained.model, trained.inputs, trained.target)

    def ensemble(self, models: Sequence[Model]) -> ClassifierEnsemble:
        return ClassifierEnsemble(models)

    def look_output(self, names: Callable[[int], str]) -> DirectOutput:
        return partial(look_label, names)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        refuse_output_edits(request.edits)
        assert isinstance(trained.target, Labels)
        label = None
        if request.output is not None:
            device = next(trained.model.parameters()).device
            label = torch.tensor([trained.target.encode(request.output)], device=device)
        shown = replace(request.shown, direct_output=self.look_output(trained.target.decode))
        return self.forward_pass(trained.model, request.batch, label), shown


@torch.no_grad()
def label_accuracy(model: Model, corpus: Corpus, *, budget: int) -> float:
    """The share of examples whose most likely label is the right one; `budget` is the tokens per batch."""
    device = next(model.parameters()).device
    right = 0
    count = 0
    for batch in evaluation_batches(corpus, budget=budget):
        moved = batch.to(device)
        labels = model(moved.source).argmax(-1)  # (B,)
        right += int((labels == moved.targets).sum())
        count += len(labels)
    return right / max(1, count)


@dataclass(frozen=True)
class LabelPipeline(DirectPipeline):
    """The labels of a classifier, most likely first."""

    labels: Labels

    @property
    def gives(self) -> str:
        return "labels"

    def predicted(
        self, results: Tensor, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[list[Output]]:
        ranked = results.log_softmax(-1).sort(descending=True, stable=True)
        for values, ids in zip(ranked.values.tolist(), ranked.indices.tolist(), strict=True):
            named = dict(zip(map(self.labels.decode, ids), values, strict=True))
            probabilities = {name: exp(value) for name, value in named.items()}
            yield [
                Output(
                    name,
                    (name,),
                    (value,) if options.scores else None,
                    value if options.scores else None,
                    probabilities=probabilities,
                )
                for name, value in islice(named.items(), config.num_hypotheses)
            ]

    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        ids = [self.labels.encode(target) for target in targets]
        found: dict[int, SequenceScore] = {}
        for rows, results in self.results(encoded, batch_tokens):
            for row, values in zip(rows, results.log_softmax(-1).tolist(), strict=True):
                found[row] = SequenceScore((targets[row],), (values[ids[row]],))
        return [found[row] for row in range(len(targets))]
