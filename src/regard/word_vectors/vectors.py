"""Word vectors: similarity, analogies, and word2vec's text format.

A file is plain text, or gzip if its name ends in .gz: a line with the number of words and the dimension, then a line
per word with its numbers. Gensim and the original tool read and write the same format.
"""

import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import IO

import torch
from torch.nn import functional as F

from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidArgument
from regard.core.sanitize import is_encodable
from regard.core.shapes import Float, Tensor
from regard.model.embedding import Embedding
from regard.word_vectors.similarity import WordSimilarity, normalized, read_vectors


class WordVectors:
    """A vector for each word.

    words     as many as vectors, each once
    vectors   (words, dim)

    >>> vectors = WordVectors(["red", "pink", "king"], torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]))
    >>> [word for word, cosine in vectors.nearest("red", 2)]
    ['pink', 'king']
    """

    def __init__(self, words: Sequence[str], vectors: Float[Tensor, "V W"]) -> None:
        if vectors.ndim != 2 or len(vectors) != len(words) or not vectors.numel():
            wanted = f"a row for each of the {len(words)} words, at least one"
            got = f"shape {tuple(vectors.shape)}"
            raise InvalidArgument(
                "vectors", wanted=wanted, got=got, remedy="Give a (words, dim) matrix."
            )
        word, count = Counter(words).most_common(1)[0]
        if count > 1:
            got = f"{word!r} {count} times"
            raise InvalidArgument(
                "words", wanted="each word once", got=got, remedy="Keep one row of it."
            )
        self.words = tuple(words)
        self.vectors = vectors.detach().to(torch.float32)
        finite = self.vectors.isfinite().all(1)
        if not finite.all():
            got = f"others for {self.words[int(finite.int().argmin())]!r}"
            raise InvalidArgument(
                "vectors", wanted="finite numbers", got=got, remedy="Leave such words out."
            )

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._similarity.rows

    def __getitem__(self, word: str) -> Float[Tensor, " W"]:
        return self.vectors[self.row(word)]

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self.vectors.shape[1]

    @cached_property
    def units(self) -> Float[Tensor, "V W"]:
        """The vectors normalized to length 1, so that a product is a cosine."""
        return F.normalize(self.vectors, dim=1)

    def row(self, word: str) -> int:
        """The row of a word in the matrix."""
        return self._similarity.row(word)

    def similarity(self, a: str, b: str) -> float:
        """The cosine of the vectors of the words `a` and `b`."""
        return float(self.units[self.row(a)] @ self.units[self.row(b)])

    def nearest(self, to: str | Float[Tensor, "_"], count: int = 10) -> list[tuple[str, float]]:
        """The words of largest cosine, with their cosines, in descending order.

        to      a word, which is not among the results, or a vector
        count   of the results
        """
        if isinstance(to, str):
            return self._similarity.nearest(to, count)
        if to.shape != (self.dim,):
            wanted = f"a word or a vector of dimension {self.dim}"
            got = f"shape {tuple(to.shape)}"
            raise InvalidArgument(
                "to", wanted=wanted, got=got, remedy="Compare vectors of one dimension."
            )
        unit = normalized(to.detach().float().cpu().numpy())
        return self._similarity.greatest(unit, set(), count)

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[tuple[str, float]]:
        """`a` is to `b` as `c` is to what? The `count` best words by 3CosAdd, never one of the three
        (https://aclanthology.org/W14-1618).
        """
        return self._similarity.analogy(a, b, c, count)

    @cached_property
    def _similarity(self) -> WordSimilarity:
        return WordSimilarity(self.words, self.vectors.cpu().numpy())

    def fill(self, embedding: Embedding, vocabulary: Sequence[str]) -> int:
        """Copy vectors to the rows of an embedding for the tokens of `vocabulary`. Return how many tokens have one.

        The embedding then returns the word's vector: its own scale is divided out (exactly if it is a power of two, up
        to rounding otherwise). Rows of other tokens are unchanged.
        """
        if embedding.dim != self.dim:
            wanted = f"the dimension of the vectors, {self.dim}"
            got = str(embedding.dim)
            raise InvalidArgument(
                "embedding", wanted=wanted, got=got, remedy="Train either with the other's."
            )
        if len(vocabulary) != embedding.vocab_size:
            wanted = f"a token for each of the embedding's {embedding.vocab_size} rows"
            got = f"{len(vocabulary)} tokens"
            raise InvalidArgument(
                "vocabulary", wanted=wanted, got=got, remedy="Give the model's own, in its order."
            )
        known = [row for row, token in enumerate(vocabulary) if token in self]
        own = [self.row(vocabulary[row]) for row in known]
        unscaled = self.vectors[own] / embedding.scale  # (known, W)
        with torch.no_grad():
            embedding.weight[known] = unscaled.to(embedding.weight)
        return len(known)

    def save(self, path: str | Path) -> None:
        """Write word2vec's text format to the file `path`, atomically."""
        for word in self.words:
            if word.split() != [word] or not is_encodable(word):
                wanted = "words of UTF-8 text without spaces, which end a word in this format"
                raise InvalidArgument(
                    "words", wanted=wanted, got=repr(word), remedy="Replace the spaces, by _ say."
                )
        with atomic_file(Path(path)) as target, _packed(target, Path(path)) as file:
            file.write(f"{len(self)} {self.dim}\n".encode())
            for word, row in zip(self.words, self.vectors.cpu().numpy(), strict=True):
                # NumPy writes the shortest digits that read back as the same float32.
                numbers = " ".join(map(str, row))
                file.write(f"{word} {numbers}\n".encode())

    @staticmethod
    def load(path: str | Path) -> "WordVectors":
        """Read word2vec's text format from the file `path`."""
        words, matrix = read_vectors(Path(path))
        return WordVectors(words, torch.from_numpy(matrix.copy()))


def _packed(file: IO[bytes], path: Path) -> AbstractContextManager[IO[bytes] | gzip.GzipFile]:
    """The file, gzipped if its name ends in .gz. No name or time is stored, so that equal vectors give equal bytes."""
    if path.suffix == ".gz":
        return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
    return nullcontext(file)
