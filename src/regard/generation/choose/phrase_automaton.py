"""Required and banned phrases of one output, as an automaton over its tokens (as Aho and Corasick's string matcher)."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import NamedTuple

from regard.core.errors import InvalidArgument
from regard.core.interruption import check_interruption

Run = tuple[int, ...]  # consecutive tokens
OTHER = -1  # any token that is in no phrase
BEGINNING = -2  # stands before the first token of an output
LONGEST = 256  # tokens of a phrase: the time to follow one grows with the square of its length
MAX_PERMUTED = 4  # phrases: up to so many, a plan tries every order
MOST_KEPT = (
    4096  # states that an automaton keeps with what follows them, in order not to compute it again
)
TOKEN_BYTES = 200  # of a token of a phrase: its place in the automaton
STATE_BYTES = 480  # of a state that is kept, beside the numbers in it
PLANS = 3  # of all phrases, that hypotheses which have completed different ones keep


@dataclass(frozen=True)
class Phrase:
    """A word or phrase: any of these runs of tokens, unless one of `continuations` follows and makes a longer word.

    A run that begins with BEGINNING is at the beginning of an output.
    """

    runs: tuple[Run, ...]
    continuations: frozenset[int] = frozenset()

    @staticmethod
    def of(phrase: "Phrase | Sequence[int]") -> "Phrase":
        return phrase if isinstance(phrase, Phrase) else Phrase((tuple(phrase),))


class AutomatonState(NamedTuple):
    node: Run  # the longest suffix of the output that begins a run
    left: tuple[int, ...]  # how often each phrase is still required
    just: tuple[
        int, ...
    ] = ()  # phrases completed by the last token, which a continuation would undo

    @property
    def met(self) -> bool:
        return not any(self.left)


class Plan(NamedTuple):
    """The first step of the tokens that complete all phrases. Those after it are the plan of the state it leads to.

    So the plans of all states of a long output share their ends.
    """

    length: int
    token: int
    state: AutomatonState  # after that token


class Prefixes:
    """The beginnings of all runs, without the whole runs. Memory grows with their tokens, not with the square."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._children: dict[
            tuple[int, int], int
        ] = {}  # by a beginning's number and the next token
        for run in runs:
            node = 0
            for token in run[:-1]:
                node = self._children.setdefault((node, token), len(self._children) + 1)

    def __contains__(self, run: Run) -> bool:
        node = 0
        for token in run:
            child = self._children.get((node, token))
            if child is None:
                return False
            node = child
        return True


class PhraseAutomaton:
    """All phrases that one request requires, as often as it lists them, and all runs that it bans.

    reserved   tokens that are part of no phrase
    """

    def __init__(
        self,
        required: Sequence[Phrase],
        banned: Sequence[Run],
        reserved: Collection[int | None] = (),
    ) -> None:
        for name, runs in (
            ("required", [run for phrase in required for run in phrase.runs]),
            ("banned", banned),
        ):
            if (longest := max(map(len, runs), default=0)) > LONGEST:
                got = f"one of {longest:,}"
                remedy = "Give shorter ones."
                raise InvalidArgument(
                    name, wanted=f"phrases of at most {LONGEST} tokens", got=got, remedy=remedy
                )
        counts = Counter(required)
        self.phrases = list(counts)
        self.banned = set(banned)
        for phrase in self.phrases:
            self._check(phrase, reserved)
        runs = [*(run for phrase in self.phrases for run in phrase.runs), *banned]
        self.tokens = sorted({token for run in runs for token in run} - {BEGINNING})
        self.prefixes = Prefixes(runs)
        self.run_tokens = sum(map(len, runs))
        self.longest = max(map(len, runs), default=0)
        self.sizes = [
            min(len(run) for run in phrase.runs if run[0] != BEGINNING) for phrase in self.phrases
        ]
        # Another token between two phrases may be needed: side by side they may contain a banned run, or merge words.
        self.gap = int(bool(banned) or any(phrase.continuations for phrase in self.phrases))
        self.left = tuple(counts.values())
        self._following: dict[tuple[AutomatonState, int], AutomatonState | None] = {}
        self._plans: dict[AutomatonState, Plan | None] = {}

    def _check(self, phrase: Phrase, reserved: Collection[int | None]) -> None:
        refuse = partial(InvalidArgument, "required")
        for run in phrase.runs:
            bare = run[1:] if run[:1] == (BEGINNING,) else run
            if not bare or BEGINNING in bare or set(bare) & set(reserved):
                raise refuse(
                    wanted="the tokens of words",
                    got=str(list(run)),
                    remedy="Leave out special tokens.",
                )
            parts = (
                run[start:stop]
                for start in range(len(run))
                for stop in range(start + 1, len(run) + 1)
            )
            part = next((part for part in parts if part in self.banned), None)
            if part is not None:
                got = f"tokens {list(run)}, of which {list(part)} are banned"
                raise refuse(
                    wanted="nothing that is banned", got=got, remedy="Require it or ban it."
                )
        if all(run[0] == BEGINNING for run in phrase.runs):
            raise refuse(
                wanted="a run for any position",
                got="runs for the start",
                remedy="Leave out BEGINNING.",
            )

    @property
    def bytes(self) -> int:
        """The memory that it takes at most, with what it keeps during a search."""
        planned = sum(
            count * (size + self.gap) for count, size in zip(self.left, self.sizes, strict=True)
        )
        state = STATE_BYTES + 8 * (len(self.left) + self.longest)
        return TOKEN_BYTES * self.run_tokens + state * (MOST_KEPT + PLANS * planned)

    def forget(self) -> None:
        """Release what was kept during a search."""
        self._following.clear()
        self._plans.clear()

    def read(self, prefix: Sequence[int], *, begins: bool) -> AutomatonState:
        """The state after a forced prefix, in which bans are ignored. `begins`: it is at the start of the output."""
        state = AutomatonState(
            (BEGINNING,) if begins and (BEGINNING,) in self.prefixes else (), self.left
        )
        for token in prefix:
            state = self._next(state, token)
        return state

    def after(self, state: AutomatonState, token: int) -> AutomatonState | None:
        """The state after one more token; None where that completes a banned run."""
        key = (state, token)
        if key in self._following:
            return self._following[key]
        check_interruption()
        generated = (*state.node, token)
        banned = any(generated[start:] in self.banned for start in range(len(generated)))
        following = None if banned else self._next(state, token)
        if len(self._following) >= MOST_KEPT:
            self._following.clear()
        self._following[key] = following
        return following

    def _next(self, state: AutomatonState, token: int) -> AutomatonState:
        generated = (*state.node, token)
        suffixes = [generated[start:] for start in range(len(generated))]
        left = list(state.left)
        just = []
        for number in state.just:
            left[number] += token in self.phrases[number].continuations
        for number, phrase in enumerate(self.phrases):
            if left[number] and any(suffix in phrase.runs for suffix in suffixes):
                left[number] -= 1
                if phrase.continuations:
                    just.append(number)
        node = next((suffix for suffix in suffixes if suffix in self.prefixes), ())
        return AutomatonState(node, tuple(left), tuple(just))

    def completions(self, state: AutomatonState, number: int) -> list[Run]:
        """The runs that complete a phrase from this state, shortest first."""
        node = state.node
        runs = (
            run[size:]
            for run in self.phrases[number].runs
            for size in range(min(len(node), len(run) - 1) + 1)
            if run[:size] == node[len(node) - size :] and run[size] != BEGINNING
        )
        return sorted(runs, key=len)

    def following(self, state: AutomatonState) -> set[int]:
        """The tokens that begin or continue a required phrase."""
        return {
            run[0]
            for number, left in enumerate(state.left)
            if left
            for run in self.completions(state, number)
        }

    def progress(self, state: AutomatonState) -> int:
        """Minus the number of required tokens still missing, with one begun phrase counted in part."""
        open_ = [number for number, left in enumerate(state.left) if left]
        missing = sum(state.left[number] * self.sizes[number] for number in open_)
        begun = max(
            (self.sizes[number] - len(self.completions(state, number)[0]) for number in open_),
            default=0,
        )
        return begun - missing

    def upper_bound(self, state: AutomatonState) -> int:
        """A number of tokens that suffices to complete all phrases, whatever the first of them is."""
        left = list(state.left)
        for number in state.just:
            left[number] += 1
        return sum(count * (size + self.gap) for count, size in zip(left, self.sizes, strict=True))

    def fits(self, state: AutomatonState | None, budget: int) -> bool:
        """Whether all phrases can be completed within so many tokens."""
        if state is None:
            return False
        if self.upper_bound(state) <= budget:
            return True
        plan = self._first_step(state)
        return plan is not None and plan.length <= budget

    def plan(self, state: AutomatonState) -> Run | None:
        """Tokens that complete all phrases; None where there are none.

        Not always the fewest, but each token of a plan leaves a state whose plan is at least one token shorter.
        """
        tokens: list[int] = []
        step = self._first_step(state)
        if step is None:
            return None
        while step is not None and step.length:
            tokens.append(step.token)
            step = self._plans[step.state]
        return tuple(tokens)

    def _first_step(self, state: AutomatonState) -> Plan | None:
        if state not in self._plans:
            open_ = [number for number, left in enumerate(state.left) for _ in range(left)]
            plans = [self._complete(state, None)]
            if len(open_) <= MAX_PERMUTED:
                plans += [self._complete(state, order) for order in set(permutations(open_))]
            self._plans[state] = None
            possible = [plan for plan in plans if plan is not None]
            if possible:
                self._remember(state, min(possible, key=len))
        return self._plans[state]

    def _remember(self, state: AutomatonState, plan: Run) -> None:
        """Store a plan for its state, and its rest for each state that it passes where none is shorter."""
        length = len(plan)
        for token in plan:
            following = self.after(state, token)
            assert following is not None
            self._keep_shorter(state, Plan(length, token, following))
            state = following
            length -= 1
        self._keep_shorter(state, Plan(0, OTHER, state))

    def _keep_shorter(self, state: AutomatonState, plan: Plan) -> None:
        known = self._plans.get(state)
        if known is None or known.length > plan.length:
            self._plans[state] = plan

    def _complete(self, state: AutomatonState, order: Sequence[int] | None) -> Run | None:
        """A plan that completes one phrase after another, in this order, or the nearest first."""
        plan: Run = ()
        if order is not None:
            order = list(order)
        while not state.met:
            open_ = [number for number, left in enumerate(state.left) if left]
            if order is not None:
                open_ = [next((number for number in order if state.left[number]), open_[0])]
                order = order[order.index(open_[0]) + 1 :] if open_[0] in order else []
            steps = [
                step for number in open_ if (step := self._complete_one(state, number)) is not None
            ]
            if not steps:
                return None
            run, state = min(steps, key=lambda step: len(step[0]))
            plan += run
        return plan

    def _complete_one(
        self, state: AutomatonState, number: int
    ) -> tuple[Run, AutomatonState] | None:
        """The first run that completes a phrase without a banned run, and the state after it."""
        runs = self.completions(state, number)
        for run in (
            *runs,
            *((OTHER, *run) for run in self.completions(AutomatonState((), state.left), number)),
        ):
            following: AutomatonState | None = state
            for token in run:
                following = None if following is None else self.after(following, token)
            if following is not None and sum(following.left) < sum(state.left):
                return run, following
        return None
