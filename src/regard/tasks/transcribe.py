"""The task `transcribe`: a text that is aligned with the source, by connectionist temporal classification (CTC)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import Packed, Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.data.batching import Batch, evaluation_batches
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.data.fields.text import require_tokenizer
from regard.data.tokenizer import Tokenizer
from regard.evaluation.statistics import edit_distance
from regard.generation import ctc
from regard.generation.ensemble import CtcEnsemble
from regard.interpret.editing import refuse_output_edits
from regard.interpret.look import GeneratedText
from regard.interpret.maps import AttentionMap, ForwardPass, given_weights
from regard.interpret.record import LookInput
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.ctc_head import CtcHead
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import EncoderWithHead, Model
from regard.tasks.base import LookRequest, Task, TrainedModel
from regard.tasks.carried import CarriedStates
from regard.tasks.ctc_loss import PlainTargets, first_too_long, memory_losses
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.transcribe_pipeline import TextModel, TranscriptPipeline, never_output

CTC_MAP = "ctc"  # the name of the map of the alignment


class Transcribe(Task):
    """A text, whose tokens are in the order of what they stand for in the source: speech, say."""

    name = "transcribe"
    head = "ctc"
    target_kinds = ("text",)
    title = "A speech recognizer"
    gives = "transcripts"
    metrics = "text"
    monitors = ("loss", "perplexity", "accuracy", "error_rate", "character_error_rate")
    has_beam = True
    default_label_smoothing = 0.0

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        if data.context_length is not None:
            wanted = "nothing: a transcript is of one source"
            yield Problem("data.context_length", wanted, str(data.context_length), "Leave it out.")

    def training_problems(self, train: Any, model: ModelConfig) -> Iterator[Problem]:
        for key in ("label_smoothing", "r_drop", "distillation"):
            if value := getattr(train, key):
                wanted = "nothing with a CTC head, whose distribution is one of whole texts"
                yield Problem(f"train.{key}", wanted, repr(value)[:80], "Leave it out.")

    def sizes(self, target: VocabularyType) -> dict[str, int]:
        return {"vocab_size": target.size}

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        return ["error_rate", "character_error_rate", "accuracy"]

    def check_examples(
        self, corpus: Corpus, model: ModelConfig, target: VocabularyType
    ) -> tuple[int, InvalidArgument] | None:
        """The first target that is longer than its encoded source."""
        return first_too_long(corpus, model, require_tokenizer(target, "model").special_tokens)

    def loss(
        self,
        objective: Objective,
        model: Model,
        batch: Batch,
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> BatchLoss:
        assert isinstance(model, EncoderWithHead)
        assert isinstance(batch.targets, Tokens)
        assert batch.source is not None
        assert not isinstance(batch.source, Packed)
        targets = PlainTargets.of(batch.targets, objective.special_tokens)
        memory = model.encode(batch.source)
        loss = memory_losses(ctc_head(model), memory, targets, batch.rows.tolist()).sum()
        return BatchLoss(loss, loss.detach(), max(1, int(targets.lengths.sum())))

    def validation_values(
        self, model: Model, corpus: Corpus, target: VocabularyType, *, budget: int
    ) -> dict[str, float]:
        return error_rates(model, corpus, require_tokenizer(target, "model"), budget=budget)

    def pipeline(self, trained: TrainedModel) -> TranscriptPipeline:
        assert isinstance(trained.model, EncoderWithHead)
        tokenizer = require_tokenizer(trained.target, "model")
        return TranscriptPipeline(trained.model, trained.inputs, tokenizer)

    def beside(self, trained: TrainedModel, language_model: TrainedModel) -> TextModel:
        model = language_model.model.generator
        if model is None or language_model.sources:
            raise InvalidArgument(
                "language_model",
                wanted="a language model: a decoder without a source",
                got=type(language_model.model).__name__,
                remedy="Train one on texts with the same tokenizer.",
            )
        own = require_tokenizer(trained.target, "model")
        other = require_tokenizer(language_model.target, "language_model")
        if own.hash != other.hash:
            raise InvalidArgument(
                "language_model",
                wanted="one with the tokenizer of the model",
                got=f"another, of {other.size:,} tokens beside {own.size:,}",
                remedy="Train it on the model's texts with the same data.target settings.",
            )
        special = other.special_tokens
        first = special.end if language_model.running_text else special.start
        assert first is not None
        return TextModel(model, first, special.end)

    def ensemble(self, models: Sequence[Model]) -> CtcEnsemble:
        return CtcEnsemble(models)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        refuse_output_edits(request.edits)
        assert isinstance(trained.model, EncoderWithHead)
        tokenizer = require_tokenizer(trained.target, "model")
        if isinstance(request.output, str):
            ids = list(tokenizer.encode(request.output))
        else:
            # Without an end token: the source ends a transcript.
            ids = [each for each in request.search() if each != tokenizer.special_tokens.end]
        named = TokenSequence.of(ids, tokenizer)

        def output(labels: Tensor, scores: Tensor) -> GeneratedText:
            tokens = tuple(tokenizer.pieces(labels.tolist()))
            return GeneratedText(named.text, tokens, tokens, tuple(scores.tolist()))

        device = next(trained.model.parameters()).device
        labels = torch.tensor(ids, dtype=torch.int64, device=device)
        shown = replace(request.shown, direct_output=output)
        blank = ctc_head(trained.model).blank
        forward = AlignedText(trained.model, request.batch, None, labels, blank=blank)
        return forward, shown


@dataclass(frozen=True)
class AlignedText(ForwardPass):
    """The forward pass of a model with a CTC head: scores of tokens, and where in the source they are."""

    blank: int = 0

    def chosen(self, logits: Float[Tensor, "S V1"]) -> Int[Tensor, " L"]:
        if self.labels is not None:
            return self.labels
        path = ctc.greedy(logits, self.blank)
        return torch.tensor(path, dtype=torch.int64, device=logits.device)

    def log_probabilities(
        self, logits: Float[Tensor, "S V1"], labels: Int[Tensor, " L"]
    ) -> Float[Tensor, " L"]:
        scores = ctc.token_log_probabilities(logits.log_softmax(-1), labels, self.blank)
        return scores[:-1].float()

    def output_maps(
        self, logits: Float[Tensor, "S V1"], labels: Int[Tensor, " L"]
    ) -> list[AttentionMap]:
        """Where in the source each token is: its probability at each position, given the text."""
        if not len(labels):
            return []
        weights = ctc.alignment(logits.log_softmax(-1), labels, self.blank)
        return [given_weights(CTC_MAP, weights)]


def ctc_head(model: Model) -> CtcHead:
    """The head of a model that transcribes."""
    assert isinstance(model, EncoderWithHead)
    assert isinstance(model.head, CtcHead)
    return model.head


@torch.no_grad()
def error_rates(
    model: Model, corpus: Corpus, tokenizer: Tokenizer, *, budget: int
) -> dict[str, float]:
    """Accuracy and error rates of the texts of the most likely paths; `budget` is the tokens per batch."""
    device = next(model.parameters()).device
    special = tokenizer.special_tokens
    blank = ctc_head(model).blank
    excluded = never_output(tokenizer)
    right = 0
    examples = 0
    edits = {"error_rate": 0, "character_error_rate": 0}
    sizes = dict.fromkeys(edits, 0)
    for batch in evaluation_batches(corpus, budget=budget):
        moved = batch.to(device)
        assert isinstance(moved.targets, Tokens)
        logits = model(moved.source)
        logits[..., excluded] = -torch.inf
        targets = PlainTargets.of(moved.targets, special)
        for row, scores in enumerate(logits):
            gold = targets.ids[row, : int(targets.lengths[row])].tolist()
            reference = tokenizer.decode(gold)
            text = tokenizer.decode(ctc.greedy(scores, blank))
            right += text == reference
            examples += 1
            split = {
                "error_rate": (text.split(), reference.split()),
                "character_error_rate": (list(text), list(reference)),
            }
            for name, (found, wanted) in split.items():
                edits[name] += edit_distance(found, wanted)
                sizes[name] += len(wanted)
    rates = {name: edits[name] / max(1, sizes[name]) for name in edits}
    return {"accuracy": right / max(1, examples), **rates}
