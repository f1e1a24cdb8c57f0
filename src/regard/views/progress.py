"""Progress on stderr: a status line that is renewed on a terminal or in a notebook,
plain lines in files and pipes.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from importlib import import_module
from threading import Event as Flag, Thread
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from regard.core.sanitize import indented, one_line, printable
from regard.training.telemetry.log_file import Event, EventHandler

TAB = "\t"  # between the sources of an example
PERIOD = 0.25  # seconds after which a status line is renewed
BAR = 20  # characters of a bar
Item = TypeVar("Item")


@runtime_checkable
class TextStream(Protocol):
    """What progress is written to, such as sys.stderr."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class Status(NamedTuple):
    """What a status line shows: a text and, where it is known, how much of the work is done,
    from 0 to 1.
    """

    text: str
    done: float | None = None


def is_live(stream: TextStream | None) -> bool:
    """Whether a status line can be shown: on a terminal, or in a notebook."""
    if _in_notebook():
        return True
    try:
        return (
            stream is not None
            and stream.isatty()
            and os.environ.get("TERM") not in ("dumb", "unknown")
        )
    except ValueError:  # it is closed
        return False


def _in_notebook() -> bool:
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and type(get_ipython()).__name__ == "ZMQInteractiveShell"


class StatusLine:
    """A line that a thread renews, below all lines printed meanwhile, until it is closed,
    which waits for the thread.

    `status` is called by the thread. With `keep`, the last status stays when the line is closed.
    """

    def __init__(
        self, stream: TextStream, status: Callable[[], Status], *, keep: bool = False
    ) -> None:
        make_line = _NotebookLine if _in_notebook() else _TerminalLine
        self.line = make_line(stream, status, keep)
        self.closing = Flag()
        _open_lines.append(self)
        self.thread = Thread(target=self._renew, name="regard-status-line", daemon=True)
        self.thread.start()

    def _renew(self) -> None:
        while not self.closing.wait(PERIOD):
            self.line.renew()

    def print(self, text: str) -> None:
        """Print a line above the status line."""
        self.line.print(text)

    def close(self) -> None:
        if self in _open_lines:
            _open_lines.remove(self)
            self.closing.set()
            self.thread.join()
            self.line.close()


_open_lines: list[StatusLine] = []


def close_status_lines() -> None:
    """Close those that an exception left open:
    the generators that would close them live as long as its traceback.
    """
    for line in _open_lines:
        line.close()


class _TerminalLine:
    """A status line drawn by rich. What others write to stderr appears above it."""

    def __init__(self, stream: TextStream, status: Callable[[], Status], keep: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        class KeepingCursor(Console):
            """Does not hide the cursor: a process that is killed could not show it again."""

            def show_cursor(self, show: bool = True) -> bool:
                return False

        self.status = status
        file: Any = _Unbreakable(stream)
        self.console = KeepingCursor(
            file=file, force_jupyter=False, force_terminal=True, highlight=False
        )
        settings: dict[str, Any] = {
            "auto_refresh": False,
            "transient": not keep,
            "redirect_stdout": False,
        }
        self.live = Live(console=self.console, get_renderable=self._drawn, **settings)
        self.live.start(refresh=True)

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        status = self.status()
        text = Text(one_line(status.text))
        if status.done is None:
            return text
        bar = ProgressBar(total=1.0, completed=status.done, width=BAR)
        # In a terminal of 80 columns, for example, the bar gets its own line.
        if text.cell_len + BAR + 1 > self.console.width:
            return Group(text, bar)
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, text)
        return row

    def renew(self) -> None:
        self.live.refresh()

    def print(self, text: str) -> None:
        self.console.out(text)

    def close(self) -> None:
        self.live.stop()


class _NotebookLine:
    """A status line as an output of a notebook's cell."""

    def __init__(self, stream: TextStream, status: Callable[[], Status], keep: bool) -> None:
        display = import_module("IPython.display").display
        self.stream = stream
        self.status = status
        self.keep = keep
        self.output: Any = display(self._drawn(), raw=True, display_id=True)

    def _drawn(self) -> dict[str, str]:
        text, done = self.status()
        if done is not None:
            filled = round(done * BAR)
            text = f"{'━' * filled}{'╌' * (BAR - filled)} {text}"
        return {"text/plain": text}

    def renew(self) -> None:
        self.output.update(self._drawn(), raw=True)

    def print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def close(self) -> None:
        last = self._drawn() if self.keep else {"text/plain": ""}
        self.output.update(last, raw=True)


class _Unbreakable:
    """A text stream whose writes are dropped once it is closed or broken:
    work goes on without it.
    """

    def __init__(self, stream: TextStream) -> None:
        self.stream: TextStream | None = stream
        self.encoding = getattr(stream, "encoding", None)
        self.isatty = stream.isatty

    def write(self, text: str) -> int:
        self._try(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda stream: stream.flush())

    def _try(self, action: Callable[[TextStream], object]) -> None:
        try:
            if self.stream is not None:
                action(self.stream)
        except (OSError, ValueError):  # as by `| head`
            self.stream = None


class TrainingProgress:
    """An event handler that shows the events of a run, until the stream is closed;
    None is closed from the start.
    """

    def __init__(self, stream: TextStream | None) -> None:
        self.stream = stream
        self.live = is_live(stream)
        self.output = None if stream is None else _Unbreakable(stream)
        self.line: StatusLine | None = None
        # Updates of the run, those before this process, and when it began.
        self.steps = 0
        self.first = 0
        self.began = 0.0
        self.status = Status("")

    def __call__(self, event: Event) -> None:
        match event["event"]:
            case "start":
                self.steps = event["steps"]
                self.first = -1
                self._print(f"{event['model']}\non {event['device']}")
            case "prepare" if self.live:
                self._show(Status(f"preparing {event['stage']}: {event['examples']:,} examples"))
            case "resumed":
                self._print(f"resumed at step {event['step']:,}")
            case "word_vectors":
                self._print(event["message"])
            case "warning":
                self._print(indented(f"warning: {event['message']}"))
            case "update" if self.live:
                self._show(self._training(event))
            case "train" if not self.live:
                self._print(self._training(event).text)
            case "validation":
                self._validation(event)

    def _training(self, event: Event) -> Status:
        step = event["step"]
        now = time.perf_counter()
        left = ""
        if self.first < 0:
            self.first = step
            self.began = now
        if step > self.first:
            seconds = (now - self.began) / (step - self.first) * max(0, self.steps - step)
            left = f"   {timedelta(seconds=int(seconds))} left"
        unsmoothed = ""
        if event["nll"] != event["loss"]:
            unsmoothed = f"   nll {event['nll']:.4f}"
        speed = f"{event['tokens_per_second']:,.0f} tokens/s"
        metrics = f"loss {event['loss']:.4f}{unsmoothed}   {speed}{left}"
        # The least needed last: a narrow terminal cuts it off.
        text = f"step {step:,}/{self.steps:,}   {metrics}"
        if "perplexity" in event:
            text += f"   perplexity {event['perplexity']:.2f}"
        return Status(text, min(1.0, step / max(1, self.steps)))

    def _validation(self, event: Event) -> None:
        others = ("event", "step", "best", "samples", "heads")
        metrics = "   ".join(
            f"{name} {value:.4f}" for name, value in event.items() if name not in others
        )
        best = "   (best)" if event["best"] else ""
        self._print(f"validation at step {event['step']:,}: {metrics}{best}")
        for sample in event.get("samples", ()):
            self._print(
                "\n".join(
                    f"    {name:<9} {printable(one_line(text), also=TAB)}"
                    for name, text in sample.items()
                )
            )

    def _show(self, status: Status) -> None:
        self.status = status
        if self.line is None and self.stream is not None:
            self.line = StatusLine(self.stream, lambda: self.status, keep=True)

    def _print(self, text: str) -> None:
        if self.line is not None:
            self.line.print(text)
        elif self.output is not None:
            self.output.write(f"{text}\n")
            self.output.flush()

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


@contextmanager
def live_training_progress(on_event: EventHandler, *, shown: bool) -> Iterator[EventHandler]:
    """An event handler that calls `on_event`, and shows the events on a terminal or in a notebook,
    if so wanted.
    """
    if not shown or not is_live(sys.stderr):
        yield on_event
        return
    with closing(TrainingProgress(sys.stderr)) as progress:

        def handle(event: Event) -> None:
            progress(event)
            on_event(event)

        yield handle


@contextmanager
def status_line(status: Callable[[], Status], *, shown: bool = True) -> Iterator[None]:
    """A status line on stderr during a block, if it is to be shown and can be."""
    if not shown or not is_live(sys.stderr):
        yield
        return
    line = StatusLine(sys.stderr, status)
    try:
        yield
    finally:
        line.close()


def tracked(
    items: Iterable[Item], what: str, *, shown: bool = True, printing: bool = False
) -> Iterator[Item]:
    """The items, counted in a status line while they are taken:
    "what 1,234   56 a second   0:00:22".

    With `printing`, of items whose results are printed one by one, nothing is shown where stdout is
    a terminal too.
    """
    began = time.perf_counter()
    count = 0

    def status() -> Status:
        seconds = time.perf_counter() - began
        return Status(
            f"{what} {count:,}   {count / seconds:,.1f} a second   "
            f"{timedelta(seconds=int(seconds))}"
        )

    with status_line(status, shown=shown and not (printing and sys.stdout.isatty())):
        for item in items:
            yield item
            count += 1
