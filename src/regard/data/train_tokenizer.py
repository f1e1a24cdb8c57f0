"""Training of tokenizers: the same texts give the same tokenizer.

bpe         byte-level byte-pair encoding           https://arxiv.org/abs/1508.07909
unigram     byte-level unigram language model       https://arxiv.org/abs/1804.10959
characters  characters of the training data, bytes for others
words       separated by white space, <unk> for others
bytes       of UTF-8
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from regard.core.errors import InvalidArgument
from regard.data.special_tokens import SPECIALS, UNKNOWN
from regard.data.spelling import BYTE_TOKENS
from regard.data.tokenizer import Tokenizer, well_formed

TokenizerKind = Literal["bpe", "unigram", "characters", "words", "bytes", "pretrained"]
RUN = re.compile(r"\S{1000}|\s{1000}")  # training time is quadratic in the length of a word
LOWER = normalizers.Lowercase()


def train_tokenizer(
    kind: TokenizerKind, texts: Iterable[str], vocabulary: int = 8000, lower: bool = False
) -> Tokenizer:
    """Train a tokenizer of at most `vocabulary` tokens; `lower` converts texts to lower case."""
    if kind == "pretrained":
        wanted = "a kind of tokenizer to train"
        remedy = "train.init_from brings the tokenizer of a model."
        raise InvalidArgument("tokenizer", wanted=wanted, got=repr(kind), remedy=remedy)
    texts = well_formed(texts)
    if lower:
        texts = map(lowered, texts)
    inner = _TRAIN[kind](texts, vocabulary)
    if lower:
        inner.normalizer = LOWER
    inner.add_special_tokens(list(SPECIALS))
    return Tokenizer(inner)


def lowered(text: str) -> str:
    """Lower case as the tokenizer does it, character by character: ΑΣ becomes ασ,
    where Python gives ας.
    """
    return LOWER.normalize_str(text)


def _train_bpe(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    inner = _of_bytes(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=_alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_in_runs(texts), trainer)
    return inner


def _train_unigram(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    inner = _of_bytes(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary - len(SPECIALS), initial_alphabet=_alphabet(), show_progress=False
    )
    inner.train_from_iterator(_in_runs(texts), trainer)
    scores = json.loads(inner.to_str())["model"]["vocab"]
    # Without a training text there is no score.
    pieces = [(piece, 0.0 if score is None else score) for piece, score in scores]
    # The trainer sums in no fixed order and spaces unseen bytes 0.0001 apart, in no fixed order,
    # from the lowest score: without this, equal texts would give tokenizers that differ in the last
    # digits.
    least = min(score for _, score in pieces)
    rounded = []
    for piece, score in pieces:
        if len(piece) == 1 and score < least + 0.0001 * 257:
            score = least
        rounded.append((piece, round(score, 6)))
    rounded.sort(key=lambda item: (-item[1], item[0]))
    return _of_bytes(
        models.Unigram([*((name, 0.0) for name in SPECIALS), *rounded], unk_id=UNKNOWN)
    )


def _train_characters(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    """BPE without merges: a character is one token, or its bytes."""
    characters = _most_frequent(texts, vocabulary - len(SPECIALS) - len(BYTE_TOKENS))
    ids = {token: number for number, token in enumerate([*SPECIALS, *BYTE_TOKENS, *characters])}
    inner = tokenizers.Tokenizer(models.BPE(ids, [], byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return inner


def _train_words(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    words = _most_frequent(map(str.split, texts), vocabulary - len(SPECIALS))
    ids = {token: number for number, token in enumerate([*SPECIALS, *words])}
    inner = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=SPECIALS[UNKNOWN]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


_TRAIN: dict[TokenizerKind, Callable[[Iterator[str], int], tokenizers.Tokenizer]] = {
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "characters": _train_characters,
    "words": _train_words,
    "bytes": lambda texts, vocabulary: _train_characters(iter(()), 0),
}


def _of_bytes(model: models.Model) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits words, numbers and punctuation,
    each with its leading space.
    """
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    return inner


def _most_frequent(texts: Iterable[Iterable[str]], count: int) -> list[str]:
    """The tokens that occur most often, without the names of special tokens."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    for name in SPECIALS:
        del counts[name]
    return sorted(counts, key=lambda token: (-counts[token], token))[: max(0, count)]


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _in_runs(texts: Iterator[str]) -> Iterator[str]:
    """Training texts, split inside words of more than a thousand characters."""
    for text in texts:
        start = 0
        for run in RUN.finditer(text):
            yield text[start : run.end()]
            start = run.end()
        yield text[start:]
