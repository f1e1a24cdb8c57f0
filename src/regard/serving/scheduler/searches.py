"""Searches of the scheduler: which jobs may share one, and what a job is in it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import nan

from regard.core.errors import InvalidArgument
from regard.generation.batch_plan import BatchLimits
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.engines import selection
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.request_groups import MIN_PART
from regard.generation.search import IDLE_FRACTION, Search
from regard.generation.search_memory import NO_MEMORY, SearchMemory
from regard.generation.text_stream import StopStrings, TextStream
from regard.interpret.output_attention import require_cross_attention
from regard.serving.scheduler.jobs import AttentionPart, Generation, Job, check_attention_size
from regard.tasks.generate import SequencePipeline
from regard.tasks.pipeline import Output

LEAST_LENGTH = 64  # tokens of an output, on a GPU also of a source, that a search has room for: shorter ones share it
MAX_COMPUTED_ATTENTION = 1 << 23  # weights of an output, of which an answer may have some
FULL_ROWS = (
    2 * MIN_PART
)  # hypotheses of a search, from which jobs of equal settings may begin another beside it


@dataclass(eq=False)
class RunningJob:
    """A job in a search."""

    job: Job
    request: GenerationRequest
    truncated: bool
    input_tokens: int
    stops: StopStrings
    text: TextStream | None = None  # where its pieces are asked for, or may end it
    tokens: int = 0  # generated so far, with the prefix
    number: int | None = None  # in its search, when it has entered
    memory: SearchMemory = NO_MEMORY  # of a search with one slot for it

    @property
    def work(self) -> Generation:
        assert isinstance(self.job.work, Generation)
        return self.job.work


@dataclass(eq=False)
class Round:
    """What one round of a search has given.

    numbers    of the jobs that entered, or why they did not
    read       tokens of their prompts that were read at once
    tokens     of the jobs that are watched; `finished` are those that have ended: as of `Search.advance`
    failure    by which the search has ended
    steps      before the first and after the last, and the times of both
    """

    numbers: Sequence[int] | Exception = ()
    read: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    finished: list[tuple[int, list[Hypothesis]]] = field(default_factory=list)
    failure: Exception | None = None
    steps: tuple[int, int] = (0, 0)
    times: tuple[float, float] = (0.0, 0.0)

    def time_of(self, step: int) -> float:
        """At which a step has ended, about: the steps of a round take equally long."""
        (first, last), (began, ended) = self.steps, self.times
        return ended if last <= first else began + (ended - began) * (step - first) / (last - first)


@dataclass(eq=False)
class SearchGroup:
    """Jobs of equal settings in one search, which is computed in rounds.

    threaded    whether rounds may be computed in a thread beside others: a compiled loop, without Python's lock
    entering    jobs that enter in the next round; `admitted` those of the round that is being computed, if one is
    dropped     jobs that have left during that round
    turn        the number of its last round, among those of all searches
    memory      of one slot, of the job that needs most of those that have entered
    """

    search: Search
    task: SearchTask
    pipeline: SequencePipeline
    threaded: bool = False
    running: dict[int, RunningJob] = field(default_factory=dict)  # by the search's number
    watched: set[int] = field(default_factory=set)  # those of which each token counts
    beginning: list[tuple[int, Job]] = field(
        default_factory=list
    )  # the step at which each has its first token
    entering: list[RunningJob] = field(default_factory=list)
    admitted: list[RunningJob] | None = None
    dropped: list[RunningJob] = field(default_factory=list)
    turn: int = 0
    memory: SearchMemory = NO_MEMORY

    def bytes(self, more: RunningJob | None = None) -> int:
        """What it takes at most, with one `more` job."""
        if more is None and not self.jobs:
            return 0
        memory = self.memory if more is None else self.memory.largest(more.memory)
        return memory.of(self.search.batch.rows_for(self.jobs + (more is not None)))

    def enter(self, job: RunningJob) -> None:
        """A job enters in the next round."""
        self.entering.append(job)
        self.memory = self.memory.largest(job.memory)

    @property
    def computed(self) -> bool:
        """Whether a round is being computed: nothing of the search may be used meanwhile."""
        return self.admitted is not None

    @property
    def jobs(self) -> int:
        return len(self.running) + len(self.entering) + len(self.admitted or ()) - len(self.dropped)

    @property
    def rows(self) -> int:
        """Hypotheses of all jobs."""
        return self.jobs * self.search.plan.beams

    @property
    def streams(self) -> bool:
        """Whether each token of some job counts."""
        return bool(self.watched) or any(
            each.text is not None for each in (*self.entering, *(self.admitted or ()))
        )

    @property
    def small(self) -> bool:
        """Whether more jobs enter it before another search is begun beside it."""
        return self.rows < FULL_ROWS

    @property
    def has_room(self) -> bool:
        """Whether another job may enter in the next round.

        Of a full search, several slots are filled together: to encode one input after another takes longer.
        """
        slots = self.search.slots
        least = 1 if self.entering else max(1, slots // IDLE_FRACTION)
        return not self.computed and slots - self.jobs >= least

    def begin_round(self) -> None:
        self.search.interrupt.clear()
        self.admitted, self.entering = self.entering, []

    def compute(self) -> Round:
        """Admit the jobs that enter, and advance: in any thread, after `begin_round`. What a model raises is given."""
        assert self.admitted is not None
        found, watched = Round(), set(self.watched)
        try:
            if self.admitted:
                found.numbers = self.search.admit([each.request for each in self.admitted])
                found.read = {
                    number: self.search.batch.read.get(number, 0) for number in found.numbers
                }
                entered = zip(found.numbers, self.admitted, strict=True)
                watched |= {number for number, each in entered if each.text is not None}
        except Exception as error:  # whatever a model raises must not end the scheduler
            found.numbers = error
        if not len(self.search):
            return found
        first, began = self.search.step, time.monotonic()
        try:
            found.tokens, found.finished = self.search.advance(watched)
        except Exception as error:  # as above
            found.failure = error
        found.steps, found.times = (first, self.search.step), (began, time.monotonic())
        return found

    def end_round(self, found: Round) -> list[RunningJob]:
        """Take in what a round has given, and drop the jobs that have left meanwhile; those that could not enter."""
        entered, self.admitted = self.admitted or [], None
        refused = entered if isinstance(found.numbers, Exception) else []
        if not isinstance(found.numbers, Exception):
            for number, each in zip(found.numbers, entered, strict=True):
                each.number = number
                self.running[number] = each
                each.tokens = found.read.get(number, 0)
                self.beginning.append(
                    (found.steps[0] + 1 + len(each.request.prefix) - each.tokens, each.job)
                )
                if each.text is not None:
                    self.watched.add(number)
        if found.failure is None:
            self._begin_outputs(found)
        dropped, self.dropped = self.dropped, []
        for each in dropped:
            self.drop(each)
        found.finished = [
            (number, hypotheses) for number, hypotheses in found.finished if number in self.running
        ]
        found.tokens = {
            number: token for number, token in found.tokens.items() if number in self.running
        }
        return [each for each in refused if each not in dropped]

    def _begin_outputs(self, found: Round) -> None:
        """Tell jobs when they had their first tokens."""
        for due, job in self.beginning:
            if due <= found.steps[1] and job.usage.first_seconds is None:
                job.began(found.time_of(due))
        self.beginning = [(due, job) for due, job in self.beginning if due > found.steps[1]]

    def drop(self, each: RunningJob) -> None:
        """Take out a job that is not wanted any more; one that is being computed leaves at the end of the round."""
        if each in self.entering:
            self.entering.remove(each)
        elif self.computed:
            self.dropped.append(each)
            self.search.interrupt.set()
        elif each.number is not None and self.running.get(each.number) is each:
            self.leave(each.number)
            self.search.cancel(each.number)

    def streamed(self, number: int, token: int, *, last: bool) -> bool:
        """Give a job its next token, and the text that is certain with it; whether a stop string has ended it."""
        each = self.running[number]
        each.tokens += 1
        prompt = each.tokens <= each.request.given
        if each.text is None or (prompt and not each.work.echo):
            return False
        if each.job.on_token is not None and not prompt:
            each.job.on_token(token)
        piece = "" if self.task.is_end(token) and not prompt else each.text.add(token)
        piece += each.text.rest() if last else ""
        piece = piece if prompt else each.stops.add(piece, last=last)
        if piece and each.job.on_text is not None:
            each.job.on_text(piece)
        return each.stops.found

    def leave(self, number: int) -> RunningJob:
        self.watched.discard(number)
        return self.running.pop(number)

    @staticmethod
    def of(
        task: SearchTask,
        pipeline: SequencePipeline,
        request: GenerationRequest,
        slots: int,
        threads: int = 1,
    ) -> "SearchGroup":
        """A search for requests like this one.

        slots     of all searches of these settings, which `threads` of them share where several run at once
        """
        search = Search(task, limits_of(task, request), slots)
        threaded = search.plan.decoder.compiled
        if threaded:
            search.batch.slots = -(-slots // threads)
        return SearchGroup(search, task, pipeline, threaded)

    def outputs(self, each: RunningJob, hypotheses: Sequence[Hypothesis]) -> list[Output]:
        """As `outputs_of`."""
        return outputs_of(self.task, self.pipeline, each, hypotheses)


def outputs_of(
    task: SearchTask,
    pipeline: SequencePipeline,
    each: RunningJob,
    hypotheses: Sequence[Hypothesis],
) -> list[Output]:
    """The outputs of a job that is finished, with what it asked for beside their texts; its usage is filled in."""
    work = each.work
    usage = each.job.usage
    usage.read = each.input_tokens
    texts = bool(each.request.stops or work.echo or work.token_texts)
    if not work.tokens and not texts and not work.attention:
        usage.generated = sum(len(one.tokens) - each.request.given for one in hypotheses)
        return pipeline.finished(
            task,
            each.request,
            hypotheses,
            attention=False,
            truncated=each.truncated,
            tokens=False,
        )
    outputs = _whole_outputs(task, pipeline, each, hypotheses)
    usage.generated = sum(
        len(one.tokens) - (each.input_tokens if work.echo else 0) for one in outputs
    )
    return outputs


def _whole_outputs(
    task: SearchTask,
    pipeline: SequencePipeline,
    each: RunningJob,
    hypotheses: Sequence[Hypothesis],
) -> list[Output]:
    work = each.work
    request = each.request
    if work.echo:
        hypotheses = [_with_first(one, request.first) for one in hypotheses]
        request = request._replace(given=0)
    part = work.attention
    if part:
        _check_attention(pipeline, request, hypotheses, part)
    outputs = pipeline.finished(
        task,
        request,
        hypotheses,
        attention=bool(part),
        truncated=each.truncated,
        size=each.input_tokens,
        texts=work.token_texts,
        echoed=each.input_tokens if work.echo else 0,
    )
    if isinstance(part, AttentionPart):
        outputs = [
            one if one.attention is None else replace(one, attention=part.of(one.attention))
            for one in outputs
        ]
    return outputs


def _check_attention(
    pipeline: SequencePipeline,
    request: GenerationRequest,
    hypotheses: Sequence[Hypothesis],
    part: AttentionPart | bool,
) -> None:
    """Refuse the weights of outputs before they are computed, where they are more than an answer may have."""
    decoder = require_cross_attention("attention", pipeline.model).decoder
    layers = len(decoder.cross_attentions)
    heads = decoder.cross_attentions[0].heads
    rows = [len(each.tokens) + each.ended for each in hypotheses]
    longest = max(rows, default=0)
    computed = layers * heads * longest * len(rows) * request.size  # with padding
    if computed > MAX_COMPUTED_ATTENTION:
        wanted = f"an output with at most {MAX_COMPUTED_ATTENTION:,} weights in all its layers"
        remedy = "Ask for shorter or fewer outputs."
        raise InvalidArgument("attention", wanted=wanted, got=f"{computed:,}", remedy=remedy)
    chosen = part if isinstance(part, AttentionPart) else AttentionPart()
    check_attention_size(sum(chosen.count(layers, heads, each) for each in rows) * request.size)


def _with_first(hypothesis: Hypothesis, first: int | None) -> Hypothesis:
    """With the first token of a prompt that nothing precedes, whose probability no model gives."""
    if first is None:
        return hypothesis
    log_p = hypothesis.log_probabilities
    likely = hypothesis.alternatives
    return hypothesis._replace(
        tokens=(first, *hypothesis.tokens),
        log_probabilities=None if log_p is None else (nan, *log_p),
        alternatives=None if likely is None else ((), *likely),
    )


def exact_in_batches(task: SearchTask) -> bool:
    """Whether an output has the bits that it has alone, or need not: on a GPU, whose sums depend on the batch.

    Steps of the compiled engine do not depend on the batch. Those of PyTorch are rounded by the number of their rows.
    """
    if task.device.type != "cpu":
        return True
    decoder = selection.decoder_for(
        task.model,
        max_length=task.config.max_length,
        int8=task.config.quantization == "int8",
        constant_weights=task.constant_weights,
    )
    return decoder.compiled


def limits_of(task: SearchTask, request: GenerationRequest) -> BatchLimits:
    """What a request needs, rounded up so that requests with similar needs share a search."""
    bans = request.bans
    return _limits(
        request.max_length,
        len(request.prefix),
        request.constraint is not None,
        (len(bans), max((len(run) for run, _ in bans), default=0)),
        request.min_length > 0,
        request.size if task.device.type == "cuda" else None,
        task.window,
        0 if request.constraint is None else request.constraint[0].bytes,
        request.stops is not None,
    )


@lru_cache(maxsize=4096)
def _limits(
    length: int, prefix: int, constrained: bool, banned: tuple[int, int], least: bool, size: int | None,
    window: int | None, automaton: int, stops: bool,
) -> BatchLimits:  # fmt: skip
    """Of a request of these lengths. On a GPU the source has a size too, whose buffers are recorded with it."""
    longest = max(LEAST_LENGTH, _rounded(length))
    if window is not None and length <= window:
        longest = min(longest, window)
    # A longer source would be recorded anew. Two tokens may stand around a source.
    source = 0 if size is None else max(LEAST_LENGTH, _rounded(size + 2))
    return BatchLimits(
        longest,
        _rounded(prefix),
        constrained,
        (_rounded(banned[0]), _rounded(banned[1])),
        least,
        source,
        automaton=_rounded(automaton),
        stops=stops,
    )


def _rounded(count: int) -> int:
    """The next power of two; 0 for none."""
    return 1 << (count - 1).bit_length() if count else 0


def alone(task: SearchTask, request: GenerationRequest) -> bool:
    """Whether a request cannot share its search: phrases are required, or the decoder's window slides."""
    slides = task.window is not None and request.max_length > task.window
    return slides or request.constraint is not None
