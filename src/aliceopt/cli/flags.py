"""Help that shows a flag as a flag: nothing follows it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _Flags:
    def get_params(self, ctx: Any) -> Any:
        """As they are declared, but no type is shown for what takes no value."""
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    pass


class _Group(_Flags, TyperGroup):
    pass


def show_flags_as_flags(app: typer.Typer) -> typer.Typer:
    """The same application, all its commands and groups included."""
    app.info.cls = _Group
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            show_flags_as_flags(group.typer_instance)
    return app
