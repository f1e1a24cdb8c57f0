"""CIDEr-D of an output as a reward in training. Document frequencies come from the training references."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from regard.data.columns import FeatureColumn, ImageColumn, Indices
from regard.data.corpus import Corpus
from regard.data.tokenizer import Tokenizer
from regard.evaluation.caption_metrics import CaptionTokens, DocumentFrequency, TfIdfVector, cider_d
from regard.evaluation.ptb_tokenizer import tokenize
from regard.generation.choose.interfaces import Hypothesis

CACHED = 1 << 13  # images whose references' TF-IDF vectors are kept
# The end counts as a word: an output that breaks off must be worth less than one that ends.
STOP = "</s>"


class CiderReward:
    """CIDEr-D of an output with the references of its image.

    word_tokens   the tokenizer splits words: <unk> in a reference then stands for no known word
    """

    def __init__(self, corpus: Corpus, target: Tokenizer, *, word_tokens: bool) -> None:
        self.target = target
        self.word_tokens = word_tokens
        images = corpus.source
        if isinstance(corpus.source, FeatureColumn):
            images = corpus.source.images
        # Rows with the same image share its references. Without a column of images, each row is its own.
        self.image_of: Sequence[int] | Indices = range(len(corpus))
        if isinstance(images, ImageColumn):
            self.image_of = images.which
        self.references: dict[int, list[CaptionTokens]] = defaultdict(list)
        for row, image in enumerate(self.image_of):
            words = self._words(corpus.target.row(row))
            self.references[int(image)].append((*words, STOP))
        self.frequency = DocumentFrequency()
        for references in self.references.values():
            self.frequency.add(references)
        self.vectors = lru_cache(maxsize=CACHED)(self._vectors)

    def __call__(self, row: int, output: Hypothesis) -> float:
        words = tokenize(self.target.decode(output.tokens))
        if output.ended:
            words = (*words, STOP)
        references = self.vectors(int(self.image_of[row]))
        return cider_d(self.frequency.weigh(words), references)

    def _words(self, ids: Any) -> CaptionTokens:
        """The words of a target from the start token to the end token."""
        # All special tokens of a target but the end token come first.
        start = len(self.target.special_tokens.target(())) - 1
        inner = ids[start:-1]
        if self.word_tokens:
            text = " ".join(self.target.pieces(inner))
        else:
            text = self.target.decode(inner)
        return tokenize(text)

    def _vectors(self, image: int) -> list[TfIdfVector]:
        return [self.frequency.weigh(reference) for reference in self.references[image]]
