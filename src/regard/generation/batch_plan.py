"""What is fixed before the first step of a search batch: lengths, slots, engine, sizes of buffers, the strategy."""

import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import torch
from torch import nn

from regard.generation.choose import logits_processors
from regard.generation.choose.beam import BeamSearch
from regard.generation.choose.constrained_beam import RequiredPhrases
from regard.generation.choose.greedy import GreedySearch
from regard.generation.choose.interfaces import GeneratedTokens, LogitsProcessor
from regard.generation.choose.options import options_in_use
from regard.generation.choose.stop_strings import SlotStops
from regard.generation.choose.strategies import DecodingStrategy
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.base import LEAST_PROMPT, EngineDecoder
from regard.generation.engines.half_precision import autocast
from regard.generation.engines.shortlist import ShortlistDecoder, ShortlistState
from regard.generation.request import GenerationRequest, SearchTask
from regard.model.capture import capturing_here
from regard.model.interfaces import DecoderState
from regard.model.memory import Memory

FIRST_TOKENS = 64  # of an output, for which buffers on a CPU have room at first
SOURCE_MULTIPLE = 32  # static buffers hold sources of a multiple of so many positions
log = logging.getLogger(__name__)
CPU_BATCH_TOKENS = 4096
GPU_BATCH_TOKENS = 65_536
CPU_FORWARD_TOKENS = 2048
FORWARD_TOKENS = 4096
LARGE_MODEL = 100_000_000  # parameters; a larger model has fewer tokens in a batch
TOKEN_BYTES = (
    1 << 19
)  # of free GPU memory for each token of a batch: about ten times the cache of a token


def search_batch_tokens(config: DecodeConfig, model: nn.Module) -> int:
    """Source tokens of a batch of a search; a power of two where the device decides.

    Larger batches make a GPU faster; a CPU, whose caches they exceed, slower.
    """
    if config.batch_tokens != "auto":
        return config.batch_tokens
    parameters = list(model.parameters())
    if not parameters[0].is_cuda:
        return CPU_BATCH_TOKENS
    free, _ = torch.cuda.mem_get_info(parameters[0].device)
    free += torch.cuda.memory_reserved(parameters[0].device) - torch.cuda.memory_allocated(
        parameters[0].device
    )
    size = sum(parameter.numel() for parameter in parameters)
    most = min(
        GPU_BATCH_TOKENS, free // TOKEN_BYTES, GPU_BATCH_TOKENS * LARGE_MODEL // max(1, size)
    )
    return max(CPU_BATCH_TOKENS, 1 << (max(1, most).bit_length() - 1))


def forward_batch_tokens(config: DecodeConfig, model: nn.Module) -> int:
    """Tokens of a batch of forward passes, whose logits are all in memory at once.

    On a CPU, a batch that fits into its caches is faster.
    """
    if config.batch_tokens != "auto":
        return config.batch_tokens
    device = next(model.parameters()).device
    return CPU_FORWARD_TOKENS if device.type == "cpu" else FORWARD_TOKENS


class BatchLimits(NamedTuple):
    """What the requests of a batch need at most."""

    max_length: int  # tokens of an output, with its prefix
    max_prefix: int = 0
    constrained: bool = False  # whether phrases are required
    banned: tuple[int, int] = (0, 0)  # phrases of one request, and tokens of a phrase
    min_length: bool = False  # whether an output has a smallest length
    source: int = 0  # positions of a source beyond those of the first requests
    queued: bool = False  # whether requests are admitted after the first step
    ragged: bool = False  # whether prompts have different lengths
    automaton: int = 0  # bytes of the automaton of the phrases of one request
    stops: bool = False  # whether there are stop strings

    @staticmethod
    def of(requests: Sequence[GenerationRequest], slots: int) -> "BatchLimits":
        """Those of a batch of so many slots whose requests are all known."""
        bans = [each.bans for each in requests]
        automata = [each.constraint[0] for each in requests if each.constraint is not None]
        return BatchLimits(
            max(each.max_length for each in requests),
            max(len(each.begin) for each in requests),
            any(each.constraint is not None for each in requests),
            (max(map(len, bans)), max((len(run) for each in bans for run, _ in each), default=0)),
            any(each.min_length for each in requests),
            queued=slots < len(requests),
            ragged=len({each.given for each in requests}) > 1,
            automaton=max((each.bytes for each in automata), default=0),
            stops=any(each.stops is not None for each in requests),
        )


class BatchPlan:
    """The decoder, slots and sizes of a batch of requests of similar length.

    static     every step is the same work on the same memory
    recorded   steps are recorded as CUDA graphs, and checked for finished slots asynchronously
    capacity   steps that the decoder's state has room for
    """

    def __init__(self, task: SearchTask, limits: BatchLimits, slots: int) -> None:
        config = task.config
        self.task = task
        self.limits = limits
        self.device = task.device
        self.beams = config.num_hypotheses if config.sample else config.beam_size
        self.half = config.precision == "bfloat16" and self.device.type == "cuda"
        if config.precision == "bfloat16" and not self.half:
            _warn_float32()
        registered = [
            logits_processors.LOGITS_PROCESSORS[name]() for name in config.logits_processors or ()
        ]
        self.processors = [*registered, *task.logits_processors]
        self.given_slots = slots

    @cached_property
    def decoder(self) -> EngineDecoder:
        """The decoder as its engine executes it. Chosen when it is first asked for, while a GPU is encoding."""
        task = self.task
        decoder = selection.decoder_for(
            task.model,
            max_length=self.limits.max_length,
            window=task.window,
            half=self.half,
            int8=task.config.quantization == "int8",
            constant_weights=task.constant_weights,
        )
        return decoder if task.shortlist is None else ShortlistDecoder(decoder)

    @cached_property
    def static(self) -> bool:
        return self.decoder.static

    @cached_property
    def recorded(self) -> bool:
        return (
            self.static
            and not capturing_here()
            and self.task.trace is None
            and not self.limits.constrained
            and not self.limits.stops
            and all(each.recordable for each in self.processors)
        )

    @cached_property
    def options(self) -> frozenset[str]:
        """The options that the choice of tokens depends on."""
        found = set(options_in_use(self.task.config)) - {"logits_processors"}
        if any(each.loop_masks is None for each in self.processors):
            found.add("logits_processors")
        if self.limits.constrained:
            found.add("required")
        if self.limits.banned[0]:
            found.add("banned")
        if self.limits.stops:
            found.add("stop")
        if self.task.trace is not None:
            found.add("trace")
        return frozenset(found)

    @cached_property
    def fused(self) -> bool:
        """Whether the engine carries out all of them by itself, in steps without Python between them."""
        return self.decoder.fuses(self.options, self.beams)

    @cached_property
    def slots(self) -> int:
        return self.decoder.batch_size(self.given_slots, up=not self.limits.queued)

    @cached_property
    def capacity(self) -> int:
        # Where requests are admitted later, or begin after prompts of different lengths, steps exceed any output's
        # length; the older half of the cache is dropped.
        limits = self.limits
        later = limits.queued or (
            limits.ragged and limits.max_prefix >= LEAST_PROMPT and not self.static
        )
        return 2 * limits.max_length if later else limits.max_length

    @property
    def steps(self) -> int:
        """Steps that the decoder's state has room for; static buffers have few different sizes."""
        return _next_power(self.capacity) if self.static else self.capacity

    @property
    def tokens(self) -> int:
        """Tokens of an output, and one more, that buffers have room for; on a CPU at first."""
        longest = self.limits.max_length
        if self.static:
            return _next_power(longest) + 1
        # A GPU would have to be asked how many tokens there are: only a CPU's buffers grow.
        room = min(longest, FIRST_TOKENS) if self.device.type == "cpu" else longest
        return room + 1

    @property
    def prefix(self) -> int:
        """Tokens of a prefix."""
        longest = max(1, self.limits.max_prefix)
        return _next_power(longest) if self.static else longest

    def source_room(self, memory: Memory | None) -> int:
        """Positions of a source that static buffers have room for, beginning with these."""
        if not self.static or memory is None:
            return 0
        longest = max(memory.states.shape[1], self.limits.source)
        return SOURCE_MULTIPLE * -(-longest // SOURCE_MULTIPLE)

    def pool_key(self, source: int) -> Hashable:
        """The key under which another search may use these buffers; None where they are specific to this one.

        source   positions for which they have room
        """
        if not self.recorded or self.processors or self.limits.banned[0]:
            return None
        task = self.task
        config = task.config
        if config.sample:
            config = replace(config, seed=0)  # it is written at admission
        own = (self.limits.min_length, self.limits.max_prefix > 0)
        sizes = source, self.steps, self.tokens, self.prefix
        return sizes, own, config, task.special_tokens, task.ends, task.scored, task.rerank is None

    def start(
        self,
        memory: Memory | None,
        batch: int,
        capacity: int,
        requests: Sequence[GenerationRequest] = (),
    ) -> DecoderState:
        """The decoder's state before the first token; with a shortlist, of these requests."""
        with autocast(self.half):
            state = self.decoder.start(memory, batch=batch, capacity=capacity, beams=self.beams)
        if self.task.shortlist is None:
            return state
        special = self.task.special_tokens
        return ShortlistState.of(state, self.task.shortlist.allowed(requests, special))

    def build_strategy(self) -> DecodingStrategy:
        """A strategy whose slots are all empty."""
        task = self.task
        special = self.task.special_tokens
        new = partial(torch.full, device=self.device)
        generated = GeneratedTokens(
            tokens=new((self.slots, self.beams, self.tokens), special.pad),
            length=new((self.slots,), 1),
            min_length=new((self.slots,), 0),
            prompt=new((self.slots,), 0),
            prefix=new((self.slots, self.prefix), -1),
            first=new((self.slots,), special.pad),
        )
        limit = new((self.slots,), self.limits.max_length)
        required = RequiredPhrases(special, task.ends) if self.limits.constrained else None
        common = (
            task.config,
            generated,
            limit,
            self._build_processors(),
            special,
            task.ends,
            required,
            bool(self.limits.max_prefix),
            self.limits.max_length,
            SlotStops() if self.limits.stops else None,
        )
        if self.beams > 1 and not task.config.sample:
            return BeamSearch(*common, whole_beam=task.rerank is not None, trace=task.trace)
        return GreedySearch(*common, scored=task.scored)

    def _build_processors(self) -> list[LogitsProcessor]:
        """The processors that the config and the requests ask for, in the order in which they are applied."""
        config = self.task.config
        special = self.task.special_tokens
        processors: list[LogitsProcessor] = [logits_processors.SuppressTokens(special.suppressed)]
        limited = self.task.ends and self.limits.min_length
        min_length = logits_processors.MinLength(special.ends) if limited else None
        if min_length is not None:
            processors.append(min_length)
        if config.no_repeat_ngram_size:
            processors.append(logits_processors.NoRepeatNgram(config.no_repeat_ngram_size))
        if config.repetition_penalty != 1.0:
            processors.append(logits_processors.RepetitionPenalty(config.repetition_penalty))
        decay = config.exponential_decay_length_penalty
        if decay is not None and self.task.ends:
            start, factor = decay
            processors.append(
                logits_processors.ExponentialDecayLengthPenalty(
                    int(start), factor, special.ends, self.limits.max_length, self.device
                )
            )
        processors += self.processors
        phrases, longest = self.limits.banned
        if phrases:
            processors.append(
                logits_processors.BannedPhrases(self.slots, phrases, longest, self.device)
            )
        if min_length is not None and len(processors) > 2:
            processors.append(logits_processors.AllowEnd(min_length))
        if self.limits.max_prefix:
            saved = logits_processors.SavePrefix()
            processors = [saved, *processors, logits_processors.ForcePrefix(saved)]
        return processors


def _next_power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


@lru_cache(maxsize=1)
def _warn_float32() -> None:
    """Once."""
    log.warning("precision = 'bfloat16' is for GPUs: decoding in float32")
