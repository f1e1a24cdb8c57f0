"""Word vectors: lookup, similarity and analogies, evaluation, and word2vec training."""

import gzip
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import regard
from regard.core.errors import Diverged
from regard.model.embedding import Embedding
from regard.word_vectors.evaluate import (
    Answers,
    analogy_accuracy,
    read_analogies,
    read_pairs,
    similarity_correlation,
    spearman,
)
from regard.word_vectors.vectors import WordVectors
from regard.word_vectors.word2vec import (
    Word2VecConfig,
    batches,
    capped_rate,
    descent,
    keep_probability,
    loss,
    read_corpus,
    train_word2vec,
    update,
)

ROYAL = WordVectors(
    ["king", "man", "woman", "queen", "apple"],
    torch.tensor(
        [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [-1.0, 0.1, 0.1]]
    ),
)


def test_a_row_is_a_one_hot_vector_times_the_matrix():
    one_hot = F.one_hot(torch.tensor(ROYAL.row("woman")), len(ROYAL)).float()
    assert torch.equal(one_hot @ ROYAL.vectors, ROYAL["woman"])
    assert (len(ROYAL), "king" in ROYAL, "kng" in ROYAL, list(ROYAL)) == (
        5,
        True,
        False,
        list(ROYAL.words),
    )


def test_nearest_by_cosine_whatever_the_lengths():
    longer = WordVectors(
        ROYAL.words, ROYAL.vectors * torch.tensor([[9.0], [1.0], [2.0], [0.1], [5.0]])
    )
    for vectors in (ROYAL, longer):
        assert [word for word, _ in vectors.nearest("man", 2)] == ["king", "apple"]
        assert vectors.nearest("man", 1)[0][1] == pytest.approx(0.5**0.5)
        assert vectors.similarity("king", "queen") == pytest.approx(0.5)
        assert vectors.nearest(torch.tensor([0.0, 0.0, 7.0]), 1)[0] == ("woman", pytest.approx(1.0))
    assert len(ROYAL.nearest("man", 99)) == 4


def test_an_analogy_never_answers_with_its_question():
    assert ROYAL.analogy("man", "king", "woman")[0][0] == "queen"
    assert {word for word, _ in ROYAL.analogy("man", "king", "woman", 9)} == {"queen", "apple"}


@pytest.mark.parametrize("dim", [16, 10])
def test_fill_copies_vectors_to_an_embedding(dim):
    vectors = WordVectors(["a", "b", "c"], torch.randn(3, dim))
    embedding = Embedding(4, dim)
    before = embedding.weight.detach().clone()
    assert vectors.fill(embedding, ["<pad>", "c", "zebra", "a"]) == 2
    out = embedding(torch.tensor([1, 3]))
    torch.testing.assert_close(
        out, torch.stack([vectors["c"], vectors["a"]]), rtol=0 if dim == 16 else 2e-7, atol=0
    )
    assert torch.equal(embedding.weight[[0, 2]], before[[0, 2]])
    out.sum().backward()  # still learns


def test_invalid_arguments_are_refused():
    with pytest.raises(
        regard.InvalidArgument, match=r"word: wanted one of the 5 known words; got 'kng'. .*'king'"
    ):
        ROYAL["kng"]
    with pytest.raises(
        regard.InvalidArgument, match="embedding: wanted the dimension of the vectors, 3; got 4"
    ):
        ROYAL.fill(Embedding(2, 4), ["a", "b"])
    with pytest.raises(
        regard.InvalidArgument, match="each of the embedding's 2 rows; got 1 tokens"
    ):
        ROYAL.fill(Embedding(2, 3), ["a"])
    with pytest.raises(
        regard.InvalidArgument, match="vectors: wanted a row for each of the 1 words"
    ):
        WordVectors(["a"], torch.ones(2, 3))
    with pytest.raises(regard.InvalidArgument, match="each word once; got 'a' 2 times"):
        WordVectors(["a", "b", "a"], torch.ones(3, 2))
    with pytest.raises(
        regard.InvalidArgument, match="vectors: wanted finite numbers; got others for 'b'"
    ):
        WordVectors(["a", "b", "c"], torch.tensor([[1.0], [float("nan")], [float("inf")]]))
    with pytest.raises(regard.InvalidArgument, match="count: wanted at least 1; got 0"):
        ROYAL.nearest("king", 0)
    with pytest.raises(
        regard.InvalidArgument, match=r"to: wanted a word or a vector of dimension 3; got .*\(2,\)"
    ):
        ROYAL.nearest(torch.ones(2))


def test_spearman():
    assert spearman([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: covariance 4.5 over √(4.5 × 5); scipy.stats.spearmanr says the same
    assert spearman([1.0, 2.0, 2.0, 3.0], [10.0, 30.0, 20.0, 40.0]) == pytest.approx(
        0.9486832980505138
    )
    assert np.isnan(spearman([1.0, 1.0], [1.0, 2.0]))


def test_correlation_counts_missing_words(tmp_path):
    (tmp_path / "pairs.txt").write_text(
        "King\tqueen\t9.5\r\nman apple 1\nman\tking\t8\nman\tzebra\t3\n\n"
    )
    pairs = read_pairs(tmp_path / "pairs.txt")
    assert pairs[0] == ("King", "queen", 9.5)
    found = similarity_correlation(ROYAL, pairs)
    # cosines 0.5, 0.099, 0.707 beside 9.5, 1, 8
    assert (found.spearman, found.found, found.missing) == (pytest.approx(0.5), 3, 1)
    with pytest.raises(
        regard.InvalidArgument, match="at least two pairs of known words; got 0 of 1"
    ):
        similarity_correlation(ROYAL, pairs[3:])
    (tmp_path / "pairs.txt").write_text("a b 1\na b c\n")
    with pytest.raises(
        regard.InvalidArgument, match="line 2: wanted two words and a score; got 'a b c'"
    ):
        read_pairs(tmp_path / "pairs.txt")
    for score in ("nan", "-inf", "1e999"):
        (tmp_path / "pairs.txt").write_text(f"a b 1\na c {score}\n")
        with pytest.raises(
            regard.InvalidArgument, match=f"line 2: wanted a finite score; got 'a c {score}'"
        ):
            read_pairs(tmp_path / "pairs.txt")


def test_analogies_by_section(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.word_vectors.evaluate.BLOCK", 1)
    with gzip.open(tmp_path / "q.gz", "wt") as file:
        file.write(
            ": family\nman king Woman queen\nman king woman apple\n: fruit trees\nman apple woman pear\n"
        )
    sections = read_analogies(tmp_path / "q.gz")
    total, each = analogy_accuracy(ROYAL, sections)
    assert each == {"family": Answers(1, 2, 0), "fruit trees": Answers(0, 0, 1)}
    assert (total, total.accuracy) == (Answers(1, 2, 1), 0.5)
    # d - a + b is nearest to b itself, which is excluded
    close = WordVectors(
        list("abcd"), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 1.0], [1.0, 0.1]])
    )
    assert analogy_accuracy(close, {"s": [("a", "d", "b", "c")]})[0] == Answers(1, 1, 0)
    (tmp_path / "q.txt").write_text("man king woman queen\n")
    with pytest.raises(
        regard.InvalidArgument, match="line 1: wanted ': section', or four words of a section"
    ):
        read_analogies(tmp_path / "q.txt")


def test_word_ids_are_ordered_by_count():
    corpus = read_corpus(iter([["b", "a", "rare"], [], ["a", "c", "b", "a", "c"]]), 2)
    assert corpus.words == ("a", "b", "c")
    assert corpus.counts.tolist() == [3, 2, 2]
    assert corpus.ids.tolist() == [1, 0, 0, 2, 1, 0, 2]
    assert corpus.sentence.tolist() == [0, 0, 2, 2, 2, 2, 2]


def test_frequent_words_are_subsampled():
    # word2vec.c: (√(z / t) + 1) × t / z for a word that makes up z of the text
    assert keep_probability(np.array([900, 100]), 0.01) == pytest.approx(
        [(90**0.5 + 1) / 90, (10**0.5 + 1) / 10]
    )
    assert keep_probability(np.array([900, 100]), 0.0).tolist() == [1, 1]


@pytest.mark.parametrize("algorithm", ["skipgram", "cbow"])
@pytest.mark.parametrize("sentence", ["a b", "the cat sat"])
def test_subsampling_may_drop_all_words_of_a_short_text(sentence, algorithm):
    text = [sentence.split()] * 20
    corpus, config = read_corpus(text, 5), Word2VecConfig(algorithm)
    seeds = range(30)
    empty = [
        seed for seed in seeds if not list(batches(corpus, config, np.random.default_rng(seed)))
    ]
    assert 0 < len(empty) < len(seeds)
    for seed in seeds:
        vectors = train_word2vec(text, replace(config, seed=seed))
        assert vectors.words == tuple(sentence.split())
        assert vectors.vectors.isfinite().all()


def test_the_gradient_equals_autograd():
    vectors, outer = (torch.randn(2, n, 4, dtype=torch.double, requires_grad=True) for n in (3, 6))
    weight = torch.rand(2, 3, 6, dtype=torch.double)
    wanted = torch.autograd.grad(-loss(vectors, outer, weight, 4), (vectors, outer))
    for (ours, _), theirs in zip(
        descent(vectors.detach(), outer.detach(), weight, 4), wanted, strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("length", [0.0, 0.3, 3.0])
def test_a_step_within_the_curvature_bound_does_not_increase_the_loss(length):
    torch.manual_seed(0)
    vectors, outer = (
        length * torch.randn(1, 3, 4).double() + 1e-3,
        length * torch.randn(1, 6, 4).double(),
    )
    weight = 50 * torch.rand(1, 3, 6).double()
    before = loss(vectors, outer, weight, 4)
    for side, (step, curvature) in enumerate(descent(vectors, outer, weight, 4)):
        for row in curvature[0].nonzero().flatten().tolist():
            moved = [vectors.clone(), outer.clone()]
            moved[side][0, row] += 2 / curvature[0, row] * step[0, row]
            assert loss(*moved, weight, 4) <= before * (1 + 1e-12)
    if (
        not length
    ):  # as training starts: the curvature of -log σ is 1/4, and each vector is (1, 1, 1, 1) / 1000
        torch.testing.assert_close(curvature, weight.sum(1) / 4 * 4e-6)


def slow_loss(inner, outer, batch, config):
    """The reference: word2vec's loss, example by example."""
    total = torch.zeros(())
    side = config.window
    for around, near, negative in zip(batch.around, batch.near, batch.negative, strict=True):
        for i in range(config.block):
            neighbours = [around[j] for j in range(len(around)) if near[i, j]]
            if not neighbours:
                continue
            word = around[i + side]
            if config.algorithm == "skipgram":
                examples = [(inner[word], outer[neighbour]) for neighbour in neighbours]
            else:
                examples = [(torch.stack([inner[n] for n in neighbours]).mean(0), outer[word])]
            for v, u in examples:
                total = total - F.logsigmoid(u @ v)
                for n in negative:
                    total = total - F.logsigmoid(-(outer[n] @ v)) * config.negative / config.shared
    return total


@pytest.mark.parametrize("algorithm", ["skipgram", "cbow"])
def test_an_update_is_a_gradient_step_on_the_reference_loss(algorithm, monkeypatch):
    config = Word2VecConfig(
        algorithm, dim=4, window=2, sample=0.0, min_count=1, block=3, shared=4, batch=3
    )
    corpus = read_corpus([list("abcab"), list("da"), list("e")], 1)
    (_, batch), *rest = batches(corpus, config, np.random.default_rng(0))
    assert not rest
    inner, outer = (
        torch.randn(6, 4).index_fill(0, torch.tensor([5]), 0).requires_grad_() for _ in range(2)
    )
    down = torch.autograd.grad(slow_loss(inner, outer, batch, config), (inner, outer))
    moved = [matrix.detach().clone() for matrix in (inner, outer)]
    monkeypatch.setattr("regard.word_vectors.word2vec.LEAP", 1e9)
    update(*moved, batch, config, 0.1)
    for ours, before, gradient in zip(moved, (inner, outer), down, strict=True):
        assert gradient.abs().max() > 0.1
        torch.testing.assert_close(ours, before - 0.1 * gradient)
    assert not moved[0][5].any()
    assert not moved[1][5].any()


def test_the_learning_rate_of_a_word_is_capped_by_its_curvature():
    words, curvature = (
        torch.tensor([0, 1, 0, 2], dtype=torch.int32),
        torch.tensor([30.0, 4.0, 10.0, 21.0]),
    )
    # at a rate of 0.1 the curvature may be 20; that of word 0 is 40
    assert capped_rate(words, curvature, 3, 0.1).tolist() == pytest.approx(
        [0.05, 0.1, 0.05, 0.1 * 20 / 21]
    )


def test_windows_end_with_their_sentence():
    config = Word2VecConfig(window=2, sample=0.0, block=4, shared=1, batch=9)
    sentences = [list("abcde"), list("fg"), list("h"), list("ijk")]
    corpus = read_corpus(sentences, 1)
    seen, every = set(), set()
    for seed in range(30):
        for _, batch in batches(corpus, config, np.random.default_rng(seed)):
            for block, i, j in batch.near.nonzero().tolist():
                seen.add((int(batch.around[block, i + 2]), int(batch.around[block, j])))
    for sentence in sentences:
        rows = [corpus.words.index(word) for word in sentence]
        every |= {
            (a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if 0 < abs(i - j) <= 2
        }
    assert seen == every


def test_negative_samples_are_drawn_by_count_to_a_power():
    corpus = read_corpus([["a"] * 81 + ["b"] * 16 + ["c"]] * 50, 1)
    config = Word2VecConfig(shared=64, batch=9999, power=0.75)
    (_, batch), *_ = batches(corpus, config, np.random.default_rng(0))
    shares = torch.bincount(batch.negative.flatten()) / batch.negative.numel()
    assert shares.tolist() == pytest.approx([27 / 36, 8 / 36, 1 / 36], abs=0.02)


def planted(sentences=1500):
    """Text in which two words each of six pairs have the same neighbours, and different pairs different ones."""
    random = Random(0)
    text = []
    for _ in range(sentences):
        topic = random.randrange(6)
        line = [f"n{topic}{random.randrange(5)}" for _ in range(8)]
        line[random.randrange(1, 7)] = f"word{topic}{random.choice('ab')}"
        text.append(line)
    return text


SMALL = Word2VecConfig(
    dim=16, window=3, sample=0.0, learning_rate=0.1, min_count=1, epochs=6, batch=4
)


@pytest.mark.parametrize("algorithm", ["skipgram", "cbow"])
def test_planted_synonyms_are_found(algorithm):
    config = replace(
        SMALL, algorithm=algorithm, learning_rate=0.1 if algorithm == "skipgram" else 0.4
    )
    vectors = train_word2vec(planted, config)
    for topic in range(6):
        near = [
            word
            for word, _ in vectors.nearest(f"word{topic}a", len(vectors))
            if word.startswith("word")
        ]
        assert near[0] == f"word{topic}b"
    losses = []
    train_word2vec(planted(), config, progress=lambda now: losses.append(now.loss))
    assert losses[0] == pytest.approx(
        6 * np.log(2), rel=1e-3
    )  # outer vectors start at zero: each σ is a half
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("algorithm", ["skipgram", "cbow"])
def test_equal_seeds_give_equal_vectors(algorithm):
    config = replace(SMALL, algorithm=algorithm, epochs=1)
    first, second = (train_word2vec(planted(300), config) for _ in range(2))
    assert torch.equal(first.vectors, second.vectors)
    assert not torch.equal(
        first.vectors, train_word2vec(planted(300), replace(config, seed=2)).vectors
    )


def test_vectors_are_the_sum_of_both_normalized_vectors_or_the_input_vectors(monkeypatch):
    learned = {}

    def noted(inner, outer, *rest):
        update(inner, outer, *rest)
        directions = [
            matrix / matrix.square().sum(1, keepdim=True).sqrt() for matrix in (inner, outer)
        ]
        learned.update(both=sum(directions)[:-1], inner=inner[:-1])

    monkeypatch.setattr("regard.word_vectors.word2vec.update", noted)
    for kind in ("both", "inner"):
        given = train_word2vec(planted(30), replace(SMALL, epochs=1, vectors=kind)).vectors
        torch.testing.assert_close(given, learned[kind])


def test_vectors_of_frequent_words_do_not_diverge(monkeypatch):
    text, config = (
        [["the", "the", "the", "cat"] * 50] * 50,
        Word2VecConfig(dim=8, sample=0.0, vectors="inner"),
    )
    assert train_word2vec(text, config).vectors.abs().max() < 20
    monkeypatch.setattr("regard.word_vectors.word2vec.LEAP", 1e9)
    with pytest.raises(Diverged, match="a smaller rate or batch"):
        train_word2vec(text, config)


def test_unusable_sentences_and_settings_are_refused():
    with pytest.raises(regard.InvalidArgument, match="lists of words; got the text 'the cat'"):
        train_word2vec(["the cat"])
    with pytest.raises(
        regard.InvalidArgument, match=r"occurs at least 5 times; got 2 words, 2 different ones"
    ):
        train_word2vec([["the", "cat"]])
    with pytest.raises(regard.InvalidArgument, match="got 0 words"):
        train_word2vec([])
    with pytest.raises(
        regard.InvalidRecipe, match="window: wanted a whole number of at least 1; got 0"
    ):
        Word2VecConfig(window=0)


@pytest.mark.parametrize(
    "given",
    [["dim=3", "min_count=1"], Word2VecConfig(dim=3, min_count=1)],
    ids=["changes", "whole"],
)
def test_settings_are_changes_of_the_defaults_or_a_whole_configuration(given, tmp_path):
    (tmp_path / "text").write_text("a b c a\nb c\n")
    vectors = regard.train_word_vectors(tmp_path / "text", tmp_path / "out", given, device="cpu")
    read = WordVectors.load(tmp_path / "out")
    assert sorted(read.words) == sorted(vectors.words) == ["a", "b", "c"]
    assert read.vectors.shape == (3, 3)


def test_progress_is_told_for_every_hundredth_batch():
    """With the number of the epoch, the share that is done, and the rate, which falls to the smallest one."""
    told, config = [], Word2VecConfig(
        dim=4, epochs=2, block=8, batch=8, sample=0.0, learning_rate=0.5, min_learning_rate=0.2
    )  # fmt: skip
    train_word2vec(planted(), config, progress=told.append)  # 12,000 words in 188 batches of 64
    assert [now.epoch for now in told] == [0, 0, 1, 1]
    assert [now.done for now in told] == [
        pytest.approx(done) for done in (0.0, 6400 / 24000, 0.5, 0.5 + 6400 / 24000)
    ]
    assert [now.rate for now in told] == [
        pytest.approx(max(0.2, 0.5 * (1 - now.done))) for now in told
    ]
