"""The task `forecast`: what follows a window of vectors, all steps of the horizon at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Vectors
from regard.core.shapes import Float, Tensor
from regard.data.batching import evaluation_batches
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, SourceVocabularies, VocabularyType
from regard.data.statistics import Statistics
from regard.decoding.config import DecodeConfig
from regard.interpret.maps import ForwardPass
from regard.interpret.record import LookInput
from regard.model.horizon_head import Forecaster
from regard.model.memory import masked_mean
from regard.tasks.base import LookRequest, TrainedModel
from regard.tasks.inputs import EncodedInput
from regard.tasks.pipeline import EncodedInputs, IndexedOutputs, OutputOptions
from regard.tasks.vector_task import VectorPipeline, VectorTask, errors_by_number

EVALUATED_AT_ONCE = 1 << 16  # tokens of a batch whose forecasts are repetitions


class Forecast(VectorTask):
    """The vectors after those of the source."""

    name = "forecast"
    head = "horizon"
    title = "A forecasting model"
    gives = "forecasts"
    continues_source = True

    def sizes(self, target: VocabularyType) -> dict[str, Any]:
        assert isinstance(target, Statistics)
        if target.length is None:
            raise _several_lengths("target")
        return super().sizes(target) | {"horizon": target.length}

    def source_sizes(self, sources: SourceVocabularies) -> dict[str, Any]:
        (source,) = sources
        assert isinstance(source, Statistics)
        if source.length is None:
            raise _several_lengths("source")
        return {"source_length": source.length}

    def check_examples(self, corpus: Corpus) -> tuple[int, InvalidArgument] | None:
        """The first example whose window or horizon has not the length of the first one."""
        assert corpus.source is not None
        every = np.arange(len(corpus))
        for name, column in (("source", corpus.source), ("target", corpus.target)):
            lengths = column.lengths(every)
            wrong = np.flatnonzero(lengths != lengths[0])
            if len(wrong):
                place = int(wrong[0])
                wanted = f"{lengths[0]} vectors, as in the first example"
                got = str(lengths[place])
                remedy = "Give all windows one length, and all horizons one."
                return place, InvalidArgument(name, wanted=wanted, got=got, remedy=remedy)
        return None

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

    def output_lengths(self, trained: TrainedModel, sizes: Sequence[int]) -> list[int]:
        assert isinstance(trained.target, Statistics)
        assert trained.target.length is not None
        return [trained.target.length] * len(sizes)

    def pipeline(self, trained: TrainedModel) -> "ForecastPipeline":
        pipeline = super().pipeline(trained)
        return ForecastPipeline(pipeline.model, pipeline.inputs, trained, self)

    def embed(self, trained: TrainedModel, encoded: Sequence[EncodedInput]) -> Float[Tensor, "B W"]:
        """The mean state of a window; of independent channels, the mean over them."""
        model = trained.model
        memory = model.encode(trained.inputs.collate(encoded))
        assert memory is not None
        means = masked_mean(memory.states, memory.mask)
        return means.view(len(encoded), -1, means.shape[-1]).mean(1)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        """Where channels are independent, the attention that is shown is that of the first."""
        assert isinstance(trained.model, Forecaster)
        forward, shown = super().look(trained, request)
        if trained.model.head.is_independent and trained.model.head.channels > 1:
            shown = replace(shown, title=f"channel 1 of {shown.title}")
        return forward, shown


class ForecastPipeline(VectorPipeline):
    """The forecasts of a model, in the units of the training data."""

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        (source,) = self.trained.sources
        assert isinstance(source, Statistics)
        wanted = source.length
        assert wanted is not None
        cut = []
        for number, (window, size) in enumerate(
            zip(encoded, self.inputs.sizes(encoded), strict=True), start=1
        ):
            if size < wanted:
                raise InvalidArgument(
                    f"text {number}",
                    wanted=f"at least {wanted} vectors, the window that the model reads",
                    got=str(size),
                    remedy="Give more of the past.",
                )
            # The latest vectors of a longer past.
            cut.append(np.asarray(window)[size - wanted :])
        yield from super().outputs(cut, config, options)


def _several_lengths(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"data.{name}",
        wanted="sequences of one length in the training data, for a horizon head",
        got="several lengths",
        remedy="Cut them with [data.series], or use a decoder, which gives outputs of any length.",
    )


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
