"""The automaton of phrases: its plans, and the memory that it takes."""

import random
import tracemalloc

import pytest

from regard.generation.choose.phrase_automaton import OTHER, Phrase, PhraseAutomaton


def different_runs(count: int, length: int, first: int = 10) -> list[tuple[int, ...]]:
    """Runs of three tokens each, which differ in their first ones."""
    return [
        tuple(first + number // 3**place % 3 for place in range(length)) for number in range(count)
    ]


@pytest.mark.parametrize(
    ("required", "banned"),
    [((15, 60), (0, 0)), ((1, 2), (600, 100)), ((64, 3), (0, 0))],
)
def test_an_automaton_takes_no_more_memory_than_it_says(required, banned):
    """Also with the plan of all phrases, whose memory does not grow with the square of its length."""
    runs = different_runs(*banned, first=20)
    tracemalloc.start()
    try:
        automaton = PhraseAutomaton([Phrase.of(run) for run in different_runs(*required)], runs)
        plan = automaton.plan(automaton.read((), begins=True))
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plan) >= required[1]
    assert taken <= automaton.bytes


@pytest.mark.parametrize("seed", range(20))
def test_each_token_of_a_plan_leaves_a_shorter_one(seed):
    """Whatever was asked before, following the plan completes all phrases within its length."""
    chance = random.Random(seed)

    def runs(count: int, longest: int) -> list[tuple[int, ...]]:
        lengths = [chance.randint(1, longest) for _ in range(count)]
        return [tuple(chance.choice((1, 2, 3)) for _ in range(length)) for length in lengths]

    banned = [run for run in runs(2, 4) if len(run) > 2]
    required = [run for run in runs(6, 3) if not any(_within(ban, run) for ban in banned)]
    automaton = PhraseAutomaton([Phrase.of(run) for run in required], banned)
    state = automaton.read((), begins=True)
    plan = automaton.plan(state)
    assert plan is not None
    # Other states, whose plans end in the same ones.
    for token in (1, 2, 3, OTHER):
        following = automaton.after(state, token)
        if following is not None:
            automaton.plan(following)
    budget = len(automaton.plan(state))
    assert budget <= len(plan)
    output = []
    while not state.met:
        token, *_ = automaton.plan(state)
        output.append(token)
        state = automaton.after(state, token)
        assert state is not None
        budget -= 1
        assert len(automaton.plan(state)) <= budget
        assert automaton.fits(state, budget)
    for run in required:
        assert _within(run, tuple(output)), (run, output)
    assert not any(_within(ban, tuple(output)) for ban in banned)


def _within(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole)))
