"""What became of a request: for the headers of its answer, the access log, metrics and tracing."""

from dataclasses import dataclass, field
from typing import Any

from regard.core.errors import RegardError
from regard.serving.scheduler.jobs import Usage


@dataclass
class RequestUsage:
    """The model that answers a request, and what each of its jobs took. Filled in while it is answered."""

    model: str = ""
    usages: list[Usage] = field(default_factory=list)
    submitted: float | None = None  # when its first job was, of `time.monotonic`
    answered: int = 0  # jobs that ended with a result
    error: RegardError | None = None  # why it was refused, or ended without a result

    @property
    def version(self) -> str:
        """Of the model; empty before the jobs are submitted."""
        return self.usages[0].version if self.usages else ""

    @property
    def input_tokens(self) -> int:
        return sum(usage.read for usage in self.usages)

    @property
    def output_tokens(self) -> int:
        return sum(usage.generated for usage in self.usages)

    def log_fields(self) -> dict[str, Any]:
        """For a line of the access log; seconds are those of the slowest input."""
        if not self.version:
            return {}
        fields: dict[str, Any] = {
            "model": self.model,
            "version": self.version,
            "inputs": len(self.usages),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }
        for name in ("queue_seconds", "first_seconds", "generation_seconds"):
            found = [value for usage in self.usages if (value := getattr(usage, name)) is not None]
            if found:
                fields[name] = round(max(found), 4)
        return fields
