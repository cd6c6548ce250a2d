"""Set the equations of a page while the site is built, as MathML: no script, nothing to fetch.

A fenced block ``math`` holds an equation in LaTeX, as GitHub sets it, too; within a line it stands
between ``$`` and a backtick, as GitHub wants it. An equation that cannot be read ends the build.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

_BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"\$`([^`]+)`\$")


def set_equations(text: str) -> str:
    """Markdown with MathML in the place of LaTeX."""
    text = _BLOCK.sub(
        lambda found: f'<div class="equation">{convert(found[1].strip(), display="block")}</div>',
        text,
    )
    return _INLINE.sub(lambda found: convert(found[1]), text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What mkdocs calls for every page."""
    return set_equations(markdown)
