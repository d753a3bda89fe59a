"""Numbers as the report writes them."""

from __future__ import annotations

import math

from thrust_pomdp.experiment.statistics import Estimate, Reached

#: From this size on so many digits after the point; below all of them three significant ones.
_DIGITS = ((10_000, 0), (10, 1), (1, 2), (0.01, 3))

_MINUS = "\N{MINUS SIGN}"


def format_number(value: float, scale: float | None = None) -> str:
    """Write a number to about four digits of its scale.

    >>> [format_number(value) for value in (498.349, -0.1234, 23456.7, 0.00012345, 0.0)]
    ['498.3', '−0.123', '23,457', '0.000123', '0.000']
    >>> format_number(2.0, scale=500.0), format_number(0.98765, scale=1.0)
    ('2.0', '0.99')

    :param value: what to write
    :param scale: size of the numbers it stands among; its own by default
    """
    size = abs(value if scale is None else scale)
    if not math.isfinite(value):
        return "none"
    digits = next((digits for least, digits in _DIGITS if size >= least), None if size else 3)
    text = f"{value:.3g}" if digits is None else f"{value:,.{digits}f}"
    return _MINUS + text[1:] if text.startswith("-") and float(text.replace(",", "")) else text


def format_interval(ends: tuple[float, float], scale: float | None = None) -> str:
    """Write an interval.

    >>> format_interval((-1.25, 30.0), 500.0)
    '[−1.2, 30.0]'
    """
    low, high = (format_number(end, scale) for end in ends)
    return f"[{low}, {high}]"


def format_estimate(estimate: Estimate, scale: float | None = None) -> str:
    """Write an estimate and its interval, or that there is none.

    >>> format_estimate(Estimate(120.0, (100.0, 140.0))), format_estimate(Estimate(120.0, None))
    ('120.0 [100.0, 140.0]', '120.0 (one run)')
    """
    scale = estimate.value if scale is None else scale
    ends = "(one run)" if estimate.interval is None else format_interval(estimate.interval, scale)
    return f"{format_number(estimate.value, scale)} {ends}"


def format_count(count: int, noun: str) -> str:
    """Write a number of things.

    >>> format_count(1, "run"), format_count(3, "run")
    ('1 run', '3 runs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_steps(value: float) -> str:
    """Write a number of environment steps.

    >>> format_steps(45_000), format_steps(900), format_steps(2_500_000)
    ('45k', '900', '2.5M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Write a time.

    >>> format_duration(4.21), format_duration(75), format_duration(7300)
    ('4.2 s', '75 s', '122 min')
    """
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def format_reached(at: Reached, seconds: Reached) -> str:
    """Write what it took to reach a threshold.

    >>> format_reached(Reached(45_000.0, 0, 5), Reached(4.21, 0, 5))
    '45k steps, 4.2 s'
    >>> format_reached(Reached(45_000.0, 2, 5), Reached(4.21, 2, 5))
    '45k steps, 4.2 s (not by 2 of 5)'
    >>> format_reached(Reached(None, 3, 5), Reached(None, 3, 5))
    'not by 3 of 5'

    :param at: steps, from :func:`~thrust_pomdp.experiment.statistics.median_reaching`
    :param seconds: the same of the time
    """
    missed = f"not by {at.missed} of {at.n_runs}"
    if at.median is None or seconds.median is None:
        return missed
    text = f"{format_steps(at.median)} steps, {format_duration(seconds.median)}"
    return f"{text} ({missed})" if at.missed else text


def shorten(text: str, length: int) -> str:
    """Leave out the middle of what is too long.

    >>> shorten("a_package.module:factory", 15)
    'a_packa…factory'
    """
    if len(text) <= length:
        return text
    kept = length - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
