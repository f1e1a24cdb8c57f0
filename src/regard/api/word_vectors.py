"""Training and evaluating word vectors: `regard words train` and `regard words score`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from regard.core.atomic_io import check_writable
from regard.core.config import read
from regard.core.errors import InvalidRecipe
from regard.data.text import lines
from regard.inference.load import pick_device
from regard.recipe.load import read_tables
from regard.word_vectors.config import Word2VecConfig
from regard.word_vectors.evaluate import (
    analogy_accuracy,
    read_analogies,
    read_pairs,
    similarity_correlation,
)
from regard.word_vectors.vectors import WordVectors
from regard.word_vectors.word2vec import Word2VecProgress, train_word2vec

LONGEST_TEXT = 1 << 30  # bytes of a line: some corpora are a single one


def train_word_vectors(
    text: str | Path | Iterable[Sequence[str]],
    out: str | Path | None = None,
    config: Word2VecConfig | Sequence[str] = (),
    *,
    device: str = "auto",
    progress: Callable[[Word2VecProgress], None] | None = None,
) -> WordVectors:
    """Train word vectors by word2vec.

    text       a file with a sentence of space-separated words per line, or sentences as lists of
               words
    out        the file to write the vectors to, in word2vec's text format
    config     the configuration, or changes of its defaults: ["dim=200", "algorithm=cbow"]
    device     "cpu", "cuda", or "auto": a GPU where there is one
    progress   called with the progress every hundred batches
    """
    if not isinstance(config, Word2VecConfig):
        parsed = read(Word2VecConfig, read_tables({}, config), "words")
        if isinstance(parsed, list):
            raise InvalidRecipe(parsed)
        config = parsed
    if out is not None:
        check_writable(Path(out))
    if isinstance(text, str | Path):
        sentences: Iterable[Sequence[str]] = (
            line.split() for line in lines(text, longest=LONGEST_TEXT)
        )
    else:
        sentences = text
    vectors = train_word2vec(sentences, config, progress=progress, device=pick_device(device))
    if out is not None:
        vectors.save(out)
    return vectors


def evaluate_word_vectors(vectors: WordVectors, files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The scores on each file: rank correlation on word pairs, or accuracy on analogies."""
    for path in files:
        if any(line.startswith(": ") for line in islice(lines(path), 1)):
            total, _ = analogy_accuracy(vectors, read_analogies(path))
            yield {"file": str(path), "accuracy": total.accuracy, **vars(total)}
        else:
            yield {"file": str(path), **vars(similarity_correlation(vectors, read_pairs(path)))}
