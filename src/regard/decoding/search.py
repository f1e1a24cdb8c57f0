"""The one search loop: places for so many inputs; who is done leaves, who waits enters.

Everything here is written against `encode`, `start`, `step`, `follow`, `enter` and `reorder`, which every model of the
family has, so it knows nothing of attention, recurrence or pictures.
"""

import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from regard.core.errors import InvalidArgument, UnsatisfiableConstraint
from regard.core.sequence import pad_lists
from regard.core.shapes import Int, Tensor
from regard.data.tokenizer import END, MASK, PAD, START
from regard.decoding.beam import BeamSearch
from regard.decoding.constrained_beam import BannedPhrases, RequiredPhrases
from regard.decoding.greedy import GreedySearch
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.logits_processors import (
    AllowedTokens,
    BannedTokens,
    ForcedPrefix,
    GeneratedTokens,
    LogitsProcessor,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
)
from regard.decoding.phrase_automaton import AutomatonState, PhraseAutomaton
from regard.decoding.request import Request, SearchTask
from regard.model.capture import capturing_here
from regard.model.kv_cache import Slots
from regard.runtime import engines
from regard.runtime.cuda.buffers import DecodeBuffers, buffer_pool
from regard.runtime.cuda.cuda_graphs import autocast, rounded
from regard.runtime.cuda.host_future import HostFuture
from regard.runtime.interfaces import EngineOptions

ROWS = {"cpu": 512, "cuda": 2560}  # hypotheses in a step, at most
REST = 8  # an eighth of the places may be idle before others enter
AHEAD = 4  # steps that a GPU takes before anybody asks it who is done
FEW = 64  # rows: with fewer of them a GPU is no faster
SOURCE = 32  # the room for sources is a multiple of it, where it stays


def search(task: SearchTask, inputs: Sequence[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The best outputs of each input, as they are found: its number, and its hypotheses, best first."""
    config, demands = task.config, _demands(task, inputs)
    if config.coverage_penalty and task.rerank is None:
        wanted, remedy = (
            "SearchTask(rerank=...), which computes it",
            "Pass interpret.output_attention.coverage_reranker.",
        )
        raise InvalidArgument("coverage_penalty", wanted=wanted, got="none", remedy=remedy)
    waiting = sorted(range(len(inputs)), key=lambda i: -inputs[i].size)  # stable; nobody who enters needs more room
    while waiting:
        size = max(1, inputs[waiting[0]].size)
        near = next((n for n, i in enumerate(waiting) if 2 * max(1, inputs[i].size) < size), len(waiting))
        group, waiting = waiting[:near], waiting[near:]
        rows = ROWS.get(next(task.model.parameters()).device.type, ROWS["cpu"])
        places = max(
            1, min(len(group), config.batch_tokens // size, rows // max(config.beam_size, config.num_hypotheses))
        )
        members = [inputs[i] for i in group]
        numbers = group if task.numbers is None else [task.numbers[i] for i in group]
        party = SearchBatch(task, members, [demands[i] for i in group], numbers, places)
        for number, hypotheses in party.run():
            if not hypotheses and members[number].required:
                raise UnsatisfiableConstraint
            if task.rerank is not None:
                source = task.collate([members[number].source])
                hypotheses = task.rerank(source, hypotheses)[: config.num_hypotheses]
            yield group[number], hypotheses


def stream(task: SearchTask, one: Request) -> Iterator[int]:
    """The tokens of one output, each as it comes; without the end. A beam cannot: it may yet think better of them."""
    return SearchBatch(task, [one], _demands(task, [one]), [*(task.numbers or [0])], places=1).stream()


def _demands(task: SearchTask, inputs: Sequence[Request]) -> "list[tuple[PhraseAutomaton, AutomatonState] | None]":
    """What each input's output must hold; refused where it cannot."""
    if not all(phrase for each in inputs for phrase in each.banned):
        raise InvalidArgument("banned", wanted="tokens", got="none", remedy="Leave empty phrases out.")
    return [each.demand(task.config, task.rules, task.places) for each in inputs]


class Sizes(NamedTuple):
    """How much room a desk has."""

    source: int  # positions of sources, where they stay
    ahead: int  # steps
    said: int  # tokens of an output, and one more
    prefix: int


class SearchBatch:
    """Inputs of like length that share the places of one batch."""

    desk: DecodeBuffers[GreedySearch | BeamSearch]
    kind: Hashable = None  # of desk, by which it is found again; none where what it holds is this search's alone

    def __init__(
        self,
        task: SearchTask,
        inputs: list[Request],
        demands: list[tuple[PhraseAutomaton, AutomatonState] | None],
        numbers: list[int],
        places: int,
    ) -> None:
        self.task, self.inputs, self.demands, self.numbers = task, inputs, demands, numbers
        config = task.config
        self.device = next(task.model.parameters()).device
        self.beams = config.num_hypotheses if config.sample else config.beam_size
        self.least = [each.least(config) for each in inputs]
        self.most = [each.most(config, task.places) for each in inputs]
        self.room, self.prefix = max(self.most), max(len(each.prefix) for each in inputs)
        self.half = config.precision == "bfloat16" and self.device.type == "cuda"
        if config.precision == "bfloat16" and not self.half:
            _no_half()
        options = EngineOptions(self.room, half=self.half, int8=config.quantization == "int8")
        self.decoder = engines.decoder_for(task.model, options)
        self.required: RequiredPhrases | None = None
        self.banned: BannedPhrases | None = None
        self.fixed = self.decoder.static
        demanding = any(each is not None for each in demands)
        self.recorded = (
            self.fixed
            and not capturing_here()
            and not demanding
            and all(isinstance(it, BannedTokens | AllowedTokens) for it in task.rules)
        )
        self.places = rounded(places, up=places == len(inputs)) if self.fixed else places
        # Where others enter later, time goes on for longer than any output; the older half is forgotten then.
        self.capacity = self.room if self.places >= len(inputs) else 2 * self.room

    def run(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        found = self._first_steps(now=not self.recorded)
        while True:
            for place, hypotheses in found:
                one, self.who[place] = self.who[place], None
                assert one is not None
                if self.required is not None:
                    self.required.leave(place)
                yield one, hypotheses
            self._fill()
            if all(one is None for one in self.who):
                break
            found = self._advance(now=not self.recorded)
        self._leave()

    def stream(self) -> Iterator[int]:
        """The tokens of the one input that there is."""
        done = bool(self._first_steps(now=True))
        while True:
            token = int(self.desk.tokens[0, 0])
            if token != END or not self.task.ends:
                yield token
            if done:
                break
            done = bool(self._advance(now=True))
        self._leave()

    def _first_steps(self, *, now: bool) -> list[tuple[int, list[Hypothesis]]]:
        """As `_advance`, from the beginning.

        Where steps are recorded, weights are looked at once a GPU has some to do; if they have changed, it does them
        again.
        """
        if not self.recorded:
            self.decoder.refresh(self.task.model)
        self._begin()
        found = self._advance(now=now)
        if self.recorded and self.decoder.refresh(self.task.model):
            self._leave()
            self._begin()
            found = self._advance(now=now)
        return found

    @torch.inference_mode()
    def _begin(self) -> None:
        self.who: list[int | None] = [None] * self.places  # whose place each is
        self.begun = [0] * self.places  # when they entered
        self.time = 0  # steps taken
        self.told: HostFuture | None = None  # who was done before the last of them
        self.next = 0  # input to enter
        self.memory: Any = None  # what was read, before the decoder has made a state of it
        self.fresh: Any = None  # that state, of those who have not entered yet
        self.fresh_of: list[int] = []
        self.required = RequiredPhrases(self.task.ends) if any(each is not None for each in self.demands) else None
        self._encode()
        memory = self.memory
        source = 0 if memory is None or not self.fixed else SOURCE * -(-memory.states.shape[1] // SOURCE)
        ahead, width, prefix = self.capacity, self.room, max(1, self.prefix)
        if self.fixed:
            ahead, width, prefix = (1 << (each - 1).bit_length() for each in (ahead, width, prefix))
        self.sizes = Sizes(source, ahead, width + 1, prefix)
        if self.recorded and not self.task.rules and not any(each.bans for each in self.inputs):
            rules = any(self.least), self.prefix > 0
            config = self.task.config
            config = replace(config, seed=0) if config.sample else config  # the seed enters with the inputs
            self.kind = (self.sizes, rules, config, self.task.first, self.task.ends, self.task.scored)
        self.desk = self._taken() or self._laid()
        self._enter(list(range(len(self.fresh_of))))

    def _taken(self) -> DecodeBuffers[GreedySearch | BeamSearch] | None:
        """A desk for as many places as there are, that an earlier search has left."""
        desk = None if self.kind is None else buffer_pool(self.decoder).take((len(self.who), self.kind))
        if desk is not None:
            desk.decoder = self.decoder
        return desk

    def _leave(self) -> None:
        if self.kind is not None:
            buffer_pool(self.decoder).put((len(self.who), self.kind), self.desk)

    def _laid(self) -> DecodeBuffers[GreedySearch | BeamSearch]:
        """A desk where nobody is yet."""
        config, places, sizes, new = self.task.config, self.places, self.sizes, partial(torch.full, device=self.device)
        said = GeneratedTokens(
            tokens=new((places, self.beams, sizes.said), PAD),
            length=new((places,), 1),
            least=new((places,), 0),
            forced=new((places, sizes.prefix), -1),
        )
        own: list[LogitsProcessor] = [SuppressTokens([PAD, START, MASK])]
        enough = MinLength() if any(self.least) else None
        if enough is not None:
            own.append(enough)
        if config.no_repeat_ngram_size:
            own.append(NoRepeatNgram(config.no_repeat_ngram_size))
        if config.repetition_penalty != 1.0:
            own.append(RepetitionPenalty(config.repetition_penalty))
        own += self.task.rules
        if any(each.bans for each in self.inputs):
            most = max(len(each.bans) for each in self.inputs)
            size = max(len(phrase) for each in self.inputs for phrase, _ in each.bans)
            self.banned = BannedPhrases(places, most, size, self.device)
            own.append(self.banned)
        if enough is not None and len(own) > 2:
            own.append(enough.relent)
        if self.prefix:
            forced = ForcedPrefix()
            own = [forced.note, *own, forced]
        ends, scored, required = self.task.ends, self.task.scored, self.required
        way = (BeamSearch if self.beams > 1 and not config.sample else GreedySearch)(
            config, said, new((places,), self.room), own, ends=ends, scored=scored, required=required
        )
        state = None
        if self.fixed:
            nothing = None if self.memory is None else self.memory.empty(places, sizes.source)
            with autocast(self.half):
                state = self.decoder.start(nothing, batch=places, capacity=sizes.ahead, beams=self.beams)
        known = new((places, 4 + sizes.prefix), -1)
        return DecodeBuffers(self.decoder, way, self.task.first, known, state, recorded=self.recorded)

    @torch.inference_mode()
    def _advance(self, *, now: bool) -> list[tuple[int, list[Hypothesis]]]:
        """More tokens of every hypothesis; the places that are done, and what they found.

        Or those that were done before these tokens, so that a GPU goes on while one looks at what it did.
        """
        last = max(self.begun[place] + self.most[one] for place, one in enumerate(self.who) if one is not None)
        count, told = min(1 if now else AHEAD, max(0, last - self.time)), self.told
        if count:
            with autocast(self.half):
                self.desk.steps(count)
        self.time += count
        if now or count == 0:
            return self._found(
                self.desk.strategy.done.tolist() if now else [True] * len(self.who)
            )  # at the end all are
        self.told = HostFuture(self.desk.strategy.done)
        return [] if told is None else self._found(told())

    def _found(self, done: list[bool]) -> list[tuple[int, list[Hypothesis]]]:
        places = [place for place, one in enumerate(self.who) if one is not None and done[place]]
        if not places:
            return []
        rows = slice(len(places)) if _first(places) else torch.tensor(places, device=self.device)
        return list(zip(places, self.desk.strategy.found(rows), strict=True))

    @torch.inference_mode()
    def _fill(self) -> None:
        """Let those who wait enter; where nobody waits and few are left, go on with those alone."""
        free = [place for place, one in enumerate(self.who) if one is None]
        here = [place for place, one in enumerate(self.who) if one is not None]
        left = len(self.inputs) - self.next + len(self.fresh_of)
        if left and len(free) >= max(1, self.places // REST):
            if not self.fresh_of:
                self._encode()
            self._enter(free[: len(self.fresh_of)])
        size = rounded(len(here), up=True) if self.fixed and here else len(here)
        few = self.fixed and len(self.who) * self.beams <= FEW
        if not left and not few and 0 < size <= len(self.who) // 2:
            self._keep(here + free[: size - len(here)])

    def _keep(self, places: list[int]) -> None:
        """Go on at a smaller desk."""
        self.told, rows = None, torch.tensor(places, device=self.device)
        desk = self.desk.keep(rows)
        self._leave()
        self.who, self.begun = [self.who[place] for place in places], [self.begun[place] for place in places]
        if self.banned is not None:
            self.banned.keep(rows)
        if self.required is not None:
            self.required.keep(places)
        known = self._taken()
        if known is not None:
            known.copy_from(desk)
        self.desk = known or desk

    def _enter(self, places: list[int]) -> None:
        who, self.fresh_of = self.fresh_of[: len(places)], self.fresh_of[len(places) :]
        self.told = None
        for place, one in zip(places, who, strict=True):
            self.who[place], self.begun[place] = one, self.time
        known = [
            [place, self.numbers[one], self.least[one], self.most[one], *self.inputs[one].prefix]
            for place, one in zip(places, who, strict=True)
        ]
        rows: Slots
        if self.fixed and self.time == 0:  # nobody was here: all places are written
            rows = slice(len(places))
            known += [[0, 0, 0, 1]] * (len(self.who) - len(places))  # who is done after a step
            self.desk.table.copy_(self._table(known), non_blocking=True)
            self.desk.run("enter", partial(_write, self.desk, slice(None), self.desk.table))
        else:
            table = self._table(known).to(self.device, non_blocking=True)
            rows = table[:, 0]
            _write(self.desk, rows, table)
        self.desk.strategy.set_seed(self.task.config.seed)
        if self.banned is not None or self.required is not None:
            for place, one in zip(places, who, strict=True):
                self._constrain(place, one)
        count = len(who) + len(self.fresh_of)
        entering, self.fresh = self._start(count) if self.fresh is None else self.fresh, None
        if self.fresh_of:
            indices = torch.arange(count, device=self.device).tensor_split([len(who)])
            entering, self.fresh = (entering.reorder(index) for index in indices)
        if self.desk.state is None:  # all at once
            self.desk.state = entering
        else:
            self.desk.admit(rows, entering)

    def _table(self, known: list[list[int]]) -> Int[Tensor, "n known"]:
        table = pad_lists(known, 4 + self.sizes.prefix, -1)
        return table.pin_memory() if self.device.type == "cuda" else table

    def _constrain(self, place: int, one: int) -> None:
        if self.banned is not None:
            self.banned.admit(place, self.inputs[one].bans)
        asked, prefix = self.demands[one], len(self.inputs[one].prefix)
        if self.required is not None and asked is not None:
            self.required.admit(place, *asked, beams=self.beams, prefix=prefix, room=self.most[one] - prefix)

    def _encode(self) -> None:
        """Read the next inputs, as many as there are places."""
        self.fresh_of = list(range(self.next, min(self.next + self.places, len(self.inputs))))
        self.next += len(self.fresh_of)
        sources = [self.inputs[one].source for one in self.fresh_of]
        given = None if sources[0] is None else self.task.collate(sources)
        self.memory = None if given is None else engines.encode(self.task.model, given, half=self.half)

    def _start(self, count: int) -> Any:
        """The state of those that were read last. A GPU may be reading still: what can be done before, was."""
        capacity = 0 if self.desk.state is not None else self.capacity
        with autocast(self.half):
            state = self.decoder.start(self.memory, batch=count, capacity=capacity, beams=self.beams)
        self.memory = None
        return state


def _write(desk: DecodeBuffers[GreedySearch | BeamSearch], rows: Slots, table: Int[Tensor, "n known"]) -> None:
    """What is known of inputs as they enter: place, number, least and most tokens, prefix."""
    way, said = desk.strategy, desk.strategy.generated
    said.tokens[rows], said.length[rows] = PAD, 0
    said.least[rows], way.limit[rows], said.forced[rows] = table[:, 2], table[:, 3], table[:, 4:]
    way.admit(rows, table[:, 1])
    desk.tokens[rows] = desk.first


def _first(places: list[int]) -> bool:
    """Whether they are the first so many."""
    return places == list(range(len(places)))


@lru_cache(maxsize=1)
def _no_half() -> None:
    """Say it once."""
    print("regard: precision = 'bfloat16' is for GPUs: decoding in float32", file=sys.stderr)
