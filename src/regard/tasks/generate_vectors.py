"""The task `generate_vectors`: a sequence of vectors, each computed from those before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import PackedSequences, PackedVectors, Packing, Vectors
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch
from regard.data.config import DataConfig
from regard.data.corpus import VocabularyType
from regard.data.fields.vectors import VectorsField
from regard.data.statistics import Statistics
from regard.generation.batch_plan import forward_batch_tokens
from regard.generation.config import DecodeConfig
from regard.generation.ensemble import VectorGeneratorEnsemble
from regard.interpret.editing import refuse_output_edits
from regard.interpret.maps import ForwardPass
from regard.interpret.record import LookInput
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.interfaces import StatefulDecoder
from regard.model.memory import Memory
from regard.model.model_config import ModelConfig
from regard.model.scheduled_sampling import ScheduledSampling, force, force_packed
from regard.model.seq2seq import Model
from regard.model.vector_embedding import packed_inputs, shifted_inputs
from regard.model.vector_generator import VectorGenerator
from regard.tasks.base import LookRequest, TrainedModel
from regard.tasks.carried import CarriedStates
from regard.tasks.number_outputs import number_at, places
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.pipeline import (
    EncodedInputs,
    IndexedOutputs,
    OutputOptions,
    check_direct_options,
    check_one_output,
    length_batches,
)
from regard.tasks.vector_task import VectorPipeline, VectorTask, look_vectors

TOKEN_KEYS = ("tie_embeddings", "output_bias", "scale_logits")  # of [model]


class GenerateVectors(VectorTask):
    """A sequence of vectors for each example, by a decoder that reads the vectors before each."""

    name = "generate_vectors"
    head = "decoder"
    title = "A model that generates sequences of vectors"
    has_horizon = True

    # The recipe.

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        if not model.encoders:
            wanted = "an encoder, of what the vectors are generated from"
            yield Problem("model.encoder", wanted, "none", "Add [model.encoder] and [data.source].")
        for key in TOKEN_KEYS:
            if key in model.table:
                wanted = "nothing for a decoder over vectors, which predicts no tokens"
                yield Problem(f"model.{key}", wanted, repr(model.table[key]), "Leave it out.")

    def training_problems(self, train: Any, model: ModelConfig) -> Iterator[Problem]:
        yield from super().training_problems(train, model)
        if train.doubly_stochastic:
            wanted = "nothing for a model that gives vectors"
            got = repr(train.doubly_stochastic)
            yield Problem("train.doubly_stochastic", wanted, got, "Leave it out.")

    def sizes(self, target: VocabularyType) -> dict[str, Any]:
        assert isinstance(target, Statistics)
        return {"target_dim": target.size, "horizon": target.longest}

    def metric_options(self, data: DataConfig, target: VocabularyType | None) -> dict[str, Any]:
        # A target may end before the horizon.
        return {**super().metric_options(data, target), "longer_outputs": True}

    # Training.

    def loss(
        self,
        objective: Objective,
        model: Model,
        batch: Batch,
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> BatchLoss:
        """The loss of each vector given those before it; with scheduled sampling, given the model's own."""
        assert isinstance(model, VectorGenerator)
        sampling = objective.scheduled_sampling
        if sampling is not None and sampling.share(step) == 1.0:
            sampling = None
        read = _read_packed if isinstance(batch.targets, PackedVectors) else _read_padded
        outputs, gold = read(model, batch, sampling, step)
        rows = outputs.flatten(0, -2)  # (N, D)
        targets = gold.flatten(0, -2)  # (N, D)
        found = objective.loss_of_outputs(self, rows, targets, ~targets.isnan())
        return BatchLoss(found.loss, found.nll, batch.tokens)

    def outputs_of(self, model: Model, batch: Batch) -> Float[Tensor, "B T D"]:
        """The vectors that the model generates on its own, as many as the longest target has."""
        assert isinstance(model, VectorGenerator)
        assert isinstance(batch.targets, Vectors)
        assert batch.source is not None
        return model.generate(batch.source, batch.targets.values.shape[1])

    # Prediction.

    def output_lengths(self, trained: TrainedModel, sizes: Sequence[int]) -> list[int]:
        assert isinstance(trained.model, VectorGenerator)
        return [trained.model.horizon] * len(sizes)

    def ensemble(self, models: Sequence[Model]) -> Model:
        return VectorGeneratorEnsemble(models)

    def pipeline(self, trained: TrainedModel) -> "StepwisePipeline":
        assert isinstance(trained.model, VectorGenerator)
        return StepwisePipeline(trained.model, trained.inputs, trained, self)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        """The attention of every step over the source and over the vectors before it, in one pass."""
        refuse_output_edits(request.edits)
        model = trained.model
        statistics = trained.target
        assert isinstance(model, VectorGenerator)
        assert isinstance(statistics, Statistics)
        assert request.batch is not None
        if request.output is None:
            steps = _steps(model, request.horizon)
            with torch.inference_mode():
                generated = model.generate(request.batch, steps).float()  # (1, T, D)
        else:
            field = VectorsField(missing="refuse")
            rows = field.encode(statistics, [field.array_of(request.output)])
            device = next(model.parameters()).device
            generated = torch.as_tensor(rows[0], device=device)[None]  # (1, T, D)
        inputs = shifted_inputs(generated).to(next(model.parameters()).dtype)
        numbers = [str(number) for number in range(1, inputs.shape[1] + 1)]
        shown = replace(
            request.shown,
            output=TokenSequence.of_words(tuple(numbers)),
            read=TokenSequence.of_words(("start", *numbers[:-1])),
            direct_output=partial(look_vectors, statistics=statistics),
        )
        return ForwardPass(model, request.batch, inputs, None, number_at, places), shown


def _read_padded(
    model: VectorGenerator, batch: Batch, sampling: ScheduledSampling | None, step: int
) -> tuple[Float[Tensor, "*lead D"], Float[Tensor, "*lead D"]]:
    """What the decoder gives at each position of the targets, and the targets: NaN where there is none."""
    targets = batch.targets
    assert isinstance(targets, Vectors)
    assert batch.source is not None
    assert not isinstance(batch.source, PackedSequences)
    is_there = targets.places
    gold = targets.values.masked_fill(~is_there[..., None], torch.nan)  # (B, T, D)
    inputs = shifted_inputs(targets.values)
    memory = model.encode(batch.source)
    decoder = model.decoder
    if sampling is not None:
        forced = force(decoder, inputs, memory, sampling, step=step, mask=is_there)
        return forced.logits, gold
    packing = Packing.where_useful(is_there)
    states = decoder.hidden(inputs, memory, packing)
    if packing is not None:
        gold = packing.pack(gold)  # (N, D)
    return decoder.project(states), gold


def _read_packed(
    model: VectorGenerator, batch: Batch, sampling: ScheduledSampling | None, step: int
) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
    """As `_read_padded`, for packed sequences."""
    targets = batch.targets
    assert isinstance(targets, PackedVectors)
    assert isinstance(batch.source, PackedSequences)
    memory = model.encoder.forward_packed(batch.source)
    decoder = model.decoder
    inputs = packed_inputs(targets)
    if sampling is None:
        return decoder.project(decoder.hidden_packed(inputs, memory)), targets.values
    if not isinstance(decoder, StatefulDecoder):
        forced = force_packed(decoder, inputs, memory, sampling, step=step)
        return forced.logits, targets.values
    # A recurrent decoder computes a step of all sequences at once: they are padded here.
    assert isinstance(memory, Memory)
    offsets = targets.offsets
    padded = offsets.pad(inputs.values)  # (B, T, E)
    found = force(decoder, padded, memory, sampling, step=step, mask=offsets.mask)
    return offsets.packing.pack(found.logits), targets.values


def _steps(model: VectorGenerator, horizon: int | None) -> int:
    """How many vectors are generated. Refused where the decoder has fewer positions."""
    steps = model.horizon if horizon is None else horizon
    limit = model.decoder.longest
    if limit is not None and steps > limit:
        raise InvalidArgument(
            "horizon",
            wanted=f"at most {limit} vectors, the positions that the decoder has learned",
            got=str(steps),
            remedy="Lower it, or train with more: model.decoder.max_positions.",
        )
    return steps


@dataclass(frozen=True)
class StepwisePipeline(VectorPipeline):
    """The vectors that a model generates step by step, in the units of the training data."""

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        check_direct_options(options, self.gives)
        check_one_output(config, self.gives)
        model = self.model
        assert isinstance(model, VectorGenerator)
        steps = _steps(model, config.horizon)
        # A batch grows with its outputs too, which the decoder keeps.
        sizes = [max(size, steps) for size in self.inputs.sizes(encoded)]
        for rows in length_batches(sizes, forward_batch_tokens(config, model)):
            source = self.inputs.collate([encoded[row] for row in rows])
            with torch.inference_mode():
                vectors = model.generate(source, steps).double().cpu().numpy()  # (B, T, D)
            for row, normalized in zip(rows, vectors, strict=True):
                yield row, [self._output(normalized)]
