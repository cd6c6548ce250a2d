"""Progress on the terminal: a bar for every run under way, a line for every run that ended."""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from aliceopt.lab import train
from aliceopt.lab.spec import Plan, Run
from aliceopt.lab.words import counted

__all__ = ["Live"]


class _Metric(ProgressColumn):
    """The metric at the last evaluation."""

    def render(self, task: Task) -> Text:
        """Its value, once there is one."""
        return Text(task.fields["shown"], style="cyan")


class Live:
    """Shows what is left of a plan being carried out.

    Where the output is no terminal, only lines are printed.
    """

    def __init__(self, plan: Plan, console: Console, todo: Collection[Run]):
        self._console, self._metric = console, plan.metric
        self._labels = {key: method.label for key, method in plan.methods.items()}
        self._expected = {(run.method, run.seed): run.gradients for run in plan.runs}
        self._count = len(plan.runs)
        self._ended = self._count - len(todo)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Metric(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        left = sum(self._expected[run.method, run.seed] for run in todo)
        self._all = self._bars.add_task("all runs, in gradients", total=left, shown="")
        self._tasks: dict[tuple[str, int], TaskID] = {}
        self._done: dict[tuple[str, int], float] = {}

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, progress: train.Progress) -> None:
        """Move a bar; print a line when a run has ended."""
        key = (progress.method, progress.seed)
        share = progress.step / progress.steps if progress.status == "running" else 1.0
        self._done[key] = share * self._expected[key]
        self._bars.update(self._all, completed=sum(self._done.values()))
        if progress.status == "running":
            self._move(key, progress)
            return
        if key in self._tasks:
            self._bars.remove_task(self._tasks.pop(key))
        self._ended += progress.status != "interrupted"
        self._console.print(self._line(key, progress), highlight=False, markup=False)

    def _move(self, key: tuple[str, int], progress: train.Progress) -> None:
        if key not in self._tasks:
            name = f"{self._labels[key[0]]}, seed {key[1]}"
            self._tasks[key] = self._bars.add_task(name, total=progress.steps, shown="")
        self._bars.update(self._tasks[key], completed=progress.step, shown=self._shown(progress))

    def _shown(self, progress: train.Progress) -> str:
        return "" if progress.metric is None else f"{self._metric} {progress.metric:.4g}"

    def _line(self, key: tuple[str, int], progress: train.Progress) -> str:
        place = f"{self._ended:>{len(str(self._count))}} of {self._count}"
        name = f"{self._labels[key[0]]}, seed {key[1]}"
        if progress.status == "finished":
            cost = counted(progress.gradients, "gradient")
            return f"{place}  {name}: {self._shown(progress)}, {cost}"
        return f"{place}  {name}: {progress.status}: {progress.reason}"
