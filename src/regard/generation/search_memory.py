"""How much memory a search needs at most, known before anything is allocated, and how much it may have.

An estimate is made for the longest outputs that the options allow. It counts what is kept for each token of each
hypothesis (tokens, log-probabilities, keys and values), what a step needs for a moment, and the outputs in Python.
"""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.core.errors import InvalidArgument
from regard.core.memory import free_memory
from regard.generation.batch_plan import BatchLimits
from regard.generation.choose.options import options_in_use
from regard.generation.config import DecodeConfig
from regard.generation.engines.base import EngineDecoder
from regard.generation.engines.cpu.decoder import FIRST_STEPS
from regard.generation.request import SearchTask
from regard.model.memory import Memory

MEBIBYTE = 1 << 20
FREE_SHARE = 0.8  # of the memory that is free, which the searches of a program may take
OUTPUT_BYTES = 100  # of a token of an output in Python: its id, its log-probability, its text
ALTERNATIVE_BYTES = 200  # the same of each of the most likely tokens at a position
SLACK = 1.25  # for what is not counted: pages that are partly used, small tensors
SEARCH_BYTES = MEBIBYTE  # of a search without slots
ENCODER_WIDTHS = 24  # numbers that an encoder computes with at once, for each of its states
DECODER_WIDTHS = 24  # the same of a decoder that reads whole outputs
ATTENTION_COPIES = 2  # of the scores of a layer, while its weights are computed
_limits: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()


class SearchMemory(NamedTuple):
    """Bytes that a search needs at most: for the whole of it, and for each of its slots."""

    shared: int
    slot: int

    def largest(self, other: "SearchMemory") -> "SearchMemory":
        """What is enough for slots of both."""
        return SearchMemory(max(self.shared, other.shared), max(self.slot, other.slot))

    def of(self, slots: int) -> int:
        """The bytes of a search of so many slots."""
        return self.shared + slots * self.slot


NO_MEMORY = SearchMemory(0, 0)


class StateSize(NamedTuple):
    """Bytes of a decoder's state for one sequence, in parts that are multiplied."""

    hypothesis: int  # for each
    step: int  # for each step of each hypothesis
    pair: int  # for each step and each pair of hypotheses
    source: int  # for each state of the memory

    def bytes(self, beams: int, steps: int, source: int) -> int:
        steps_of_all = steps * beams
        # A compiled loop copies what has one size for a hypothesis; so does a batch that shrinks or grows.
        kept = 3 * self.hypothesis * beams + self.source * source
        return kept + steps_of_all * (self.step + self.pair * beams)


def limit_searches(model: nn.Module, allowed: int) -> None:
    """From now on, a search of this model may take so many bytes, instead of a share of what is free."""
    _limits[model] = allowed


def has_limit(task: SearchTask) -> bool:
    """Whether `limit_searches` was called for the model."""
    return task.model in _limits


def budget(task: SearchTask) -> int:
    """Bytes that a search may take."""
    limit = _limits.get(task.model)
    if limit is not None:
        return limit
    return int(FREE_SHARE * free_bytes(task.device))


def free_bytes(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type != "cuda":
        return free_memory()
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + kept


def search_memory(
    task: SearchTask, decoder: EngineDecoder, limits: BatchLimits, source: int
) -> SearchMemory:
    """The memory that a search needs.

    decoder   as an engine executes it
    limits    of its requests
    source    states of the longest source
    """
    config = task.config
    beams = beams_of(config)
    longest = limits.max_length
    steps = longest
    if task.window is not None:
        steps = min(steps, task.window)
    window = getattr(task.model.decoder, "window", None)
    if window is not None:  # no more than two windows are kept
        steps = min(steps, 2 * window + 2)
    room = _room(decoder, steps, queued=limits.queued)
    state = state_size(task, decoder).bytes(beams, room, source)
    encoder = task.model.encoder
    encoding = 0
    if encoder is not None:
        encoding = 4 * ENCODER_WIDTHS * encoder.dim * source
    attention = _attention_bytes(task, beams, longest, source)
    slot = (
        state
        + encoding
        + _token_bytes(task, decoder, beams, longest)
        + _logit_bytes(task, decoder, beams)
        + 4 * beams * (2 * steps + source)  # scores of attention
        + 8 * limits.max_prefix * 2
        + _banned_bytes(limits, beams)
        + limits.automaton
        + (OUTPUT_BYTES + ALTERNATIVE_BYTES * config.top_logprobs) * config.num_hypotheses * longest
        + attention.slot
    )
    shared = attention.shared
    if decoder.compiled:
        # Encodings of positions, which all sequences share, and what they are computed from.
        shared += 16 * task.model.decoder.embed_tokens.dim * steps
    return SearchMemory(SEARCH_BYTES + shared, int(SLACK * slot))


def _banned_bytes(limits: BatchLimits, beams: int) -> int:
    """Of the banned phrases of a slot, and of their comparison with the last tokens of each hypothesis."""
    phrases, longest = limits.banned
    kept = 40 * phrases * (longest + 2)
    compared = beams * phrases * (3 * longest + 12)
    return kept + compared


def _attention_bytes(task: SearchTask, beams: int, longest: int, source: int) -> SearchMemory:
    """Of the cross-attention of outputs: what each slot keeps, and what its computation takes for one of them."""
    config = task.config
    if not task.attention and task.rerank is None:
        return NO_MEMORY
    heads = [module.heads for module in task.model.decoder.cross_attentions]
    if not heads:
        return NO_MEMORY
    rows = longest + 1
    # The weights of a layer, and twice of all: as they are captured, and as one tensor.
    outputs = config.num_hypotheses
    largest = outputs
    if task.rerank is not None:
        largest = max(outputs, beams)
    weights = 4 * len(heads) * max(heads) * rows * source
    layer = ATTENTION_COPIES * 4 * max(heads) * rows * source
    states = 4 * DECODER_WIDTHS * task.model.decoder.embed_tokens.dim * rows
    kept = outputs * weights if task.attention else 0
    return SearchMemory(largest * (2 * weights + layer + states), kept)


def _room(decoder: EngineDecoder, steps: int, *, queued: bool) -> int:
    """Steps that the caches of a decoder hold at the moment when they hold most.

    queued   whether requests are admitted after the first step, so that caches also hold older steps
    """
    if not decoder.compiled:  # the older half of a full cache is dropped; sizes are about doubled
        sizes = 4 if queued else 2
        return sizes * steps
    last = steps
    if queued:
        last += steps // 4
    before = 0
    room = FIRST_STEPS
    while room < last:
        before = room
        room *= 2
    return max(2 * before, last)  # while a cache grows, there are two copies of what was written


def beams_of(config: DecodeConfig) -> int:
    """The hypotheses of a slot."""
    return config.num_hypotheses if config.sample else config.beam_size


def _in_loop(task: SearchTask, decoder: EngineDecoder, beams: int) -> bool:
    """Whether a compiled loop chooses the tokens, as far as options tell."""
    options = options_in_use(task.config)
    if task.logits_processors:
        options |= {"logits_processors"}
    if task.trace is not None:
        options |= {"trace"}
    return decoder.compiled and decoder.fuses(options, beams)


def _token_bytes(task: SearchTask, decoder: EngineDecoder, beams: int, longest: int) -> int:
    """Of the generated tokens, with what a step makes of them."""
    config = task.config
    beam_search = beams > 1 and not config.sample
    if beam_search:
        kept = 24  # tokens and log-probabilities, of open hypotheses and of those that have ended
        ends = 1 + len(task.special_tokens.ends)
        step = 20 + 24 * ends
        if _in_loop(task, decoder, beams):
            step = 12
    else:
        kept = 12 if task.scored else 8
        step = 4
    if config.repetition_penalty != 1.0:
        step += 24
    # A token's id and its log-probability; a step of a beam copies those of its candidates too.
    alternatives = 8 * config.top_logprobs
    kept += 2 * alternatives if beam_search else alternatives
    step += (5 + len(task.special_tokens.ends)) * alternatives if beam_search else 0
    # Buffers double as outputs grow. The allocator may keep the pages of the last ones, half as long.
    kept += kept // 2
    found = (kept + step) * beams * (longest + 1)
    size = config.no_repeat_ngram_size
    if size and not _in_loop(task, decoder, beams):
        found += beams * size * max(0, longest + 1 - size)
    return found


def _logit_bytes(task: SearchTask, decoder: EngineDecoder, beams: int) -> int:
    """Of the logits of a step, and of what a choice makes of them."""
    config = task.config
    vocabulary = len(task.model.decoder.project.weight)
    if _in_loop(task, decoder, beams):
        candidates = 24 * beams * (1 + len(task.special_tokens.ends)) * (beams + 1)
        return 4 * beams * vocabulary + candidates
    if config.sample:
        filters = config.top_p is not None or config.typical_p is not None
        size = 88 if filters else 48
        return beams * vocabulary * size
    return beams * (20 * vocabulary + 4096)


_sizes: "WeakKeyDictionary[nn.Module, dict[type[EngineDecoder], StateSize]]" = WeakKeyDictionary()


def state_size(task: SearchTask, decoder: EngineDecoder) -> StateSize:
    """The size of a decoder's state, measured on small ones."""
    known = _sizes.setdefault(task.model.decoder, {})
    if type(decoder) not in known:
        known[type(decoder)] = _measured(task, decoder)
    return known[type(decoder)]


@torch.inference_mode()
def _measured(task: SearchTask, decoder: EngineDecoder) -> StateSize:
    def size(steps: int, beams: int, source: int = 1) -> int:
        memory = None
        if task.model.encoder is not None:
            memory = _empty_memory(task.model.encoder, source, task)
        return tensor_bytes(decoder.start(memory, batch=1, capacity=steps, beams=beams))

    one_step = size(2, 1) - size(1, 1)
    two_beams = size(2, 2) - size(1, 2)  # 2 · step + 4 · pair, where that of one is step + pair
    pair = max(0, (two_beams - 2 * one_step) // 2)
    hypothesis = max(0, size(1, 2) - size(1, 1))
    source = 0
    if task.model.encoder is not None:
        source = size(1, 1, 2) - size(1, 1)
    return StateSize(hypothesis, one_step - pair, pair, source)


def _empty_memory(encoder: Any, source: int, task: SearchTask) -> Memory:
    """The memory of a source of so many states."""
    parameter = next(task.model.parameters())

    def zeros(dim: int) -> Memory:
        states = torch.zeros(1, source, dim, device=parameter.device, dtype=parameter.dtype)
        mask = torch.ones(1, source, device=parameter.device, dtype=torch.bool)
        return Memory(states, mask, states[:, 0])

    if hasattr(encoder, "empty_memory"):
        empty: Memory = encoder.empty_memory(zeros)
        return empty
    return zeros(encoder.dim)


def tensor_bytes(value: object) -> int:
    """Of all tensors in a state: in its attributes, and in lists and objects that these hold."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, nn.Module | torch.Size | str | int | float):
        return 0
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(each) for each in value)
    return sum(tensor_bytes(each) for each in getattr(value, "__dict__", {}).values())


def check_budget(
    task: SearchTask, decoder: EngineDecoder, limits: BatchLimits, source: int, allowed: int
) -> SearchMemory:
    """The memory of a search; refused where one slot does not fit."""
    needed = search_memory(task, decoder, limits, source)
    if needed.of(1) <= allowed:
        return needed
    beams = beams_of(task.config)
    name = "num_hypotheses" if task.config.sample else "beam_size"
    given = f"max_length = {task.config.max_length:,} with {name} = {beams:,}"
    got = f"{given}, which may need {_mebibytes(needed.of(1))} for one input"
    within = f"a search within {_mebibytes(allowed)}"
    if limits.banned[0]:
        without = limits._replace(banned=(0, 0))
        if search_memory(task, decoder, without, source).of(1) <= allowed:
            wanted = f"{within}, with fewer or shorter banned phrases"
            raise InvalidArgument("banned", wanted=wanted, got=got, remedy="Ban fewer phrases.")
    # A power of two, to which a server rounds.
    fitting = _longest(task, decoder, limits, source, allowed) - limits.max_prefix
    if fitting > 0:
        wanted = f"{within}: with {name} = {beams:,}, at most max_length = {fitting:,}"
        remedy = f"Lower max_length or {name}."
        raise InvalidArgument("max_length", wanted=wanted, got=got, remedy=remedy)
    if beams > 1:
        raise InvalidArgument(name, wanted=within, got=got, remedy=f"Lower {name}.")
    remedy = "Use a shorter input, or allow more memory."
    raise InvalidArgument("max_length", wanted=within, got=got, remedy=remedy)


def _longest(
    task: SearchTask, decoder: EngineDecoder, limits: BatchLimits, source: int, allowed: int
) -> int:
    """The largest number of tokens of an output that fits, a power of two; 0: none does."""
    longest = 1 << (limits.max_length.bit_length() - 1)
    while longest:
        shorter = limits._replace(max_length=longest)
        if search_memory(task, decoder, shorter, source).of(1) <= allowed:
            break
        longest //= 2
    return longest


def _mebibytes(count: int) -> str:
    return f"{count / MEBIBYTE:,.0f} MiB"
