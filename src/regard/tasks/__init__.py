"""Tasks: what a model is trained for. A task owns all that depends on what goes into a model and comes out of it."""

from regard.tasks import kinds  # noqa: F401  enters the tasks of the package into `TASKS`
