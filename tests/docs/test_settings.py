"""The numbers of the settings page are those of the kept records."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from aliceopt.lab.results.kept import read_kept

ROOT = Path(__file__).parents[2]
T3 = 3.182446  # Student's t, 97.5%, three degrees of freedom
PAGE = (ROOT / "docs/settings.md").read_text(encoding="utf-8").replace("\u2212", "-")


def finals(experiment: str) -> dict[str, dict[int, float]]:
    """By method and seed, without the seed at which rates were chosen."""
    found: dict[str, dict[int, float]] = {}
    for line in read_kept(ROOT / "results" / f"{experiment}.jsonl"):
        if line["seed"] < 1000:
            found.setdefault(line["method"], {})[line["seed"]] = line["final"]
    return found


def paired(experiment: str, method: str, base: str) -> tuple[float, float]:
    """The mean difference over the same four seeds, and half of its 95% interval."""
    runs = finals(experiment)
    differences = [runs[method][seed] - runs[base][seed] for seed in range(4)]
    return statistics.mean(differences), T3 * statistics.stdev(differences) / 2


def told(row: str, column: int) -> tuple[float, float]:
    """What the page says: a difference and half of its interval."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row} |")]
    cell = line.split("|")[column + 2]
    mean, half = re.findall(r"([+-][\d.]+) \u00b1 ([\d.]+)", cell)[0]
    return float(mean), float(half)


@pytest.mark.parametrize(
    ("row", "experiment", "method", "base"),
    [
        ("**look-ahead 1.5**", "pays-resnet18", "ahead-1_5@4e-3", "adamw@4e-3"),
        ("look-ahead 2", "pays-resnet18", "ahead-2@4e-3", "adamw@4e-3"),
        ("look-ahead 4", "pays-resnet18", "ahead-4@4e-3", "adamw@4e-3"),
        ("NAdamW", "pays-resnet18", "nadamw@4e-3", "adamw@4e-3"),
        ("look-ahead 1.25", "pays-gpt", "ahead-1_25@2e-3", "adamw@2e-3"),
        ("**look-ahead 1.5**", "pays-gpt", "ahead-1_5@2e-3", "adamw@2e-3"),
        ("look-ahead 2", "pays-gpt", "ahead-2@2e-3", "adamw@2e-3"),
        ("NAdamW", "pays-gpt", "nadamw@1e-3", "adamw@2e-3"),
    ],
)
def test_the_table_is_that_of_the_records(row, experiment, method, base):
    """Every difference, to the last digit printed."""
    column, digit = (0, 0.01) if experiment == "pays-resnet18" else (1, 0.001)
    assert told(row, column) == pytest.approx(paired(experiment, method, base), abs=0.51 * digit)


def test_adamw_is_what_the_others_are_compared_with():
    for column, experiment, base in ((0, "pays-resnet18", "4e-3"), (1, "pays-gpt", "2e-3")):
        (line,) = [line for line in PAGE.splitlines() if line.startswith("| AdamW |")]
        mean = statistics.mean(finals(experiment)[f"adamw@{base}"].values())
        assert float(line.split("|")[column + 2]) == pytest.approx(mean, abs=0.006)


def test_the_readme_says_the_same():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    convnet = paired("pays-resnet18", "ahead-2@4e-3", "adamw@4e-3")
    gpt = paired("pays-gpt", "ahead-1_5@2e-3", "adamw@2e-3")
    assert "gained {:.2f} \u00b1 {:.2f} points".format(*convnet) in text
    assert f"gained {-gpt[0]:.3f} \u00b1 {gpt[1]:.3f} nats" in text
