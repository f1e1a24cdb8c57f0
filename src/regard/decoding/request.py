"""What a search is asked: inputs, and what they have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from regard.core.errors import InvalidArgument
from regard.data.tokenizer import START
from regard.decoding.config import DecodeConfig
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.logits_processors import BannedTokens, LogitsProcessor
from regard.decoding.phrase_automaton import AutomatonState, Phrase, PhraseAutomaton
from regard.model.interfaces import Source
from regard.model.positions import Learned


class Request(NamedTuple):
    """What to search an output for. There are many: a frozen dataclass takes several times as long to make."""

    source: Any  # what `collate` makes a batch of; None for a language model
    size: int  # how many tokens it has, or regions
    prefix: Sequence[int] = ()  # what its output begins with
    banned: Sequence[Sequence[int]] = ()  # runs of tokens that its output does not hold
    required: Sequence[Sequence[int] | Phrase] = ()  # and those that it does, each as often as it stands here
    late: Sequence[tuple[Sequence[int], int]] = ()  # runs that are banned once it has so many tokens
    given: int = 0  # tokens of the prefix that are no part of the output, where nothing counts

    @property
    def bans(self) -> list[tuple[Sequence[int], int]]:
        """Runs of tokens, and from how many tokens on its output holds them no more."""
        return [*((run, 0) for run in self.banned), *self.late]

    def most(self, config: DecodeConfig, places: int | None = None) -> int:
        """Tokens of its output, at most, with the prefix; no more than a decoder has places for."""
        most = config.max_length
        if config.max_length_ratio is not None and self.source is not None:
            most = min(most, int(config.max_length_ratio * self.size))
        most = max(1, len(self.prefix) + most)
        if places is None:
            return most
        if len(self.prefix) >= places:
            raise InvalidArgument(
                "prefix",
                wanted=f"at most {places - 1} tokens: the decoder has learned {places} positions",
                got=str(len(self.prefix)),
                remedy="Shorten it.",
            )
        return min(most, places)

    def least(self, config: DecodeConfig) -> int:
        """And at least, with the given ones."""
        least = max(config.min_length, int(config.min_length_ratio * self.size))
        return least + self.given if least else 0

    def demand(
        self, config: DecodeConfig, rules: Sequence[LogitsProcessor], places: int | None = None
    ) -> tuple[PhraseAutomaton, AutomatonState] | None:
        """What its output must hold, and how much of that its prefix does; refused where it cannot fit."""
        if not self.required:
            return None
        everywhere = [phrase for rule in rules if isinstance(rule, BannedTokens) for phrase in rule.phrases]
        banned = [tuple(phrase) for phrase in (*self.banned, *everywhere)]
        demand = PhraseAutomaton([Phrase.of(each) for each in self.required], banned)
        state = demand.read(self.prefix[self.given :], begins=not self.given)
        room = self.most(config, places) - len(self.prefix)
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
class SearchTask:
    """What all inputs of a search have in common."""

    model: Any
    collate: Callable[[list[Any]], Any]  # makes a batch of sources
    config: DecodeConfig
    rules: Sequence[LogitsProcessor] = ()
    first: int = START  # the token before an output's first
    ends: bool = True  # or else the end is a token like others
    rerank: Callable[[Source, Sequence[Hypothesis]], list[Hypothesis]] | None = None  # the whole beam of one source
    scored: bool = False  # whether greedy outputs come with log-probabilities
    numbers: Sequence[int] | None = None  # of the inputs, by which each has its own draws; None: from 0 on

    @cached_property
    def places(self) -> int | None:
        """How many positions the decoder has learned; None: it goes on for ever."""
        return min((each.limit for each in self.model.decoder.modules() if isinstance(each, Learned)), default=None)
