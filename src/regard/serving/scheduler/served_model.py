"""A model that is served: its searches, and what a job is to it."""

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from regard.generation.batch_plan import BatchPlan as DecodingPlan
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.request import SearchTask
from regard.generation.search_memory import SearchMemory, check_budget, limit_searches
from regard.inference.example_inputs import example_inputs
from regard.inference.predictor import Predictor
from regard.serving.scheduler.admission import MOST_SETTINGS, PlannedJob, Planner
from regard.serving.scheduler.input_limits import check_options
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import BatchedWork, Generation, Job
from regard.serving.scheduler.search_limits import (
    ASIDE_SHARE,
    DEFAULT_CAPS,
    SEARCH_MEBIBYTES,
    OptionCaps,
    small_search_bytes,
)
from regard.serving.scheduler.searches import RunningJob, SearchGroup, limits_of, outputs_of
from regard.tasks.generate import SequencePipeline
from regard.tasks.pipeline import Output


@dataclass(eq=False)
class ServedModel:
    """A model, and the searches that run with it. A model that was replaced is kept until its jobs have ended."""

    name: str
    version: str
    predictor: Predictor
    caps: OptionCaps = DEFAULT_CAPS
    search_bytes: int = (
        SEARCH_MEBIBYTES << 20
    )  # that the scheduler's searches may take, of all its models together
    groups: dict[Hashable, SearchGroup] = field(default_factory=dict)
    jobs: int = 0  # that were submitted while it was served, and have not ended

    def __post_init__(self) -> None:
        generator = self.predictor.model.generator
        self._memories: dict[Hashable, SearchMemory] = {}  # of one slot, by settings and limits
        if generator is not None:
            limit_searches(generator, self.search_bytes // ASIDE_SHARE)

    @property
    def own_search_bytes(self) -> int:
        """Bytes for the searches that share slots: the rest is for what is computed aside."""
        return self.search_bytes - self.search_bytes // ASIDE_SHARE

    def drop_empty(self) -> None:
        """Forget searches without jobs."""
        self.groups = {
            key: group for key, group in self.groups.items() if group.jobs or group.computed
        }

    def memory_of(self, planned: PlannedJob) -> SearchMemory:
        """What a search for one job takes at most; refused where that is more than there may be."""
        running = planned.running
        limits = limits_of(planned.task, running.request)._replace(queued=True)
        source = 1 << running.request.size.bit_length()
        attention = bool(running.work.attention)
        key = planned.key, limits, source, attention
        allowed = self.own_search_bytes
        known = self._memories.get(key)
        if known is not None and known.of(1) <= allowed:
            return known
        if len(self._memories) >= MOST_SETTINGS:
            self._memories.clear()
        asked = running.request.max_length - len(running.request.prefix)
        config = replace(planned.task.config, max_length=asked)
        task = replace(planned.task, config=config, attention=attention)
        decoder = DecodingPlan(task, limits, 1).decoder
        found = self._memories[key] = check_budget(task, decoder, limits, source, allowed)
        return found

    @cached_property
    def info(self) -> ModelInfo:
        fields = self.predictor.recipe.data.source_fields
        task = self.predictor.task
        labels = tuple(self.predictor.target.tokens()) if task.has_probabilities else ()
        generates = task.searches
        kinds = tuple(each.kind for each in fields)
        settings = tuple(json.dumps(asdict(each), sort_keys=True) for each in fields)
        # What is learned of a text is a vocabulary, whose size says nothing of an input.
        sizes = tuple(
            None if vocabulary is None else vocabulary.size for vocabulary in self.predictor.sources
        )
        pairs = zip(fields, self.predictor.sources, strict=True)
        ranges = tuple(each.usual_ranges(vocabulary) for each, vocabulary in pairs)
        return ModelInfo(
            self.name,
            self.version,
            kinds,
            labels,
            generates,
            settings,
            sizes,
            ranges,
            example_inputs(self.predictor),
            task.gives,
        )

    @cached_property
    def pipeline(self) -> SequencePipeline:
        assert isinstance(self.predictor.pipeline, SequencePipeline)
        return self.predictor.pipeline

    @cached_property
    def on_cpu(self) -> bool:
        return all(
            parameter.device.type == "cpu" for parameter in self.predictor.model.parameters()
        )

    @cached_property
    def planner(self) -> Planner:
        return Planner(self.predictor, self.pipeline)

    def plans_aside(self, job: Job) -> bool:
        """Whether a job is planned beside the scheduler's thread, which would otherwise be held up."""
        work = job.work
        return self.on_cpu and isinstance(work, Generation) and work.is_long

    def plan_outputs(
        self, group: SearchGroup, running: RunningJob, hypotheses: Sequence[Hypothesis]
    ) -> "BatchPlan | None":
        """How the outputs of a job whose search has ended are computed; None: at once, as they take no time."""
        job = running.job
        if not (self.on_cpu and running.work.attention):
            return None
        work = OutputsOfSearch(job.work.input, group.task, group.pipeline, running, hypotheses)
        return BatchPlan(self, (OutputsOfSearch, job.client), work, job.client)

    def plan(self, jobs: Sequence[Job]) -> "list[JobPlan | Exception]":
        """How each job is computed, or why it is refused: its input or its options are wrong."""
        found: dict[Job, JobPlan | Exception] = {}
        searched: list[Job] = []
        for job in jobs:
            try:
                job.work.check(self.info.reads)
                check_options(self.predictor, job.work.decode_options)
                self.caps.check(job.work.decode_options, self.predictor.recipe.decode)
                work = job.work.as_batched(self.predictor)
            except Exception as error:  # whatever it is, it must not end the scheduler
                found[job] = error
            else:
                if work is None:
                    searched.append(job)
                else:
                    # Where they are computed one by one, those of a client wait for its own only.
                    client = job.client if self.on_cpu else ""
                    key = type(work), work.group, work.locks, client
                    found[job] = BatchPlan(self, key, work, job.client)
        for job, planned in zip(
            searched, self.planner.plan(searched) if searched else (), strict=True
        ):
            found[job] = planned if isinstance(planned, Exception) else self._searched(planned)
        return [found[job] for job in jobs]

    def _searched(self, planned: PlannedJob) -> "JobPlan | Exception":
        """How a job is searched, or why it is refused."""
        try:
            planned.running.memory = self.memory_of(planned)
        except Exception as error:  # whatever it is, it must not end the scheduler
            return error
        is_small = planned.running.memory.of(1) <= small_search_bytes(self.search_bytes)
        # Small jobs share no search with large ones, whose slots take more memory.
        key = planned.key, is_small
        return SearchPlan(self, key, planned.running, planned.task, planned.alone, is_small)


@dataclass(frozen=True)
class Planning(BatchedWork):
    """Tokenizes and plans a job that would keep others waiting: its result is the job's plan, or why it is refused."""

    most: ClassVar[int] = 1
    crosses_processes: ClassVar[bool] = False  # made in the scheduler
    counts_tokens: ClassVar[bool] = False
    job: Job
    model: ServedModel

    @property
    def few_threads(self) -> bool:
        return True

    @property
    def texts(self) -> Sequence[object]:
        return self.job.work.texts

    def compute(self, predictor: Predictor, works: Sequence["Planning"]) -> "Sequence[JobPlan]":
        (work,) = works
        (plan,) = work.model.plan([work.job])
        if isinstance(plan, Exception):
            raise plan
        return [plan]


@dataclass(frozen=True)
class OutputsOfSearch(BatchedWork):
    """The outputs of a job whose search has ended, where their attention takes another pass: one job at a time."""

    most: ClassVar[int] = 1
    crosses_processes: ClassVar[bool] = False  # made in the scheduler
    counts_tokens: ClassVar[bool] = False  # its usage is filled in already
    task: SearchTask
    pipeline: SequencePipeline
    running: RunningJob
    hypotheses: Sequence[Hypothesis]

    @property
    def few_threads(self) -> bool:
        return True

    @property
    def locks(self) -> Hashable:
        """So that no other's weights are in memory meanwhile."""
        return OutputsOfSearch

    def compute(
        self, predictor: Predictor, works: Sequence["OutputsOfSearch"]
    ) -> Sequence[list[Output]]:
        return [
            outputs_of(work.task, work.pipeline, work.running, work.hypotheses) for work in works
        ]


def plan_jobs(jobs: Iterable[Job]) -> "Iterator[tuple[Job, JobPlan | Exception]]":
    """Each job with its plan, or why it is refused: the jobs of a model are planned together."""
    by_model: dict[ServedModel, list[Job]] = {}
    for job in jobs:
        model: ServedModel = job.served
        if model.plans_aside(job):
            planning = Planning(job.work.input, job, model)
            yield job, BatchPlan(model, (Planning, job.client), planning, job.client)
        else:
            by_model.setdefault(model, []).append(job)
    for model, own in by_model.items():
        yield from zip(own, model.plan(own), strict=True)


@dataclass(frozen=True, eq=False)
class JobPlan:
    """A job as its model computes it. Jobs with the same key are computed together."""

    model: ServedModel
    key: Hashable

    @property
    def lane(self) -> Hashable:
        """In which it waits for the same room as others."""
        return self.model, self.key


@dataclass(frozen=True, eq=False)
class BatchPlan(JobPlan):
    """In one batch, without the searches of the scheduler.

    client   whose it is
    """

    work: BatchedWork
    client: str

    @property
    def runs_aside(self) -> bool:
        """Whether another thread computes it: not on a GPU, whose steps cannot be recorded meanwhile."""
        return self.model.on_cpu


@dataclass(frozen=True, eq=False)
class SearchPlan(JobPlan):
    """In a search, token by token.

    alone     whether it has a search of its own
    is_small  whether it needs so little memory that it may use what is reserved for such jobs
    """

    running: RunningJob
    task: SearchTask
    alone: bool
    is_small: bool = False

    @property
    def rows(self) -> int:
        """Its hypotheses."""
        config = self.task.config
        return config.num_hypotheses if config.sample else config.beam_size

    def group(self, slots: int, threads: int) -> SearchGroup | None:
        """The search that it may enter now; None: there is no room, or a round is being computed.

        Of several, the largest that is small, so that few are; the smallest where none is small. Another one is begun
        where none is small, and fewer than `threads` are there. Of searches for one job each there are `slots`.
        """
        groups = self.model.groups
        if self.alone:
            if sum(isinstance(key, tuple) and key[0] == self.key for key in groups) >= slots:
                return None
            new = groups[self.key, self.running.job] = self._new_group(1, 1)
            return new
        own = [groups[key] for number in range(threads) if (key := (self.key, number)) in groups]
        small = [group for group in own if group.small]
        free = [group for group in small or own if group.has_room]
        if not small and len(own) < (threads if all(group.threaded for group in own) else 1):
            new = self._new_group(slots, threads)
            number = next(number for number in range(threads) if (self.key, number) not in groups)
            groups[self.key, number] = new
            return new
        return (max if small else min)(free, key=lambda group: group.rows, default=None)

    def _new_group(self, slots: int, threads: int) -> SearchGroup:
        return SearchGroup.of(self.task, self.model.pipeline, self.running.request, slots, threads)
