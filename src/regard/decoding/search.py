"""The one search loop: places for so many inputs; who is done leaves, who waits enters.

Everything here is written against `encode`, `start`, `step`, `follow`, `enter` and `reorder`, which every model of the
family has, so it knows nothing of attention, recurrence or pictures.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.data.tokens import END, MASK, PAD, START
from regard.decoding.attention import check_looks, covered
from regard.decoding.beam import Beam
from regard.decoding.config import DecodeConfig
from regard.decoding.constraints import BannedHere, Required, Unspeakable
from regard.decoding.demand import Demand, Phrase, State
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.native import encode, native_decoder
from regard.decoding.rules import Banned, Forced, LongEnough, Never, NoRepeat, Repetition, Rule, Said
from regard.decoding.walk import Walk
from regard.errors import InvalidArgument

ROWS = 512  # hypotheses in a step, at most
REST = 8  # an eighth of the places may be idle before others enter


@dataclass(frozen=True)
class Input:
    """What to search an output for."""

    source: Any  # what `collate` makes a batch of; None for a language model
    size: int  # how many tokens it has, or regions
    prefix: Sequence[int] = ()  # what its output begins with
    banned: Sequence[Sequence[int]] = ()  # runs of tokens that its output does not hold
    required: Sequence[Sequence[int] | Phrase] = ()  # and those that it does, each as often as it stands here
    given: int = 0  # tokens of the prefix that are no part of the output, where nothing counts

    def most(self, config: DecodeConfig) -> int:
        """Tokens of its output, at most, with the prefix."""
        ratio = config.longest if config.longest_ratio is None else int(config.longest_ratio * self.size) + 1
        return max(1, len(self.prefix) + min(config.longest, ratio))

    def demand(self, config: DecodeConfig, rules: Sequence[Rule]) -> tuple[Demand, State] | None:
        """What its output must hold, and how much of that its prefix does; refused where it cannot fit."""
        if not self.required:
            return None
        everywhere = [phrase for rule in rules if isinstance(rule, Banned) for phrase in rule.phrases]
        banned = [tuple(phrase) for phrase in (*self.banned, *everywhere)]
        demand = Demand([Phrase.of(each) for each in self.required], banned)
        state = demand.read(self.prefix[self.given :], begins=not self.given)
        room = self.most(config) - len(self.prefix)
        if not demand.fits(state, room):
            plan = demand.plan(state)
            raise InvalidArgument(
                "required",
                wanted=f"at most {room} tokens, the longest that this output may be",
                got="what cannot be said together" if plan is None else f"{len(plan)}",
                remedy="Raise longest or longest_ratio, or require less.",
            )
        return demand, state


@dataclass(frozen=True)
class Task:
    """What all inputs of a search have in common."""

    model: Any
    collate: Callable[[list[Any]], Any]  # makes a batch of sources
    config: DecodeConfig
    rules: Sequence[Rule] = ()
    first: int = START  # the token before an output's first
    ends: bool = True  # or else the end is a token like others
    scored: bool = False  # whether greedy outputs come with log-probabilities


def search(task: Task, inputs: Sequence[Input]) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The best outputs of each input, as they are found: its number, and its hypotheses, best first."""
    config, demands = task.config, _demands(task, inputs)
    if config.coverage_penalty:
        check_looks("coverage_penalty", task.model)
    waiting = sorted(range(len(inputs)), key=lambda i: -inputs[i].size)  # stable; nobody who enters needs more room
    while waiting:
        size = max(1, inputs[waiting[0]].size)
        near = next((n for n, i in enumerate(waiting) if 2 * max(1, inputs[i].size) < size), len(waiting))
        group, waiting = waiting[:near], waiting[near:]
        places = max(1, min(len(group), config.batch_tokens // size, ROWS // max(config.beam, config.nbest)))
        members = [inputs[i] for i in group]
        party = _Party(task, members, [demands[i] for i in group], group, places)
        for number, hypotheses in party.run():
            if not hypotheses and members[number].required:
                raise Unspeakable
            if config.coverage_penalty:
                source, penalty = task.collate([members[number].source]), config.coverage_penalty
                hypotheses = covered(task.model, source, hypotheses, task.first, penalty)[: config.nbest]
            yield group[number], hypotheses


def stream(task: Task, one: Input) -> Iterator[int]:
    """The tokens of one output, each as it comes; without the end. A beam cannot: it may yet think better of them."""
    return _Party(task, [one], _demands(task, [one]), [0], places=1).stream()


def _demands(task: Task, inputs: Sequence[Input]) -> "list[tuple[Demand, State] | None]":
    """What each input's output must hold; refused where it cannot."""
    if not all(phrase for each in inputs for phrase in each.banned):
        raise InvalidArgument("banned", wanted="tokens", got="none", remedy="Leave empty phrases out.")
    return [each.demand(task.config, task.rules) for each in inputs]


class _Party:
    """Inputs of like length that share the places of one batch."""

    def __init__(
        self,
        task: Task,
        inputs: list[Input],
        demands: list[tuple[Demand, State] | None],
        numbers: list[int],
        places: int,
    ) -> None:
        self.task, self.inputs, self.demands, self.numbers, self.places = task, inputs, demands, numbers, places
        config, ends = task.config, task.ends
        self.decoder = native_decoder(task.model.decoder, int8=config.int8) or task.model.decoder
        self.device = next(task.model.parameters()).device
        self.beams = config.nbest if config.sample else config.beam
        self.least = [max(config.shortest, int(config.shortest_ratio * each.size)) for each in inputs]
        self.most = [each.most(config) for each in inputs]
        self.room, longest_prefix = max(self.most), max(len(each.prefix) for each in inputs)
        self.said = Said(
            tokens=torch.full((places, self.beams, self.room), PAD, device=self.device),
            length=torch.zeros(places, dtype=torch.int64, device=self.device),
            least=torch.zeros(places, dtype=torch.int64, device=self.device),
            forced=torch.full((places, max(1, longest_prefix)), -1, device=self.device),
        )
        own: list[Rule] = [Never([PAD, START, MASK])]
        if any(self.least):
            own.append(LongEnough())
        if config.no_repeat:
            own.append(NoRepeat(config.no_repeat))
        if config.repetition != 1.0:
            own.append(Repetition(config.repetition))
        own += task.rules
        self.banned: BannedHere | None = None
        if any(each.banned for each in inputs):
            most = max(len(each.banned) for each in inputs)
            size = max(len(phrase) for each in inputs for phrase in each.banned)
            self.banned = BannedHere(places, most, size, self.device)
            own.append(self.banned)
        if longest_prefix:
            forced = Forced()
            own = [forced.note, *own, forced]
        self.required = Required(ends) if any(each is not None for each in demands) else None
        way = Beam if self.beams > 1 and not config.sample else Walk
        limit = torch.full((places,), self.room, device=self.device)
        self.way = way(config, self.said, limit, own, ends=ends, scored=task.scored, required=self.required)
        self.tokens = torch.full((places, self.beams), task.first, device=self.device)
        self.who: list[int | None] = [None] * places  # whose place each is
        self.next = 0  # input to enter
        self.fresh: Any = None  # encoded, not entered yet
        self.fresh_of: list[int] = []

    def run(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        state = self._fill(None)
        while any(one is not None for one in self.who):
            state, done = self._step(state)
            for place in done:
                one = self.who[place]
                if one is not None:
                    yield one, self.way.found(place)
                self.who[place] = None
                if self.required is not None:
                    self.required.leave(place)
            state = self._fill(state)

    def stream(self) -> Iterator[int]:
        """The tokens of the one input that there is."""
        state, done = self._fill(None), False
        while not done:
            state, places = self._step(state)
            token, done = int(self.tokens[0, 0]), bool(places)
            if token != END or not self.task.ends:
                yield token

    @torch.inference_mode()
    def _step(self, state: Any) -> tuple[Any, list[int]]:
        """One more token of every hypothesis; the places that are done."""
        logits, state = self.decoder.step(self.tokens.flatten(), state)
        self.tokens, parents, done = self.way.advance(logits.view(*self.tokens.shape, -1))
        return state if parents is None else state.follow(parents), done.nonzero()[:, 0].tolist()

    @torch.inference_mode()
    def _fill(self, state: Any) -> Any:
        """Let those who wait enter; where nobody waits and few are left, go on with those alone."""
        free = [place for place, one in enumerate(self.who) if one is None]
        if free:
            self.said.length[free] = 0  # nobody's places: they may run on and on
        left = len(self.inputs) - self.next + len(self.fresh_of)
        if left and len(free) >= max(1, self.places // REST):
            return self._enter(state, free[:left])
        if not left and 0 < len(self.who) - len(free) <= len(self.who) // 2:
            rows = torch.tensor([place for place, one in enumerate(self.who) if one is not None], device=self.device)
            self.who = [one for one in self.who if one is not None]
            said = self.said
            said.tokens, said.length = said.tokens[rows], said.length[rows]
            said.least, said.forced = said.least[rows], said.forced[rows]
            self.way.keep(rows)
            if self.banned is not None:
                self.banned.keep(rows)
            if self.required is not None:
                self.required.keep(rows.tolist())
            self.tokens = self.tokens[rows]
            return state.reorder(rows)
        return state

    def _enter(self, state: Any, free: list[int]) -> Any:
        if not self.fresh_of:
            self._encode()
        who, self.fresh_of = self.fresh_of[: len(free)], self.fresh_of[len(free) :]
        rows = torch.tensor(free[: len(who)], device=self.device)
        for place, one in zip(free, who, strict=False):
            self.who[place] = one
        prefixes = [self.inputs[one].prefix for one in who]
        said, new = self.said, partial(torch.tensor, device=self.device)
        said.tokens[rows], said.length[rows] = PAD, 0
        said.least[rows], self.way.limit[rows] = (new([each[one] for one in who]) for each in (self.least, self.most))
        width = said.forced.shape[1]
        said.forced[rows] = new([[*prefix, *[-1] * (width - len(prefix))] for prefix in prefixes])
        self.way.enter(rows, new([self.numbers[one] for one in who]))
        for place, one in zip(free, who, strict=False):
            self._constrain(place, one)
        self.tokens[rows] = self.task.first
        count = len(self.fresh_of) + len(who)
        taken = torch.arange(count - len(self.fresh_of), device=self.device)
        rest = torch.arange(len(who), count, device=self.device)
        if state is None:  # all at once
            return self.fresh
        entering = self.fresh if not self.fresh_of else self.fresh.reorder(taken)
        self.fresh = self.fresh.reorder(rest) if self.fresh_of else None
        return state.enter(rows, entering)

    def _constrain(self, place: int, one: int) -> None:
        if self.banned is not None:
            self.banned.enter(place, self.inputs[one].banned)
        asked, prefix = self.demands[one], len(self.inputs[one].prefix)
        if self.required is not None and asked is not None:
            self.required.enter(place, *asked, beams=self.beams, prefix=prefix, room=self.most[one] - prefix)

    def _encode(self) -> None:
        """Read the next inputs, as many as there are places."""
        self.fresh_of = list(range(self.next, min(self.next + self.places, len(self.inputs))))
        begun, self.next = self.next > 0, self.next + len(self.fresh_of)
        sources = [self.inputs[one].source for one in self.fresh_of]
        memory = encode(self.task.model, None if sources[0] is None else self.task.collate(sources))
        # Where others enter later, time goes on for longer than any output; the older half is forgotten then.
        capacity = 0 if begun else self.room if self.places == len(self.inputs) else 2 * self.room
        self.fresh = self.decoder.start(memory, batch=len(sources), capacity=capacity, beams=self.beams)
