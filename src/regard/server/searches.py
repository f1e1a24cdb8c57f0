"""Searches of the engine: which jobs may share one, and what a job is in it."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from regard.decoding.batch_plan import BatchLimits, PlannedRequest, plan_requests
from regard.decoding.config import DecodeConfig
from regard.decoding.online import OnlineSearch
from regard.decoding.request import Request, SearchTask
from regard.inference.pipelines import OutputOptions, SequencePipeline
from regard.inference.predictor import Predictor
from regard.inference.stream import TextStream
from regard.server.jobs import Generation, Job

# Settings that only decide the limits of a request: jobs share a search in spite of them.
PLANNED_ONLY = ("max_length", "max_length_ratio", "min_length", "min_length_ratio", "max_source_length", "batch_tokens")
DEFAULTS: dict[str, Any] = {name: DecodeConfig.__dataclass_fields__[name].default for name in PLANNED_ONLY}


@dataclass(eq=False)
class RunningJob:
    """A job in a search."""

    job: Job
    request: Request
    planned: PlannedRequest
    truncated: bool
    text: TextStream | None = None
    tokens: int = 0  # generated so far, with the prefix


@dataclass(eq=False)
class SearchGroup:
    """Jobs of equal settings in one search."""

    search: OnlineSearch
    task: SearchTask
    pipeline: SequencePipeline
    running: dict[int, RunningJob] = field(default_factory=dict)  # by the search's number

    @staticmethod
    def of(task: SearchTask, pipeline: SequencePipeline, planned: PlannedRequest, slots: int) -> "SearchGroup":
        """A search for requests like this one; for this one alone where it cannot share its search."""
        slots = 1 if alone(task, planned) else slots
        return SearchGroup(OnlineSearch(task, limits_of(task, planned), slots), task, pipeline)


def plan(predictor: Predictor, job: Job) -> tuple[RunningJob, SearchTask, Hashable]:
    """A job as a request, what it shares with others, and the key of the search that it may join."""
    work, pipeline = job.work, predictor.pipeline
    assert isinstance(work, Generation)
    assert isinstance(pipeline, SequencePipeline)
    config = predictor.decode_config(work.options)
    encoded, long = predictor.encode_inputs("input", [work.input], config, truncate=work.truncate)
    options = OutputOptions(
        [work.prefix] if work.prefix else None, work.banned, [work.required] if work.required else None,
        attention=work.attention, scores=work.scores,
    )  # fmt: skip
    (request,) = pipeline.requests(encoded, options)
    task = pipeline.task(config, options)
    (planned,) = plan_requests(replace(task, numbers=[work.number]), [request])
    shared = replace(task.config, **DEFAULTS)
    own = job if alone(task, planned) else None
    text = None if job.on_text is None else TextStream(pipeline.tokenizer)
    running = RunningJob(job, request, planned, bool(long), text)
    return running, replace(task, config=shared), (shared, limits_of(task, planned), task.scored, own)


def limits_of(task: SearchTask, planned: PlannedRequest) -> BatchLimits:
    """What a request needs, rounded up so that requests with similar needs share a search."""
    bans, longest = planned.request.bans, _rounded(planned.max_length)
    if task.window is not None and planned.max_length <= task.window:
        longest = min(longest, task.window)
    return BatchLimits(
        longest,
        _rounded(len(planned.request.prefix)),
        planned.constraint is not None,
        (_rounded(len(bans)), _rounded(max((len(run) for run, _ in bans), default=0))),
        planned.min_length > 0,
    )


def _rounded(count: int) -> int:
    """The next power of two; 0 for none."""
    return 1 << (count - 1).bit_length() if count else 0


def alone(task: SearchTask, planned: PlannedRequest) -> bool:
    """Whether a request cannot share its search: phrases are required, or the decoder's window slides."""
    slides = task.window is not None and planned.max_length > task.window
    return slides or planned.constraint is not None
