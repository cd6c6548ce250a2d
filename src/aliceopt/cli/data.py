"""``aliceopt data``: where the data sets lie, whether they are right, and how to get them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from aliceopt.cli.refusal import refuse, say

app = typer.Typer(
    name="data",
    help="Where the data sets lie, whether they are right, and how to get them.",
    no_args_is_help=True,
)

NAMES = (
    "digits, cifar10, imagenet64, tiny-imagenet-64, wikitext-2, wikitext-103, enwik8 or "
    "tinyshakespeare"
)
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder of the data sets; default $ALICEOPT_DATA, else ~/.cache/aliceopt/data.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help=f"One of {NAMES}.")]


def _require_name(name: str) -> None:
    from aliceopt.lab.data import DataError
    from aliceopt.lab.data.registry import named

    try:
        named(name)
    except DataError as error:
        refuse(error)


@app.command()
def where(data: Folder = None) -> None:
    """Print the data folder and which sets are in it."""
    from aliceopt.lab.data import DATASETS, DataError, data_folder
    from aliceopt.lab.data.folder import generated_rows
    from aliceopt.lab.data.registry import present_files
    from aliceopt.lab.terminal import Terminal
    from aliceopt.lab.words import counted

    folder = data_folder(data)
    console = Terminal(soft_wrap=True)
    console.print(escape(str(folder)) + ("" if folder.is_dir() else "  (does not exist yet)"))
    for name, data_set in DATASETS.items():
        present, missing = present_files(name, folder)
        try:
            made = generated_rows(name, folder) is not None
        except DataError as error:
            refuse(error, 1)
        if not missing:
            state = "built in" if not present else "generated" if made else "there"
        else:
            state = f"{len(missing)} of {counted(len(missing) + len(present), 'file')} missing"
            state = state if present else "not there"
        console.print(f"  {name:<17} {state:<24} {escape(data_set.title)}")
    console.print(
        "'aliceopt data get NAME' downloads a set, 'aliceopt data check NAME' verifies it."
    )


@app.command()
def check(name: Name, data: Folder = None) -> None:
    """Read every file of a set in full: sizes, counts, labels, md5; exit 1 if one is wrong."""
    from aliceopt.lab.data import DataError, data_folder
    from aliceopt.lab.data.registry import check_files
    from aliceopt.lab.terminal import Terminal

    _require_name(name)
    console = Terminal(soft_wrap=True)
    bad = missing = 0
    try:
        for report in check_files(name, data):
            verdict = "[green]ok [/green]" if report.ok else "[red]BAD[/red]"
            console.print(f"{verdict} {escape(report.file)}: {escape(report.detail)}")
            bad += not report.ok
            missing += report.detail == "missing"
    except DataError as error:
        refuse(error, 1)
    if bad:
        hint = f"; 'aliceopt data get {name}' gets what is missing" if missing else ""
        console.print(f"{name} in {escape(str(data_folder(data)))}: [red]not right[/red]{hint}")
        raise typer.Exit(1)
    place = "built in" if name == "digits" else f"in {escape(str(data_folder(data)))}"
    console.print(f"{name} {place}: [green]right[/green]")


@app.command()
def get(name: Name, data: Folder = None) -> None:
    """Download a set from its official address, check it and put it into the data folder."""
    from rich import progress

    from aliceopt.lab.data import DATASETS, DataError
    from aliceopt.lab.data.download import get as download
    from aliceopt.lab.data.registry import present_files
    from aliceopt.lab.terminal import Terminal
    from aliceopt.lab.writing import WriteError

    _require_name(name)
    if name == "digits":
        say("digits is built in: nothing to get")
        return
    if not present_files(name, data)[1]:
        say(f"{name} is there already; 'aliceopt data check {name}' verifies it")
        return
    if (source := DATASETS[name].source) is not None:
        say(f"{source.address}\nterms: {DATASETS[name].terms}")
    bar = progress.Progress(
        "{task.description}",
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Terminal(stderr=True),
    )
    tasks: dict[str, progress.TaskID] = {}

    def report(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    try:
        with bar:
            folder = download(name, data, report)
    except (DataError, WriteError, OSError) as error:
        refuse(error, 1)
    except KeyboardInterrupt:
        refuse("stopped; give the same command again to go on", 130)
    say(f"{name} is in {folder}, checked")
