"""Progress on the terminal: a bar for every run under way, a line for every run that ended."""

from __future__ import annotations

from collections.abc import Collection

from rich import progress as bars
from rich.console import Console

from aliceopt.lab.spec import Plan, Run
from aliceopt.lab.training.train import Progress
from aliceopt.lab.words import counted


class Live(bars.Progress):
    """Shows what is left of a plan being carried out.

    Where the output is no terminal, only lines are printed.
    """

    def __init__(self, plan: Plan, console: Console, todo: Collection[Run]):
        super().__init__(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=24),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[metric]}", style="cyan", markup=False),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._metric = plan.metric
        self._labels = {key: method.label for key, method in plan.methods.items()}
        self._expected = {(run.method, run.seed): run.gradients for run in plan.runs}
        self._count = len(plan.runs)
        self._ended = self._count - len(todo)
        left = sum(self._expected[run.method, run.seed] for run in todo)
        self._all = self.add_task("all runs, in gradients", total=left, metric="")
        self._under_way: dict[tuple[str, int], bars.TaskID] = {}
        self._done: dict[tuple[str, int], float] = {}

    def __call__(self, progress: Progress) -> None:
        """Move a bar; print a line when a run has ended."""
        key, running = (progress.method, progress.seed), progress.status == "running"
        share = progress.step / progress.steps if running else 1.0
        self._done[key] = share * self._expected[key]
        self.update(self._all, completed=sum(self._done.values()))
        name = f"{self._labels[progress.method]}, seed {progress.seed}"
        metric = "" if progress.metric is None else f"{self._metric} {progress.metric:.4g}"
        if running:
            if key not in self._under_way:
                self._under_way[key] = self.add_task(name, total=progress.steps, metric="")
            self.update(self._under_way[key], completed=progress.step, metric=metric)
            return
        if key in self._under_way:
            self.remove_task(self._under_way.pop(key))
        self._ended += progress.status != "interrupted"
        said = f"{progress.status}: {progress.reason}"
        if progress.status == "finished":
            said = f"{metric}, {counted(progress.gradients, 'gradient')}"
        place = f"{self._ended:>{len(str(self._count))}} of {self._count}"
        self.console.print(f"{place}  {name}: {said}", highlight=False, markup=False)
