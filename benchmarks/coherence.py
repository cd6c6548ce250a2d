"""Do steps that only glass limits train better with densities that tell the truth about a move?

    python -m benchmarks.coherence
    python -m benchmarks.coherence --problem gpt --data FOLDER --steps 80

Theorem 4's separable bound counts every coordinate as a floor of its own, and is 1/kappa too large:
kappa = sqrt(rho_t) / sum_i sqrt(rho_i) with rho_t = (2/lambda)(t.D)^2. So a step that only glass
limits is too short by kappa^2. Four forms of Alice without a Hessian term are trained here:

- limit: no term, the step is the upper bound (Adam's);
- glass: rho as Alice has it;
- tensor: kappa^2 rho, with a kappa for every parameter tensor;
- whole: kappa^2 rho, with one kappa for all of them.

With the paper's settings; on the digits also with limit="fixed", as the paper has it where it
compares terms; and with the package's own ("drop-in"). Cosine schedule, three rates each. A row has
the validation loss at the rate that is best on average, with the standard error over seeds, kappa^2
in the end, and the share of coordinates whose step in the middle of the run is the upper bound. A
term takes 1.5 gradients a step, none takes 1.

"digits" is the study's convnet, "gpt" has two layers of width 64 on tiny Shakespeare, which must be
in FOLDER. The steps are made here of the package's functions, and agree with Alice's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aliceopt import PAPER, Alice
from aliceopt.lab.plans.study import SETTINGS
from aliceopt.lab.problems.problem import build_problem
from aliceopt.lab.spec import LabProblem, Schedule
from aliceopt.lab.training.evaluation import evaluate
from aliceopt.options import probe_radius, rates
from aliceopt.site import Draw, Site, signs_of
from aliceopt.step import anatomy, bounded_step, moved
from aliceopt.topography import Averages, Gradients, updated

from . import report

__all__ = ["FORMS", "Glass", "main", "trained"]

FORMS = ("limit", "glass", "tensor", "whole")
SETTINGS_OF: dict[str, dict[str, Any]] = {
    "paper": dict(PAPER),
    "fixed": {**PAPER, "limit": "fixed"},
    "drop-in": {},
}
RATES: dict[str, dict[str, Sequence[float]]] = {
    "digits": {
        "paper": (4e-2, 0.16, 0.64),
        "fixed": (1e-2, 4e-2, 0.16),
        "drop-in": (8e-3, 3.2e-2, 0.128),
    },
    "gpt": {"paper": (2.5e-3, 1e-2, 4e-2), "drop-in": (5e-4, 2e-3, 8e-3)},
}
COLUMNS = (
    "problem", "settings", "form", "rate", "loss", "+-", "kappa^2", "at limit", "losses by rate",
)  # fmt: skip


class Glass:
    """Alice without a Hessian term, whose densities are multiplied by kappa^2, or not."""

    def __init__(
        self, model: nn.Module, form: str, options: Mapping[str, Any], lr: float, seed: int
    ):
        self.params = [param for param in model.parameters() if param.requires_grad]
        chosen = {**options} | {"lr": lr, "hessian": "none", "glass": form != "limit"}
        self.group = Alice(self.params, **chosen).param_groups[0]
        self.form, self.lr, self.seed, self.count, self.weight = form, lr, seed, 0, 0.0
        self.sites = [Site.of(param, i, {}) for i, param in enumerate(self.params)]
        self.centers = [param.detach().clone() for param in self.params]
        self.averages = [
            Averages(*(torch.zeros_like(p) for p in [q] * 3), None) for q in self.params
        ]
        self.along = torch.zeros(len(self.params) + 1)  # rho_t of every tensor, and of all
        self.kappas = torch.ones(len(self.params))  # squared
        self.seen: Any = None

    @torch.no_grad()
    def step(self, gradient: Callable[[], list[Tensor]], factor: float) -> None:
        """One step at this share of the rate; parameters hold the position between steps."""
        self.group["lr"] = self.lr * factor
        measuring = self.form != "limit" and self.count % (self.group["quick_steps"] + 1) == 0
        homes = [param.clone() for param in self.params]
        grads = self._gradients(gradient, measuring)
        self.count += 1
        now = rates(self.group, self.count, self.weight, measuring=measuring)
        self.weight = now.topo_weight
        self.averages = [updated(a, g, now) for a, g in zip(self.averages, grads, strict=True)]
        if measuring:
            self._cohere(grads, now.beta_topo)
        self.seen = (
            [
                average._replace(glass_density=kappa * average.glass_density)
                for average, kappa in zip(self.averages, self.kappas, strict=True)
            ],
            now,
        )
        for i, (param, home) in enumerate(zip(self.params, homes, strict=True)):
            position, self.centers[i] = moved(home, bounded_step(self.seen[0][i], now), now)
            param.copy_(position)

    def _gradients(self, gradient: Callable[[], list[Tensor]], measuring: bool) -> list[Gradients]:
        """At the probe center, and before that on both sides of it."""
        if not measuring:
            return [Gradients(g) for g in self._at(gradient)]
        draw, radius = Draw(self.seed, self.count), probe_radius(self.group)
        signs = [signs_of(site, draw) for site in self.sites]
        sides = [self._at(gradient, place, signs) for place in (radius, -radius)]
        three = zip(self._at(gradient), *sides, signs, strict=True)
        return [Gradients(g, plus, minus, radius, t) for g, plus, minus, t in three]

    def _at(
        self,
        gradient: Callable[[], list[Tensor]],
        place: float = 0.0,
        signs: Sequence[Tensor | float] | None = None,
    ) -> list[Tensor]:
        there = zip(self.params, self.centers, signs or [0.0] * len(self.params), strict=True)
        for param, center, t in there:
            param.copy_(center + place * t)
        return gradient()

    def at_limit(self) -> float:
        """The share of coordinates whose last step is the upper bound."""
        averages, now = self.seen
        parts = [anatomy(average, now) for average in averages]
        whole = sum(part.upper.numel() for part in parts)
        return (
            sum(
                part.upper.numel()
                if part.newton is None
                else int((part.newton >= part.upper).sum())
                for part in parts
            )
            / whole
        )

    def _cohere(self, grads: Sequence[Gradients], beta: float) -> None:
        """Average rho_t, and set kappa^2: the averages' weights cancel in it."""
        slopes = [
            (((g.plus + g.minus) / 2 - g.center) * g.signs).sum()  # type: ignore[operator]
            for g in grads
        ]
        each = torch.stack([*slopes, torch.stack(slopes).sum()])
        self.along.mul_(beta).add_((1 - beta) * 2 / grads[0].radius * each.square())
        roots = torch.stack([a.glass_density.sqrt().sum() for a in self.averages])  # type: ignore[union-attr]
        if self.form == "tensor":
            self.kappas = (self.along[:-1] / roots.square()).nan_to_num(1.0)
        elif self.form == "whole":
            self.kappas[:] = (self.along[-1] / roots.sum().square()).nan_to_num(1.0)


class Outcome(NamedTuple):
    """Of one run."""

    loss: float
    kappa: float
    at_limit: float


def trained(
    problem: LabProblem, form: str, settings: str, lr: float, seed: int, steps: int
) -> Outcome:
    """Train, and evaluate at the end."""
    made = build_problem(problem, seed)
    model, split = made.model.train(), made.train
    method = Glass(model, form, SETTINGS_OF[settings], lr, seed)
    schedule = Schedule("cosine", warmup=0.05)
    for step in range(steps):
        epoch, index = divmod(step, len(split))
        batch = split.batch(seed, epoch, index)

        def gradient(batch: tuple[Any, Any] = batch) -> list[Tensor]:
            with torch.enable_grad():
                loss = made.loss(model(batch[0]), batch[1])
                return list(torch.autograd.grad(loss, method.params))

        method.step(gradient, schedule.factor(step, steps))
        if step == steps // 2:  # in the end a rate of zero limits every step
            at_limit = method.at_limit()
    loss = evaluate(made, model, made.validation, 20)["loss"]
    return Outcome(loss, method.kappas.mean().item(), at_limit)


# ---- command line -------------------------------------------------------------------------------


def problem_of(name: str, data: Path | None) -> LabProblem:
    """What is trained."""
    if name == "digits":
        return LabProblem(SETTINGS["model"], SETTINGS["data"], batch_size=64)
    source = {"name": "tinyshakespeare", "length": 32} | ({"root": str(data)} if data else {})
    model = {"name": "gpt", "layers": 2, "width": 64, "heads": 4}
    return LabProblem(model, source, batch_size=16)


def rows(args: argparse.Namespace) -> list[list[str]]:
    """The table, one row a setting and form; told as they come."""
    problem, found = problem_of(args.problem, args.data), []
    for settings, grid in RATES[args.problem].items():
        for form in FORMS:
            runs = {
                lr: [trained(problem, form, settings, lr, s, args.steps) for s in range(args.seeds)]
                for lr in grid
            }
            means = {lr: mean(run.loss for run in there) for lr, there in runs.items()}
            best = min(means, key=lambda lr: (means[lr] != means[lr], means[lr]))
            losses = [run.loss for run in runs[best]]
            error = stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else float("nan")
            kappa, at_limit = (
                mean(getattr(r, n) for r in runs[best]) for n in ("kappa", "at_limit")
            )
            numbers = [f"{best:g}", f"{means[best]:.4f}", f"{error:.4f}", f"{kappa:.1e}"]
            told = ", ".join(f"{lr:g}: {value:.3f}" for lr, value in means.items())
            found.append([args.problem, settings, form, *numbers, f"{at_limit:.0%}", told])
            print(*found[-1], sep="  ", file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coherence", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--problem", choices=("digits", "gpt"), default="digits")
    parser.add_argument("--data", type=Path, help="folder of tinyshakespeare.txt")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=176, help="of a run")
    args = parser.parse_args(argv)
    for name in ("seeds", "steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be a whole number >= 1, got {getattr(args, name)}")
    header = report.environment(torch.device("cpu")) | {"steps": args.steps, "seeds": args.seeds}
    print(report.text(header, report.table(COLUMNS, rows(args))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
