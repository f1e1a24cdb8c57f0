"""The tasks of the package itself: importing this module enters them into `TASKS`."""

from regard.tasks.base import TASKS, Task
from regard.tasks.classify import Classify
from regard.tasks.forecast import Forecast
from regard.tasks.generate import Generate
from regard.tasks.generate_vectors import GenerateVectors
from regard.tasks.multi_label import MultiLabel
from regard.tasks.predict_masked import PredictMasked
from regard.tasks.predict_vectors import PredictVectors
from regard.tasks.regress import Regress
from regard.tasks.tag import Tag
from regard.tasks.transcribe import Transcribe

KINDS: tuple[Task, ...] = (
    Generate(),
    Classify(),
    PredictMasked(),
    Tag(),
    Regress(),
    MultiLabel(),
    PredictVectors(),
    Forecast(),
    GenerateVectors(),
    Transcribe(),
)
for task in KINDS:
    TASKS.add(task.name, task)

__all__ = [
    "TASKS",
    "Classify",
    "Forecast",
    "Generate",
    "GenerateVectors",
    "MultiLabel",
    "PredictMasked",
    "PredictVectors",
    "Regress",
    "Tag",
    "Transcribe",
]
