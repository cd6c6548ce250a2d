"""``aliceopt results``: the runs that the repository keeps, as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aliceopt.cli.options import KEPT
from aliceopt.cli.refusal import say, told

if TYPE_CHECKING:
    from aliceopt.lab.results.kept_compare import Compared

app = typer.Typer(
    name="results",
    help="Keep the results of experiments as small records, and show them.",
    no_args_is_help=True,
)

OfScale = Annotated[str, typer.Option("--scale", help="See aliceopt list.")]
From = Annotated[Path, typer.Option("--from", help="Folder of the kept results.")]
Experiment = Annotated[str, typer.Argument(help="See aliceopt results show.")]


@app.command("add")
def add_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder of records (the --out of aliceopt run or compress), or a .jsonl file of "
            "kept results."
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder of the kept results.")] = KEPT,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace kept runs that have other numbers.")
    ] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Other work had a share of the device: keep no seconds. Runs with --workers that "
            "shared it among themselves say so without this.",
        ),
    ] = False,
) -> None:
    """Merge the runs that have ended into TO/EXPERIMENT.jsonl, one line a run.

    Results of aliceopt compress go into TO/compress-PROBLEM.jsonl, one line each.
    Checkpoints stay where they are. A run that is kept already is left alone,
    also if it was made again with the same results; one that is kept with other
    numbers is refused.
    """
    from aliceopt.lab.results import kept
    from aliceopt.lab.words import counted
    from aliceopt.trained.compress import kept as pruning
    from aliceopt.trained.compress.records import read_folder

    with told():
        if not source.exists():
            raise ValueError(f"there is no {str(source)!r}")
        pruned = source.name.startswith(pruning.PREFIX) or bool(read_folder(source))
        keeper, what = (pruning, "result") if pruned else (kept, "run")
        lines, left = keeper.gather(source)
        if shared:
            lines = [keeper.untimed(line) for line in lines]
        for done in keeper.add(lines, to, overwrite=overwrite):
            said = [f"{counted(done.new, what)} added"]
            said += [f"{done.replaced} replaced"] if done.replaced else []
            said += [f"{done.same} there already"] if done.same else []
            say(f"{done.path}: {', '.join(said)}")
            if done.again:
                say(
                    f"made again with the same results, so left as kept: {done.again} "
                    "(--overwrite takes the new dates and seconds)"
                )
        if left:
            say(f"not ended, so not kept: {', '.join(left)}")
        if not lines:
            say("no run has ended: nothing was added")
            raise typer.Exit(1)


@app.command()
def show(
    experiment: Annotated[
        str | None, typer.Argument(help="See aliceopt list; the default is all.")
    ] = None,
    results: From = KEPT,
) -> None:
    """Print means over seeds, with gradients, seconds and precision."""
    from aliceopt.cli.folders import of_a_clone
    from aliceopt.cli.kept_table import print_kept
    from aliceopt.lab.plans.plan import EXPERIMENTS
    from aliceopt.lab.results.kept import read_kept
    from aliceopt.lab.terminal import stdout_console
    from aliceopt.lab.words import meant
    from aliceopt.trained.compress.kept import PREFIX, kept_tables
    from aliceopt.trained.compress.table import print_tables

    with told():
        paths = sorted(results.glob(f"{experiment or '*'}.jsonl"))
        pruned = [path for path in paths if path.name.startswith(PREFIX)]
        for path in pruned:
            print_tables(kept_tables(path), stdout_console())
        if lines := [line for path in paths if path not in pruned for line in read_kept(path)]:
            print_kept(lines, stdout_console())
        elif not pruned:
            if experiment and experiment not in EXPERIMENTS and not experiment.startswith(PREFIX):
                raise ValueError(f"no experiment {experiment!r}{meant(experiment, EXPERIMENTS)}")
            of = f" of {experiment!r}" if experiment else ""
            clone = of_a_clone(results, "--from")
            raise ValueError(
                f"no results{of} in {str(results)!r}: keep some with aliceopt results add FOLDER, "
                f"the folder being that of aliceopt run{f'; {clone}' if clone else ''}"
            )


@app.command()
def compare(
    experiment: Experiment,
    to: Annotated[str, typer.Option(help="The method that the others are compared with.")] = (
        "adamw"
    ),
    scale: OfScale = "lab",
    results: From = KEPT,
) -> None:
    """Compare methods, each at the rate that was best at the tuning seed, over the other seeds."""
    from aliceopt.lab.results.kept_compare import compare_kept

    with told():
        print_compared(compare_kept(results, experiment, scale, to), to)


def print_compared(rows: Iterable[Compared], to: str) -> None:
    """A table of methods beside one of them, and what its columns are."""
    from aliceopt.lab.plans.plan import settings_of
    from aliceopt.lab.results.kept_compare import HEAD
    from aliceopt.lab.terminal import new_table, stdout_console

    table, console = new_table(*HEAD), stdout_console()
    rows = list(rows)
    for row in rows:
        table.add_row(*row.cells())
    one = next(iter(rows[0].runs.values()))
    title = settings_of(one.experiment, one.scale)["title"]
    console.print(title, style="bold", markup=False)
    said = ", ".join([one.data, f"{one.scale} scale", one.precision, one.device])
    console.print(said, markup=False, highlight=False)
    console.print(table)
    console.print(
        f"Differences to {to}, paired by seed, \u00b1 half of their 95% interval; edge: no "
        "higher, or no lower, rate was tried.",
        style="dim",
    )


@app.command()
def fill(
    pages: Annotated[list[Path], typer.Argument(help="Markdown files with places for results.")],
    results: From = KEPT,
) -> None:
    """Write the kept results into pages, where a comment says which belong there."""
    from aliceopt.cli.pages import fill as filled
    from aliceopt.lab.writing import replacing

    with told():
        texts = {page: page.read_text(encoding="utf-8") for page in pages}
        new = {page: filled(text, results) for page, text in texts.items()}
        for page, text in new.items():
            with replacing(page) as beside:
                beside.write_text(text, encoding="utf-8")
            say(f"{page}: {'as it was' if text == texts[page] else 'written'}")


@app.command()
def draw(
    experiment: Experiment,
    out: Annotated[Path, typer.Option(help="A .png, .svg or .pdf file.")] = Path("rates.png"),
    methods: Annotated[
        str | None,
        typer.Option(help="By commas, like adamw,ahead-2; by default all tried at two rates."),
    ] = None,
    scale: OfScale = "lab",
    results: From = KEPT,
) -> None:
    """Draw the final metric against the learning rate, for every method that was tried at some."""
    from aliceopt.cli.folders import of_a_clone
    from aliceopt.cli.lab import split_names
    from aliceopt.lab.plans.plan import settings_of
    from aliceopt.lab.results.kept import read_kept
    from aliceopt.lab.results.kept_compare import as_filed

    with told():
        from aliceopt.lab.figures.rates import draw_rates

        settings_of(experiment, scale)  # refuses a name or scale that there is not
        path = results / f"{experiment}.jsonl"
        if not path.exists():
            told_where = of_a_clone(results, "--from") or "see aliceopt results show"
            raise ValueError(f"there is no {str(path)!r}: {told_where}")
        lines = [line for line in read_kept(path) if line.scale == scale]
        if not lines:
            raise ValueError(f"{str(path)!r} has no runs of scale {scale!r}")
        say(f"figure: {draw_rates(as_filed(lines), out, split_names(methods))}")
