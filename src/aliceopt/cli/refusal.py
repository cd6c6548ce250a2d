"""How the command says no: one sentence on standard error, exit status 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

INSTALL = 'pip install "aliceopt[lab]"'


def say(message: object, *, err: bool = False) -> None:
    """A line on the terminal, without what it would obey: names may come from anywhere."""
    import typer

    from aliceopt.lab.words import plain

    typer.echo(plain(str(message)), err=err)


def refuse(message: object, status: int = 2) -> NoReturn:
    """Bad input: one sentence, and this exit status."""
    import typer

    say(f"aliceopt: {message}", err=True)
    raise typer.Exit(status)


def needs_lab(module: str | None) -> str:
    """What to install when a package is missing."""
    return f"this command needs {module or 'a package'}, which is not installed: {INSTALL}"


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Errors that a user can cause become one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        refuse(needs_lab(error.name))
    except ValueError as error:
        refuse(error)
    except OSError as error:
        refuse(f"{error.strerror}: {error.filename!r}" if error.filename else error)
