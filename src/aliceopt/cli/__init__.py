"""The ``aliceopt`` command."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from aliceopt.cli.refusal import needs_lab

if TYPE_CHECKING:
    import typer

try:
    import filelock as _filelock  # noqa: F401
    import rich as _rich  # noqa: F401
    import typer as _typer  # noqa: F401
except ModuleNotFoundError as error:
    _missing = error.name
else:
    _missing = None

__all__ = ["build", "main"]


def build() -> typer.Typer:
    """The command-line application."""
    import typer

    from aliceopt.cli import claims, compress, data, lab, landscape, results, study
    from aliceopt.cli.flags import show_flags_as_flags

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(lab.root)
    app.command()(study.study)
    app.command("new-problem")(study.new_problem)
    app.command()(compress.compress)
    app.command()(landscape.landscape)
    app.command("run")(lab.run)
    app.command()(lab.table)
    app.command()(lab.figure)
    app.command("list")(lab.list_)
    app.add_typer(data.app)
    app.add_typer(results.app)
    app.command()(claims.claims)
    return show_flags_as_flags(app)


def main() -> None:
    """Entry point: run the application, or say what to install first."""
    if _missing is not None:
        print(f"aliceopt: {needs_lab(_missing)}", file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that it cannot say is no reason to stop
            stream.reconfigure(errors="replace")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # set by torchrun in each of its processes
        from aliceopt.lab.training.ranks import lead

        lead(build())
    else:
        build()()
