"""Progress bars for long work: what is done, how quickly, and how long it will still take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text


class DoneColumn(ProgressColumn):
    """`120/400 steps` or `1.2 MB/4.0 MB`."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        done, total = int(task.completed), None if task.total is None else int(task.total)
        if self.unit == "bytes":
            return Text(decimal(done) if total is None else f"{decimal(done)}/{decimal(total)}")
        return Text(f"{done:,} {self.unit}" if total is None else f"{done:,}/{total:,} {self.unit}")


class RateColumn(ProgressColumn):
    """`3.4 steps/s` or `410 MB/s`."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{decimal(int(speed))}/s" if self.unit == "bytes" else f"{speed:.3g} {self.unit}/s")


@contextmanager
def bar(console: Console, description: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """A bar that lives as long as the context; yields the function that advances it."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DoneColumn(unit),
        RateColumn(unit),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(description, total=total)
        yield lambda amount: shown.advance(task, amount)
