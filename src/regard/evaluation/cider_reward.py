"""CIDEr-D of an output as a reward for training, with the document frequencies of the training references."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from regard.data.arrays import FeatureColumn, ImageColumn, Indices
from regard.data.corpus import Corpus
from regard.data.tokenizer import Tokenizer
from regard.evaluation.caption_metrics import CaptionTokens, DocumentFrequency, TfIdfVector, cider_d
from regard.evaluation.ptb_tokenizer import tokenize
from regard.generation.choose.interfaces import Hypothesis

CACHED = 1 << 13  # images whose references' TF-IDF vectors are kept
STOP = "</s>"  # the end counts as a word: an output that breaks off must be worth less than one that ends


class CiderReward:
    """CIDEr-D of an output with the references of its image.

    word_tokens   the tokenizer splits words: <unk> in a reference then stands for no known word
    """

    def __init__(self, corpus: Corpus, target: Tokenizer, *, word_tokens: bool) -> None:
        self.target, self.word_tokens = target, word_tokens
        images = corpus.source.images if isinstance(corpus.source, FeatureColumn) else corpus.source
        rows = range(len(corpus))
        self.image_of: Sequence[int] | Indices = (
            images.which if isinstance(images, ImageColumn) else rows
        )
        self.references: dict[int, list[CaptionTokens]] = defaultdict(list)
        for row, image in enumerate(self.image_of):
            self.references[int(image)].append((*self._words(corpus.target.row(row)), STOP))
        self.frequency = DocumentFrequency()
        for references in self.references.values():
            self.frequency.add(references)
        self.vectors = lru_cache(maxsize=CACHED)(self._vectors)

    def __call__(self, row: int, output: Hypothesis) -> float:
        words = (*tokenize(self.target.decode(output.tokens)), *[STOP] * output.ended)
        return cider_d(self.frequency.weigh(words), self.vectors(int(self.image_of[row])))

    def _words(self, ids: Any) -> CaptionTokens:
        """The words of a target from the start token to the end token."""
        inner = ids[len(self.target.special_tokens.target(())) - 1 : -1]
        return tokenize(
            " ".join(self.target.pieces(inner)) if self.word_tokens else self.target.decode(inner)
        )

    def _vectors(self, image: int) -> list[TfIdfVector]:
        return [self.frequency.weigh(reference) for reference in self.references[image]]
