"""Where it ran, one table, and the same as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import aliceopt

__all__ = ["Header", "cell", "ratio", "table", "text", "write_json"]

Header = dict[str, Any]


def environment(device: torch.device) -> Header:
    """Date, device and versions."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    header = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{device.type}: {name}",
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "aliceopt": aliceopt.__version__,
    }
    return {**header, "threads": torch.get_num_threads()} if device.type == "cpu" else header


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def ratio(value: float | None, base: float | None) -> float | None:
    """``value / base``, or None where one is missing."""
    return None if value is None or not base else value / base


def cell(value: float | None, digits: int = 2, scale: float = 1.0) -> str:
    """A number for the table; a dash where there is none."""
    return "-" if value is None else f"{value * scale:.{digits}f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain text, first and last column to the left, without columns that hold only dashes."""
    listed = [list(row) for row in rows]
    keep = [i for i in range(len(columns)) if any(row[i] not in ("-", "") for row in listed)]
    lines = [[columns[i] for i in keep], *([row[i] for i in keep] for row in listed)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(keep))]
    lines.insert(1, ["-" * width for width in widths])
    left = {0, len(columns) - 1}
    return "\n".join(
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, text, width in zip(keep, line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def text(header: Header, body: str, footnotes: Sequence[str] = ()) -> str:
    """Header lines, footnotes, and the table last."""
    width = max(map(len, header))
    lines = [f"{name.ljust(width)}  {value}" for name, value in header.items()]
    return "\n".join([*lines, *footnotes, "", body])


def write_json(path: Path, header: Header, rows: Sequence[dict[str, Any]]) -> None:
    """Every number, in SI units: seconds and bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"header": header, "rows": list(rows)}, indent=2) + "\n")
