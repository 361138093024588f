"""A progress bar on stderr, for work that takes a while."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from postrow.cli.screen import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shown at the first `advance` that is not the end, if stderr is a terminal; gone when it is closed.

    Args:
        total: bytes in all; None where nobody knows.
        what: the word for what is counted.
    """

    def __init__(self, *, total: int | None, what: str) -> None:
        self._total = total
        self._what = what
        self._shown: tuple[Progress, TaskID] | None = None
        self._wanted = console(stderr=True).is_terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown is not None:
            with contextlib.suppress(BrokenPipeError):
                self._shown[0].stop()
            self._shown = None

    def advance(self, count: int, *, size: int) -> None:
        """So many are done, and so many bytes."""
        if not self._wanted or (self._total is not None and size >= self._total and self._shown is None):
            return
        if self._shown is None:
            self._shown = self._start()
        progress, task = self._shown
        progress.update(task, completed=size, count=f"{count:,} {self._what}")

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        columns: list[Any] = [BarColumn(), TextColumn("{task.fields[count]}")]
        if self._total is not None:
            columns += [TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(compact=True)]
        progress = Progress(*columns, console=console(stderr=True), transient=True)
        task = progress.add_task("", total=self._total, count="")
        progress.start()
        return progress, task
