"""Corpora in memory."""

import numpy as np

from regard.data.columns import LabelColumn, TextColumn
from regard.data.corpus import Corpus, VocabularyType
from regard.data.special_tokens import END, START
from regard.data.vocabulary import Labels


def corpus_of(
    pairs: list[tuple[str | None, str]],
    source: VocabularyType | None,
    target: VocabularyType | None,
) -> Corpus:
    """Pairs as `prepare` stores them; without a source vocabulary, the targets alone."""
    assert target is not None
    sources = None if source is None else _column(source, [str(text) for text, _ in pairs], [])
    return Corpus(sources, _column(target, [text for _, text in pairs], [START]))


def _column(
    vocabulary: VocabularyType, texts: list[str], start: list[int]
) -> TextColumn | LabelColumn:
    if isinstance(vocabulary, Labels):
        return LabelColumn(np.array([vocabulary.encode(name) for name in texts], dtype=np.uint32))
    rows = [[*start, *ids, END] for ids in vocabulary.encode_batch(texts)]
    return TextColumn(
        np.array([i for row in rows for i in row], dtype=np.uint16),
        np.cumsum([len(row) for row in rows]),
    )
