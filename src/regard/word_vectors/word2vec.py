"""word2vec training: skip-gram and continuous bag of words (CBOW) with negative sampling.

The corpus is cut into blocks of consecutive words that share their negative samples, so that scores are small matrix
products and each row is read and updated once per word instead of once per pair. In expectation the loss is
word2vec's: a negative sample has the weight `negative / shared`.

Papers: https://arxiv.org/abs/1301.3781 and https://arxiv.org/abs/1310.4546; shared negative samples,
https://arxiv.org/abs/1604.04661; the gradient of the mean in CBOW, https://arxiv.org/abs/2012.15332; both
vectors of a word added, https://aclanthology.org/Q15-1016; the quadratic bound of -log σ that limits step sizes,
Jaakkola and Jordan, Bayesian parameter estimation via variational methods, 2000.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from regard.core.errors import Diverged, InvalidArgument
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.word_vectors.config import Word2VecConfig
from regard.word_vectors.vectors import WordVectors

LEAP = 2.0  # largest learning rate times curvature of a word's loss in a batch: a longer step might increase the loss
NUDGE = 1e-2  # keeps the curvature (σ(s) - ½) / s at 1/4 where s is 0
RATES = {"skipgram": 0.1, "cbow": 0.4}  # in CBOW each word gets a fraction of the gradient


@dataclass(frozen=True)
class Word2VecProgress:
    """Progress of training."""

    epoch: int
    done: float  # of all epochs, from 0 to 1
    rate: float
    loss: float  # of the current batch, per pair (skipgram) or word (cbow)


@dataclass(frozen=True)
class WordCorpus:
    """A corpus as ids: words by descending count, and for each position its word and its sentence."""

    words: tuple[str, ...]
    counts: np.ndarray
    ids: np.ndarray
    sentence: np.ndarray


@dataclass(frozen=True)
class Word2VecBatch:
    """Blocks of consecutive words with their contexts, and negative samples."""

    around: Int[
        Tensor, "B C"
    ]  # block + 2 × window positions; the number of words where there is none
    near: Bool[Tensor, "B S C"]  # whether a position is in the window of a word of the block
    negative: Int[Tensor, "B K"]


def train_word2vec(
    sentences: Iterable[Sequence[str]] | Callable[[], Iterable[Sequence[str]]],
    config: Word2VecConfig | None = None,
    *,
    progress: Callable[[Word2VecProgress], None] | None = None,
    device: torch.device | str = "cpu",
) -> WordVectors:
    """Train a vector for each word that occurs at least `min_count` times; words by descending count.

    Sentences are lists of words, read once; windows do not cross sentences. Results are reproducible for a seed on one
    machine (on CUDA up to the order of sums). `progress` is called every hundred batches.

    >>> text = [["the", "cat", "sat"], ["the", "dog", "sat"]] * 20
    >>> train_word2vec(text, Word2VecConfig(dim=8, epochs=2)).words
    ('the', 'sat', 'cat', 'dog')
    """
    config = config or Word2VecConfig()
    corpus = read_corpus(sentences() if callable(sentences) else sentences, config.min_count)
    random = np.random.default_rng(config.seed)
    start = (random.random((len(corpus.words), config.dim), dtype=np.float32) - 0.5) / config.dim
    nothing = torch.zeros(1, config.dim)  # the row of positions without a word: read, never updated
    inner = torch.cat([torch.from_numpy(start), nothing]).to(device)
    outer = torch.zeros_like(inner)
    rate = config.learning_rate or RATES[config.algorithm]
    for epoch in range(config.epochs):
        for number, (part, batch) in enumerate(batches(corpus, config, random, device)):
            done = (epoch + part) / config.epochs
            now = max(config.min_learning_rate, rate * (1 - done))
            if progress and number % 100 == 0:
                progress(
                    Word2VecProgress(epoch, done, now, batch_loss(inner, outer, batch, config))
                )
            update(inner, outer, batch, config, now)
    if not (inner.isfinite().all() and outer.isfinite().all()):
        raise Diverged(
            f"rate: wanted one that keeps the vectors finite; got {rate:g}. Take a smaller rate or batch."
        )
    vectors = inner if config.vectors == "inner" else F.normalize(inner) + F.normalize(outer)
    return WordVectors(corpus.words, vectors[:-1].cpu())


def read_corpus(sentences: Iterable[Sequence[str]], min_count: int) -> WordCorpus:
    """Count words and assign ids, in one pass."""
    number: defaultdict[str, int] = defaultdict()
    number.default_factory = number.__len__
    ids, lengths = array("i"), array("i")
    for sentence in sentences:
        if isinstance(sentence, str):
            got = f"the text {sentence[:40]!r}"
            raise InvalidArgument(
                "sentences", wanted="lists of words", got=got, remedy="Split it: text.split()."
            )
        ids.extend(map(number.__getitem__, sentence))
        lengths.append(len(sentence))
    seen = np.frombuffer(ids, dtype=np.int32) if ids else np.empty(0, dtype=np.int32)
    counts = np.bincount(seen, minlength=len(number))
    order = np.argsort(-counts, kind="stable")  # ties in order of first occurrence
    order = order[counts[order] >= min_count]
    if not len(order):
        wanted, got = (
            f"a word that occurs at least {min_count} times",
            f"{len(seen)} words, {len(number)} different ones",
        )
        raise InvalidArgument(
            "sentences", wanted=wanted, got=got, remedy="Give more text, or a smaller min_count."
        )
    rank = np.full(len(number), -1, dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    spelling = list(number)
    kept = rank[seen]
    sentence_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return WordCorpus(
        tuple(spelling[i] for i in order), counts[order], kept[kept >= 0], sentence_of[kept >= 0]
    )


def keep_probability(counts: np.ndarray, subsample: float) -> np.ndarray:
    """The probability of keeping an occurrence of each word, as the original program computes it."""
    if not subsample:
        return np.ones(len(counts))
    excess = counts / (subsample * counts.sum())
    return np.asarray((np.sqrt(excess) + 1) / excess).clip(max=1.0)


def batches(
    corpus: WordCorpus,
    config: Word2VecConfig,
    random: np.random.Generator,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[float, Word2VecBatch]]:
    """One epoch of the subsampled text, in blocks in random order; each batch with the completed part of the epoch."""
    size, side, nothing = config.block, config.window, len(corpus.words)
    keep = keep_probability(corpus.counts, config.sample)[corpus.ids]
    kept = random.random(len(corpus.ids), dtype=np.float32) < keep
    ids, sentence = corpus.ids[kept], corpus.sentence[kept]
    if not len(ids):
        return  # all words of a short text may be dropped
    blocks = -(-len(ids) // size)
    margin = (side, blocks * size - len(ids) + side)

    def overlapping(values: np.ndarray, fill: int) -> Tensor:  # T  ─▶  B, size + 2 × side
        return torch.from_numpy(np.pad(values, margin, constant_values=fill)).unfold(
            0, size + 2 * side, size
        )

    around, sentences = overlapping(ids, nothing), overlapping(sentence, -1)
    reach = torch.from_numpy(random.integers(1, side + 1, (blocks, size, 1), dtype=np.int32))
    chances = np.cumsum(corpus.counts**config.power)
    drawn = np.searchsorted(
        chances, random.random((blocks, config.shared)) * chances[-1], side="right"
    )
    negative = torch.from_numpy(drawn.clip(max=nothing - 1).astype(np.int32))
    apart = (torch.arange(size)[:, None] + side - torch.arange(size + 2 * side)).abs().int()
    apart[apart == 0] = side + 1  # a word is not in its own context
    order = torch.from_numpy(random.permutation(blocks))
    for start in range(0, blocks, config.batch):
        chosen = order[start : start + config.batch]
        where = sentences[chosen]
        same = where[:, side : side + size, None] == where[:, None]  # B, S, C
        inside = around[chosen][:, side : side + size, None] != nothing
        near = (apart <= reach[chosen]) & same & inside
        yield (
            start / blocks,
            Word2VecBatch(around[chosen].to(device), near.to(device), negative[chosen].to(device)),
        )


def update(
    inner: Float[Tensor, "V W"],
    outer: Float[Tensor, "V W"],
    batch: Word2VecBatch,
    config: Word2VecConfig,
    rate: float,
) -> None:
    """A gradient step on a batch, in place; shorter for words at which the loss has a high curvature."""
    inputs, bag, outputs, weight, positives = _layout(batch, config)
    rows = F.embedding(inputs, inner)  # B, _, W
    vectors = rows if bag is None else bag @ rows  # B, S, W
    inner_step, outer_step = descent(vectors, F.embedding(outputs, outer), weight, positives)
    if bag is not None:
        inner_step = bag.mT @ inner_step[0], (bag.mT @ inner_step[1][..., None])[..., 0]
    for matrix, words, (step, curvature) in (
        (inner, inputs, inner_step),
        (outer, outputs, outer_step),
    ):
        flat = words.flatten()
        rates = capped_rate(flat, curvature.flatten(), len(matrix), rate)
        matrix.index_add_(0, flat, step.flatten(0, 1) * rates[:, None])


def capped_rate(
    words: Int[Tensor, " T"], curvature: Float[Tensor, " T"], size: int, rate: float
) -> Float[Tensor, " T"]:
    """The learning rate at each position, capped by the curvature summed over all positions of its word.

    A batch sums the gradients of a word at one point. For a word in very many examples the sum overshoots and diverges.
    """
    of_word = torch.zeros(size, device=curvature.device).index_add_(0, words, curvature)
    return rate * (LEAP / (rate * of_word[words]).clamp(min=LEAP))


def batch_loss(
    inner: Float[Tensor, "V W"],
    outer: Float[Tensor, "V W"],
    batch: Word2VecBatch,
    config: Word2VecConfig,
) -> float:
    """The loss of a batch, per pair (skipgram) or word (cbow)."""
    inputs, bag, outputs, weight, positives = _layout(batch, config)
    rows = F.embedding(inputs, inner)
    total = loss(
        rows if bag is None else bag @ rows, F.embedding(outputs, outer), weight, positives
    )
    return float(total / weight[..., :positives].sum().clamp(min=1))


def loss(
    vectors: Float[Tensor, "B S W"],
    outer: Float[Tensor, "B M W"],
    weight: Float[Tensor, "B S M"],
    positives: int,
) -> Float[Tensor, ""]:
    """The weighted sum of -log σ(u·v) for the first `positives` of `outer` and -log σ(-n·v) for the others."""
    scores = vectors @ outer.mT
    signs = torch.ones_like(scores)
    signs[..., positives:] = -1
    return -(weight * F.logsigmoid(signs * scores)).sum()


def descent(
    vectors: Float[Tensor, "B S W"],
    outer: Float[Tensor, "B M W"],
    weight: Float[Tensor, "B S M"],
    positives: int,
) -> tuple[
    tuple[Float[Tensor, "B S W"], Float[Tensor, "B S"]],
    tuple[Float[Tensor, "B M W"], Float[Tensor, "B M"]],
]:
    """The negative gradient of `loss` and a bound of its curvature, for the inner and for the outer vectors.

    The gradient is (1 - σ) for positives and -σ for negatives. -log σ is bounded by the parabola that touches it at ±s,
    of curvature (σ(s) - ½) / s, so a step of at most 2 / curvature along the gradient does not increase the loss.
    """
    scores = torch.bmm(vectors, outer.mT)
    residual = scores.sigmoid()
    bound = (residual - 0.5).abs_().add_(NUDGE / 4).div_(scores.abs_().add_(NUDGE)).mul_(weight)
    residual.neg_()[..., :positives] += 1
    residual *= weight
    step, outer_step = torch.bmm(residual, outer), torch.bmm(residual.mT, vectors)
    along = torch.bmm(step, outer.mT).square_().mul_(bound).sum(2)
    along_outer = torch.bmm(vectors, outer_step.mT).square_().mul_(bound).sum(1)
    lengths, outer_lengths = (x.square().sum(2).clamp(min=1e-20) for x in (step, outer_step))
    return (step, along / lengths), (outer_step, along_outer / outer_lengths)


def _layout(
    batch: Word2VecBatch, config: Word2VecConfig
) -> tuple[
    Int[Tensor, "B _"],
    Float[Tensor, "B S C"] | None,
    Int[Tensor, "B _"],
    Float[Tensor, "B S M"],
    int,
]:
    """The words whose inner vectors are read, the averaging matrix of CBOW, the words that are predicted, the weight
    of each prediction, and the number of positive columns; the others are negatives.
    """
    near, size = batch.near.float(), batch.near.shape[1]
    center = batch.around[:, config.window : config.window + size]
    if config.algorithm == "skipgram":
        inputs, bag, targets, positive = center, None, batch.around, near
        examples = positive.sum(-1, keepdim=True)
    else:
        bag = near / near.sum(-1, keepdim=True).clamp(min=1)
        examples = batch.near.any(-1, keepdim=True).float()
        inputs, targets, positive = (
            batch.around,
            center,
            torch.eye(size, device=near.device) * examples,
        )
    each = examples * (config.negative / config.shared)
    weight = torch.cat([positive, each.expand(-1, -1, batch.negative.shape[1])], -1)
    return inputs, bag, torch.cat([targets, batch.negative], 1), weight, positive.shape[-1]
