"""The settings of word2vec."""

from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Config, Count, Range, Seed, doc


@dataclass(frozen=True)
class Word2VecConfig(Config):
    """The settings of word2vec."""

    algorithm: Literal["skipgram", "cbow"] = doc(
        "skipgram",
        "skip-gram predicts the context from a word, CBOW a word from the mean of its context",
    )
    dim: Count = doc(100, "dimension of the vectors")
    window: Count = doc(
        5, "largest context on each side; each word draws its own, uniformly from 1 to this"
    )
    negative: Count = doc(5, "negative samples per positive pair")
    sample: Annotated[float, Range(0.0, 1.0)] = doc(
        1e-3, "subsampling threshold of frequent words, as a share of the text; 0: none"
    )
    power: Annotated[float, Range(0.0)] = doc(
        0.75, "negatives are drawn by word count to this power"
    )
    epochs: Count = doc(5, "passes over the text")
    learning_rate: Annotated[float, Range(1e-6, 1.0)] | None = doc(
        None, "initial learning rate; left out: 0.1 for skipgram, 0.4 for cbow"
    )
    min_learning_rate: Annotated[float, Range(0.0, 1.0)] = doc(
        1e-4, "final learning rate of the linear decay"
    )
    min_count: Count = doc(5, "words that occur less often are left out")
    vectors: Literal["both", "inner"] = doc(
        "both",
        '"both": the sum of the normalized input and output vectors; "inner": the input vectors',
    )
    seed: Seed = doc(1, "seed of initialization and sampling")
    block: Count = doc(64, "consecutive words that share negative samples")
    shared: Count = doc(32, "negative samples of a block")
    batch: Count = doc(
        8, "blocks per update: more is faster, fewer is closer to one word at a time"
    )
