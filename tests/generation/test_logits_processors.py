"""Logits processors of the user's own, registered by name and chosen in [decode]."""

import pytest
import torch

from regard.core.errors import InvalidRecipe
from regard.core.sequence import Tokens
from regard.data.special_tokens import END, START
from regard.generation.choose.interfaces import GeneratedTokens, LogitsProcessor
from regard.generation.choose.logits_processors import (
    LOGITS_PROCESSORS,
    AllowEnd,
    BannedPhrases,
    ExponentialDecayLengthPenalty,
    ForcePrefix,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    SavePrefix,
    SuppressTokens,
)
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from support.search import STRATEGIES, decode, model, sources, token_ids

FAVORED = 9


class Favor(LogitsProcessor):
    """Raises the scores of one token."""

    def __call__(self, scores, generated):
        scores[..., FAVORED] += 12.0


class NoSecondTime(LogitsProcessor):
    """Excludes the favored token once the request of a slot has it in its prefix."""

    per_slot = True

    def __init__(self):
        self.slots: dict[int, bool] = {}

    def admit(self, slot, request):
        self.slots[slot] = FAVORED in request.prefix

    def keep(self, slots):
        self.slots = {new: self.slots[old] for new, old in enumerate(slots.tolist())}

    def __call__(self, scores, generated):
        for slot, excluded in self.slots.items():
            if excluded:
                scores[slot, :, FAVORED] = torch.where(
                    generated.length[slot] > 0, -torch.inf, scores[slot, :, FAVORED]
                )


@pytest.fixture(autouse=True)
def _registered():
    LOGITS_PROCESSORS.register("favor", Favor)
    LOGITS_PROCESSORS.register("no second time", NoSecondTime)
    yield
    LOGITS_PROCESSORS.unregister("favor")
    LOGITS_PROCESSORS.unregister("no second time")


def count(outputs) -> int:
    return sum(tokens.count(FAVORED) for one in token_ids(outputs) for tokens in one)


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
@torch.no_grad()
def test_a_registered_processor_is_applied_and_scores_stay_those_of_the_model(options):
    made, rows = model("transformer"), sources()[:5]
    favored = decode(made, rows, logits_processors=("favor",), **options)
    assert count(favored) > count(decode(made, rows, **options))
    for row, hypotheses in zip(rows, favored, strict=True):
        for each in hypotheses:
            tokens = torch.tensor([[START, *each.tokens, *[END] * each.ended]])
            log_p = made.log_probabilities(Tokens.of([row]), tokens)[0].tolist()
            assert each.log_probabilities == pytest.approx(log_p, abs=1e-4)


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
def test_a_processor_follows_the_slots_of_its_requests(options):
    made, rows = model("transformer"), sources()
    prefixes = [(FAVORED,) if n % 2 else () for n in range(len(rows))]
    requests = [
        GenerationRequest(row, len(row), prefix) for row, prefix in zip(rows, prefixes, strict=True)
    ]
    config = DecodeConfig(
        max_length=7, batch_tokens=13, logits_processors=("favor", "no second time"), **options
    )
    outputs = dict(search(SearchTask(made, Tokens.of, config), requests))
    for n, hypotheses in outputs.items():
        for each in hypotheses:
            assert not n % 2 or each.tokens.count(FAVORED) == 1
    assert any(
        each.tokens.count(FAVORED) > 1 for n, one in outputs.items() for each in one if not n % 2
    )


def test_an_unknown_processor_is_refused_with_the_nearest_name():
    with pytest.raises(
        InvalidRecipe,
        match=r"logits_processors: .*one of 'favor', 'no second time'.*got \('favour',\)",
    ):
        DecodeConfig(logits_processors=("favour",))


@pytest.mark.parametrize(
    ("generated", "excluded"),
    [([7, 3, 4], True), ([3, 7, 4], False), ([4, 3, 7], False), ([4, 4, 4], False)],
)
def test_a_ban_excludes_its_last_token_after_all_tokens_before_it(generated, excluded):
    bans = BannedPhrases(1, 2, 3, torch.device("cpu"))
    bans.admit(0, GenerationRequest(None, 0, banned=[(3, 4, 5), (6,)]))
    limits = torch.zeros(1, dtype=torch.long)
    so_far = GeneratedTokens(
        torch.tensor([[generated]]), limits + 3, limits, limits, limits[:, None] - 1, limits
    )
    scores = torch.zeros(1, 1, 9)
    bans(scores, so_far)
    assert (scores[0, 0] == -torch.inf).nonzero().flatten().tolist() == (
        [5, 6] if excluded else [6]
    )


SO_FAR = [
    [[5, 6, 5, 6, 0], [6, 6, 6, 7, 0]],
    [[5, 5, 0, 0, 0], [7, 8, 0, 0, 0]],
    [[0] * 5, [0] * 5],
]
LENGTHS = [4, 2, 0]
FIRST = [6, 5, 8]  # the tokens before the outputs, which repetitions count


def repeating(hypothesis, size):
    """The tokens after which the last `size` tokens would occur twice."""
    ngrams = {tuple(hypothesis[i : i + size]) for i in range(len(hypothesis) - size + 1)}
    return {token for token in range(9) if (*hypothesis, token)[-size:] in ngrams}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("beam", [0, 1])
def test_processors_equal_plain_loops(size, beam):
    """A hypothesis of each slot at a time: bans of repeated n-grams, and the penalty of tokens that it has."""
    lengths, none = torch.tensor(LENGTHS), torch.zeros(3, dtype=torch.long)
    first = torch.tensor(FIRST)
    so_far = GeneratedTokens(torch.tensor(SO_FAR), lengths, none, none, none[:, None] - 1, first)
    given = torch.randn(3, 2, 9).log_softmax(-1)
    banned, penalized = given.clone(), given.clone()
    NoRepeatNgram(size)(banned, so_far)
    RepetitionPenalty(1.5)(penalized, so_far)
    for slot, length in enumerate(LENGTHS):
        hypothesis = [FIRST[slot], *SO_FAR[slot][beam][:length]]
        wanted = given[slot, beam].clone()
        wanted[[*repeating(hypothesis, size)]] = -torch.inf
        assert torch.equal(banned[slot, beam], wanted)
        wanted = given[slot, beam].clone()
        wanted[[*set(hypothesis)]] *= 1.5
        assert torch.equal(penalized[slot, beam], wanted)


def generated(device: str) -> GeneratedTokens:
    """Two slots of two hypotheses, of which the second is shorter."""
    tokens = torch.tensor([[[5, 6, 5, 7], [5, 6, 7, 5]], [[6, 6, 0, 0], [5, 7, 0, 0]]])
    length, least = torch.tensor([4, 2]), torch.tensor([9, 0])
    prompt, prefix = (
        torch.zeros(2, dtype=torch.int64),
        torch.tensor([[5, 6, 5, 7, 8], [6, -1, -1, -1, -1]]),
    )
    first = torch.tensor([5, 8])
    rows = (tokens, length, least, prompt, prefix, first)
    return GeneratedTokens(*(each.to(device) for each in rows))


def processors(device: str) -> list[LogitsProcessor]:
    least, saved = MinLength([END]), SavePrefix()
    banned = BannedPhrases(2, 2, 3, torch.device(device))
    if device != "meta":
        banned.admit(0, GenerationRequest(None, 0, banned=[[7, 9], [4]]))
        banned.admit(1, GenerationRequest(None, 0, banned=[[9]]))
    return [
        saved, least, SuppressTokens([3, 11]), NoRepeatNgram(2), banned, RepetitionPenalty(1.3), AllowEnd(least),
        ForcePrefix(saved),
    ]  # fmt: skip


def test_processors_say_whether_they_only_exclude_tokens_and_never_wait():
    """Greedy search takes logits for log-probabilities where all of them only exclude, and steps are recorded where no
    processor needs a value: a tensor without values is enough for it.
    """
    scores, known = torch.randn(2, 2, 12).log_softmax(-1), generated("cpu")
    says = []
    for each in processors("cpu"):
        before = scores.clone()
        each(scores, known)
        changed = scores[scores != before]
        restored = isinstance(each, AllowEnd | ForcePrefix)  # to what it was before the others
        assert each.masks_only == (restored or bool((changed == -torch.inf).all())), type(each)
        says.append((type(each), each.masks_only))
    assert [kind for kind, only in says if not only] == [RepetitionPenalty]
    empty, unknown = torch.zeros(2, 2, 12, device="meta"), generated("meta")
    for each in processors("meta"):
        each(empty, unknown)
        assert each.recordable, type(each)
    assert not Favor.recordable
    assert not Favor.masks_only


@pytest.mark.parametrize(("start", "factor"), [(0, 1.5), (2, 1.5), (2, 0.5), (1, 1.0), (9, 2.0)])
def test_the_decay_of_lengths_is_that_of_transformers(start, factor):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    known = generated("cpu")
    scores = torch.randn(2, 2, 12, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    scores[0, 1, END] = -torch.inf
    found = scores.clone()
    ends = (END, 7)
    ours = ExponentialDecayLengthPenalty(start, factor, ends, 9, torch.device("cpu"))
    ours(found, known)
    for slot in range(2):
        prompt = int(known.prompt[slot])
        theirs = transformers.ExponentialDecayLengthPenalty((start, factor), list(ends), prompt)
        read = torch.zeros(2, int(known.length[slot]), dtype=torch.int64)
        wanted = theirs(read, scores[slot].clone())
        finite = ~wanted.isnan()  # theirs where an excluded token is increased by nothing
        assert finite.sum() >= 23
        torch.testing.assert_close(found[slot][finite], wanted[finite])
    assert found[0, 1, END] == -torch.inf
    assert not found.isnan().any()


def test_a_large_factor_of_the_decay_ends_outputs_at_the_length():
    made = model("transformer")
    with torch.no_grad():
        made.decoder.project.bias[END] = -30.0
    rows = sources()[:4]
    for beams in (1, 3):
        options = {"beam_size": beams, "max_length": 500}
        found = decode(made, rows, exponential_decay_length_penalty=(3.0, 10.0), **options)
        assert {len(one[0].tokens) for one in found} <= {4, 5}
        assert all(one[0].ended for one in found)
