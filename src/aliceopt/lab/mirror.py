"""The numbers of a journal in TensorBoard as well, for those who ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aliceopt.lab.records import Journal

__all__ = ["mirrored"]


@contextlib.contextmanager
def mirrored(journal: Journal, place: Path, first: int, wanted: bool) -> Iterator[None]:
    """Also write every number of the journal to TensorBoard; older ones from ``first`` on hide."""
    if not wanted:
        yield
        return
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(place), purge_step=first)

    def show(event: str, fields: dict[str, Any]) -> None:
        for name in ("loss", "lr", "metric", "accuracy", "perplexity"):
            if event in ("train", "evaluation") and fields.get(name) is not None:
                writer.add_scalar(f"{event}/{name}", fields[name], fields["step"])

    journal.mirror = show
    try:
        yield
    finally:
        writer.close()
