"""Makes jobs requests of a model: what jobs of equal options have in common is made once."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import Any, NamedTuple

from regard.generation.config import DecodeConfig
from regard.generation.request import SearchTask, plan_requests
from regard.generation.text_stream import StopStrings, TextStream
from regard.inference.predictor import Predictor
from regard.serving.scheduler.input_limits import check_output
from regard.serving.scheduler.jobs import Generation, Job
from regard.serving.scheduler.searches import RunningJob, alone, exact_in_batches, limits_of
from regard.tasks.generate import SequencePipeline
from regard.tasks.pipeline import OutputOptions

# Settings that only decide the limits of a request: jobs share a search in spite of them.
PLANNED_ONLY = (
    "max_length",
    "max_length_ratio",
    "min_length",
    "min_length_ratio",
    "max_source_length",
    "batch_tokens",
    "stop",
)
MOST_SETTINGS = 1024  # that are kept
NO_STOPS = StopStrings(())  # of jobs without any: it keeps nothing
DEFAULTS: dict[str, Any] = {
    name: DecodeConfig.__dataclass_fields__[name].default for name in PLANNED_ONLY
}


class Settings(NamedTuple):
    """What jobs of equal options have in common.

    shared   the task of a search that they run in, with all jobs whose settings differ in the limits only
    number   of that task
    batched  whether jobs share searches: where an output has the bits that it has alone
    """

    task: SearchTask
    shared: SearchTask
    number: int
    batched: bool


class PlannedJob(NamedTuple):
    """A job as a request, what it shares with others, and the key of the search that it may join.

    alone   whether it has a search of its own
    """

    running: RunningJob
    task: SearchTask
    key: Hashable
    alone: bool


class Planner:
    """Makes jobs requests of a model. What jobs of equal options have in common is made once."""

    def __init__(self, predictor: Predictor, pipeline: SequencePipeline) -> None:
        self.predictor, self.pipeline = predictor, pipeline
        self._lock = Lock()  # held while settings are found: jobs are planned in several threads
        self._settings: dict[Hashable, Settings] = {}
        self._numbers, self._next = dict[Hashable, int](), count()  # of the tasks that are shared

    def plan(self, jobs: Sequence[Job]) -> list[PlannedJob | Exception]:
        """Each job as a request, or why it is refused. Jobs of equal settings are tokenized and planned together."""
        found: dict[Job, PlannedJob | Exception] = {}
        alike: dict[Hashable, tuple[Settings, list[Job]]] = {}
        for job in jobs:
            work = job.work
            assert isinstance(work, Generation)
            try:
                settings = self.settings(work)
            except Exception as error:  # whatever it is, it must not end the scheduler
                found[job] = error
                continue
            key = settings.number, id(settings.task), work.truncate, bool(work.prefix)
            alike.setdefault(key, (settings, []))[1].append(job)
        for settings, some in alike.values():
            found |= zip(some, self._plan_alike(settings, some), strict=True)
        return [found[job] for job in jobs]

    def _plan_alike(self, settings: Settings, jobs: Sequence[Job]) -> list[PlannedJob | Exception]:
        """Jobs of equal settings; where one is refused, each is planned alone."""
        try:
            return [*self._plan_together(settings, jobs)]
        except Exception as error:  # whatever it is, it must not end the scheduler
            if len(jobs) == 1:
                return [error]
        return [one for job in jobs for one in self._plan_alike(settings, [job])]

    def _plan_together(self, settings: Settings, jobs: Sequence[Job]) -> Iterator[PlannedJob]:
        works: list[Any] = [job.work for job in jobs]
        task, pipeline, inputs = settings.task, self.pipeline, [work.input for work in works]
        for work in works:
            check_output(self.predictor, "prefix", work.prefix, task.config.max_length)
        encoded, long = self.predictor.encode_inputs(
            "input", inputs, task.config, truncate=works[0].truncate
        )
        lists = {
            name: [getattr(work, name) for work in works]
            for name in ("prefix", "required", "banned")
        }
        prefixes, required, banned = (given if any(given) else None for given in lists.values())
        requests = pipeline.requests(
            encoded, OutputOptions(prefixes, required=required, banned_in=banned)
        )
        all_planned = plan_requests(task, requests, [work.number for work in works])
        sizes = self.predictor.inputs.sizes(encoded)
        for index, (job, work, planned) in enumerate(zip(jobs, works, all_planned, strict=True)):
            if work.echo:
                planned = planned._replace(score_prompt=True)
            single_search = alone(task, planned) or not settings.batched
            text = TextStream(pipeline.tokenizer) if job.on_text is not None else None
            if text is not None and work.echo and planned.first is not None:
                text.pending.append(planned.first)
            condition = planned.stops
            stops = NO_STOPS if condition is None else StopStrings(condition.strings)
            running = RunningJob(job, planned, index in long, sizes[index], stops, text)
            yield PlannedJob(
                running, settings.shared, (settings.number, limits_of(task, planned)), single_search
            )

    def settings(self, work: Generation) -> Settings:
        """Refused where an option is wrong."""
        with self._lock:
            return self._settings_of(work)

    def _settings_of(self, work: Generation) -> Settings:
        given = tuple(
            (name, type(value), tuple(value) if isinstance(value, list) else value)
            for name, value in sorted(work.options.items())
        )  # True is not 1
        key = given, work.widen_beam, work.scores
        try:
            if key in self._settings:
                return self._settings[key]
        except TypeError:  # a value that is not hashable, and wrong
            return self._new_settings(work)
        if len(self._settings) >= MOST_SETTINGS:
            self._settings.clear()
            self._numbers = {}
        found = self._settings[key] = self._new_settings(work)
        return found

    def _new_settings(self, work: Generation) -> Settings:
        config = self.predictor.decode_config(
            _widened(self.predictor, work) if work.widen_beam else work.options
        )
        task = self.pipeline.task(config, OutputOptions(scores=work.scores))
        # Each request has stop strings of its own.
        shared = replace(task, config=replace(config, **DEFAULTS), stops=None)
        number = self._numbers.setdefault((shared.config, work.scores), next(self._next))
        return Settings(task, shared, number, exact_in_batches(task))


def _widened(predictor: Predictor, work: Generation) -> dict[str, Any]:
    """The options, with a beam for all outputs unless they are sampled or a beam is given."""
    options, own = dict(work.options), predictor.recipe.decode
    if options.get("sample", own.sample) or "beam_size" in options:
        return options
    return {
        **options,
        "beam_size": max(own.beam_size, options.get("num_hypotheses", own.num_hypotheses)),
    }
