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

# The largest product of learning rate and curvature of a word's loss in a batch. A longer step might increase the loss.
LEAP = 2.0
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

    # The words at block + 2 × window positions. Positions without a word hold the number of words.
    around: Int[Tensor, "B C"]
    near: Bool[Tensor, "B S C"]  # whether a position is in the window of a word of the block
    negative: Int[Tensor, "B K"]


def train_word2vec(
    sentences: Iterable[Sequence[str]] | Callable[[], Iterable[Sequence[str]]],
    config: Word2VecConfig | None = None,
    *,
    progress: Callable[[Word2VecProgress], None] | None = None,
    device: torch.device | str = "cpu",
) -> WordVectors:
    """Train a vector for each word that occurs at least `min_count` times. Words are sorted by descending count.

    Sentences are lists of words, read once; windows do not cross sentences. Results are reproducible for a seed on one
    machine (on CUDA up to the order of sums). `progress` is called every hundred batches.

    >>> text = [["the", "cat", "sat"], ["the", "dog", "sat"]] * 20
    >>> train_word2vec(text, Word2VecConfig(dim=8, epochs=2)).words
    ('the', 'sat', 'cat', 'dog')
    """
    config = config or Word2VecConfig()
    corpus = read_corpus(sentences() if callable(sentences) else sentences, config.min_count)
    random = np.random.default_rng(config.seed)
    drawn = random.random((len(corpus.words), config.dim), dtype=np.float32)  # (V, W)
    start = (drawn - 0.5) / config.dim
    # The last row stands for positions without a word: it is read, and never updated.
    nothing = torch.zeros(1, config.dim)
    inner = torch.cat([torch.from_numpy(start), nothing]).to(device)  # (V + 1, W)
    outer = torch.zeros_like(inner)
    rate = config.learning_rate or RATES[config.algorithm]
    for epoch in range(config.epochs):
        for number, (part, batch) in enumerate(batches(corpus, config, random, device)):
            done = (epoch + part) / config.epochs
            now = max(config.min_learning_rate, rate * (1 - done))
            if progress and number % 100 == 0:
                current_loss = batch_loss(inner, outer, batch, config)
                progress(Word2VecProgress(epoch, done, now, current_loss))
            update(inner, outer, batch, config, now)
    if not (inner.isfinite().all() and outer.isfinite().all()):
        raise Diverged(
            f"rate: wanted one that keeps the vectors finite; got {rate:g}. Take a smaller rate or batch."
        )
    if config.vectors == "inner":
        vectors = inner
    else:
        vectors = F.normalize(inner) + F.normalize(outer)
    return WordVectors(corpus.words, vectors[:-1].cpu())


def read_corpus(sentences: Iterable[Sequence[str]], min_count: int) -> WordCorpus:
    """Count words and assign ids, in one pass."""
    # Each new word gets the number of words before it.
    number: defaultdict[str, int] = defaultdict()
    number.default_factory = number.__len__
    ids = array("i")
    lengths = array("i")
    for sentence in sentences:
        if isinstance(sentence, str):
            got = f"the text {sentence[:40]!r}"
            raise InvalidArgument(
                "sentences", wanted="lists of words", got=got, remedy="Split it: text.split()."
            )
        ids.extend(map(number.__getitem__, sentence))
        lengths.append(len(sentence))
    seen = np.empty(0, dtype=np.int32)
    if ids:
        seen = np.frombuffer(ids, dtype=np.int32)
    counts = np.bincount(seen, minlength=len(number))
    # Sort by descending count, and equal counts in order of first occurrence.
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= min_count]
    if not len(order):
        wanted = f"a word that occurs at least {min_count} times"
        got = f"{len(seen)} words, {len(number)} different ones"
        raise InvalidArgument(
            "sentences", wanted=wanted, got=got, remedy="Give more text, or a smaller min_count."
        )
    rank = np.full(len(number), -1, dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    spelling = list(number)
    ranks = rank[seen]
    is_kept = ranks >= 0
    sentence_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return WordCorpus(
        words=tuple(spelling[i] for i in order),
        counts=counts[order],
        ids=ranks[is_kept],
        sentence=sentence_of[is_kept],
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
    """Yield the batches of an epoch, each with the completed part of the epoch.

    The text is subsampled and cut into blocks, which come in random order.
    """
    size = config.block
    side = config.window
    nothing = len(corpus.words)
    keep = keep_probability(corpus.counts, config.sample)[corpus.ids]
    kept = random.random(len(corpus.ids), dtype=np.float32) < keep
    ids = corpus.ids[kept]
    sentence = corpus.sentence[kept]
    if not len(ids):
        return  # all words of a short text may be dropped
    blocks = -(-len(ids) // size)
    margin = (side, blocks * size - len(ids) + side)

    def overlapping(values: np.ndarray, fill: int) -> Tensor:
        """Cut into blocks of `size` that include `side` values of their neighbors on each side."""
        padded = torch.from_numpy(np.pad(values, margin, constant_values=fill))
        return padded.unfold(0, size + 2 * side, size)  # (blocks, size + 2 × side)

    around = overlapping(ids, nothing)  # (blocks, C)
    sentences = overlapping(sentence, -1)  # (blocks, C)
    # Each word draws the size of its window.
    drawn_sizes = random.integers(1, side + 1, (blocks, size, 1), dtype=np.int32)
    reach = torch.from_numpy(drawn_sizes)  # (blocks, S, 1)
    # Negative samples are drawn by inverting the cumulative distribution.
    chances = np.cumsum(corpus.counts**config.power)
    points = random.random((blocks, config.shared)) * chances[-1]
    drawn = np.searchsorted(chances, points, side="right")
    negative = torch.from_numpy(drawn.clip(max=nothing - 1).astype(np.int32))  # (blocks, K)
    own_position = torch.arange(size)[:, None] + side  # (S, 1)
    apart = (own_position - torch.arange(size + 2 * side)).abs().int()  # (S, C)
    apart[apart == 0] = side + 1  # a word is not in its own context
    order = torch.from_numpy(random.permutation(blocks))
    for start in range(0, blocks, config.batch):
        chosen = order[start : start + config.batch]
        where = sentences[chosen]  # (B, C)
        same = where[:, side : side + size, None] == where[:, None]  # (B, S, C)
        inside = around[chosen][:, side : side + size, None] != nothing  # (B, S, 1)
        near = (apart <= reach[chosen]) & same & inside  # (B, S, C)
        batch = Word2VecBatch(
            around=around[chosen].to(device),
            near=near.to(device),
            negative=negative[chosen].to(device),
        )
        yield start / blocks, batch


def update(
    inner: Float[Tensor, "V W"],
    outer: Float[Tensor, "V W"],
    batch: Word2VecBatch,
    config: Word2VecConfig,
    rate: float,
) -> None:
    """Take a gradient step on a batch, in place. Words at which the loss has a high curvature move less."""
    inputs, bag, outputs, weight, positives = _layout(batch, config)
    vectors = F.embedding(inputs, inner)  # (B, _, W)
    if bag is not None:
        vectors = bag @ vectors  # (B, S, W)
    predicted = F.embedding(outputs, outer)  # (B, M, W)
    inner_step, outer_step = descent(vectors, predicted, weight, positives)
    if bag is not None:
        # In CBOW the step of a mean is passed on to the words that it averages.
        step, curvature = inner_step
        inner_step = (bag.mT @ step, (bag.mT @ curvature[..., None])[..., 0])
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
    of_word = torch.zeros(size, device=curvature.device).index_add_(0, words, curvature)  # (V,)
    leap = (rate * of_word[words]).clamp(min=LEAP)  # (T,)
    return rate * (LEAP / leap)


def batch_loss(
    inner: Float[Tensor, "V W"],
    outer: Float[Tensor, "V W"],
    batch: Word2VecBatch,
    config: Word2VecConfig,
) -> float:
    """The loss of a batch, per pair (skipgram) or word (cbow)."""
    inputs, bag, outputs, weight, positives = _layout(batch, config)
    vectors = F.embedding(inputs, inner)  # (B, _, W)
    if bag is not None:
        vectors = bag @ vectors  # (B, S, W)
    total = loss(vectors, F.embedding(outputs, outer), weight, positives)
    examples = weight[..., :positives].sum().clamp(min=1)
    return float(total / examples)


def loss(
    vectors: Float[Tensor, "B S W"],
    outer: Float[Tensor, "B M W"],
    weight: Float[Tensor, "B S M"],
    positives: int,
) -> Float[Tensor, ""]:
    """The weighted sum of -log σ(u·v) for the first `positives` of `outer` and -log σ(-n·v) for the others."""
    scores = vectors @ outer.mT  # (B, S, M)
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
    scores = torch.bmm(vectors, outer.mT)  # (B, S, M)
    residual = scores.sigmoid()  # (B, S, M)
    # The curvature of the parabola. This overwrites the scores, which are not needed any more.
    bound = (residual - 0.5).abs_().add_(NUDGE / 4)  # (B, S, M)
    bound.div_(scores.abs_().add_(NUDGE)).mul_(weight)
    # The negative gradient: 1 - σ for positives, -σ for negatives.
    residual.neg_()
    residual[..., :positives] += 1
    residual *= weight
    step = torch.bmm(residual, outer)  # (B, S, W)
    outer_step = torch.bmm(residual.mT, vectors)  # (B, M, W)
    # The curvature along each step: the change of its scores, squared, over the step's squared length.
    along = torch.bmm(step, outer.mT).square_().mul_(bound).sum(2)  # (B, S)
    along_outer = torch.bmm(vectors, outer_step.mT).square_().mul_(bound).sum(1)  # (B, M)
    lengths = step.square().sum(2).clamp(min=1e-20)  # (B, S)
    outer_lengths = outer_step.square().sum(2).clamp(min=1e-20)  # (B, M)
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
    """What both algorithms need to know of a batch.

    Returns the words whose inner vectors are read, the averaging matrix of CBOW, the words that are predicted, the
    weight of each prediction, and the number of positive columns. The other columns are negatives.
    """
    near = batch.near.float()  # (B, S, C)
    size = batch.near.shape[1]
    center = batch.around[:, config.window : config.window + size]
    if config.algorithm == "skipgram":
        inputs = center
        bag = None
        targets = batch.around
        positive = near
        examples = positive.sum(-1, keepdim=True)
    else:
        bag = near / near.sum(-1, keepdim=True).clamp(min=1)
        examples = batch.near.any(-1, keepdim=True).float()
        inputs = batch.around
        targets = center
        positive = torch.eye(size, device=near.device) * examples
    # A block has `shared` samples, which stand for `negative` samples of each pair.
    each = examples * (config.negative / config.shared)  # (B, S, 1)
    of_negatives = each.expand(-1, -1, batch.negative.shape[1])  # (B, S, K)
    weight = torch.cat([positive, of_negatives], -1)  # (B, S, M)
    outputs = torch.cat([targets, batch.negative], 1)  # (B, M)
    return inputs, bag, outputs, weight, positive.shape[-1]
