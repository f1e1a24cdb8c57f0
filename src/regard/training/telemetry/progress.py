"""How training goes, told on stderr: a line that is written over on a terminal, plain lines elsewhere."""

import time
from typing import Any, TextIO


class TrainingProgress:
    """Takes the events of a job, one call each."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.live = stream, stream.isatty()
        self.steps, self.began, self.open = 0, 0.0, False
        self.first: int | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        getattr(self, f"_{event['event']}", self._other)(event)

    def _start(self, event: dict[str, Any]) -> None:
        self.steps, self.began = event["steps"], time.perf_counter()
        self._line(f"{event['model']}\non {event['device']}")

    def _prepare(self, event: dict[str, Any]) -> None:
        if self.live:
            self._over(f"preparing {event['stage']}: {event['examples']:,} examples")

    def _resumed(self, event: dict[str, Any]) -> None:
        self._line(f"resumed at step {event['step']:,}")

    def _warning(self, event: dict[str, Any]) -> None:
        self._line(f"warning: {event['message']}")

    def _train(self, event: dict[str, Any]) -> None:
        step, now = event["step"], time.perf_counter()
        if self.first is None:
            self.first, self.began = step, now
        done = step - self.first
        left = f"   {_clock((now - self.began) / done * (self.steps - step))} left" if done else ""
        figures = f"loss {event['loss']:.4f}   perplexity {event['perplexity']:.2f}"
        figures += f"   {event['tokens_per_second']:,.0f} tokens/s"
        self._over(f"step {step:,}/{self.steps:,}   {figures}{left}")

    def _validation(self, event: dict[str, Any]) -> None:
        known = ("event", "step", "best", "samples")
        figures = "   ".join(f"{name} {value:.4f}" for name, value in event.items() if name not in known)
        self._line(f"validation at step {event['step']:,}: {figures}{'   (best)' if event['best'] else ''}")
        for sample in event.get("samples", ()):
            self._line("\n".join(f"    {name:<9} {text}" for name, text in sample.items()))

    def _other(self, event: dict[str, Any]) -> None:
        """Events that need no line."""

    def _over(self, text: str) -> None:
        if self.live:
            self.stream.write(f"\r\x1b[K{text}")
            self.open = True
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()

    def _line(self, text: str) -> None:
        self.stream.write(f"{chr(10) if self.open else ''}{text}\n")
        self.open = False
        self.stream.flush()

    def close(self) -> None:
        if self.open:
            self._line("")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
