"""The requests of a search, and the task they share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.data.special_tokens import DEFAULT_TOKENS, SpecialTokens
from regard.generation.choose.interfaces import Hypothesis, LogitsProcessor
from regard.generation.choose.phrase_automaton import AutomatonState, Phrase, PhraseAutomaton
from regard.generation.choose.stop_strings import StopCondition
from regard.generation.choose.trace import BeamTrace
from regard.generation.config import DecodeConfig
from regard.model.interfaces import Source
from regard.model.positions import Learned
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder

if TYPE_CHECKING:
    from regard.generation.shortlist import Shortlist

Constraint = tuple[
    PhraseAutomaton, AutomatonState
]  # of the required phrases, and its state after the prefix


# The default limit of an output, where a model bounds it by its source: generous, so that it ends
# only outputs that have gone astray.
TOKENS_PER_SOURCE_TOKEN = 3
TOKENS_FOR_ANY_SOURCE = 50


class GenerationRequest(NamedTuple):
    """One input, the constraints on its output, and, once `plan_requests` has planned it, its limits.

    The only form of a request from the public interfaces to the slots of a search. (A named tuple, because
    constructing a frozen dataclass takes several times as long.)
    """

    source: Any  # one element of what `collate` makes a batch of; None for a language model
    size: int  # tokens or regions of the source
    prefix: Sequence[int] = ()  # tokens that the output begins with
    banned: Sequence[Sequence[int]] = ()  # runs of tokens that the output does not contain
    required: Sequence[
        Sequence[int] | Phrase
    ] = ()  # phrases that it contains, each as often as it is listed
    late: Sequence[
        tuple[Sequence[int], int]
    ] = ()  # runs that are banned once the output has so many tokens
    given: int = 0  # tokens of the prefix that are a prompt: no part of the output, and free of its constraints
    first: int | None = None  # the token before its first; None: that of the task
    score_prompt: bool = False  # whether the log-probabilities of the prompt's tokens are wanted
    stops: StopCondition | None = None  # of its stop strings; None: those of the task
    # Whether the source bounds the length of the output where max_length_ratio is not set.
    bounded: bool = False

    # Set by `plan_requests`.
    number: int = 0  # on which its random draws depend
    start: int = 0  # the token before its first
    begin: Sequence[
        int
    ] = ()  # tokens that its output begins with: those of every output, and its prefix
    min_length: int = 0
    max_length: int = 0  # with the tokens that it begins with
    constraint: Constraint | None = None  # of the required phrases

    @property
    def bans(self) -> list[tuple[Sequence[int], int]]:
        """Banned runs of tokens, each with the length of the output from which it is banned."""
        if not self.banned and not self.late:
            return []
        return [*((run, 0) for run in self.banned), *self.late]

    def longest(self, config: DecodeConfig, positions: int | None = None, forced: int = 0) -> int:
        """The maximum number of tokens of the output with its prefix; `positions` is the decoder's limit.

        The `forced` tokens before the prefix, which every output begins with, count as tokens of the output.
        """
        longest = config.max_length
        if config.max_length_ratio is not None and self.source is not None:
            longest = min(longest, int(config.max_length_ratio * self.size))
        elif self.bounded:
            longest = min(longest, max(self._default_bound, self._shortest(config)))
        longest = len(self.prefix) + max(longest, forced + bool(forced), 0 if self.prefix else 1)
        if positions is None:
            return longest
        if forced + len(self.prefix) >= positions:
            wanted = f"at most {positions - 1 - forced} tokens: the decoder has learned {positions} positions"
            raise InvalidArgument(
                "prefix", wanted=wanted, got=str(len(self.prefix)), remedy="Shorten it."
            )
        return min(longest, positions)

    def shortest(self, config: DecodeConfig) -> int:
        """The minimum number of tokens of the output with its prompt; 0 for none."""
        shortest = self._shortest(config)
        return shortest + self.given if shortest else 0

    @property
    def _default_bound(self) -> int:
        """The limit that the source gives the output, with room for the required phrases."""
        required = sum(max(map(len, Phrase.of(phrase).runs), default=0) for phrase in self.required)
        return TOKENS_PER_SOURCE_TOKEN * self.size + TOKENS_FOR_ANY_SOURCE + required

    def _shortest(self, config: DecodeConfig) -> int:
        return max(config.min_length, int(config.min_length_ratio * self.size))

    def constraint_of(self, task: "SearchTask") -> Constraint | None:
        """The required phrases as an automaton; refused where they cannot fit. None where nothing is required."""
        if not self.required:
            return None
        special = task.special_tokens
        reserved = {special.pad, special.start, *special.ends, special.mask, *special.suppressed}
        phrases = [Phrase.of(each) for each in self.required]
        automaton = PhraseAutomaton(phrases, [tuple(run) for run in self.banned], reserved)
        state = automaton.read(self.prefix[self.given :], begins=not self.given)
        forced = len(special.target_prefix)
        budget = self.longest(task.config, task.positions, forced) - forced - len(self.prefix)
        if not automaton.fits(state, budget):
            plan = automaton.plan(state)
            raise InvalidArgument(
                "required",
                wanted=f"at most {budget} tokens, the maximum length of this output",
                got="phrases that exclude one another" if plan is None else f"{len(plan)}",
                remedy="Raise max_length or max_length_ratio, or require less.",
            )
        return automaton, state


@dataclass(frozen=True)
class SearchTask:
    """What all requests of a search share."""

    model: Seq2Seq
    collate: Callable[[list[Any]], Source]  # makes a batch of the requests' sources
    config: DecodeConfig
    logits_processors: Sequence[
        LogitsProcessor
    ] = ()  # applied beside those that the config asks for
    special_tokens: SpecialTokens = DEFAULT_TOKENS  # of the vocabulary of the outputs
    first: int | None = None  # the token before an output's first; None: the start token
    ends: bool = True  # whether an end token ends an output; if not, it is a token like others
    rerank: Callable[[Source, Sequence[Hypothesis]], list[Hypothesis]] | None = (
        None  # the whole beam of one source
    )
    scored: bool = False  # whether greedy outputs have log-probabilities
    context_length: int | None = (
        None  # of the training sequences of a language model; None: not known
    )
    numbers: Sequence[int] | None = (
        None  # of the requests, on which their random draws depend; None: 0, 1, ...
    )
    trace: BeamTrace | None = None  # records the beam search of one request
    shortlist: "Shortlist | None" = None  # where config.shortlist
    stops: StopCondition | None = None  # of config.stop
    workers: int | None = None  # threads that search at once on a CPU; None: as many as useful
    attention: bool = False  # whether the outputs are wanted with their cross-attention
    # Whether the model's weights never change: engines do not compare them with their copies again.
    constant_weights: bool = False

    def is_end(self, token: int) -> bool:
        """Whether a token ends an output."""
        return self.ends and token in self.special_tokens.ends

    @cached_property
    def device(self) -> torch.device:
        """The device of the model. Kept, because finding it visits the modules, and a server needs it per request."""
        return next(self.model.parameters()).device

    @cached_property
    def window(self) -> int | None:
        """The most tokens that the decoder reads at once; beyond, its window slides. None: no limit."""
        return None if self.model.decoder.extrapolates else self.context_length

    @cached_property
    def positions(self) -> int | None:
        """The number of positions that the decoder has learned; None: no limit, or a sliding window."""
        return position_limit(self.model.decoder) if self.window is None else None


def plan_requests(
    task: SearchTask, requests: Sequence[GenerationRequest], numbers: Sequence[int] | None = None
) -> list[GenerationRequest]:
    """The requests with their limits; refused where one cannot be satisfied. `numbers` instead of the task's."""
    if not all(phrase for each in requests for phrase in each.banned):
        raise InvalidArgument(
            "banned", wanted="tokens", got="none", remedy="Leave empty phrases out."
        )
    config = task.config
    if config.stop is not None and task.stops is None:
        wanted = "nothing for a model without a tokenizer: strings are sought in texts"
        got = repr(list(config.stop))
        raise InvalidArgument("stop", wanted=wanted, got=got, remedy="Leave it out.")
    if any(each.required and (task.stops or each.stops) for each in requests):
        wanted = "nothing beside stop: an output may end before it contains them"
        raise InvalidArgument("required", wanted=wanted, got="phrases", remedy="Drop one of them.")
    forced = task.special_tokens.target_prefix
    chosen = numbers or task.numbers or range(len(requests))
    return [
        each._replace(
            number=number,
            start=_first(task, each),
            begin=[*forced, *each.prefix],
            min_length=each.shortest(config),
            max_length=each.longest(config, task.positions, len(forced)),
            constraint=each.constraint_of(task),
            stops=each.stops if task.stops is None else task.stops,
        )
        for each, number in zip(requests, chosen, strict=True)
    ]


def _first(task: SearchTask, request: GenerationRequest) -> int:
    """The token before the first of an output."""
    for token in (request.first, task.first, task.special_tokens.start):
        if token is not None:
            return token
    wanted = "a text to continue: this model has no token that begins one"
    raise InvalidArgument("text", wanted=wanted, got="an empty one", remedy="Give its first words.")


def position_limit(module: nn.Module) -> int | None:
    """The smallest number of learned positions in a module; None where it has none."""
    if isinstance(module, TransformerDecoder):
        return module.input_layer.limit
    modules: list[nn.Module | None] = [module]
    for one in (
        modules
    ):  # which grows on the way: faster than `Module.modules`, because every search does this
        if one is not None:
            modules += one._modules.values()
    return min((each.limit for each in modules if isinstance(each, Learned)), default=None)
