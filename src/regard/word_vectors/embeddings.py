"""Embeddings initialized with the word vectors of a file: which tokens have one, and what the others get."""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
import torch

from regard.core.shapes import Bool, Tensor
from regard.data.spelling import BYTES
from regard.data.tokenizer import Tokenizer
from regard.model.embedding import Embedding
from regard.word_vectors.files import Vector, find_vectors


@dataclass(frozen=True)
class TokenVectors:
    """Vectors from a file for tokens of a vocabulary, by the id of the token."""

    vectors: dict[int, Vector]

    @staticmethod
    def read(path: Path, tokenizer: Tokenizer) -> "TokenVectors":
        spellings = token_spellings(tokenizer)
        every_word = {word for words in spellings for word in words}
        found = find_vectors(path, every_word)
        vectors: dict[int, Vector] = {}
        for token, words in enumerate(spellings):
            known = [word for word in words if word in found]
            if known:
                vectors[token] = found[known[0]]
        return TokenVectors(vectors)

    def rows(self, size: int) -> Bool[Tensor, " V"]:
        """For each token of a vocabulary of this size, whether it has a vector."""
        rows = torch.zeros(size, dtype=torch.bool)
        rows[list(self.vectors)] = True
        return rows

    def fill(self, embedding: Embedding) -> None:
        """Make an embedding return these vectors, and for other tokens random ones of the same standard deviation.

        The scale of the embedding is divided out: exactly if it is a power of two, else up to rounding.
        """
        if not self.vectors:
            return
        ids = list(self.vectors)
        vectors = torch.from_numpy(np.stack(list(self.vectors.values())))  # (found, W)
        deviation = float(vectors.double().std(correction=0))
        with torch.no_grad():
            if deviation > 0:
                # New embeddings have the standard deviation 1 / √dim before they are scaled.
                factor = deviation * sqrt(embedding.dim) / embedding.scale
                embedding.weight.mul_(factor)
            unscaled = vectors / embedding.scale
            embedding.weight[ids] = unscaled.to(embedding.weight)


def token_spellings(tokenizer: Tokenizer) -> list[list[str]]:
    """For each token, the words under which to look for its vector in a file, the best first.

    A token is looked up by its name, then as the text that it spells without spaces around it (a sub-word's name
    has a mark for the space before it), then each of these in lower case. Special tokens, and tokens that stand for a
    byte, are looked up by their names alone.
    """
    special = tokenizer.special_names
    found = []
    for token, name in enumerate(tokenizer.tokens()):
        words = [name]
        if name not in special and name not in BYTES:
            words += _spelled(tokenizer, token)
            words += [word.lower() for word in words]
        found.append(list(dict.fromkeys(words)))
    return found


def _spelled(tokenizer: Tokenizer, token: int) -> list[str]:
    """The text of a token; nothing for a token that is only a part of a character."""
    (spelling,) = tokenizer.spellings([token])
    try:
        text = spelling.decode().strip()
    except UnicodeDecodeError:
        return []
    if text:
        return [text]
    return []
