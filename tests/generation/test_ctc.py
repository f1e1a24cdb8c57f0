"""CTC against brute force: the sum over all paths of a few frames, for probabilities, alignments and searches."""

import math
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
import torch

from regard.generation import ctc

FRAMES = 5
BLANK = 3  # tokens are 0, 1, 2
CASES = [0, 1, 2]


def frames_of(seed, frames=FRAMES, tokens=BLANK):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(frames, tokens + 1, generator=drawn).mul(1.5).log_softmax(-1)


def all_texts(frames):
    """The log-probability of every sequence, summed over its paths."""
    length, size = frames.shape
    probabilities = frames.double().exp()
    totals = defaultdict(float)
    for path in product(range(size), repeat=length):
        probability = math.prod(probabilities[i, token].item() for i, token in enumerate(path))
        totals[ctc.collapse(path, size - 1)] += probability
    return {tokens: math.log(total) for tokens, total in totals.items()}


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ([3, 3, 3], ()),
        ([0, 0, 3, 0], (0, 0)),
        ([3, 1, 1, 2, 2, 3], (1, 2)),
        ([2, 1, 2], (2, 1, 2)),
    ],
)
def test_repetitions_and_then_blanks_are_removed(path, tokens):
    assert ctc.collapse(path, BLANK) == tokens
    assert len(path) >= ctc.frames_needed(tokens)


def test_two_equal_tokens_need_a_blank_between_them():
    assert ctc.frames_needed((1, 1, 2, 2, 2)) == 8
    assert ctc.frames_needed(()) == 0


@pytest.mark.parametrize("seed", CASES)
def test_log_probabilities_of_texts_are_those_of_all_paths(seed):
    frames = frames_of(seed)
    texts = all_texts(frames)
    assert math.fsum(map(math.exp, texts.values())) == pytest.approx(1.0)
    for tokens, expected in texts.items():
        ids = torch.tensor(tokens, dtype=torch.int64)
        found = ctc.token_log_probabilities(frames, ids, BLANK)
        assert len(found) == len(tokens) + 1
        assert float(found.sum()) == pytest.approx(expected, abs=1e-6)


def test_the_score_of_a_token_is_its_share_of_the_texts_that_begin_alike():
    frames = frames_of(3)
    texts = all_texts(frames)

    def beginning(tokens):
        return math.fsum(math.exp(p) for text, p in texts.items() if text[: len(tokens)] == tokens)

    tokens = (1, 1, 0)
    found = ctc.token_log_probabilities(frames, torch.tensor(tokens), BLANK)
    for place in range(len(tokens)):
        expected = math.log(beginning(tokens[: place + 1]) / beginning(tokens[:place]))
        assert float(found[place]) == pytest.approx(expected, abs=1e-6)
    assert float(found[-1]) == pytest.approx(texts[tokens] - math.log(beginning(tokens)), abs=1e-6)


def test_scores_have_the_gradient_of_ctc_loss():
    logits = frames_of(4).requires_grad_()
    tokens = torch.tensor([0, 0, 2])
    ctc.token_log_probabilities(logits.log_softmax(-1), tokens, BLANK).sum().backward()
    found = logits.grad
    logits.grad = None
    loss = torch.nn.functional.ctc_loss(
        logits.log_softmax(-1), tokens, (FRAMES,), (3,), blank=BLANK, reduction="sum"
    )
    loss.backward()
    torch.testing.assert_close(found, -logits.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tokens", [(0,), (1, 1), (2, 0, 2)])
def test_an_alignment_is_that_of_all_paths(tokens):
    frames = frames_of(5)
    probabilities = frames.double().exp()
    expected = torch.zeros(len(tokens), FRAMES, dtype=torch.float64)
    for path in product(range(BLANK + 1), repeat=FRAMES):
        if ctc.collapse(path, BLANK) != tokens:
            continue
        probability = math.prod(probabilities[i, token].item() for i, token in enumerate(path))
        place = -1
        before = BLANK
        for frame, token in enumerate(path):
            place += token not in (before, BLANK)
            if token != BLANK:
                expected[place, frame] += probability
            before = token
    expected /= expected.sum(1, keepdim=True)
    found = ctc.alignment(frames, torch.tensor(tokens), BLANK)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", CASES)
def test_a_wide_beam_finds_all_texts_with_their_probabilities(seed):
    frames = frames_of(seed)
    texts = all_texts(frames)
    found = ctc.prefix_beam_search(frames, BLANK, 1000)
    assert {each.tokens for each in found} == set(texts)
    for each in found:
        assert each.log_probability == pytest.approx(texts[each.tokens], abs=1e-6)
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)


def test_a_beam_finds_what_the_most_likely_path_misses():
    # A path of blanks is the most likely one, but the paths of one token together are likelier.
    frames = torch.tensor([[0.4, 0.6], [0.4, 0.6]]).log()
    assert ctc.greedy(frames, 1) == ()
    best = ctc.prefix_beam_search(frames, 1, 2)[0]
    assert best.tokens == (0,)
    assert math.exp(best.log_probability) == pytest.approx(0.64)


def test_excluded_tokens_are_in_no_text():
    found = ctc.prefix_beam_search(frames_of(0), BLANK, 1000, excluded=[1])
    assert found
    assert all(1 not in each.tokens for each in found)


def test_frames_of_a_certain_blank_change_nothing():
    frames = frames_of(1)
    silence = torch.full((2, BLANK + 1), -1e9)
    silence[:, BLANK] = 0.0
    padded = torch.cat((frames, silence))
    assert ctc.prefix_beam_search(padded, BLANK, 50) == ctc.prefix_beam_search(frames, BLANK, 50)
    ids = torch.tensor([0, 2])
    one = ctc.token_log_probabilities(padded, ids, BLANK)
    torch.testing.assert_close(one, ctc.token_log_probabilities(frames, ids, BLANK))


@pytest.mark.parametrize(("weight", "bonus"), [(0.7, 0.0), (0.5, 1.5), (0.0, -0.8)])
def test_a_language_model_is_added_to_the_score(weight, bonus):
    frames = frames_of(6, frames=4)
    drawn = np.random.default_rng(0)
    table = drawn.normal(0, 1, (5, BLANK + 1))  # after the last token, of a bigram model
    table -= np.log(np.exp(table).sum(1, keepdims=True))
    end = BLANK
    asked = []

    def next_tokens(prefixes):
        asked.extend(prefixes)
        return np.stack([table[prefix[-1] if prefix else 4] for prefix in prefixes])

    def by_model(tokens):
        read = (4, *tokens)
        return sum(table[one, other] for one, other in zip(read, (*tokens, end), strict=True))

    fusion = ctc.Fusion(next_tokens, end, weight, bonus)
    found = ctc.prefix_beam_search(frames, BLANK, 1000, fusion=fusion)
    texts = all_texts(frames)
    assert len(found) == len(texts)
    for each in found:
        expected = texts[each.tokens] + weight * by_model(each.tokens) + bonus * len(each.tokens)
        assert each.score == pytest.approx(expected, abs=1e-6)
    assert len(asked) == len(set(asked))
