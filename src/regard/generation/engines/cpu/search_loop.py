"""The loop of a search in compiled C++ (search.h): steps and the choice of tokens without Python between them."""

import ctypes
from collections.abc import Callable

import torch

from regard.core.shapes import Int, Tensor
from regard.generation.engines.cpu.candidate_projection import CandidateProjection
from regard.generation.engines.cpu.weight_layout import Count, Pointer, address, call, fields
from regard.generation.engines.loop import Candidates, LoopBounds, SearchLoop

MAX_BEAMS = 64  # whose candidates are sorted by insertion
EARLY_STOPPING = {False: 0, True: 1, "never": 2}


class _SearchArguments(ctypes.Structure):
    _fields_ = [
        *fields(
            Pointer,
            "tokens log_p length limit min_length prompt prefix first done ended last total ended_score",
        ),
        *fields(
            Pointer,
            "ended_log_p ended_tokens ended_length penalty suppressed ends candidates column",
        ),
        *fields(Pointer, "candidate_bias interrupt"),
        *fields(
            Count,
            "batch beams vocab_size token_count positions prefix_positions suppressed_count end_count",
        ),
        *fields(Count, "penalties forced"),
        *fields(
            Count,
            "no_repeat allow_end early_stopping beam_search normalized max_steps stop microseconds taken",
        ),
    ]


def run_loop(
    function: Callable[..., bytes | None],
    decoder: ctypes.Structure,
    step: ctypes.Structure,
    tokens: Int[Tensor, "B K"],
    loop: SearchLoop,
    bounds: LoopBounds,
    projection: CandidateProjection,
    candidates: Candidates | None = None,
) -> int:
    """Search with a function of step.cpp, among the candidates of each sequence if given; the number of steps."""
    vocab_size = projection.vocab_size
    among = list[Tensor | None]([None] * 3)
    if candidates is not None:
        decoder = type(decoder).from_buffer_copy(decoder)
        vocab_size = len(candidates.tokens)
        decoder.project = projection.of(candidates)
        among = [candidates.tokens, candidates.column, candidates.bias]
    batch, beams, positions = loop.tokens.shape
    greedy = loop.greedy
    beam = loop.beam
    suppressed, ends = (
        torch.tensor(ids, dtype=torch.int64) for ids in (loop.suppressed, loop.ends)
    )
    ended = None
    if greedy is not None:
        ended = greedy.ended
    of_beam = list[Tensor | None]([None] * 6)
    penalties = 0
    stopping = 0
    if beam is not None:
        of_beam = [
            beam.total,
            beam.ended_score,
            beam.ended_log_p,
            beam.ended_tokens,
            beam.ended_length,
            beam.penalty,
        ]
        penalties = len(beam.penalty)
        stopping = EARLY_STOPPING[beam.early_stopping]
    interrupt = None
    if bounds.interrupt is not None:
        interrupt = bounds.interrupt.address
    tensors = [
        loop.tokens, loop.log_p, loop.length, loop.limit, loop.min_length, loop.prompt, loop.prefix,
        loop.first, loop.done,
        ended, tokens, *of_beam, suppressed, ends, *among,
    ]  # fmt: skip
    assert all(each is None or each.is_contiguous() for each in tensors)
    arguments = _SearchArguments(
        *map(address, tensors), interrupt, batch, beams, vocab_size,
        projection.vocab_size, positions, loop.prefix.shape[1], len(suppressed), len(ends),
        penalties, loop.forced, loop.no_repeat_ngram_size, loop.allow_end, stopping,
        beam is not None, loop.normalized, bounds.steps, bounds.stop, bounds.microseconds, 0,
    )  # fmt: skip
    call(function, decoder, step, arguments)
    taken: int = arguments.taken
    return taken
