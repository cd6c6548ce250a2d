"""Ladders along a training run: which curvature every block has, from the first step to the last.

The paper's Figure 1, at radii that can be read, on training and on held-out batches. A copy of the
network is measured, so the run is the same, to the bit, as without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.records import read_events, run_folder
from aliceopt.lab.spec import Run
from aliceopt.lab.training.precision import set_products
from aliceopt.lab.training.train import Loop
from aliceopt.landscape.floor import CHOOSING_GRADIENTS, LOOKING_GRADIENTS
from aliceopt.trained.landscape.presets import Asked, climbing
from aliceopt.trained.landscape.survey import Instruments, Tick, silent
from aliceopt.trained.network import fresh_network


def moments(steps: int, batches: int, every: float) -> list[int]:
    """After how many steps to look: at the start, every so many epochs, and at the end.

    >>> moments(10, 4, 1), moments(10, 4, 0.5), moments(10, 4, 100)
    ([0, 4, 8, 10], [0, 2, 4, 6, 8, 10], [0, 10])
    """
    stride = max(1.0, every * batches)
    count = math.ceil(steps / stride)
    return sorted({min(steps, round(k * stride)) for k in range(count)} | {steps})


class Along:
    """Measures a ladder at every moment, and writes it into the run's journal.

    All at the same radii, those of the start; what rounding makes of a gradient is measured anew.
    The batches are the same as well. ``tell`` is called with a line about every moment.
    """

    def __init__(
        self,
        run: Run,
        asked: Asked,
        every: float,
        folder: Path,
        device: torch.device,
        tick: Tick = silent,
        tell: Callable[[str], Any] = lambda line: None,
    ):
        if not math.isfinite(every) or every <= 0:
            raise ValueError(f"--every must be a number of epochs above 0, got {every:g}")
        self.run, self.tell = run, tell
        self.asked = replace(asked, between=None, exact=False, coordinates=False)
        network = fresh_network(run, device)
        self.steps = moments(run.training.steps, len(network.train), every)
        self.instruments = Instruments(network, self.asked, tick)
        plain = isinstance(asked.blocks, int | str | None)
        names = ("batch_size", "precision", "seed", "evaluating", "radius")
        self.settings = {  # all that numbers depend on
            "every": every,
            "preset": list(asked.preset),
            "parts": list(asked.parts),
            "blocks": asked.blocks if plain else str(asked.blocks),
            **{name: getattr(asked, name) for name in names},
        }
        self.place = run_folder(folder, run.method, run.seed)
        kept = self.events()  # where the folder's network was measured on its way already
        self.radii: tuple[float, ...] = tuple(kept[0]["ladder"]["radii"]) if kept else ()

    def check_network(self) -> None:
        """Refuse a network in the folder that was not measured on its way, or otherwise."""
        kept = self.events()
        as_asked = bool(kept) and all(event["asked"] == self.settings for event in kept)
        if (self.place / "checkpoint.pt").exists() and not as_asked:
            raise PlanError(
                f"{str(self.place)!r} has a network that was trained without this --every "
                f"{self.settings['every']:g}, or measured otherwise: --overwrite trains one anew "
                "in its place, or choose another --out"
            )

    @property
    def gradients(self) -> int:
        """How many it takes; fewer where there are fewer batches."""
        later = (len(self.steps) - 1) * LOOKING_GRADIENTS
        each = len(self.asked.parts) * climbing(self.asked.preset)
        return CHOOSING_GRADIENTS + later + len(self.steps) * each

    def due(self, step: int) -> bool:
        """Whether to look after so many steps."""
        return step in self.steps

    def look(self, loop: Loop) -> None:
        """Measure what the loop's model is now, on a copy."""
        of, precision = self.instruments, self.run.training.precision
        of.model.load_state_dict(loop.model.state_dict())
        set_products(self.asked.precision)
        try:
            found = of.radii(None if loop.step == 0 else self.radii[0])
            self.radii = found.radii if loop.step == 0 else self.radii
            for part in self.asked.parts:
                ladder = of.climb(part, replace(found, radii=self.radii))
                loop.journal.write(
                    "ladder",
                    step=loop.step,
                    epoch=loop.step / len(loop.data),
                    part=part,
                    batch_size=of.batch_size,
                    asked=self.settings,
                    readable=found.readable,
                    ladder=ladder.as_dict(),
                )
        finally:
            set_products(precision)
        self.tell(f"ladders after step {loop.step:,} of {self.steps[-1]:,}")

    def events(self) -> list[dict[str, Any]]:
        """What the journal has so far, in the order of steps."""
        return read_events(self.place / "records.jsonl", "ladder")

    def lines(self) -> list[dict[str, Any]]:
        """One a moment and kind of batches: where it was, and the ladder's own numbers."""
        kept = ("step", "epoch", "part", "batch_size", "readable")
        return [{name: event[name] for name in kept} | event["ladder"] for event in self.events()]
