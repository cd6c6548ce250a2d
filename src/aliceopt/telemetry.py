"""What Alice is doing, in numbers: which bound rules, and which curvature there is.

Everything is computed when asked, from the averages as they stand and the settings of the last
step, so it describes that step (after loading a checkpoint: the step at the current settings).
Sums run on the device and come back in one transfer per device. With sharded parameters the sums
are over all shards, so every process must ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .options import rates
from .sharding import reshard, sum_over_shards
from .site import Site, averages
from .step import anatomy, bounded_step
from .topography import Rates, corrected

if TYPE_CHECKING:
    from .alice import Alice

__all__ = ["Blocks", "Summary", "Telemetry", "average", "measure", "rates_of"]

Blocks = Mapping[str, Iterable[str]]
"""Parameter names of each block."""


@dataclass(frozen=True)
class Summary:
    """A set of parameters. The three shares add up to 1; means are over all coordinates.

    A coordinate with zero running gradient sits on no bound: its quasi-Newton step is zero.
    ``glass_share`` is the mean share of the total curvature that glass accounts for,
    ``1 - h / hbar``. Parameters that were never updated do not count.
    """

    coordinates: int
    at_upper: float
    at_lower: float
    quasi_newton: float
    glass_density: float
    hess: float
    glass_share: float
    step_norm: float
    grad_norm: float
    skipped_coordinates: int


@dataclass(frozen=True)
class Telemetry:
    """One report. ``blocks`` is empty when parameter names are not known."""

    measuring_steps: int
    quick_steps: int
    gradient_evaluations: int
    groups: list[Summary]
    blocks: dict[str, Summary]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts, for a logger."""
        return asdict(self)


def average(reports: Sequence[Telemetry]) -> Telemetry:
    """Many reports as one: means weighted by the norm of each one's step, counts of the last.

    At the end of a schedule steps go to zero, and every coordinate is at the upper bound whatever
    the problem: such reports weigh as little as their steps.
    """
    if not reports:
        raise ValueError("there is no report to average")
    last = reports[-1]
    for report in reports:
        if len(report.groups) != len(last.groups) or report.blocks.keys() != last.blocks.keys():
            raise ValueError("reports of other groups or blocks than the last one's cannot join it")
    return replace(
        last,
        groups=[_average([r.groups[i] for r in reports]) for i in range(len(last.groups))],
        blocks={name: _average([r.blocks[name] for r in reports]) for name in last.blocks},
    )


def _average(summaries: Sequence[Summary]) -> Summary:
    weights = [s.step_norm for s in summaries]
    if not sum(weights) > 0:
        return summaries[-1]

    def mean(name: str) -> float:
        values = (w * getattr(s, name) for w, s in zip(weights, summaries, strict=True) if w)
        return math.fsum(values) / math.fsum(weights)

    means: dict[str, Any] = {name: mean(name) for name in _MEANS}
    return replace(summaries[-1], **means)


_MEANS = (
    "at_upper",
    "at_lower",
    "quasi_newton",
    "glass_density",
    "hess",
    "glass_share",
    "step_norm",
    "grad_norm",
)
_SUMS = ("count", "upper", "lower", "density", "hess", "share", "step_sq", "grad_sq", "skipped")


@torch.no_grad()
def measure(
    optimizer: Alice, sites: Sequence[Site], *, depth: int = 1, blocks: Blocks | None = None
) -> Telemetry:
    """Summaries per group and per block.

    A block is the first ``depth`` parts of a name or, with ``blocks``, the names listed for it;
    parameters that no block lists are in none.
    """
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"depth must be a whole number >= 1, got {depth!r}")
    names, groups = _names(optimizer), optimizer.param_groups
    block_of = _block_of(blocks, depth, names.values())
    numbers = {id(group): i for i, group in enumerate(groups)}
    keys: list[tuple[int, str | None]] = []
    sums: list[Tensor] = []
    for site in sites:
        if site.state:
            name = names.get(site.param)
            keys.append((numbers[id(site.group)], None if name is None else block_of(name)))
            sums.append(_sums(site))
    pairs = list(zip(keys, _fetch(sums), strict=True))
    found = dict.fromkeys(block for _, block in keys if block is not None)
    return Telemetry(
        measuring_steps=groups[0]["measuring_count"],
        quick_steps=groups[0]["quick_count"],
        gradient_evaluations=optimizer.gradient_evaluations,
        groups=[_summary(row for (g, _), row in pairs if g == i) for i in range(len(groups))],
        blocks={b: _summary(row for (_, block), row in pairs if block == b) for b in found},
    )


def _block_of(
    blocks: Blocks | None, depth: int, names: Iterable[str]
) -> Callable[[str], str | None]:
    """Which block a name is in."""
    if blocks is None:
        return lambda name: ".".join(name.split(".")[:depth])
    listed = {name: block for block, members in blocks.items() for name in members}
    unknown = sorted(set(listed) - set(names))
    if unknown:
        raise ValueError(f"blocks list {unknown[0]!r}, which is no parameter's name")
    return listed.get


def _names(optimizer: Alice) -> dict[Tensor, str]:
    """Names given with the parameters, else those the model has for them."""
    names: dict[Tensor, str] = {}
    model = optimizer.model
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    if isinstance(model, nn.Module):
        reshard(model)  # an unsharded FSDP2 module has other parameters
        names.update({p: name for name, p in model.named_parameters()})
    for group in optimizer.param_groups:
        names.update(zip(group["params"], group.get("param_names", ()), strict=False))
    return names


def rates_of(site: Site) -> Rates:
    """Those of the last step; after loading a checkpoint, those of the current settings."""
    if site.rates is not None:
        return site.rates
    count, weight = (site.state[name].item() for name in ("step", "topography_weight"))
    return rates(site.group, max(1, int(count)), weight, measuring=False)


def _sums(site: Site) -> Tensor:
    """The entries of `_SUMS` for one parameter, on its device, over all its shards."""
    numbers = rates_of(site)
    avg = averages(site.state, vars(numbers))  # the step's terms, whatever the group has by now
    parts, est = anatomy(avg, numbers), corrected(avg, numbers)
    step = bounded_step(avg, numbers)
    zero = torch.zeros((), device=step.device)
    upper = lower = share = zero
    if parts.newton is None:
        upper = zero + step.numel()
    else:
        moving = avg.grad_avg != 0
        at_upper = (parts.newton >= parts.upper) & moving
        upper = at_upper.sum()
        lower = ((parts.newton <= parts.lower) & moving & ~at_upper).sum()
        assert parts.total_curvature is not None
        h = est.hess if est.hess is not None else zero
        share = (1 - (h + numbers.eps) / parts.total_curvature).clamp(min=0).sum()
    values = [
        zero + step.numel(),
        upper,
        lower,
        zero if est.glass_density is None else est.glass_density.sum(),
        zero if est.hess is None else est.hess.sum(),
        share,
        step.square().sum(),
        est.grad_avg.square().sum(),
        site.skipped,
    ]
    dtype = torch.float64 if step.device.type in ("cpu", "cuda") else torch.float32
    return sum_over_shards(torch.stack([v.to(dtype) for v in values]), site.param)


def _fetch(sums: list[Tensor]) -> list[dict[str, float]]:
    """All rows as plain numbers, one transfer per device."""
    rows: list[dict[str, float]] = [{} for _ in sums]
    by_device: dict[torch.device, list[int]] = {}
    for i, row in enumerate(sums):
        by_device.setdefault(row.device, []).append(i)
    for indices in by_device.values():
        table = torch.stack([sums[i] for i in indices]).tolist()
        for i, numbers in zip(indices, table, strict=True):
            rows[i] = dict(zip(_SUMS, numbers, strict=True))
    return rows


def _summary(rows: Iterable[dict[str, float]]) -> Summary:
    listed = list(rows)
    total = {name: math.fsum(row[name] for row in listed) for name in _SUMS}
    n = total["count"] or math.nan
    return Summary(
        coordinates=int(total["count"]),
        at_upper=total["upper"] / n,
        at_lower=total["lower"] / n,
        quasi_newton=(total["count"] - total["upper"] - total["lower"]) / n,
        glass_density=total["density"] / n,
        hess=total["hess"] / n,
        glass_share=total["share"] / n,
        step_norm=math.sqrt(total["step_sq"]),
        grad_norm=math.sqrt(total["grad_sq"]),
        skipped_coordinates=int(total["skipped"]),
    )
