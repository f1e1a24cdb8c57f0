"""The task `forecast`: what follows a window of vectors, all steps of the horizon at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.core.errors import InvalidArgument
from regard.core.sequence import Vectors
from regard.core.shapes import Float, Tensor
from regard.data.corpus import Corpus, SourceVocabularies, VocabularyType
from regard.data.statistics import Statistics
from regard.generation.config import DecodeConfig
from regard.interpret.maps import ForwardPass
from regard.interpret.record import LookInput
from regard.model.horizon_head import Forecaster
from regard.model.memory import masked_mean
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import Model
from regard.tasks.base import LookRequest, TrainedModel
from regard.tasks.inputs import EncodedInput
from regard.tasks.pipeline import EncodedInputs, IndexedOutputs, OutputOptions
from regard.tasks.vector_task import VectorPipeline, VectorTask


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

    def check_examples(
        self, corpus: Corpus, model: ModelConfig, target: VocabularyType
    ) -> tuple[int, InvalidArgument] | None:
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

    def window(self, sources: SourceVocabularies) -> int | None:
        (source,) = sources
        assert isinstance(source, Statistics)
        return source.length

    def separate_channels(self, model: Model) -> int:
        assert isinstance(model, Forecaster)
        head = model.head
        return head.channels if head.is_independent and head.channels > 1 else 0

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        assert isinstance(request.batch, Vectors)
        wanted = self.window(trained.sources)
        assert wanted is not None
        _check_size("text", int(request.batch.lengths[0]), wanted)
        return super().look(trained, request)


class ForecastPipeline(VectorPipeline):
    """The forecasts of a model, in the units of the training data."""

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        wanted = self.task.window(self.trained.sources)
        assert wanted is not None
        for index, size in enumerate(self.inputs.sizes(encoded)):
            name = f"text {index + 1}"
            if options.lines is not None:
                name = f"line {options.lines[index]}"
            _check_size(name, size, wanted)
        yield from super().outputs(encoded, config, options)


def _check_size(name: str, size: int, wanted: int) -> None:
    """Refuse a past that is shorter than the window that the model reads. Of a longer one it was given the end."""
    if size < wanted:
        raise InvalidArgument(
            name,
            wanted=f"at least {wanted} vectors, the window that the model reads",
            got=str(size),
            remedy="Give more of the past.",
        )


def _several_lengths(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"data.{name}",
        wanted="sequences of one length in the training data, for a horizon head",
        got="several lengths",
        remedy="Cut them with [data.series], or use a decoder, which gives outputs of any length.",
    )
