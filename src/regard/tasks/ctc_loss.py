"""The loss of connectionist temporal classification: of each target sequence, summed over all of its paths."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.data.corpus import Corpus
from regard.data.special_tokens import SpecialTokens
from regard.model.ctc_head import CtcHead
from regard.model.memory import Memory
from regard.model.model_config import ModelConfig


class PlainTargets(NamedTuple):
    """Target sequences without special tokens around them, padded on the right.

    needed   the frames that the shortest path of each has: a blank between two equal tokens
    """

    ids: Int[Tensor, "B L"]
    lengths: Int[Tensor, " B"]
    needed: Int[Tensor, " B"]

    @staticmethod
    def of(targets: Tokens, special: SpecialTokens) -> "PlainTargets":
        """Those of a batch, which begin with a start token and end with an end token."""
        before = len(special.target(())) - 1
        ids = targets.ids[:, before:-1]
        lengths = (targets.lengths - before - 1).clamp(min=0)
        inside = torch.arange(1, ids.shape[1], device=ids.device) < lengths[:, None]
        equal = (ids[:, 1:] == ids[:, :-1]) & inside
        return PlainTargets(ids, lengths, lengths + equal.sum(1))

    def repeated(self, times: int) -> "PlainTargets":
        """Those of the same batch several times."""
        return PlainTargets(*(part.repeat(times, *[1] * (part.ndim - 1)) for part in self))


def first_too_long(
    corpus: Corpus, model: ModelConfig, special: SpecialTokens
) -> tuple[int, InvalidArgument] | None:
    """The first example, from 0, whose target needs more positions than its encoded source has.

    None also where the lengths of the encoded sources are not known before they are read.
    """
    shortens = [part.config.shortens for part in model.inputs]
    if corpus.source is None or len(shortens) != 1 or shortens[0] is None:
        return None
    every = np.arange(len(corpus))
    before = len(special.target(())) - 1
    frames = -(-corpus.source.lengths(every) // shortens[0])
    lengths = corpus.target.lengths(every) - before - 1
    # A target of other tokens only needs as many positions as it has tokens, and at most about twice as many.
    for index in np.flatnonzero(2 * lengths > frames).tolist():
        ids = np.asarray(corpus.target.row(index))[before:-1]
        needed = len(ids) + int((ids[1:] == ids[:-1]).sum())
        if needed > frames[index]:
            return index, _too_long("target", int(frames[index]), needed)
    return None


def _too_long(name: str, frames: int, needed: int) -> InvalidArgument:
    return InvalidArgument(
        name,
        wanted=f"a target that fits into the {frames} positions of its encoded source",
        got=f"one that needs {needed}, with a blank between equal tokens",
        remedy="Lower the stride of model.encoder.input, or leave out such examples.",
    )


def ctc_losses(
    logits: Float[Tensor, "B S V1"],
    targets: PlainTargets,
    frames: Int[Tensor, " B"],
    blank: int,
    rows: Sequence[int] | None = None,
) -> Float[Tensor, " B"]:
    """The negative log-likelihood of each target.

    frames   of each sequence that are no padding: a target that needs more has no path, and is refused
    rows     the numbers of the examples, from 0, for messages
    """
    impossible = targets.needed > frames
    if bool(impossible.any()):
        place = int(impossible.nonzero()[0])
        number = (place if rows is None else int(rows[place])) + 1
        raise _too_long(f"example {number}", int(frames[place]), int(targets.needed[place]))
    log_probabilities = logits.float().log_softmax(-1).transpose(0, 1)  # (S, B, V + 1)
    # Padding is a certain blank, so that all sequences may count as of one length.
    lengths = torch.full_like(frames, logits.shape[1])
    losses: Tensor = F.ctc_loss(
        log_probabilities, targets.ids, lengths, targets.lengths, blank=blank, reduction="none"
    )
    return losses


def memory_losses(
    head: CtcHead, memory: Memory, targets: PlainTargets, rows: Sequence[int] | None = None
) -> Float[Tensor, " B"]:
    """The negative log-likelihood of each target, given an encoder's memory."""
    frames = memory.mask[:, memory.cls_tokens :].sum(1)
    return ctc_losses(head(memory), targets, frames, head.blank, rows)
