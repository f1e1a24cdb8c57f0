"""Builds the strategy of a search batch and its logits processors."""

from functools import partial

import torch

from regard.data.tokenizer import MASK, PAD, START
from regard.decoding.batch_plan import BatchPlan, BufferSizes
from regard.decoding.beam import BeamSearch
from regard.decoding.constrained_beam import RequiredPhrases
from regard.decoding.greedy import GreedySearch
from regard.decoding.interfaces import DecodingStrategy, GeneratedTokens, LogitsProcessor
from regard.decoding.logits_processors import (
    AllowEnd,
    BannedPhrases,
    ForcePrefix,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    SavePrefix,
    SuppressTokens,
)


def build_strategy(plan: BatchPlan, sizes: BufferSizes, required: RequiredPhrases | None) -> DecodingStrategy:
    """A strategy whose slots are all empty."""
    task, config, new = plan.task, plan.task.config, partial(torch.full, device=plan.device)
    generated = GeneratedTokens(
        tokens=new((plan.slots, plan.beams, sizes.tokens), PAD),
        length=new((plan.slots,), 1),
        min_length=new((plan.slots,), 0),
        prefix=new((plan.slots, sizes.prefix), -1),
    )
    limit, processors = new((plan.slots,), plan.max_length), build_processors(plan)
    if plan.beams > 1 and not config.sample:
        whole_beam = task.rerank is not None
        return BeamSearch(
            config, generated, limit, processors, ends=task.ends, whole_beam=whole_beam, required=required
        )
    return GreedySearch(config, generated, limit, processors, ends=task.ends, scored=task.scored, required=required)


def build_processors(plan: BatchPlan) -> list[LogitsProcessor]:
    """The processors that the config and the requests ask for, in the order in which they are applied."""
    config = plan.task.config
    processors: list[LogitsProcessor] = [SuppressTokens([PAD, START, MASK])]
    min_length = MinLength() if any(each.min_length for each in plan.requests) else None
    if min_length is not None:
        processors.append(min_length)
    if config.no_repeat_ngram_size:
        processors.append(NoRepeatNgram(config.no_repeat_ngram_size))
    if config.repetition_penalty != 1.0:
        processors.append(RepetitionPenalty(config.repetition_penalty))
    processors += plan.processors
    phrases, longest = plan.banned
    if phrases:
        processors.append(BannedPhrases(plan.slots, phrases, longest, plan.device))
    if min_length is not None and len(processors) > 2:
        processors.append(AllowEnd(min_length))
    if plan.max_prefix:
        saved = SavePrefix()
        processors = [saved, *processors, ForcePrefix(saved)]
    return processors
