"""Prediction of tags: sentences in, tags out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Tensor
from regard.data.tagging_schemes import detect, lenient_spans
from regard.data.token_lists import cell_of, tokens_of
from regard.data.vocabulary import Labels
from regard.generation.batch_plan import forward_batch_tokens
from regard.generation.config import DecodeConfig
from regard.model.seq2seq import EncoderWithHead
from regard.tasks.inputs import InputEncoder
from regard.tasks.pipeline import (
    EncodedInputs,
    IndexedOutputs,
    Output,
    OutputOptions,
    Pipeline,
    SequenceScore,
    TaggedSpan,
    check_direct_options,
    check_one_output,
    length_batches,
)
from regard.tasks.tag_decoding import TagDecoder
from regard.tasks.tag_windows import word_scores


class WordScores(NamedTuple):
    """The scores of the words of some sentences, and where these are: the rest is padding."""

    values: Float[Tensor, "B W tags"]
    mask: Bool[Tensor, "B W"]


@dataclass(frozen=True)
class TagPipeline(Pipeline):
    """The tags of sentences."""

    model: EncoderWithHead
    inputs: InputEncoder
    labels: Labels
    decoder: TagDecoder

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        check_direct_options(options, "tags")
        check_one_output(config, "tags")
        has_spans = detect(self.labels.names) != "plain"
        for rows, found in self._scores(encoded, forward_batch_tokens(config, self.model)):
            tagged = self.decoder(*found)
            chosen = tagged.tags.tolist()
            probabilities = tagged.probabilities.tolist()
            totals = tagged.scores.tolist()
            for place, row in enumerate(rows):
                words = encoded[row].words
                count = len(words)
                tags = tuple(self.labels.decode(tag) for tag in chosen[place][:count])
                output = Output(
                    cell_of(tags),
                    tags,
                    score=totals[place] if options.scores else None,
                    words=words,
                    tags=tags,
                    tag_probabilities=tuple(probabilities[place][:count]),
                    spans=spans_of(words, tags) if has_spans else None,
                    token_ids=tuple(chosen[place][:count]),
                )
                yield row, [output]

    @torch.inference_mode()
    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        found: dict[int, SequenceScore] = {}
        tags_of = [tokens_of(target, "targets") for target in targets]
        ids_of = [[self.labels.encode(tag) for tag in tags] for tags in tags_of]
        for number, (sentence, tags) in enumerate(zip(encoded, tags_of, strict=True), start=1):
            words = len(sentence.words)
            if words != len(tags):
                raise InvalidArgument(
                    f"targets {number}",
                    wanted=f"{words} tags, one for each word",
                    got=str(len(tags)),
                    remedy="Give each word one tag.",
                )
        for rows, scores in self._scores(encoded, batch_tokens):
            gold = [tag for row in rows for tag in ids_of[row]]
            gold_tags = torch.zeros_like(scores.mask, dtype=torch.int64)  # (B, W)
            gold_tags[scores.mask] = gold_tags.new_tensor(gold)
            values = self.decoder.log_probabilities(scores.values, gold_tags, scores.mask).tolist()
            for row, log_p in zip(rows, values, strict=True):
                count = len(tags_of[row])
                found[row] = SequenceScore(tags_of[row], tuple(log_p[:count]))
        return [found[row] for row in range(len(targets))]

    @torch.inference_mode()
    def _scores(
        self, encoded: EncodedInputs, batch_tokens: int
    ) -> Iterator[tuple[list[int], WordScores]]:
        """The indices of some sentences, and the scores of their words, in float32."""
        device = next(self.model.parameters()).device
        for rows in length_batches(self.inputs.sizes(encoded), batch_tokens):
            batch = self.inputs.collate([encoded[row] for row in rows])
            scores = word_scores(self.model, batch, batch_tokens=batch_tokens).float()
            lengths = torch.tensor([len(encoded[row].words) for row in rows], device=device)
            mask = torch.arange(scores.shape[1], device=device) < lengths[:, None]
            yield rows, WordScores(scores, mask)


def spans_of(words: Sequence[str], tags: Sequence[str]) -> tuple[TaggedSpan, ...]:
    """The spans that these tags of words mark."""
    found = []
    for span in lenient_spans(tags):
        end = span.end + 1
        found.append(TaggedSpan(span.type, span.start, end, " ".join(words[span.start : end])))
    return tuple(found)
