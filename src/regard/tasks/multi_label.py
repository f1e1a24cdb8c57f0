"""The task `multi_label`: any number of labels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from regard.core.errors import Problem
from regard.core.sequence import PackedSequences
from regard.core.shapes import Float, Int, Tensor
from regard.data.batching import Batch, evaluation_batches
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.data.fields.labels import LabelsField
from regard.data.vocabulary import Labels
from regard.evaluation.multilabel_metrics import multilabel_averages
from regard.generation.config import DEFAULT_THRESHOLD, DecodeConfig
from regard.generation.ensemble import MultiLabelEnsemble
from regard.interpret.editing import refuse_output_edits
from regard.interpret.look import LabelSet
from regard.interpret.maps import ForwardPass
from regard.interpret.record import DirectOutput, LookInput
from regard.model.interfaces import Source
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import Model, SourceModel
from regard.tasks.base import LookRequest, PooledTask, TrainedModel
from regard.tasks.carried import CarriedStates
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.pipeline import (
    DirectPipeline,
    EncodedInputs,
    Output,
    OutputOptions,
    SequenceScore,
    check_one_output,
)


class MultiLabel(PooledTask):
    """The labels of each example: a decision about each label, by its own probability."""

    name = "multi_label"
    target_kinds = ("labels",)
    title = "A multi-label classifier"
    gives = "labels"
    metrics = "labels"
    monitors = (
        "loss",
        "average_precision",
        "average_precision_micro",
        "f1",
        "f1_micro",
        "precision",
        "precision_micro",
        "recall",
        "recall_micro",
        "accuracy",
        "hamming_loss",
    )
    has_probabilities = True
    problem_type = "multi_label_classification"
    has_threshold = True
    default_loss = "binary_cross_entropy"
    default_label_smoothing = 0.0

    def training_problems(self, train: Any, model: ModelConfig) -> Iterator[Problem]:
        for key in ("r_drop", "distillation"):
            if value := getattr(train, key):
                wanted = "nothing for a model of several labels, whose probabilities are no softmax"
                yield Problem(f"train.{key}", wanted, repr(value)[:80], "Leave it out.")

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        return ["accuracy", "f1", "f1_micro", "average_precision"]

    def metric_options(self, data: DataConfig, target: VocabularyType | None) -> dict[str, Any]:
        """What metrics of sets of labels need to know: all labels, and how a text spells some."""
        labels = target.names if isinstance(target, Labels) else ()
        return {"labels": labels, "split": data.target.parse}

    def loss(
        self,
        objective: Objective,
        model: Model,
        batch: Batch,
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> BatchLoss:
        gold = batch.targets
        assert isinstance(gold, Tensor)
        assert batch.source is not None
        assert not isinstance(batch.source, PackedSequences)
        found = objective.loss_of_outputs(self, model(batch.source), gold)
        return BatchLoss(found.loss, found.nll, batch.tokens)

    def validation_values(
        self, model: Model, corpus: Corpus, target: VocabularyType, *, budget: int
    ) -> dict[str, float]:
        """Average precision, which no threshold changes."""
        probabilities = []
        gold = []
        device = next(model.parameters()).device
        with torch.no_grad():
            for batch in evaluation_batches(corpus, budget=budget):
                moved = batch.to(device)
                assert isinstance(moved.targets, Tensor)
                probabilities.append(model(moved.source).float().sigmoid().cpu())
                gold.append(moved.targets.cpu())
        return multilabel_averages(
            target.tokens(), torch.cat(probabilities).numpy(), torch.cat(gold).numpy()
        )

    def output_error(self, data: DataConfig, output: str, reference: str) -> float:
        """The share of wrong labels among those that are predicted or right."""
        field = data.target
        predicted = set(field.parse(output))
        gold = set(field.parse(reference))
        return len(predicted ^ gold) / max(1, len(predicted | gold))

    def pipeline(self, trained: TrainedModel) -> "LabelSetPipeline":
        assert isinstance(trained.model, SourceModel)
        assert isinstance(trained.target, Labels)
        assert isinstance(trained.data.target, LabelsField)
        return LabelSetPipeline(trained.model, trained.inputs, trained.target, trained.data.target)

    def ensemble(self, models: Sequence[Model]) -> MultiLabelEnsemble:
        return MultiLabelEnsemble(models)

    def look_output(self, names: Callable[[int], str]) -> DirectOutput:
        return partial(look_labels, names, LabelsField().spell)

    def forward_pass(
        self, model: Model, source: Source | None, labels: Tensor | None
    ) -> ForwardPass:
        return ForwardPass(model, source, None, labels, score=_log_probability, choose=_likely)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        refuse_output_edits(request.edits)
        assert isinstance(trained.target, Labels)
        field = trained.data.target
        assert isinstance(field, LabelsField)
        if request.output is None:
            ids = list(request.search())
        else:
            (ids,) = field.encode(trained.target, [field.parse(request.output)])
        device = next(trained.model.parameters()).device
        labels = torch.tensor(ids, dtype=torch.int64, device=device)
        shown = replace(
            request.shown,
            direct_output=partial(look_labels, trained.target.decode, field.spell),
        )
        return self.forward_pass(trained.model, request.batch, labels), shown


def _likely(logits: Float[Tensor, "1 L"]) -> Int[Tensor, " T"]:
    chosen: Tensor = (logits[0].sigmoid() >= DEFAULT_THRESHOLD).nonzero().flatten()
    return chosen


def _log_probability(
    logits: Float[Tensor, "1 L"], labels: Int[Tensor, " T"]
) -> Float[Tensor, " T"]:
    """Of each of these labels."""
    return F.logsigmoid(logits[0].float())[labels]


def look_labels(
    names: Callable[[int], str],
    spell: Callable[[Sequence[str]], str],
    labels: Tensor,
    scores: Tensor,
) -> LabelSet:
    """Labels with their log-probabilities."""
    chosen = tuple(names(label) for label in labels.tolist())
    return LabelSet(spell(chosen), chosen, tuple(scores.tolist()))


@dataclass(frozen=True)
class LabelSetPipeline(DirectPipeline):
    """The labels whose probability reaches their threshold, and the probability of each."""

    labels: Labels
    field: LabelsField

    @property
    def gives(self) -> str:
        return "labels"

    def predicted(
        self, results: Tensor, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[list[Output]]:
        check_one_output(config, "several labels")
        log_p = F.logsigmoid(results)
        probabilities = log_p.exp().tolist()
        of_absence = F.logsigmoid(-results).tolist()
        thresholds = [config.threshold_of(name) for name in self.labels.names]
        for yes, no, row in zip(log_p.tolist(), of_absence, probabilities, strict=True):
            decided = [p >= threshold for p, threshold in zip(row, thresholds, strict=True)]
            ids = [i for i, is_chosen in enumerate(decided) if is_chosen]
            chosen = tuple(self.labels.names[i] for i in ids)
            # Of these labels and no others.
            score = sum(yes[i] if is_chosen else no[i] for i, is_chosen in enumerate(decided))
            yield [
                Output(
                    self.field.spell(chosen),
                    chosen,
                    score=score if options.scores else None,
                    probabilities=self._ranked(row),
                    labels=chosen,
                    token_ids=tuple(ids),
                )
            ]

    def _ranked(self, probabilities: Sequence[float]) -> dict[str, float]:
        order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
        return {self.labels.names[i]: probabilities[i] for i in order}

    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        """The log-probability of each decision: that a label is there, or that it is not."""
        ids = self.field.encode(self.labels, [self.field.parse(target) for target in targets])
        found: dict[int, SequenceScore] = {}
        for rows, results in self.results(encoded, batch_tokens):
            for row, logits in zip(rows, results, strict=True):
                signs = torch.full_like(logits, -1.0)
                signs[ids[row]] = 1.0
                decided = F.logsigmoid(signs * logits).tolist()
                found[row] = SequenceScore(self.labels.names, tuple(decided))
        return [found[row] for row in range(len(targets))]
