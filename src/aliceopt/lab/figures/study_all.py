"""All figures of a study or an experiment: one a question, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aliceopt.lab.figures.study_cost import draw_study_cost
from aliceopt.lab.figures.study_curvature import draw_study_curvature
from aliceopt.lab.figures.study_look import Picture, Results
from aliceopt.lab.figures.study_methods import draw_study_methods
from aliceopt.lab.figures.study_terms import draw_study_terms
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.summary import Summary, summarize

__all__ = ["draw_study"]


def draw_study(
    plan: Mapping[str, Any],
    runs: Sequence[RunRecord],
    folder: Path,
    *,
    summary: Summary | None = None,
    suffix: str = ".svg",
    methods: bool = True,
) -> list[Picture]:
    """Write ``study-terms``, ``-methods``, ``-cost`` and ``-curvature``, as far as records go.

    Figures left from earlier records of the same study are replaced or removed. An experiment has
    no figure of the terms here: it has the paper's own, and with ``methods`` off none of methods.
    """
    results = Results(plan, runs, summarize(plan, runs) if summary is None else summary)
    paths = {n: folder / f"study-{n}{suffix}" for n in ("terms", "cost", "methods", "curvature")}
    study = plan["kind"] == "study"
    pictures = {
        "terms": draw_study_terms(results, paths["terms"]) if study else None,
        "methods": draw_study_methods(results, paths["methods"]) if methods else None,
        "cost": draw_study_cost(results, paths["cost"]),
        "curvature": draw_study_curvature(results, paths["curvature"]),
    }
    for name, picture in pictures.items():
        if picture is None:
            paths[name].unlink(missing_ok=True)
    return [picture for picture in pictures.values() if picture is not None]
