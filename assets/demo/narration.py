"""What the demo prints: a line a step, with its time and whether the ledger held it already."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from executors.pipe import Completed, Failed, Message
from executors.pipe import Progress as Stepped
from ledger.cli.output import plain

T = TypeVar("T")


def safe_lines(text: str) -> str:
    """Text from outside (a model's answer, a child's log) with its line ends and without control characters."""
    return "\n".join(plain(line) for line in text.split("\n"))


class Narration:
    """Prints to one console; long work has a bar with rate and time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._since = 0.0
        self._first = 0

    def title(self, text: str, detail: str = "") -> None:
        self.console.print(
            f"\n[bold cyan]{escape(safe_lines(text))}[/]  [dim]{escape(plain(detail))}[/]", soft_wrap=True
        )

    def note(self, text: str) -> None:
        self.console.print(f"  [yellow]{escape(safe_lines(text))}[/]", soft_wrap=True)

    def result(self, text: str) -> None:
        self.console.print(f"  [bold]{escape(safe_lines(text))}[/]", soft_wrap=True)

    def step(self, name: str, body: Callable[[], T]) -> T:
        """Do something and say how long it took."""
        started = monotonic()
        answer = body()
        self.made(name, "", False, monotonic() - started)
        return answer

    def made(self, name: str, facts: str, reused: bool, seconds: float) -> None:
        mark = "[cyan]reused[/]" if reused else "[green]made[/]  "
        self.console.print(
            f"  {mark} [bold]{escape(name):<22}[/] {seconds:6.1f} s  {escape(plain(facts))}", soft_wrap=True
        )

    def watch(self, message: Message) -> None:
        """Draw the progress of the run that is followed."""
        if isinstance(message, Stepped):
            self._progress(message.step, message.total, message.metrics.get("loss"))
        elif isinstance(message, Completed | Failed):
            self.end_bar()

    def _progress(self, step: int, total: int, loss: float | None) -> None:
        if self._bar is None or self._task is None:
            self._bar = Progress(
                TextColumn("  {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("step", total=total, rate="")
            self._since, self._first = monotonic(), step
        passed = max(monotonic() - self._since, 1e-6)
        rate = f"{(step - self._first) / passed:.1f} steps/s" + (f" loss {loss:.3f}" if loss is not None else "")
        self._bar.update(self._task, completed=step, total=total, rate=rate)

    def end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None
