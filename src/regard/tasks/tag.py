"""The task `tag`: one tag for each word of a sentence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import PackedSequences, Tokens
from regard.core.shapes import Float, Tensor
from regard.core.word_tokens import WordTokens
from regard.data.batching import Batch, evaluation_batches
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.data.tagging_schemes import detect, is_span_tag
from regard.data.token_lists import cell_of, tokens_of
from regard.data.vocabulary import Labels
from regard.generation.ensemble import TaggerEnsemble
from regard.interpret.editing import refuse_output_edits
from regard.interpret.look import WordTags
from regard.interpret.maps import ForwardPass
from regard.interpret.record import DirectOutput, LookInput
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.crf import LinearChainCRF
from regard.model.interfaces import Source
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import EncoderWithHead, Model
from regard.model.tag_head import TagHead, TagsConfig
from regard.tasks.base import LookRequest, Task, TrainedModel
from regard.tasks.carried import CarriedStates
from regard.tasks.loss_terms import Predictions
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.tag_decoding import TagDecoder
from regard.tasks.tag_pipeline import TagPipeline
from regard.tasks.tag_windows import positions_of, word_limit, word_scores


class Tag(Task):
    """A tag for each word: parts of speech, named entities."""

    name = "tag"
    head = "tags"
    target_kinds = ("tags",)
    title = "A sequence labelling model"
    gives = "tags"
    metrics = "tags"
    tags_words = True
    monitors = (
        "loss",
        "perplexity",
        "accuracy",
        "span_precision",
        "span_recall",
        "span_f1",
        "span_f1_macro",
        "span_f1_strict",
    )

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        fields = data.source_fields
        if len(fields) == 1 and not fields[0].has_positions:
            wanted = "'words', of which each has a tag"
            yield Problem("data.source.kind", wanted, repr(fields[0].kind), "Change it.")
        for name, module in zip(model.encoder_names, model.inputs, strict=True):
            learns_unknown = getattr(module.config, "unknown", 0.0) > 0
            if learns_unknown and fields and fields[0].unit == "pretrained":
                wanted = "0 with a pretrained tokenizer, which knows its unknown tokens"
                yield Problem(f"model.{name}.input.unknown", wanted, "more", "Leave it out.")

    def training_problems(self, train: Any, model: ModelConfig) -> Iterator[Problem]:
        assert model.head is not None
        assert isinstance(model.head.config, TagsConfig)
        if not model.head.config.crf:
            return
        for key in ("r_drop", "distillation"):
            if value := getattr(train, key):
                wanted = "nothing with model.head.crf, whose distribution is one of whole sentences"
                yield Problem(f"train.{key}", wanted, repr(value)[:80], "Leave one of them out.")

    def monitor_problems(self, monitor: str, target: VocabularyType) -> Iterator[Problem]:
        assert isinstance(target, Labels)
        plain = [name for name in target.names if not is_span_tag(name)]
        if monitor.startswith("span_") and plain:
            yield Problem(
                "train.monitor",
                "a metric of tags that mark no spans, such as accuracy",
                f"{monitor!r} with the tag {plain[0]!r}",
                "Spans have tags of IOB2 or BIOES: O, B-PER, I-PER.",
            )

    def sizes(self, target: VocabularyType) -> dict[str, int]:
        return {"num_labels": target.size}

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        """Also those of spans, where the tags follow a scheme."""
        of_spans = ["span_precision", "span_recall", "span_f1"]
        has_spans = isinstance(target, Labels) and detect(target.names) != "plain"
        return ["accuracy", *of_spans] if has_spans else ["accuracy"]

    def empty_values(self, target: VocabularyType) -> dict[str, Any]:
        """No word, and none of what each word has."""
        assert isinstance(target, Labels)
        spans = () if detect(target.names) != "plain" else None
        return {"words": (), "tags": (), "tag_probabilities": (), "spans": spans}

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
        assert isinstance(gold, Tokens)
        assert source is not None
        assert not isinstance(source, PackedSequences)
        head = tag_head(model)
        mask = gold.mask
        if head.crf is not None:
            return crf_loss(head.crf, scores_of(model, source), gold, objective.label_smoothing)

        def predictions(each: Model) -> Predictions:
            return Predictions(scores_of(each, source).float()[mask])

        teachers = objective.teach(predictions)
        # (B, W, tags); 2 B with R-Drop
        logits = scores_of(model, objective.repeated(source)).float()
        rows = logits[objective.repeated(mask)]
        losses = objective.total(Predictions(rows), gold.ids[mask], teachers)
        return BatchLoss(losses.loss, losses.nll, batch.tokens)

    def validation_values(
        self, model: Model, corpus: Corpus, target: VocabularyType, *, budget: int
    ) -> dict[str, float]:
        return {"accuracy": tag_accuracy(model, corpus, budget=budget)}

    def ensemble(self, models: Sequence[Model]) -> TaggerEnsemble:
        return TaggerEnsemble(models)

    def pipeline(self, trained: TrainedModel) -> TagPipeline:
        assert isinstance(trained.model, EncoderWithHead)
        assert isinstance(trained.target, Labels)
        decoder = TagDecoder.of(tag_head(trained.model), trained.target)
        return TagPipeline(trained.model, trained.inputs, trained.target, decoder)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        refuse_output_edits(request.edits)
        assert isinstance(trained.model, EncoderWithHead)
        assert isinstance(trained.target, Labels)
        names = trained.target.decode
        shown = replace(request.shown, direct_output=self.look_output(names))
        if isinstance(request.batch, WordTokens):
            _check_in_one_window(trained.model, request.batch)
            (field,) = trained.data.source_fields
            words = field.check("text", [request.text])[0]
            shown = replace(shown, direct_output=partial(look_tags, names, words=words))
            if trained.model.encodes_words:
                shown = replace(shown, sources=(TokenSequence.of_words(words),))
        device = next(trained.model.parameters()).device
        tags = torch.tensor(_shown_tags(trained, request), dtype=torch.int64, device=device)
        decoder = TagDecoder.of(tag_head(trained.model), trained.target)

        def score(scores: Tensor, tags: Tensor) -> Tensor:
            if not len(tags):
                # The batch of a sentence without words has one position, of padding.
                return scores[:0].sum(1)
            return decoder.word_log_probabilities(scores, tags)

        return ForwardPass(trained.model, request.batch, None, tags, score), shown

    def look_output(self, names: Callable[[int], str]) -> DirectOutput:
        return partial(look_tags, names)


def look_tags(
    names: Callable[[int], str],
    tags: Tensor,
    scores: Tensor,
    *,
    words: Sequence[str] | None = None,
) -> WordTags:
    """The tag of each word and its log-probability; without `words`, their numbers."""
    chosen = tuple(names(tag) for tag in tags.tolist())
    if words is None:
        words = [str(number) for number in range(1, len(chosen) + 1)]
    return WordTags(cell_of(chosen), chosen, tuple(words), tuple(scores.tolist()))


def scores_of(model: Model, source: Source) -> Float[Tensor, "B W tags"]:
    """The scores of the tags of each word, or of each position."""
    assert isinstance(model, EncoderWithHead)
    return word_scores(model, source)


def _shown_tags(trained: TrainedModel, request: LookRequest) -> list[int]:
    """The ids of the tags that a look shows: those that are given, or else the model's own."""
    if request.output is None:
        return list(request.search())
    assert isinstance(trained.target, Labels)
    given = tokens_of(request.output, "output", numbers=True)
    (field,) = trained.data.source_fields
    words = field.check("text", [request.text])[0]
    if len(given) != len(words):
        raise InvalidArgument(
            "output",
            wanted=f"{len(words)} tags, one for each word",
            got=str(len(given)),
            remedy="Give each word one tag.",
        )
    return [trained.target.encode(tag) for tag in given]


def _check_in_one_window(model: EncoderWithHead, batch: WordTokens) -> None:
    limit = word_limit(model)
    read = positions_of(model, batch)
    if limit is not None and read > limit:
        raise InvalidArgument(
            "text",
            wanted=f"at most {limit} tokens, which the model reads at once",
            got=str(read),
            remedy="Look at a part of it. Its tags are predicted in several windows.",
        )


def tag_head(model: Model) -> TagHead:
    """The head of a model that tags."""
    assert isinstance(model, EncoderWithHead)
    assert isinstance(model.head, TagHead)
    return model.head


def crf_loss(
    crf: LinearChainCRF, scores: Float[Tensor, "B W L"], gold: Tokens, label_smoothing: float
) -> BatchLoss:
    """The negative log-likelihood of the tags of whole sentences.

    With label smoothing, as at single words, a share of the target distribution is uniform over all sequences of tags.
    """
    mask = gold.mask
    nll = -crf.log_likelihood(scores, gold.ids, mask).sum()
    predictions = int(gold.host_lengths.sum())
    if not label_smoothing:
        return BatchLoss(nll, nll.detach(), predictions)
    of_gold = crf.path_scores(scores, gold.ids, mask)
    expected = crf.mean_path_scores(scores, mask)
    smoothed = nll + label_smoothing * (of_gold - expected).sum()
    return BatchLoss(smoothed, nll.detach(), predictions)


@torch.no_grad()
def tag_accuracy(model: Model, corpus: Corpus, *, budget: int) -> float:
    """The share of words with the right tag, without constraints; `budget` is the tokens per batch."""
    device = next(model.parameters()).device
    crf = tag_head(model).crf
    right = 0
    count = 0
    for batch in evaluation_batches(corpus, budget=budget):
        moved = batch.to(device)
        gold = moved.targets
        assert isinstance(gold, Tokens)
        assert moved.source is not None
        assert not isinstance(moved.source, PackedSequences)
        scores = scores_of(model, moved.source).float()
        tags = scores.argmax(-1) if crf is None else crf.decode(scores, gold.mask).tags
        right += int((tags == gold.ids)[gold.mask].sum())
        count += batch.tokens
    return right / max(1, count)
