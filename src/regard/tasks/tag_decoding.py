"""From the scores of each word to the tags of a sentence, under the constraints of their scheme.

Constraints restrict which sequences of tags are chosen. Probabilities are those of the model, as it was trained.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.tagging_schemes import constraints, detect
from regard.data.vocabulary import Labels
from regard.model.crf import FORBIDDEN, LinearChainCRF, TagConstraints
from regard.model.tag_head import TagHead


class TaggedBatch(NamedTuple):
    """The tags of a batch of sentences; 0 at padding.

    probabilities   of the tag of each word; with a CRF, summed over the tags of all others
    scores          the log-probability of each sentence's tags together
    """

    tags: Int[Tensor, "B W"]
    probabilities: Float[Tensor, "B W"]
    scores: Float[Tensor, " B"]


@dataclass(frozen=True)
class TagDecoder:
    """Chooses the tags of sentences from the scores of their words.

    crf       of the model, if it has one
    chooser   with the constraints of the tags, where their scheme has some: the model's CRF, or one whose transitions
              count nothing
    """

    crf: LinearChainCRF | None
    chooser: LinearChainCRF | None

    @staticmethod
    def of(head: TagHead, labels: Labels) -> "TagDecoder":
        permitted = scheme_constraints(labels) if head.constrained else None
        if permitted is None:
            return TagDecoder(head.crf, head.crf)
        chooser = LinearChainCRF(labels.size, permitted)
        if head.crf is not None:
            chooser.load_state_dict(head.crf.state_dict())
        chooser.to(head.proj.weight.device).requires_grad_(requires_grad=False)
        return TagDecoder(head.crf, chooser)

    @torch.no_grad()
    def __call__(self, scores: Float[Tensor, "B W L"], mask: Bool[Tensor, "B W"]) -> TaggedBatch:
        tags = scores.argmax(-1) if self.chooser is None else self.chooser.decode(scores, mask).tags
        tags = tags.masked_fill(~mask, 0)
        totals = self.log_probabilities(scores, tags, mask).sum(1)
        marginals = scores.softmax(-1) if self.crf is None else self.crf.marginals(scores, mask)
        chosen = marginals.gather(-1, tags[..., None])[..., 0]
        return TaggedBatch(tags, chosen.masked_fill(~mask, 0.0), totals)

    def log_probabilities(
        self,
        scores: Float[Tensor, "B W L"],
        tags: Int[Tensor, "B W"],
        mask: Bool[Tensor, "B W"],
    ) -> Float[Tensor, "B W"]:
        """The log-probability of given tags, 0 at padding: of each word, or with a CRF of all, at the last word."""
        if self.crf is None:
            log_p = scores.log_softmax(-1).gather(-1, tags[..., None])[..., 0]
            return log_p.masked_fill(~mask, 0.0)
        whole = self.crf.log_likelihood(scores, tags, mask)
        last = (mask.sum(1) - 1).clamp(min=0)
        values = torch.zeros_like(whole[:, None].expand(mask.shape)).contiguous()
        return values.scatter(1, last[:, None], whole[:, None])

    def word_log_probabilities(
        self, scores: Float[Tensor, "W L"], tags: Int[Tensor, " W"]
    ) -> Float[Tensor, " W"]:
        """The log-probability of the tag of each word of one sentence, with a gradient.

        With a CRF, a batch of as many sentences as there are words: in each, one word has no other tag.
        """
        if self.crf is None:
            return scores.float().log_softmax(-1).gather(-1, tags[:, None])[:, 0]
        words, labels = scores.shape
        others = torch.arange(labels, device=scores.device) != tags[:, None]  # (W, L)
        this_word = torch.eye(words, dtype=torch.bool, device=scores.device)  # (W, W)
        every = scores.float().expand(words, words, labels)
        fixed = every.masked_fill(this_word[..., None] & others, FORBIDDEN)
        mask = torch.ones_like(this_word)
        together = self.crf.log_partition(scores.float()[None], mask[:1])
        return self.crf.log_partition(fixed, mask) - together


def scheme_constraints(labels: Labels) -> TagConstraints | None:
    """What the scheme of these tags permits; None where they have none."""
    scheme = detect(labels.names)
    return None if scheme == "plain" else constraints(labels.names, scheme)
