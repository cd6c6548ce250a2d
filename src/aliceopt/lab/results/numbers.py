"""Numbers for people: sensible digits, the unit of the metric, and the range of a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

MINUS = "\u2212"
NONE = "\u2013"
"""Where there is no number."""


def show_value(value: float | None, metric: str) -> str:
    """A result: percent for accuracy, four digits otherwise; a dash where there is none.

    >>> show_value(98.6111, "accuracy"), show_value(0.0412345, "loss"), show_value(21.834, "ppl")
    ('98.61%', '0.04123', '21.83')
    """
    if value is None:
        return NONE
    if metric == "accuracy":
        return f"{value:.2f}%"
    return f"{value:.4g}".replace("-", MINUS)


def unit(metric: str) -> str:
    """What a difference of results is measured in: goes behind a number."""
    return "points" if metric == "accuracy" else f"in {metric}"


def decimals(width: float) -> int:
    """Decimals that leave an interval of this half-width one or two digits."""
    if not 0 < width < math.inf:
        return 2
    return min(12, max(0, math.ceil(-math.log10(width / 2))))


def signed(value: float, places: int) -> str:
    """With a true minus sign; nothing is minus zero."""
    text = f"{value:.{places}f}"
    return f"{MINUS}{text[1:]}" if text.startswith("-") and float(text) != 0 else text.lstrip("-")


def show_difference(metric: str, mean: float, low: float, high: float) -> str:
    """A difference with its interval.

    >>> show_difference("accuracy", 0.4, 0.1, 0.7)
    '0.4 points (95% interval 0.1 to 0.7)'
    """
    places = _places(1, mean, low, high)
    said, *ends = (signed(value, places) for value in (mean, low, high))
    return f"{said} {unit(metric)} (95% interval {' to '.join(ends)})"


def show_percent(mean: float, *ends: float) -> list[str]:
    """A mean and the ends of its interval, if it has one, with the same decimals.

    >>> show_percent(12.34, 3.21, 20.4), show_percent(3.14)
    (['12%', '3%', '20%'], ['3.1%'])
    """
    places = _places(0, mean, *(ends or (0.5 * mean, 1.5 * mean)))
    return [f"{signed(value, places)}%" for value in (mean, *ends)]


def show_times(ratio: float, least: int = 1) -> str:
    """A ratio with two digits, more where it is near one, fewer where it is huge.

    ``least`` are the decimals it has between a half and ten.

    >>> [show_times(ratio) for ratio in (1.8123, 1.0234, 27.3, 12345.0, 3e9, 2.1e-4)]
    ['1.8', '1.02', '27', '12,000', '3e9', '2e-4']
    """
    if not 1e-3 <= ratio < 1e6:
        mantissa, _, exponent = f"{ratio:.0e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    if ratio <= 0.5:
        return f"{ratio:.2g}"
    if ratio < 10:
        return f"{ratio:.{max(least, decimals(abs(ratio - 1)) if ratio < 2 else 1)}f}"
    return f"{float(f'{ratio:.2g}'):,.0f}"


def _places(least: int, mean: float, low: float, high: float) -> int:
    """Decimals for an interval, and one or two more so that what is not zero reads as none."""
    places = max(least, decimals((high - low) / 2))
    for _ in range(2):
        if any(v != 0 and float(f"{v:.{places}f}") == 0 for v in (mean, low, high)):
            places += 1
    return places


def show_count(count: float | None) -> str:
    """Gradient evaluations, with thousands separated; a dash where there is none."""
    return NONE if count is None else f"{count:,.0f}"


def show_rate(rate: float | None) -> str:
    """A learning rate to three digits; a dash where there is none."""
    return NONE if rate is None else f"{rate:.3g}"


def show_share(part: int, whole: int) -> str:
    """``3`` if it is all of them, else ``2 of 3``."""
    return str(whole) if part == whole else f"{part} of {whole}"


def show_seconds(seconds: float | None) -> str:
    """Seconds to two digits, from two minutes on in minutes, from two hours on in hours.

    >>> show_seconds(0.4567), show_seconds(754.0), show_seconds(9000.0)
    ('0.46 s', '12.6 min', '2.5 h')
    """
    if seconds is None:
        return NONE
    for size, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    places = 0 if seconds >= 10 else 1 if seconds >= 1 else 2
    return f"{seconds:.{places}f} s"


def limits(values: Sequence[float], better: str) -> tuple[float, float]:
    """A range for results, in which a few failures on the bad side do not hide the rest.

    Values further below the median than three times the best value or the lower quartile is from
    it are left outside.
    """
    sign = 1 if better == "higher" else -1
    ordered = sorted(sign * v for v in values)
    middle, top = median(ordered), ordered[-1]
    quartile = ordered[len(ordered) // 4]
    reach = 3 * max(top - middle, middle - quartile, 1e-3 * abs(middle), 1e-12)
    bottom = min(v for v in ordered if v >= middle - reach)
    pad = 0.1 * max(top - bottom, 1e-3 * abs(middle), 1e-12)
    low, high = sorted((sign * (bottom - pad), sign * (top + pad)))
    return low, high
