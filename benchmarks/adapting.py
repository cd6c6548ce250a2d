"""Does a look-ahead that adapts, or follows the schedule, beat the constant 1.5?

    python -m benchmarks.adapting --problem gpt --data FOLDER --seeds 0-2
    python -m benchmarks.adapting --problem resnet --data FOLDER --seeds 10-17

A rule gives omega before every step. "gpt" is the lab's pays-small-gpt, "resnet" a ResNet18 of
width 8 on CIFAR-10 at 16 x 16 pixels, one epoch, "digits" the study's convnet. Rules of one seed
share weights and batches. A row has the mean validation loss (BatchNorm's statistics taken afresh)
and its paired difference to the first rule with the 95% interval.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.lab.plans.study import SETTINGS
from aliceopt.lab.problems.problem import build_problem
from aliceopt.lab.results.paired import ALPHA, Paired
from aliceopt.lab.spec import LabProblem, Schedule
from aliceopt.lab.training.evaluation import evaluate, fresh_statistics

from . import report

__all__ = ["RULES", "Reversal", "Seen", "main", "reversal", "rule_of", "trained"]

GPT = {"name": "gpt", "layers": 2, "width": 64, "heads": 4}
RESNET = {"name": "resnet18", "masks": False, "width": 8}
CIFAR = {"name": "cifar10", "augment": True, "validation_batch_size": 500}
PROBLEMS = {  # with the rate and the steps of a run
    "gpt": (LabProblem(GPT, {"name": "tinyshakespeare", "length": 64}, 32), 1.6e-2, 500),
    "resnet": (LabProblem(RESNET, CIFAR, 100), 4e-3, 500),
    "digits": (LabProblem(SETTINGS["model"], SETTINGS["data"], 64), 8e-3, 176),
}


class Seen(NamedTuple):
    """What a rule may know."""

    factor: float  # of the full rate
    reversal: float | None  # of the last step, which had this
    lookahead: float


class Reversal:
    """``omega = 1/2 + target / a`` with a running mean of ``a = reversal / (omega - 1/2)``."""

    def __init__(self, target: float = 2.0, memory: float = 0.99, most: float = 4.0):
        self.target, self.memory, self.most, self.curvature = target, memory, most, target

    def __call__(self, seen: Seen) -> float:
        """Between 1 and ``most``."""
        if seen.reversal is not None:
            now = seen.reversal / (seen.lookahead - 0.5)
            self.curvature += (1 - self.memory) * (now - self.curvature)
        return min(self.most, max(1.0, 0.5 + self.target / max(self.curvature, 1e-3)))


def least_noise(seen: Seen) -> float:
    """The look-ahead of least noise for the curvature whose best one at the full rate is 1.5."""
    k = (4.8**0.5 - 1) ** 2 * seen.factor  # solves (1 + beta1 - sqrt(k)) / k = 1/2, beta1 = .9
    return min(4.0, 1 + (1.9 - k**0.5) / k)


Rule = Callable[[Seen], float]
RULES: dict[str, Callable[[], Rule]] = {
    "distance": lambda: lambda seen: min(4.0, 1 + 0.5 / seen.factor),
    "least-noise": lambda: least_noise,
    "with-rate": lambda: lambda seen: 1 + 0.75 * seen.factor,
    "against-rate": lambda: lambda seen: 2 - 0.75 * seen.factor,
    "reversal": Reversal,
}


def rule_of(name: str) -> Rule:
    """By name, or a constant."""
    return RULES[name]() if name in RULES else lambda seen: float(name)


def reversal(optimizer: Alice, moves: Sequence[Tensor]) -> float:
    """``-(g.u)/(m.u)``: how much of the averaged slope m along a step u the next gradient turns."""
    params = optimizer.param_groups[0]["params"]
    along = sum((p.grad * u).sum() for p, u in zip(params, moves, strict=True))
    states = zip((optimizer.state[p] for p in params), moves, strict=True)
    return -float(along / sum((state["grad_avg"] * u).sum() for state, u in states))


def trained(name: str, rule: Rule, seed: int, data: str | None, most: int | None = None) -> float:
    """Train, ``most`` steps of the run if given, and return the validation loss then."""
    (source, lr, steps), gpt = PROBLEMS[name], name == "gpt"
    made = build_problem(replace(source, data={**source.data, "root": data}), seed)
    model = nn.Sequential(nn.AvgPool2d(2), made.model) if name == "resnet" else made.model
    params, split = list(model.train().parameters()), made.train
    betas = (0.9, 0.99 if gpt else 0.999)
    optimizer = Alice(params, lr, betas=betas, weight_decay=0.1, model=model)
    group, schedule = optimizer.param_groups[0], Schedule("cosine", warmup=0.2)
    moves: list[Tensor] = []
    for step in range(most or steps):
        inputs, targets = split.batch(seed, *divmod(step, len(split)))
        made.loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(params, 1.0 if gpt else float("inf"))
        turned = reversal(optimizer, moves) * (1 - betas[0] ** step) if moves else None
        factor = schedule.factor(step, steps)
        group.update(lr=lr * factor, lookahead=rule(Seen(factor, turned, group["lookahead"])))
        optimizer.come_home()
        homes = [param.detach().clone() for param in params]
        optimizer.step()
        optimizer.zero_grad()
        moves = [p.detach() - home for p, home in zip(params, homes, strict=True)]
    with fresh_statistics(model, (split.batch(seed, 0, i)[0] for i in range(len(split)))):
        return evaluate(made, model, made.validation, 20)["loss"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapting", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--problem", choices=tuple(PROBLEMS), default="digits")
    parser.add_argument("--data", help="folder of the data")
    parser.add_argument("--seeds", default="0-2", help="first and last")
    parser.add_argument("--rules", default=",".join(["1.5", "1", "2", "3", "4", *RULES]))
    parser.add_argument("--steps", type=int, help="stop after so many")
    args = parser.parse_args(argv)
    first, _, last = args.seeds.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        parser.error(f"--seeds must be FIRST-LAST, at least two for an interval; got {args.seeds}")
    for name in args.rules.split(","):
        if name not in RULES and not name.replace(".", "", 1).isdecimal():
            parser.error(f"no rule {name!r}; there is {', '.join(RULES)}, or a constant")
    seeds = range(int(first), int(last) + 1)
    rows, base = list[list[str]](), list[float]()
    for name in args.rules.split(","):
        more = (args.data, args.steps)
        losses = [trained(args.problem, rule_of(name), seed, *more) for seed in seeds]
        base = base or losses
        paired = Paired(tuple(one - two for one, two in zip(losses, base, strict=True)))
        told = f"{paired.mean:+.4f} +- {paired.half_width(ALPHA):.4f}" if rows else "-"
        rows.append([args.problem, name, f"{mean(losses):.4f}", told])
    table = report.table(("problem", "rule", "loss", "to the first"), rows)
    print(report.text(report.environment(torch.device("cpu")) | {"seeds": args.seeds}, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
