"""Word vectors, from a text to scores."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from regard.core.atomic_io import check_writable
from regard.core.config import read
from regard.core.errors import InvalidRecipe
from regard.data.text import lines
from regard.recipe.load import with_setting
from regard.word_vectors.evaluate import analogy_accuracy, read_analogies, read_pairs, similarity_correlation
from regard.word_vectors.vectors import WordVectors
from regard.word_vectors.word2vec import Word2VecConfig, train_word2vec


def train_word_vectors(
    text: Path, out: Path, changes: Sequence[str] = (), *, device: str = "cpu", tell: Callable[[str], None] = print
) -> WordVectors:
    """Learn word vectors from a text of words between spaces, and write them."""
    table: dict[str, Any] = {}
    for change in changes:
        table = with_setting(table, change)
    config = read(Word2VecConfig, table, "words")
    if isinstance(config, list):
        raise InvalidRecipe(config)
    check_writable(out)

    def progress(now: Any) -> None:
        tell(f"epoch {now.epoch + 1}   {now.done:.0%} done   loss {now.loss:.4f}")

    vectors = train_word2vec(lambda: (line.split() for line in lines(text)), config, progress=progress, device=device)
    vectors.save(out)
    return vectors


def evaluate_word_vectors(vectors: WordVectors, files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """A line for each file: rank correlation on pairs, or accuracy on analogies."""
    for path in files:
        if any(line.startswith(": ") for line in islice(lines(path), 1)):
            total, _ = analogy_accuracy(vectors, read_analogies(path))
            yield {"file": str(path), "accuracy": total.accuracy, **vars(total)}
        else:
            yield {"file": str(path), **vars(similarity_correlation(vectors, read_pairs(path)))}
