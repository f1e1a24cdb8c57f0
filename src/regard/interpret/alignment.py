"""Word alignment from cross-attention: the source word of each output word (https://arxiv.org/abs/2004.14837)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.data.special_tokens import SpecialTokens
from regard.data.tokenizer import Tokenizer
from regard.evaluation.alignment_error import Link, pharaoh
from regard.interpret.maps import ForwardPass, MapRecorder
from regard.interpret.sites import AttentionSite
from regard.interpret.tokens_to_words import TokenGroups
from regard.model.interfaces import Source
from regard.model.seq2seq import Seq2Seq

Step = Literal["output", "input"]
STEPS: tuple[Step, ...] = ("output", "input")


@dataclass(frozen=True)
class AlignmentHeads:
    """The heads whose weights align words: one head, or the mean of a layer's heads or of all heads.

    step   "output": the step that predicts a word; "input": the step that has it as input. Decoders with recurrence or
           convolution attend to the word they are about to predict; lower layers of a Transformer often attend to the
           one they have just read (https://arxiv.org/abs/2004.14837). `choose` finds the better one.
    """

    layer: int | None = None  # from 1
    head: int | None = None  # from 0
    step: Step = "output"

    @staticmethod
    def of(head: str | None, step: str = "output") -> "AlignmentHeads":
        """Read "2" or "2.0"; None means all heads."""
        numbers = re.fullmatch(r"([1-9]\d*)(?:\.(\d+))?", head or "", re.ASCII)
        if head is not None and numbers is None:
            wanted = "a layer, or a layer and a head: 2, or 2.0"
            remedy = "Layers count from 1, heads from 0."
            raise InvalidArgument("head", wanted=wanted, got=repr(head), remedy=remedy)
        known = next((each for each in STEPS if each == step), None)
        if known is None:
            remedy = "Leave it out for the step that predicts a word."
            raise InvalidArgument("step", wanted=" or ".join(STEPS), got=repr(step), remedy=remedy)
        if numbers is None:
            return AlignmentHeads(step=known)
        layer, index = numbers.groups()
        return AlignmentHeads(int(layer), None if index is None else int(index), known)

    def __str__(self) -> str:
        heads = "all heads"
        if self.layer is not None:
            heads = f"--head {self.layer}"
        if self.head is not None:
            heads += f".{self.head}"
        return f"{heads} --step {self.step}"


ALL_HEADS = AlignmentHeads()


@dataclass(frozen=True)
class Alignment:
    """A text, its translation, and for each word of the translation its source word.

    source, output               the texts
    source_words, output_words   their words
    origins                      for each output word the index of its source word; None: it is aligned with none
    refused                      why the source was not read: it is too long. No word is then aligned
    """

    source: str
    output: str
    source_words: tuple[str, ...]
    output_words: tuple[str, ...]
    origins: tuple[int | None, ...]
    refused: str | None = None

    @property
    def links(self) -> list[Link]:
        """Pairs of source word and output word, from 0."""
        aligned = [(origin, word) for word, origin in enumerate(self.origins) if origin is not None]
        return sorted(aligned)

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of words of the source and of the output."""
        return len(self.source_words), len(self.output_words)

    def __str__(self) -> str:
        """In the Pharaoh format."""
        return pharaoh(self.links)


@dataclass(frozen=True)
class TokenizedPair:
    """A text and a translation as words and as tokens, with the word of each token."""

    source: str
    output: str
    source_words: tuple[str, ...]
    output_words: tuple[str, ...]
    output_ids: Sequence[int]
    source_word_of: Sequence[int | None]
    output_word_of: Sequence[int | None]
    special_tokens: tuple[SpecialTokens, SpecialTokens]  # of the source and of the output

    @staticmethod
    def of(
        source: str,
        output: str,
        ids: Sequence[int],
        vocabularies: tuple[Tokenizer, Tokenizer],
        *,
        given: bool,
    ) -> "TokenizedPair":
        """`given`: the output is a user's text, in which an unknown token is a word too."""
        reads, writes = vocabularies
        return TokenizedPair(
            source=source,
            output=output,
            source_words=tuple(source[a:b] for a, b in reads.spans(source)),
            output_words=tuple(output[a:b] for a, b in writes.spans(output)),
            output_ids=ids,
            source_word_of=reads.word_indices(reads.encode(source), unknown=True),
            output_word_of=writes.word_indices(ids, unknown=given),
            special_tokens=(reads.special_tokens, writes.special_tokens),
        )

    def weights(
        self, model: Seq2Seq, batch: Source | None, length: int, layer: int | None
    ) -> list[Float[Tensor, "H T S"]]:
        """Cross-attention weights of every layer, or of one, over the `length` tokens of the source text."""
        if not self.source_words or not self.output_words:
            return []
        device = next(model.parameters()).device
        reads, writes = self.special_tokens
        assert writes.start is not None
        ids = torch.tensor([[writes.start, *self.output_ids]], device=device)  # (1, T + 1)

        def is_chosen(site: AttentionSite) -> bool:
            return site.kind == "cross" and layer in (None, site.layer)

        recorder = MapRecorder(model, is_chosen)
        recorder.record(ForwardPass(model, batch, ids[:, :-1], ids[0, 1:]))
        weights = [one.weights().cpu() for one in recorder.maps]  # each (H, T, states)
        # Learned states and special tokens around the text are left out.
        before = weights[0].shape[2] - length - len(reads.source_suffix)
        return [one[..., before : before + length] for one in weights]

    def aligned(
        self, weights: Sequence[Float[Tensor, "H T S"]], heads: AlignmentHeads
    ) -> Alignment:
        """Each word of the output with the source word that has the largest weight."""
        origins: tuple[int | None, ...] = (None,) * len(self.output_words)
        if weights:
            if heads.head is None:
                chosen = torch.cat(list(weights))  # (all heads, T, S)
            else:
                chosen = weights[0][heads.head : heads.head + 1]  # (1, T, S)
            if heads.step == "output":
                rows = self.output_word_of
            else:
                # A step has the word as input that the step before it predicts.
                rows = [None, *self.output_word_of[:-1]]
            source_word_of = self.source_word_of[: chosen.shape[2]]
            sources = TokenGroups.of(source_word_of, len(self.source_words))
            outputs = TokenGroups.of(rows, len(self.output_words))
            by_source_word = sources.sum(chosen.mean(0), 1)  # (T, source words)
            by_words = outputs.sum(by_source_word, 0)  # (output words, source words)
            best = by_words.argmax(1).tolist()
            attends = (by_words.sum(1) > 0).tolist()
            found = zip(best, attends, strict=True)
            origins = tuple(origin if is_aligned else None for origin, is_aligned in found)
        return Alignment(self.source, self.output, self.source_words, self.output_words, origins)
