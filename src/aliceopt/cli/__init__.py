"""The ``aliceopt`` command: test the paper's claims and draw its illustrations."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

from aliceopt import __version__

try:
    import rich  # noqa: F401
    import typer
except ModuleNotFoundError as error:
    _missing = error.name
else:
    _missing = None

INSTALL = 'pip install "aliceopt[lab]"'


class FigureName(StrEnum):
    """The illustrations that can be drawn."""

    glass = "glass"
    relu = "relu"
    theorem1 = "theorem1"


def _refuse(message: str) -> NoReturn:
    """Bad input: one sentence on standard error, exit status 2."""
    typer.echo(f"aliceopt: {message}", err=True)
    raise typer.Exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aliceopt {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The optimizer Alice: check the theory behind it, draw its illustrations."""


def claims(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Test only this claim, or all whose id begins so; repeat for more."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every experiment.")] = 0,
    samples: Annotated[
        int | None, typer.Option(help="Scale of the Monte-Carlo sizes; the default is 20000.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the results to this file.")
    ] = None,
) -> None:
    """Measure the paper's numbers anew; exit 1 if theory and measurement disagree anywhere."""
    from aliceopt import claims as package
    from aliceopt.claims import table

    samples = package.DEFAULT_SAMPLES if samples is None else samples
    least, most = package.LEAST_SAMPLES, package.MOST_SAMPLES
    try:
        chosen = package.select(package.CLAIMS, only or [])
    except ValueError as error:
        _refuse(f"--only: {error}")
    if seed < 0:
        _refuse(f"--seed must be a whole number >= 0, got {seed}")
    if not least <= samples <= most:
        _refuse(f"--samples must be a whole number from {least} to {most}, got {samples}")
    if json_file is not None:
        _require_writable(json_file)
    context = package.Context(seed=seed, samples=samples)
    results = table.run_with_progress(chosen, context)
    table.print_results(results, table.stdout_console())
    if json_file is not None:
        records = table.as_records(results, context)
        json_file.write_text(json.dumps(records, indent=2, allow_nan=False) + "\n")
    if any(result.verdict == "failed" for result in results):
        raise typer.Exit(1)


def _require_writable(path: Path) -> None:
    """Refuse now what could not be written after the run."""
    existed = path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        _refuse(f"--json: cannot write {str(path)!r}: {error.strerror}")
    if not existed:
        path.unlink()


def figure(
    name: Annotated[
        FigureName,
        typer.Argument(
            help="Figure 2 (glass), Figure 3 (relu), or Theorem 1 on real networks (theorem1, "
            "a minute)."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, .png, .svg or .pdf; the default is out/NAME.png."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the glass or the networks; relu has none.")
    ] = 0,
) -> None:
    """Draw an illustration of the paper from real kinks and real gradients."""
    try:
        from aliceopt.lab import figures
    except ImportError as error:
        _refuse(_needs_lab(error.name))
    path = Path("out") / f"{name}.png" if out is None else out
    try:
        if name is FigureName.glass:
            written = figures.draw_glass(path, seed=seed)
        elif name is FigureName.theorem1:
            written = figures.draw_theorem1(path, seed=seed)
        else:
            written = figures.draw_relu(path)
    except ValueError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"cannot write {str(path)!r}: {error.strerror}")
    typer.echo(str(written))


def _needs_lab(module: str | None) -> str:
    return f"this command needs {module or 'a package'}, which is not installed: {INSTALL}"


def build() -> typer.Typer:
    """The command-line application."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_root)
    app.command()(claims)
    app.command()(figure)
    return app


def main() -> None:
    """Entry point: run the application, or say what to install first."""
    if _missing is not None:
        print(f"aliceopt: {_needs_lab(_missing)}", file=sys.stderr)
        sys.exit(2)
    build()()


if __name__ == "__main__":
    main()
