"""What is printed on a terminal, and nothing that a terminal would obey."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from aliceopt.lab.words import plain

_PIPED_WIDTH = 100


class Terminal(Console):
    """A console that styles its own text and shows that of others.

    Names in plans and records, and texts of errors, may come from anywhere.
    """

    def __init__(self, **options: Any):
        # Names of emoji are looked up in a module imported then, and a Ctrl-C within is lost.
        super().__init__(highlight=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments as ever, but for the control characters in their texts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text), style, control)


def stdout_console() -> Terminal:
    """A console as wide as the terminal; 100 columns, without colours, into a pipe or file."""
    console = Terminal()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Terminal(width=_PIPED_WIDTH)
    return console


def new_table(*heads: str, words: int = 1, space: int = 1) -> Table:
    """A table in the lab's style: first so many columns of words, then columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, space, 0, 0))
    for head in heads[:words]:
        table.add_column(head, overflow="fold")
    for head in heads[words:]:
        table.add_column(head, justify="right", no_wrap=True)
    return table
