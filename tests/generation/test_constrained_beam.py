"""Required phrases are in every output of their request, banned ones in none, and other requests are not affected."""

from itertools import pairwise, product
from random import Random

import pytest
import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.data.special_tokens import END, MASK, PAD, START, SpecialTokens
from regard.generation.choose.constrained_beam import RequiredPhrases
from regard.generation.choose.phrase_automaton import BEGINNING, Phrase, PhraseAutomaton
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from support.models import VOCABULARY
from support.search import model, sources

WORDS = [token for token in range(VOCABULARY) if token not in (PAD, START, MASK, END)]
FEW = ("transformer", "lstm bahdanau", "conv")
WAYS = (
    {},
    {"beam_size": 3, "num_hypotheses": 3},
    {"beam_size": 4, "beam_groups": 2, "num_hypotheses": 4},
    {"sample": True, "num_hypotheses": 3},
)


def found(made, inputs, *, ends=True, **options):
    config = DecodeConfig(**{"max_length": 12, **options})
    hits = dict(search(SearchTask(made, Tokens.of, config, ends=ends, scored=True), inputs))
    return [hits[i] for i in range(len(inputs))]


def times(phrase, tokens) -> int:
    size = len(phrase)
    return sum(tuple(tokens[i : i + size]) == tuple(phrase) for i in range(len(tokens) - size + 1))


def holds(each, tokens) -> bool:
    required = [tuple(phrase) for phrase in each.required]
    return all(times(phrase, tokens) >= required.count(phrase) for phrase in required) and not any(
        times(phrase, tokens) for phrase in each.banned
    )


def random_constraints(random: Random) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Phrases that overlap, repeat and contain each other; and bans that none of them contains alone."""
    required = [
        tuple(random.choices(WORDS[:4], k=random.choice((1, 1, 2, 3))))
        for _ in range(random.randint(1, 3))
    ]
    required += required[:1] * random.randint(0, 1)
    banned = [
        tuple(random.choices(WORDS, k=random.choice((1, 2, 2))))
        for _ in range(random.randint(0, 3))
    ]
    return required, [ban for ban in banned if not any(times(ban, phrase) for phrase in required)]


@pytest.mark.parametrize(("name", "options"), list(product(FEW, WAYS)), ids=str)
def test_outputs_contain_required_and_no_banned_phrases(name, options):
    made = model(name)
    random = Random(f"{name}{options}")
    inputs = []
    for row in sources()[:6]:
        required, banned = random_constraints(random)
        prefix = tuple(random.choices(WORDS, k=random.choice((0, 0, 2))))
        inputs.append(
            GenerationRequest(
                row, len(row), prefix, banned, required, given=random.choice((0, len(prefix)))
            )
        )
    for extra in ({}, {"ends": False}):
        for each, hypotheses in zip(inputs, found(made, inputs, **extra, **options), strict=True):
            assert hypotheses
            for one in hypotheses:
                assert len(one.tokens) <= 12 + len(each.prefix)
                assert one.tokens[: len(each.prefix)] == each.prefix
                output = one.tokens[each.given :]
                clean = GenerationRequest(each.source, each.size, required=each.required)
                assert holds(clean, output), (each, one.tokens)
                free = one.tokens[len(each.prefix) :]
                assert not any(times(ban, free) for ban in each.banned), (each, one.tokens)
                assert one.score > -torch.inf


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_phrases_fit_exactly_into_the_maximum_length(options):
    made = model("transformer")
    row = sources()[0]
    cases = {
        3: [(5, 6), (6, 7)],  # one overlaps the next
        4: [(6, 7), (7, 8, 6)],  # whatever their order here
        5: [(5,), (5,), (5,), (6, 7)],
        6: [(5, 5, 6), (5, 5, 6)],
        2: [(5, 6), (6,), (5,)],  # one contains the others
    }
    for longest, required in cases.items():
        for backwards in (required, required[::-1]):
            each = GenerationRequest(row, len(row), required=backwards)
            for one in found(made, [each], max_length=longest, **options)[0]:
                assert holds(each, one.tokens)
            with pytest.raises(
                ValueError,
                match=f"required: wanted at most {longest - 1} tokens.* got {longest}. Rai",
            ):
                found(made, [each], max_length=longest - 1, **options)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_ban_separates_required_phrases(options):
    """5 and 6 are required and may not be adjacent: with three tokens there is one between them."""
    made = model("transformer")
    row = sources()[0]
    each = GenerationRequest(row, len(row), banned=[(5, 6), (6, 5)], required=[(5,), (6,)])
    for one in found(made, [each], max_length=3, **options)[0]:
        assert holds(each, one.tokens)
        assert len(one.tokens) == 3
    with pytest.raises(ValueError, match="wanted at most 2 tokens"):
        found(made, [each], max_length=2, **options)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_ban_holds_where_a_longer_phrase_has_begun(options):
    """After 5 6 the automaton waits for 7; that 8 completes the shorter ban 6 8 must be seen all the same."""
    made = model("transformer")
    row = sources()[0]
    banned = [(5, 6, 7), (6, 8), (9, 5)]
    each = GenerationRequest(row, len(row), banned=banned, required=[(5, 6), (8, 9)])
    for one in found(made, [each], max_length=5, **options)[0]:
        assert holds(each, one.tokens)
        assert len(one.tokens) == 5
    with pytest.raises(ValueError, match="wanted at most 4 tokens"):
        found(made, [each], max_length=4, **options)


@pytest.mark.parametrize("name", ["transformer", "gru luong input-feeding", "conv"])
@torch.no_grad()
def test_a_beam_wide_enough_finds_the_best_satisfying_output(name):
    made = model(name)
    row = [5, 6, 7]
    each = GenerationRequest(row, 3, banned=[(8, 9)], required=[(9,), (5, 6)])
    ended = [(*tokens, END) for tokens in product(WORDS, repeat=3) if holds(each, tokens)]
    cut = [tokens for tokens in product(WORDS, repeat=4) if holds(each, tokens)]
    read = torch.tensor([(START, *tokens) for tokens in (*ended, *cut)])
    log_p = made.log_probabilities(Tokens.of([row] * len(read)), read).sum(1)
    order = log_p.argsort(descending=True)[:3]
    hits = found(made, [each], beam_size=300, num_hypotheses=3, length_penalty=0.0, max_length=4)[0]
    assert [each.score for each in hits] == pytest.approx(log_p[order].tolist(), abs=1e-4)
    assert [(*hit.tokens, *[END] * hit.ended) for hit in hits] == [
        tuple(row[1:]) for row in read[order].tolist()
    ]


@pytest.mark.parametrize(
    ("name", "options"), list(product(("transformer", "lstm bahdanau", "conv"), WAYS)), ids=str
)
def test_constraints_do_not_affect_other_requests(name, options):
    """Beside constrained requests in the batch, up to the rounding of larger matrix products."""
    made = model(name)
    rows = sources()
    plain = [GenerationRequest(row, len(row)) for row in rows]
    mixed = [
        GenerationRequest(row, len(row), (), [(7,)], [(5, 6), (8,)]) if n % 3 else plain[n]
        for n, row in enumerate(rows)
    ]
    for tokens in (4096, 13):
        alone = found(made, plain, batch_tokens=tokens, **options)
        beside = found(made, mixed, batch_tokens=tokens, **options)
        for n in range(0, len(rows), 3):
            assert [one.tokens for one in alone[n]] == [one.tokens for one in beside[n]]
            for one, other in zip(alone[n], beside[n], strict=True):
                assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)
        for each, hypotheses in zip(mixed, beside, strict=True):
            assert all(holds(each, one.tokens) for one in hypotheses)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_scores_equal_teacher_forced_log_probabilities(options):
    made = model("transformer")
    rows = sources()
    inputs = [GenerationRequest(row, len(row), required=[(5, 5), (5, 5), (9,)]) for row in rows]
    for row, hypotheses in zip(
        rows, found(made, inputs, no_repeat_ngram_size=2, **options), strict=True
    ):
        for one in hypotheses:
            assert (
                times((5, 5), one.tokens) == 2
            )  # required phrases take precedence over no_repeat_ngram_size
            whole = torch.tensor([[START, *one.tokens, *[END] * one.ended]])
            wanted = made.log_probabilities(Tokens.of([row]), whole)[0]
            assert one.log_probabilities == pytest.approx(wanted.tolist(), abs=1e-4)


def test_beam_search_scores_better_than_greedy_search():
    """A beam considers the phrases from the start, greedy search adds them when it would end."""
    made = model("transformer")
    rows = sources()
    inputs = [GenerationRequest(row, len(row), required=[(9,), (5, 6)]) for row in rows]
    greedy = found(made, inputs)
    beams = found(made, inputs, beam_size=8, length_penalty=0.0)
    total = [sum(sum(one[0].log_probabilities) for one in hits) for hits in (greedy, beams)]
    assert total[1] > total[0] + 1


def test_greedy_search_adds_phrases_when_it_would_end():
    made = model("transformer")
    rows = sources()
    plain = found(made, [GenerationRequest(row, len(row)) for row in rows], max_length=40)
    for free, (one,) in zip(
        plain,
        found(
            made,
            [GenerationRequest(row, len(row), required=[(9, 9, 9)]) for row in rows],
            max_length=40,
        ),
        strict=True,
    ):
        if free[0].ended and not times((9,), free[0].tokens):
            assert one.tokens[: len(free[0].tokens) + 3] == (*free[0].tokens, 9, 9, 9)


def test_a_phrase_may_have_several_runs_and_excluded_continuations():
    phrase = Phrase(
        ((BEGINNING, 5), (6, 5)), frozenset({7})
    )  # "cat" at the start, " cat" elsewhere, but no "cats"
    automaton = PhraseAutomaton([phrase], [])
    begun = automaton.read((), begins=True)
    assert automaton.plan(begun) == (5,)
    assert automaton.plan(automaton.read((), begins=False)) == (6, 5)
    completed = automaton.after(begun, 5)
    assert completed.met
    assert not automaton.after(completed, 7).met
    assert automaton.after(automaton.after(completed, 8), 7).met
    made = model("transformer")
    rows = sources()
    for options in WAYS:
        inputs = [
            GenerationRequest(row, len(row), required=[phrase, phrase, (7, 8)]) for row in rows
        ]
        for hypotheses in found(made, inputs, **options):
            for one in hypotheses:
                text = (START, *one.tokens, END)
                starts = [n for n in range(len(text)) if text[n : n + 2] in ((START, 5), (6, 5))]
                assert sum(text[n + 2] != 7 for n in starts) >= 2
                assert times((7, 8), one.tokens)


@pytest.mark.parametrize(
    ("required", "banned", "message"),
    [
        ([(5, 6, 7)], [(6, 7)], "nothing that is banned"),
        ([(5,)], [(5,)], "nothing that is banned"),
        ([()], [], "the tokens of words"),
        ([(5, END)], [], "the tokens of words"),
        ([(5,)], [()], "banned: wanted"),
        (
            [(5,), (6,)],
            [(token,) for token in WORDS if token not in (5, 6)] + [(5, 6), (6, 5)],
            "phrases that the bans and limits of the output permit",
        ),
    ],
)
def test_impossible_constraints_are_refused(required, banned, message):
    made = model("rnn")
    row = [5, 6]
    for beam in (1, 2):
        with pytest.raises(ValueError, match=message):
            found(
                made,
                [GenerationRequest(row, 2), GenerationRequest(row, 2, (), banned, required)],
                beam_size=beam,
            )


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_prefix_takes_precedence_over_constraints(options):
    made = model("transformer")
    row = [5, 6, 7]
    request = GenerationRequest(row, 3, (5, 6, 5, 6, 8), [(8,), (5,)])
    for one in found(made, [request], no_repeat_ngram_size=2, **options)[0]:
        assert one.tokens[:5] == (5, 6, 5, 6, 8)
        assert 5 not in one.tokens[5:]
        assert 8 not in one.tokens[5:]
        later = list(pairwise(one.tokens))[5:]
        assert len(set(later)) == len(later)


def test_a_phrase_of_thousands_of_tokens_is_refused():
    """The time to follow a phrase grows with the square of its length."""
    run = tuple(range(5, 5005))
    with pytest.raises(
        InvalidArgument, match="required: wanted phrases of at most 256 tokens; got one of 5,000"
    ):
        PhraseAutomaton([Phrase((run,))], [])
    with pytest.raises(
        InvalidArgument, match="banned: wanted phrases of at most 256 tokens; got one of 5,000"
    ):
        PhraseAutomaton([], [run])


@pytest.mark.parametrize(("budget", "kept"), [(2, True), (3, False), (4, False)])
def test_a_processor_is_overruled_only_where_the_phrase_would_not_fit_any_more(budget, kept):
    """With a token to spare, what a logits processor excludes now may follow later."""
    automaton = PhraseAutomaton([Phrase.of([7, 8])], [])
    required = RequiredPhrases(SpecialTokens(), ends=True)
    required.admit(0, automaton, automaton.read((), begins=True), beams=1, prefix=0, budget=budget)
    (slot,) = required.slots.values()
    scores = torch.zeros(9)
    unprocessed = torch.zeros(9)
    scores[7] = -torch.inf
    required._confine_to_budget(slot, slot.states[0], scores, unprocessed)
    assert (float(scores[7]) == 0.0) is kept
