"""Progress of a run as text: a line that is overwritten on a terminal, plain lines elsewhere."""

import time
from datetime import timedelta
from typing import TextIO

from regard.core.sanitize import indented, one_line, printable
from regard.training.telemetry.log_file import Event

TAB = "\t"  # between the sources of an example


class TrainingProgress:
    """An event handler that prints the events of a run, until the stream is closed; None is closed from the start."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream, self.live = stream, stream is not None and stream.isatty()
        self.steps, self.began = 0, 0.0
        self.unfinished = False  # whether the cursor is in a line that is to be overwritten
        self.first: int | None = None  # step of the first training event

    def __call__(self, event: Event) -> None:
        match event["event"]:
            case "start":
                self.steps, self.began = event["steps"], time.perf_counter()
                self._line(f"{event['model']}\non {event['device']}")
            case "prepare" if self.live:
                self._overwrite(f"preparing {event['stage']}: {event['examples']:,} examples")
            case "resumed":
                self._line(f"resumed at step {event['step']:,}")
            case "warning":
                self._line(indented(f"warning: {event['message']}"))
            case "train":
                self._train(event)
            case "validation":
                self._validation(event)

    def _train(self, event: Event) -> None:
        step, now = event["step"], time.perf_counter()
        if self.first is None:
            self.first, self.began = step, now
        done, left = step - self.first, ""
        if done:
            seconds = (now - self.began) / done * max(0, self.steps - step)
            left = f"   {timedelta(seconds=int(seconds))} left"
        unsmoothed = "" if event["nll"] == event["loss"] else f"   nll {event['nll']:.4f}"
        metrics = f"loss {event['loss']:.4f}{unsmoothed}   perplexity {event['perplexity']:.2f}"
        metrics += f"   {event['tokens_per_second']:,.0f} tokens/s"
        self._overwrite(f"step {step:,}/{self.steps:,}   {metrics}{left}")

    def _validation(self, event: Event) -> None:
        others = ("event", "step", "best", "samples")
        metrics = "   ".join(f"{name} {value:.4f}" for name, value in event.items() if name not in others)
        self._line(f"validation at step {event['step']:,}: {metrics}{'   (best)' if event['best'] else ''}")
        for sample in event.get("samples", ()):
            self._line(
                "\n".join(f"    {name:<9} {printable(one_line(text), also=TAB)}" for name, text in sample.items())
            )

    def _overwrite(self, text: str) -> None:
        if self.live:
            self._write(f"\r\x1b[K{text}")
            self.unfinished = True
        else:
            self._write(f"{text}\n")

    def _line(self, text: str) -> None:
        self._write(f"{chr(10) if self.unfinished else ''}{text}\n")
        self.unfinished = False

    def _write(self, text: str) -> None:
        try:
            if self.stream is not None:
                self.stream.write(text)
                self.stream.flush()
        except (OSError, ValueError):  # closed, as by `| head`: training goes on without it
            self.stream = None

    def close(self) -> None:
        if self.unfinished:
            self._line("")
