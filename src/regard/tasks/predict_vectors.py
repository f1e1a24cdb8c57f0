"""The task `predict_vectors`: a vector for each position of the source, as in denoising."""

from collections.abc import Iterator, Sequence

import numpy as np

from regard.core.errors import InvalidArgument, Problem
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.model.model_config import ModelConfig
from regard.tasks.base import TrainedModel
from regard.tasks.vector_task import VectorTask


class PredictVectors(VectorTask):
    """A vector for each vector of the source: without its noise, say, or the one after it."""

    name = "predict_vectors"
    head = "vectors"
    title = "A model of sequences of vectors"

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        yield from super().recipe_problems(model, data)
        for name, module in zip(model.encoder_names, model.inputs, strict=True):
            stride = getattr(module.config, "stride", 1)
            if stride != 1:
                wanted = "1, so that each vector has a state from which another is predicted"
                yield Problem(f"model.{name}.input.stride", wanted, str(stride), "Leave it out.")

    def check_examples(
        self, corpus: Corpus, model: ModelConfig, target: VocabularyType
    ) -> tuple[int, InvalidArgument] | None:
        """The first target that is not of the length of its source."""
        assert corpus.source is not None
        every = np.arange(len(corpus))
        sources = corpus.source.lengths(every)
        targets = corpus.target.lengths(every)
        wrong = np.flatnonzero(sources != targets)
        if not len(wrong):
            return None
        first = int(wrong[0])
        error = InvalidArgument(
            "target",
            wanted=f"{sources[first]} vectors, one for each of the source",
            got=str(targets[first]),
            remedy="Give each vector of the source one of the target.",
        )
        return first, error

    def output_lengths(self, trained: TrainedModel, sizes: Sequence[int]) -> list[int]:
        return list(sizes)
