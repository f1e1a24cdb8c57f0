"""The task `regress`: one number, or several."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import PackedSequences
from regard.core.shapes import Tensor
from regard.data.batching import Batch, evaluation_batches
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.data.fields.number import numbers_text, parse_numbers
from regard.data.statistics import Statistics
from regard.generation.config import DecodeConfig
from regard.generation.ensemble import RegressionEnsemble
from regard.interpret.look import Numbers
from regard.interpret.record import DirectOutput
from regard.model.seq2seq import Classifier, Model, SourceModel
from regard.tasks.base import PooledTask, TrainedModel
from regard.tasks.carried import CarriedStates
from regard.tasks.number_outputs import NumberOutputs, NumberTask
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.pipeline import (
    Output,
    OutputOptions,
    check_one_output,
)


class Regress(NumberTask, PooledTask):
    """Numbers of each example, such as a rating or a price."""

    name = "regress"
    target_kinds = ("number",)
    title = "A regression model"
    gives = "numbers"
    metrics = "number"
    monitors = ("loss", "mse", "mae", "r2", "rmse", "pearson", "spearman")
    noun = "numbers"
    problem_type = "regression"

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        return ["mse", "mae", "r2", "spearman"]

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
        assert isinstance(target, Statistics)
        return regression_errors(model, corpus, target, budget=budget)

    def output_error(self, data: DataConfig, output: str, reference: str) -> float:
        """The mean absolute error."""
        numbers = parse_numbers(output, "numbers")
        gold = parse_numbers(reference, "numbers")
        return float(abs(numbers - gold).mean())

    def pipeline(self, trained: TrainedModel) -> "NumberPipeline":
        assert isinstance(trained.model, SourceModel)
        assert isinstance(trained.target, Statistics)
        return NumberPipeline(trained.model, trained.inputs, trained.target)

    def ensemble(self, models: Sequence[Model]) -> RegressionEnsemble:
        return RegressionEnsemble(models)

    def exported(self, model: Model, target: VocabularyType) -> Model:
        """A copy whose last layer gives numbers in the units of the data."""
        assert isinstance(target, Statistics)
        if set(target.scale) == {1.0} and set(target.mean) == {0.0}:
            return model
        if not isinstance(model, Classifier):
            raise InvalidArgument(
                "model",
                wanted="a regression whose last layer is linear, or data.target.normalize = false",
                got=type(model).__name__,
                remedy="Its numbers would be exported as normalized.",
            )
        copied = copy.deepcopy(model)
        for layer in copied.classifier.modules():
            if isinstance(layer, nn.Linear):
                scale = layer.weight.new_tensor(target.scale)
                mean = layer.weight.new_tensor(target.mean)
                layer.weight.data *= scale[:, None]
                layer.bias.data = layer.bias.data * scale + mean
        return copied

    def look_output(self, names: Callable[[int], str]) -> DirectOutput:
        return look_numbers

    def shown_output(self, statistics: Statistics) -> DirectOutput:
        return partial(look_numbers, statistics=statistics)


def look_numbers(
    places: Tensor, numbers: Tensor, *, statistics: Statistics | None = None
) -> Numbers:
    """Numbers in the units of the training data; without `statistics`, as the model gives them."""
    if statistics is None:
        statistics = Statistics([0.0] * len(numbers), [1.0] * len(numbers))
    restored = statistics.restore(numbers.detach().double().cpu().numpy())
    return Numbers(numbers_text(restored.tolist(), statistics), tuple(restored.tolist()))


@torch.no_grad()
def regression_errors(
    model: Model, corpus: Corpus, statistics: Statistics, *, budget: int
) -> dict[str, float]:
    """Squared and absolute error and R², in the units of the data; `budget` is the tokens per batch.

    Of several numbers, the mean over them. R² is NaN where all targets are equal.
    """
    device = next(model.parameters()).device
    predicted = []
    gold = []
    for batch in evaluation_batches(corpus, budget=budget):
        moved = batch.to(device)
        assert isinstance(moved.targets, Tensor)
        predicted.append(model(moved.source).double().cpu())
        gold.append(moved.targets.double().cpu())
    scale = torch.tensor(statistics.scale, dtype=torch.float64)
    targets = torch.cat(gold) * scale  # (N, K), without the mean, which none of these depends on
    errors = torch.cat(predicted) * scale - targets
    squared = errors.square().sum(0)
    deviations = (targets - targets.mean(0)).square().sum(0)
    # A target that is the same in all examples has no variance to explain.
    explained = torch.where(deviations > 0, 1 - squared / deviations, torch.nan)
    return {
        "mse": float(squared.mean() / len(targets)),
        "mae": float(errors.abs().mean()),
        "r2": float(explained.mean()),
    }


@dataclass(frozen=True)
class NumberPipeline(NumberOutputs):
    """The numbers of a regression, in the units of the training data."""

    noun = "numbers"
    statistics: Statistics

    @property
    def gives(self) -> str:
        return "numbers"

    def predicted(
        self, results: Tensor, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[list[Output]]:
        check_one_output(config, self.gives)
        restored = self.statistics.restore(results.detach().double().cpu().numpy())
        for row in restored.tolist():
            text = numbers_text(row, self.statistics)
            yield [Output(text, tuple(text.split(" ")), numbers=tuple(row))]
