"""Alice with the paper's settings: every term on, which is what most tests are about."""

from typing import Any

from aliceopt import PAPER, Alice


def paper_alice(params: Any, lr: Any = PAPER["lr"], **options: Any) -> Alice:
    """The paper's, but for what is given."""
    return Alice(params, **{**PAPER, "lr": lr, **options})
