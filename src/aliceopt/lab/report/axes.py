"""Where numbers stand on a plot: scales that one bad run cannot spoil, and round ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_FAR = 60.0  # percent beyond an edge, where whatever is further away is drawn
_LEAST = 1e-300  # the least a logarithm is taken of


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, linear or logarithmic, as percent of a plot."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Percent from the low end; what is far outside stands a little outside."""
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, _LEAST))
        share = 100 * (here - low) / ((high - low) or 1.0)
        return round(min(100 + _FAR, max(-_FAR, share)), 2)

    def with_room(self, percent: float) -> Axis:
        """The same with so much of it left free below.

        >>> Axis(1.0, 2.0).with_room(20.0), Axis(1.0, 16.0, log=True).with_room(20.0)
        (Axis(low=0.75, high=2.0, log=False), Axis(low=0.5, high=16.0, log=True))
        """
        share = percent / (100 - percent)
        if self.log:
            low = self.low * (self.low / self.high) ** share
            return replace(self, low=max(low, _LEAST))
        return replace(self, low=self.low - share * (self.high - self.low))

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round numbers inside, with their places.

        >>> [text for _, text in Axis(0.0, 7.0).ticks()], [t for _, t in Axis(2, 70, True).ticks()]
        (['0', '2', '4', '6'], ['2', '5', '10', '20', '50'])
        >>> [text for _, text in Axis(0.93, 1.14, log=True).ticks()]
        ['0.95', '1', '1.05', '1.1']
        """
        wide = self.log and self.high > 3 * self.low
        found = self._decades(most) if wide else self._multiples(most)
        return [(self.at(value), short(value)) for value in found]

    def _multiples(self, most: int) -> list[float]:
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        while self.low // step + most < self.high // step:
            step *= 2 if f"{step:e}"[0] != "2" else 2.5
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(k * step, 12) for k in range(first, last + 1)]

    def _decades(self, most: int) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for parts in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            values = [part * 10.0**power for power in powers for part in parts]
            inside = [value for value in values if self.low <= value <= self.high]
            if len(inside) <= most + 2:
                return inside
        return inside[:: -(-len(inside) // most)]


def short(value: float) -> str:
    """A number in as few characters as it takes.

    >>> short(0.0005), short(0.002), short(0.25), short(20000.0)
    ('5e-4', '0.002', '0.25', '20k')
    """
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    plain = f"{value:.6g}".replace("-", "\u2212")
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return plain if len(plain) <= 5 else f"{float(mantissa):g}e{int(exponent)}"
