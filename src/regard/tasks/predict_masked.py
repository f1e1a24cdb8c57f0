"""The task `predict_masked`: tokens of a text that were masked, from those around them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import Tokens
from regard.core.shapes import Bool, Float, Tensor
from regard.data.batching import Batch
from regard.data.config import DataConfig
from regard.data.corpus import VocabularyType
from regard.data.fields.text import require_tokenizer
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.interpret.editing import refuse_output_edits, with_replaced_tokens
from regard.interpret.maps import ForwardPass
from regard.interpret.record import LookInput
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import MaskedLanguageModel, Model
from regard.tasks.base import LookRequest, Task, TrainedModel, mean_state
from regard.tasks.carried import CarriedStates
from regard.tasks.inputs import EncodedInput
from regard.tasks.look_inputs import named_sources
from regard.tasks.loss_terms import Predictions
from regard.tasks.objective import BatchLoss, Objective


class PredictMasked(Task):
    """Pre-training of an encoder (https://arxiv.org/abs/1810.04805). It is given a target and no source."""

    name = "predict_masked"
    head = "mlm"
    target_kinds = ("text",)
    title = "An encoder"
    gives = "masked tokens"
    metrics = "language"
    reads_target = True

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        if data.source_fields:
            wanted = "nothing: a masked-token head reads the target"
            yield Problem("data.source", wanted, "a source", "Leave it out.")

    def sizes(self, target: VocabularyType) -> dict[str, int]:
        return {"vocab_size": target.size}

    def loss(
        self,
        objective: Objective,
        model: Model,
        batch: Batch,
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> BatchLoss:
        assert isinstance(batch.targets, Tokens)
        assert isinstance(model, MaskedLanguageModel)
        size = len(model.project.weight)
        inputs, masked = mask_tokens(
            batch.targets, objective.mask_probability, size, objective.special_tokens
        )
        gold = batch.targets.ids[masked]
        teachers = objective.teach(partial(masked_tokens, inputs=inputs, masked=masked))
        predicted = masked_tokens(model, objective.repeated(inputs), objective.repeated(masked))
        losses = objective.total(predicted, gold, teachers)
        return BatchLoss(losses.loss, losses.nll, len(gold))

    def embed(self, trained: TrainedModel, encoded: Sequence[EncodedInput]) -> Float[Tensor, "B W"]:
        special = require_tokenizer(trained.target, "model").special_tokens
        texts = [ids for ids in encoded if isinstance(ids, list)]
        read = texts if trained.running_text else [special.target(ids) for ids in texts]
        device = next(trained.model.parameters()).device
        memory = trained.model.encode(Tokens.of(read, device=device))
        assert memory is not None
        return mean_state(memory)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        refuse_output_edits(request.edits)
        if request.output is not None:
            got = repr(request.output)
            wanted = "none for a masked language model"
            raise InvalidArgument("output", wanted=wanted, got=got, remedy="Leave it out.")
        special = require_tokenizer(trained.target, "model").special_tokens
        whole = request.ids if trained.running_text else special.target(request.ids)
        device = next(trained.model.parameters()).device
        read = Tokens.of([whole], device=device)
        batch = with_replaced_tokens(read, request.edits, trained.model, [trained.target])
        shown = replace(request.shown, sources=named_sources(batch, [trained.target]))
        return ForwardPass(trained.model, batch, None, None), shown


def masked_tokens(model: Model, inputs: Tokens, masked: Bool[Tensor, "B S"]) -> Predictions:
    """What is predicted in place of the masked tokens."""
    assert isinstance(model, MaskedLanguageModel)
    memory = model.encoder(inputs)
    states = memory.states[:, memory.cls_tokens :][masked]  # (N, W)
    return Predictions(model.transform(states), model.project)


def mask_tokens(
    tokens: Tokens, probability: float, vocab_size: int, special: SpecialTokens = DEFAULT_TOKENS
) -> tuple[Tokens, Bool[Tensor, "B S"]]:
    """Choose tokens to predict, at least one a batch: 80 % become the mask token, 10 % a random token, 10 % stay.

    BERT (https://arxiv.org/abs/1810.04805). Special tokens are neither masked nor drawn. Returns the inputs, and the
    mask of the chosen positions.
    """
    draws = torch.rand(tokens.ids.shape).to(tokens.ids.device)
    ordinary = torch.ones(vocab_size, dtype=torch.bool)
    ordinary[[token for token in special.ids if token < vocab_size]] = False
    candidates = tokens.mask & ordinary.to(tokens.ids.device)[tokens.ids]
    chosen = candidates & (draws < probability)
    if not chosen.any():
        chosen = candidates & (draws == draws.masked_fill(~candidates, 2.0).min())
    replacement = torch.rand(tokens.ids.shape).to(tokens.ids.device)
    words = ordinary.nonzero().flatten() if ordinary.any() else torch.zeros(1, dtype=torch.int64)
    random = words[torch.randint(len(words), tokens.ids.shape)].to(tokens.ids.device)
    if special.mask is None:
        wanted = "a vocabulary with a mask token"
        remedy = "Start from a masked language model."
        raise InvalidArgument("special_tokens.mask", wanted=wanted, got="none", remedy=remedy)
    inputs = torch.where(chosen & (replacement < 0.8), special.mask, tokens.ids)
    inputs = torch.where(chosen & (replacement >= 0.9), random, inputs)
    return replace(tokens, ids=inputs), chosen
