"""What the tasks whose outputs are sequences of vectors have in common: their loss, metrics, outputs and looks."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import Packed, Vectors
from regard.core.shapes import Bool, Float, Tensor
from regard.data.batching import Batch, evaluation_batches
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.data.fields.number import DIGITS, MOST_DECIMALS
from regard.data.fields.vectors import array_text, read_array_text
from regard.data.statistics import Statistics
from regard.generation.batch_plan import forward_batch_tokens
from regard.generation.config import DecodeConfig
from regard.generation.ensemble import VectorsEnsemble
from regard.interpret.look import PredictedVectors
from regard.interpret.record import DirectOutput
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import Model, SourceModel
from regard.tasks.base import TrainedModel
from regard.tasks.carried import CarriedStates
from regard.tasks.number_outputs import NumberOutputs, NumberTask
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.pipeline import (
    EncodedInputs,
    IndexedOutputs,
    Output,
    OutputOptions,
    check_direct_options,
    check_one_output,
)

EVALUATED_AT_ONCE = 1 << 16  # tokens of a batch whose forecasts are repetitions


class VectorTask(NumberTask):
    """A task whose outputs are sequences of vectors, computed in one forward pass."""

    target_kinds = ("vectors",)
    gives = "sequences of vectors"
    metrics = "vectors"
    monitors = ("loss", "normalized_mse", "normalized_mae", "mse", "mae")
    noun = "vectors"

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        fields = data.source_fields
        if len(fields) == 1 and "vectors" not in fields[0].input_kinds():
            wanted = "'vectors', of which a model with this head makes others"
            yield Problem("data.source.kind", wanted, repr(fields[0].kind), "Change it.")

    def sizes(self, target: VocabularyType) -> dict[str, Any]:
        return {"num_labels": target.size}

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        return ["normalized_mse", "normalized_mae", "mse", "mae"]

    def metric_options(self, data: DataConfig, target: VocabularyType | None) -> dict[str, Any]:
        assert isinstance(target, Statistics)
        return {"scale": target.scale}

    def metrics_of(self, data: DataConfig) -> str:
        has_season = data.series is not None and data.series.season is not None
        return "forecast" if has_season else self.metrics

    def baseline_values(
        self, data: DataConfig, corpus: Corpus, target: VocabularyType
    ) -> dict[str, float]:
        """The errors of repeating the last season of each window, normalized."""
        assert isinstance(target, Statistics)
        assert data.series is not None
        assert data.series.season is not None
        found = seasonal_naive_errors(corpus, target, data.series.season)
        return {f"seasonal_naive_{name}": value for name, value in found.items()}

    def loss(
        self,
        objective: Objective,
        model: Model,
        batch: Batch,
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> BatchLoss:
        assert batch.source is not None
        assert not isinstance(batch.source, Packed)
        assert isinstance(batch.targets, Vectors)
        predicted, gold, known = aligned(model(batch.source), batch.targets)
        found = objective.loss_of_outputs(self, predicted, gold, known)
        return BatchLoss(found.loss, found.nll, batch.tokens)

    def validation_values(
        self, model: Model, corpus: Corpus, target: VocabularyType, *, budget: int
    ) -> dict[str, float]:
        assert isinstance(target, Statistics)
        return vector_errors(model, corpus, target, budget=budget, outputs_of=self.outputs_of)

    def outputs_of(self, model: Model, batch: Batch) -> Float[Tensor, "B T D"]:
        """The outputs for a batch of a validation."""
        outputs: Tensor = model(batch.source)
        return outputs

    def output_error(self, data: DataConfig, output: str, reference: str) -> float:
        """The mean absolute error."""
        return float(np.nanmean(np.abs(read_array_text(output) - read_array_text(reference))))

    def ensemble(self, models: Sequence[Model]) -> Model:
        return VectorsEnsemble(models, self.name)

    @abstractmethod
    def output_lengths(self, trained: TrainedModel, sizes: Sequence[int]) -> list[int]:
        """The number of vectors of each output, for inputs of these sizes."""

    def pipeline(self, trained: TrainedModel) -> "VectorPipeline":
        assert isinstance(trained.model, SourceModel)
        return VectorPipeline(trained.model, trained.inputs, trained, self)

    def shown_output(self, statistics: Statistics) -> DirectOutput:
        return partial(look_vectors, statistics=statistics)


def aligned(
    outputs: Float[Tensor, "B T D"], gold: Vectors
) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"], Bool[Tensor, "N D"]]:
    """Outputs and targets as rows, and which numbers of the targets are known: no padding, none that is missing."""
    if outputs.shape != gold.values.shape:
        raise InvalidArgument(
            "target",
            wanted=f"{outputs.shape[1]} vectors for each of these sources, as the model gives them",
            got=str(gold.values.shape[1]),
            remedy="Give each source a target of its length.",
        )
    known = gold.places[..., None] & ~gold.values.isnan()  # (B, T, D)
    return outputs.flatten(0, 1), gold.values.flatten(0, 1), known.flatten(0, 1)


@torch.no_grad()
def vector_errors(
    model: Model,
    corpus: Corpus,
    statistics: Statistics,
    *,
    budget: int,
    outputs_of: Callable[[Model, Batch], Tensor],
) -> dict[str, float]:
    """Squared and absolute error over all numbers that are known, normalized and in the units of the data.

    outputs_of   the model's outputs (B, T, D) for a batch
    """
    device = next(model.parameters()).device
    squared = torch.zeros(statistics.size, dtype=torch.float64)
    absolute = torch.zeros(statistics.size, dtype=torch.float64)
    count = 0
    for batch in evaluation_batches(corpus, budget=budget):
        moved = batch.to(device)
        assert isinstance(moved.targets, Vectors)
        more = errors_by_number(outputs_of(model, moved), moved.targets)
        squared += more.squared
        absolute += more.absolute
        count += more.numbers
    scale = torch.tensor(statistics.scale, dtype=torch.float64)
    count = max(1, count)
    return {
        "normalized_mse": float(squared.sum()) / count,
        "normalized_mae": float(absolute.sum()) / count,
        "mse": float((squared * scale.square()).sum()) / count,
        "mae": float((absolute * scale).sum()) / count,
    }


class NumberErrors(NamedTuple):
    """Sums of squared and absolute errors of each number of the vectors, and how many numbers are known."""

    squared: Float[Tensor, " D"]
    absolute: Float[Tensor, " D"]
    numbers: int


def errors_by_number(outputs: Float[Tensor, "B T D"], targets: Vectors) -> NumberErrors:
    """The errors of a batch, in float64 on the CPU."""
    predicted, gold, known = aligned(outputs, targets)
    errors = (predicted.double() - gold.double()).masked_fill(~known, 0.0)  # (N, D)
    squared = errors.square().sum(0).cpu()
    return NumberErrors(squared, errors.abs().sum(0).cpu(), int(known.sum()))


def seasonal_naive_errors(corpus: Corpus, statistics: Statistics, season: int) -> dict[str, float]:
    """The normalized errors of repeating the last `season` rows of each window until the end of its horizon.

    The channels that are forecast are the first of the source. A number that is missing in the
    season, or in the target, counts nowhere.
    """
    squared = torch.zeros(statistics.size, dtype=torch.float64)
    absolute = torch.zeros(statistics.size, dtype=torch.float64)
    count = 0
    for batch in evaluation_batches(corpus, budget=EVALUATED_AT_ONCE):
        source = batch.source
        assert isinstance(source, Vectors)
        assert isinstance(batch.targets, Vectors)
        horizon = batch.targets.values.shape[1]
        last = source.values[:, -season:, : statistics.size]
        repeated = last.repeat(1, -(-horizon // season), 1)[:, :horizon]
        known = ~repeated.isnan()
        gold = Vectors(batch.targets.values.masked_fill(~known, torch.nan), batch.targets.lengths)
        more = errors_by_number(repeated.nan_to_num(0.0), gold)
        squared += more.squared
        absolute += more.absolute
        count += more.numbers
    return {
        "mse": float(squared.sum()) / max(1, count),
        "mae": float(absolute.sum()) / max(1, count),
    }


def decimals_of(statistics: Statistics) -> list[int]:
    """The decimals with which each number of a vector is written: as many as float32 has at this scale."""
    exact = [DIGITS - 1 - math.floor(math.log10(scale)) for scale in statistics.scale]
    return [min(decimals, MOST_DECIMALS) for decimals in exact]


def look_vectors(places: Tensor, numbers: Tensor, *, statistics: Statistics) -> PredictedVectors:
    """Vectors in the units of the training data."""
    rows = numbers.detach().double().cpu().numpy().reshape(-1, statistics.size)
    restored = statistics.restore(rows)
    text = array_text(restored, decimals_of(statistics))
    return PredictedVectors(text, tuple(map(tuple, restored.tolist())))


@dataclass(frozen=True)
class VectorPipeline(NumberOutputs):
    """The vectors of a model, in the units of the training data."""

    noun = "vectors"
    trained: TrainedModel
    task: VectorTask

    @property
    def gives(self) -> str:
        return "sequences of vectors"

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        check_direct_options(options, self.gives)
        check_one_output(config, self.gives)
        lengths = self.task.output_lengths(self.trained, self.inputs.sizes(encoded))
        for rows, results in self.results(encoded, forward_batch_tokens(config, self.model)):
            for row, result in zip(rows, results.detach().cpu().double().numpy(), strict=True):
                yield row, [self._output(result[: lengths[row]])]

    def _output(self, normalized: NDArray[np.float64]) -> Output:
        assert isinstance(self.trained.target, Statistics)
        restored = self.trained.target.restore(normalized)
        text = array_text(restored, decimals_of(self.trained.target))
        return Output(text, vectors=tuple(map(tuple, restored.tolist())))

    def predicted(
        self, results: Tensor, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[list[Output]]:
        for result in results.detach().cpu().double().numpy():
            yield [self._output(result)]
