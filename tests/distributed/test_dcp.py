"""torch.distributed.checkpoint: saved by four processes, gone on with by two or by one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spawned import environment, running

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch.distributed with gloo",
)

WORKER = Path(__file__).with_name("dcp_worker.py")
LIMIT_S = 240


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What came of it, by the number of processes."""
    out = tmp_path_factory.mktemp("dcp")
    log = out / "log"
    with running([sys.executable, str(WORKER), str(out)], environment(), log) as process:
        assert process.wait(LIMIT_S) == 0, log.read_text(errors="replace")[-6000:]
    return {world: torch.load(out / f"{world}.pt", weights_only=True) for world in (4, 2, 1)}


def different(a: Any, b: Any, where: str = "") -> list[str]:
    """Where two outcomes differ by a bit or more."""
    if isinstance(a, Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        return [place for key in a for place in different(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list):
        assert len(a) == len(b), where
        pairs = enumerate(zip(a, b, strict=True))
        return [place for i, (x, y) in pairs for place in different(x, y, f"{where}.{i}")]
    return [] if a == b else [where]


@pytest.mark.parametrize("world", [2, 1])
@pytest.mark.parametrize("kind", ["plain", "flat"])
def test_fewer_processes_go_on_bit_for_bit(found: dict[int, Any], kind: str, world: int) -> None:
    """FSDP2 in four processes, saved after three steps; five more in two, and in one without FSDP2.

    Parameters, every average and every count are those of the four, to the bit. Shards of 5, 7
    and 1 rows over four processes are uneven, and some are empty.
    """
    straight = found[4]["straight"]
    assert straight["counts"] == [8, 4, 4]
    assert all(value.isfinite().all() for value in straight["parameters"])
    assert different(found[world][kind], straight) == []
