"""An input module of words: one vector for each, from its tokens and from its characters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.config import Count, Probability, doc
from regard.core.errors import InvalidArgument, Problem
from regard.core.shapes import Float, Int, Tensor
from regard.core.word_tokens import CHARACTER_IDS, UNKNOWN, WordTokens
from regard.model.embedding import Embedding
from regard.model.inputs import ComputedVectors, InputConfig, InputModule, described_source


@dataclass(frozen=True)
class WordInputConfig(InputConfig):
    """One vector for each word: of its tokens, of its characters, or of both."""

    tokens: bool = doc(
        True, "embed the tokens of a word; of several, the mean. false: its characters alone"
    )
    characters: Literal["none", "conv", "rnn"] = doc(
        "conv",
        "read the characters of a word by a convolution with "
        "max-pooling, or by a bidirectional LSTM",
        arxiv="1603.01354",
    )
    token_dim: Count | None = doc(
        None, "dimension of the token embeddings; by default that of the encoder"
    )
    character_dim: Count = doc(32, "dimension of the character embeddings")
    character_features: Count = doc(64, "numbers that the characters of a word become")
    kernel: Count = doc(3, "characters that the convolution reads at once")
    dropout: Probability = doc(0.0, "dropout of the vectors of words")
    unknown: Probability = doc(
        0.0,
        "probability that a token is read as an unknown one in training, so "
        "that unknown ones are learned",
    )

    @property
    def reads_characters(self) -> bool:
        return self.characters != "none"

    def conflicts(self) -> Iterator[Problem]:
        if not self.tokens and not self.reads_characters:
            yield Problem(
                "characters", "'conv' or 'rnn' without tokens", "'none'", "Set tokens = true."
            )


class WordInput(InputModule):
    """The vector of a word: a linear layer of its tokens' mean embedding beside its characters'
    features.
    """

    attribute = "word_input"
    size = "source_vocab_size"
    gives_words = True

    def __init__(self, config: WordInputConfig, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.unknown = config.unknown
        self.dropout = nn.Dropout(config.dropout)
        width = 0
        self.embed_tokens: Embedding | None = None
        if config.tokens:
            self.embed_tokens = Embedding(vocab_size, config.token_dim or dim)
            width += self.embed_tokens.dim
        self.read_characters: CharacterFeatures | None = None
        if config.reads_characters:
            self.read_characters = CharacterFeatures(config)
            width += config.character_features
        self.proj = nn.Linear(width, dim)

    def read(self, source: Any) -> ComputedVectors:
        words = require_words(source, characters=self.read_characters is not None)
        parts = []
        if self.embed_tokens is not None:
            ids = self._some_unknown(words.ids)
            parts.append(words.mean_of_pieces(self.embed_tokens(ids)))
        if self.read_characters is not None:
            assert words.characters is not None
            parts.append(self.read_characters(words.characters))
        vectors = self.proj(self.dropout(torch.cat(parts, -1)))  # (B, W, D)
        return ComputedVectors(vectors, words.word_lengths)

    def _some_unknown(self, ids: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
        if not self.training or self.unknown == 0.0:
            return ids
        drawn = torch.rand(ids.shape, device=ids.device) < self.unknown
        return ids.masked_fill(drawn, UNKNOWN)


class CharacterFeatures(nn.Module):
    """Features of the characters of each word, the same in any batch:
    padding counts for nothing.
    """

    def __init__(self, config: WordInputConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTER_IDS + 1, config.character_dim, padding_idx=0)
        self.features = config.character_features
        self.conv: nn.Conv1d | None = None
        self.rnn: nn.LSTM | None = None
        if config.characters == "conv":
            self.before = (config.kernel - 1) // 2
            self.after = config.kernel - 1 - self.before
            self.conv = nn.Conv1d(config.character_dim, self.features, config.kernel)
        else:
            # Half of the features from each direction.
            half = (self.features + 1) // 2
            self.rnn = nn.LSTM(config.character_dim, half, batch_first=True, bidirectional=True)

    def forward(self, characters: Int[Tensor, "B W C"]) -> Float[Tensor, "B W F"]:
        rows, words, _ = characters.shape
        flat = characters.flatten(0, 1)
        # Texts repeat their words: each different one is read once.
        different, place = torch.unique(flat, dim=0, return_inverse=True)
        lengths = (different > 0).sum(1)
        dtype = self.embed.weight.dtype
        features: Tensor = different.new_zeros(len(different), self.features, dtype=dtype)
        spelled = lengths > 0
        if bool(spelled.any()):
            read = self._features(different[spelled], lengths[spelled])
            features = features.to(read.dtype).index_put((spelled.nonzero()[:, 0],), read)
        return features[place].view(rows, words, self.features)

    def _features(
        self, characters: Int[Tensor, "N C"], lengths: Int[Tensor, " N"]
    ) -> Float[Tensor, "N F"]:
        vectors = self.embed(characters)  # (N, C, D)
        if self.conv is not None:
            padded = F.pad(vectors.mT, (self.before, self.after))
            found = self.conv(padded)  # (N, F, C)
            padding = characters == 0
            best: Tensor = found.masked_fill(padding[:, None], -torch.inf).amax(-1)
            return best
        assert self.rnn is not None
        packed = nn.utils.rnn.pack_padded_sequence(
            vectors, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.rnn(packed)
        both: Tensor = last.transpose(0, 1).flatten(1)  # (N, 2 · half)
        return both[:, : self.features]


def require_words(source: Any, *, characters: bool) -> WordTokens:
    """The source as words; refused otherwise."""
    if isinstance(source, WordTokens) and (source.characters is not None or not characters):
        return source
    wanted = "sentences of words"
    if characters:
        wanted += " with their characters"
    raise InvalidArgument(
        "source",
        wanted=wanted,
        got=described_source(source),
        remedy='Give a field of kind = "words" and characters = true.',
    )
