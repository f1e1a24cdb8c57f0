"""What one output must and must not hold, as a machine that reads it token by token."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from regard.core.errors import InvalidArgument
from regard.data.tokenizer import END, MASK, PAD, START

Run = tuple[int, ...]
OTHER = -1  # any token that is in no phrase
ORDERS = 4  # of so many phrases, every order is tried when room is scarce


@dataclass(frozen=True)
class Phrase:
    """A word or phrase: any of these runs of tokens, unless one of `inside` follows, which makes another word of it.

    A run may begin with START, which stands before the first token of an output.
    """

    runs: tuple[Run, ...]
    inside: frozenset[int] = frozenset()

    @staticmethod
    def of(wanted: "Phrase | Sequence[int]") -> "Phrase":
        return wanted if isinstance(wanted, Phrase) else Phrase((tuple(wanted),))


class AutomatonState(NamedTuple):
    node: Run  # the longest end of what was said that begins a run
    left: tuple[int, ...]  # how often each phrase is still to come
    just: tuple[int, ...] = ()  # phrases that the last token completed, if what follows leaves them so

    @property
    def met(self) -> bool:
        return not any(self.left)


class PhraseAutomaton:
    """All that one input requires, as often as it says so, and all that it bans."""

    def __init__(self, required: Sequence[Phrase], banned: Sequence[Run]) -> None:
        counts = Counter(required)
        self.phrases, self.banned = list(counts), set(banned)
        runs = [run for phrase in self.phrases for run in phrase.runs]
        for phrase in self.phrases:
            self._check(phrase)
        every = [*runs, *banned]
        self.tokens = sorted({token for run in every for token in run} - {START})
        self.begins = {run[:size] for run in every for size in range(len(run))}
        self.sizes = [min(len(run) for run in phrase.runs if run[0] != START) for phrase in self.phrases]
        # A word between two phrases may be needed: together they may hold what is banned, or be another word.
        self.gap = int(bool(banned) or any(phrase.inside for phrase in self.phrases))
        self.before = AutomatonState((), tuple(counts.values()))
        self._after: dict[tuple[AutomatonState, int], AutomatonState | None] = {}
        self._plans: dict[AutomatonState, Run | None] = {}

    def _check(self, phrase: Phrase) -> None:
        for run in phrase.runs:
            bare = run[1:] if run[:1] == (START,) else run
            if not bare or set(bare) & {PAD, START, END, MASK}:
                raise InvalidArgument(
                    "required", wanted="the tokens of words", got=str(list(run)), remedy="Leave out special tokens."
                )
            parts = (run[start:stop] for start in range(len(run)) for stop in range(start + 1, len(run) + 1))
            held = next((part for part in parts if part in self.banned), None)
            if held is not None:
                raise InvalidArgument(
                    "required",
                    wanted="nothing that is banned",
                    got=f"tokens {list(run)}, of which {list(held)} are banned",
                    remedy="Require it or ban it.",
                )
        if all(run[0] == START for run in phrase.runs):
            raise InvalidArgument(
                "required", wanted="a run for any place", got="runs for the start", remedy="Leave out START."
            )

    def read(self, prefix: Sequence[int], *, begins: bool) -> AutomatonState:
        """The state after what an output begins with, whatever is banned."""
        state = AutomatonState((START,) if begins and (START,) in self.begins else (), self.before.left)
        for token in prefix:
            state = self.after(state, token, anyway=True) or state
        return state

    def after(self, state: AutomatonState, token: int, *, anyway: bool = False) -> AutomatonState | None:
        """The state after one more token; None where that is banned."""
        key = state, token
        if anyway or key not in self._after:
            found = self._read(state, token, anyway)
            if anyway:
                return found
            self._after[key] = found
        return self._after[key]

    def _read(self, state: AutomatonState, token: int, anyway: bool) -> AutomatonState | None:
        said = (*state.node, token)
        tails = [said[start:] for start in range(len(said))]
        if not anyway and any(tail in self.banned for tail in tails):
            return None
        left, just = list(state.left), []
        for number in state.just:
            left[number] += token in self.phrases[number].inside
        for number, phrase in enumerate(self.phrases):
            if left[number] and any(tail in phrase.runs for tail in tails):
                left[number] -= 1
                just += [number] if phrase.inside else []
        node = next((tail for tail in tails if tail in self.begins), ())
        return AutomatonState(node, tuple(left), tuple(just))

    def ways(self, state: AutomatonState, number: int) -> list[Run]:
        """What completes a phrase from here, by any of its runs and beginnings already said; the shortest first."""
        node = state.node
        found = (
            run[said:]
            for run in self.phrases[number].runs
            for said in range(min(len(node), len(run) - 1) + 1)
            if run[:said] == node[len(node) - said :] and run[said] != START
        )
        return sorted(found, key=len)

    def following(self, state: AutomatonState) -> set[int]:
        """The tokens that begin or go on with what is still to come."""
        return {way[0] for number, left in enumerate(state.left) if left for way in self.ways(state, number)}

    def progress(self, state: AutomatonState) -> int:
        """How many required tokens are said, the beginning of one more phrase among them."""
        open_ = [number for number, left in enumerate(state.left) if left]
        rest = sum(state.left[number] * self.sizes[number] for number in open_)
        begun = max((self.sizes[number] - len(self.ways(state, number)[0]) for number in open_), default=0)
        return begun - rest

    def loose(self, state: AutomatonState) -> int:
        """So many tokens are enough for what is still to come, whatever token comes first."""
        left = list(state.left)
        for number in state.just:
            left[number] += 1
        return sum(count * (size + self.gap) for count, size in zip(left, self.sizes, strict=True))

    def fits(self, state: AutomatonState | None, room: int) -> bool:
        """Whether what is still to come goes into so many tokens."""
        if state is None:
            return False
        if self.loose(state) <= room:
            return True
        plan = self.plan(state)
        return plan is not None and len(plan) <= room

    def plan(self, state: AutomatonState) -> Run | None:
        """Tokens that complete everything: not always the fewest, but one fewer after each of them is said."""
        if state not in self._plans:
            open_ = [number for number, left in enumerate(state.left) for _ in range(left)]
            found = [self._complete(state, None)]
            if len(open_) <= ORDERS:
                found += [self._complete(state, order) for order in set(permutations(open_))]
            plans = [plan for plan in found if plan is not None]
            self._plans[state] = None
            if plans:
                self._remember(state, min(plans, key=len))
        return self._plans[state]

    def _remember(self, state: AutomatonState, plan: Run) -> None:
        for said in range(len(plan) + 1):
            known = self._plans.get(state)
            if known is None or len(known) > len(plan) - said:
                self._plans[state] = plan[said:]
            if said < len(plan):
                then = self.after(state, plan[said])
                assert then is not None
                state = then

    def _complete(self, state: AutomatonState, order: Sequence[int] | None) -> Run | None:
        """One phrase after another, in this order or the nearest first."""
        plan: Run = ()
        order = None if order is None else list(order)
        while not state.met:
            open_ = [number for number, left in enumerate(state.left) if left]
            if order is not None:
                open_ = [next((number for number in order if state.left[number]), open_[0])]
                order = order[order.index(open_[0]) + 1 :] if open_[0] in order else []
            found = [each for number in open_ if (each := self._way(state, number)) is not None]
            if not found:
                return None
            way, state = min(found, key=lambda one: len(one[0]))
            plan += way
        return plan

    def _way(self, state: AutomatonState, number: int) -> tuple[Run, AutomatonState] | None:
        ways = self.ways(state, number)
        for way in (*ways, *((OTHER, *way) for way in self.ways(AutomatonState((), state.left), number))):
            then: AutomatonState | None = state
            for token in way:
                then = None if then is None else self.after(then, token)
            if then is not None and sum(then.left) < sum(state.left):
                return way, then
        return None
